"""Of a group only the newest waits in line: `replaces`, against a slow and obvious model, and at its bounds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import limits, outcomes
from dibs.core.commands import Acquire, Leave, Release, SetAcl
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.events import LEFT
from dibs.core.limits import GROUPS_KEPT, REPLACED_KEPT, REPLACED_MS, TICKET_MS
from dibs.core.records import LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import tries
from tests.core.test_queue import HOUR_MS, NS, Room

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome

JOBS = ("deploy", "path:src/a.py")


class Model:
    """One job, its line as a list, and who was sent away."""

    def __init__(self) -> None:
        self.owner: str | None = None
        self.line: list[str] = []
        self.groups: dict[str, str | None] = {}
        self.superseded: set[str] = set()
        self.ended: set[str] = set()

    def ask(self, who: str, group: str | None = None) -> str:
        if who in self.superseded:
            return "Superseded"
        if who in self.ended:
            return "KeySpent"
        if who == self.owner:
            return "Granted"
        if who in self.line:
            return f"Queued {self.line.index(who) + 1}"
        self.groups[who] = group
        if self.owner is None:
            self.owner = who
            return "Granted"
        older = [each for each in self.line if group is not None and self.groups[each] == group]
        self.superseded.update(older)
        self.line = [*[each for each in self.line if each not in older], who]
        return f"Queued {len(self.line)}"

    def release(self) -> None:
        if self.owner is not None:
            self.ended.add(self.owner)
            self.owner = self.line.pop(0) if self.line else None

    def leave(self, who: str) -> None:
        self.line.remove(who)


class Rules:
    """The same on the real rules. A request key is known by its caller, and a ticket too, unless the reply was lost."""

    def __init__(self, job: str) -> None:
        self.store = MemoryStore(lambda: 1_000_000)
        self.rules = Coordinator(self.store)
        self.job = job
        self.asks = 0
        self.tickets: dict[str, tuple[int, str]] = {}
        self.groups: dict[str, str | None] = {}

    def ask(self, who: str, group: str | None = None, *, lost: bool = False, shows: bool = False) -> str:
        self.asks += 1
        self.groups.setdefault(who, group)
        number, ticket_id = self.tickets.get(who, (0, None)) if shows else (0, None)
        outcome = self.rules.one(
            Acquire(
                ns=NS,
                name=self.job,
                principal="team",
                owner=who,
                ttl_ms=HOUR_MS,
                fresh_lease_id=f"lease-{self.asks}",
                request_key=who,
                replaces=self.groups[who],
                wait=True,
                ticket=number,
                ticket_id=ticket_id,
            )
        )
        if isinstance(outcome, outcomes.Queued):
            if not lost:
                self.tickets[who] = (outcome.ticket, outcome.ticket_id)
            return f"Queued {outcome.position}"
        return type(outcome).__name__

    def lock(self) -> LockRecord:
        found = self.store.read((lock_key(NS, self.job),)).records[lock_key(NS, self.job)].record
        return found if isinstance(found, LockRecord) else LockRecord(ns=NS, name=self.job)

    def release(self) -> None:
        for holder in self.lock().holders:
            self.rules.one(Release(ns=NS, name=self.job, principal="team", lease_id=holder.lease_id))

    def leave(self, who: str) -> None:
        number, ticket_id = self.tickets[who]
        self.rules.one(Leave(ns=NS, name=self.job, principal="team", ticket=number, ticket_id=ticket_id))


@pytest.mark.promise("queue:newest", "queue:fifo")
@pytest.mark.parametrize("job", JOBS)
def test_whatever_comes_the_line_is_the_one_of_the_model(job: str) -> None:
    for seed in range(tries(60, 2_000)):
        dice = random.Random(seed)
        model, rules = Model(), Rules(job)
        for step in range(40):
            asked = [*model.groups]
            what = dice.choice(("new", "new", "repeat", "repeat", "release", "leave"))
            if what == "new":
                group = dice.choice((None, "main", "main", "preview/1"))
                lost = dice.random() < 0.3
                assert rules.ask(f"w{step}", group, lost=lost) == model.ask(f"w{step}", group), (seed, step)
            elif what == "repeat" and asked:
                who = dice.choice(asked)
                assert rules.ask(who, shows=dice.random() < 0.5) == model.ask(who), (seed, step)
            elif what == "release":
                rules.release()
                model.release()
            elif what == "leave" and (known := [who for who in model.line if who in rules.tickets]):
                who = dice.choice(known)
                rules.leave(who)
                model.leave(who)
                del model.groups[who]  # to ask again would be a new claim
            lock = rules.lock()
            assert len(lock.line) == len(model.line), (seed, step)
            assert [holder.owner for holder in lock.holders] == ([model.owner] if model.owner else [])


def asked(room: Room, who: str, group: str = "main", **more: Any) -> Outcome:
    outcome: Outcome = room.outcome(who, "deploy", wait=True, replaces=group, request_key=who, **more)
    return outcome


@pytest.fixture
def held() -> Room:
    room = Room()
    room.claim("owner", "deploy")
    return room


@pytest.mark.promise("queue:newest")
def test_hundreds_of_one_group_leave_one_place_and_a_small_record(held: Room) -> None:
    for number in range(400):
        asked(held, f"w{number}")
    lock = held.lock("deploy")
    assert (len(lock.line), len(lock.marks), len(lock.groups)) == (1, 8, 1)
    assert isinstance(asked(held, "w0"), outcomes.Superseded)
    held.now_ms += REPLACED_MS
    assert sum(reason == "superseded" for _, _, reason in held.told("left")) == 399
    asked(held, "last")
    assert len(held.lock("deploy").groups[0].replaced) == REPLACED_KEPT * 12
    held.release("owner", "deploy")
    assert held.owners("deploy") == ["last"]


def test_groups_without_a_place_are_forgotten_but_the_last_and_those_in_line_never(held: Room) -> None:
    for number in range(40):
        asked(held, f"w{number}", f"group-{number}")
    assert len(held.lock("deploy").groups) == 40
    for number in range(40, 60):
        outcome = asked(held, f"w{number}", f"group-{number}")
        assert isinstance(outcome, outcomes.Queued)
        held.rules.one(
            Leave(ns=NS, name="deploy", principal="team", ticket=outcome.ticket, ticket_id=outcome.ticket_id)
        )
    asked(held, "last", "last")
    assert len(held.lock("deploy").groups) == 40 + GROUPS_KEPT + 1


@pytest.mark.promise("queue:newest")
def test_an_ask_whose_place_ran_out_does_not_replace_one_that_came_later(held: Room) -> None:
    first = asked(held, "first")
    assert isinstance(first, outcomes.Queued)
    held.now_ms += TICKET_MS
    assert isinstance(asked(held, "second"), outcomes.Queued)
    late = asked(held, "first", ticket=first.ticket, ticket_id=first.ticket_id)
    assert isinstance(late, outcomes.Superseded)
    assert late.by == "second"


@pytest.mark.promise("queue:newest", "access")
def test_whom_an_access_list_keeps_out_replaces_nobody(held: Room) -> None:
    asked(held, "first", badges=("user:team",))
    held.rules.one(SetAcl(ns=NS, name="deploy", principal="team", acl=("user:team",), admin=True))
    stranger = Acquire(
        ns=NS,
        name="deploy",
        principal="stranger",
        owner="stranger",
        ttl_ms=HOUR_MS,
        fresh_lease_id="x",
        replaces="main",
        wait=True,
        badges=("user:stranger",),
    )
    assert isinstance(held.rules.one(stranger), outcomes.Forbidden)
    assert len(held.lock("deploy").line) == 1


def test_a_place_that_is_replaced_does_not_count_against_the_limit_of_its_principal(held: Room) -> None:
    limit: dict[str, Any] = {"payer": f"{NS}/team", "waiting_max": 1}
    assert isinstance(asked(held, "first", **limit), outcomes.Queued)
    assert isinstance(asked(held, "second", **limit), outcomes.Queued)
    assert isinstance(asked(held, "third", "other", **limit), outcomes.TooMany)
    assert len(held.lock("deploy").line) == 1
    assert isinstance(asked(held, "fourth", **limit), outcomes.Queued)


def test_a_claim_that_does_not_wait_replaces_nobody_unless_it_gets_the_job(held: Room) -> None:
    asked(held, "first")
    assert held.claim("hasty", "deploy", replaces="main") == "Held"
    assert len(held.lock("deploy").line) == 1


@pytest.mark.promise("queue:newest")
@pytest.mark.parametrize("how", ["one", "all"])
def test_who_is_given_the_job_past_the_line_replaces_the_older_of_its_group(how: str) -> None:
    room = Room()
    room.open("parent")
    room.open("child", parent="parent")
    room.claim("parent", "deploy")
    for who, group in (("older", "main"), ("other", "preview")):
        assert isinstance(asked(room, who, group), outcomes.Queued)
    given = asked(room, "child") if how == "one" else room.all_of("child", "deploy", "x", replaces="main", wait=True)
    assert isinstance(given, outcomes.Granted | outcomes.GrantedAll)
    assert room.told(LEFT) == [("deploy", "older", "superseded")]
    assert isinstance(asked(room, "older"), outcomes.Superseded)


@pytest.mark.fault("F-391")
def test_the_replaced_asks_of_all_groups_of_a_job_together_have_a_bound() -> None:
    """Every heartbeat of the job reads them."""
    most = 12 * (limits.REPLACED_MAX + limits.REPLACED_LEAST * 40)
    records: dict[str, Any] = {}

    def ask(number: int, group: str) -> Any:
        view = View(1_000_000, records)
        view.load = lambda keys: view.records.update(dict.fromkeys(keys))
        terms: dict[str, Any] = {"ns": "d", "principal": "p", "owner": "o", "ttl_ms": 60_000, "replaces": group}
        decision = decide(view, Acquire(name="job", fresh_lease_id=f"L{number}", wait=True, **terms))
        records.update(decision.writes)
        return decision.outcome

    assert isinstance(ask(0, "first"), outcomes.Granted)
    for number in range(1, 4_000):
        assert isinstance(ask(number, f"group {number % 40}"), outcomes.Queued)
    lock = records[lock_key("d", "job")]
    assert len(lock.line) == 40
    assert sum([len(each.replaced) for each in lock.groups]) <= most
    assert isinstance(ask(3_990, f"group {3_990 % 40}"), outcomes.Queued)  # the newest of its group, once more
    assert isinstance(ask(3_950, f"group {3_950 % 40}"), outcomes.Superseded)


def test_an_ask_that_was_replaced_and_does_not_wait_any_more_is_told_who_has_the_job(held: Room) -> None:
    asked(held, "first")
    asked(held, "second")
    assert held.claim("first", "deploy", replaces="main", request_key="first") == "Held"
    assert isinstance(asked(held, "first"), outcomes.Superseded)
