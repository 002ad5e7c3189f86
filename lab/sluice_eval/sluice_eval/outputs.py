# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their name whole or not at all: the names that they may take."""
from __future__ import annotations

import errno
import os
import pathlib

from .errors import EvalError


def check_name(path: str) -> None:
    """Rejects the name of a device, a pipe or a folder: the file would replace it, also /dev/null. Raises OSError."""
    stands_for_open_file = os.path.islink(path) and os.readlink(path).startswith("/proc/")  # as /dev/stdout does
    if stands_for_open_file or (os.path.exists(path) and not os.path.isfile(path)):
        raise OSError(errno.EINVAL, "it is not a file; give the name of a file")


def check_place(path: str) -> None:
    """Checks that a file can be written there, before hours of work."""
    try:
        check_name(path)
    except OSError as error:
        raise EvalError(f"{path}: cannot be written: {error.strerror}") from error
    if not os.access(pathlib.Path(path).absolute().parent, os.W_OK):
        raise EvalError(f"{path}: cannot be written: there is no such folder, or it is read-only")
