"""The reference pages say what the code says. DIBS_REWRITE=1 writes them anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.cli.reference import MEANINGS, cli_page, exit_codes_page
from dibs.cli.table import GROUPS, NAMES
from dibs.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable

# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
PAGES = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(("name", "page"), [("cli.md", cli_page), ("exit-codes.md", exit_codes_page)])
def test_a_page_is_what_the_code_would_write(name: str, page: Callable[[], str]) -> None:
    if REWRITE:
        (PAGES / name).write_text(page(), encoding="utf-8")
    assert (PAGES / name).read_text(encoding="utf-8") == page()


def test_every_exit_code_of_the_table_has_a_meaning() -> None:
    rows = [*codes.OUTCOMES.values(), *codes.CODES.values()]
    assert {row.exit for row in rows} <= set(MEANINGS)


def test_every_command_is_in_one_group_and_once() -> None:
    shown = [name for _, names in GROUPS for name in names]
    assert sorted(shown) == sorted(NAMES)
    assert len({title for title, _ in GROUPS}) == len(GROUPS)
