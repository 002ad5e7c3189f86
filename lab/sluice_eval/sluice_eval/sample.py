# SPDX-License-Identifier: Apache-2.0
"""One question to a model, with its right answers."""
from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass
class Sample:
    """Tasks and data sets make samples, runners ask them and metrics score them."""

    prompt: str  # all text before the answer; without the begin token
    answers: list[str]  # for the metric: alternatives, or all of them
    metric: str
    max_new_tokens: int
    classes: list[str] = dataclasses.field(default_factory=list)  # for metrics that classify
    completion: Optional[str] = None  # the expected text after the prompt: " 71, 83."
