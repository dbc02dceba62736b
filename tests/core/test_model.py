"""Random lives of a store, each answer compared with the dumb model's, and what must never happen looked for.

DIBS_SOAK=1 looks for longer.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dibs.core import events as kinds
from dibs.core import lease_outcomes, outcomes
from dibs.core import lease_outcomes as upkeep_outcomes
from dibs.core.commands import Acquire, Beat, Break, Close, Inspect, Open, Release, Renew, SetAcl, Sweep
from dibs.core.decide import decide, keys_of
from dibs.core.draft import Missing, View
from dibs.core.limits import OUTAGE_CREDIT_MS_MAX, OUTAGES_KEPT, PULSE_LATE_MS
from dibs.core.records import LOCK_PREFIX, META_KEY, LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import SOAK, tries
from tests.models.ownership import Model, Told
from tests.models.replay import ReplayedHold, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored

SETTINGS = settings(
    max_examples=tries(120, 3_000),
    stateful_step_count=120 if SOAK else 50,
    suppress_health_check=list(HealthCheck),
)
NS = "default"
JOBS = ("issue-1", "path:src/a b", "github://acme/app/issues/42")
# What may be closed, and which jobs that closes.
CLOSED = {"issue-1": JOBS[:1], "path:src": JOBS[1:2], "github://acme/": JOBS[2:]}
# Several workers of one credential, and one with its own.
WORKERS = (("a1", "team"), ("a2", "team"), ("b1", "solo"))
TTLS_MS = (1_000, 5_000, 60_000, OUTAGE_CREDIT_MS_MAX + 1_000)
ENDS = (kinds.RELEASED, kinds.FAILED, kinds.EXPIRED, kinds.BROKEN)

jobs = st.sampled_from(JOBS)
workers = st.sampled_from(WORKERS)
ttls = st.sampled_from(TTLS_MS)
keys = st.sampled_from((None, None, "k1", "k2"))
notes = st.sampled_from((None, None, "half", "nearly"))


def told_by(outcome: Outcome) -> Told:
    """An outcome in the model's words."""
    match outcome:
        case outcomes.Granted(lease=lease, previous=before, again=again):
            previous = None
            if before is not None:
                previous = (
                    before.owner,
                    before.how,
                    before.at_ms,
                    before.checkpoint,
                    before.reason,
                    before.attempt,
                )
            return Told("granted", lease.owner, lease.token, lease.attempt, lease.expires_ms, again, None, previous)
        case outcomes.Held(blockers=(outcomes.Blocker(holder=holder),)):
            return Told("held", holder.owner, holder.token, until_ms=holder.expires_ms)
        case outcomes.AlreadyDone(done=done):
            return Told("done", done.owner, done.token, until_ms=done.until_ms)
        case outcomes.Delayed(until_ms=until_ms):
            return Told("delayed", until_ms=until_ms)
        case outcomes.Closed(closure=closure) | lease_outcomes.ClosureSet(closure=closure):
            return Told("closed", until_ms=closure.until_ms)
        case lease_outcomes.Opened(was_closed=was_closed):
            return Told("opened" if was_closed else "was-open")
        case lease_outcomes.Renewed(lease=lease):
            return Told("renewed", lease.owner, lease.token, until_ms=lease.expires_ms)
        case lease_outcomes.Released(ending=ending, again=again):
            return Told("released", ending.owner, ending.token, again=again)
        case lease_outcomes.Failed(ending=ending, again=again):
            return Told("failed", ending.owner, ending.token, again=again)
        case lease_outcomes.NotAJob():
            return Told("not-a-job")
        case outcomes.NotCurrent(holders=holders, ending=end):
            owner = holders[0].owner if holders else None
            return Told("not-current", owner, ended=end.how if end else None)
        case outcomes.KeySpent(ending=ending):
            assert ending is not None  # nothing is withdrawn here
            return Told("key-spent", ending.owner, ending.token, ended=ending.how)
        case lease_outcomes.Broken(holders=holders):
            return Told("broken", holders[0].owner, holders[0].token) if holders else Told("broken")
        case outcomes.Status(lock=LockRecord(holders=())):
            return Told("free")
        case outcomes.Status(lock=LockRecord(holders=(holder,))):
            return Told("held", holder.owner, holder.token, until_ms=holder.expires_ms)
        case upkeep_outcomes.Swept(expired=count, forgotten=forgotten):
            return Told("forgotten" if forgotten else "swept", count=count)
        case upkeep_outcomes.BeatRecorded(outage_ms=lasted_ms):
            return Told("noted", count=lasted_ms)
    raise AssertionError(f"no words for {outcome!r}")


