"""The page of promises and the tests agree, in both directions.

A test cites a promise with `@pytest.mark.promise("id")`. The contract suite that dibs ships counts as tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.meta.citations import Citation, all_citations, citations_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "promises.md"


@pytest.fixture(scope="module")
def promises() -> list[str]:
    """The ids on the page, each at the beginning of its line."""
    return re.findall(r"^- `([^`]+)`: \S", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def citations() -> list[Citation]:
    return all_citations("promise")


def test_the_page_lists_each_promise_once(promises: list[str]) -> None:
    assert promises
    assert len(promises) == len(set(promises))
    assert len(promises) == PAGE.read_text(encoding="utf-8").count("\n- "), "a line has no id"


def test_every_promise_has_a_test(promises: list[str], citations: list[Citation]) -> None:
    untested = {*promises} - {citation.id for citation in citations}
    assert not untested, f"no test cites it: {untested}"


def test_every_cited_promise_is_on_the_page(promises: list[str], citations: list[Citation]) -> None:
    unknown = [f"{it.file}:{it.line} cites {it.id}" for it in citations if it.id not in promises]
    assert not unknown, "\n".join(unknown)


def test_a_citation_is_found_on_a_function_a_class_a_module_and_a_parameter() -> None:
    source = """
pytestmark = [pytest.mark.promise("a")]
@pytest.mark.promise("b")
class TestIt:
    @mark.promise("c")
    def test_it(self): ...
CASES = [pytest.param(1, marks=pytest.mark.promise("d"))]
other.promise("e")
"""
    assert {citation.id for citation in citations_in(source, "x.py", "promise")} == {"a", "b", "c", "d"}
