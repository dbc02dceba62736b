"""The waiting room: who is woken, who is not, and what becomes of those who hang up."""

from __future__ import annotations

import pytest

from dibs.core.commands import EndSession, KeepPlaces, Leave, OpenSession, Release
from dibs.core.limits import KEEP_BATCH_MAX, TICKET_KEEP_MS, TICKET_MS
from dibs.core.outcomes import AlreadyDone, Granted, GrantedAll, Held, Queued, SessionOver, SessionState
from dibs.errors import StoreUnavailable, Unavailable
from dibs.ids import new_id
from dibs.service.waiters import LAST_WORD_MS, Waiters
from tests.service.desk import Caller, Desk, claim, claim_all


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_free_job_is_answered_at_once(desk: Desk) -> None:
    (caller,) = desk.in_line(1)
    assert isinstance(caller.answer, Granted)
    assert len(desk.room) == 0


def test_who_must_wait_is_answered_by_the_hand_over_without_asking_again(desk: Desk) -> None:
    lease = desk.hold()
    (caller,) = desk.in_line(1)
    assert (caller.got, len(desk.room), desk.filled) == ([], 1, [0])
    before = len(desk.posted)
    desk.release(lease)
    assert isinstance(caller.answer, Granted)
    assert len(desk.posted) == before + 1, "the release, and nothing else"


def test_a_join_and_its_hand_over_may_be_one_commit(desk: Desk) -> None:
    lease = desk.hold()
    caller = desk.caller()
    desk.release(lease)
    assert isinstance(caller.answer, Granted)


@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("queue:one-wake")
def test_fifty_waiters_get_the_job_in_their_order_and_each_release_wakes_one(desk: Desk) -> None:
    lease = desk.hold()
    callers = desk.in_line(50)
    desk.release(lease)
    for number, caller in enumerate(callers):
        assert [len(each.got) for each in callers] == [1] * (number + 1) + [0] * (49 - number)
        assert caller.answer.lease.owner == f"w-{number}"
        before = len(desk.posted)
        desk.release(caller.answer.lease.lease_id, principal="w")
        assert len(desk.posted) == before + 1


def test_who_hangs_up_leaves_the_line_at_once(desk: Desk) -> None:
    lease = desk.hold()
    first, second = desk.in_line(2)
    first.waiter.cancel()
    first.waiter.cancel()
    desk.decide()
    assert [type(command) for command in desk.posted[2:]] == [Leave]
    desk.release(lease)
    assert first.got == []
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("queue:no-dead-grant")
def test_a_job_handed_to_somebody_who_just_hung_up_goes_to_the_next(desk: Desk) -> None:
    lease = desk.hold()
    first, second = desk.in_line(2)
    desk.post(Release(ns="d", name="job", principal="h", lease_id=lease), lambda result: None)
    first.waiter.cancel()  # its leaving is decided after the hand-over, in the same commit
    desk.decide()
    assert first.got == []
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("queue:no-dead-grant")
def test_all_of_several_handed_to_somebody_who_hung_up_are_free_again(desk: Desk) -> None:
    lease = desk.hold("b")
    caller = Caller(desk, claim_all("a", "b"), 60_000)
    desk.decide()
    desk.post(Release(ns="d", name="b", principal="h", lease_id=lease), lambda result: None)
    caller.waiter.cancel()
    desk.decide()
    assert isinstance(desk.elsewhere.one(claim_all("a", "b")), GrantedAll)


@pytest.mark.promise("queue:no-dead-grant")
def test_an_answer_that_finds_nobody_is_undone(desk: Desk) -> None:
    early, late = desk.caller(), desk.caller()
    early.waiter.cancel()  # before its first answer
    desk.decide()
    assert early.got == []
    assert isinstance(late.answer, Granted)


def test_who_hangs_up_before_the_first_answer_is_taken_out_of_the_line(desk: Desk) -> None:
    lease = desk.hold()
    early = desk.caller()
    early.waiter.cancel()
    desk.decide()
    (late,) = desk.in_line(1)
    desk.release(lease)
    assert isinstance(late.answer, Granted)


