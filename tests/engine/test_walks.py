"""Random walks of the engine's parts (`tests/walks/engine.py`): whatever they meet, these hold after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import DibsError
from dibs.core import events as kinds
from dibs.core import limits, outcomes
from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Inspect, Renew
from dibs.core.lease_outcomes import Released
from dibs.core.limits import COMMIT_BATCH_MAX, CONFLICT_PAUSE_MS_MAX
from dibs.core.records import LockRecord, Ticket, lock_key, ticket_key
from tests.build import tries
from tests.walks.engine import BatcherWalk, CoordinatorWalk, LivenessWalk, SweeperWalk, WaitersWalk

if TYPE_CHECKING:
    from dibs.stores.memory import MemoryStore

CLAIMS = (Acquire, AcquireAny, AcquireAll)


def leases(store: MemoryStore) -> set[str]:
    """The ids of all that is held."""
    records = [each.record for each in store._records.values()]
    return {hold.lease_id for lock in records if isinstance(lock, LockRecord) for hold in lock.holders}


def tickets(store: MemoryStore) -> dict[str, Ticket]:
    records = [each.record for each in store._records.values()]
    return {each.lease_id: each for each in records if isinstance(each, Ticket)}


def ended(store: MemoryStore) -> set[str]:
    records = [each.record for each in store._records.values()]
    return {end.lease_id for lock in records if isinstance(lock, LockRecord) for end in lock.endings}


# The coordinator


def judge_answers(walk: CoordinatorWalk) -> None:
    """Who is told of a lease or a place has it, or had it. Who is told that nothing was done has nothing."""
    held, waiting, over = leases(walk.store), tickets(walk.store), ended(walk.store)
    for command, result in walk.asked:
        if isinstance(result, outcomes.Granted):
            assert result.lease.lease_id in held | over, f"{command} is told of a lease that there never was"
        if isinstance(result, outcomes.Queued):
            assert result.ticket_id in {*held, *over, *waiting}, f"{command} is told of a place that there never was"
        if isinstance(result, Released):
            lock = walk.store._records[lock_key("d", result.name)].record
            assert isinstance(lock, LockRecord)
            held_here = [each.lease_id for each in lock.holders]
            assert result.ending.lease_id not in held_here, f"{command} is told that it let go"
        is_known = isinstance(result, DibsError) and not getattr(result, "unknown", False)
        if is_known and isinstance(command, CLAIMS) and getattr(command, "lease_id", None) is None:
            assert command.fresh_lease_id not in {*held, *waiting}, f"{command} has what it was not told of: {result}"


def judge_reports(walk: CoordinatorWalk) -> None:
    """Commits are told once, in order, with their events as they are stored."""
    stored = walk.store.events(0, 100_000)
    reported = 0
    for events, seq in walk.reported:
        assert seq > reported or not events, "a commit was told twice, or late"
        kept = [each for each in stored if seq - len(events) < each.seq <= seq]
        assert [each.replace(seq=0, at_ms=0) for each in kept] == [each.replace(seq=0, at_ms=0) for each in events]
        reported = max(reported, seq)
    given = [each for each in stored if each.kind == kinds.ACQUIRED and each.ticket]
    assert len(walk.handed) <= len(given), "more were told of a turn than had one"
    for each in walk.handed:
        assert any((one.job, one.ticket) == (each.name, each.number) for one in given), "no turn of this place"


@pytest.mark.parametrize("theme", ["coordinator", "coordinator, stormy"])
def test_whatever_happens_to_commits_answers_are_true_and_nothing_is_done_unsaid(theme: str) -> None:
    for number in range(tries(10, 500)):
        walk = CoordinatorWalk(f"{theme} judged {number}")
        for at in range(60):
            walk.step()
            try:
                judge_answers(walk)
            except AssertionError as error:
                raise AssertionError(f"walk {number}, step {at}: {walk.asked}") from error
        judge_reports(walk)
        assert all(0 < pause <= 0.5 * CONFLICT_PAUSE_MS_MAX / 1000 for pause in walk.pauses)


# The waiters


def judge_waiters(walk: WaitersWalk) -> None:
    """Between two batches: who waits here is there, has a place, and was told nothing; who was told is not kept."""
    waiters = walk.server.waiters
    parked = {
        caller for caller in walk.callers if waiters._parked.get(caller.waiter.ticket or NOWHERE) is caller.waiter
    }
    assert len(parked) == len(waiters), "somebody waits here whom nobody knows"
    for caller, told in walk.answers.items():
        assert len(told) <= 1, f"told twice: {told}"
        assert not (told and caller in parked), "told, and still waits"
        if not told and not caller.waiter.gone:
            assert caller in parked, "neither waits nor was told"
            waited_ms = walk.server.clock() - walk.asked_ms[caller]
            assert waited_ms <= caller.waiter.wait_ms + STEP_MS, "waits for longer than it wanted to"
    assert len(waiters._marks) == len(parked), "a mark for each who waits"
    assert not waiters._asking, "nobody asks, and somebody is waited for"
    open_keys = {caller.waiter for caller in walk.callers if caller.waiter.command.request_key and caller in parked}
    assert {each for every in waiters._open.values() for each in every} == open_keys, "an ask that is over is open"


def judge_places(walk: WaitersWalk) -> None:
    """When all news were heard: who waits here is in line, and nobody is in line who hung up for good."""
    waiting = tickets(walk.server.store)
    held = leases(walk.server.store)
    was_refused = walk.server.clock() - walk.refused_ms <= STEP_MS  # then the next round of keeping places finds out
    for ref, waiter in walk.server.waiters._parked.items():
        if was_refused or waiter in walk.server.waiters._lost:
            continue
        found = walk.server.store._records.get(ticket_key(*ref))
        place = found.record if found is not None else None
        assert isinstance(place, Ticket), f"waits at {ref}, and is in no line"
        assert waiter.queued is not None
        assert place.lease_id == waiter.queued.ticket_id, f"waits at {ref}, which is another's place"
        assert walk.server.clock() < place.expires_ms, f"the place {ref} was not kept"
    for caller in walk.callers:
        waiter = caller.waiter
        is_alone = waiter.command.request_key is None and not any(
            other is not caller and other.waiter.command.ticket_id == waiter.command.ticket_id for other in walk.callers
        )
        if waiter.gone and not waiter.moves and is_alone and caller not in walk.refused:
            assert waiter.command.fresh_lease_id not in {*waiting, *held}, "hung up, and left something behind"


NOWHERE = ("", "", 0)
STEP_MS = 21_000  # the longest time that passes in one step


@pytest.mark.parametrize("part", range(4))
def test_whoever_waits_hangs_up_or_comes_back_is_told_once_and_in_time(part: int) -> None:
    for number in range(part, tries(40, 2_000), 4):
        walk = WaitersWalk(f"waiters judged {number}")
        try:
            for at in range(50):
                walk.step()
                walk.server.decide()
                walk.told()
                judge_waiters(walk)
                if at % 5 == 4:
                    walk.news()
                    walk.told()
                    judge_places(walk)
            walk.close()
            for caller, told in walk.answers.items():
                assert told or caller.waiter.gone, "the server ended, and somebody was told nothing"
        except AssertionError as error:
            raise AssertionError(f"walk {number}: {error}") from error


# The batcher


def judge_batches(walk: BatcherWalk) -> None:
    """Something is about to happen as long as something is asked."""
    batcher = walk.batcher
    is_moving = bool(walk.ready) or batcher._wake.is_set()
    assert is_moving or not batcher._has_more(), "something is asked, and nothing will happen"
    assert not batcher._callers, "callers of a batch that is over"
    assert not batcher._deciding.locked(), "nobody decides, and nobody else can"
    for batch in walk.batches:
        assert 0 < len(batch) <= COMMIT_BATCH_MAX
        kinds_of = [type(each) for each in batch]
        assert kinds_of == sorted(kinds_of, key=lambda kind: kind is Inspect), "a look before a heartbeat"
    walk.batches.clear()


@pytest.mark.parametrize("theme", ["calm", "calm, on a thread"])
def test_whatever_is_asked_is_answered_once_and_in_its_turn(theme: str) -> None:
    for number in range(tries(6, 200)):
        walk = BatcherWalk(f"batcher, {theme} judged {number}")
        for _ in range(50):
            walk.step()
            judge_batches(walk)
        walk.close()
        while walk.ready:
            walk.turn()
        assert sorted(walk.answers) == sorted(walk.posted), "asked and answered are not the same"
        if "thread" in theme:  # else some have to wait, and come after others
            for kind in (Renew, Inspect):
                told = [int(name) for name in walk.answers if type(walk.posted[name]) is kind]
                assert told == sorted(told), "later ones were answered first"


# The sweeper


@pytest.mark.parametrize("number", range(tries(6, 200)))
def test_what_is_due_is_swept_however_often_the_store_fails_and_each_lease_ends_once(number: int) -> None:
    walk = SweeperWalk(f"sweeper judged {number}")
    for _ in range(40):
        walk.step()
    walk.fails = 0
    for _ in range(400):
        rest_ms = walk.sweeper._try()
        assert 0 <= rest_ms <= limits.SWEEP_LATE_MS_MAX, "rests for longer than anything may be late"
        walk.clock.advance(max(rest_ms, 5))
        if not walk.store.due(1).keys:
            break
    assert not walk.store.due(100).keys, "due, and nobody does it"
    now_ms = walk.clock()
    for each in walk.store._records.values():
        if isinstance(each.record, LockRecord):
            late = [hold.owner for hold in each.record.holders if hold.ttl_ms and hold.expires_ms <= now_ms]
            assert not late, f"{each.record.name} is over, and is held by {late}"
    history = walk.store.events(0, 100_000)
    ends = [(each.job, each.token) for each in history if each.kind in kinds.OWNERSHIP_ENDS]
    assert len(ends) == len(set(ends)), "a lease ended twice"


# Liveness


@pytest.mark.promise("lease:outage-credit", "lease:never-early")
@pytest.mark.parametrize("part", range(4))
def test_a_server_vouches_for_no_time_in_which_nobody_could_renew(part: int) -> None:
    for number in range(part, tries(24, 1_000), 4):
        walk = LivenessWalk(f"liveness judged {number}")
        for _ in range(60):
            walk.step()
            now_ms, liveness = walk.clock(), walk.liveness
            vouched_ms = liveness.vouch()(now_ms)
            assert 0 <= vouched_ms <= now_ms
            assert not liveness.calls, "the store was asked, and has answered"
            if liveness.has_gap():
                from_ms, until_ms = liveness.gap(now_ms)
                assert 0 <= from_ms <= until_ms <= now_ms
                assert vouched_ms <= from_ms, "vouches for a gap"
                assert liveness.beat_due_in_ms() == 0, "has a gap, and does not say so"
            else:
                assert 0 <= liveness.beat_due_in_ms() <= limits.PULSE_MS
        walk.beat()
        for _ in range(2 * limits.GRACE_MS_MAX // limits.TICK_MS):
            walk.clock.advance(limits.TICK_MS)
            walk.liveness.tick()
        assert walk.liveness.vouch()(walk.clock()) == walk.clock(), "all is well, and it does not say so"
        given = {each.token: each for each in walk.store.events(0, 10_000) if each.kind == kinds.ACQUIRED}
        for each in walk.store.events(0, 10_000):
            if each.kind == kinds.EXPIRED and given[each.token].job == each.job:
                assert each.at_ms >= given[each.token].at_ms + (given[each.token].ttl_ms or 0), "ended early"
