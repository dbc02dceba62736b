"""Random lives of many sessions on few jobs: lines, trees, slots, claims of several, deadlocks, transfers.

`Predicted` sweeps at every instant at which something is due, so that the dumb model can say what every answer must be.
`Loose` sweeps when it likes or never, repeats old messages, loses whole seconds, and is held only to what must be so of
the records at every moment. DIBS_SOAK=1 looks for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from dibs.core import events as kinds
from dibs.core import lease_outcomes, outcomes, session_outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Beat,
    Break,
    EndSession,
    Free,
    Inspect,
    InspectSession,
    KeepSession,
    KeepTickets,
    Leave,
    OpenSession,
    Release,
    Renew,
    SetPool,
    Sweep,
    Transfer,
)
from dibs.core.holds import path_claims
from dibs.core.limits import TICKET_MS, WANT_MS
from dibs.core.records import EXCLUSIVE, SHARED
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import SOAK, tries
from tests.core import raw as raws
from tests.core.raw import raw_of, world_of
from tests.models.queue import Run, Wish, World, overlap

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.draft import HandedOver
    from dibs.core.outcomes import Outcome

SETTINGS = settings(
    derandomize=not SOAK,
    max_examples=tries(80, 2_000),
    stateful_step_count=80 if SOAK else 40,
    suppress_health_check=list(HealthCheck),
)
NS = "default"
POOLS = ("a", "gpu")
JOBS = ("a", "b", "gpu", "path:s", "path:s/x", "path:s/y", "repo:r")
# Of workers with these names and the credential `team`, by their parents.
PARENTS = {"s1": None, "s2": None, "s1-child": "s1", "s1-sibling": "s1"}
SESSIONS = tuple(PARENTS)
STEPS_MS = (1, 500, 2_501, WANT_MS, TICKET_MS, 40_000)
SWEEPS_MAX = 500

WORDS: dict[type, str] = {
    outcomes.Granted: "granted",
    outcomes.GrantedAll: "granted",
    outcomes.Held: "held",
    outcomes.Queued: "queued",
    outcomes.Refused: "refused",
    outcomes.Deadlock: "deadlock",
    outcomes.Differs: "differs",
    outcomes.Parked: "parked",
    outcomes.AlreadyDone: "done",
    outcomes.Delayed: "delayed",
    outcomes.KeySpent: "key-spent",
    outcomes.SessionUnknown: "no-such-session",
    outcomes.SessionOver: "session-over",
    outcomes.NotCurrent: "not-current",
    lease_outcomes.Renewed: "renewed",
    lease_outcomes.Released: "released",
    lease_outcomes.Failed: "failed",
    lease_outcomes.Transferred: "transferred",
    lease_outcomes.NotAJob: "not-a-job",
}

jobs = st.sampled_from(JOBS)
some_jobs = st.lists(jobs, min_size=1, max_size=3, unique=True)
ttls = st.sampled_from((0, 1_000, 20_000, 3_600_000))
callers = st.sampled_from((*SESSIONS, *SESSIONS, None))


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    """The form of a request. A request without a session needs its own TTL."""
    session = draw(callers)
    shared = draw(st.sampled_from((False, False, True)))
    return {
        "session": session,
        "ttl_ms": draw(ttls) or (0 if session else 60_000),
        "shared": shared,
        "slots": draw(st.sampled_from((0, 0, 1, 2, 2, 3))) if not shared else 0,
        "units": draw(st.sampled_from((1, 1, 1, 2))) if not shared else 1,
        "key": draw(st.sampled_from((None, None, None, "k1", "k2"))),
        "delay_ms": draw(st.sampled_from((0, 0, 0, 3_000))),
        "max_attempts": draw(st.sampled_from((0, 0, 0, 2))),
    }


class Life(RuleBasedStateMachine):
    """One store through one coordinator, and what every step can show."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms)
        self.handed: list[HandedOver] = []
        self.coordinator = Coordinator(self.store, on_handed=self.handed.extend)
        self.fresh = 0
        self.leases: list[tuple[str, str]] = []  # job and lease id
        self.places: list[tuple[tuple[str, ...], int, str]] = []  # jobs, number and ticket id
        self.sent: list[Command] = []
        for session, parent in PARENTS.items():
            self.coordinator.one(
                OpenSession(
                    ns="default",
                    fresh_id=session,
                    principal="team",
                    owner=session,
                    ttl_ms=60_000,
                    parent=parent,
                )
            )

    def fresh_id(self) -> str:
        self.fresh += 1
        return f"lease-{self.fresh}"

    def ask(self, command: Command) -> Outcome:
        before = raw_of(self.store, self.now_ms)
        self.handed.clear()
        outcome = self.coordinator.one(command)
        after = raw_of(self.store, self.now_ms)
        raws.check(after)
        raws.fifo(after.events)
        raws.pools_grow_within_their_slots(before, after)
        self.check_handed(before, after)
        if isinstance(command, Inspect | InspectSession):
            assert after == before, "looking wrote something"
        if isinstance(outcome, outcomes.Deadlock) and not isinstance(command, Transfer):
            self.check_cycle(command, outcome)
        for granted in granted_in(outcome):
            self.leases.append((granted.name, granted.lease.lease_id))
        if isinstance(outcome, outcomes.Queued):
            names = getattr(command, "names", None) or (outcome.name,)
            self.places.append((names, outcome.ticket, outcome.ticket_id))
        self.sent.append(command)
        return outcome

    def check_handed(self, before: raws.Raw, after: raws.Raw) -> None:
        """No job goes to a session that is over, to a waiter that stopped asking, or to one waiter twice."""
        numbers = [(each.name, each.number) for each in self.handed]
        assert len(numbers) == len(set(numbers)), "handed over twice"
        fresh = {(lock.name, holder.token) for lock, holder in after.live()}
        for each in self.handed:
            ticket = before.tickets.get((each.name, each.number))
            if ticket is not None:
                assert after.credited(ticket.expires_ms, ticket.renewed_ms, TICKET_MS) > self.now_ms
                assert ticket.session is None or after.session_live(ticket.session), "granted to the dead"
                assert len(granted_in(each.outcome)) == max(1, len(ticket.whole)), "a part was handed over"
            for granted in granted_in(each.outcome):
                self.leases.append((granted.name, granted.lease.lease_id))
                if not granted.again:
                    assert (granted.name, granted.lease.token) in fresh or granted.lease.ttl_ms

    def check_cycle(self, command: Command, outcome: outcomes.Deadlock) -> None:
        """By the independent graph too, the asker would wait for ever. The cycle alternates and begins with it."""
        assert isinstance(command, Acquire | AcquireAll)
        assert len(outcome.cycle) % 2 == 0
        assert outcome.cycle[0] == command.session
        assert set(outcome.cycle[1::2]) <= set(JOBS)
        names = command.names if isinstance(command, AcquireAll) else (command.name,)
        wish = Wish(names, command.owner, command.principal, "", shared=command.mode == SHARED)
        wish.slots, wish.units, wish.session = command.slots, command.units, command.session
        world = world_of(raw_of(self.store, self.now_ms))
        certain, _ = world.would_be_stuck(wish, wait=command.wait)
        free = [job for job in names if world.judge(wish, job, None) == "free"]
        assert certain or world.would_close(wish, *free), f"a false cycle: {outcome.cycle}"

    def sweep_all(self) -> None:
        for _ in range(SWEEPS_MAX):
            due = self.store.due(1).keys
            if not due:
                break
            self.ask(Sweep(key=due[0]))
        else:
            raise AssertionError(f"{self.store.due(1).keys} stays due for ever")
        raws.nobody_waits_for_nothing(raw_of(self.store, self.now_ms))

    def made(self, wish: dict[str, Any], *names: str) -> dict[str, Any]:
        """The fields of a claim. Of several jobs at once none names slots."""
        asked = {key: value for key, value in wish.items() if key not in ("shared", "key")}
        return {
            "ns": NS,
            "principal": "team",
            "owner": wish["session"] or "nobody",
            "fresh_lease_id": self.fresh_id(),
            "mode": SHARED if wish["shared"] else EXCLUSIVE,
            "request_key": wish["key"],
            **asked,
            "slots": wish["slots"] if len(names) == 1 else 0,
        }


