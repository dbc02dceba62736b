"""Declarations as a table in text: what a reader wants to see together, without quotes and brackets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator


def sections(table: str, words: Collection[str] = ()) -> Iterator[tuple[str, list[list[str]]]]:
    """The sections of a table in text: the name of each, and its lines, each with what stands below it. A line that is
    indented further and does not begin with one of `words` continues the one above."""
    name, lines = "", list[list[str]]()
    for text in [*table.strip().splitlines(), ""]:
        line = text.strip()
        if not text.startswith(" "):
            if name:
                yield name, lines
            name, lines = line, []
        elif not text.startswith("        "):
            lines.append([line])
        elif re.split("[:; ]", line)[0] in words:
            lines[-1].append(line)
        else:
            lines[-1][-1] += f" {line}"
