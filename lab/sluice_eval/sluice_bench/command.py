# SPDX-License-Identifier: Apache-2.0
"""What the package's commands share: how one starts, and how it ends."""
from __future__ import annotations

import argparse
import os
import sys
from typing import Callable, Optional

from sluice_eval.errors import CANCELLED, FAILED, EvalError, RefusedError

from .options import describe


def start(made: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None], words: Optional[list[str]] = None) -> int:
    """Runs a command with the options of the command line, or of `words`. Returns its exit code."""
    if (sys.argv[1:] if words is None else words) == ["--describe"]:
        print(describe(made))
        return 0
    try:
        run(made.parse_args(words))
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return FAILED
    except KeyboardInterrupt:
        print(f"{made.prog}: stopped by a signal", file=sys.stderr)
        return CANCELLED
    except (EvalError, RefusedError) as error:
        print(f"{made.prog}: {error}", file=sys.stderr)
        return getattr(error, "code", FAILED)
