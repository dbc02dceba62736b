"""The record of faults and the tests agree, in both directions: each fault has a test that shows it."""

from __future__ import annotations

import re

from tests.meta.citations import ROOT, all_citations

PAGE = ROOT / "docs" / "explanation" / "faults.md"
PROMISES = ROOT / "docs" / "reference" / "promises.md"


ROW = re.compile(r"^- (F-\d{3})(?: \(((?:`[^`]+`(?:, )?)+)\))?: \S.*\.$")


def rows() -> list[tuple[str, list[str]]]:
    """Each fault with the promises that it broke."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    found = [ROW.match(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found, strict=True) if row is None]
    return [(row[1], re.findall(r"`([^`]+)`", row[2] or "")) for row in found if row is not None]


def test_every_fault_on_record_has_a_test_and_no_test_names_another() -> None:
    assert sorted(id for id, _ in rows()) == sorted({citation.id for citation in all_citations("fault")})


def test_a_fault_is_on_record_once_and_names_promises_that_exist() -> None:
    ids = [id for id, _ in rows()]
    assert len(ids) == len(set(ids))
    promises = set(re.findall(r"^\| `([^`]+)`", PROMISES.read_text(encoding="utf-8"), flags=re.M))
    assert {promise for _, named in rows() for promise in named} <= promises
