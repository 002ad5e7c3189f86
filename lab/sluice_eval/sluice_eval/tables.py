# SPDX-License-Identifier: Apache-2.0
"""Tables of text, for a terminal or as Markdown."""
from __future__ import annotations

import dataclasses
import re
import textwrap

INDENT = "    "  # of a row's further lines


@dataclasses.dataclass
class Table:
    """titles: a title that begins with ">" is of a column that is aligned to the right."""

    titles: list[str]
    rows: list[list[str]] = dataclasses.field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append([re.sub(r"[\x00-\x1f\x7f]", "?", cell) for cell in cells])

    def text(self, width: int = 0) -> str:
        """Returns the table within `width` columns (0: no limit).

        Columns that do not fit go to a further, indented line of the row; no cell is left out.
        """
        right = [title.startswith(">") for title in self.titles]
        rows = [[title.removeprefix(">") for title in self.titles], *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(right))]
        lines = []
        for row in rows:
            first = 0
            while first < len(row):
                end = self._end_of_line(widths, first, width)
                indent = INDENT * (first > 0)
                if first > 0 and end == first + 1 and not right[first]:
                    lines.append(textwrap.fill(row[first], max(width, len(INDENT) + 1), initial_indent=indent, subsequent_indent=indent,
                                               break_long_words=False, break_on_hyphens=False) or indent)
                else:
                    cells = [row[i].rjust(widths[i]) if right[i] else row[i].ljust(widths[i]) for i in range(first, end)]
                    if not right[end - 1]:
                        cells[-1] = row[end - 1]
                    lines.append(indent + "  ".join(cells))
                first = end
        return "\n".join(lines) + "\n"

    @staticmethod
    def _end_of_line(widths: list[int], first: int, width: int) -> int:
        """Returns the first column of a row's next line, whose current line begins with column `first`."""
        used, end = len(INDENT) * (first > 0) + widths[first], first + 1
        while end < len(widths) and (width == 0 or used + 2 + widths[end] <= width):
            used += 2 + widths[end]
            end += 1
        return end

    def markdown(self) -> str:
        lines = [[title.removeprefix(">") for title in self.titles], *self.rows]
        text = ["".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in line) + "|" for line in lines]
        text.insert(1, "".join("|-:" if title.startswith(">") else "|-" for title in self.titles) + "|")
        return "\n".join(text) + "\n"
