"""docs/explanation/what-you-lose.md: each death in its table is tried by a test that the page names."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT, read, tables

PAGE = read(DOCS / "explanation" / "what-you-lose.md")
DEATHS = [row[0] for row in tables(PAGE)[0].rows]
TRIED = re.findall(r"^(.+?): (tests/[\w/]+\.py)::(test_\w+)$", PAGE, re.MULTILINE)


def test_every_row_names_a_test_that_is_there() -> None:
    assert len(TRIED) == len(DEATHS)
    for (row, path, test), death in zip(TRIED, DEATHS, strict=True):
        assert death.startswith(row)
        assert f"def {test}(" in read(ROOT / path), test


def test_every_cell_of_a_row_says_something() -> None:
    header, rows = tables(PAGE)[0]
    assert all(len(row) == len(header) and all(row) for row in rows)
