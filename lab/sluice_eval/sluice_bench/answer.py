# SPDX-License-Identifier: Apache-2.0
"""One request and its answer, however it was sent."""
from __future__ import annotations

import array
import dataclasses
from typing import Any, Optional

DONE, REFUSED, FAILED, CUT = "done", "refused", "failed", "cut"  # cut: the run ended before the answer did


@dataclasses.dataclass
class Answer:
    """One request and its answer. Times are seconds of the monotonic clock."""

    status: str = FAILED
    error: str = ""
    sent_s: float = 0.0
    end_s: float = 0.0
    token_s: array.array = dataclasses.field(default_factory=lambda: array.array("d"))  # when each piece of text came
    n_prompt: Optional[int] = None  # as the server counts; None: it sent no usage
    n_output: Optional[int] = None
    n_cached: int = 0
    sluice: dict[str, Any] = dataclasses.field(default_factory=dict)  # measurements in the last event
    text: str = ""

    @property
    def n_tokens(self) -> int:
        """Returns the length of the answer: the server's count, else the number of pieces."""
        return self.n_output if self.n_output is not None else len(self.token_s)

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.token_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> Optional[float]:
        """Returns the mean time of the tokens after the first one; None: there is only one."""
        return (self.token_s[-1] - self.token_s[0]) / (self.n_tokens - 1) if self.n_tokens > 1 else None
