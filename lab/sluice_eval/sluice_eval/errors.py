# SPDX-License-Identifier: Apache-2.0
"""Errors of an evaluation, and the exit code of each. The codes are those of the `sluice` tool."""
from __future__ import annotations

OK, FAILED, USAGE, UNAVAILABLE, CANCELLED, DEADLINE = range(6)


class EvalError(Exception):
    """Ends the command with `code`."""

    code = FAILED


class UsageError(EvalError):
    """A wrong option or file: nothing was done."""

    code = USAGE


class UnavailableError(EvalError):
    """The server cannot be reached, or has no room: a retry may succeed."""

    code = UNAVAILABLE


class CancelledError(EvalError):
    """A signal came."""

    code = CANCELLED


class DeadlineError(EvalError):
    """An answer took too long."""

    code = DEADLINE


class RefusedError(Exception):
    """The model or the prompt's length rejects one question. The results record the reason, and the run continues."""
