"""Several servers, their clients and their store, from one seed: every promise holds, whatever goes wrong.

`dibs simulate` runs the same. The long runs are in `scripts/dev/soak`: a hundred of a million operations, which take 14
to 20 hours of a core; `DIBS_SIMULATED` says how many operations in all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from dibs.client.transport import Ask
from dibs.core import decide
from dibs.core.claims import acquire, effects, leases, numbers
from dibs.core.commands import Acquire, Sweep
from dibs.core.draft import Decision, View
from dibs.core.holds import capacity, closures, related
from dibs.core.limits import PULSE_LATE_MS
from dibs.core.outcomes import Withdrawn
from dibs.core.records import Holder, LockRecord, Ticket, lock_key, ticket_key
from dibs.core.service.delivery import DeliveryPlan
from dibs.core.waiting import groups
from dibs.engine import coordinator, waiters
from dibs.stores.port import Conflict, Versioned
from dibs.testing import simulation
from dibs.testing.checker import Checker
from dibs.testing.features import FEATURES, NEAR_MS, PAIRS, Meetings, features_of
from dibs.testing.judge import OK, UNKNOWN, RecordedCall, Violation
from dibs.testing.queue_checker import NS
from dibs.testing.simulated_clients import Request, SimulatedClient, episode, episodes, shrunk
from dibs.testing.simulation import EPISODE, EpisodeSettings, StoreLink, World
from dibs.testing.timeline import START_MS
from dibs.testing.workload import UNANSWERED_S
from tests.build import COMPILED, tries
from tests.core import raw as raws
from tests.rules import rewrite

pytestmark = pytest.mark.full

SEEDS = tries(12)
OPERATIONS = int(os.environ.get("DIBS_SIMULATED", "100000000"))
LONG_SEEDS = 100

promises = pytest.mark.promise(
    "excl",
    "token:rises",
    "lease:never-early",
    "lease:outage-credit",
    "queue:fifo",
    "session",
    "audit",
    "idem:acquire",
    "idem:fresh-id",
    "proof",
    "tree",
    "quota",
    "closed",
    "max-hold",
    "units",
    "slot:number",
    "pool:change",
    "pool:pause",
    "excl:related",
    "queue:newest",
    "webhook:ordered",
    "webhook:at-least-once",
    "servers:failover",
    "effect:once",
    "effect:doubt-told",
    "number",
)


@promises
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_keep_every_promise_through_faults(seed: int, servers: int) -> None:
    made = episode(EpisodeSettings(f"{'compiled' if COMPILED else 'test'}.{seed}", servers=servers))
    assert made.found is None, made.settings.command()
    assert made.operations >= EPISODE
    assert made.faults > 50, "too little went wrong to show anything"


@pytest.mark.quick
@pytest.mark.promise("deadlock", "audit", "tree")
def test_the_records_agree_with_each_other_after_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EpisodeSettings("records.1", operations=400), SimulatedClient)
    before = world.on_commit

    def on_commit(puts: object, events: object) -> None:
        raws.check(raws.raw_of(world.store, world.time.now_ms))
        before(puts, events)  # type: ignore[arg-type]

    monkeypatch.setattr(world, "on_commit", on_commit)
    assert world.run() == []


@pytest.mark.quick
def test_a_seed_repeats_a_run_to_the_last_step() -> None:
    first, again = (episode(EpisodeSettings("same.1", operations=600)) for _ in range(2))
    assert first == again


@pytest.mark.quick
@pytest.mark.fault("F-490")
def test_a_world_takes_the_same_course_whoever_else_looks_at_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a look that raises changes what a server does next")

    settings = EpisodeSettings("looks.1", operations=100)
    alone = episode(settings)
    monkeypatch.setattr(decide, "CHECKS", [*decide.CHECKS, refuse])
    assert episode(settings) == alone


@pytest.mark.quick
@pytest.mark.fault("F-441")
def test_a_fault_of_the_checker_is_no_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> None:
        raise KeyError("job-0")

    monkeypatch.setattr(Checker, "_lock", look)
    with pytest.raises(KeyError):
        episode(EpisodeSettings("checker.1", operations=50))


@pytest.mark.quick
@pytest.mark.promise("answer")
def test_a_wrong_answer_is_found_if_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "wrong", lambda view, command, decision: "It is odd.")
    found = episode(EpisodeSettings("answers.1", operations=50)).found
    assert found is not None
    assert found.promise == "answer"
    world = World(EpisodeSettings("answers.1"), SimulatedClient)
    discarded, stands = (Withdrawn(now_ms=0, left=False, released=(), kept=()) for _ in range(2))
    world._look_at(View(now_ms=0), Sweep(key=""), Decision(outcome=discarded, writes={}))
    world.check_answers([stands])
    assert world.found == [], "after a conflict it was decided anew"


@pytest.mark.quick
@pytest.mark.fault("F-488")
def test_a_commit_that_has_a_conflict_gives_nothing_to_who_has_gone() -> None:
    """A server decides by what it remembers. There somebody may be in line who is gone from it."""
    world = World(EpisodeSettings("gone.1"), SimulatedClient)
    who: dict[str, Any] = {"principal": "team", "owner": "c1", "ttl_ms": 1_000}
    server = world.servers[0]
    server._gone = {"L1": Acquire(ns=NS, name="job-0", fresh_lease_id="L1", **who)}
    times: dict[str, Any] = {"since_ms": START_MS, "renewed_ms": START_MS, "expires_ms": START_MS + 1_000}
    held = LockRecord(ns=NS, name="job-0", token=1, holders=(Holder(lease_id="L1", token=1, **who, **times),))
    key, link = lock_key(NS, "job-0"), StoreLink(server)
    with pytest.raises(Conflict):
        link._commit({key: 7}, {key: held}, ())
    assert world.found == []
    link._commit({key: 0}, {key: held}, ())
    assert "queue:no-dead-grant" in [each.promise for each in world.found]


@pytest.mark.quick
@pytest.mark.promise("queue:no-dead-grant")
def test_a_place_in_line_for_who_has_gone_is_found_as_a_lease_is() -> None:
    """Its claim was decided anew. Mostly others have the job meanwhile, so that is a place rather than a lease."""
    world = World(EpisodeSettings("gone.1"), SimulatedClient)
    who: dict[str, Any] = {"ns": NS, "name": "job-0", "principal": "team", "owner": "c1", "ttl_ms": 1_000}
    server = world.servers[0]
    server._gone = {"L1": Acquire(fresh_lease_id="L1", **who)}
    times: dict[str, Any] = {"since_ms": START_MS, "renewed_ms": START_MS, "expires_ms": START_MS + 15_000}
    key, place = ticket_key(NS, "job-0", 1), Ticket(lease_id="L1", number=1, **who, **times)
    server.check_gone({key: place.replace(lease_id="L2")}, ())
    assert world.found == [], "somebody else's"
    server.check_gone({key: place}, ())
    assert [each.promise for each in world.found] == ["queue:no-dead-grant"]
    assert world.found[0].says.endswith("and was put in line for job-0.")
    world.found.clear()
    world.store._put(key, Versioned(record=place, version=1))
    server.check_gone({key: place.replace(stopped=True)}, ())
    assert world.found == [], "it was there before"


@pytest.mark.quick
def test_each_world_has_a_random_half_of_the_features_but_for_what_is_left_out() -> None:
    worlds = [features_of(f"half.{number}") for number in range(20)]
    assert {len(each) for each in worlds} == {len(FEATURES) // 2}
    assert set().union(*worlds) == set(FEATURES)
    assert features_of("half.0", worlds[0]) == frozenset()


@pytest.mark.quick
def test_features_meet_in_one_request_and_soon_after_each_other() -> None:
    meetings = Meetings()
    meetings.bore(["slots"], ["two-1", "session"], 0)
    meetings.bore(["pools"], ["pool", "other session"], 0)
    assert not meetings.counts
    meetings.bore([], ["pool", "session"], NEAR_MS)
    assert meetings.counts == {("pools", "slots"): 1}, "who has slots asks for the pool"
    meetings.bore(["breaks"], ["path:a"], NEAR_MS)
    meetings.bore(["trees"], ["path:a/b"], 2 * NEAR_MS + 1)
    assert ("breaks", "trees") not in meetings.counts, "that was long ago"


@pytest.mark.skipif(COMPILED, reason="the rules are not what is asked about")
def test_every_two_features_meet() -> None:
    met: Counter[tuple[str, str]] = Counter()
    for number in range(tries(80, 800)):  # small worlds: each has another half
        made = episode(EpisodeSettings(f"pairs.{number}", operations=600))
        assert made.found is None, made.settings.command()
        met.update(made.met)
    assert [pair for pair in PAIRS if not met[pair]] == []


@pytest.mark.fault("F-714")
def test_the_judge_is_told_what_an_operator_asked_before_a_failover() -> None:
    pool = RecordedCall(1, "op", "pool", "pool", 10, 11, OK, slots=3)
    closed = RecordedCall(2, "op", "close", "j", 12, 13, OK, ttl=60)
    opened = RecordedCall(3, "op", "open", "j", 19, 21, OK)
    renewed = RecordedCall(4, "c1", "renew", "j", 19, 21, OK, lease="x")
    again = RecordedCall(5, "c1", "claim", "j", 22, 23, OK, key="k1", lease="x")
    asked = RecordedCall(6, "c1", "claim", "j", 14, 15, OK, key="k1", lease="x")
    fresh = RecordedCall(7, "c2", "claim", "j", 24, 25, OK, key="k2", lease="y")
    calls = [pool, closed, opened, renewed, again, asked, fresh]

    unknown = [replace(pool, outcome=UNKNOWN), replace(opened, outcome=UNKNOWN)]
    assert list(simulation.after(20, calls)) == [*unknown, fresh]
    assert list(simulation.after(0, calls)) == calls


def test_a_finding_of_the_judge_shows_the_calls_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(run: Sequence[RecordedCall]) -> list[Violation]:
        return [Violation("excl", "Two had it.", (next(call for call in run if call.call == "claim"),))]

    monkeypatch.setattr(simulation, "judge", wrong)

    found = episode(EpisodeSettings("shown", operations=50)).found

    assert found is not None
    assert any(line.startswith("> ") and " claim " in line for line in found.calls)


@pytest.mark.fault("F-719")
@pytest.mark.parametrize(("stopped_ms", "said"), [(0, "server-1, which recorded it, was well"), (1, "")])
def test_a_server_that_was_stopped_may_record_an_outage_of_the_others(stopped_ms: int, said: str) -> None:
    world = World(EpisodeSettings("stopped", servers=1), SimulatedClient)
    (server,) = world.servers
    server.is_started = True
    world.writes, server.stopped_until_ms, now_ms = server, START_MS + stopped_ms, START_MS + PULSE_LATE_MS

    assert world._denies_outage(now_ms + 1, now_ms + 2_000) == said


@pytest.mark.fault("F-715", "F-723")
def test_the_judge_is_told_that_an_attempt_of_an_operator_may_be_carried_out_later() -> None:
    world = World(EpisodeSettings("attempts"), SimulatedClient)
    client = world.clients[0]
    assert isinstance(client, SimulatedClient)

    Request(client, Ask("open", "j")).stray(0)
    Request(client, Ask("inspect", "j")).stray(0)
    Request(client, Ask("renew", "k", {"session_id": world.fresh_id(), "mode": "shared"})).stray(0)

    noted = [(call.call, call.job, call.outcome) for call in world.calls]
    assert noted == [("open", "j", UNKNOWN), ("share", "k", UNKNOWN)]
    assert world.calls[0].ended - world.calls[0].began == UNANSWERED_S


@pytest.mark.skipif(COMPILED, reason="a compiled rule cannot be replaced")
def test_a_run_that_breaks_a_promise_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(monkeypatch, waiters.Waiters, "_withdraw", ("not waiter.moves and ", ""))  # found within a few operations
    failed = next(each for each in episodes(EpisodeSettings("smaller", 40_000)) if each.found is not None)
    least = shrunk(failed, tries=2)
    assert least.found is not None
    assert failed.found is not None
    assert least.found.promise == failed.found.promise
    assert len(least.settings.without) >= 3
    assert episode(least.settings).found == least.found, "the command repeats it"
    asked = count()
    best = shrunk(failed, is_tried=lambda best: next(asked) < 2)
    assert next(asked) >= 3
    assert best.found is not None, "what is best so far, once the time is over"
    assert best.found.promise == failed.found.promise


def are_strangers_related(draft: object, one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


_fits = capacity.Owners.fits


def fits_into_every_pool(owners: capacity.Owners, lock: LockRecord, *asked: Any) -> bool:
    return bool(lock.pooled and lock.slots) or _fits(owners, lock, *asked)


# A fault of each feature that no fault on record concerns: what breaks it, and the promise that is found broken.
PLANTED: list[tuple[Any, str, Any, str]] = [
    (closures, "closure_of", lambda *_: None, "closed"),
    (leases, "capped_ms", lambda at_ms, ends_ms: at_ms, "max-hold"),
    (groups, "_older", lambda *_: [], "queue:newest"),
    (capacity.Owners, "fits", fits_into_every_pool, "excl"),
    (related, "are_related", are_strangers_related, "excl"),
    (acquire, "over_held", lambda *_: None, "quota"),
    (effects, "_doubted", lambda effect, *by: effect, "effect:doubt-told"),
    (numbers, "was_withdrawn", lambda *_: False, "number"),
    (numbers, "_next", lambda lock, at_least: max(1, lock.last_number, at_least), "number"),
    (DeliveryPlan, "failed", lambda plan, *told: plan.done(*told[:-1]), "webhook:ordered"),
]


@pytest.mark.slow
@pytest.mark.skipif(COMPILED, reason="a compiled rule cannot be replaced")
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: str(planted[1]))
def test_a_fault_of_each_feature_is_found(planted: tuple[Any, str, Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, promise = planted
    monkeypatch.setattr(owner, name, broken)
    found = next(made.found for made in episodes(EpisodeSettings("planted", 40_000)) if made.found is not None)
    assert found.promise == promise


def decides_anew(patch: pytest.MonkeyPatch) -> None:
    """A server that does not know whether a claim was written decides it once more, also if its caller has gone."""
    looked = "index not in self.failed and index not in self._instead and is_gone(command)"
    rewrite(patch, coordinator._CommitGroup, "find_gone", (looked, looked.replace("failed", "_doubts")))


def loses_slow_movers(patch: pytest.MonkeyPatch) -> None:
    """A waiter whose move to another server takes more than 2 s loses its place."""
    last: dict[object, waiters.Waiter] = {}  # of each ask, its last request at any server
    ask, withdraw = waiters.Waiters.ask, waiters.Waiters._withdraw

    def name_of(waiter: waiters.Waiter) -> object:
        return waiter.command.request_key or waiter.command.ticket_id

    def noted(here: waiters.Waiters, *terms: Any, **more: Any) -> waiters.Waiter:
        waiter = ask(here, *terms, **more)
        last[name_of(waiter)] = waiter
        return waiter

    def leave(here: waiters.Waiters, waiter: waiters.Waiter) -> None:
        if last.get(name_of(waiter), waiter) is waiter:
            waiter.moves = False
            withdraw(here, waiter)

    def withdraw_later(here: waiters.Waiters, waiter: waiters.Waiter) -> None:
        here._later(2.0 if waiter.moves else 0.0, leave, here, waiter)

    patch.setattr(waiters.Waiters, "ask", noted)
    patch.setattr(waiters.Waiters, "_withdraw", withdraw_later)


@pytest.mark.skipif(COMPILED, reason="a compiled module cannot be changed")
@pytest.mark.parametrize(
    ("put_back", "seed", "promise"),
    [
        (decides_anew, "q0", "queue:no-dead-grant"),
        (loses_slow_movers, "anew", "queue:fifo"),
    ],
)
def test_a_fault_between_two_servers_is_found_in_a_few_worlds(
    put_back: Callable[[pytest.MonkeyPatch], None], seed: str, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(monkeypatch)
    found = next(made.found for made in episodes(EpisodeSettings(seed, 60_000)) if made.found is not None)
    assert found.promise == promise


@promises
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(LONG_SEEDS))
def test_servers_keep_every_promise_for_long(seed: int) -> None:
    for made in episodes(EpisodeSettings(f"soak-{seed}", operations=OPERATIONS // LONG_SEEDS)):
        assert made.found is None, made.settings.command()
