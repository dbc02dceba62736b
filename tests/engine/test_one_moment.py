"""An answer rests on records of one moment, also when it took several reads, wrote nothing, or is a fault of a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.base.errors import StoreUnavailable
from dibs.core import lease_outcomes, outcomes, session_outcomes
from dibs.core.claims.inspect import inspect
from dibs.core.commands import (
    Acquire,
    EndSession,
    Inspect,
    InspectSession,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    Transfer,
)
from dibs.core.decide import decide
from dibs.core.draft import Missing, View
from dibs.core.limits import CONFLICT_RETRIES_MAX, REREAD_KEYS_MAX
from dibs.core.records import LockRecord, lock_key, session_key
from dibs.engine.coordinator import Contended, Coordinator
from dibs.engine.queries import claimed, open_sessions
from dibs.stores.memory import MemoryStore
from tests.build import tries
from tests.rules import put_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.draft import Draft
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored, Ticket
    from dibs.stores.port import Snapshot
    from tests.rules import Rule

NS = "default"


class TornStore(MemoryStore):
    """Others write between two reads: before each read but the first of a call, the next of `between` is run."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.between: list[Callable[[], object]] = []
        self.reads = 0
        self._inside = False

    def read(self, keys: Iterable[str]) -> Snapshot:
        self.reads += 1
        if self.reads > 1:
            self._let()
        return super().read(keys)

    def _let(self) -> None:
        if self.between and not self._inside:
            self._inside = True
            try:
                self.between.pop(0)()
            finally:
                self._inside = False


class World:
    def __init__(self) -> None:
        self.store = TornStore()
        self.coordinator = Coordinator(self.store)
        self.others = Coordinator(self.store)

    def torn(self, command: Command, *between: Callable[[], object]) -> Any:
        self.store.between = list(between)
        self.store.reads = 0
        outcome = self.coordinator.one(command)
        assert not self.store.between, "nothing was torn: the answer took fewer reads than the test thinks"
        return outcome

    def opened(self, *sessions: str) -> None:
        for session in sessions:
            self.others.one(OpenSession(ns="default", fresh_id=session, principal="p", owner=session, ttl_ms=60_000))


@pytest.fixture
def world() -> World:
    return World()


def ask(who: str, name: str, **more: Any) -> Acquire:
    made = Acquire(
        ns=NS, name=name, principal="p", owner=who, ttl_ms=60_000, fresh_lease_id=f"{who}-{name}", session=who
    )
    return made.replace(**more)


def let_go(session: str, name: str) -> Release:
    return Release(ns=NS, name=name, principal="p", session=session)


@pytest.mark.promise("deadlock")
@pytest.mark.parametrize("wait", [True, False], ids=["waiting", "polling"])
def test_a_circle_that_never_was_is_not_reported(world: World, wait: bool) -> None:
    """B lets y go before it asks for x. Read in two halves, it holds y and asks for x."""
    world.opened("a", "b")
    world.others.run([ask("a", "x"), ask("b", "y"), ask("b", "z")])

    def b_moves_on() -> None:
        assert isinstance(world.others.one(let_go("b", "y")), lease_outcomes.Released)
        assert isinstance(world.others.one(ask("b", "x", wait=wait)), outcomes.Held | outcomes.Queued)

    outcome = world.torn(ask("a", "y", wait=wait), b_moves_on)
    assert isinstance(outcome, outcomes.Granted)


