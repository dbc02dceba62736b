"""A caller that goes on to another server with its ticket has left a server, not the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import Unavailable
from dibs.core.commands import Command, Identify, Inspect, OpenSession, Release, Renew, Withdraw
from dibs.core.lease_outcomes import Identified
from dibs.core.limits import TICKET_MS
from dibs.core.outcomes import Granted, Held, Queued, Status
from dibs.engine.coordinator import Coordinator
from dibs.engine.metrics import Result
from dibs.engine.waiters import Waiters
from tests.engine.waiting_server import Caller, WaitingServer, claim, claim_all

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_MS = 60_000
MOVE_MS = 10_000  # a place lasts longer


@pytest.fixture
def here() -> WaitingServer:
    return WaitingServer()


@pytest.fixture
def there(here: WaitingServer) -> WaitingServer:
    return WaitingServer(here)


def moved(caller: Caller, there: WaitingServer) -> Caller:
    """The same claim, asked at another server with the ticket it was given."""
    assert caller.waiter.queued is not None
    queued = caller.waiter.queued
    again = there.caller(
        owner=caller.waiter.command.owner,
        ttl_ms=TTL_MS,
        request_key=caller.waiter.command.request_key,
        ticket=queued.ticket,
        ticket_id=queued.ticket_id,
    )
    there.decide()
    return again


def left_ms(server: WaitingServer) -> int:
    status = Coordinator(server.store).one(Inspect(ns="d", name="job"))
    assert isinstance(status, Status)
    assert status.lock is not None
    (holder,) = status.lock.holders
    return holder.expires_ms - server.clock()


@pytest.mark.promise("queue:fifo")
def test_a_server_that_hears_late_of_the_hang_up_does_not_give_the_place_up(
    here: WaitingServer, there: WaitingServer
) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS, moves=True)
    here.decide()
    (second,) = there.in_line(1, request_key="k-2")
    again = moved(first, there)
    first.waiter.cancel()
    here.decide()
    here.pass_ms(MOVE_MS)
    there.release(lease)
    assert isinstance(again.answer, Granted)
    assert second.got == []


@pytest.mark.fault("F-380")
@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("servers:failover")
def test_who_has_other_servers_to_ask_is_given_the_time_to_do_so(here: WaitingServer, there: WaitingServer) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS, moves=True)
    here.decide()
    (second,) = there.in_line(1, request_key="k-2")
    first.waiter.cancel()
    here.pass_ms(MOVE_MS)  # its way to the other server, and that server's to the store, may be slow
    again = moved(first, there)
    here.pass_ms(1_000)
    there.release(lease)
    assert isinstance(again.answer, Granted)
    assert second.got == []


def test_who_never_comes_is_out_of_the_line_when_its_place_has_run_out(here: WaitingServer) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", moves=True)
    here.decide()
    (second,) = here.in_line(1)
    first.waiter.cancel()
    here.decide()
    here.pass_ms(TICKET_MS)
    assert not [command for command in here.posted if isinstance(command, Withdraw)]
    here.release(lease)
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("loss:told")
@pytest.mark.parametrize("hears", ["the hang-up", "the hand-over"])
def test_a_lease_that_another_server_told_of_is_not_cut_short(
    here: WaitingServer, there: WaitingServer, hears: str
) -> None:
    """The first server stood still while the caller went on and got the job elsewhere."""
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS)
    here.decide()
    again = moved(first, there)
    there.release(lease)
    assert isinstance(again.answer, Granted)
    here.clock.advance(1_000)
    if hears == "the hang-up":
        first.waiter.cancel()
    else:
        here.waiters.on_events(here.store.events(0, 100))
        first.waiter.gone = True
    here.decide()
    assert left_ms(here) > TICKET_MS
    assert again.answer.lease.expires_ms - here.clock() <= left_ms(here)


@pytest.mark.promise("loss:told")
def test_a_lease_that_was_fetched_at_another_server_is_not_cut_short(here: WaitingServer, there: WaitingServer) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS)
    here.decide()
    there.release(lease)  # handed over while the first server stands still
    again = moved(first, there)
    assert isinstance(again.answer, Granted)
    here.clock.advance(1_000)
    first.waiter.cancel()
    here.decide()
    assert left_ms(here) > TICKET_MS


@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("key", [None, "k-1"])
def test_without_another_server_the_claim_of_who_hangs_up_is_withdrawn(here: WaitingServer, key: str | None) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key=key, ttl_ms=TTL_MS)
    (second,) = here.in_line(1)
    first.waiter.cancel()
    here.decide()
    here.release(lease)
    assert isinstance(second.answer, Granted)


@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("key", [None, "k-1"])
def test_a_job_that_was_handed_over_to_nobody_stays_if_a_key_can_ask_for_it(
    here: WaitingServer, there: WaitingServer, key: str | None
) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key=key, ttl_ms=TTL_MS)
    here.decide()
    there.release(lease)
    first.waiter.cancel()
    here.decide()
    newcomer = here.elsewhere.one(claim(principal="other", wait=False))
    assert isinstance(newcomer, Held if key else Granted)
    if key:
        assert left_ms(here) == TTL_MS


def test_a_caller_that_comes_back_to_the_first_server_waits_there(here: WaitingServer, there: WaitingServer) -> None:
    here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS)
    here.decide()
    away = moved(first, there)
    back = moved(away, here)
    away.waiter.cancel()
    there.decide()
    assert isinstance(first.answer, Queued), "of two connections with one ticket the last one waits"
    assert back.got == []
    assert len(here.waiters) == 1


def in_session(server: WaitingServer) -> str:
    server.elsewhere.one(OpenSession(ns="default", fresh_id="s", principal="w", owner="w", ttl_ms=3_600_000))
    return "s"


@pytest.mark.fault("F-001")
@pytest.mark.promise("excl")
@pytest.mark.parametrize("wait", [True, False])
def test_a_claim_and_its_repeat_in_one_batch_leave_the_job_to_who_is_still_there(
    here: WaitingServer, wait: bool
) -> None:
    """The server stood still; the caller gave up and asked again, in the same session and without a request key."""
    session = in_session(here)
    if wait:
        gone = here.caller(session=session, ttl_ms=TTL_MS)
        gone.is_there = False
    else:
        command = claim(session=session, ttl_ms=TTL_MS, wait=False)
        here.post(command, lambda result: here.waiters.on_undelivered(command, result))
    there = here.caller(session=session, ttl_ms=TTL_MS)
    here.decide()
    assert isinstance(there.answer, Granted)
    assert left_ms(here) == TTL_MS
    assert isinstance(here.elsewhere.one(claim(principal="other", wait=False)), Held)


@pytest.mark.fault("F-002")
@pytest.mark.promise("lease:never-early")
def test_a_claim_and_its_repeat_in_one_batch_leave_the_lease_its_whole_time(here: WaitingServer) -> None:
    gone = here.caller(request_key="k", ttl_ms=TTL_MS)
    gone.is_there = False
    there = here.caller(request_key="k", ttl_ms=TTL_MS)
    here.decide()
    assert there.answer.lease.expires_ms - here.clock() == TTL_MS == left_ms(here)


@pytest.mark.fault("F-003")
@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("servers:failover")
def test_who_comes_back_to_the_same_server_keeps_its_place(here: WaitingServer) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS, moves=True)
    (second,) = here.in_line(1, request_key="k-2")
    first.waiter.cancel()
    again = moved(first, here)
    here.pass_ms(2 * MOVE_MS)
    here.release(lease)
    assert isinstance(again.answer, Granted)
    assert second.got == []


@pytest.mark.fault("F-003")
@pytest.mark.promise("queue:fifo")
def test_two_asks_with_one_key_in_one_batch_keep_the_place_of_the_first(here: WaitingServer) -> None:
    lease = here.hold()
    broken = here.caller(request_key="k")
    retry = here.caller(request_key="k")
    other = here.caller(owner="other")
    broken.waiter.cancel()
    here.decide()
    here.pass_ms(1)
    here.release(lease)
    assert isinstance(retry.answer, Granted)
    assert other.got == []


@pytest.mark.fault("F-004")
@pytest.mark.promise("lease:never-early")
@pytest.mark.promise("excl")
def test_a_late_request_of_its_own_owner_does_not_cut_a_lease(here: WaitingServer, there: WaitingServer) -> None:
    """Its server hung on the store with a request that its caller left long ago, and does not know that it left."""
    lease = here.hold()
    first = here.caller(owner="first", request_key="k", ttl_ms=TTL_MS)
    here.decide()
    first.waiter.hurry()
    here.decide()
    told = first.answer
    fields = {"ticket": told.ticket, "ticket_id": told.ticket_id}
    late = here.caller(owner="first", request_key="k", ttl_ms=TTL_MS, **fields)
    newer = there.caller(owner="first", request_key="k", ttl_ms=TTL_MS, **fields)
    there.decide()
    there.release(lease)
    assert isinstance(newer.answer, Granted)
    late.is_there = False
    here.decide()
    assert left_ms(here) == TTL_MS


@pytest.mark.fault("F-005")
@pytest.mark.promise("queue:fifo")
def test_a_late_request_of_a_waiter_does_not_take_its_place_away(here: WaitingServer, there: WaitingServer) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k", ttl_ms=TTL_MS, wait_ms=1_000)
    here.decide()
    (second,) = there.in_line(1)
    here.pass_ms(1_000)
    told = first.answer
    fields = {"ticket": told.ticket, "ticket_id": told.ticket_id}
    late = here.caller(owner="first", request_key="k", ttl_ms=TTL_MS, moves=True, **fields)
    newer = there.caller(owner="first", request_key="k", ttl_ms=TTL_MS, **fields)
    there.decide()
    here.decide()
    late.waiter.cancel()
    here.pass_ms(2 * MOVE_MS)
    there.news(0)
    assert newer.got == [], "it still waits"
    there.release(lease)
    assert isinstance(newer.answer, Granted)
    assert second.got == []


@pytest.mark.fault("F-005")
@pytest.mark.promise("queue:fifo")
def test_three_asks_with_one_ticket_in_any_order_leave_the_place_to_the_one_that_waits(
    here: WaitingServer, there: WaitingServer
) -> None:
    """Nobody knows which of them came last, so none of them may give the place up."""
    here.hold()
    first = here.caller(owner="first", wait_ms=1_000)
    here.decide()
    here.pass_ms(1_000)
    told = first.answer
    fields = {"ticket": told.ticket, "ticket_id": told.ticket_id}
    newest = there.caller(**fields)
    there.decide()
    late = [here.caller(**fields), here.caller(**fields)]
    here.decide()
    for each in late:
        each.waiter.cancel()
    here.decide()
    there.pass_ms(MOVE_MS)
    assert newest.waiter.queued is not None
    assert newest.waiter.queued.ticket == told.ticket
    assert len(there.waiters) == 1
    after = there.caller(owner="after")
    there.decide()
    assert after.waiter.queued is not None
    assert after.waiter.queued.position == 2, "nobody gave the place up"


@pytest.mark.fault("F-257")
@pytest.mark.promise("queue:fifo")
def test_a_copy_of_an_ask_that_hangs_up_elsewhere_does_not_end_the_place(
    here: WaitingServer, there: WaitingServer
) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k", ttl_ms=TTL_MS, wait_ms=1_000)
    here.decide()
    stray = there.caller(owner="first", request_key="k", ttl_ms=TTL_MS)
    there.decide()
    here.pass_ms(1_000)
    told = first.answer
    fields = {"ticket": told.ticket, "ticket_id": told.ticket_id}
    newer = here.caller(owner="first", request_key="k", ttl_ms=TTL_MS, **fields)
    here.decide()
    stray.waiter.hurry()
    there.decide()
    copy = there.caller(owner="first", request_key="k", ttl_ms=TTL_MS, moves=True, **fields)
    there.decide()
    copy.waiter.cancel()
    there.decide()
    here.news(0)
    assert newer.got == [], "it still waits"
    here.release(lease)
    assert isinstance(newer.answer, Granted)


@pytest.mark.fault("F-005")
@pytest.mark.promise("queue:fifo")
def test_who_polls_with_its_ticket_keeps_its_place_though_an_earlier_ask_hangs_up(
    here: WaitingServer, there: WaitingServer
) -> None:
    here.hold()
    first = here.caller(wait_ms=1_000)
    here.decide()
    here.pass_ms(1_000)
    told = first.answer
    fields = {"ticket": told.ticket, "ticket_id": told.ticket_id}
    late = here.caller(**fields)
    polled = there.elsewhere.one(claim(wait=False, **fields))
    assert isinstance(polled, Queued)
    here.decide()
    late.waiter.cancel()
    here.decide()
    again = there.elsewhere.one(claim(wait=False, **fields))
    assert isinstance(again, Queued)
    assert again.ticket == told.ticket


def test_frequent_polls_are_not_frequent_writes(here: WaitingServer) -> None:
    here.hold()
    first = here.caller(wait_ms=1_000)
    here.decide()
    here.pass_ms(1_000)
    told, seq = first.answer, []
    for _ in range(3):
        told = here.elsewhere.one(claim(wait=False, ticket=told.ticket, ticket_id=told.ticket_id))
        (found,) = [each for key, each in here.store.scan("ticket/")]
        seq.append(found.version)
    assert seq[0] == seq[1] == seq[2]


@pytest.mark.fault("F-007")
@pytest.mark.promise("excl")
def test_a_job_that_another_ask_of_the_session_was_told_of_is_not_given_back(here: WaitingServer) -> None:
    """Two asks of one session wait, for one job and for two. One hand-over serves both; the caller of one is gone."""
    session = in_session(here)
    lease = here.hold("a")
    single, both = claim("a", session=session), claim_all("a", "b", session=session)
    for command in (single, both):
        assert isinstance(here.elsewhere.one(command), Queued)
    here.elsewhere.one(Release(ns="d", name="a", principal="h", lease_id=lease))
    here.elsewhere.one(Withdraw(ns="d", names=("a",), principal="w", fresh_lease_id=single.fresh_lease_id))
    assert isinstance(here.elsewhere.one(claim("a", principal="other", wait=False)), Held)


@pytest.mark.fault("F-007")
@pytest.mark.promise("excl")
def test_a_lease_that_its_owner_renewed_is_not_given_back(here: WaitingServer) -> None:
    session = in_session(here)
    command = claim(session=session)
    result = here.elsewhere.one(command)
    here.elsewhere.one(Renew(ns="d", name="job", principal="w", session=session))
    here.waiters.on_undelivered(command, result)
    here.decide()
    assert isinstance(here.elsewhere.one(claim(principal="other", wait=False)), Held)


def test_a_hang_up_that_is_heard_late_does_not_end_the_wait_of_the_next_connection(
    here: WaitingServer,
) -> None:
    here.hold()
    first = here.caller(request_key="k")
    here.decide()
    second = moved(first, here)
    first.waiter.gone = False
    first.waiter.cancel()
    assert len(here.waiters) == 1
    assert second.got == []


def test_a_store_has_one_id_whoever_asks_first(here: WaitingServer) -> None:
    coordinator = Coordinator(here.store)
    one, two = (coordinator.one(Identify(fresh_id=fresh)) for fresh in ("id-1", "id-2"))
    assert isinstance(one, Identified)
    assert isinstance(two, Identified)
    assert (one.store_id, two.store_id) == ("id-1", "id-1")


@pytest.mark.fault("F-501")
@pytest.mark.promise("queue:fifo")
def test_of_two_requests_of_one_claim_the_last_to_hang_up_gives_the_place_up() -> None:
    """A proxy may send one twice. The newer one was answered to nobody while the older one was still decided."""
    posted: list[tuple[Command, Callable[[Result], None]]] = []
    waiters = Waiters(
        lambda command, done, gone=None: posted.append((command, done)), lambda seconds, call, *args: call(*args)
    )
    asked = claim(owner="first", request_key="k-1")
    queued = Queued(now_ms=0, ns="d", name="job", ticket=1, ticket_id="t", position=1)
    older = waiters.ask(asked, 0, lambda result: False)
    newer = waiters.ask(asked, 0, lambda result: False)
    for waiter, (_, done) in zip((newer, older), reversed(posted[:2]), strict=True):
        assert not [command for command, _ in posted if isinstance(command, Withdraw)]
        waiter.cancel()
        done(queued)
    assert [command.ticket for command, _ in posted if isinstance(command, Withdraw)] == [1]


@pytest.mark.fault("F-502")
def test_a_request_that_was_refused_at_once_does_not_count_as_one_that_still_asks() -> None:
    server = WaitingServer()
    server.hold()
    server.refusal = Unavailable("too much to do")
    with pytest.raises(Unavailable):
        server.caller(request_key="key")
    server.refusal = None
    caller = server.caller(request_key="key")
    server.decide()
    caller.waiter.cancel()
    server.decide()
    assert not [key for key, each in server.store._records.items() if each.record and key.startswith("ticket/")]
