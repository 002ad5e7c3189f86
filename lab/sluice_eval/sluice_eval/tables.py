# SPDX-License-Identifier: Apache-2.0
"""Tables of text, for a terminal or as Markdown."""
from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass
class Table:
    """titles: a title that begins with ">" is of a column that is aligned to the right."""

    titles: list[str]
    rows: list[list[str]] = dataclasses.field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append([re.sub(r"[\x00-\x1f\x7f]", "?", cell) for cell in cells])

    def text(self) -> str:
        """Returns the lines of the table, without spaces at their ends but for those of a last cell."""
        right = [title.startswith(">") for title in self.titles]
        rows = [[title.removeprefix(">") for title in self.titles], *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(right))]
        lines = []
        for row in rows:
            cells = [cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in zip(row, widths, right)]
            if not right[-1]:
                cells[-1] = row[-1]
            lines.append("  ".join(cells))
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        lines = [[title.removeprefix(">") for title in self.titles], *self.rows]
        text = ["".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in line) + "|" for line in lines]
        text.insert(1, "".join("|-:" if title.startswith(">") else "|-" for title in self.titles) + "|")
        return "\n".join(text) + "\n"
