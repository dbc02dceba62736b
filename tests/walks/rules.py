"""Random walks through all commands of the rules, with every option beside every other.

`tests/core/test_walks.py` judges each step by what must hold whatever the walk does. `scripts/dev/compare` holds the
steps against those of another commit: it shows what changed in any field of any answer, event or record. Walks are
short and begin from nothing, so that one change does not change them all.
"""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import walk_packages
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from dibs import core
from dibs.core.claims.several import overlapping_pair
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Beat,
    BeginCount,
    Break,
    ClaimPolicy,
    Close,
    CountUsage,
    EndSession,
    Free,
    Freeze,
    Identify,
    Inspect,
    InspectSession,
    KeepSession,
    KeepTickets,
    Leave,
    Open,
    OpenSession,
    RaiseFloor,
    Release,
    Renew,
    SetAcl,
    SetPool,
    Sweep,
    Thaw,
    Transfer,
    Withdraw,
)
from dibs.core.decide import decide
from dibs.core.draft import Missing, View
from dibs.core.names import in_tree
from dibs.core.outcomes import Deadlock
from dibs.core.records import EXCLUSIVE, META_KEY, SHARED, Holder, LockRecord, Meta, SessionRecord, Ticket
from tests.walks.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.core.draft import Decision
    from dibs.core.records import Stored

STEPS = 40
NS = "default"
# The names, and how often a claim has options. With few of them, sessions hold and wait for much at once.
THEMES = {
    "one job": (("a",), 1.0),
    "one path": (("path:a", "path:a/b"), 1.0),
    "jobs": (("a", "b", "lab/c"), 1.0),
    "pools": (("gpu", "gpu", "a"), 0.7),
    "trees": (("path:src", "path:src/a", "path:src/a/b", "path:lib", "repo:one"), 0.7),
    "circles": (("a", "b", "c", "d"), 0.15),
    "circles in trees": (("path:a", "path:a/b", "path:a/b/c", "path:d", "e"), 0.15),
    "circles of slots": (("gpu", "a", "b"), 0.3),
    "moments of a job": (("a",), 0.8),
    "moments of jobs": (("a", "lab/c"), 0.8),
    "moments of paths": (("path:a", "path:a/b"), 0.8),
    "halves of jobs": (("a", "b", "c"), 0.55),
    "halves of paths": (("path:a", "path:a/b", "path:d"), 0.55),
    "families": (("a", "b"), 0.6),
    "families in trees": (("path:a", "path:a/b", "b"), 0.6),
    "bounds of jobs": (("a", "b", "c", "d"), 0.55),
    "bounds of paths": (("path:a", "path:a/b", "path:a/b/c", "path:d", "path:e"), 0.55),
}
# Of so many at once: what is left is for the next command or sweep. No walk comes to the usual ones.
BOUNDS = {"FREED_MAX": 1, "LEAVE_AT_ONCE_MAX": 2, "TREE_PAGE_CLAIMS": 2, "WANTED_MAX": 1, "REMEMBERED_MAX": 2}
BOUNDS |= {"OUTAGES_KEPT": 2, "GROUPS_KEPT": 1, "REPLACED_KEPT": 1, "REPLACED_MAX": 2, "CLOSURES_MAX": 1}
BOUNDS |= {"REPLACED_LEAST": 1}
WALKS = [f"{theme} {number}" for theme in THEMES for number in range(12)]
PASSES_MS = (0, 0, 0, 0, 1, 250, 500, 1_000, 2_000, 5_000, 9_000)


