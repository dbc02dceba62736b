#!/usr/bin/env python3
"""An agent: takes one job after the other from a backlog and runs a command for it, until all are done.

    python-agent.py BACKLOG COMMAND [ARG...]      BACKLOG has one job name a line; COMMAND ARG... JOB is what is run

Start as many as you like, on this machine or, with DIBS_URL set, on many. A job has one owner at a time. If an agent
dies, its job is free again and another takes it over. If an agent loses a job, it stops the command.
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


def main(words: list[str]) -> int:
    if len(words) < 2:
        print("usage: python-agent.py BACKLOG COMMAND [ARG...]", file=sys.stderr)
        return 64
    backlog = [line for line in Path(words[0]).read_text().splitlines() if line]
    owner = os.environ.get("DIBS_OWNER") or f"python-agent-{os.getpid()}"
    with dibs.connect(owner=owner) as client:
        while backlog:
            try:
                with client.claim_any(backlog) as claim:  # heartbeats by itself
                    if claim.previous and claim.previous.checkpoint:
                        print(
                            f"{owner}: {claim.name} was left at: {claim.previous.checkpoint}", file=sys.stderr
                        )
                    if not worked(claim, words[1:]):
                        claim.release(checkpoint=f"{owner}: failed")
                        return 1
                    claim.done(done=DAY_SECONDS)
            except dibs.JobHeld as none:
                # What is done is done. What somebody has may be given up: look again, not too often.
                backlog = [each["name"] for each in none.answer["refused"] if each["status"] != "done"]
                time.sleep(min(none.retry_after or 0.2, LOOK_SECONDS_MAX) if backlog else 0)
            except dibs.LeaseLost as lost:
                print(f"{owner}: {lost}", file=sys.stderr)
    return 0


def worked(claim: dibs.Claim, command: list[str]) -> bool:
    """Run the command for the job, for as long as the job is ours."""
    with subprocess.Popen([*command, claim.name]) as process:
        while process.poll() is None:
            if claim.lost.wait(0.05):
                process.terminate()
                break
    claim.check()  # raises LeaseLost
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
