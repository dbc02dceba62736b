"""The page about MCP and the code agree. DIBS_REWRITE=1 writes the section about the tools anew."""

from __future__ import annotations

import os

from dibs.agents.mcp import methods as resources
from dibs.agents.mcp.tool_fields import TTL_SECONDS_LOOSE
from scripts.dev.pages.mcp import tools_section
from tests.docs.pages import REFERENCE, code_words, read, section

PAGE = REFERENCE / "mcp.md"
# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
HEADING = "## Tools\n\n"


def test_the_tools_on_the_page_are_those_that_clients_are_shown() -> None:
    if REWRITE:
        head = read(PAGE).split(HEADING)[0]
        PAGE.write_text(head + HEADING + tools_section(), encoding="utf-8")
    assert read(PAGE).split(HEADING)[1] == tools_section()


def test_every_resource_is_on_the_page() -> None:
    listed = {word for word in code_words(section(read(PAGE), "Resources")) if word.startswith("dibs:")}
    assert {resources.ROOT, resources.JOB, resources.HISTORY} <= listed
    assert f"{resources.ROOT}/path%3Asrc%2Fauth.rs" in listed


def test_the_time_of_a_claim_over_http_is_the_one_that_the_page_says() -> None:
    assert TTL_SECONDS_LOOSE == 15 * 60
    assert "15 minutes by default" in read(PAGE)