class Walker:
    """One store's records, and who decides commands on them. All that is random comes from its name."""

    def __init__(self, name: str) -> None:
        self.chance = Random(name)
        self.records: dict[str, Stored | None] = {}
        self.now_ms = 1_000_000
        self.fresh = 0

    def id(self, letter: str) -> str:
        self.fresh += 1
        return f"{letter}{self.fresh}"

    def maybe(self, chance: float, **more: Any) -> dict[str, Any]:
        return more if self.chance.random() < chance else {}

    def found(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.records.values() if isinstance(each, kind)]

    def due(self) -> list[str]:
        """The records on which something is due."""
        return [
            key
            for key, record in self.records.items()
            if record is not None and (record.due_ms() or self.now_ms + 1) <= self.now_ms
        ]

    def decided(self, command: Command, unvouched_ms: int = 0) -> Decision:
        view = View(self.now_ms, dict(self.records))
        view.vouched_ms = self.now_ms - unvouched_ms
        while True:
            try:
                return decide(view, command)
            except Missing as missing:
                view.records.update(dict.fromkeys(missing.keys))


class Walk(Walker):
    """A walk with the names and the rate of a theme: commands that somebody might send next."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.names, self.rate = THEMES[name.rpartition(" ")[0]]
        self.is_exact, self.is_bounded = name.startswith("moments"), name.startswith("bounds")
        self.is_torn, self.has_families = name.startswith("halves"), name.startswith("families")
        self.gone: list[tuple[str, Holder]] = []  # leases that there were once
        self.places: list[Ticket] = []  # and places
        self.ways: list[tuple[int, Callable[[], Command | None]]] = [
            (28 if self.rate > 0.5 else 45, self.acquire),
            (4, self.acquire_any),
            (7, self.acquire_all),
            (8, self.again),
            (8, self.renew),
            (7, self.release),
            (4, self.transfer),
            (6, self.sweep),
            (6 if self.rate > 0.5 else 1, self.session),
            (5, self.line),
            (5, self.withdraw),
            (int(9 * self.rate), self.operator),
            (5, self.look),
            (2, self.server),
        ]
        self.last: Command | None = None
        self.vouches = True  # whether the last step took all deadlines before it as reached

    def option(self, chance: float, **more: Any) -> dict[str, Any]:
        """As some claims have it."""
        return self.maybe(chance * self.rate, **more)

    def step(self) -> tuple[Command, Decision]:
        command = self.server() if isinstance(self.last, Freeze) else None
        if self.rate < 0.5 and self.fresh < 5:
            command = self.session()
        if self.is_bounded and self.chance.random() < 0.35:
            command = self.sweep()  # of what was not finished
        while command is None:
            weights = [weight for weight, _ in self.ways]
            command = self.chance.choices([way for _, way in self.ways], weights)[0]()
        command, unvouched_ms = self.at_a_moment(command) if self.is_exact else self.after_a_while(command)
        self.last, self.vouches = command, not unvouched_ms
        decision = self.decided(command, unvouched_ms)
        kept = decision.writes
        if self.is_torn and self.chance.random() < 0.2:  # a git remote that is killed has a part of a push
            kept = {key: record for key, record in sorted(kept.items()) if self.chance.random() < 0.5}
        for key, record in kept.items():
            before = self.records.get(key)
            if isinstance(before, LockRecord):
                self.gone = [*self.gone, *[(before.name, each) for each in before.holders]][-8:]
            if isinstance(before, Ticket):
                self.places = [*self.places, before][-3:]
            self.records[key] = record
        return command, decision

    def after_a_while(self, command: Command) -> tuple[Command, int]:
        passes = PASSES_MS[:6] if self.rate < 0.5 else PASSES_MS
        self.now_ms += self.chance.choice(passes) if self.chance.random() > 0.006 else 8 * 24 * 3600 * 1000
        return command, 6_000 if self.chance.random() < 0.08 else 0

    def at_a_moment(self, command: Command) -> tuple[Command, int]:
        """When something ends, or a millisecond before or after it. Often the sweeper comes to it first."""
        moments: dict[int, list[str]] = {}
        for key, record in self.records.items():
            if record is not None:
                for found in [record.due_ms() or 0, *map(int, re.findall(r"_ms=(\d+)", str(record)))]:
                    moments.setdefault(found, []).append(key)
        ahead = sorted([each for each in moments if each > self.now_ms])[:3]
        if not ahead or self.chance.random() < 0.4:
            return command, 0
        moment = self.chance.choice(ahead)
        vouched_ms = moment - self.chance.choice((0, 0, 0, 1))
        self.now_ms = max(self.now_ms, moment - self.chance.choice((0, 0, 1)))
        if self.chance.random() < 0.4:
            command = Sweep(key=self.chance.choice(moments[moment]))
        return command, max(0, self.now_ms - vouched_ms)

    def what_if(self) -> list[tuple[Command, Decision]]:
        """What each session could ask now, which nobody does, and the answers."""
        asks: list[Command] = []
        for session in [each for each in self.found(SessionRecord) if not each.ended_ms]:
            own = {"session": session.id, "principal": session.principal, "ttl_ms": 0}
            for name in sorted(set(self.names)):
                asks.append(Acquire(name=name, **(self.terms() | own), **self.maybe(0.7, wait=True)))
            asks.append(self.all_of(self.terms() | own))
        return [(each, self.decided(each)) for each in asks]

    # Claims

    def caller(self) -> dict[str, Any]:
        principal = self.chance.choice(("team", "team", "solo" if not self.has_families else "team"))
        mine = [each.id for each in self.found(SessionRecord) if each.principal == principal and not each.ended_ms]
        session = self.chance.choice(mine) if mine and self.chance.random() > 0.4 * self.rate else None
        return {
            "ns": NS,
            "principal": principal,
            "owner": "" if session and self.chance.random() < 0.5 else self.chance.choice(("ann", "bob")),
            "session": session,
            "ttl_ms": 0 if session and self.chance.random() < 0.5 else self.chance.choice((5_000, 20_000, 60_000)),
            "badges": (principal, "gh:ann"),
        }

    def terms(self) -> dict[str, Any]:
        caller = self.caller()
        if caller["principal"] == "solo":
            caller |= (
                self.option(0.7, payer=f"{NS}/solo") | self.option(0.3, held_max=2) | self.option(0.3, waiting_max=2)
            )
        return (
            caller
            | {"fresh_lease_id": self.id("L")}
            | self.option(0.25, mode=SHARED)
            | self.option(0.2, request_key=self.chance.choice("kl"))
            | self.option(0.2, slots=self.chance.choice((1, 2, 2, 3)))
            | self.option(0.2, units=self.chance.choice((1, 2, 2, 3)))
            | self.option(0.15, metadata="m" * self.chance.choice((1, 70_000)))
            | self.option(0.15, delay_ms=3_000)
            | self.option(0.1, max_attempts=self.chance.choice((1, 2, 2)))
            | self.option(0.15, max_hold_ms=self.chance.choice((5_000, 40_000)))
            | self.option(0.25, replaces=self.chance.choice(("main", "next")))
            | self.option(0.1, ephemeral=False)
            | self.option(0.1, again=True)
            | self.option(0.1, audited=True)
            | self.option(0.05, admin=True)
            | self.option(0.04, over_quota=True)
            | self.option(0.05, bound=self.chance.choice((NS, "other")))
        )

    def name(self) -> str:
        return self.chance.choice(self.names)

    def several(self) -> tuple[str, ...]:
        names = sorted(set(self.names))
        return tuple(sorted(self.chance.sample(names, min(2, len(names)))))

    def acquire(self) -> Command:
        terms = self.terms()
        if self.chance.random() < 0.05:
            terms["policy"] = ClaimPolicy(delays_release=True, one_counter=True)
        more = self.maybe(0.75, wait=True) | self.option(0.1, acl=("team",))
        return Acquire(name=self.name(), **terms, **more)

    def acquire_any(self) -> Command:
        return AcquireAny(names=self.several(), **self.terms(), **self.maybe(0.3, count=self.chance.choice((1, 2))))

    def acquire_all(self) -> Command:
        return self.all_of(self.terms())

    def all_of(self, terms: dict[str, Any]) -> AcquireAll:
        names = self.several()
        if overlapping_pair(names, terms.get("mode", EXCLUSIVE)) is not None:
            names = names[:1]  # no request may have both
        return AcquireAll(names=names, **terms, **self.maybe(0.7, wait=True))

    def again(self) -> Command | None:
        """Somebody repeats the last command, comes back with its ticket, or shows its lease."""
        places = [*self.found(Ticket), *self.places]
        if self.chance.random() < 0.3 or not places:
            if self.last is not None and self.chance.random() < 0.5:
                return self.last
            lease = self.lease()
            if lease is None:
                return None
            name, hold = lease
            terms = self.terms() | {"principal": hold.principal, "mode": hold.mode}
            return Acquire(name=name, lease_id=hold.lease_id, **terms)
        place = self.chance.choice(places)
        names = tuple(part.name for part in place.whole)
        terms = {field: getattr(place, field) for field in ("ns", "principal", "owner", "ttl_ms", "session", "mode")}
        terms |= {"slots": place.slots, "units": place.units, "badges": place.badges, "replaces": place.replaces}
        terms |= self.maybe(0.1, units=place.units + 1) | self.maybe(0.5, wait=True) | self.maybe(0.1, principal="solo")
        terms |= {"fresh_lease_id": self.id("L"), "ticket_id": place.lease_id}
        terms |= self.maybe(0.6, request_key=place.request_key)
        if names:
            number = place.whole[0].number
            return AcquireAll(names=names, ticket=number, **terms)
        return Acquire(name=place.name, ticket=place.number, **terms)

    # Owners

    def lease(self) -> tuple[str, Holder] | None:
        held = [(lock.name, each) for lock in self.found(LockRecord) for each in lock.holders]
        if self.gone and (not held or self.chance.random() < 0.08):
            held = self.gone
        return self.chance.choice(held) if held else None

    def proof(self, hold: Holder) -> dict[str, Any]:
        proof: dict[str, Any] = {"ns": NS, "principal": hold.principal, "lease_id": hold.lease_id}
        if hold.session is not None and self.chance.random() < 0.3:
            proof |= {"lease_id": None, "session": hold.session}
        return proof | self.maybe(0.1, principal=None) | self.maybe(0.05, principal="nobody")

    def renew(self) -> Command | None:
        lease = self.lease()
        if lease is None:
            return None
        name, hold = lease
        more = self.maybe(0.3, ttl_ms=self.chance.choice((2_000, 30_000)))
        more |= self.maybe(0.3, checkpoint="c" * self.chance.choice((1, 300_000)))
        more |= self.maybe(0.2, metadata="n" * self.chance.choice((1, 90_000)))
        more |= self.maybe(0.2, mode=self.chance.choice((SHARED, EXCLUSIVE))) | self.maybe(0.3, audited=True)
        if hold.principal == "solo":
            more |= self.maybe(0.4, payer=f"{NS}/solo")
        return Renew(name=name, **self.proof(hold), **more)

    def release(self) -> Command | None:
        lease = self.lease()
        if lease is None:
            return None
        name, hold = lease
        more = self.option(0.2, done_ms=30_000, result="42") | self.maybe(0.2, checkpoint="half")
        more |= self.option(0.3, failed=True, reason="broke", retry_ms=self.chance.choice((0, 4_000)))
        return Release(name=name, **self.proof(hold), **more, **self.maybe(0.1, uncounted=True))

    def transfer(self) -> Command | None:
        lease = self.lease()
        if lease is None:
            return None
        name, hold = lease
        sessions = [each.id for each in self.found(SessionRecord)]
        more = self.maybe(0.5, to_owner="cy") | self.maybe(0.3, checkpoint="here") | self.maybe(0.3, ttl_ms=15_000)
        if sessions:
            more |= self.maybe(0.6, to_session=self.chance.choice([*sessions, "S0"]))
        return Transfer(name=name, fresh_lease_id=self.id("L"), **self.proof(hold), **more)

    # Sessions and lines

    def session(self) -> Command:
        known = self.found(SessionRecord)
        principal = self.chance.choice(("team", "team", "solo" if not self.has_families else "team"))
        if len(known) < (3 if self.rate > 0.5 else 5) or self.chance.random() < 0.2:
            parents = [each.id for each in known if each.principal == principal]
            more = self.maybe(1 if self.has_families else 0.5, parent=self.chance.choice(parents)) if parents else {}
            more |= self.maybe(0.3, process="p1") | self.maybe(0.2, metadata="m")
            if principal == "solo":
                more |= {"payer": f"{NS}/solo", "sessions_max": self.chance.choice((0, 1))}
            ids = [each.id for each in known]
            fresh = self.chance.choice(ids) if ids and self.chance.random() < 0.1 else self.id("S")
            owner, ttl_ms = (
                self.chance.choice(("ann", "bob")),
                self.chance.choice((30_000, 120_000) if self.rate > 0.5 else (900_000,)),
            )
            return OpenSession(fresh_id=fresh, ns=NS, principal=principal, owner=owner, ttl_ms=ttl_ms, **more)
        one = self.chance.choice(known)
        own: dict[str, Any] = {"session": one.id, "principal": one.principal} | self.maybe(0.1, bound="other")
        if self.chance.random() < 0.5:
            more = self.maybe(0.3, ttl_ms=45_000) | self.maybe(0.2, process=self.chance.choice(("", "p2")))
            more |= self.maybe(0.5, active=True)
            if one.principal == "solo":
                more |= self.maybe(0.5, payer=f"{NS}/solo")
            return KeepSession(**own, **more)
        if self.chance.random() < 0.4:
            return InspectSession(**own)
        more = self.maybe(0.3, dead=True, principal=None) | self.maybe(0.2, by="op", reason="stuck", principal=None)
        return EndSession(**(own | more), **self.maybe(0.3, process="p1"))

    def line(self) -> Command | None:
        places = self.found(Ticket)
        if not places:
            return None
        if self.chance.random() < 0.5:
            kept = [(each.ns, each.name, each.number) for each in places]
            return KeepTickets(tickets=(*kept, (NS, "a", 99)))
        place = self.chance.choice(places)
        principal = "nobody" if self.chance.random() < 0.1 else place.principal
        return Leave(ns=NS, name=place.name, principal=principal, ticket=place.number, ticket_id=place.lease_id)

    def withdraw(self) -> Command | None:
        """Of an ask that waits or holds, that did so once, or that has not come yet."""
        leases = [self.lease(), *self.found(Ticket), *self.places, *[each for _, each in self.gone]]
        made = self.chance.choice(leases)
        names: tuple[str, ...] = (self.name(),)
        ask: dict[str, Any] = {
            "principal": self.chance.choice(("team", "solo")),
            "request_key": self.chance.choice("kl"),
        }
        if isinstance(made, tuple):
            names, made = (made[0],), made[1]
        if made is not None:
            by_key = made.request_key is not None and self.chance.random() < 0.7
            proof = {"request_key": made.request_key} if by_key else {"fresh_lease_id": made.lease_id}
            ask = {"principal": made.principal} | proof
        if isinstance(made, Ticket):
            names = tuple(part.name for part in made.whole) or (made.name,)
            number = min(made.whole, key=lambda part: part.name).number if made.whole else made.number
            ask |= self.maybe(0.7, ticket_id=made.lease_id, ticket=number)
        return Withdraw(ns=NS, names=names, **ask)

    # Operators and servers

    def operator(self) -> Command:
        job: dict[str, Any] = {"ns": NS, "name": self.name(), "principal": "op"}
        pool = {"name": "gpu"} if in_tree(job["name"]) else {}  # no path has one
        return self.chance.choice(
            (
                lambda: Break(reason="stuck", **job),
                lambda: Free(**job),
                lambda: Close(
                    reason="upgrade",
                    **(job | self.maybe(0.3, name="lab/")),
                    length_ms=self.chance.choice((7_000, 30_000)),
                ),
                lambda: Open(**(job | self.maybe(0.3, name="lab/"))),
                lambda: SetPool(slots=self.chance.choice((None, 0, 1, 2, 3)), **(job | pool)),
                lambda: SetPool(slots=self.chance.choice((1, 2, 3)), **(job | pool)),
                lambda: SetAcl(
                    acl=self.chance.choice(((), ("team",), ("gh:ann", "op"))),
                    **(job | self.maybe(0.3, principal="team")),
                    **self.maybe(0.7, admin=True),
                    **self.maybe(0.6, ahead=True),
                ),
            )
        )()

    def look(self) -> Command:
        known = self.found(SessionRecord)
        if known and self.chance.random() < 0.3:
            return InspectSession(session=self.chance.choice(known).id, principal=None)
        return Inspect(ns=NS, name=self.name())

    def sweep(self) -> Command | None:
        """What is due, and sometimes what is not."""
        due = self.due()
        if not due and self.chance.random() < 0.3:
            due = [key for key, record in self.records.items() if record is not None]
        return Sweep(key=self.chance.choice(due)) if due else None

    def server(self) -> Command:
        payer, before_ms = f"{NS}/solo", self.now_ms - 9_000
        meta = self.records.get(META_KEY)
        if isinstance(meta, Meta) and meta.frozen is not None and self.chance.random() < 0.8:
            return Thaw(id=self.chance.choice((meta.frozen.id, meta.frozen.id, None)))
        return self.chance.choice(
            (
                lambda: Beat(server="one"),
                lambda: Beat(server="two", alive_since_ms=self.now_ms, doubt_ms=before_ms, heard_ms=before_ms - 5_000),
                lambda: Beat(server="two", alive_since_ms=self.now_ms, gone=("one",), **self.maybe(0.3, idle=True)),
                lambda: BeginCount(payer=payer),
                lambda: (
                    CountUsage(payer=payer, key=self.chance.choice([*self.records]))
                    if self.records
                    else Identify(fresh_id="id")
                ),
                lambda: RaiseFloor(floor=self.chance.choice((3, 50))),
                lambda: Freeze(
                    id=self.chance.choice("xy"), **self.maybe(0.5, over="x"), **self.maybe(0.3, incomplete=True)
                ),
                lambda: Thaw(id=self.chance.choice(("x", None))),
            )
        )()


def words_of(command: Command) -> str:
    about = getattr(command, "name", None) or " ".join(getattr(command, "names", ()))
    return f"{type(command).__name__} {about or getattr(command, 'session', '') or getattr(command, 'key', '')}".strip()


def text_of(decision: Decision) -> str:
    writes = sorted(decision.writes.items())
    return f"{decision.outcome}\n{decision.events}\n{writes}\n{decision.handed}"


def line_of(command: Command, decision: Decision) -> str:
    said = f"{command}\n{text_of(decision)}"
    return f"{words_of(command)}: {type(decision.outcome).__name__} {crc32(said.encode()):08x}"


def walk_of(name: str, patch: pytest.MonkeyPatch) -> Walk:
    """A walk from its beginning. Some have smaller bounds, which last as long as `patch`."""
    if name.startswith("bounds"):
        for module in [import_module(each.name) for each in walk_packages(core.__path__, "dibs.core.")]:
            for bound in BOUNDS.keys() & vars(module).keys():
                patch.setattr(module, bound, BOUNDS[bound])
    return Walk(name)


def walked(name: str) -> list[Step]:
    steps: list[Step] = []
    with pytest.MonkeyPatch.context() as patch:
        walk = walk_of(name, patch)
        for at in range(STEPS):
            command, decision = walk.step()
            steps.append(Step(line_of(command, decision), f"{command}\n{text_of(decision)}"))
            if name.startswith("circles") and at % 10 == 9:
                answers = [decision for _, decision in walk.what_if()]
                circles = len([each for each in answers if isinstance(each.outcome, Deadlock)])
                said = "\n".join(map(text_of, answers))
                line = f"what if: {circles} circles of {len(answers)} {crc32(said.encode()):08x}"
                steps.append(Step(line, said))
    return steps