def test_a_fault_of_a_rule_on_records_of_two_moments_is_not_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two sessions are always opened together, and a rule that relies on it never sees one without the other."""

    def needs_both(rule: Rule) -> Rule:
        def paired(draft: Draft, command: InspectSession) -> Outcome | Ticket:
            if command.session == "both":
                one, two = draft.get(session_key("one")), draft.get(session_key("two"))
                if (one is None) != (two is None):
                    raise ValueError("'two' is not in list")
                return inspect(draft, Inspect(ns=NS, name="x"))
            return rule(draft, command)

        return paired

    put_rule(monkeypatch, InspectSession, needs_both)
    both = [
        OpenSession(ns="default", fresh_id=each, principal="p", owner=each, ttl_ms=60_000) for each in ("one", "two")
    ]
    command = InspectSession(session="both", principal=None)
    assert isinstance(world.torn(command, lambda: None, lambda: world.others.run(both)), outcomes.Status)


def test_a_fault_that_is_of_one_moment_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(draft: Draft, command: Inspect) -> Outcome:
        draft.get("session/one")
        draft.get("session/two")
        raise ZeroDivisionError("a fault")

    put_rule(monkeypatch, Inspect, lambda rule: broken)
    with pytest.raises(ZeroDivisionError):
        world.coordinator.one(Inspect(ns=NS, name="x"))


@pytest.mark.parametrize("extra", [0, REREAD_KEYS_MAX + 1], ids=["few keys", "many keys"])
def test_looks_in_one_batch_are_of_one_moment(world: World, extra: int) -> None:
    """The job goes from A to B in one write, so that it is never with both and never with neither."""
    world.opened("a", "b")
    world.others.one(ask("a", "job"))
    move = Transfer(ns=NS, name="job", principal="p", session="a", to_session="b", fresh_lease_id="moved")
    world.store.between, world.store.reads = [lambda: world.others.one(move)], 0
    looks: list[Command] = [InspectSession(session=each, principal=None) for each in ("a", "b")]
    looks += [Inspect(ns=NS, name=f"other-{number}") for number in range(extra)]
    results = world.coordinator.run(looks)
    held = [
        [hold.name for hold in state.holds] for state in results if isinstance(state, session_outcomes.SessionState)
    ]
    assert sorted(held) == [[], ["job"]]


def test_one_command_costs_no_more_reads_than_it_has_questions(world: World) -> None:
    """Each load reads again what was read before, so that nothing is left to compare."""
    world.opened("a", "b")
    world.others.one(ask("a", "job"))
    world.store.reads = 0
    assert isinstance(world.coordinator.one(ask("b", "job")), outcomes.Held)
    assert world.store.reads == 2  # the job with whoever asks; the owner's session


def test_looking_while_others_never_stop_writing_ends(world: World) -> None:
    world.opened("a", "b")
    looks: list[Command] = [InspectSession(session=each, principal=None) for each in ("a", "b")]
    names = [f"job-{number}" for number in range(4)]
    world.others.run([ask("a", name) for name in names])
    keep = KeepSession(session="a", principal="p")
    renew = Renew(ns=NS, name=names[0], principal="p", session="a")
    slept: list[float] = []
    coordinator = Coordinator(world.store, pause=slept.append, fraction=lambda: 0.5)
    for _ in range(3):
        world.store.between = [lambda: world.others.run([keep, renew])] * 10_000
        results = coordinator.run(looks)
        assert all(isinstance(each, session_outcomes.SessionState | Contended) for each in results)
    assert len(slept) <= 3 * CONFLICT_RETRIES_MAX


# Lists


def test_a_job_that_changes_hands_while_it_is_listed_is_listed(world: World) -> None:
    world.opened("a", "b")
    world.others.one(ask("a", "job"))

    def move() -> None:
        world.others.one(ask("b", "job", wait=True))
        world.others.one(EndSession(session="a", principal="p"))

    world.store.between, world.store.reads = [move], 0
    page = claimed(world.store, NS)
    assert not world.store.between
    assert [(lock.name, lock.holders[0].owner) for lock in page.locks] == [("job", "b")]


def test_a_session_that_swaps_jobs_while_it_is_looked_at_has_one_of_them(world: World) -> None:
    world.opened("a")
    world.others.one(ask("a", "x"))
    swap: list[Command] = [let_go("a", "x"), ask("a", "y")]
    world.store.between, world.store.reads = [lambda: world.others.run(swap)], 0
    state = Coordinator(world.store).one(InspectSession(session="a", principal=None))
    assert isinstance(state, session_outcomes.SessionState)
    assert [hold.name for hold in state.holds] in (["x"], ["y"])
    assert [len(each.holds) for each in open_sessions(world.store, None)] == [1]


# Any schedule


class Racing(MemoryStore):
    """Before each call of the watched coordinator, the next of `others` are decided and committed. `states` has every
    state of the store so far."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.watched = False
        self.others: list[tuple[int, list[Command]]] = []  # how many calls to let pass first, and one batch
        self.states: list[dict[str, Stored | None]] = [{}]
        self._rival = Coordinator(self)

    def read(self, keys: Iterable[str]) -> Snapshot:
        self._race()
        return super().read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self._race()
        seq = super().commit(expect, puts, events)
        self.states.append({key: found.record for key, found in self._records.items()})
        return seq

    def _race(self) -> None:
        while self.watched and self.others:
            calls, commands = self.others[0]
            if calls:
                self.others[0] = (calls - 1, commands)
                return
            self.others.pop(0)
            self.watched = False
            self._rival.run(commands)
            self.watched = True


def outcome_on(state: Mapping[str, Stored | None], command: Command) -> Outcome:
    """What the rules say when these are all records there are."""
    records: dict[str, Stored | None] = dict(state)
    while True:
        try:
            return decide(View(1_000, records), command).outcome
        except Missing as missing:
            records.update(dict.fromkeys(missing.keys))