@pytest.mark.promise("queue:no-dead-grant")
def test_a_hand_over_that_cannot_be_delivered_goes_to_the_next(desk: Desk) -> None:
    lease = desk.hold()
    first, second = desk.in_line(2)
    first.is_there = False  # its connection is closing, and this is how it is found out
    desk.release(lease)
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("idem:acquire")
def test_with_a_request_key_a_job_is_kept_for_who_hung_up(desk: Desk) -> None:
    lease = desk.hold()
    caller = desk.caller(request_key="k")
    desk.decide()
    desk.post(Release(ns="d", name="job", principal="h", lease_id=lease), lambda result: None)
    caller.waiter.cancel()
    desk.decide()
    again = desk.elsewhere.one(claim(request_key="k"))
    assert isinstance(again, Granted)
    assert again.again


def hung_up(desk: Desk, moment: str) -> None:
    """A caller with the request key `k` is given the job, and is gone when that is decided."""
    if moment == "hand-over":
        lease = desk.hold()
        caller = desk.caller(request_key="k")
        desk.decide()
        desk.post(Release(ns="d", name="job", principal="h", lease_id=lease), lambda result: None)
        caller.waiter.cancel()
    elif moment == "answer":
        desk.caller(request_key="k").waiter.cancel()
    else:
        command = claim(request_key="k", wait=False)
        desk.post(command, lambda result: desk.room.undelivered(command, result))
    desk.decide()


@pytest.mark.promise("queue:no-dead-grant")
@pytest.mark.parametrize("moment", ["hand-over", "answer", "no wait"])
def test_what_is_kept_for_who_hung_up_is_free_before_its_time(desk: Desk, moment: str) -> None:
    hung_up(desk, moment)
    desk.clock.advance(TICKET_MS - 1)
    assert isinstance(desk.elsewhere.one(claim(wait=False)), Held)
    desk.clock.advance(1)
    assert isinstance(desk.elsewhere.one(claim(wait=False)), Granted)


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("moment", ["hand-over", "answer", "no wait"])
def test_who_hung_up_and_asks_again_has_it_for_its_whole_time(desk: Desk, moment: str) -> None:
    hung_up(desk, moment)
    desk.clock.advance(TICKET_MS - 1)
    again = desk.elsewhere.one(claim(request_key="k"))
    assert isinstance(again, Granted)
    assert again.lease.expires_ms == again.now_ms + claim().ttl_ms


@pytest.mark.promise("lease:never-early")
def test_a_late_notice_does_not_shorten_what_was_asked_for_again(desk: Desk) -> None:
    command = claim(request_key="k")
    result = desk.elsewhere.one(command)
    desk.clock.advance(10)
    assert isinstance(desk.elsewhere.one(claim(request_key="k")), Granted)
    desk.room.undelivered(command, result)
    desk.decide()
    desk.clock.advance(claim().ttl_ms - 1)
    assert isinstance(desk.elsewhere.one(claim(wait=False)), Held)


def test_without_a_request_key_an_undelivered_claim_is_free_at_once(desk: Desk) -> None:
    command = claim()
    desk.room.undelivered(command, desk.elsewhere.one(command))
    desk.decide()
    assert isinstance(desk.elsewhere.one(claim(wait=False)), Granted)


def test_a_retry_with_the_same_key_goes_on_waiting_though_the_first_connection_is_seen_to_break(
    desk: Desk,
) -> None:
    lease = desk.hold()
    broken, retry = desk.caller(request_key="k"), desk.caller(request_key="k")
    broken.waiter.cancel()  # its place is the retry's place
    desk.decide()
    assert (broken.got, retry.got, len(desk.room)) == ([], [], 1)
    desk.release(lease)
    assert isinstance(retry.answer, Granted)


