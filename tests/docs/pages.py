"""Reading the documentation: its pages, their tables, and the fenced blocks in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block. `start` and `end` are where its text stands in the page."""

    info: str
    text: str
    start: int
    end: int


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    return [
        Block(found["info"].strip(), found["text"], found.start("text"), found.end("text"))
        for found in _FENCE.finditer(page)
    ]


def section(page: str, title: str) -> str:
    """The text below the heading `title`, down to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", page, re.MULTILINE)
    assert found is not None, f"no heading {title!r}"
    level = len(found[1])
    following = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(page, found.end())
    return page[found.end() : following.start() if following else len(page)]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows in `text`, headers left out."""
    return [row for table in tables(text) for row in table.rows]


def code_words(text: str) -> set[str]:
    """Everything that stands in `backticks`."""
    return set(re.findall(r"`([^`\n]+)`", text))


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]


def tables(text: str) -> list[Table]:
    """Every table in `text`."""
    groups = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    cells = [[_cells(line) for line in group.splitlines()] for group in groups]
    return [Table(header, rest) for header, _rule, *rest in cells]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
