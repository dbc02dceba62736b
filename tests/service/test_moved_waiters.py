"""A caller that goes on to another server with its ticket has left a server, not the line."""

from __future__ import annotations

import pytest

from dibs.core.commands import Identify, Inspect, Leave
from dibs.core.limits import MOVE_MS, TICKET_MS
from dibs.core.outcomes import Granted, Queued, Status
from dibs.core.upkeep_outcomes import Identified
from dibs.service.coordinator import Coordinator
from tests.service.waiting_server import Caller, WaitingServer

TTL_MS = 60_000


@pytest.fixture
def here() -> WaitingServer:
    return WaitingServer(seat="here")


@pytest.fixture
def there(here: WaitingServer) -> WaitingServer:
    return WaitingServer(here, seat="there")


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
@pytest.mark.parametrize("moves", [True, False])
def test_a_server_that_hears_late_of_the_hang_up_does_not_give_the_place_up(
    here: WaitingServer, there: WaitingServer, moves: bool
) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS, moves=moves)
    here.decide()
    (second,) = there.in_line(1, request_key="k-2")
    again = moved(first, there)
    first.waiter.cancel()
    here.decide()
    here.pass_ms(MOVE_MS)
    there.release(lease)
    assert isinstance(again.answer, Granted)
    assert second.got == []


@pytest.mark.promise("queue:fifo")
def test_who_has_other_servers_to_ask_is_given_the_time_to_do_so(
    here: WaitingServer, there: WaitingServer
) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS, moves=True)
    here.decide()
    (second,) = there.in_line(1, request_key="k-2")
    first.waiter.cancel()
    here.pass_ms(MOVE_MS - 1_000)
    again = moved(first, there)
    here.pass_ms(MOVE_MS)
    there.release(lease)
    assert isinstance(again.answer, Granted)
    assert second.got == []


def test_who_never_comes_is_out_of_the_line_after_that_time(here: WaitingServer) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", moves=True)
    here.decide()
    (second,) = here.in_line(1)
    first.waiter.cancel()
    here.decide()
    assert not [command for command in here.posted if isinstance(command, Leave)]
    here.pass_ms(MOVE_MS)
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
def test_a_lease_that_was_fetched_at_another_server_is_not_cut_short(
    here: WaitingServer, there: WaitingServer
) -> None:
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


def test_without_another_server_what_nobody_took_is_still_cut_short(
    here: WaitingServer, there: WaitingServer
) -> None:
    lease = here.hold()
    first = here.caller(owner="first", request_key="k-1", ttl_ms=TTL_MS)
    here.decide()
    there.release(lease)
    first.waiter.cancel()
    here.decide()
    assert left_ms(here) <= TICKET_MS


def test_a_caller_that_comes_back_to_the_first_server_waits_there(
    here: WaitingServer, there: WaitingServer
) -> None:
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


def test_a_store_has_one_id_whoever_asks_first(here: WaitingServer) -> None:
    coordinator = Coordinator(here.store)
    one, two = (coordinator.one(Identify(fresh_id=fresh)) for fresh in ("id-1", "id-2"))
    assert isinstance(one, Identified)
    assert isinstance(two, Identified)
    assert (one.store_id, two.store_id) == ("id-1", "id-1")