def test_time_over_tells_the_position_of_now_and_a_ticket_to_come_back_with(desk: Desk) -> None:
    lease = desk.hold()
    first = desk.caller(owner="first")
    desk.decide()
    caller = desk.caller(wait_ms=3_000)
    desk.decide()
    first.waiter.cancel()
    desk.decide()
    desk.pass_ms(3_000)
    queued = caller.answer
    assert isinstance(queued, Queued)
    assert (queued.position, queued.now_ms) == (1, desk.clock())
    again = desk.caller(ticket=queued.ticket, ticket_id=queued.ticket_id)
    desk.decide()
    desk.release(lease)
    assert isinstance(again.answer, Granted)
    assert again.answer.lease.lease_id == queued.ticket_id


def test_who_is_in_a_hurry_is_told_at_once_and_keeps_the_place(desk: Desk) -> None:
    desk.hold()
    (caller,) = desk.in_line(1)
    caller.waiter.hurry()
    desk.decide()
    assert isinstance(caller.answer, Queued)
    later = desk.caller()
    desk.decide()
    later.waiter.hurry()
    desk.decide()
    assert later.answer.position == 2


def test_a_hurry_before_the_first_answer_is_not_forgotten(desk: Desk) -> None:
    desk.hold()
    caller = desk.caller()
    caller.waiter.hurry()
    desk.decide()
    assert isinstance(caller.answer, Queued)


@pytest.mark.promise("queue:no-dead-grant")
def test_places_are_kept_in_chunks_for_as_long_as_their_callers_wait(desk: Desk) -> None:
    lease = desk.hold()
    callers = desk.in_line(KEEP_BATCH_MAX * 2 + 1)
    desk.posted.clear()
    desk.pass_ms(TICKET_KEEP_MS)
    assert [len(each.places) for each in desk.posted if isinstance(each, KeepPlaces)] == [256, 256, 1]
    desk.pass_ms(4 * TICKET_MS)
    desk.release(lease)
    assert isinstance(callers[0].answer, Granted)
    assert all(caller.got == [] for caller in callers[1:])


def test_nothing_is_kept_when_nobody_waits(desk: Desk) -> None:
    lease = desk.hold()
    desk.in_line(1)
    desk.release(lease)
    desk.posted.clear()
    desk.pass_ms(60_000)
    assert desk.posted == []
    desk.hold("other")
    desk.in_line(1, name="other")
    desk.posted.clear()
    desk.pass_ms(TICKET_KEEP_MS)
    assert [type(each) for each in desk.posted] == [KeepPlaces]


def test_a_hand_over_by_another_process_is_heard_of(desk: Desk) -> None:
    lease = desk.hold()
    first, second = desk.in_line(2)
    seen = desk.store.events(0, 1, newest=True)[0].seq
    desk.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    before = len(desk.posted)
    desk.news(seen)
    assert isinstance(first.answer, Granted)
    assert second.got == []
    assert len(desk.posted) == before + 1, "one asks again, and one only"


def test_a_hand_over_that_nobody_told_of_is_found_when_places_are_kept(desk: Desk) -> None:
    lease = desk.hold()
    (caller,) = desk.in_line(1)
    desk.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    desk.pass_ms(TICKET_KEEP_MS)
    assert isinstance(caller.answer, Granted)


def test_when_the_work_is_done_everybody_in_line_is_told_so(desk: Desk) -> None:
    lease = desk.hold()
    callers = desk.in_line(3)
    desk.release(lease, done_ms=60_000)
    assert [type(caller.answer) for caller in callers] == [AlreadyDone] * 3


@pytest.mark.promise("session")
def test_when_a_session_ends_its_waiter_is_told_and_the_next_is_first(desk: Desk) -> None:
    lease = desk.hold()
    opened = desk.elsewhere.one(OpenSession(fresh_id=new_id(), principal="w", owner="w", ttl_ms=60_000))
    assert isinstance(opened, SessionState)
    inside = desk.caller(session=opened.session.id)
    outside = desk.caller()
    desk.decide()
    desk.post(EndSession(session=opened.session.id, principal="w"), lambda result: None)
    desk.decide()
    assert isinstance(inside.answer, SessionOver)
    desk.release(lease)
    assert isinstance(outside.answer, Granted)


