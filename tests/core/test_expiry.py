"""When a hold is over. Every case is on the millisecond."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core import lease_outcomes as upkeep_outcomes
from dibs.core import outcomes
from dibs.core.commands import Beat
from dibs.core.decide import decide
from dibs.core.draft import Draft, View
from dibs.core.events import Event
from dibs.core.holds import expiry
from dibs.core.holds.capacity import live_holders
from dibs.core.limits import (
    FAILING_RECORD_MS,
    IDLE_RECORD_MS,
    OUTAGE_CREDIT_MS_MAX,
    OUTAGES_KEPT,
    PULSE_LATE_MS,
    TTL_MS_MIN,
)
from dibs.core.records import (
    META_KEY,
    Done,
    Holder,
    LockRecord,
    Meta,
    Outage,
    Pulse,
    SessionRecord,
    pulse_key,
    session_key,
)
from tests.core.make import (
    JOB,
    KEY,
    NS,
    SWEEP,
    acquire,
    decided,
    draft,
    ending,
    holder,
    lock,
    outage,
    view,
    written,
)

BOUND_MS = OUTAGE_CREDIT_MS_MAX


def end_expired(stored: LockRecord, now_ms: int, outages: tuple[Outage, ...] = ()) -> tuple[LockRecord, list[Event]]:
    """The lock as it stands now, and what was told."""
    here = draft(now_ms, stored, outages)
    return expiry.end_expired(here, here.lock(NS, JOB)), here.events


def live(stored: LockRecord, now_ms: int, outages: tuple[Outage, ...] = ()) -> tuple[Holder, ...]:
    return live_holders(draft(now_ms, stored, outages), stored)


def deadline_ms(mine: Holder, outages: tuple[Outage, ...]) -> int:
    return expiry.deadline_ms(draft(0, lock(mine), outages), mine)


def with_session(now_ms: int, stored: LockRecord, **changes: Any) -> View:
    session = SessionRecord(
        id="s", principal="team", owner="a1", ttl_ms=60_000, since_ms=0, renewed_ms=0, expires_ms=60_000, ns=NS
    )
    return View(now_ms, {KEY: stored, META_KEY: None, session_key("s"): session.replace(**changes)})


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize(("now_ms", "over"), [(0, False), (9_999, False), (10_000, True), (10_001, True)])
def test_a_hold_is_over_when_its_time_has_passed_and_not_a_millisecond_before(now_ms: int, over: bool) -> None:
    end_expiredd, noticed = end_expired(lock(holder()), now_ms)
    assert bool(end_expiredd.holders) != over
    assert bool(live(lock(holder()), now_ms)) != over
    assert all(event.retry_ms is None for event in noticed)
    assert len(noticed) == over
    granted = decided(now_ms, lock(holder()), acquire()).outcome
    assert isinstance(granted, outcomes.Granted) == over


def test_a_hold_that_nobody_noticed_ended_at_its_deadline_and_the_event_is_of_now() -> None:
    end_expiredd, (event,) = end_expired(lock(holder(delay_ms=3_000, checkpoint="half")), 500_000)
    assert end_expiredd.endings == (ending(how="expired", at_ms=10_000, checkpoint="half"),)
    assert (end_expiredd.failures, end_expiredd.delay_until_ms) == (1, 13_000)
    assert (event.kind, event.at_ms, event.token, event.checkpoint) == ("expired", 500_000, 1, "half")


def test_a_hold_ends_with_its_session_even_if_nobody_vouches_for_the_time() -> None:
    stored = lock(holder(session="s"))
    for ended_ms, held in ((0, True), (4_000, False)):
        here = Draft(with_session(5_000, stored, ended_ms=ended_ms, how="released" if ended_ms else None))
        here.vouched_ms = 3_000
        assert bool(expiry.end_expired(here, stored).holders) == held


def test_a_hold_that_outlives_its_session_shows_no_sign_of_life_of_it() -> None:
    for ephemeral, heard_ms in ((True, 4_000), (False, 0)):
        mine = holder(session="s", ephemeral=ephemeral)
        here = Draft(with_session(5_000, lock(mine), renewed_ms=4_000, active_ms=4_000))
        assert expiry.shown(here, mine).heard_ms == heard_ms


def test_what_did_not_change_is_the_same_object() -> None:
    for stored in (lock(), lock(holder()), lock(endings=(ending(),))):
        assert end_expired(stored, 5_000, (outage(20_000, 30_000),))[0] is stored


def test_of_several_holders_only_those_whose_time_has_passed_are_over() -> None:
    one, two, three = holder(), holder(lease_id="2", token=2, ttl_ms=5_000), holder(lease_id="3", token=3)
    end_expiredd, noticed = end_expired(lock(one, two, three), 7_000)
    assert end_expiredd.holders == (one, three)
    assert [event.token for event in noticed] == [2]
    end_expiredd, noticed = end_expired(lock(one, two, three), 10_000)
    assert not end_expiredd.holders
    assert [each.token for each in end_expiredd.endings] == [3, 2, 1]


# Outage credit


@pytest.mark.promise("lease:outage-credit", "lease:never-early")
@pytest.mark.parametrize(
    ("why", "outages", "deadline"),
    [
        ("no outage", [], 10_000),
        ("live when it began", [(5_000, 20_000)], 30_000),
        ("live by one millisecond", [(9_999, 20_000)], 30_000),
        ("over when it began", [(10_000, 20_000)], 10_000),
        ("taken while it lasted", [(-5_000, 20_000)], 30_000),
        ("heard in the moment it ended", [(-5_000, 0)], 10_000),
        ("heard after it", [(-5_000, -1)], 10_000),
        ("heard just before it ended", [(-5_000, 1)], 10_001),
        ("a short one early on", [(1_000, 3_000)], 13_000),
        ("two in a row, the chance not taken in between", [(5_000, 20_000), (29_999, 40_000)], 45_001),
        ("two in a row, no chance in between", [(5_000, 20_000), (20_001, 40_000)], 50_000),
        ("the second too late for it", [(5_000, 20_000), (30_000, 40_000)], 30_000),
        ("three in a row", [(5_000, 20_000), (21_000, 35_000), (36_000, 50_000)], 60_000),
        ("a chain that breaks", [(5_000, 20_000), (30_000, 40_000), (41_000, 50_000)], 30_000),
    ],
)
def test_time_in_which_nobody_could_renew_is_given_back(
    why: str, outages: list[tuple[int, int]], deadline: int
) -> None:
    known = tuple(outage(*each) for each in outages)
    assert deadline_ms(holder(), known) == deadline, why
    stored = lock(holder())
    assert end_expired(stored, deadline - 1, known)[0] is stored
    assert [each.expires_ms for each in live(stored, deadline - 1, known)] == [deadline]
    assert not end_expired(stored, deadline, known)[0].holders
    credited = lock(holder(expires_ms=deadline))
    assert deadline_ms(credited.holders[0], known) == deadline, "credit is given once"


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize(
    ("ttl_ms", "credit_ms"),
    [(1_000, 1_000), (BOUND_MS, BOUND_MS), (BOUND_MS + 1, BOUND_MS), (86_400_000, BOUND_MS)],
)
def test_credit_is_one_ttl_and_ten_minutes_at_most(ttl_ms: int, credit_ms: int) -> None:
    mine = holder(ttl_ms=ttl_ms)
    assert deadline_ms(mine, (outage(ttl_ms - 1, 10**9),)) == 10**9 + credit_ms


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize(
    ("ttl_ms", "every_ms"), [(60_000, 50_000), (60_000, 5_000), (1_000, 990), (86_400_000, 60_000)]
)
def test_a_server_that_stalls_for_ever_does_not_keep_a_dead_owners_lease(ttl_ms: int, every_ms: int) -> None:
    """One stall just long enough to be an outage, again and again. The lease is over when the server was up for its TTL
    and for one chance to renew, however many outages are remembered as one."""
    stall_ms = PULSE_LATE_MS + 1
    stored: LockRecord = lock(holder(ttl_ms=ttl_ms))
    here = view(0, stored, pulse_ms=0)
    bound_ms = ttl_ms + min(ttl_ms, BOUND_MS) + stall_ms + BOUND_MS
    while stored.holders:
        began_ms = here.now_ms + max(0, every_ms - stall_ms)
        here.records[pulse_key("s")] = Pulse(server="s", at_ms=began_ms)
        here.now_ms = began_ms + stall_ms
        here.records.update(decide(here, Beat(server="s", alive_since_ms=here.now_ms)).writes)
        here.records.update(decide(here, SWEEP).writes)
        stored = here.records[KEY]  # type: ignore[assignment]
        assert here.now_ms <= bound_ms + every_ms + stall_ms, "it lasts for ever"
    up_ms = stored.endings[0].at_ms * (every_ms - stall_ms) // every_ms
    assert up_ms <= ttl_ms + min(ttl_ms, BOUND_MS) + every_ms


@pytest.mark.promise("lease:outage-credit")
def test_outages_without_a_pause_between_them_are_credited_for_ten_minutes_besides_the_longest() -> None:
    """Nobody can tell such a server from one that is up for a moment each time. A job must come free all the same."""
    tiles = [outage(at_ms, at_ms + 1_000) for at_ms in range(5_000, 3_600_000, 1_000)]
    assert deadline_ms(holder(), tuple(tiles)) == 10_000 + 1_000 + BOUND_MS + 10_000
    night = (*tiles[:3], outage(8_000, 8_000 + 43_200_000), *[outage(43_208_000, 43_209_000)])
    assert deadline_ms(holder(), night) == 43_209_000 + 10_000


def test_credit_never_makes_a_lease_shorter() -> None:
    assert deadline_ms(holder(ttl_ms=86_400_000), (outage(1_000, 2_000),)) == 86_400_000


@st.composite
def outages_in_order(draw: st.DrawFn, at_least: int = 0) -> tuple[Outage, ...]:
    """Each begins at or after the end of the one before it."""
    steps = draw(st.lists(st.tuples(st.integers(0, 8_000), st.integers(1, 8_000)), min_size=at_least, max_size=24))
    found, at_ms = [], draw(st.integers(-20_000, 5_000))
    for pause_ms, lasted_ms in steps:
        found.append(outage(at_ms + pause_ms, at_ms + pause_ms + lasted_ms))
        at_ms = found[-1].ended_ms
    return tuple(found)


@pytest.mark.promise("lease:never-early", "lease:outage-credit")
@given(outages_in_order(), st.integers(1_000, 20_000))
def test_more_outages_only_make_a_deadline_later_and_by_a_bounded_time(known: tuple[Outage, ...], ttl_ms: int) -> None:
    mine = holder(ttl_ms=ttl_ms)
    deadlines = [deadline_ms(mine, known[:count]) for count in range(len(known) + 1)]
    assert deadlines == sorted(deadlines)
    assert deadlines[0] == ttl_ms
    ends = [each.ended_ms for each in known]
    chance_ms = min(ttl_ms, BOUND_MS)
    assert deadlines[-1] <= max([ttl_ms, *[ended_ms + chance_ms for ended_ms in ends]])
    lost = [each.ended_ms - max(each.began_ms, 0) for each in known if each.ended_ms > 0]
    assert deadlines[-1] <= ttl_ms + sum(lost) + chance_ms
    assert deadlines[-1] <= ttl_ms + max(lost, default=0) + BOUND_MS + chance_ms


@pytest.mark.promise("lease:outage-credit")
@given(st.integers(1, 10**8), st.integers(1_000, 86_400_000), st.data())
def test_after_one_outage_an_owner_that_was_live_has_its_chance(
    lasted_ms: int, ttl_ms: int, data: st.DataObject
) -> None:
    began_ms = data.draw(st.integers(0, ttl_ms - 1))
    known = (outage(began_ms, began_ms + lasted_ms),)
    chance_ms = min(ttl_ms, BOUND_MS)
    assert deadline_ms(holder(ttl_ms=ttl_ms), known) == max(ttl_ms, began_ms + lasted_ms + chance_ms)


@pytest.mark.promise("lease:outage-credit")
@given(st.lists(st.integers(1, 60_000), max_size=10), st.integers(1_000, 600_000))
def test_an_owner_that_no_pause_gave_time_to_renew_keeps_its_lease(lasted: list[int], ttl_ms: int) -> None:
    """The server is up for a tenth of the TTL in all, in between: a chance is left after each outage."""
    at_ms, known = 0, []
    for each_ms in lasted:
        at_ms += ttl_ms // 100
        known.append(outage(at_ms, at_ms + each_ms))
        at_ms += each_ms
    assert deadline_ms(holder(ttl_ms=ttl_ms), tuple(known)) == max(ttl_ms, at_ms + ttl_ms if known else 0)


@given(outages_in_order(at_least=OUTAGES_KEPT), st.integers(1_000, 20_000))
def test_merging_old_outages_only_gives_more_credit(known: tuple[Outage, ...], ttl_ms: int) -> None:
    mine, pulse_ms = holder(ttl_ms=ttl_ms), known[-1].ended_ms
    full = known[-OUTAGES_KEPT:]
    now_ms = pulse_ms + PULSE_LATE_MS + 1
    here = view(now_ms, meta=Meta(outages=full), pulse_ms=pulse_ms)
    meta = decide(here, Beat(server="s", alive_since_ms=now_ms)).writes[META_KEY]
    assert isinstance(meta, Meta)
    assert len(meta.outages) == OUTAGES_KEPT
    assert deadline_ms(mine, meta.outages) >= deadline_ms(mine, (*full, outage(pulse_ms, now_ms)))
    assert all(one.ended_ms <= other.began_ms for one, other in zip(meta.outages, meta.outages[1:], strict=False))


# Beats


@pytest.mark.parametrize(
    ("why", "pulse_ms", "since_ms", "outage_ms"),
    [
        ("the first beat of all", None, 100_000, 0),
        ("up the whole time", 1_000, 0, 0),
        ("a silence", 100_000 - PULSE_LATE_MS - 1, 100_000, PULSE_LATE_MS + 1),
        ("a long one", 0, 100_000, 100_000),
        ("paused, and up again since", 50_000, 99_000, 50_000),
    ],
)
def test_a_silence_before_a_beat_is_an_outage(why: str, pulse_ms: int | None, since_ms: int, outage_ms: int) -> None:
    decision = decide(view(100_000, pulse_ms=pulse_ms), Beat(server="s", alive_since_ms=since_ms))
    assert decision.outcome == upkeep_outcomes.BeatRecorded(now_ms=100_000, outage_ms=outage_ms), why
    assert decision.writes[pulse_key("s")] == Pulse(server="s", at_ms=100_000)
    if outage_ms:
        assert decision.writes[META_KEY] == Meta(outages=(outage(100_000 - outage_ms, 100_000),))
        assert [(event.kind, event.began_ms) for event in decision.events] == [("outage", 100_000 - outage_ms)]
    else:
        assert META_KEY not in decision.writes
        assert not decision.events


@pytest.mark.parametrize("doubt_ms", [0, 99_200])
def test_a_short_silence_before_a_server_that_came_up_after_it_stays_in_doubt(doubt_ms: int) -> None:
    """It may be the second of two servers, or the same one after a crash: the next beat tells."""
    pulse = Pulse(server="s", at_ms=99_500, doubt_ms=doubt_ms)
    began_ms = doubt_ms or 99_500
    here = View(100_000, {META_KEY: None, pulse_key("s"): pulse})
    in_doubt = decide(here, Beat(server="s", alive_since_ms=100_000))
    assert in_doubt.outcome == upkeep_outcomes.BeatRecorded(now_ms=100_000)
    assert in_doubt.writes == {pulse_key("s"): Pulse(server="s", at_ms=100_000, doubt_ms=began_ms)}
    here.records.update(in_doubt.writes)
    here.now_ms = 100_300
    assert decide(here, Beat(server="s", alive_since_ms=90_000)).writes == {
        pulse_key("s"): Pulse(server="s", at_ms=100_300)
    }
    here.now_ms = began_ms + PULSE_LATE_MS + 1
    found = decide(here, Beat(server="s", alive_since_ms=here.now_ms)).writes[META_KEY]
    assert found == Meta(outages=(outage(began_ms, here.now_ms),))


def test_an_outage_keeps_what_else_is_known() -> None:
    known = Meta(token_floor=7, outages=(outage(0, 10),))
    decision = decide(view(9_000, meta=known, pulse_ms=20), Beat(server="s", alive_since_ms=9_000))
    assert decision.writes[META_KEY] == known.replace(outages=(outage(0, 10), outage(20, 9_000)))


@pytest.mark.promise("lease:outage-credit")
def test_a_lease_of_the_shortest_kind_outlives_the_longest_silence_that_is_no_outage() -> None:
    """Otherwise a restart of the server takes the job from an owner that had no chance to renew."""
    down_ms = PULSE_LATE_MS
    mine = holder(ttl_ms=TTL_MS_MIN)
    noted = decide(view(down_ms, lock(mine), pulse_ms=0), Beat(server="s", alive_since_ms=down_ms))
    meta = noted.writes.get(META_KEY)
    assert meta is None or isinstance(meta, Meta)
    assert isinstance(decided(down_ms, lock(mine), acquire(), meta=meta).outcome, outcomes.Held)


@pytest.mark.promise("lease:outage-credit")
def test_a_server_that_crashes_faster_than_its_silence_is_noticed_takes_no_lease_away() -> None:
    """Up for a moment every 1.4 seconds: nobody could renew, and no single silence was long."""
    here = view(0, lock(holder()), pulse_ms=0)
    for here.now_ms in range(1_400, 11_201, 1_400):
        here.records.update(decide(here, Beat(server="s", alive_since_ms=here.now_ms)).writes)
    assert isinstance(decide(here, acquire()).outcome, outcomes.Held)


# Sweeping and forgetting


def test_a_sweep_of_a_job_that_is_not_there_does_nothing() -> None:
    decision = decided(0, None, SWEEP)
    assert decision.outcome == upkeep_outcomes.Swept(now_ms=0, key=KEY)
    assert not decision.writes


def test_a_sweep_that_comes_too_early_does_nothing() -> None:
    decision = decided(9_999, lock(holder()), SWEEP)
    assert decision.outcome == upkeep_outcomes.Swept(now_ms=9_999, key=KEY)
    assert not decision.writes


@pytest.mark.promise("audit")
def test_a_sweep_turns_an_expiry_into_an_event_once() -> None:
    first = decided(10_000, lock(holder()), SWEEP)
    assert first.outcome == upkeep_outcomes.Swept(now_ms=10_000, key=KEY, expired=1)
    assert [event.kind for event in first.events] == ["expired"]
    second = decided(10_000, written(first), SWEEP)
    assert not second.events
    assert not second.writes


@pytest.mark.promise("lease:outage-credit")
def test_a_sweep_of_a_lease_with_credit_writes_its_later_deadline_so_that_it_is_not_due_before() -> None:
    decision = decided(10_000, lock(holder()), SWEEP, meta=Meta(outages=(outage(5_000, 9_000),)))
    assert not decision.events
    assert written(decision).due_ms() == 19_000


@pytest.mark.parametrize(
    ("stored", "due_ms"),
    [
        (lock(holder()), 10_000),
        (lock(holder(), holder(lease_id="2", ttl_ms=4_000)), 4_000),
        (lock(endings=(ending(at_ms=7),)), 7 + IDLE_RECORD_MS),
        (lock(endings=(ending(at_ms=7),), delay_until_ms=10**12), 10**12),
        (lock(endings=(ending(at_ms=7),), done=Done(owner="a", token=1, at_ms=7, until_ms=10**12)), 10**12),
        (
            lock(endings=(ending(at_ms=7),), done=Done(owner="a", token=1, at_ms=7, until_ms=8)),
            7 + IDLE_RECORD_MS,
        ),
        (lock(endings=(ending(at_ms=7),), max_attempts=3), 7 + IDLE_RECORD_MS),
        (lock(endings=(ending(at_ms=7),), max_attempts=3, failures=1), 7 + FAILING_RECORD_MS),
        (lock(endings=(ending(at_ms=7),), acl=("a",)), None),
        (lock(endings=(ending(at_ms=7),), line=(1,)), None),
    ],
)
def test_a_record_says_when_to_look_at_it_again_and_then_there_is_something_to_do(
    stored: LockRecord, due_ms: int | None
) -> None:
    assert stored.due_ms() == due_ms
    if due_ms is not None:
        assert not decided(due_ms - 1, stored, SWEEP).writes
        assert decided(due_ms, stored, SWEEP).writes


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize(("floor", "raised"), [(0, 5), (4, 5), (5, 5), (9, 9)])
def test_forgetting_a_job_moves_its_token_into_the_floor(floor: int, raised: int) -> None:
    stored = lock(token=5, endings=(ending(),))
    decision = decided(IDLE_RECORD_MS, stored, SWEEP, meta=Meta(token_floor=floor, outages=(outage(1, 2),)))
    assert decision.outcome == upkeep_outcomes.Swept(now_ms=IDLE_RECORD_MS, key=KEY, forgotten=True)
    assert decision.writes[KEY] is None
    assert [(event.kind, event.token) for event in decision.events] == [("forgotten", 5)]
    after = view(IDLE_RECORD_MS, stored, meta=Meta(token_floor=floor, outages=(outage(1, 2),)))
    after.records.update(decision.writes)
    assert Draft(after).meta() == Meta(token_floor=raised, outages=(outage(1, 2),))
    granted = decide(after, acquire()).outcome
    assert isinstance(granted, outcomes.Granted)
    assert granted.lease.token == raised + 1


def test_forgetting_a_job_below_the_floor_leaves_the_floor_alone() -> None:
    """What every command has read should not be written for nothing: each of them would have to decide again."""
    decision = decided(IDLE_RECORD_MS, lock(token=5, endings=(ending(),)), SWEEP, meta=Meta(token_floor=9))
    assert set(decision.writes) == {KEY}


def test_an_expiry_that_was_noticed_a_day_late_is_reported_before_the_forgetting() -> None:
    decision = decided(10_000 + IDLE_RECORD_MS, lock(holder()), SWEEP)
    assert [event.kind for event in decision.events] == ["expired", "forgotten"]
    assert decision.outcome == upkeep_outcomes.Swept(now_ms=10_000 + IDLE_RECORD_MS, key=KEY, expired=1, forgotten=True)


def test_a_hold_whose_session_nobody_knows_any_more_ends_now() -> None:
    left = lock(holder(session="gone"))
    ended = written(decide(View(5_000, {KEY: left, META_KEY: None, session_key("gone"): None}), SWEEP))
    assert [(each.how, each.at_ms) for each in ended.endings] == [("expired", 5_000)]


def test_a_sweep_writes_no_deadline_of_a_hold_that_lasts_as_long_as_its_session() -> None:
    session = SessionRecord(
        id="s", ns=NS, principal="team", owner="a1", ttl_ms=60_000, since_ms=0, renewed_ms=0, expires_ms=60_000
    )
    held = lock(holder(session="s", ttl_ms=0, expires_ms=5))
    decision = decide(View(5_000, {KEY: held, META_KEY: None, session_key("s"): session}), SWEEP)
    assert not decision.writes