SESSIONS = ("a", "b")
JOBS = ("x", "y", "path:p", "path:p/q")
sessions, jobs = st.sampled_from(SESSIONS), st.sampled_from(JOBS)
moves = st.one_of(
    st.builds(ask, sessions, jobs, wait=st.booleans()),
    st.builds(let_go, sessions, jobs),
    st.builds(lambda s: KeepSession(session=s, principal="p"), sessions),
    st.builds(
        lambda one, two, name: Transfer(
            ns=NS, name=name, principal="p", session=one, to_session=two, fresh_lease_id=f"{two}-{name}"
        ),
        sessions,
        sessions,
        jobs,
    ),
)
swaps = st.builds(lambda who, one, two: [let_go(who, one), ask(who, two)], sessions, jobs, jobs)
batches = st.one_of(swaps, st.lists(moves, min_size=1, max_size=3))
looks = st.one_of(
    st.builds(lambda name: Inspect(ns=NS, name=name), jobs),
    st.builds(lambda s: InspectSession(session=s, principal=None), sessions),
)


@pytest.mark.promise("deadlock", "excl")
@settings(max_examples=tries(80, 150))
@given(
    before=st.lists(moves, min_size=3, max_size=9),
    command=st.one_of(moves, looks),
    others=st.lists(st.tuples(st.sampled_from((0, 1)), batches), max_size=4),
)
def test_every_answer_was_right_at_some_moment_of_its_question(
    before: list[Command], command: Command, others: list[tuple[int, list[Command]]]
) -> None:
    """Whatever others do between any two reads: the rules, asked of all records as they were at one moment between
    question and answer, say the same."""
    store = Racing()
    coordinator = Coordinator(store, pause=lambda _: None)
    for session in SESSIONS:
        coordinator.one(OpenSession(ns="default", fresh_id=session, principal="p", owner=session, ttl_ms=60_000))
    for each in before:
        coordinator.one(each)
    began = len(store.states) - 1
    store.others, store.watched = list(others), True
    outcome = coordinator.one(command)
    store.watched = False
    assert outcome in [outcome_on(state, command) for state in store.states[began:]]


# Conflicts


@pytest.mark.promise("excl")
def test_only_who_conflicted_is_decided_again() -> None:
    """Of two commands in one write one was overtaken. The other is committed without it, and first."""
    store = Racing()
    coordinator = Coordinator(store)
    store.others, store.watched = [(1, [ask("b", "y", session=None)])], True
    results = coordinator.run([ask("a", "y", session=None), ask("a", "x", session=None)])
    assert [type(each) for each in results] == [outcomes.Held, outcomes.Granted]
    owners = [(event.job, event.owner) for event in store.events(0, 10)]
    assert owners == [("y", "b"), ("x", "a")]


def test_who_conflicts_without_end_fails_alone_and_pauses_by_chance_and_for_a_bounded_time() -> None:
    slept: list[float] = []

    class Hot(MemoryStore):
        def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
            key = lock_key(NS, "hot")
            if key in expect:
                here = self.read([key]).records[key].version
                super().commit({key: here}, {key: LockRecord(ns=NS, name="hot", token=here)}, ())
            return super().commit(expect, puts, events)

    store = Hot(lambda: 1_000)
    coordinator = Coordinator(store, pause=slept.append, fraction=lambda: 1.0)
    asks = [ask("a", "hot", session=None), *[ask("a", f"cold-{n}", session=None) for n in range(20)]]
    hot, *cold = coordinator.run([Inspect(ns=NS, name="cold-1"), *asks])[1:]
    assert isinstance(hot, Contended)
    assert isinstance(hot, StoreUnavailable)
    assert not hot.unknown
    assert all(isinstance(each, outcomes.Granted) for each in cold)
    assert len(slept) < CONFLICT_RETRIES_MAX
    assert 0 < min(slept) <= max(slept) <= 0.01


def test_a_store_that_fails_after_some_were_answered_fails_the_others() -> None:
    store = Racing()
    coordinator = Coordinator(store)
    store.others, store.watched = [(1, [ask("b", "y", session=None)])], True
    commits: list[int] = []
    commit = store.commit

    def fails_later(expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        commits.append(len(puts))
        if len(commits) > 3:  # ours, the rival's within it, ours without the late one
            raise StoreUnavailable("The disk is gone.")
        return commit(expect, puts, events)

    store.commit = fails_later  # type: ignore[method-assign]
    first, second = coordinator.run([ask("a", "y", session=None, wait=True), ask("a", "x", session=None)])
    assert isinstance(first, StoreUnavailable)
    assert isinstance(second, outcomes.Granted)
