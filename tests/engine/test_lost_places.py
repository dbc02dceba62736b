"""A waiter whose place is gone asks again, and does not keep its server busy with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core import events as kinds
from dibs.core.commands import Acquire, Close, OpenSession, Release
from dibs.core.events import Event
from dibs.core.limits import TICKET_KEEP_MS
from dibs.core.outcomes import Granted, GrantedAll, Queued, TicketsKept
from dibs.engine.waiters import Waiters
from tests.engine.waiting_server import Caller, Timer, WaitingServer, claim, claim_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.engine.waiters import Result

HOUR_MS = 3_600_000


class BoundedServer(WaitingServer):
    """Fails instead of going on without end."""

    def post(self, *args: Any, **named: Any) -> None:
        assert len(self.posted) < 50, "it asks without end"
        super().post(*args, **named)


@pytest.mark.fault("F-272")
@pytest.mark.parametrize("closes", [False, True])
def test_one_waiter_that_has_a_slot_of_a_job_that_is_done_costs_its_server_nothing(closes: bool) -> None:
    server = BoundedServer()
    for session in ("s0", "s1"):
        server.elsewhere.one(OpenSession(ns="d", fresh_id=session, principal="w", owner=session, ttl_ms=HOUR_MS))
        server.elsewhere.one(claim("p", session=session, slots=2))
    lease = server.hold("b", slots=2, units=2)
    if closes:
        server.elsewhere.one(Close(ns="d", name="else", principal="op", reason="", length_ms=HOUR_MS))
    server.elsewhere.one(Release(ns="d", name="p", principal="w", session="s0", done_ms=HOUR_MS))
    before = server.store.newest_seq()
    caller = Caller(server, claim_all("b", "p", session="s1", slots=2), 600_000)
    server.decide()
    assert [event.kind for event in server.store.events(before, 100)] == [kinds.QUEUED, kinds.QUEUED]
    server.pass_ms(2 * TICKET_KEEP_MS)
    assert not caller.got
    server.release(lease, "b")
    assert isinstance(caller.answer, GrantedAll)


class Fickle:
    """Gives a place for every ask, and takes it back at once."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.waiters = Waiters(self.post, self.later)
        self.asks = 0
        self.taken: list[int] = []

    def later(self, delay_s: float, call: Callable[..., object], *args: object) -> Timer:
        timer = Timer(round(delay_s * 1000), call, args)
        self.timers.append(timer)
        return timer

    def post(self, command: Command, callback: Callable[[Result], None], *_: object) -> None:
        if isinstance(command, Acquire):
            self.asks += 1
            assert self.asks < 50, "it asks without end"
            self.taken.append(self.asks)
            place = Queued(now_ms=0, ns="d", name="job", ticket=self.asks, ticket_id=f"t{self.asks}", position=1)
            callback(place)
        else:
            callback(TicketsKept(now_ms=0, gone=tuple([("d", "job", number) for number in range(1, self.asks + 1)])))

    def take_back(self) -> None:
        """Until nobody takes a place any more."""
        while self.taken:
            number = self.taken.pop()
            gone = Event(at_ms=0, kind=kinds.LEFT, ns="d", job="job", ticket=number, reason="done")
            self.waiters.on_events([gone])

    def keep_round(self) -> None:
        due = [timer for timer in self.timers if timer.at_ms == TICKET_KEEP_MS]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.call(*timer.args)


@pytest.mark.fault("F-272")
def test_a_place_that_is_lost_again_and_again_is_asked_for_a_few_times_in_a_round() -> None:
    fickle = Fickle()
    got: list[Result] = []

    def take(result: Result) -> bool:
        got.append(result)
        return True

    waiter = fickle.waiters.ask(claim(), 600_000, take)
    fickle.take_back()
    assert fickle.asks == 2  # at once, and then in the next round
    for rounds in (1, 2, 3):
        fickle.keep_round()
        fickle.take_back()
        assert fickle.asks == 2 + 2 * rounds
    assert len(fickle.waiters) == 1
    fickle.waiters.on_timeout(waiter)
    assert isinstance(got[0], Queued)


@pytest.mark.fault("F-272")
def test_a_waiter_that_lost_a_place_is_told_at_once_that_it_got_the_job() -> None:
    server = WaitingServer()
    lease = server.hold()
    caller = server.caller()
    server.decide()
    for number in (1, 2):  # as its server would hear of it, twice
        ticket = caller.waiter.queued.ticket if caller.waiter.queued else 0
        gone = Event(at_ms=0, kind=kinds.LEFT, ns="d", job="job", ticket=ticket, reason=f"lost {number}")
        server.waiters.on_events([gone])
        server.decide()
    server.release(lease)
    assert isinstance(caller.answer, Granted)


@pytest.mark.fault("F-460")
@pytest.mark.parametrize("is_same_server", [True, False], ids=["same server", "other server"])
def test_whose_number_in_line_is_another_s_in_an_older_copy_is_not_told_what_the_other_got(
    is_same_server: bool,
) -> None:
    """A standby that took over lacks the last commits, and gives the number of a place that was lost once more."""
    server = WaitingServer()
    lease = server.hold()
    older = dict(server.store._records)
    lost = server.caller(owner="lost", request_key="k")
    server.decide()
    server.store._records = older
    other = server if is_same_server else WaitingServer(server)
    first = other.caller(owner="first")
    other.decide()
    server.release(lease)
    other.news(0)
    assert isinstance(first.answer, Granted)
    assert not lost.got  # it is in line again
    server.release(first.answer.lease.lease_id, principal="w")
    assert isinstance(lost.answer, Granted)
    assert lost.answer.lease.owner == "lost"


@pytest.mark.fault("F-461")
def test_a_made_up_ticket_does_not_end_the_wait_of_who_has_its_number() -> None:
    server = WaitingServer()
    server.hold()
    [caller] = server.in_line(1)
    server.waiters.on_poll(claim(principal="stranger", ticket=1, ticket_id=new_id()))
    server.decide()
    assert not caller.got
    assert len(server.waiters) == 1
