# SPDX-License-Identifier: Apache-2.0
"""Changes what the system reports to a running process (bend.c): the time of day, its disk, its connections."""
import contextlib
import mmap
import os
import struct

from harness import BIN

LIBRARY = os.path.join(os.path.dirname(BIN), "tests", "lib", "libbend.so")
FIELDS = ("clock_s", "disk_fails", "link_resets", "disk_stalls")


class Bend:
    """Bends the processes of one name, also those that are started later."""

    def __init__(self, folder, name):
        path = os.path.join(folder, f"bend-{name}")
        with open(path, "wb") as file:
            file.write(bytes(8 * len(FIELDS)))
        with open(path, "r+b") as file:
            self.control = mmap.mmap(file.fileno(), 8 * len(FIELDS))
        self.environment = {"LD_PRELOAD": LIBRARY, "SLUICE_BEND": path,
                            "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}

    @contextlib.contextmanager
    def bent(self, field, value):
        at = 8 * FIELDS.index(field)
        struct.pack_into("q", self.control, at, value)
        try:
            yield
        finally:
            struct.pack_into("q", self.control, at, 0)
