"""Steps against a model that knows what was really noted, every try and how it ended, and what really happened outside.
Notes come late and twice, also from owners that are gone, and others share the job for a while."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from dibs.core.claims.effects import before
from dibs.core.commands import Break, Renew, Transfer, Withdraw
from dibs.core.lease_outcomes import EffectRefused, Renewed
from dibs.core.limits import EFFECT_TRIES_MAX
from tests.build import tries
from tests.core.test_effects import Store

KEYS = ("tag", "mail", "comment")
RUNNING = "running"


class World:
    """One job. `tried` has for each step how its tries ended, since the work began."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.store = Store()
        self.number = 0
        self.owner: str | None = None
        self.is_finished = False  # a done mark: the next claim is other work
        self.tried: dict[str, list[str]] = {}
        self.running: dict[str, str] = {}  # of the present owner, by step: the id of its try
        self.happened: set[str] = set()  # the steps that the outside knows, since the work began
        # By owner and step: states and ids of the notes of its last tries.
        self.sent: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        self.is_shared = False  # by the present owner

    def expected(self, key: str) -> str:
        ends = self.tried.get(key, [])
        if "done" in ends:
            return "done"
        if "in_doubt" in ends:
            return "in_doubt"
        return "failed" if ends else "new"

    def step(self) -> None:
        if self.owner is None:
            self.claims()
            return
        ways = [
            *[self.begins] * 12,
            *[self.ends] * 12,
            self.fails,
            self.dies,
            self.broken,
            self.hands_over,
            self.releases,
        ]
        self.chance.choice([*ways, self.finishes, self.gives_back, self.shares, *[self.hears_late] * 6])()

    def claims(self) -> None:
        if self.chance.random() < 0.2:  # and is undone: nobody has begun anything
            self.store.own("undone", request_key="u", again=self.is_finished)
            self.store.rules.one(Withdraw(ns="default", principal="p", names=("j",), request_key="u"))
            if self.is_finished:
                self.begins_anew()
            self.store.clock.advance(11 * 60_000)  # its key may be used again
            return
        self.number += 1
        self.owner = f"o{self.number}"
        self.store.own(self.owner, again=self.is_finished)
        if self.is_finished:
            self.begins_anew()

    def begins_anew(self) -> None:
        self.is_finished, self.tried, self.happened = False, {}, set()

    def note(self, owner: str, state: str, key: str, of: str | None) -> Any:
        if of is not None:
            self.sends(owner, key, state, of)
        return self.store.note(owner, state, key=key, id=of)

    def sends(self, owner: str, key: str, state: str, of: str) -> None:
        sent = [*self.sent[owner, key], (state, of)]
        last = list(dict.fromkeys(each for _, each in sent))[-1 - EFFECT_TRIES_MAX :]
        self.sent[owner, key] = [each for each in sent if each[1] in last]

    def hears_late(self) -> None:
        """A copy of a note arrives, of one of its owner's last tries; the owner may be gone. It changes nothing."""
        if not self.sent:
            return
        mine = [each for each in sorted(self.sent) if each[0] == self.owner]
        owner, key = self.chance.choice(mine or sorted(self.sent))
        statuses = self.store.statuses()
        sent = self.sent[owner, key]
        state, of = self.chance.choice((sent[0], *sent))
        self.store.note(owner, state, key=key, id=of)
        assert self.store.statuses() == statuses

    def shares(self) -> None:
        """Somebody else has the job, too, for a while: what it does says nothing about the steps."""
        if not self.is_shared:
            self.store.rules.one(Renew(ns="default", name="j", principal="p", lease_id=self.owner, mode="shared"))
        self.is_shared = True
        self.number += 1
        other = f"o{self.number}"
        self.store.own(other, mode="shared", again=True)
        statuses = self.store.statuses()
        self.store.release(other, failed=self.chance.choice((True, False)))
        assert self.store.statuses() == statuses

    def begins(self) -> None:
        key, self.number = self.chance.choice(KEYS), self.number + 1
        told_done = self.expected(key) == "done"
        outcome = self.store.note(self.owner or "", "begun", key=key, id=f"t{self.number}")
        if key in self.running or (self.is_shared and not told_done):
            assert isinstance(outcome, EffectRefused)
            return
        assert isinstance(outcome, Renewed)
        assert outcome.effect is not None
        told = before(outcome.effect)
        assert told == self.expected(key), (key, self.tried)
        assert key not in self.happened or told in ("done", "in_doubt")
        if told != "done":
            self.sends(self.owner or "", key, "begun", f"t{self.number}")
            self.running[key] = f"t{self.number}"
            if self.chance.random() < 0.5:
                self.happened.add(key)

    def ends(self) -> None:
        if not self.running:
            return
        key = self.chance.choice(sorted(self.running))
        known = "done" if key in self.happened else "failed"
        how = self.chance.choice((known, "in_doubt"))
        named = self.chance.choice((self.running[key], None))  # its program was killed, or keeps no ids
        for _ in range(self.chance.choice((1, 2))):  # perhaps its reply was lost
            self.note(self.owner or "", how, key, named)
        self.sends(self.owner or "", key, how, self.running[key])
        del self.running[key]
        self.tried.setdefault(key, []).append(how)

    def is_gone(self) -> None:
        for key in self.running:  # it never said how these ended
            self.tried.setdefault(key, []).append("in_doubt")
        self.running, self.owner, self.is_shared = {}, None, False

    def fails(self) -> None:
        self.store.release(self.owner or "", failed=True)
        self.is_gone()

    def dies(self) -> None:
        self.store.dies(self.owner or "")
        self.is_gone()

    def broken(self) -> None:
        self.store.rules.one(Break(ns="default", name="j", principal="op", reason="r"))
        self.is_gone()

    def gives_back(self) -> None:
        self.store.release(self.owner or "", uncounted=True)
        self.is_gone()

    def hands_over(self) -> None:
        self.number += 1
        heir = f"o{self.number}"
        asked: dict[str, Any] = {"ns": "default", "name": "j", "principal": "p", "lease_id": self.owner}
        self.store.rules.one(Transfer(**asked, fresh_lease_id=heir, to_owner=heir))
        is_shared = self.is_shared
        self.is_gone()
        self.owner, self.is_shared = heir, is_shared

    def releases(self) -> None:
        self.store.release(self.owner or "")
        self.is_gone()
        self.begins_anew()

    def finishes(self) -> None:
        self.store.release(self.owner or "", done_ms=3_600_000)
        self.is_gone()
        self.is_finished = True


@pytest.mark.promise("effect:once", "effect:doubt-told")
@pytest.mark.parametrize("seed", range(tries(40, 2_000)))
def test_every_owner_is_told_what_was_really_noted(seed: int) -> None:
    world = World(seed)
    for _ in range(240):
        world.step()
    while world.owner is None:  # what is over shows when somebody claims
        world.claims()
    statuses: dict[str, Any] = world.store.statuses()
    for key in KEYS:
        assert statuses.get(key, "new") == (RUNNING if key in world.running else world.expected(key))
