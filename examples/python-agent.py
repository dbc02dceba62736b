#!/usr/bin/env python3
"""An agent: takes one job after the other from a backlog and runs a command for it, until all are done.

    python-agent.py BACKLOG COMMAND [ARG...]      BACKLOG has one job name a line; COMMAND ARG... JOB is what is run

Start as many as you like, on this machine or, with DIBS_URL set, on many. A job has one owner at a time. If an agent
dies, its job is free again and another takes it over. If an agent loses a job, it stops the command. A job that fails
is tried again later, meanwhile the others get done; after three failures it is parked for a person, and the exit code
is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import dibs

DAY_SECONDS = 24 * 3600
LOOK_SECONDS_MAX = 1.0
ATTEMPTS_MAX = 3
RETRY_SECONDS = float(os.environ.get("RETRY_SECONDS", "30"))


def main(words: list[str]) -> int:
    if len(words) < 2:
        print("usage: python-agent.py BACKLOG COMMAND [ARG...]", file=sys.stderr)
        return 64
    backlog = [line for line in Path(words[0]).read_text().splitlines() if line]
    owner = os.environ.get("DIBS_OWNER") or f"python-agent-{os.getpid()}"
    parked: list[str] = []
    with dibs.connect(owner=owner) as client:
        while backlog:
            try:
                with client.claim_any(backlog, max_attempts=ATTEMPTS_MAX) as claim:  # heartbeats by itself
                    if claim.previous and claim.previous.checkpoint:
                        print(f"{owner}: {claim.name} was left at: {claim.previous.checkpoint}", file=sys.stderr)
                    code = worked(claim, words[1:])
                    if code:
                        claim.fail(f"exited with {code}", retry_after=RETRY_SECONDS * claim.attempt)
                    else:
                        claim.done(done=DAY_SECONDS)
            except dibs.NotClaimed as none:
                # What is done is done, what is parked waits for a person. What somebody has may be given up, and what
                # failed is tried again: look again, not too often.
                parked += [str(each.name) for each in none.refusals if each.code == "parked"]
                backlog = [str(each.name) for each in none.refusals if each.code not in ("done", "parked")]
                time.sleep(min(none.retry_after or 0.2, LOOK_SECONDS_MAX) if backlog else 0)
            except dibs.LeaseLost as lost:
                print(f"{owner}: {lost}", file=sys.stderr)
    for name in parked:
        print(f"{owner}: {name} failed too often and is parked (dibs free)", file=sys.stderr)
    return 1 if parked else 0


def worked(claim: dibs.Claim, command: list[str]) -> int:
    """Run the command for the job, for as long as the job is ours. Its exit code."""
    with subprocess.Popen([*command, claim.name]) as process:
        while process.poll() is None:
            if claim.lost.wait(0.05):
                process.terminate()
                break
    claim.check()  # raises LeaseLost
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
