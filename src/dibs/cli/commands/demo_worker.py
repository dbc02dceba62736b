"""One worker of the demo: `python -m dibs.cli.commands.demo_worker NAME FOLDER`, a program like any that uses the SDK.

FOLDER has the backlog and the ledger. The end of stdin is the starting shot. The worker reports each action on stdout
as one JSON line, with the time on the steady clock of the machine. The ledger has a line for every side effect: dibs
neither writes nor reads it, so an effect with two lines happened twice.
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
from dibs.base.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    Document = dict[str, Any]

STEPS = ("read the issue", "reproduced it", "wrote a failing test", "fixed it", "opened a pull request")
# The worker is killed after this many steps, in the middle of the next one. It takes so long that the kill is in time.
STEPS_BEFORE_DEATH = 2
FATAL_SECONDS = 8.0
TTL_SECONDS = 4
POLL_SECONDS = 0.2
DONE_SECONDS = 300


def checkpoint_of(steps: int) -> str:
    """The checkpoint of an owner after this many steps, for the next owner."""
    return f"{steps}/{len(STEPS)} {STEPS[steps - 1]}"


def steps_in(checkpoint: str | None) -> int:
    """Return how many steps the previous owner had done."""
    return int(checkpoint.partition("/")[0]) if checkpoint else 0


class Worker:
    """Goes through the backlog until every job is done, by any worker."""

    def __init__(self, client: dibs.Client, jobs: list[Document], ledger: str, tell: Callable[..., None]) -> None:
        self._client = client
        self._left = list(jobs)
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._tell = tell
        self._told: set[tuple[str, str | None]] = set()
        self._nobody = threading.Event()

    def run(self) -> None:
        while self._left:
            held: dict[str, dibs.JobHeld] = {}
            if not any(self._tried(job, held) for job in list(self._left)) and held:
                # Others hold all jobs that are left. A live owner renews its lease, a dead owner's lease ends.
                name = min(held, key=lambda each: held[each].retry_after or 0)
                left_ms = held[name].answer.get("remaining_ms") or 0
                self._tell("waits", job=name, owner=held[name].owner, left_ms=left_ms)
                self._nobody.wait(POLL_SECONDS)

    def _tried(self, job: Document, held: dict[str, dibs.JobHeld]) -> bool:
        """Tell whether this worker worked on the job. Adds a job that somebody else has to `held`."""
        name = job["name"]
        try:
            with self._client.claim(name, ttl=TTL_SECONDS) as claim:
                self._work(job, claim)
            self._left.remove(job)
            return True
        except dibs.JobDone:
            self._left.remove(job)
        except dibs.JobHeld as refusal:
            held[name] = refusal
            if (name, refusal.owner) not in self._told:
                self._told.add((name, refusal.owner))
                self._tell("skipped", job=name, owner=refusal.owner)
        except dibs.LeaseLost as lost:
            self._tell("lost", job=name, why=lost.why)
        return False

    def _work(self, job: Document, claim: dibs.Claim) -> None:
        name, owner, checkpoint = job["name"], None, None
        if claim.previous is not None:
            owner, checkpoint = claim.previous.owner, claim.previous.checkpoint
        self._tell("claimed", job=name, attempt=claim.attempt, before=owner, checkpoint=checkpoint)
        for step in range(steps_in(checkpoint) + 1, len(STEPS) + 1):
            fatal = job["fatal"] and claim.attempt == 1 and step == STEPS_BEFORE_DEATH + 1
            claim.lost.wait(FATAL_SECONDS if fatal else job["paces_ms"][step - 1] / 1000)  # the work
            claim.check()
            # A line is one write to a file opened with O_APPEND, so lines of several workers never mix.
            os.write(self._ledger, f"{name}\t{step}\n".encode())
            claim.checkpoint(checkpoint_of(step))
            self._tell("step", job=name, step=step)
        claim.done(checkpoint_of(len(STEPS)), done=DONE_SECONDS)
        self._tell("done", job=name)


def main() -> int:
    worker, folder = sys.argv[1:]

    def tell(event: str, **fields: Any) -> None:
        line = json.dumps({"worker": worker, "event": event, "at_ms": steady_ms(), **fields})
        os.write(sys.stdout.fileno(), f"{line}\n".encode())  # all workers write to one pipe

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the `with` block releases the claim
    logging.getLogger("dibs").setLevel(logging.ERROR)  # a claim could not be released: the demo reports it
    try:
        with dibs.connect(owner=worker) as client, open(f"{folder}/backlog", encoding="utf-8") as backlog:
            client.list("dibs-demo-")  # connect before the race begins
            tell("ready")
            sys.stdin.read()
            Worker(client, json.load(backlog), f"{folder}/ledger", tell).run()
    except dibs.DibsError as error:
        tell("failed", why=error.details)
        return 1
    except BrokenPipeError:  # the demo has ended
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
