#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Removes what the last `make install` from this build folder wrote, below DESTDIR if there is one, and the folders of ours that are empty then.

    uninstall.py MANIFEST    which goes too, when nothing of it is left
"""
import os
import re
import sys


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8", errors="surrogateescape") as file:
            paths = [line for line in file.read().split("\n") if line]
    except OSError as error:
        print(f"nothing was installed from here: {error}", file=sys.stderr)
        return 1
    root, removed, left, folders = os.environ.get("DESTDIR", ""), 0, [], set()
    for path in paths:
        try:
            os.unlink(root + path)
            removed += 1
        except FileNotFoundError:
            pass
        except OSError as error:
            left.append(str(error))
        folder = os.path.dirname(path)
        while re.search("/[Ss]luice(/|$)", folder):  # never one that others write to
            folders.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(folders, reverse=True):  # the inner ones first
        try:
            os.rmdir(root + folder)
        except OSError:
            pass  # something of others is in it, or of ours that could not be removed, which is told below
    print(f"removed {removed} files; what /etc/sluice and /var/lib have is left alone")
    if left:
        print(f"{len(left)} files are left: {left[0]}", file=sys.stderr)
        return 1
    os.unlink(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
