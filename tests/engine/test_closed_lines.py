"""Lines of closed jobs: nobody is served meanwhile, and they go on by themselves, at every server of the store."""

from __future__ import annotations

import pytest

from dibs.core.commands import Close, KeepTickets, Open, Sweep
from dibs.core.limits import KEEP_BATCH_MAX, TICKET_KEEP_MS
from dibs.core.outcomes import Granted
from dibs.core.records import META_KEY, Ticket, ticket_prefix
from tests.engine.waiting_server import Caller, WaitingServer, claim_all

HOUR_MS = 3_600_000


def close(server: WaitingServer, name: str = "deploy/", length_ms: int = HOUR_MS) -> None:
    server.elsewhere.one(Close(ns="d", name=name, principal="op", reason="migration", length_ms=length_ms))


def reopen(server: WaitingServer, name: str = "deploy/") -> None:
    """At this server."""
    server.post(Open(ns="d", name=name, principal="op"), lambda result: None)
    server.decide()


def owners(callers: list[Caller]) -> list[str]:
    return [caller.answer.lease.owner for caller in callers if caller.got]


@pytest.mark.promise("closed", "queue:fifo")
def test_opening_serves_the_lines_below_in_order_at_once() -> None:
    server = WaitingServer()
    lease = server.hold("deploy/a")
    first = server.in_line(2, name="deploy/a")
    close(server)
    other = server.in_line(2, name="deploy/b")
    server.release(lease, "deploy/a")
    server.pass_ms(60_000)
    assert not owners([*first, *other])
    reopen(server)
    assert owners(first) == owners(other) == ["w-0"]


@pytest.mark.promise("closed")
def test_a_server_that_missed_the_news_finds_out_when_it_keeps_its_places() -> None:
    here = WaitingServer()
    there = WaitingServer(here)
    close(here)
    callers = here.in_line(2, name="deploy/a")
    reopen(there)
    assert not owners(callers)
    here.pass_ms(TICKET_KEEP_MS)
    assert owners(callers) == ["w-0"]


@pytest.mark.promise("closed")
def test_a_server_hears_that_another_opened_it() -> None:
    here = WaitingServer()
    there = WaitingServer(here)
    close(here)
    callers = here.in_line(1, name="deploy/a")
    reopen(there)
    here.news(0)
    assert owners(callers) == ["w-0"]


@pytest.mark.promise("closed")
def test_the_end_of_a_closure_serves_the_lines() -> None:
    server = WaitingServer()
    close(server, length_ms=20_000)
    callers = server.in_line(1, name="deploy/a")
    server.pass_ms(19_000)
    assert not owners(callers)
    server.clock.advance(1_000)
    assert server.store.due(10).keys == [META_KEY]
    server.post(Sweep(key=META_KEY), lambda result: None)
    server.decide()
    assert owners(callers) == ["w-0"]
    assert not server.store.due(10).keys


@pytest.mark.promise("closed", "all-or-nothing")
def test_a_claim_of_several_goes_on_when_the_last_of_them_is_open() -> None:
    server = WaitingServer()
    close(server, "b/")
    close(server, "z/")
    caller = Caller(server, claim_all("a", "b/1", "z/1"), 600_000)
    server.decide()
    reopen(server, "b/")
    server.pass_ms(TICKET_KEEP_MS)
    assert not caller.got
    reopen(server, "z/")
    assert len(caller.answer.grants) == 3


@pytest.mark.promise("closed")
def test_a_closure_that_is_made_longer_wakes_nobody() -> None:
    server = WaitingServer()
    close(server, length_ms=10_000)
    callers = server.in_line(1, name="deploy/a")
    server.pass_ms(5_000)
    close(server, length_ms=60_000)
    asked = len(server.posted)
    server.pass_ms(20_000)
    assert not owners(callers)
    assert all(isinstance(command, KeepTickets) for command in server.posted[asked:])


@pytest.mark.promise("closed")
def test_a_thousand_lines_go_on_in_bounded_steps() -> None:
    server = WaitingServer()
    close(server)
    callers = [server.caller(name=f"deploy/{number}") for number in range(1_000)]
    server.decide()
    before = {key: each.version for key, each in server.store.scan("")}
    server.elsewhere.one(Open(ns="d", name="deploy/", principal="op"))
    changed = [key for key, each in server.store.scan("") if before.get(key) != each.version]
    assert set(changed) <= {META_KEY}
    server.news(1_001)  # the events before it are those of the waiters
    assert all(isinstance(caller.answer, Granted) for caller in callers)
    kept = [len(each.tickets) for each in server.posted if isinstance(each, KeepTickets)]
    assert kept == [KEEP_BATCH_MAX] * 3 + [1_000 - 3 * KEEP_BATCH_MAX]


def test_a_ticket_is_marked_once_and_unmarked_when_it_goes_on() -> None:
    server = WaitingServer()
    lease = server.hold("deploy/a")
    close(server)
    server.in_line(3, name="deploy/a")

    def marked() -> list[int]:
        found = [each.record for _, each in server.store.scan(ticket_prefix("d"))]
        return [each.number for each in found if isinstance(each, Ticket) and each.stopped]

    assert marked() == [1]
    reopen(server)
    assert marked() == []
    server.release(lease, "deploy/a")
    assert marked() == []