def test_who_gives_up_the_place_with_its_ticket_is_told_who_has_the_job_and_not_put_back(desk: Desk) -> None:
    desk.hold()
    (caller,) = desk.in_line(1)
    queued = caller.waiter.queued
    assert queued is not None
    leave = Leave(ns="d", name="job", principal="w", ticket=queued.ticket, ticket_id=queued.ticket_id)
    desk.post(leave, lambda result: None)
    desk.decide()
    assert isinstance(caller.answer, Held)
    assert caller.answer.waiting == 0


def test_of_two_connections_with_one_ticket_the_later_waits(desk: Desk) -> None:
    lease = desk.hold()
    (first,) = desk.in_line(1)
    queued = first.waiter.queued
    assert queued is not None
    second = desk.caller(ticket=queued.ticket, ticket_id=queued.ticket_id)
    desk.decide()
    assert isinstance(first.answer, Queued)
    first.waiter.cancel()
    desk.release(lease)
    assert isinstance(second.answer, Granted)


def test_all_of_several_are_handed_over_together(desk: Desk) -> None:
    leases = {name: desk.hold(name) for name in ("a", "b")}
    caller = Caller(desk, claim_all("a", "b"), 60_000)
    desk.decide()
    desk.release(leases["b"], "b")
    assert caller.got == []
    desk.release(leases["a"], "a")
    assert isinstance(caller.answer, GrantedAll)


@pytest.mark.promise("queue:fifo")
def test_at_the_end_of_a_server_all_are_told_where_they_stand_and_keep_their_places(desk: Desk) -> None:
    lease = desk.hold()
    callers = desk.in_line(3)
    out = desk.caller()
    desk.room.close()
    desk.decide()
    assert [caller.answer.position for caller in [*callers, out]] == [1, 2, 3, 4]
    late = desk.caller()
    desk.decide()
    assert late.answer.position == 5
    next_server = Waiters(desk.post, desk.later)
    desk.room = next_server
    first = callers[0].answer
    back = desk.caller(ticket=first.ticket, ticket_id=first.ticket_id)
    desk.decide()
    desk.release(lease)
    assert isinstance(back.answer, Granted)


def test_a_store_that_hangs_does_not_keep_waiters_from_their_tickets_at_the_end(desk: Desk) -> None:
    desk.hold()
    (caller,) = desk.in_line(1)
    desk.room.close()
    stuck, desk.queue = desk.queue, []
    desk.pass_ms(LAST_WORD_MS)
    assert isinstance(caller.answer, Queued)
    desk.queue = stuck
    desk.decide()
    assert len(caller.got) == 1


@pytest.mark.parametrize("error", [Unavailable("no"), StoreUnavailable("no")])
def test_who_cannot_ask_again_is_told_the_ticket_it_has(desk: Desk, error: Exception) -> None:
    desk.hold()
    (caller,) = desk.in_line(1)
    desk.refusal = error
    caller.waiter.hurry()
    assert isinstance(caller.answer, Queued)


def test_who_cannot_ask_at_all_is_told_why(desk: Desk) -> None:
    desk.refusal = Unavailable("no")
    with pytest.raises(Unavailable):
        desk.caller()


def test_hanging_up_or_keeping_a_place_survives_a_server_with_too_much_to_do(desk: Desk) -> None:
    lease = desk.hold()
    first, second = desk.in_line(2)
    desk.refusal = Unavailable("no")
    desk.pass_ms(TICKET_KEEP_MS)
    first.waiter.cancel()
    desk.refusal = None
    desk.pass_ms(2 * TICKET_MS)  # its place runs out by itself
    desk.release(lease)
    assert isinstance(second.answer, Granted)
