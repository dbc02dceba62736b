"""Each fault that is put back is found by what its row on record names (`tests/put_back`). Only long runs have this,
and `scripts/dev/faults --put-back` measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.put_back.record import NOT_RUN, Row, rows
from tests.put_back.table import FAULTS
from tests.put_back.workshop import TESTS, WALKS, Workshop

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MEASURED = [row for row in rows() if row.id in FAULTS and row.found != [NOT_RUN]]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder: Path = tmp_path_factory.mktemp("put-back")
    return Workshop(folder / "tree")


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("row", MEASURED, ids=lambda row: str(row.id))
def test_a_fault_that_is_put_back_is_found(row: Row, workshop: Workshop) -> None:
    for finder in row.found:
        if finder != NOT_RUN:
            assert workshop.is_found(FAULTS[row.id], finder), f"not by {finder}: {FAULTS[row.id].what}"


@pytest.mark.parametrize("finder", [TESTS, WALKS])
def test_nothing_is_found_where_no_fault_is_put_back(finder: str, workshop: Workshop) -> None:
    """Of F-001, which has tests that are quick."""
    assert not workshop.is_found(FAULTS["F-001"]._replace(changes=()), finder)
