# SPDX-License-Identifier: Apache-2.0
"""How a signal ends a command."""
from __future__ import annotations

import contextlib
import signal
from typing import Any, Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM interrupt, as Ctrl-C does."""
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
