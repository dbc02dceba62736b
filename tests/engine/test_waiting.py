"""Waiters: who is woken, who is not, and what happens to callers that hang up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable, Unavailable
from dibs.base.ids import new_id
from dibs.core.commands import (
    Acquire,
    EndSession,
    Freeze,
    Inspect,
    KeepTickets,
    Leave,
    OpenSession,
    Release,
    Renew,
    Thaw,
    Transfer,
    Withdraw,
)
from dibs.core.limits import KEEP_BATCH_MAX, REGRANT_MS, TICKET_KEEP_MS, TICKET_MS
from dibs.core.outcomes import (
    AlreadyDone,
    Granted,
    GrantedAll,
    Held,
    NotCurrent,
    Queued,
    SessionOver,
    Superseded,
    Withdrawn,
)
from dibs.core.records import lock_key, ticket_key
from dibs.core.session_outcomes import SessionState
from dibs.engine.waiters import LAST_WORD_MS, Waiters
from dibs.stores.waiters import mark_of
from tests.engine.waiting_server import Caller, WaitingServer, claim, claim_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.engine.waiters import Result


@pytest.fixture
def server() -> WaitingServer:
    return WaitingServer()


def test_a_free_job_is_answered_at_once(server: WaitingServer) -> None:
    (caller,) = server.in_line(1)
    assert isinstance(caller.answer, Granted)
    assert len(server.waiters) == 0


@pytest.mark.fault("F-622")
def test_a_claim_all_of_one_job_is_answered_as_one_of_several(server: WaitingServer) -> None:
    lease = server.hold()
    caller = Caller(server, claim_all("job"), 600_000)
    server.decide()
    server.release(lease)
    assert isinstance(caller.answer, GrantedAll)
    assert [grant.name for grant in caller.answer.grants] == ["job"]


def test_who_must_wait_is_answered_by_the_hand_over_without_asking_again(server: WaitingServer) -> None:
    lease = server.hold()
    (caller,) = server.in_line(1)
    assert (caller.got, len(server.waiters), server.filled) == ([], 1, [0])
    before = len(server.posted)
    server.release(lease)
    assert isinstance(caller.answer, Granted)
    assert len(server.posted) == before + 1, "the release, and nothing else"


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("hung_up", [True, False, None])
def test_a_caller_is_gone_if_the_loop_or_its_connection_says_so(cancelled: bool, hung_up: bool | None) -> None:
    command = Acquire(ns="d", name="job", principal="p", owner="o", ttl_ms=1_000, fresh_lease_id="l")
    waiters = Waiters(lambda *_: None, lambda *_: None)  # type: ignore[arg-type]  # nothing is decided
    has_hung_up = None if hung_up is None else lambda: hung_up
    waiter = waiters.ask(command, 1_000, lambda result: True, has_hung_up=has_hung_up)
    if cancelled:
        waiter.cancel()
    assert waiter.is_gone() == (cancelled or bool(hung_up))


def test_a_join_and_its_hand_over_may_be_one_commit(server: WaitingServer) -> None:
    lease = server.hold()
    caller = server.caller()
    server.release(lease)
    assert isinstance(caller.answer, Granted)


@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("queue:one-wake")
def test_fifty_waiters_get_the_job_in_their_order_and_each_release_wakes_one(server: WaitingServer) -> None:
    lease = server.hold()
    callers = server.in_line(50)
    server.release(lease)
    for number, caller in enumerate(callers):
        assert [len(each.got) for each in callers] == [1] * (number + 1) + [0] * (49 - number)
        assert caller.answer.lease.owner == f"w-{number}"
        before = len(server.posted)
        server.release(caller.answer.lease.lease_id, principal="w")
        assert len(server.posted) == before + 1


def test_who_hangs_up_leaves_the_line_at_once(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    first.waiter.cancel()
    first.waiter.cancel()
    server.decide()
    assert [type(command) for command in server.posted[2:]] == [Withdraw]
    server.release(lease)
    assert first.got == []
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("queue:no-dead-grant")
def test_a_job_handed_to_somebody_who_just_hung_up_goes_to_the_next(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    server.post(Release(ns="d", name="job", principal="h", lease_id=lease), lambda result: None)
    first.waiter.cancel()  # its leaving is decided after the hand-over, in the same commit
    server.decide()
    assert first.got == []
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("queue:no-dead-grant")
def test_all_of_several_handed_to_somebody_who_hung_up_are_free_again(server: WaitingServer) -> None:
    lease = server.hold("b")
    caller = Caller(server, claim_all("a", "b"), 60_000)
    server.decide()
    server.post(Release(ns="d", name="b", principal="h", lease_id=lease), lambda result: None)
    caller.waiter.cancel()
    server.decide()
    assert isinstance(server.elsewhere.one(claim_all("a", "b")), GrantedAll)


@pytest.mark.promise("queue:no-dead-grant")
def test_an_answer_that_finds_nobody_is_undone(server: WaitingServer) -> None:
    early, late = server.caller(), server.caller()
    early.waiter.cancel()  # before its first answer
    server.decide()
    assert early.got == []
    assert isinstance(late.answer, Granted)


def test_who_hangs_up_before_the_first_answer_is_taken_out_of_the_line(server: WaitingServer) -> None:
    lease = server.hold()
    early = server.caller()
    early.waiter.cancel()
    server.decide()
    server.pass_ms(1)
    (late,) = server.in_line(1)
    server.release(lease)
    assert isinstance(late.answer, Granted)


@pytest.mark.promise("queue:no-dead-grant")
def test_a_hand_over_that_cannot_be_delivered_goes_to_the_next(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    first.is_there = False  # its connection is closing, and this is how it is found out
    server.release(lease)
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("idem:acquire")
def test_with_a_request_key_a_job_is_kept_for_who_hung_up(server: WaitingServer) -> None:
    lease = server.hold()
    caller = server.caller(request_key="k")
    server.decide()
    server.post(Release(ns="d", name="job", principal="h", lease_id=lease), lambda result: None)
    caller.waiter.cancel()
    server.decide()
    again = server.elsewhere.one(claim(request_key="k"))
    assert isinstance(again, Granted)
    assert again.again


def hung_up(server: WaitingServer, moment: str) -> None:
    """A caller with the request key `k` is given the job, and is gone when that is decided."""
    if moment == "hand-over":
        lease = server.hold()
        caller = server.caller(request_key="k")
        server.decide()
        server.post(Release(ns="d", name="job", principal="h", lease_id=lease), lambda result: None)
        caller.waiter.cancel()
    elif moment == "answer":
        server.caller(request_key="k").waiter.cancel()
    else:
        command = claim(request_key="k", wait=False)
        server.post(command, lambda result: server.waiters.on_undelivered(command, result))
    server.decide()


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("moment", ["hand-over", "answer", "no wait"])
def test_who_hung_up_and_asks_again_has_it_for_its_whole_time(server: WaitingServer, moment: str) -> None:
    hung_up(server, moment)
    server.clock.advance(TICKET_MS - 1)
    again = server.elsewhere.one(claim(request_key="k"))
    assert isinstance(again, Granted)
    assert again.lease.expires_ms == again.now_ms + claim().ttl_ms


@pytest.mark.promise("lease:never-early")
def test_a_late_notice_does_not_shorten_what_was_asked_for_again(server: WaitingServer) -> None:
    command = claim(request_key="k")
    result = server.elsewhere.one(command)
    server.clock.advance(10)
    assert isinstance(server.elsewhere.one(claim(request_key="k")), Granted)
    server.waiters.on_undelivered(command, result)
    server.decide()
    server.clock.advance(claim().ttl_ms - 1)
    assert isinstance(server.elsewhere.one(claim(wait=False)), Held)


def test_without_a_request_key_an_undelivered_claim_is_free_at_once(server: WaitingServer) -> None:
    command = claim()
    server.waiters.on_undelivered(command, server.elsewhere.one(command))
    server.decide()
    assert isinstance(server.elsewhere.one(claim(wait=False)), Granted)


def test_an_undelivered_answer_that_gave_nothing_takes_nothing_back(server: WaitingServer) -> None:
    lease = server.hold()
    kept = Renew(ns="d", name="job", principal="h", lease_id=lease)
    commands: list[Command] = [claim(wait=False), claim(), kept, Inspect(ns="d", name="job")]
    for command in commands:
        server.waiters.on_undelivered(command, server.elsewhere.one(command))
    server.waiters.on_undelivered(claim(), StoreUnavailable("away"))
    assert server.posted == []


def test_a_retry_with_the_same_key_goes_on_waiting_though_the_first_connection_is_seen_to_break(
    server: WaitingServer,
) -> None:
    lease = server.hold()
    broken, retry = server.caller(request_key="k"), server.caller(request_key="k")
    broken.waiter.cancel()  # its place is the retry's place
    server.decide()
    assert (broken.got, retry.got, len(server.waiters)) == ([], [], 1)
    server.release(lease)
    assert isinstance(retry.answer, Granted)


def test_time_over_gives_the_position_of_now_and_a_ticket_to_come_back_with(server: WaitingServer) -> None:
    lease = server.hold()
    first = server.caller(owner="first")
    server.decide()
    caller = server.caller(wait_ms=3_000)
    server.decide()
    first.waiter.cancel()
    server.decide()
    server.pass_ms(3_000)
    queued = caller.answer
    assert isinstance(queued, Queued)
    assert (queued.position, queued.now_ms) == (1, server.clock())
    again = server.caller(ticket=queued.ticket, ticket_id=queued.ticket_id)
    server.decide()
    server.release(lease)
    assert isinstance(again.answer, Granted)
    assert again.answer.lease.lease_id == queued.ticket_id


def test_who_is_in_a_hurry_is_told_at_once_and_keeps_the_place(server: WaitingServer) -> None:
    server.hold()
    (caller,) = server.in_line(1)
    caller.waiter.hurry()
    server.decide()
    assert isinstance(caller.answer, Queued)
    later = server.caller()
    server.decide()
    later.waiter.hurry()
    server.decide()
    assert later.answer.position == 2


def test_a_hurry_before_the_first_answer_is_not_forgotten(server: WaitingServer) -> None:
    server.hold()
    caller = server.caller()
    caller.waiter.hurry()
    server.decide()
    assert isinstance(caller.answer, Queued)


@pytest.mark.promise("queue:no-dead-grant")
def test_places_are_kept_in_chunks_for_as_long_as_their_callers_wait(server: WaitingServer) -> None:
    lease = server.hold()
    callers = server.in_line(KEEP_BATCH_MAX * 2 + 1)
    server.posted.clear()
    server.pass_ms(TICKET_KEEP_MS)
    assert [len(each.tickets) for each in server.posted if isinstance(each, KeepTickets)] == [256, 256, 1]
    server.pass_ms(4 * TICKET_MS)
    server.release(lease)
    assert isinstance(callers[0].answer, Granted)
    assert all(caller.got == [] for caller in callers[1:])


def test_nothing_is_kept_when_nobody_waits(server: WaitingServer) -> None:
    lease = server.hold()
    server.in_line(1)
    server.release(lease)
    server.posted.clear()
    server.pass_ms(60_000)
    assert server.posted == []
    server.hold("other")
    server.in_line(1, name="other")
    server.posted.clear()
    server.pass_ms(TICKET_KEEP_MS)
    assert [type(each) for each in server.posted] == [KeepTickets]


def test_a_hand_over_by_another_process_is_heard_of(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    seen = server.store.events(0, 1, newest=True)[0].seq
    server.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    before = len(server.posted)
    server.news(seen)
    assert isinstance(first.answer, Granted)
    assert second.got == []
    assert len(server.posted) == before + 1, "one asks again, and one only"


def gone(server: WaitingServer) -> None:
    """The store says that the ticket of each who waits here is gone."""
    server.waiters.on_gone([mark_of(ticket_key(*place)) for place in server.waiters._parked])
    server.decide()


def test_who_is_served_at_another_server_is_told_as_soon_as_its_ticket_is_gone(server: WaitingServer) -> None:
    """By one look, which writes nothing: the lease is the one that the other server granted, and its time runs."""
    lease = server.hold()
    (caller,) = server.in_line(1)
    server.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    before = server.store.newest_seq(), server.store.read((lock_key("d", "job"),)).records
    server.clock.advance(40)
    gone(server)
    assert isinstance(caller.answer, Granted)
    assert (caller.answer.again, caller.answer.held_before) == (False, False)
    assert caller.answer.lease.expires_ms - caller.answer.now_ms == 3_600_000 - 40
    assert (server.store.newest_seq(), server.store.read((lock_key("d", "job"),)).records) == before
    server.news(0)
    assert len(caller.got) == 1
    assert server.waiters._marks == {}


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
@pytest.mark.parametrize("told_by", ["this server", "a look"])
def test_who_waited_for_what_its_session_got_otherwise_is_told_that_it_had_it_before(
    server: WaitingServer, told_by: str
) -> None:
    """Another process of the session works on it: the one that waited must not give it back."""
    server.elsewhere.one(OpenSession(ns="d", fresh_id="s", principal="w", owner="w", ttl_ms=3_600_000))
    lease = server.hold()
    caller = server.caller(session="s", request_key="k")
    server.decide()
    handed = Transfer(ns="d", name="job", principal="h", lease_id=lease, fresh_lease_id="heir", to_session="s")
    if told_by == "this server":
        server.post(handed, lambda result: None)
        server.decide()
    else:
        server.elsewhere.one(handed)
        gone(server)
    assert (caller.answer.lease.lease_id, caller.answer.held_before) == ("heir", True)
    undone = server.elsewhere.one(Withdraw(ns="d", names=("job",), principal="w", request_key="k"))
    assert undone == Withdrawn(now_ms=server.clock())
    assert isinstance(server.elsewhere.one(claim(principal="other", wait=False)), Held)


def test_what_was_handed_over_long_ago_is_renewed_when_its_owner_is_told(server: WaitingServer) -> None:
    lease = server.hold()
    (caller,) = server.in_line(1)
    server.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    server.clock.advance(REGRANT_MS)
    gone(server)
    assert caller.answer.lease.expires_ms - caller.answer.now_ms == 3_600_000


@pytest.mark.promise("queue:fifo")
def test_a_hint_that_is_wrong_leaves_everybody_in_line(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    line = server.store.read((lock_key("d", "job"),)).records
    gone(server)
    assert (first.got, second.got, len(server.waiters)) == ([], [], 2)
    assert server.store.read((lock_key("d", "job"),)).records == line
    server.release(lease)
    assert isinstance(first.answer, Granted)
    assert second.got == []


def test_whose_place_was_given_up_by_another_request_is_not_put_back_by_a_hint(server: WaitingServer) -> None:
    server.hold()
    (caller,) = server.in_line(1)
    assert caller.waiter.queued is not None
    queued = caller.waiter.queued
    leave = Leave(ns="d", name="job", principal="w", ticket=queued.ticket, ticket_id=queued.ticket_id)
    server.elsewhere.one(leave)
    gone(server)
    assert caller.got == []
    server.news(0)
    assert isinstance(caller.answer, Held)


@pytest.mark.promise("excl")
def test_who_hangs_up_while_its_server_looks_gives_the_job_back(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    server.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    server.waiters.on_gone([mark_of(ticket_key(*first.waiter.ticket or ("", "", 0)))])
    first.waiter.cancel()
    server.decide()
    assert first.got == []
    assert isinstance(second.answer, Granted)


def test_a_look_is_no_claim_in_the_counts(server: WaitingServer) -> None:
    metrics = server.waiters._metrics
    server.hold()
    server.in_line(1)
    before = metrics._waited.copy()
    gone(server)
    assert metrics._waited - before == {}
    assert before - metrics._waited == {NotCurrent: 1}  # it was counted as a claim when it was decided


def test_a_hand_over_that_nobody_reported_is_found_when_places_are_kept(server: WaitingServer) -> None:
    lease = server.hold()
    (caller,) = server.in_line(1)
    server.elsewhere.one(Release(ns="d", name="job", principal="h", lease_id=lease))
    server.pass_ms(TICKET_KEEP_MS)
    assert isinstance(caller.answer, Granted)


def test_when_the_work_is_done_everybody_in_line_is_told_so(server: WaitingServer) -> None:
    lease = server.hold()
    callers = server.in_line(3)
    server.release(lease, done_ms=60_000)
    assert [type(caller.answer) for caller in callers] == [AlreadyDone] * 3


@pytest.mark.promise("session")
def test_when_a_session_ends_its_waiter_is_told_and_the_next_is_first(server: WaitingServer) -> None:
    lease = server.hold()
    opened = server.elsewhere.one(OpenSession(ns="default", fresh_id=new_id(), principal="w", owner="w", ttl_ms=60_000))
    assert isinstance(opened, SessionState)
    inside = server.caller(session=opened.session.id)
    outside = server.caller()
    server.decide()
    server.post(EndSession(session=opened.session.id, principal="w"), lambda result: None)
    server.decide()
    assert isinstance(inside.answer, SessionOver)
    server.release(lease)
    assert isinstance(outside.answer, Granted)


def test_who_gives_up_the_place_with_its_ticket_is_told_who_has_the_job_and_not_put_back(
    server: WaitingServer,
) -> None:
    server.hold()
    (caller,) = server.in_line(1)
    queued = caller.waiter.queued
    assert queued is not None
    leave = Leave(ns="d", name="job", principal="w", ticket=queued.ticket, ticket_id=queued.ticket_id)
    server.post(leave, lambda result: None)
    server.decide()
    assert isinstance(caller.answer, Held)
    assert caller.answer.waiting == 0


def test_of_two_connections_with_one_ticket_the_later_waits(server: WaitingServer) -> None:
    lease = server.hold()
    (first,) = server.in_line(1)
    queued = first.waiter.queued
    assert queued is not None
    second = server.caller(ticket=queued.ticket, ticket_id=queued.ticket_id)
    server.decide()
    assert isinstance(first.answer, Queued)
    first.waiter.cancel()
    server.release(lease)
    assert isinstance(second.answer, Granted)


def place_that_an_older_copy_lacks(server: WaitingServer) -> Caller:
    """Somebody who waits here in line for the job, in a place that the store has lost."""
    store = server.store
    before = dict(store._records)
    (caller,) = server.in_line(1, principal="first")
    for key in {*store._records, *before}:
        store._put(key, before.get(key))
    return caller


@pytest.mark.fault("F-460")
@pytest.mark.promise("servers:failover")
def test_who_had_the_number_of_a_place_before_a_failover_is_not_told_the_ticket_of_who_has_it_now(
    server: WaitingServer,
) -> None:
    lease = server.hold()
    first = place_that_an_older_copy_lacks(server)
    number = first.waiter.command.ticket
    second = server.caller(owner="second", principal="second")
    server.decide()
    assert second.waiter.command.ticket == number
    assert first.got == second.got == []
    server.release(lease)
    assert second.answer.lease.owner == "second"
    assert first.got == []
    server.release(second.answer.lease.lease_id, principal="second")
    assert first.answer.lease.owner == "w-0"


@pytest.mark.fault("F-460")
@pytest.mark.promise("servers:failover")
def test_who_had_the_number_of_a_place_before_a_failover_is_not_given_the_job_of_who_has_it_now(
    server: WaitingServer,
) -> None:
    lease = server.hold()
    first = place_that_an_older_copy_lacks(server)
    queued = server.elsewhere.one(claim(owner="second", principal="second"))
    assert isinstance(queued, Queued)
    assert queued.ticket == first.waiter.command.ticket
    server.release(lease)
    assert first.got == []
    server.release(queued.ticket_id, principal="second")
    assert first.answer.lease.owner == "w-0"


def test_who_polls_with_a_number_and_another_ticket_ends_nobodys_wait(server: WaitingServer) -> None:
    server.hold()
    (caller,) = server.in_line(1)
    server.waiters.on_poll(claim(ticket=caller.waiter.command.ticket, ticket_id="another"))
    assert caller.got == []


def test_all_of_several_are_handed_over_together(server: WaitingServer) -> None:
    leases = {name: server.hold(name) for name in ("a", "b")}
    caller = Caller(server, claim_all("a", "b"), 60_000)
    server.decide()
    server.release(leases["b"], "b")
    assert caller.got == []
    server.release(leases["a"], "a")
    assert isinstance(caller.answer, GrantedAll)


@pytest.mark.promise("queue:fifo")
def test_at_the_end_of_a_server_all_are_told_where_they_stand_and_keep_their_places(
    server: WaitingServer,
) -> None:
    lease = server.hold()
    callers = server.in_line(3)
    out = server.caller()
    server.waiters.close()
    server.decide()
    assert [caller.answer.position for caller in [*callers, out]] == [1, 2, 3, 4]
    late = server.caller()
    server.decide()
    assert late.answer.position == 5
    next_server = Waiters(server.post, server.later)
    server.waiters = next_server
    first = callers[0].answer
    back = server.caller(ticket=first.ticket, ticket_id=first.ticket_id)
    server.decide()
    server.release(lease)
    assert isinstance(back.answer, Granted)


def test_a_store_that_hangs_does_not_keep_waiters_from_their_tickets_at_the_end(
    server: WaitingServer,
) -> None:
    server.hold()
    (caller,) = server.in_line(1)
    server.waiters.close()
    stuck, server.queue = server.queue, []
    server.pass_ms(LAST_WORD_MS)
    assert isinstance(caller.answer, Queued)
    server.queue = stuck
    server.decide()
    assert len(caller.got) == 1


@pytest.mark.parametrize("error", [Unavailable("no"), StoreUnavailable("no")])
def test_who_cannot_ask_again_is_told_the_ticket_it_has(server: WaitingServer, error: Exception) -> None:
    server.hold()
    (caller,) = server.in_line(1)
    server.refusal = error
    caller.waiter.hurry()
    assert isinstance(caller.answer, Queued)


@pytest.mark.fault("F-770")
@pytest.mark.promise("queue:no-dead-grant")
@pytest.mark.parametrize("server_ends", [False, True])
def test_whose_wait_ends_while_the_store_is_frozen_comes_back_with_its_ticket(
    server: WaitingServer, server_ends: bool
) -> None:
    lease = server.hold()
    (caller,) = server.in_line(1)
    server.elsewhere.one(Freeze(id="move"))
    if server_ends:
        server.waiters.close()
    else:
        caller.waiter.hurry()
    server.decide()
    assert isinstance(caller.answer, Queued)
    server.elsewhere.one(Thaw(id="move"))
    server.waiters = Waiters(server.post, server.later)
    back = server.caller(ticket=caller.answer.ticket, ticket_id=caller.answer.ticket_id)
    server.decide()
    server.release(lease)
    assert isinstance(back.answer, Granted)


def test_who_cannot_ask_at_all_is_told_why(server: WaitingServer) -> None:
    server.refusal = Unavailable("no")
    with pytest.raises(Unavailable):
        server.caller()


def test_hanging_up_or_keeping_a_place_survives_a_server_with_too_much_to_do(server: WaitingServer) -> None:
    lease = server.hold()
    first, second = server.in_line(2)
    server.refusal = Unavailable("no")
    server.pass_ms(TICKET_KEEP_MS)
    first.waiter.cancel()
    server.refusal = None
    server.pass_ms(2 * TICKET_MS)  # its place runs out by itself
    server.release(lease)
    assert isinstance(second.answer, Granted)


class OneBadPlace(WaitingServer):
    """Keeping the second place of the line fails, and whatever is kept with it."""

    raises = False

    def post(
        self,
        command: Command,
        callback: Callable[[Result], None],
        is_gone: Callable[[], bool] | None = None,
    ) -> None:
        if isinstance(command, KeepTickets) and any(number == 2 for _, _, number in command.tickets):
            error = ValueError("a record that nobody understands")
            if self.raises:
                raise error
            callback(error)
        else:
            super().post(command, callback, is_gone)


@pytest.mark.fault("F-037")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("raises", [False, True], ids=["is the answer", "is raised"])
def test_a_place_that_cannot_be_kept_is_reported_and_costs_nobody_else_a_place(
    caplog: pytest.LogCaptureFixture, raises: bool
) -> None:
    server = OneBadPlace()
    server.raises = raises
    lease = server.hold(ttl_ms=600_000)
    callers = server.in_line(7)
    server.pass_ms(3 * TICKET_MS)
    assert "places in line could not be kept" in caplog.text
    for number in (0, 2, 3, 4, 5, 6):
        server.release(lease, principal="w" if number else "h")
        granted = callers[number].answer
        assert isinstance(granted, Granted)
        lease = granted.lease.lease_id


@pytest.mark.promise("queue:newest")
def test_who_is_replaced_is_told_at_once_at_its_own_server_and_at_another(server: WaitingServer) -> None:
    other = WaitingServer(server)
    server.hold()
    here = server.caller(owner="here", replaces="main")
    server.decide()
    elsewhere = other.caller(owner="elsewhere", replaces="main")
    other.decide()
    assert here.got == []
    server.news(0)
    assert isinstance(here.answer, Superseded)
    assert here.answer.by == "elsewhere"
    for number in range(3):  # in one commit
        other.caller(owner=f"w-{number}", replaces="main")
    other.decide()
    assert isinstance(elsewhere.answer, Superseded)
    assert (elsewhere.answer.by, len(other.waiters)) == ("w-2", 1)
