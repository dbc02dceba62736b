"""The ceiling of a hold: which of several counts, and what it does to a deadline. What may not move it is in
`test_withdraw_asks.py`, `test_expiry.py` and the walks."""

from __future__ import annotations

import pytest

from dibs.core.caller_rights import ADMIN, Caller, Limits
from dibs.core.holds.max_hold import capped_ms, ends_at_ms, is_reached, max_hold_ms, reason_of


@pytest.mark.promise("max-hold")
@pytest.mark.parametrize(
    ("asked_ms", "seconds", "server_ms", "least_ms"),
    [(0, 0, 0, 0), (7, 0, 0, 7), (0, 2, 0, 2_000), (0, 0, 9, 9), (7_000, 2, 9_000, 2_000), (7, 2, 9, 7), (90, 2, 9, 9)],
)
def test_the_least_ceiling_counts(asked_ms: int, seconds: int, server_ms: int, least_ms: int) -> None:
    caller = Caller(principal="ann", role=ADMIN, limits=Limits(hold_seconds=seconds), max_hold_ms=server_ms)
    assert max_hold_ms(caller, asked_ms) == least_ms


@pytest.mark.parametrize(("deadline", "ends_ms", "capped"), [(5, 0, 5), (5, 4, 4), (5, 6, 5)])
def test_a_deadline_is_no_later_than_the_ceiling(deadline: int, ends_ms: int, capped: int) -> None:
    assert capped_ms(deadline, ends_ms) == capped


@pytest.mark.parametrize(("max_ms", "ends_ms"), [(0, 0), (1, 11), (90, 100)])
def test_a_ceiling_counts_from_the_grant_on(max_ms: int, ends_ms: int) -> None:
    assert ends_at_ms(max_ms, 10) == ends_ms


@pytest.mark.parametrize(("ends_ms", "reason"), [(0, None), (9, "max_hold"), (10, "max_hold"), (11, None)])
def test_who_lost_a_job_at_its_ceiling_is_told_so(ends_ms: int, reason: str | None) -> None:
    assert reason_of(ends_ms, 10) == reason
    assert is_reached(ends_ms, 10) is (reason is not None)
