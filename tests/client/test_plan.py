"""When to renew, and from when on to take it for lost."""

from __future__ import annotations

import pytest

from dibs.client.plan import Plan, ttl_ms_min


@pytest.mark.promise("loss:told")
def test_time_to_stop_is_taken_off_and_counted_from_before_sending() -> None:
    plan = Plan(ttl_ms=60_000, sent_ms=1_000, stop_ms=5_500)
    assert (plan.next_ms, plan.lost_ms) == (21_000, 55_500)
    plan.failed(21_500)
    assert (plan.next_ms, plan.lost_ms) == (22_500, 55_500)
    plan.kept(22_500)
    assert (plan.next_ms, plan.lost_ms) == (42_500, 77_000)
    assert plan.left_ms(42_000) == 500
    assert plan.left_ms(99_000) == 0


@pytest.mark.parametrize("stop_ms", [0, 500, 2_500, 5_500, 20_500, 190_000])
def test_the_least_ttl_leaves_a_second_for_the_first_renewal(stop_ms: int) -> None:
    ttl_ms = ttl_ms_min(stop_ms)
    assert ttl_ms % 1000 == 0
    for length_ms, enough in ((ttl_ms, True), (ttl_ms - 1000, False)):
        plan = Plan(length_ms, 0, stop_ms)
        assert (plan.lost_ms - plan.next_ms >= 1_000) is enough
