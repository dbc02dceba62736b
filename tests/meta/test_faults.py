"""The record of faults and the tests agree, in both directions: each fault has a test that shows it."""

from __future__ import annotations

import re

from tests.meta.citations import ROOT, all_citations

PAGE = ROOT / "docs" / "explanation" / "faults.md"
PROMISES = ROOT / "docs" / "reference" / "promises.md"


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| F-")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_fault_on_record_has_a_test_where_the_page_says_and_no_test_names_another() -> None:
    cited: dict[str, set[str]] = {}
    for citation in all_citations("fault"):
        cited.setdefault(citation.id, set()).add(citation.file)
    recorded = {row[0]: re.findall(r"`([^`]+)`", row[4]) for row in rows()}
    assert sorted(recorded) == sorted(cited)
    wrong = [f"{id}: {file}" for id, files in recorded.items() for file in files if file not in cited[id]]
    assert not wrong, "\n".join(wrong)
    assert all(recorded.values())


def test_a_fault_is_on_record_once_and_names_promises_that_exist() -> None:
    ids = [row[0] for row in rows()]
    assert len(ids) == len(set(ids))
    promises = set(re.findall(r"^\| `([^`]+)`", PROMISES.read_text(encoding="utf-8"), flags=re.M))
    named = {promise for row in rows() for promise in re.findall(r"`([^`]+)`", row[2])}
    assert named <= promises