REFUSED = outcomes.Held | outcomes.Delayed | outcomes.Deadlock


def granted_in(outcome: Outcome) -> tuple[outcomes.Granted, ...]:
    if isinstance(outcome, outcomes.GrantedAll):
        return outcome.grants
    return (outcome,) if isinstance(outcome, outcomes.Granted) else ()


def waitable(outcome: Outcome) -> bool:
    """Whether a claim of several jobs was refused that could have waited, if not for itself."""
    if not isinstance(outcome, outcomes.Refused):
        return False
    return all(isinstance(each, outcomes.Held | outcomes.Delayed) for each in outcome.outcomes)


class Predicted(Life):
    """The sweeper never sleeps; every answer is the one that the dumb model gives."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.now_ms)
        self.judged = 0  # how many events were compared with the model
        for session, parent in PARENTS.items():
            until_ms = self.now_ms + 60_000
            self.world.runs[session] = Run("team", session, 60_000, until_ms, parent=parent)

    def agree(self) -> None:
        """The same owners, and the same places in the same order."""
        raw = raw_of(self.store, self.now_ms)
        self.break_circles(raw)
        stored = {(lock.name, each.owner, each.lease_id, each.slot_numbers) for lock, each in raw.live()}
        assert stored == {(hold.job, hold.wish.worker, hold.wish.lease, hold.numbers) for hold in self.world.holds}
        line = [(place.wish.jobs, place.wish.lease) for place in world_of(raw).line]
        assert line == [(place.wish.jobs, place.wish.lease) for place in self.world.line]

    def break_circles(self, raw: raws.Raw) -> None:
        """A place that was given up because it closed a circle: without that, its session would wait for ever. The
        model may serve others before it notices, so they are compared after."""
        given_up = {
            (each.job, each.ticket)
            for each in raw.events[self.judged :]
            if each.kind == kinds.LEFT and each.reason == "deadlock"
        }
        self.judged = len(raw.events)
        for names, number, ticket_id in self.places if given_up else ():
            for place in [each for each in self.world.line if each.wish.lease == ticket_id]:
                if (names[0], number) in given_up:
                    assert place.wish.session in self.world.stuck(wants=False), f"{names} were no circle"
                    self.world.line.remove(place)
                    self.world.serve()
        assert not self.world.stuck(wants=False)

    def to(self, target_ms: int) -> None:
        """Time passes, and stops wherever something is due."""
        while True:
            due_ms = self.store.due(0).next_ms
            if due_ms is None or due_ms > target_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.sweep_all()
            self.world.tick(self.now_ms)
            self.agree()
        self.now_ms = target_ms
        self.world.tick(target_ms)
        self.agree()

    def wish(self, names: tuple[str, ...], asked: dict[str, Any]) -> Wish:
        return Wish(
            names,
            asked["owner"],
            "team",
            asked["fresh_lease_id"],
            asked["ttl_ms"],
            shared=asked["mode"] == SHARED,
            slots=asked["slots"],
            units=asked["units"],
            session=asked["session"],
            key=asked["request_key"],
            delay_ms=asked["delay_ms"],
            max_attempts=asked["max_attempts"],
        )

    def expected(self, command: Acquire | AcquireAll, wish: Wish) -> set[str]:
        return self.world.claim(wish, wait=command.wait, ticket=command.ticket_id)

    def claim(self, command: Acquire | AcquireAll, wish: Wish) -> None:
        expected = self.expected(command, wish)
        had_place = {place.wish.lease for place in self.world.line}
        outcome = self.ask(command)
        assert WORDS[type(outcome)] in expected
        if isinstance(outcome, outcomes.Refused):
            self.world.name_rest(wish, command.ticket_id)
        if isinstance(outcome, outcomes.Queued) and outcome.ticket_id not in had_place:
            self.world.queue(wish)
        elif isinstance(outcome, REFUSED) or waitable(outcome):
            self.world.refuse(wish)
        elif not isinstance(outcome, outcomes.Granted | outcomes.GrantedAll | outcomes.Queued | lease_outcomes.NotAJob):
            self.world.move_on(wish)
        self.agree()

    @rule(job=jobs, how=wishes(), wait=st.booleans())
    def claims(self, job: str, how: dict[str, Any], wait: bool) -> None:
        asked = self.made(how, job)
        self.claim(Acquire(name=job, wait=wait, **asked), self.wish((job,), asked))

    @precondition(lambda self: self.places)
    @rule(data=st.data(), how=wishes())
    def asks_again_with_its_ticket(self, data: st.DataObject, how: dict[str, Any]) -> None:
        names, number, ticket_id = data.draw(st.sampled_from(self.places[-6:]))
        asked = self.made(how, *names)
        more = {"wait": True, "ticket": number, "ticket_id": ticket_id, **asked}
        command = Acquire(name=names[0], **more) if len(names) == 1 else AcquireAll(names=names, **more)
        self.claim(command, self.wish(names, asked))

    @rule(names=some_jobs, how=wishes(), wait=st.booleans())
    def claims_all(self, names: list[str], how: dict[str, Any], wait: bool) -> None:
        asked = self.made(how)
        ordered = apart(names)
        if len(ordered) > 1:
            self.claim(AcquireAll(names=ordered, wait=wait, **asked), self.wish(ordered, asked))

    @rule(names=some_jobs, how=wishes())
    def claims_any(self, names: list[str], how: dict[str, Any]) -> None:
        asked = self.made(how)
        expected, job = self.world.claim_any(self.wish(tuple(names), asked))
        outcome = self.ask(AcquireAny(names=tuple(names), **asked))
        assert WORDS[type(outcome)] == expected
        assert not isinstance(outcome, outcomes.Granted) or outcome.name == job
        self.agree()

    @rule(names=some_jobs, how=wishes(), count=st.integers(1, 3))
    def claims_so_many(self, names: list[str], how: dict[str, Any], count: int) -> None:
        asked = self.made({**how, "key": None})
        expected, job = self.world.claim_any(self.wish(tuple(names), asked), count)
        outcome = self.ask(AcquireAny(names=tuple(names), count=count, **asked))
        assert WORDS[type(outcome)] == expected
        assert len(granted_in(outcome)) in (0, count)
        assert not isinstance(outcome, outcomes.GrantedAll) or outcome.grants[-1].name == job
        self.agree()

    @rule(job=st.sampled_from(POOLS), slots=st.sampled_from((None, 0, 1, 2, 3, 3)))
    def sets_a_pool(self, job: str, slots: int | None) -> None:
        facts = self.world.about(job)
        was = facts.slots if facts.pool else None
        self.world.set_pool(job, slots)
        outcome = self.ask(SetPool(ns=NS, name=job, principal="op", slots=slots))
        assert isinstance(outcome, lease_outcomes.PoolSet)
        assert (outcome.slots, outcome.was) == (slots, was)
        self.agree()

    def proof(self, data: st.DataObject) -> tuple[str, str | None, str | None]:
        if bool(self.leases) and data.draw(st.booleans()):
            job, lease = data.draw(st.sampled_from(self.leases[-6:]))
            return job, lease, None
        return data.draw(jobs), None, data.draw(st.sampled_from(SESSIONS))

    @rule(data=st.data(), done_ms=st.sampled_from((0, 0, 0, 5_000)))
    def releases(self, data: st.DataObject, done_ms: int) -> None:
        job, lease, session = self.proof(data)
        expected = self.world.release(job, "team", lease, session, done_ms)
        command = Release(ns=NS, name=job, principal="team", lease_id=lease, session=session, done_ms=done_ms)
        outcome = self.ask(command)
        again = isinstance(outcome, lease_outcomes.Released) and outcome.again
        again = again or (isinstance(outcome, lease_outcomes.Failed) and outcome.again)
        assert WORDS[type(outcome)] + ("-again" if again else "") == expected
        self.agree()

    @rule(data=st.data(), retry_ms=st.sampled_from((0, 0, 3_000, 20_000)))
    def fails(self, data: st.DataObject, retry_ms: int) -> None:
        job, lease, session = self.proof(data)
        expected = self.world.fail(job, "team", lease, session, retry_ms)
        command = Release(ns=NS, name=job, principal="team", lease_id=lease, session=session, failed=True)
        outcome = self.ask(command.replace(retry_ms=retry_ms))
        again = isinstance(outcome, lease_outcomes.Released | lease_outcomes.Failed) and outcome.again
        assert WORDS[type(outcome)] + ("-again" if again else "") == expected
        self.agree()

    @rule(data=st.data(), ttl_ms=st.sampled_from((None, 1_000, 30_000)))
    def renews(self, data: st.DataObject, ttl_ms: int | None) -> None:
        job, lease, session = self.proof(data)
        expected = self.world.renew(job, "team", lease, session, ttl_ms)
        outcome = self.ask(Renew(ns=NS, name=job, principal="team", lease_id=lease, session=session, ttl_ms=ttl_ms))
        assert WORDS[type(outcome)] == expected
        self.agree()

    @rule(data=st.data(), heir=callers)
    def transfers(self, data: st.DataObject, heir: str | None) -> None:
        job, lease, session = self.proof(data)
        fresh = self.fresh_id()
        expected = self.world.transfer(job, "team", lease, session, heir, fresh)
        command = Transfer(ns=NS, name=job, principal="team", fresh_lease_id=fresh, lease_id=lease, session=session)
        outcome = self.ask(command.replace(to_session=heir, to_owner=None if heir else "heir"))
        if isinstance(outcome, lease_outcomes.Transferred):
            self.leases.append((job, fresh))
        assert WORDS[type(outcome)] == expected
        self.agree()

    @rule(job=jobs)
    def breaks(self, job: str) -> None:
        expected = self.world.break_(job)
        outcome = self.ask(Break(ns=NS, name=job, principal="op", reason="why"))
        assert isinstance(outcome, lease_outcomes.Broken)
        assert len(outcome.holders) == expected
        self.agree()

    @rule(job=jobs)
    def frees(self, job: str) -> None:
        facts = self.world.about(job)
        outcome = self.ask(Free(ns=NS, name=job, principal="op"))
        assert isinstance(outcome, lease_outcomes.Freed)
        assert outcome.was_parked == (facts.parked or self.now_ms < facts.rests_until_ms)
        if outcome.was_parked:
            facts.parked, facts.failures, facts.rests_until_ms = False, 0, 0
            self.world.serve()
        self.agree()

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        names, number, ticket_id = data.draw(st.sampled_from(self.places[-6:]))
        expected = self.world.leave(ticket_id, "team")
        command = Leave(ns=NS, name=names[0], principal="team", ticket=number, ticket_id=ticket_id)
        outcome = self.ask(command)
        assert isinstance(outcome, outcomes.Left)
        assert outcome.was_in == expected
        self.agree()

    @rule(session=st.sampled_from(SESSIONS))
    def keeps_a_session(self, session: str) -> None:
        outcome = self.ask(KeepSession(session=session, principal="team"))
        run = self.world.runs[session]
        assert isinstance(outcome, session_outcomes.SessionState) != bool(run.how)
        if not run.how:
            run.until_ms = self.now_ms + run.ttl_ms
        self.agree()

    @rule(session=st.sampled_from(SESSIONS), dead=st.booleans())
    def ends_a_session(self, session: str, dead: bool) -> None:
        expected = self.world.end_run(session, None if dead else "team", dead=dead)
        outcome = self.ask(EndSession(session=session, principal=None if dead else "team", dead=dead))
        said = "over" if isinstance(outcome, session_outcomes.SessionState) else WORDS[type(outcome)]
        assert said == expected
        self.agree()

    @rule(session=st.sampled_from(SESSIONS))
    def looks_at_a_session(self, session: str) -> None:
        outcome = self.ask(InspectSession(session=session, principal="team"))
        assert isinstance(outcome, session_outcomes.SessionState)
        holds = {(each.name, each.holder.lease_id) for each in outcome.holds}
        if outcome.live:
            assert holds == {(h.job, h.wish.lease) for h in self.world.holds if h.wish.session == session}

    @rule(step_ms=st.sampled_from(STEPS_MS))
    def time_passes(self, step_ms: int) -> None:
        self.to(self.now_ms + step_ms)


def apart(names: list[str]) -> tuple[str, ...]:
    """Sorted, without what overlaps an earlier one: nobody can claim both."""
    found: list[str] = []
    for name in sorted(names):
        if not any(overlap(name, other) for other in found):
            found.append(name)
    return tuple(found)


@pytest.mark.promise("excl", "tree", "queue:fifo", "queue:no-dead-grant", "queue:one-wake", "deadlock")
@pytest.mark.promise("session", "all-or-nothing", "audit", "idem:acquire", "token:rises", "proof")
@pytest.mark.timeout(3_600 if SOAK else 600)
def test_every_answer_about_lines_and_sessions_is_the_one_the_model_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", 1)
    run_state_machine_as_test(Predicted, settings=SETTINGS)


class Loose(Life):
    """Sweeps when it likes, repeats what was said before, many commands in one write, outages."""

    def command(self, data: st.DataObject) -> Command:
        kind = data.draw(st.sampled_from(("claim", "claim", "claim", "all", "any", "let go", "session", "pool", "old")))
        if kind == "old" and self.sent:
            return data.draw(st.sampled_from(self.sent[-20:]))
        if kind == "let go":
            return self.a_release(data)
        if kind == "pool":
            slots = data.draw(st.sampled_from((None, 0, 1, 2, 3)))
            return SetPool(ns=NS, name=data.draw(st.sampled_from(POOLS)), principal="op", slots=slots)
        if kind == "session":
            session = data.draw(st.sampled_from(SESSIONS))
            if data.draw(st.booleans()):
                return KeepSession(session=session, principal="team")
            return EndSession(session=session, principal="team")
        wait = data.draw(st.booleans())
        names = apart(data.draw(some_jobs))
        names = names if kind != "claim" else names[:1]
        asked = self.made(data.draw(wishes()), *names)
        if kind == "any":
            return AcquireAny(names=names, count=data.draw(st.sampled_from((0, 0, 2))), **asked)
        if kind == "all" and len(names) > 1:
            return AcquireAll(names=names, wait=wait, **asked)
        if bool(self.places) and data.draw(st.booleans()):
            names, number, ticket_id = data.draw(st.sampled_from(self.places[-6:]))
            slots = asked["slots"] if len(names) == 1 else 0
            more = {"wait": True, "ticket": number, "ticket_id": ticket_id, **asked, "slots": slots}
            return AcquireAll(names=names, **more) if len(names) > 1 else Acquire(name=names[0], **more)
        return Acquire(name=names[0], wait=wait, **asked)

    def a_release(self, data: st.DataObject) -> Command:
        proof: dict[str, Any] = {"ns": NS, "name": data.draw(jobs), "principal": "team"}
        if bool(self.leases) and data.draw(st.booleans()):
            proof["name"], proof["lease_id"] = data.draw(st.sampled_from(self.leases[-6:]))
        else:
            proof["session"] = data.draw(st.sampled_from(SESSIONS))
        ways = ("release", "fail", "renew", "transfer", "break", "free", "leave", "keep")
        kind = data.draw(st.sampled_from(ways))
        if kind == "leave" and self.places:
            names, number, ticket_id = data.draw(st.sampled_from(self.places[-6:]))
            return Leave(ns=NS, name=names[0], principal="team", ticket=number, ticket_id=ticket_id)
        if kind == "keep":
            places = tuple((NS, names[0], number) for names, number, _ in self.places[-4:])
            return KeepTickets(tickets=places)
        if kind == "transfer":
            heir = data.draw(callers)
            to_owner = None if heir else "heir"
            return Transfer(fresh_lease_id=self.fresh_id(), to_session=heir, to_owner=to_owner, **proof)
        if kind == "break":
            return Break(ns=NS, name=proof["name"], principal="op", reason="why")
        if kind == "free":
            return Free(ns=NS, name=proof["name"], principal="op")
        if kind == "fail":
            return Release(failed=True, retry_ms=data.draw(st.sampled_from((0, 4_000))), **proof)
        return Renew(**proof) if kind == "renew" else Release(**proof)

    @rule(data=st.data())
    def asks(self, data: st.DataObject) -> None:
        self.ask(self.command(data))

    @rule(data=st.data())
    def asks_many_at_once(self, data: st.DataObject) -> None:
        commands = [self.command(data) for _ in range(data.draw(st.integers(2, 5)))]
        for outcome in self.coordinator.run(commands):
            assert not isinstance(outcome, BaseException), outcome
        raws.check(raw_of(self.store, self.now_ms))

    @rule(job=jobs, session=st.sampled_from(SESSIONS))
    def looks(self, job: str, session: str) -> None:
        self.ask(Inspect(ns=NS, name=job))
        self.ask(InspectSession(session=session, principal=None))

    @rule(session=st.sampled_from(SESSIONS))
    def opens_a_session_again(self, session: str) -> None:
        self.ask(Sweep(key=f"session/{session}"))
        self.ask(OpenSession(ns="default", fresh_id=session, principal="team", owner=session, ttl_ms=60_000))

    @rule()
    def sweeps(self) -> None:
        self.sweep_all()

    @rule(up_ms=st.sampled_from((0, 400, 10_000_000)))
    def beats(self, up_ms: int) -> None:
        self.ask(Beat(server="s", alive_since_ms=self.now_ms - up_ms))

    @rule(step_ms=st.sampled_from((*STEPS_MS, 3_700_000)))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    def teardown(self) -> None:
        """Long after: without a sweeper every job can be had, and a sweeper comes to rest with nothing left."""
        self.now_ms += 3 * 3_600_000
        for job in POOLS:
            self.ask(SetPool(ns=NS, name=job, principal="op", slots=None))
        for job in JOBS:
            claim = Acquire(
                ns=NS, name=job, principal="late", owner="late", ttl_ms=1_000, fresh_lease_id=self.fresh_id()
            )
            outcome = self.ask(claim)
            if isinstance(outcome, outcomes.Parked):
                continue
            assert isinstance(outcome, outcomes.Granted), f"{job} cannot be had: {outcome}"
            self.ask(Release(ns=NS, name=job, principal="late", lease_id=outcome.lease.lease_id))
        self.sweep_all()
        raw = raw_of(self.store, self.now_ms)
        assert not raw.live()
        assert not raw.tickets
        assert not raw.claims()
        assert all(session.ended_ms for session in raw.sessions.values())


@pytest.mark.promise("excl", "tree", "queue:fifo", "queue:no-dead-grant", "queue:one-wake", "deadlock")
@pytest.mark.promise("session", "all-or-nothing", "audit", "token:rises")
@pytest.mark.timeout(3_600 if SOAK else 600)
def test_what_must_always_be_so_is_so_however_late_anybody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", 1)
    run_state_machine_as_test(Loose, settings=SETTINGS)
