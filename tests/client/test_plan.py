"""When a client renews a lease, and when it treats the lease as lost."""

from __future__ import annotations

import pytest

from dibs.client.renewal_plan import RETRY_MS, RenewalPlan, ttl_ms_min

pytestmark = pytest.mark.promise("loss:told")

STOP_MS = 5_500


@pytest.mark.parametrize("ttl_ms", [10_000, 60_000, 300_000])
def test_there_is_time_for_a_second_try_and_to_stop_before_anybody_else_may_own(ttl_ms: int) -> None:
    plan = RenewalPlan(ttl_ms, sent_ms=1_000, stop_ms=STOP_MS)
    assert plan.next_ms == 1_000 + ttl_ms // 3
    assert plan.lost_ms + STOP_MS == 1_000 + ttl_ms
    plan.failed(plan.next_ms)
    assert plan.next_ms < plan.lost_ms
    assert plan.call_ms < ttl_ms // 3


def test_time_counts_from_before_it_was_sent() -> None:
    plan = RenewalPlan(60_000, sent_ms=0, stop_ms=STOP_MS)
    plan.kept(20_000)  # whenever the answer came
    assert (plan.next_ms, plan.lost_ms) == (40_000, 80_000 - STOP_MS)
    plan.failed(45_000)
    assert plan.lost_ms == 80_000 - STOP_MS
    assert plan.next_ms == 46_000


def test_jitter_brings_the_next_time_forward_and_moves_no_deadline() -> None:
    plan = RenewalPlan(60_000, sent_ms=0, stop_ms=STOP_MS)
    plan.kept(0, jitter=0.999)
    assert 15_000 <= plan.next_ms < 20_000
    assert plan.lost_ms == 60_000 - STOP_MS


def test_a_shorter_time_than_asked_for_is_what_counts() -> None:
    plan = RenewalPlan(60_000, sent_ms=0, stop_ms=STOP_MS)
    plan.kept(0, ttl_ms=30_000)
    assert (plan.next_ms, plan.lost_ms) == (10_000, 30_000 - STOP_MS)


@pytest.mark.parametrize("stop_ms", [0, 375, 500, 1_500, 1_700, 5_500, 60_000])
def test_the_least_ttl_leaves_time_for_a_renewal_and_another(stop_ms: int) -> None:
    plan = RenewalPlan(ttl_ms_min(stop_ms), sent_ms=0, stop_ms=stop_ms)
    assert plan.lost_ms - plan.next_ms >= min(RETRY_MS, plan.ttl_ms // 4)
    assert plan.left_ms(0) == plan.next_ms
