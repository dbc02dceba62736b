"""Pools, slots and units: random walks that the dumb model predicts, and what single steps show."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import lease_outcomes
from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Break, Leave, OpenSession, Release, SetPool, Transfer
from dibs.core.limits import TICKET_MS
from dibs.core.records import EXCLUSIVE, SHARED
from tests.build import tries
from tests.core.test_coordination import NS, WORDS, Predicted, granted_in
from tests.models.queue import Run

if TYPE_CHECKING:
    from dibs.core import outcomes
    from dibs.core.commands import Command
    from tests.models.queue import Wish

JOBS = ("gpu", "gpu", "a", "b")
POOLS = ("gpu", "a")
CALLERS = ("s1", "s2", "s3", None, None)


class Walk(Predicted):
    """Many claims, units and changes of pools on few jobs, each answer compared with the model's."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        ends_ms = self.now_ms + 60_000
        self.ask(OpenSession(ns=NS, fresh_id="s3", principal="team", owner="s3", ttl_ms=60_000))
        self.world.runs["s3"] = Run("team", "s3", 60_000, ends_ms)

    def asked(self, names: tuple[str, ...]) -> dict[str, Any]:
        chance = self.chance
        session = chance.choice(CALLERS)
        shared = chance.random() < 0.08
        return {
            "ns": NS,
            "principal": "team",
            "owner": session or "nobody",
            "fresh_lease_id": self.fresh_id(),
            "session": session,
            "ttl_ms": chance.choice((5_000, 60_000, 3_600_000)),
            "mode": SHARED if shared else EXCLUSIVE,
            "slots": chance.choice((0, 0, 0, 0, 2, 3)) if len(names) == 1 and not shared else 0,
            "units": chance.choice((1, 1, 1, 2, 3)) if len(names) == 1 and not shared else 1,
            "request_key": None,
            "delay_ms": 0,
            "max_attempts": 0,
        }

    def expected(self, command: Acquire | AcquireAll, wish: Wish) -> set[str]:
        """While a session polls, the rules may report a deadlock that the model takes for none: whoever polls again and
        again is refused by a place that came later, too."""
        polled = self.is_polled()
        found = super().expected(command, wish)
        return found | {"deadlock"} if polled and found & {"queued", "held", "refused"} else found

    def check_cycle(self, command: Command, outcome: outcomes.Deadlock) -> None:
        if not self.is_polled():
            super().check_cycle(command, outcome)

    def is_polled(self) -> bool:
        return any(run.want is not None for run in self.world.runs.values())

    def step(self) -> None:
        getattr(self, self.chance.choice(_STEPS))()
        self.to(self.now_ms + 1)  # what a poll was refused for is older than what came after it

    def one(self) -> None:
        job = self.chance.choice(JOBS)
        asked = self.asked((job,))
        self.claim(Acquire(name=job, wait=self.chance.random() < 0.8, **asked), self.wish((job,), asked))

    def all(self) -> None:
        names = tuple(sorted({self.chance.choice(JOBS), self.chance.choice(JOBS)}))
        asked = self.asked(names)
        if len(names) > 1:
            self.claim(AcquireAll(names=names, wait=self.chance.random() < 0.8, **asked), self.wish(names, asked))

    def some(self) -> None:
        count = self.chance.randint(1, 3)
        asked = self.asked(POOLS)
        names = ("b", "a", "gpu")
        expected, _ = self.world.claim_any(self.wish(names, asked), count)
        outcome = self.ask(AcquireAny(names=names, count=count, **asked))
        assert WORDS[type(outcome)] == expected
        assert len(granted_in(outcome)) in (0, count)
        self.agree()

    def let_go(self) -> None:
        if self.world.holds:
            hold = self.chance.choice(self.world.holds)
            job, lease = hold.job, hold.wish.lease
            assert self.world.release(job, "team", lease, None) == "released"
            self.ask(Release(ns=NS, name=job, principal="team", lease_id=lease))
            self.agree()

    def hand_over(self) -> None:
        if self.world.holds:
            hold = self.chance.choice(self.world.holds)
            job, lease, heir, fresh = hold.job, hold.wish.lease, self.chance.choice(CALLERS), self.fresh_id()
            expected = self.world.transfer(job, "team", lease, None, heir, fresh)
            outcome = self.ask(
                Transfer(
                    ns=NS,
                    name=job,
                    principal="team",
                    fresh_lease_id=fresh,
                    lease_id=lease,
                    to_session=heir,
                    to_owner=None if heir else "heir",
                )
            )
            assert WORDS[type(outcome)] == expected
            self.agree()

    def pool(self) -> None:
        job, slots = self.chance.choice(POOLS), self.chance.choice((None, 0, 1, 2, 3, 3, 4))
        self.world.set_pool(job, slots)
        outcome = self.ask(SetPool(ns=NS, name=job, principal="op", slots=slots))
        assert isinstance(outcome, lease_outcomes.PoolSet)
        self.agree()

    def leave(self) -> None:
        if self.world.line:
            ticket_id = self.chance.choice(self.world.line).wish.lease
            names, number, _ = next(place for place in self.places if place[2] == ticket_id)
            assert self.world.leave(ticket_id, "team")
            self.ask(Leave(ns=NS, name=names[0], principal="team", ticket=number, ticket_id=ticket_id))
            self.agree()

    def take_away(self) -> None:
        job = self.chance.choice(JOBS)
        self.world.break_(job)
        self.ask(Break(ns=NS, name=job, principal="op", reason="why"))
        self.agree()

    def time(self) -> None:
        self.to(self.now_ms + self.chance.choice((500, TICKET_MS)))


_STEPS = (*["one"] * 12, *["all"] * 2, *["let_go"] * 4, *["pool"] * 2)
_STEPS += ("some", "hand_over", "leave", "take_away", "time")


@pytest.mark.parametrize("part", range(4))
def test_every_answer_about_a_pool_is_the_one_the_model_gives(part: int) -> None:
    for seed in range(tries(60, 5_000)):
        walk = Walk(Random(f"{part}/{seed}"))
        try:
            for _ in range(40):
                walk.step()
        except AssertionError as error:
            error.add_note(f"part {part}, seed {seed}")
            raise
