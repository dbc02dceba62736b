"""Walks of the rules in which a random half of the features is switched on, so that a few of them meet again and again.

With all of them on, most commands are refused for one of the others before they come to what they are about; a fault
that lives where two meet needs both, and little besides. `FEATURES` is the list; `scripts/dev/pairs` prints how often
each pair met. `tests/core/test_swarm.py` judges the steps.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.core import events as kinds
from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    Close,
    EffectNote,
    EndSession,
    Free,
    KeepSession,
    KeepTickets,
    Leave,
    Open,
    OpenSession,
    Release,
    Renew,
    ReturnNumber,
    SetAcl,
    SetPool,
    Sweep,
    TakeNumber,
    Transfer,
    Withdraw,
)
from dibs.core.limits import TICKET_MS
from dibs.core.records import (
    EFFECT_BEGUN,
    EFFECT_DONE,
    EFFECT_FAILED,
    EFFECT_IN_DOUBT,
    EXCLUSIVE,
    SHARED,
    Holder,
    LockRecord,
    SessionRecord,
    Ticket,
    lock_key,
)
from dibs.wire.codes import NEVER_LIKE_THIS, NOT_YET, OUTCOMES
from tests.walks.rules import Walker, line_of, text_of
from tests.walks.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dibs.core.commands import Command
    from dibs.core.draft import Decision

NS = "default"
STEPS = 60
PASSES_MS = (0, 0, 0, 0, 1, 1, 500, 3_000)
SESSION_MS = 600_000
FEATURES = (
    "done marks",
    "attempts",
    "access lists",
    "claim-any",
    "claim-all",
    "closures",
    "prefix closures",
    "trees",
    "shared",
    "share()",
    "transfer",
    "two asks",
    "groups",
    "quotas",
    "nested sessions",
    "pools",
    "smaller pools",
    "slots",
    "ceilings",
    "delays",
    "lost replies",
    "keys",
    "breaks",
    "dead waiters",
    "withdrawals",
    "steps",
    "numbers",
)
PAIRS = list(combinations(FEATURES, 2))
WALKS = [f"swarm {number}" for number in range(250)]


class Made(NamedTuple):
    """A step: a command, and what was decided on it."""

    command: Command
    decision: Decision


class Swarm(Walker):
    """One store, few sessions and fewer jobs. `used` are the features that had an effect in this walk."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.on = frozenset(self.chance.sample(FEATURES, len(FEATURES) // 2))
        self.used: set[str] = set()
        self._borne: set[str] = set()  # by the command that is being made
        self._lost: Command | None = None  # its reply was lost
        self._scene: Iterator[Command] | None = None  # how it begins, once there are sessions
        self.called: set[tuple[str, int]] = set()  # places whose owners were told to ask again
        plain = ["lab/c"] * ("prefix closures" in self.on) + ["a", "b"]
        tree = ["path:x", "path:x/y"] if "trees" in self.on else []
        pool = ["gpu"] if self.on & {"pools", "smaller pools"} else []
        # Few, so that they meet: two jobs, or a few; those of a feature rather than plain ones.
        self.names = [*tree, *pool, *plain][: self.chance.choice((2, 3, 3, 4))]
        self.names += ["a"] * all(each.startswith("path:") for each in self.names)
        ways: list[tuple[int, str, Callable[[], Command | None]]] = [
            (26, "", self._claim),
            (14, "claim-all", self._claim_all),
            (5, "claim-any", self._claim_any),
            (9, "two asks", self._second_ask),
            (7, "", self._come_back),
            (7, "", self._release),
            (4, "", self._renew),
            (6, "share()", self._share),
            (6, "steps", self._note_step),
            (3, "numbers", self._number),
            (5, "transfer", self._transfer),
            (2, "", self._leave),
            (5, "withdrawals", self._withdraw),
            (2, "", self._session),
            (3, "breaks", self._break),
            (4, "closures", self._close),
            (4, "prefix closures", self._close_prefix),
            (4, "access lists", self._set_acl),
            (3, "pools", self._grow),
            (4, "smaller pools", self._shrink),
            (2, "attempts", self._free),
        ]
        kept = [(weight, way) for weight, feature, way in ways if not feature or feature in self.on]
        self._weights, self._ways = [each[0] for each in kept], [each[1] for each in kept]

    def bears(self, feature: str, chance: float = 0.5) -> bool:
        """Whether the command that is being made has it."""
        if feature in self.on and self.chance.random() < chance:
            self._borne.add(feature)
            return True
        return False

    def step(self) -> Made:
        """The next command and its decision, which is applied."""
        if self._lost is not None:
            command, self._lost = self._lost, None
            self.used.add("lost replies")
            return self._apply(command)
        command = self._next()
        if not isinstance(command, Sweep | KeepTickets) and self.bears("lost replies", 0.12):
            self._lost = command
        return self._apply(command)

    def _next(self) -> Command:
        self._borne = set()
        due = self.due()
        if due and self.chance.random() < 0.7:
            return Sweep(key=due[0])
        live = [each for each in self.found(SessionRecord) if not each.ended_ms]
        if len(live) < 3:
            return self._open()
        if self._scene is None:
            self._scene = iter(self._scene_of(*live[:3]) if self.chance.random() < 0.8 else ())
        command = next(self._scene, None)
        if command is not None:
            return command
        self.now_ms += self.chance.choice(PASSES_MS)
        places = self.found(Ticket)
        oldest_ms = min([each.renewed_ms for each in places], default=self.now_ms)
        called = [each for each in places if (each.name, each.number) in self.called]
        if called:
            return self._back(called[0])
        if self.now_ms - oldest_ms > TICKET_MS // 3:
            alive = [each for each in places if not (self.bears("dead waiters", 0.4) and each.number % 2)]
            if alive:
                return KeepTickets(tickets=tuple((each.ns, each.name, each.number) for each in alive))
        if "dead waiters" in self.on and places and self.chance.random() < 0.06:
            self.now_ms += TICKET_MS  # nobody asked for so long
        while command is None:
            self._borne = set()
            command = self.chance.choices(self._ways, self._weights)[0]()
        return command

    def _apply(self, command: Command) -> Made:
        decision = self.decided(command)
        self.records.update(decision.writes)
        outcome = decision.outcome
        if isinstance(outcome, outcomes.TicketsKept):
            self.called |= {(name, number) for _, name, number in outcome.gone}
        elif isinstance(command, Acquire | AcquireAll):
            self.called.discard((command.names[0] if isinstance(command, AcquireAll) else command.name, command.ticket))
        row = OUTCOMES[type(outcome).__name__]
        if row.kind in (None, NOT_YET) or self._borne & {"two asks", "quotas"}:
            self.used |= self._borne
        if any(event.kind == kinds.LEFT and event.reason == "stopped asking" for event in decision.events):
            self.used.add("dead waiters")
        return Made(command, decision)

    # Scenes

    def _scene_of(self, one: SessionRecord, two: SessionRecord, three: SessionRecord) -> Iterator[Command]:
        """Most walks begin with two sessions that are in each other's way, which chance alone brings about
        too rarely."""
        names = self._several()
        if len(names) < 2:
            return
        x, y = self.chance.sample(names, 2)
        kinds_of = [{"mode": SHARED}] * ("shared" in self.on) + [{"slots": 2}] * ("slots" in self.on)
        how = self.chance.choice([*kinds_of, {}])
        if "claim-all" in self.on and self.chance.random() < 0.5:  # one has x, and waits for x and y together
            yield self._claim_of(one, x, **how)
            yield self._claim_of(two, x, **how)
            yield self._claim_of(three, y)
            yield AcquireAll(names=names, **self._terms_of(one), **how, wait=True)
            if not how and self.bears("share()", 1):
                yield Renew(ns=NS, name=x, principal=one.principal, session=one.id, mode=SHARED)
            elif how and self.bears("done marks", 1):
                yield Release(ns=NS, name=x, principal=two.principal, session=two.id, done_ms=30_000)
                yield self._claim_of(two, y, wait=True)
            elif how and self.bears("access lists", 1):
                yield SetAcl(ns=NS, name=x, principal="op", acl=("nobody",), admin=True)
                yield self._claim_of(two, y, wait=True)
            return
        # One has y and waits for x; two waits behind it, for both.
        group = {"replaces": "g"} if self.bears("groups", 0.8) else {}
        yield self._claim_of(one, y)
        yield self._claim_of(three, x)
        yield self._claim_of(one, x, wait=True, **group)
        if "claim-all" in self.on:
            yield AcquireAll(names=names, **self._terms_of(two), wait=True)
        if self.bears("two asks", 1):
            yield self._claim_of(one, x, wait=True, request_key=self.id("k"), **self.maybe(0.4, slots=3), **group)

    def _terms_of(self, session: SessionRecord) -> dict[str, Any]:
        terms: dict[str, Any] = {"ns": NS, "principal": session.principal, "owner": session.owner, "ttl_ms": 0}
        if session.principal == "solo" and "quotas" in self.on:
            terms |= {"payer": f"{NS}/solo", "waiting_max": 3}
        return terms | {"session": session.id, "badges": (session.principal,), "fresh_lease_id": self.id("L")}

    def _claim_of(self, session: SessionRecord, name: str, **how: Any) -> Command:
        return Acquire(name=name, **self._terms_of(session), **how)

    # Claims

    def _who(self, *having: str) -> dict[str, Any]:
        """A session, or a caller without one. `having`: if there is one that has one of these jobs, it is that one."""
        live = [each for each in self.found(SessionRecord) if not each.ended_ms]
        keys = {lock_key(NS, name) for name in having}
        live = [each for each in live if keys.intersection(each.holds)] or live
        if live and self.chance.random() < 0.85:
            one = self.chance.choice(live)
            ttl_ms = self.chance.choice((0, 0, 0, 20_000))
            who = {"session": one.id, "principal": one.principal, "owner": one.owner, "ttl_ms": ttl_ms}
        else:
            who = {"principal": self.chance.choice(("team", "solo")), "owner": "x", "ttl_ms": 20_000}
        if who["principal"] == "solo" and "quotas" in self.on:
            self._borne.add("quotas")
            who |= {"payer": f"{NS}/solo", "held_max": self.chance.choice((0, 3)), "waiting_max": 3}
        return who | {"ns": NS, "badges": (who["principal"],), "fresh_lease_id": self.id("L")}

    def _how(self, names: Iterable[str]) -> dict[str, Any]:
        """The options of a claim."""
        how: dict[str, Any] = {}
        if self.bears("shared", 0.4):
            how["mode"] = SHARED
        elif "gpu" in names and self.bears("pools", 0.6):
            how["units"] = 2
        elif self.bears("slots", 0.4):
            how |= {"slots": 2} | self.maybe(0.2, units=2)
        if self.bears("keys"):
            how["request_key"] = self.chance.choice("kl")  # few: so they come again after their end
        if self.bears("groups", 0.5):
            how["replaces"] = self.chance.choice("gh")
        if self.bears("ceilings", 0.3):
            how["max_hold_ms"] = self.chance.choice((5_000, 40_000))
        if self.bears("delays", 0.4):
            how["delay_ms"] = 3_000
        if self.bears("attempts", 0.4):
            how["max_attempts"] = self.chance.choice((1, 2))
        if self.bears("done marks", 0.15):
            how["again"] = True
        return how

    def _claim(self) -> Command:
        held = [each.name for each in self.found(LockRecord) if each.holders and each.name in self.names]
        name = self.chance.choice(held if held and self.chance.random() < 0.4 else self.names)
        if name.startswith("path:"):
            self._borne.add("trees")
        more: dict[str, Any] = {"acl": ("team",)} if self.bears("access lists", 0.08) else {}
        return Acquire(name=name, **self._who(), **self._how([name]), **self.maybe(0.85, wait=True), **more)

    def _several(self) -> tuple[str, ...]:
        """Two names that do not overlap."""
        names = self.chance.sample(self.names, min(2, len(self.names)))
        if all(each.startswith("path:") for each in names):
            names = [names[0], *[each for each in self.names if not each.startswith("path:")][:1]]
        if any(each.startswith("path:") for each in names):
            self._borne.add("trees")
        return tuple(sorted(names))

    def _claim_all(self) -> Command:
        names = self._several()
        self._borne.add("claim-all")
        if self.chance.random() < 0.5:
            return AcquireAll(names=names, **self._who(), **self._how(names), **self.maybe(0.85, wait=True))
        who, how = self._who(*names), self._how(names)
        for lock in [each for each in self.found(LockRecord) if each.name in names]:
            for hold in [each for each in lock.holders if each.session == who.get("session", "")]:
                slots = lock.slots if hold.slot_numbers and not lock.pooled else 0
                how |= {"mode": hold.mode, "slots": slots, "units": len(hold.slot_numbers) or 1}  # as it has that
        return AcquireAll(names=names, **who, **how, wait=True)

    def _claim_any(self) -> Command:
        names = self._several()
        self._borne.add("claim-any")
        return AcquireAny(names=names, **self._who(), **self._how(names), count=self.chance.choice((0, 1, 2)))

    def _second_ask(self) -> Command | None:
        """A session that waits asks for the same once more, otherwise, by another ask than the one that waits."""
        places = [each for each in self.found(Ticket) if each.session is not None]
        if not places:
            return None
        grouped = [each for each in places if each.replaces is not None]
        places = grouped if grouped and self.chance.random() < 0.6 else places
        place, self._borne = self.chance.choice(places), {"two asks"}
        who = self._of(place) | {"fresh_lease_id": self.id("L")}
        how: dict[str, Any] = {"mode": place.mode, "slots": place.slots, "units": place.units, "wait": True}
        how["replaces"] = place.replaces
        how |= self.chance.choice(
            (
                {},
                {"slots": 3},
                {"units": 3},
                {"mode": SHARED if place.mode == EXCLUSIVE else EXCLUSIVE},
                {"request_key": self.chance.choice("klm")},
                {"request_key": self.id("k")},
                {"request_key": self.id("k")},
                {"request_key": "m", "units": 3},
                {"lease_id": "L1"},
                {"acl": ("somebody",)},
            )
        )
        names = tuple(part.name for part in place.whole)
        if names and self.chance.random() < 0.8:
            how.pop("acl", None)
            return AcquireAll(names=names, **who, **how)
        return Acquire(name=place.name, **who, **how)

    def _of(self, place: Ticket) -> dict[str, Any]:
        own = {field: getattr(place, field) for field in ("ns", "principal", "owner", "ttl_ms", "session", "badges")}
        if place.principal == "solo" and "quotas" in self.on:
            own |= {"payer": f"{NS}/solo", "waiting_max": 3}
        return own

    def _come_back(self) -> Command | None:
        """Who waits asks again with its ticket."""
        places = self.found(Ticket)
        return self._back(self.chance.choice(places)) if places else None

    def _back(self, place: Ticket) -> Command:
        self._borne = set()
        fields = ("mode", "slots", "units", "request_key", "replaces", "again")
        how = self._of(place) | {field: getattr(place, field) for field in fields}
        how |= {"fresh_lease_id": self.id("L"), "ticket_id": place.lease_id} | self.maybe(0.5, wait=True)
        if place.whole:
            names = tuple(part.name for part in place.whole)
            return AcquireAll(names=names, ticket=place.whole[0].number, **how)
        return Acquire(name=place.name, ticket=place.number, **how)

    # Owners

    def _lease(self) -> tuple[str, Holder] | None:
        held = [(lock.name, each) for lock in self.found(LockRecord) for each in lock.holders]
        return self.chance.choice(held) if held else None

    def _proof(self, hold: Holder) -> dict[str, Any]:
        by_session = hold.session is not None and self.chance.random() < 0.3
        proof = {"session": hold.session} if by_session else {"lease_id": hold.lease_id}
        return {"ns": NS, "principal": hold.principal, **proof}

    def _release(self) -> Command | None:
        if (lease := self._lease()) is None:
            return None
        name, hold = lease
        more: dict[str, Any] = {}
        if self.bears("done marks", 0.4):
            more = {"done_ms": 30_000}
        elif self.bears("attempts", 0.5):
            more = {"failed": True, "retry_ms": self.chance.choice((0, 2_000))}
        return Release(name=name, **self._proof(hold), **more)

    def _renew(self) -> Command | None:
        if (lease := self._lease()) is None:
            return None
        name, hold = lease
        return Renew(name=name, **self._proof(hold), **self.maybe(0.3, ttl_ms=self.chance.choice((5_000, 30_000))))

    def _note_step(self) -> Command | None:
        """An owner notes that a step begins, or how one that it began has ended."""
        if (lease := self._lease()) is None:
            return None
        name, hold = lease
        lock = self.records.get(lock_key(NS, name))
        begun = [each for each in lock.effects if each.state == EFFECT_BEGUN] if isinstance(lock, LockRecord) else []
        self._borne.add("steps")
        key, id_, state = self.chance.choice("pq"), self.id("E"), EFFECT_BEGUN
        if begun and self.chance.random() < 0.6:
            last = self.chance.choice(begun)
            key, id_, state = last.key, last.id, self.chance.choice((EFFECT_DONE, EFFECT_FAILED, EFFECT_IN_DOUBT))
        return Renew(name=name, **self._proof(hold), effect=EffectNote(key=key, id=id_, state=state))

    def _number(self) -> Command:
        """A number of a series: a job that counts may also be held, closed and listed."""
        self._borne.add("numbers")
        name, who = self.chance.choice(self.names), self.chance.choice(("team", "solo"))
        if self.chance.random() < 0.3:
            number, key = self.chance.randint(1, 3), self.id("n")
            return ReturnNumber(ns=NS, name=name, principal=who, number=number, request_key=key)
        asked: dict[str, Any] = {"owner": self.id("n"), "request_key": self.id("n"), "badges": (who,)}
        just: dict[str, Any] = self.chance.choice(({}, {}, {}, {"number": self.chance.randint(1, 4)}, {"at_least": 3}))
        return TakeNumber(ns=NS, name=name, principal=who, **asked, **just)

    def _share(self) -> Command | None:
        """An owner shares its job; rather one that has a place in its line, too, as a part of a claim-all."""
        waiting = {(each.name, each.session) for each in self.found(Ticket) if each.session is not None}
        held = [(lock.name, each) for lock in self.found(LockRecord) for each in lock.holders if each.mode == EXCLUSIVE]
        held = [each for each in held if (each[0], each[1].session) in waiting] or held
        if not held:
            return None
        name, hold = self.chance.choice(held)
        self._borne.add("share()")
        return Renew(name=name, **self._proof(hold), mode=SHARED)

    def _transfer(self) -> Command | None:
        live = [each for each in self.found(SessionRecord) if not each.ended_ms]
        if (lease := self._lease()) is None or not live:
            return None
        self._borne.add("transfer")
        heir = self.maybe(0.8, to_session=self.chance.choice(live).id) or {"to_owner": "heir"}
        return Transfer(name=lease[0], fresh_lease_id=self.id("L"), **self._proof(lease[1]), **heir)

    def _leave(self) -> Command | None:
        places = self.found(Ticket)
        if not places:
            return None
        place = self.chance.choice(places)
        about = {"ns": NS, "name": place.name, "principal": place.principal}
        return Leave(**about, ticket=place.number, ticket_id=place.lease_id)

    def _withdraw(self) -> Command | None:
        """Somebody gives up, or hung up: a place, or a hold that may be in use."""
        lease = self._lease()
        made = self.chance.choice([*self.found(Ticket), *([lease] if lease is not None else [])] or [None])
        if made is None:
            return None
        name, of = made if isinstance(made, tuple) else (made.name, made)
        names = tuple(part.name for part in getattr(of, "whole", ())) or (name,)
        self._borne.add("withdrawals")
        by_key = of.request_key is not None and self.chance.random() < 0.7
        proof: dict[str, Any] = {"request_key": of.request_key} if by_key else {"fresh_lease_id": of.lease_id}
        if isinstance(of, Ticket):
            number = min(of.whole, key=lambda part: part.name).number if of.whole else of.number
            proof |= {"ticket": number, "ticket_id": of.lease_id}
        return Withdraw(ns=NS, principal=of.principal, names=names, **proof)

    # Sessions and operators

    def _open(self) -> Command:
        principal = self.chance.choice(("team", "team", "solo"))
        live = [each.id for each in self.found(SessionRecord) if not each.ended_ms and each.principal == principal]
        more: dict[str, Any] = {}
        if live and self.bears("nested sessions", 0.7):
            more["parent"] = self.chance.choice(live)
        if principal == "solo" and "quotas" in self.on:
            more["payer"] = f"{NS}/solo"
        fresh = self.id("S")
        return OpenSession(fresh_id=fresh, ns=NS, principal=principal, owner=fresh, ttl_ms=SESSION_MS, **more)

    def _session(self) -> Command | None:
        live = [each for each in self.found(SessionRecord) if not each.ended_ms]
        if not live or (len(live) < 5 and self.chance.random() < 0.3):
            return self._open()
        one = self.chance.choice(live)
        if self.chance.random() < 0.5:
            return KeepSession(session=one.id, principal=one.principal, active=True)
        if self.bears("breaks"):
            return EndSession(session=one.id, principal=None, by="op", reason="stuck")
        return EndSession(session=one.id, principal=one.principal)

    def _job(self) -> dict[str, Any]:
        return {"ns": NS, "name": self.chance.choice(self.names), "principal": "op"}

    def _break(self) -> Command:
        self._borne.add("breaks")
        return Break(reason="stuck", **self._job())

    def _close(self) -> Command:
        self._borne.add("closures")
        if self.chance.random() < 0.4:
            return Open(**self._job())
        return Close(reason="upgrade", length_ms=self.chance.choice((2_000, 20_000)), **self._job())

    def _close_prefix(self) -> Command:
        self._borne.add("prefix closures")
        about = self._job() | {"name": "lab/"}
        return Open(**about) if self.chance.random() < 0.4 else Close(reason="upgrade", length_ms=9_000, **about)

    def _set_acl(self) -> Command:
        self._borne.add("access lists")
        acl = self.chance.choice(((), ("team",), ("solo",), ("team", "solo")))
        return SetAcl(acl=acl, admin=True, ahead=True, **self._job())

    def _grow(self) -> Command:
        self._borne.add("pools")
        return SetPool(**self._job() | {"name": "gpu"}, slots=self.chance.choice((2, 2, 3)))

    def _shrink(self) -> Command:
        self._borne.add("smaller pools")
        return SetPool(**self._job() | {"name": "gpu"}, slots=self.chance.choice((0, 1, 1, 2, None)))

    def _free(self) -> Command:
        self._borne.add("attempts")
        return Free(**self._job())


def is_about_the_ask(outcome: outcomes.Outcome) -> bool:
    """Whether it says that this ask can never succeed, whatever becomes of the job."""
    if isinstance(outcome, outcomes.Refused):
        return any(is_about_the_ask(each) for each in outcome.outcomes)
    return OUTCOMES[type(outcome).__name__].kind == NEVER_LIKE_THIS


def pairs_met(names: Iterable[str]) -> dict[tuple[str, str], int]:
    """In how many of these walks both of two features had an effect."""
    met = dict.fromkeys(PAIRS, 0)
    for name in names:
        walk = Swarm(name)
        for _ in range(STEPS):
            walk.step()
        for pair in PAIRS:
            met[pair] += walk.used.issuperset(pair)
    return met


def table(met: dict[tuple[str, str], int]) -> str:
    """The pairs, the rarest first."""
    rows = sorted(met.items(), key=lambda item: item[1])
    return "\n".join(f"{count:5}  {one} + {other}" for (one, other), count in rows)


def walked(name: str) -> list[Step]:
    walk = Swarm(name)
    made = [walk.step() for _ in range(STEPS)]
    return [Step(line_of(each.command, each.decision), f"{each.command}\n{text_of(each.decision)}") for each in made]
