#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/TOUR.md to the tree: every file that it names is there, and every stop's number of lines is right to a tenth.

    tour.py ROOT           check
    tour.py ROOT --write   put the numbers in

A stop is a row | number | files in backticks | lines | what it teaches |. A bare name lies in the folder of the file before it; a folder
means its .c and .h files.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import script  # noqa: E402

ROW = re.compile(r"^\| *(\S*) *\| *(`.*?) *\| *([0-9.k]*) *\| *(.*?) *\|$")


def files_of(root, words):
    folder = ""
    for word in words:
        name = word if "/" in word or os.path.exists(os.path.join(root, word)) else os.path.join(folder, word)
        path = os.path.join(root, name)
        if os.path.isdir(path):
            folder = name.rstrip("/")
            found = [os.path.join(name, f) for f in sorted(os.listdir(path)) if f.endswith((".c", ".h", ".proto", ".py"))]
        else:
            folder = os.path.dirname(name)
            found = [name]
        yield from found


def lines_of(root, words):
    total = 0
    for name in files_of(root, words):
        with open(os.path.join(root, name), encoding="utf-8") as file:
            total += sum(1 for _ in file)
    return total


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        print(__doc__)
        return 2
    root, write = sys.argv[1], sys.argv[2:] == ["--write"]
    path = os.path.join(root, "docs", "TOUR.md")
    with open(path, encoding="utf-8") as file:
        text = file.read().split("\n")
    complaints, n_stops = [], 0
    for i, line in enumerate(text):
        match = ROW.match(line)
        if not match:
            continue
        number, read, said, learn = match.groups()
        n_stops += 1
        try:
            lines = lines_of(root, re.findall(r"`([^`]+)`", read))
        except OSError as error:
            complaints.append(f"docs/TOUR.md:{i + 1}: {error.filename} is not there")
            continue
        if write:
            text[i] = f"| {number} | {read} | {lines} | {learn} |"
        elif not said or abs(int(said) - lines) > lines / 10:
            complaints.append(f"docs/TOUR.md:{i + 1}: {read} has {lines} lines, not {said or 'none'}; tools/tour.py . --write")
    if write:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(text))
    for complaint in complaints:
        print(complaint)
    print(f"tour: {n_stops} stops, {len(complaints)} complaints")
    return 1 if complaints or n_stops == 0 else 0


if __name__ == "__main__":
    script.help_if_asked()
    sys.exit(main())
