"""Three processes of one session claim the same jobs through a network that loses, delays and repeats messages.

Each drives the real flow of a claim (`client/pending.py`), repeats what got no answer, and gives up. Nobody lets go of
what it was told of; only an operator takes it away. `DIBS_SESSION_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from dibs.base.errors import FATE_UNKNOWN
from dibs.client.flow import Pause, status_of
from dibs.client.pending import PendingClaim
from dibs.client.transport import Ask
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import Inspect
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.wire.documents import Reply, reply_to
from dibs.wire.requests import command_for, shape
from tests.build import tries

SEED = os.environ.get("DIBS_SESSION_SEED")
JOBS = ("a", "b", "c")
STEPS = 250
AWAY = Reply(status=503, body={"code": "upstream_unavailable", "details": FATE_UNKNOWN})


class Network:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = self.keys = 0
        self._rules = Coordinator(MemoryStore(lambda: 1_000 + self.now_ms))
        self.session = (self.decide(Ask("session-open", "", {"owner": "o", "ttl_seconds": 3600})).body or {})[
            "session_id"
        ]
        self.under_way: list[tuple[Process, int, Ask]] = []
        self.processes = [Process(self) for _ in range(3)]

    def decide(self, asked: Ask) -> Reply:
        """At once: who waits in line is told its place."""
        document = shape(asked.verb, asked.document)
        return reply_to(asked.verb, self._rules.one(command_for(asked.verb, "d", asked.name, document, LOCAL)))

    def step(self) -> None:
        odds, one, job = self.chance.random(), self.chance.choice(self.processes), self.chance.choice(JOBS)
        if odds < 0.50:
            self._deliver()
        elif odds < 0.62 and one.waits_for:
            one.go_on(AWAY)
        elif odds < 0.82:
            one.act()
        elif odds < 0.96:
            self.decide(Ask("break", job, {"reason": "stuck"}))
            for each in self.processes:
                each.has.pop(job, None)
        elif odds < 0.98:
            self.decide(Ask("acquire", job, {"owner": "somebody else", "ttl_seconds": 3600}))
        self._check()

    def _deliver(self) -> None:
        if self.under_way:
            at = self.chance.randrange(len(self.under_way))
            process, number, asked = self.under_way[at]
            if self.chance.random() < 0.8:  # else a copy of it stays
                del self.under_way[at]
            reply = self.decide(asked)
            if process.waits_for == number and self.chance.random() < 0.7:
                process.go_on(reply)

    def _check(self) -> None:
        for process in self.processes:
            for job, lease in process.has.items():
                lock = self._rules.one(Inspect(ns="d", name=job)).lock  # type: ignore[attr-defined]
                assert lease in [each.lease_id for each in lock.holders], f"{job} was taken from who was told of it"


class Process:
    def __init__(self, network: Network) -> None:
        self._network = network
        self._claim: PendingClaim | None = None
        self._flow: Any = None
        self._gives_up = False
        self._asked = self.waits_for = 0  # the numbers of requests
        self.has: dict[str, str] = {}  # the lease of each job that it was told of

    def act(self) -> None:
        """Begin a claim, or be interrupted."""
        if self._claim is None:
            self._claim = self._new_claim()
            self._flow, self._gives_up = self._claim.claim(), False
        elif self._network.chance.random() < 0.1:
            self._flow, self._gives_up = self._claim.withdraw(), True
        else:
            return
        self.go_on(None)

    def _new_claim(self) -> PendingClaim:
        network, chance = self._network, self._network.chance
        verb = chance.choice(("acquire", "acquire-all", "acquire-all", "acquire-any"))
        names = chance.sample(JOBS, 2)
        network.keys += 1
        document: dict[str, Any] = {"session_id": network.session, "request_key": str(network.keys)}
        if verb != "acquire":
            document["names"] = names
        if verb == "acquire-any":
            document["count"] = 2
        name, wait_ms = names[0] if verb == "acquire" else "", chance.choice((0, 30_000))
        return PendingClaim(verb, name, document, own_key=True, wait_ms=wait_ms, steady=lambda: network.now_ms)

    def go_on(self, answer: Reply | None) -> None:
        self.waits_for = 0
        try:
            while not isinstance(step := self._flow.send(answer), Ask):
                answer = None
                if isinstance(step, Pause):
                    self._network.now_ms += step.ms // 4
        except StopIteration as end:
            self._end(end.value)
        else:
            self._asked += 1
            self.waits_for = self._asked
            self._network.under_way += [(self, self._asked, step)] * self._network.chance.choice((1, 1, 2))

    def _end(self, reply: Any) -> None:
        claim, self._claim = self._claim, None
        if self._gives_up:
            return
        if status_of(reply) == "acquired":
            self.has |= {each["name"]: each["lease_id"] for each in reply.body.get("leases") or [reply.body]}
        elif reply is AWAY and claim is not None and self._network.chance.random() < 0.7:
            self._claim, self._flow, self._gives_up = claim, claim.withdraw(), True
            self.go_on(None)


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
def test_no_process_of_a_session_takes_a_job_from_another_that_was_told_of_it() -> None:
    for seed in [int(SEED)] if SEED else range(tries(40, 5_000)):
        network = Network(seed)
        try:
            for _ in range(STEPS):
                network.step()
        except AssertionError as error:
            raise AssertionError(f"{error} (DIBS_SESSION_SEED={seed})") from error
