"""The page of promises and the tests agree, in both directions.

A test cites a promise with `@pytest.mark.promise("id")`. The contract suite that dibs ships counts as tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.meta.citations import Citation, all_citations, citations_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "promises.md"
STATUSES = {"kept", "later"}


class Promise(NamedTuple):
    id: str
    status: str


def promises_of(page: str) -> list[Promise]:
    lines = [line.strip().strip("|") for line in page.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    header, _rule, *body = rows
    assert [header[0], header[2]] == ["id", "status"]
    assert all(len(row) == len(header) for row in body), "a cell holds a |"
    return [Promise(row[0].strip("`"), row[2]) for row in body]


@pytest.fixture(scope="module")
def promises() -> list[Promise]:
    return promises_of(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def citations() -> list[Citation]:
    return all_citations("promise")


def test_the_page_lists_each_promise_once_with_a_known_status(promises: list[Promise]) -> None:
    ids = [promise.id for promise in promises]
    assert len(ids) == len(set(ids))
    assert {promise.status for promise in promises} <= STATUSES


def test_every_kept_promise_has_a_test(promises: list[Promise], citations: list[Citation]) -> None:
    cited = {citation.id for citation in citations}
    untested = [promise.id for promise in promises if promise.status == "kept" and promise.id not in cited]
    assert not untested, f"kept, but no test cites it: {untested}"


def test_every_cited_promise_is_on_the_page(promises: list[Promise], citations: list[Citation]) -> None:
    known = {promise.id for promise in promises}
    unknown = [f"{it.file}:{it.line} cites {it.id}" for it in citations if it.id not in known]
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
