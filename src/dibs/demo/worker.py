"""One worker of the demo: `python -m dibs.demo.worker NAME`, a program like any other that uses the SDK.

It reports each action on stdout as one JSON line, with the time on the machine's steady clock. On stdin it gets one
line with its order. That line is also the starting shot, so that all workers start at once. DIBS_URL and
DIBS_NAMESPACE say where the claims are.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import dibs
from dibs.clock import steady_ms
from dibs.demo.ledger import Effect, Ledger
from dibs.demo.plan import PREFIX, STEPS, STEPS_BEFORE_DEATH, checkpoint_of, steps_in

if TYPE_CHECKING:
    from collections.abc import Callable

    Document = dict[str, Any]
    Tell = Callable[..., None]

POLL_SECONDS = 0.2
DONE_SECONDS = 300
# The step in which the demo kills a worker takes this long, so that the kill comes in time.
FATAL_SECONDS = 8.0


class Worker:
    """Goes through the backlog until every job is done, by any worker."""

    def __init__(self, name: str, client: dibs.Client, orders: Document, ledger: Ledger, tell: Tell) -> None:
        self._name = name
        self._client = client
        self._orders = orders
        self._ledger = ledger
        self._tell = tell
        self._held: dict[str, dibs.JobHeld] = {}  # the jobs that other workers held in this round
        self._told: set[tuple[str, str | None]] = set()
        self._nobody = threading.Event()

    def run(self) -> None:
        left = list(self._orders["jobs"])
        while left:
            self._held = {}
            worked = any(self._tried(job, left) for job in list(left))
            if not worked and self._held:
                self._wait()

    def _tried(self, job: Document, left: list[Document]) -> bool:
        """Whether this worker worked on the job. A job that is done is removed from `left`."""
        name = job["name"]
        try:
            with self._client.claim(name, ttl=self._orders["ttl"]) as claim:
                self._work(job, claim)
            left.remove(job)
            return True
        except dibs.JobDone:
            left.remove(job)
        except dibs.JobHeld as held:
            self._skip(name, held)
        except dibs.LeaseLost as lost:
            self._tell("lost", job=name, why=lost.why)
        return False

    def _skip(self, name: str, held: dibs.JobHeld) -> None:
        self._held[name] = held
        if (name, held.owner) not in self._told:
            self._told.add((name, held.owner))
            self._tell("skipped", job=name, owner=held.owner)

    def _wait(self) -> None:
        """Others hold all jobs that are left: look again soon. A live owner renews its lease, a dead owner's lease
        ends."""
        name, held = min(self._held.items(), key=lambda each: each[1].retry_after or 0)
        self._tell("waits", job=name, owner=held.owner, left_ms=held.answer.get("remaining_ms") or 0)
        self._nobody.wait(POLL_SECONDS)

    def _work(self, job: Document, claim: dibs.Claim) -> None:
        done = steps_in(claim.previous.checkpoint if claim.previous else None)
        self._tell(
            "claimed",
            job=job["name"],
            attempt=claim.attempt,
            fencing_token=claim.fencing_token,
            before=claim.previous.owner if claim.previous else None,
            checkpoint=claim.previous.checkpoint if claim.previous else None,
        )
        for step in range(done + 1, len(STEPS) + 1):
            fatal = job["fatal"] and claim.attempt == 1 and step == STEPS_BEFORE_DEATH + 1
            claim.lost.wait(FATAL_SECONDS if fatal else job["paces_ms"][step - 1] / 1000)  # the work
            claim.check()
            self._ledger.write(Effect(job["name"], step, self._name, claim.fencing_token))
            claim.checkpoint(checkpoint_of(step))
            self._tell("step", job=job["name"], step=step)
        claim.done(checkpoint_of(len(STEPS)), done=DONE_SECONDS)
        self._tell("done", job=job["name"])


def tell(event: str, **fields: Any) -> None:
    """Writes one line in one write. Ends the worker if nobody reads its output any more."""
    line = json.dumps({"event": event, "at_ms": steady_ms(), **fields}) + "\n"
    try:
        os.write(sys.stdout.fileno(), line.encode())
    except BrokenPipeError:
        raise SystemExit(1) from None


def main() -> int:
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # through the `with` block, which releases the claim
    logging.getLogger("dibs").setLevel(logging.ERROR)  # a claim could not be released: the demo reports it
    name = sys.argv[1]
    with dibs.connect(owner=name) as client:
        try:
            client.list(PREFIX)  # connect before the race begins
            tell("ready")
            orders = json.loads(sys.stdin.readline() or "{}")
            if orders:
                ledger = Ledger(orders["ledger"])
                Worker(name, client, orders, ledger, tell).run()
                ledger.close()
        except dibs.DibsError as error:
            tell("failed", why=error.details)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
