"""Random fault schedules with a shared file and a fenced table as the protected resource. `claim.check()` is never
true for two owners at once. Late writes land without a fence, and none lands with one.

    scripts/dev/soak tests/faults/test_sdk_schedules.py -s          200 schedules, and the counts
"""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.faults.schedules import Outcome, Schedule, late, overlaps

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.promise("loss:told"), pytest.mark.promise("excl")]

SEED = int(os.environ.get("DIBS_FAULTS_SEED") or random.SystemRandom().randrange(10**9))
AT_ONCE = 5
FEW, MANY = 2, 200


def run_many(count: int, folder: Path) -> list[Outcome]:
    print(f"DIBS_FAULTS_SEED={SEED}")

    def one(number: int) -> Outcome:
        place = folder / str(number)
        place.mkdir()
        return Schedule(SEED + number, place).run()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(count)))


def check_all(outcomes: list[Outcome]) -> None:
    """Prints the counts, which -s shows, and checks them."""
    faults: Counter[str] = sum((each.faults for each in outcomes), Counter())
    said = {
        "schedules": len(outcomes),
        **faults,
        **{
            name: sum(getattr(each, name) for each in outcomes)
            for name in ("tenures", "beliefs", "writes", "late", "fenced_writes", "fenced_late", "refused")
        },
        "overlaps": sum(len(each.overlaps) for each in outcomes),
    }
    print(said)
    assert [(each.seed, each.overlaps) for each in outcomes if each.overlaps] == []
    assert [each.seed for each in outcomes if each.fenced_late] == []
    assert said["beliefs"] >= 10 * len(outcomes), "the schedules are too weak"
    assert said["tenures"] >= 3 * len(outcomes), "the schedules are too weak"
    if len(outcomes) == MANY:  # about one in five schedules has one; a few may have none
        assert said["late"] > 0, "no late write landed without a fence: the schedules are too weak"
        assert said["refused"] > 0


@pytest.mark.timeout(180)
def test_a_few_random_schedules(tmp_path: Path) -> None:
    check_all(run_many(FEW, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_schedules(tmp_path: Path) -> None:
    check_all(run_many(MANY, tmp_path))


def test_what_judges_them_sees_what_is_wrong() -> None:
    assert late([1, 1, 2, 2, 3]) == 0
    assert late([1, 2, 1, 3, 2]) == 2
    assert overlaps({1: [(0, 1), (5, 6)], 2: [(7, 8)]}) == []
    assert overlaps({1: [(0, 1), (9, 9)], 2: [(7, 8)]}) != []
