"""The reference pages say what the code says. DIBS_REWRITE=1 writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.cli.framework.registry import load, shipped_names
from dibs.wire import codes
from scripts.dev.pages import man
from scripts.dev.pages.reference import GENERAL, MEANINGS, cli_page, exit_codes_page
from tests.docs.pages import section

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


def test_each_command_has_its_flags_and_what_is_said_once_is_there() -> None:
    page = cli_page()
    shared = section(page, "Flags of several commands")
    for name in shipped_names():
        text = section(page, f"dibs {name}")
        for option in load(name).options:
            assert f"`{option.flag}`" in text or f"`{option.shown}`" in text
            assert option.help in text or option.help in shared
        for code, what in load(name).exits:
            assert re.search(rf"^Exits: .*\b{code}\b", text, re.MULTILINE) or code in (0, *GENERAL)
            assert f"{code} {what}" in page or code in (0, *GENERAL)


def test_the_man_page_is_what_the_code_would_write() -> None:
    if REWRITE:
        man.PAGE.parent.mkdir(exist_ok=True)
        man.PAGE.write_text(man.page(), encoding="utf-8")
    assert man.PAGE.read_text(encoding="utf-8") == man.page()


def test_the_man_page_names_every_command_and_flag_and_runs_no_request_of_a_text() -> None:
    page = man.page()
    for name in shipped_names():
        assert f'.SS "dibs {name}"'.replace("-", "\\-") in page
        assert all(option.flag.replace("-", "\\-") in page for option in load(name).options)
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    known = {".TH", ".SH", ".SS", ".PP", ".TP", ".RS", ".RE", ".B", ".BR", ".I", ".nf", ".fi"}
    assert requests <= known


def test_every_exit_code_of_the_table_has_a_meaning() -> None:
    rows = [*codes.OUTCOMES.values(), *codes.CODES.values()]
    assert {row.exit for row in rows} <= set(MEANINGS)
