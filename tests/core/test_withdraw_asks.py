"""Two asks of one session: what identifies an ask, and what a refusal of one leaves to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import events as kinds
from dibs.core import outcomes
from dibs.core.claims import sessions
from dibs.core.commands import EndSession, KeepTickets, Renew, SetAcl
from dibs.core.lease_outcomes import Renewed
from dibs.core.records import SHARED
from dibs.core.waiting.tickets import drop
from tests.build import COMPILED
from tests.core.test_swarm import moves_the_ceiling
from tests.core.test_tickets_needed import NS, World

if TYPE_CHECKING:
    from collections.abc import Callable

# Another ask of s1 beside the one that waits, and what it is told. "k" is spent: s1 had the job by it once.
REFUSED: dict[str, tuple[dict[str, Any], type[outcomes.Outcome]]] = {
    "a late repeat with a spent key": ({"request_key": "k"}, outcomes.KeySpent),
    "other slots": ({"slots": 3}, outcomes.Differs),
    "more units than there are": ({"units": 3}, outcomes.Differs),
    "another mode": ({"mode": SHARED}, outcomes.Differs),
    "a lease that it never had": ({"lease_id": "L0"}, outcomes.NotCurrent),
}


@pytest.mark.fault("F-350")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("how", REFUSED)
def test_a_refused_ask_leaves_the_place_of_another_ask_of_its_session(how: str) -> None:
    asked, told = REFUSED[how]
    world = World()
    world.claim("s1", "a", request_key="k")
    world.release("s1", "a")
    world.claim("s0", "a")
    world.claim("s1", "a", wait=True)
    world.claim("s2", "a", wait=True)
    assert isinstance(world.claim("s1", "a", wait=True, **asked), told)
    assert world.lock("a").line == (1, 2)
    world.release("s0", "a")
    assert world.owners("a") == ["s1"], "it came first"


@pytest.mark.fault("F-350")
def test_a_refused_claim_all_leaves_the_places_of_another_one() -> None:
    world = World()
    world.claim_all("s1", "a", "b", request_key="k")
    world.release("s1", "a")
    world.release("s1", "b")
    world.claim("s0", "a")
    world.claim_all("s1", "a", "b")
    world.claim("s2", "a", wait=True)
    for asked in ({"request_key": "k"}, {"units": 2}, {"slots": 3}):
        assert isinstance(world.claim_all("s1", "a", "b", **asked), outcomes.Refused)
        assert (world.lock("a").line, world.lock("b").line) == ((1, 2), (1,)), asked


@pytest.mark.fault("F-350")
def test_an_ask_with_a_key_is_another_than_the_one_that_waits_without() -> None:
    """Whichever is served first, the session has the job, and the other place goes."""
    world = World()
    world.claim("s0", "a")
    first = world.claim("s1", "a", wait=True)
    assert world.claim("s1", "a", wait=True).ticket == first.ticket, "without a key it is known by its session"
    second = world.claim("s1", "a", wait=True, request_key="k")
    assert world.claim("s1", "a", wait=True, request_key="k").ticket == second.ticket != first.ticket
    world.release("s0", "a")
    assert (world.owners("a"), world.lock("a").line) == (["s1"], ())


def test_another_access_list_leaves_the_place_of_another_ask() -> None:
    world = World()
    world.run(SetAcl(ns=NS, name="a", principal="op", acl=("p",), admin=True, ahead=True))
    world.claim("s0", "a", badges=("p",))
    world.claim("s1", "a", wait=True, badges=("p",))
    told = world.claim("s1", "a", wait=True, badges=("p",), acl=("others",))
    assert isinstance(told, outcomes.Queued | outcomes.AclDiffers)
    assert world.lock("a").line == (1,)


@pytest.mark.promise("queue:no-dead-grant")
def test_who_comes_with_its_ticket_and_is_refused_for_good_has_no_place_any_more() -> None:
    """Nobody would be there when it is served."""
    world = World()
    world.claim("s0", "a")
    place = world.claim("s1", "a", wait=True)
    told = world.claim("s1", "a", ticket=place.ticket, ticket_id=place.ticket_id, lease_id="L0")
    assert isinstance(told, outcomes.NotCurrent)
    assert world.lock("a").line == ()


# A session that shares what it has


def share(world: World, session: str, name: str) -> Any:
    return world.run(Renew(ns=NS, name=name, principal="p", session=session, mode=SHARED))


@pytest.mark.fault("F-351")
@pytest.mark.promise("deadlock")
def test_a_place_that_wants_a_job_alone_goes_when_its_session_shares_the_job() -> None:
    world = World()
    world.claim("s1", "a")
    world.claim("s2", "b")
    place = world.claim_all("s1", "a", "b")
    world.claim("s3", "b", wait=True)
    assert isinstance(share(world, "s1", "a"), Renewed)
    assert [(each.kind, each.job, each.reason) for each in world.said if each.kind == kinds.LEFT] == [
        (kinds.LEFT, "a", "deadlock"),
        (kinds.LEFT, "b", "deadlock"),
    ]
    kept = world.run(KeepTickets(tickets=((NS, "a", place.ticket),)))
    assert kept.gone == ((NS, "a", place.ticket),), "its server asks again"
    assert isinstance(world.claim_all("s1", "a", "b"), outcomes.Refused), "and is told that it has it otherwise"
    world.release("s2", "b")
    assert world.owners("b") == ["s3"]


def test_a_place_for_another_job_stays_when_its_session_shares_one() -> None:
    world = World()
    world.claim("s1", "a")
    world.claim("s2", "b")
    world.claim("s1", "b", wait=True)
    world.claim("s3", "a", wait=True, mode=SHARED)
    share(world, "s1", "a")
    assert (world.owners("a"), world.lock("b").line) == (["s1", "s3"], (1,))
    assert isinstance(world.claim("s0", "a", mode=SHARED), outcomes.Granted)


# What a repeat leaves


@pytest.mark.promise("max-hold", "idem:acquire")
@pytest.mark.parametrize("repeat", [{"request_key": "k"}, {}, {"ttl_ms": 20_000}, {"max_hold_ms": 90_000}])
def test_a_repeat_never_moves_the_ceiling(repeat: dict[str, Any]) -> None:
    world = World()
    first = world.claim("s1", "a", request_key="k", ttl_ms=10_000, max_hold_ms=30_000)
    world.clock.advance(5_000)
    again = world.claim("s1", "a", **{"max_hold_ms": 30_000, "ttl_ms": 10_000} | repeat)
    assert isinstance(again, outcomes.Granted)
    assert (again.lease.token, again.lease.ends_ms) == (first.lease.token, first.lease.ends_ms)
    assert world.lock("a").holders[0].ends_ms == first.lease.ends_ms


@pytest.mark.promise("max-hold", "all-or-nothing")
def test_a_repeated_claim_of_several_moves_no_ceiling() -> None:
    world = World()
    first = world.claim_all("s1", "a", "b", request_key="k", max_hold_ms=30_000)
    world.clock.advance(5_000)
    again = world.claim_all("s1", "a", "b", request_key="k", max_hold_ms=30_000)
    assert [each.lease.ends_ms for each in again.grants] == [each.lease.ends_ms for each in first.grants]


# What s1 has or waits for before its end, and for what s2 waits behind it. "b" is held by s0.
ENDS: dict[str, tuple[Callable[[World], Any], str]] = {
    "its job": (lambda world: world.claim("s1", "a"), "a"),
    "its path": (lambda world: world.claim("s1", "path:x"), "path:x/y"),
    "a free job that its claim-all keeps": (lambda world: world.claim_all("s1", "a", "b"), "a"),
}


@pytest.mark.promise("session", "queue:fifo")
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_session_serves_who_is_behind_it(end: str) -> None:
    """At once: nobody sweeps here."""
    begin, job = ENDS[end]
    world = World()
    world.claim("s0", "b")
    begin(world)
    assert isinstance(world.claim("s2", job, wait=True), outcomes.Queued)
    world.run(EndSession(session="s1", principal="p"))
    assert world.owners(job) == ["s2"]


# Two faults that were planted once, and that no test saw: these tests do.


@pytest.mark.skipif(COMPILED, reason="a compiled rule cannot be replaced")
def test_a_repeat_that_moves_the_ceiling_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    moves_the_ceiling(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_repeat_never_moves_the_ceiling({"request_key": "k"})


@pytest.mark.skipif(COMPILED, reason="a compiled rule cannot be replaced")
@pytest.mark.parametrize("end", ENDS)
def test_an_end_of_a_session_that_serves_nobody_would_be_seen(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "advance", lambda *_: None)
    monkeypatch.setattr(sessions, "give_up", drop)
    with pytest.raises(AssertionError):
        test_the_end_of_a_session_serves_who_is_behind_it(end)
