"""The record of faults, the tests and the faults that are put back agree."""

from __future__ import annotations

import re

import pytest

from tests.meta.citations import ROOT, all_citations
from tests.put_back.fault import PutBack
from tests.put_back.record import NOT_RUN, SLIP, WHO, WHY_NOT, ideas, rows
from tests.put_back.table import FAULTS
from tests.put_back.workshop import finders_of

PROMISES = ROOT / "docs" / "reference" / "promises.md"
ROWS = rows()
IDEAS_MAX = 20


def test_every_fault_on_record_has_a_test_and_no_test_names_another() -> None:
    assert {row.id for row in ROWS} == {citation.id for citation in all_citations("fault")}


def test_a_fault_is_on_record_once_and_names_promises_that_exist() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) == len(set(ids))
    promises = set(re.findall(r"^- `([^`]+)`: ", PROMISES.read_text(encoding="utf-8"), flags=re.M))
    assert {promise for row in ROWS for promise in row.promises} <= promises


def test_a_row_names_a_finder_and_where_the_fix_is() -> None:
    assert {row.who for row in ROWS} <= set(WHO)
    for row in ROWS:
        assert row.fixed, row
        for path in row.fixed:
            assert (ROOT / "src" / "dibs" / path).exists() or (ROOT / path).exists(), row


def test_the_ideas_are_few_and_each_has_faults() -> None:
    assert list(dict.fromkeys(row.idea for row in ROWS)) == ideas()
    assert len(set(ideas())) == len(ideas()) <= IDEAS_MAX
    assert ideas()[-1] == SLIP
    for idea in ideas():
        ids = [row.id for row in ROWS if row.idea == idea]
        assert ids == sorted(ids), idea


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_fault_can_still_be_put_back(fault: PutBack) -> None:
    for path in fault.paths:
        text = fault.text_of(ROOT, path)
        if path.endswith(".py"):
            compile(text, path, "exec", dont_inherit=True)


def test_a_row_says_what_finds_its_fault_or_why_it_is_not_put_back() -> None:
    assert set(FAULTS) <= {row.id for row in ROWS}
    for row in ROWS:
        if row.id in FAULTS:
            found = [each for each in finders_of(FAULTS[row.id]) if each in row.found]
            assert row.found in (found, [*found, NOT_RUN]), f"{row.id}: in this order, and nothing else"
            assert row.found, row.id
        else:
            assert len(row.found) == 1, row.id
            assert row.found[0] in WHY_NOT, row.id
