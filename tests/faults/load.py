"""Clients that claim, renew and release through every fault of the server, and note the answers they got."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dibs.base.clock import steady_ms
from dibs.client.transport import Ask
from tests.models.history import ObservedHold
from tests.programs import WAIT_S_MAX, pause
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.wire.documents import Reply

TIMEOUT_MS = 5_000
RETRY_S = 0.005
LONG_TTL_S = 600
SHORT_TTL_S = 1
SURE = ("lease_not_current", "conflict")  # refusals that are final; all others mean "ask again"


@dataclass
class Intent:
    """One claim, from the request to its outcome. Its owner name is unique, so that it can be found in history."""

    job: str
    owner: str
    asked_ms: int
    left_behind: bool = False  # claimed for a short time, and never released
    lease_id: str = ""
    token: int = 0
    got_ms: int = 0
    asked_again: int = 0
    checkpoint: str | None = None
    let_go_ms: int | None = None
    released: bool = False


class Client(threading.Thread):
    """`where` gives the server's present URL. After `stop` the client finishes its present work, and claims a last
    job."""

    def __init__(self, number: int, seed: int, jobs: list[str], where: Callable[[], str], token: str) -> None:
        super().__init__(daemon=True, name=f"client-{number}")
        self.intents: list[Intent] = []
        self.acknowledged = 0
        self.wrong: list[str] = []
        self._random = random.Random(f"{seed} {number}")
        self._number = number
        self._jobs = jobs
        self._where = where
        self._token = token
        self._stop_now = threading.Event()

    def stop(self) -> None:
        self._stop_now.set()

    def run(self) -> None:
        try:
            while not self._stop_now.is_set():
                self._work(self._random.choice(self._jobs))
            self._work(f"last-{self._number}", keep=True)
        except BaseException as error:
            self.wrong.append(f"{self.name}: {type(error).__name__}: {error}")

    def _work(self, job: str, *, keep: bool = False) -> None:
        intent = self._claim(job, left_behind=not keep and self._random.random() < 0.03)
        if not intent.token or intent.left_behind:
            return
        if self._random.random() < 0.3:
            self._claim_again(intent)
        if keep or self._random.random() < 0.5:
            self._renew(intent)
        if not keep:
            self._release(intent)

    def _claim(self, job: str, *, left_behind: bool) -> Intent:
        owner = f"{self._number}-{len(self.intents)}"
        intent = Intent(job, owner, steady_ms(), left_behind)
        self.intents.append(intent)
        body = self._ask("acquire", intent, self._claim_of(intent)).body or {}
        if body.get("status") == "acquired":
            self._check(body["owner"] == owner, f"{owner} was given the lease of {body['owner']}")
            intent.lease_id, intent.token = body["lease_id"], body["fencing_token"]
            intent.got_ms = steady_ms()
        return intent

    def _claim_of(self, intent: Intent) -> dict[str, Any]:
        ttl_s = SHORT_TTL_S if intent.left_behind else LONG_TTL_S
        return {"owner": intent.owner, "request_key": f"key-{intent.owner}", "ttl_seconds": ttl_s}

    def _claim_again(self, intent: Intent) -> None:
        body = self._ask("acquire", intent, self._claim_of(intent)).body or {}
        same = (body.get("lease_id"), body.get("fencing_token")) == (intent.lease_id, intent.token)
        self._check(same, f"{intent} was repeated, and got {body}")

    def _renew(self, intent: Intent) -> None:
        checkpoint = f"so far {intent.owner}"
        reply = self._ask("renew", intent, {"lease_id": intent.lease_id, "checkpoint": checkpoint})
        self._check(reply.status == 200, f"{intent} could not be renewed: {reply.body}")
        intent.checkpoint = checkpoint

    def _release(self, intent: Intent) -> None:
        intent.let_go_ms = steady_ms()
        before = intent.asked_again
        reply = self._ask("release", intent, {"lease_id": intent.lease_id})
        # A job remembers its last few endings only. A release that is repeated after that many gets "not yours".
        # History still has the release: the test looks there in both cases.
        self._check(
            reply.status == 200 or intent.asked_again > before,
            f"{intent} could not be released: {reply.body}",
        )
        intent.released = True

    def _ask(self, verb: str, intent: Intent, document: dict[str, Any]) -> Reply:
        """Ask until there is an answer: the same question, to whichever server is up."""
        give_up_ms = steady_ms() + int(2 * WAIT_S_MAX * 1000)
        while True:
            transport = connect(self._where(), namespace=None, token=self._token, timeout_ms=TIMEOUT_MS)
            reply = transport.ask(Ask(verb, intent.job, document))
            if reply.status == 200 or (reply.body or {}).get("code") in SURE:
                self.acknowledged += 1
                return reply
            assert steady_ms() < give_up_ms, f"no answer to {verb} {intent}: {reply.body}"
            intent.asked_again += 1
            pause(RETRY_S)

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def holds(self) -> list[ObservedHold]:
        """The times in which this client was sure to hold its jobs, by its own clock."""
        now_ms = steady_ms()
        found = []
        for intent in self.intents:
            if intent.token:
                until_ms = intent.let_go_ms or now_ms
                if intent.left_behind:
                    until_ms = intent.asked_ms + SHORT_TTL_S * 1000
                found.append(
                    ObservedHold(intent.job, intent.owner, intent.token, intent.got_ms, max(intent.got_ms, until_ms))
                )
        return found
