"""The record of faults and the tests agree, in both directions: each fault has a test that shows it."""

from __future__ import annotations

import re

from tests.meta.citations import ROOT, all_citations

PAGE = ROOT / "docs" / "explanation" / "faults.md"
PROMISES = ROOT / "docs" / "reference" / "promises.md"


NAMES = r"(?:`[^`]+`(?:, )?)+"
FINDERS = "reader|attacker|simulation|test|client|user"
ROW = re.compile(rf"^- (F-\d{{3}}) \((?:({NAMES}); )?(?:{FINDERS}); ({NAMES})\): \S.*\.$")


def rows() -> list[tuple[str, list[str], list[str]]]:
    """Each fault with the promises that it broke, and the files of the tests that show it."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    found = [ROW.match(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found, strict=True) if row is None]
    return [(row[1], quoted(row[2]), quoted(row[3])) for row in found if row is not None]


def quoted(names: str | None) -> list[str]:
    return re.findall(r"`([^`]+)`", names or "")


def test_every_fault_on_record_has_a_test_and_no_test_names_another() -> None:
    shown: dict[str, set[str]] = {}
    for citation in all_citations("fault"):
        shown.setdefault(citation.id, set()).add(citation.file)
    assert {id: files for id, _, files in rows()} == {id: sorted(files) for id, files in shown.items()}


def test_a_fault_is_on_record_once_and_names_promises_that_exist() -> None:
    ids = [id for id, _, _ in rows()]
    assert len(ids) == len(set(ids))
    promises = set(re.findall(r"^- `([^`]+)`: ", PROMISES.read_text(encoding="utf-8"), flags=re.M))
    assert {promise for _, named, _ in rows() for promise in named} <= promises