def loaded(store: MemoryStore, command: Command) -> dict[str, Stored | None]:
    """Every record that deciding `command` looks at, found as the coordinator finds them."""
    records: dict[str, Stored | None] = {}
    keys: tuple[str, ...] = tuple(keys_of(command))
    while True:
        snapshot = store.read(keys)
        records.update({key: found.record for key, found in snapshot.records.items()})
        try:
            decide(View(snapshot.now_ms, dict(records)), command)
        except Missing as missing:
            keys = missing.keys
        else:
            return records


class Life(RuleBasedStateMachine):
    """One store through one coordinator. `ask` is the only way in, and checks everything that one step can show."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms)
        self.told: list[Event] = []
        self.coordinator = Coordinator(self.store, on_commit=lambda events, seq: self.told.extend(events))
        self.model = Model()
        self.fresh = 0
        self.leases: list[tuple[str, str, str]] = []  # job, principal, lease id: all that were ever given
        self.sent: list[Command] = []
        self.promised_ms: dict[tuple[str, int], int] = {}  # job, token: the deadline its owner was last told

    # Asking

    def ask(self, command: Command, expected: Told) -> Outcome:
        decision = self.decided(command)
        outcome = self.coordinator.one(command)
        assert outcome == decision
        assert told_by(outcome) == expected
        if isinstance(command, Acquire | Renew | Release | Break):
            self.sent.append(command)
        if isinstance(outcome, outcomes.Granted | lease_outcomes.Renewed):
            self.promised_ms[outcome.name, outcome.lease.token] = outcome.lease.expires_ms
        return outcome

    def decided(self, command: Command) -> Outcome:
        """Decide twice on the side: the same both times, nothing given was touched, nothing written for nothing."""
        records = loaded(self.store, command)
        kept = copy.deepcopy(records)
        first = decide(View(self.now_ms, dict(records)), command)
        again = decide(View(self.now_ms, dict(records)), command)
        parts = ("outcome", "writes", "events", "handed")
        assert [getattr(again, part) for part in parts] == [getattr(first, part) for part in parts]
        assert records == kept
        for key, record in first.writes.items():
            if key.startswith(LOCK_PREFIX) and not isinstance(command, Renew):
                assert record != records[key], f"{key} was written unchanged"
        if isinstance(command, Inspect):
            assert not first.writes
            assert not first.events
        holders = self.lock(command.name).holders if isinstance(command, Renew | Release) else ()
        if isinstance(first.outcome, lease_outcomes.Renewed):
            assert [holder.lease_id for holder in holders] == [getattr(command, "lease_id", None)]
        if isinstance(first.outcome, lease_outcomes.Released | lease_outcomes.Failed) and not first.outcome.again:
            assert [holder.lease_id for holder in holders] == [getattr(command, "lease_id", None)]
        return first.outcome

    def lock(self, job: str) -> LockRecord:
        record = self.store.read([lock_key(NS, job)]).records[lock_key(NS, job)].record
        assert record is None or isinstance(record, LockRecord)
        return record or LockRecord(ns=NS, name=job)

    def claim(self, command: Acquire) -> None:
        expected = self.model.claim(
            self.now_ms,
            command.name,
            command.owner,
            command.principal,
            command.fresh_lease_id,
            command.ttl_ms,
            key=command.request_key,
            lease=command.lease_id,
            delay_ms=command.delay_ms,
            metadata=command.metadata,
            again=command.again,
            max_hold_ms=command.max_hold_ms,
        )
        outcome = self.ask(command, expected)
        if isinstance(outcome, outcomes.Granted):
            self.leases.append((command.name, command.principal, outcome.lease.lease_id))

    def fresh_id(self) -> str:
        self.fresh += 1
        return f"lease-{self.fresh}"

    def renew(self, command: Renew) -> None:
        asked = (command.name, command.principal or "", command.lease_id or "")
        expected = self.model.renew(self.now_ms, *asked, command.ttl_ms, command.metadata, command.checkpoint)
        self.ask(command, expected)

    def release(self, command: Release) -> None:
        asked = (command.name, command.principal or "", command.lease_id or "")
        if command.failed:
            self.ask(command, self.model.fail(self.now_ms, *asked, command.reason, command.retry_ms))
        else:
            self.ask(command, self.model.release(self.now_ms, *asked, command.done_ms, command.checkpoint))

    # What can happen

    @initialize(beats=st.booleans())
    def begin(self, beats: bool) -> None:
        if beats:
            self.beats(0)

    @rule(
        job=jobs,
        worker=workers,
        ttl_ms=ttls,
        key=keys,
        delay_ms=st.sampled_from((0, 0, 3_000)),
        again=st.booleans(),
        note=notes,
        max_hold_ms=st.sampled_from((0, 0, 3_000, 90_000)),
    )
    def claims(
        self,
        job: str,
        worker: tuple[str, str],
        ttl_ms: int,
        key: str | None,
        delay_ms: int,
        again: bool,
        note: str | None,
        max_hold_ms: int,
    ) -> None:
        owner, principal = worker
        self.claim(
            Acquire(
                ns=NS,
                name=job,
                principal=principal,
                owner=owner,
                ttl_ms=ttl_ms,
                fresh_lease_id=self.fresh_id(),
                request_key=key,
                delay_ms=delay_ms,
                again=again,
                metadata=note,
                max_hold_ms=max_hold_ms,
            )
        )

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), worker=workers, ttl_ms=ttls)
    def claims_with_an_old_lease(self, data: st.DataObject, worker: tuple[str, str], ttl_ms: int) -> None:
        job, _, lease = data.draw(st.sampled_from(self.leases))
        owner, principal = worker
        fresh = self.fresh_id()
        self.claim(
            Acquire(
                ns=NS,
                name=job,
                principal=principal,
                owner=owner,
                ttl_ms=ttl_ms,
                fresh_lease_id=fresh,
                lease_id=lease,
            )
        )

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), ttl_ms=st.sampled_from((None, *TTLS_MS)), note=notes, metadata=notes)
    def renews(self, data: st.DataObject, ttl_ms: int | None, note: str | None, metadata: str | None) -> None:
        job, principal, lease = self.some_lease(data)
        command = Renew(ns=NS, name=job, principal=principal, lease_id=lease, ttl_ms=ttl_ms)
        self.renew(command.replace(checkpoint=note, metadata=metadata))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), done_ms=st.sampled_from((0, 0, 20_000, 2 * 86_400_000)), note=notes)
    def releases(self, data: st.DataObject, done_ms: int, note: str | None) -> None:
        job, principal, lease = self.some_lease(data)
        command = Release(ns=NS, name=job, principal=principal, lease_id=lease, done_ms=done_ms, checkpoint=note)
        self.release(command)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        reason=st.sampled_from((None, "no disk")),
        retry_ms=st.sampled_from((0, 0, 7_000, 2 * 86_400_000)),
    )
    def fails(self, data: st.DataObject, reason: str | None, retry_ms: int) -> None:
        job, principal, lease = self.some_lease(data)
        command = Release(ns=NS, name=job, principal=principal, lease_id=lease, failed=True)
        self.release(command.replace(reason=reason, retry_ms=retry_ms))

    def some_lease(self, data: st.DataObject) -> tuple[str, str, str]:
        """Mostly as it was given; sometimes shown for another job, or with another credential."""
        job, principal, lease = data.draw(st.sampled_from(self.leases[-6:]))
        astray = data.draw(st.sampled_from(("", "", "", "job", "credential")))
        if astray == "job":
            job = data.draw(jobs)
        elif astray == "credential":
            principal = data.draw(workers)[1]
        return job, principal, lease

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_message_arrives_again(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.sent))
        match command:
            case Acquire():
                self.claim(command.replace(fresh_lease_id=self.fresh_id()))
            case Renew():
                self.renew(command)
            case Release():
                self.release(command)
            case Break():
                self.breaks(command.name)

    @rule(job=jobs)
    def breaks(self, job: str) -> None:
        command = Break(ns=NS, name=job, principal="op", reason="stuck")
        self.ask(command, self.model.break_(self.now_ms, job, command.reason))

    @rule(name=st.sampled_from(tuple(CLOSED)), length_ms=st.sampled_from((2_000, 60_000)))
    def closes(self, name: str, length_ms: int) -> None:
        command = Close(ns=NS, name=name, principal="op", reason="stop", length_ms=length_ms)
        self.ask(command, self.model.close(self.now_ms, name, length_ms, CLOSED[name]))

    @rule(name=st.sampled_from(tuple(CLOSED)))
    def opens(self, name: str) -> None:
        self.ask(Open(ns=NS, name=name, principal="op"), self.model.open(self.now_ms, name))

    @rule(job=jobs)
    def looks(self, job: str) -> None:
        self.ask(Inspect(ns=NS, name=job), self.model.look(job))

    @rule(job=jobs)
    def sweeps(self, job: str) -> None:
        self.ask(Sweep(key=lock_key(NS, job)), self.model.sweep(self.now_ms, job))

    @rule()
    def sweeps_what_is_due(self) -> None:
        for key in self.store.due(100).keys:
            if key == META_KEY:
                self.ask(Sweep(key=key), Told("swept"))
            else:
                self.sweeps(key.split("/", 2)[2])
        assert not self.store.due(100).keys, "a sweep left its job due"

    @precondition(lambda self: self.model.outage_count < OUTAGES_KEPT)
    @rule(up_ms=st.sampled_from((0, 0, 100, 400, PULSE_LATE_MS, 10_000_000)))
    def beats(self, up_ms: int) -> None:
        since_ms = self.now_ms - up_ms
        had_gap = not self.model.pulses or since_ms > self.model.pulses[-1]
        self.ask(
            Beat(server="s", alive_since_ms=since_ms if had_gap else None),
            self.model.beat(self.now_ms, since_ms),
        )

    @rule(step_ms=st.sampled_from((1, 400, 1_500, 1_501, 4_000, 30_000, 86_400_000)))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(data=st.data(), around_ms=st.sampled_from((-1, 0, 0, 1)))
    def time_passes_up_to_a_deadline(self, data: st.DataObject, around_ms: int) -> None:
        coming = [at_ms + around_ms for at_ms in self.model.instants() if at_ms + around_ms > self.now_ms]
        if coming:
            self.now_ms = data.draw(st.sampled_from(coming[:3]))

    # What must always be so

    @invariant()
    def a_job_has_one_owner_at_most_and_the_model_agrees_who(self) -> None:
        for job in JOBS:
            status = self.coordinator.one(Inspect(ns=NS, name=job))
            assert isinstance(status, outcomes.Status)
            assert len(status.lock.holders) <= 1
            owner = status.lock.holders[0].owner if status.lock.holders else None
            assert owner == self.model.owner(job)

    @invariant()
    def history_makes_sense(self) -> None:
        history = self.store.events(0, 1_000_000)
        assert [event.seq for event in history] == list(range(1, len(history) + 1))
        assert [event.replace(seq=0) for event in history] == [event.replace(seq=0) for event in self.told]
        assert all(one.at_ms <= other.at_ms for one, other in itertools.pairwise(history))
        for job in JOBS:
            others = (kinds.CLOSED, kinds.OPENED)
            self.check_history_of(job, [event for event in history if event.job == job and event.kind not in others])

    def check_history_of(self, job: str, history: list[Event]) -> None:
        highest, owner = 0, 0
        for event in history:
            if event.kind == kinds.ACQUIRED:
                assert owner == 0, "granted while somebody had it"
                assert event.token > highest, "the token did not rise"
                highest = owner = event.token
            elif event.kind == kinds.FORGOTTEN:
                assert owner == 0, "forgotten while somebody had it"
            else:
                assert event.token == owner, f"{event.kind} of somebody who did not have it"
                owner = 0 if event.kind in ENDS else owner
            if event.kind == kinds.EXPIRED:
                assert event.at_ms >= self.promised_ms[job, event.token], "expired early"

    @invariant()
    def history_played_from_the_start_gives_what_is_stored(self) -> None:
        live: dict[tuple[str, str], dict[int, ReplayedHold]] = {}
        for _, found in self.store.scan(LOCK_PREFIX):
            assert isinstance(found.record, LockRecord)
            for holder in found.record.holders:
                claim = ReplayedHold(
                    owner=holder.owner,
                    principal=holder.principal,
                    token=holder.token,
                    mode=holder.mode,
                    attempt=holder.attempt,
                    metadata=holder.metadata,
                    checkpoint=holder.checkpoint,
                )
                live.setdefault((found.record.ns, found.record.name), {})[holder.token] = claim
        assert replay(self.store.events(0, 1_000_000)) == live


@pytest.mark.promise("excl", "excl:same-token", "lease:never-early", "lease:outage-credit", "token:rises")
@pytest.mark.promise("proof", "idem:acquire", "idem:release", "audit", "attempts", "max-hold", "closed")
@pytest.mark.timeout(3_600 if SOAK else 600)  # seconds when it passes; making a failure small takes minutes
def test_every_answer_is_the_one_the_model_gives() -> None:
    run_state_machine_as_test(Life, settings=SETTINGS)


# Many commands in one write

leases = st.integers(0, 12).map("lease-{}".format)
principals = st.sampled_from(("team", "solo"))


def built(kind: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **fields)


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    built(
        Acquire,
        ns=st.just(NS),
        name=jobs,
        principal=principals,
        owner=st.sampled_from(("a1", "a2")),
        ttl_ms=ttls,
        fresh_lease_id=st.just(""),  # numbered by `numbered`
        request_key=keys,
        delay_ms=st.sampled_from((0, 3_000)),
        again=st.booleans(),
        acl=st.sampled_from((None, None, None, ("team",))),
        badges=st.sampled_from(((), ("team",))),
    ),
    built(Renew, ns=st.just(NS), name=jobs, principal=principals, lease_id=leases, checkpoint=notes),
    built(
        Release,
        ns=st.just(NS),
        name=jobs,
        principal=principals,
        lease_id=leases,
        done_ms=st.sampled_from((0, 5_000)),
    ),
    built(Break, ns=st.just(NS), name=jobs, principal=st.just("op"), reason=st.just("stuck")),
    built(SetAcl, ns=st.just(NS), name=jobs, principal=principals, acl=st.sampled_from(((), ("solo",)))),
    built(Inspect, ns=st.just(NS), name=jobs),
    built(Sweep, key=jobs.map(lambda job: lock_key(NS, job))),
    built(Beat, server=st.just("s"), alive_since_ms=st.sampled_from((0, 90_000_000))),
)
BATCHES = st.lists(
    st.tuples(st.sampled_from((0, 1_000, 5_000, 86_400_000)), st.lists(COMMANDS, max_size=8)), max_size=6
)


def numbered(batches: list[tuple[int, list[Command]]]) -> list[tuple[int, list[Command]]]:
    """Claims with lease ids 0, 1, 2 ... so that later commands hit them."""
    count = iter(range(1_000))
    return [
        (
            step_ms,
            [
                each.replace(fresh_lease_id=f"lease-{next(count)}") if isinstance(each, Acquire) else each
                for each in batch
            ],
        )
        for step_ms, batch in batches
    ]


def life_of(
    batches: list[tuple[int, list[Command]]], run: Callable[[Coordinator, list[Command]], list[Any]]
) -> tuple[list[Any], dict[str, Any], list[Event]]:
    """Every answer, what is stored in the end, and history."""
    clock = [0]
    store = MemoryStore(lambda: clock[0])
    coordinator = Coordinator(store)
    answers: list[Any] = []
    for step_ms, batch in batches:
        clock[0] += step_ms
        answers += run(coordinator, batch)
    return answers, {key: found.record for key, found in store.scan("")}, store.events(0, 1_000_000)


@pytest.mark.promise("audit")
@pytest.mark.timeout(3_600 if SOAK else 600)
@settings(max_examples=tries(150, 5_000), suppress_health_check=list(HealthCheck))
@given(BATCHES.map(numbered))
def test_many_commands_in_one_write_are_answered_like_one_after_the_other(
    batches: list[tuple[int, list[Command]]],
) -> None:
    together = life_of(batches, lambda coordinator, batch: coordinator.run(batch))
    apart = life_of(batches, lambda coordinator, batch: [coordinator.one(command) for command in batch])
    assert together == apart
