"""A release of five steps that are not repeated, wherever its owner dies.

    python examples/release_in_five_steps.py v7 ./outside

The folder stands for the outside: a registry, a mail server, a tracker. Each step leaves a line in its file, and a step
that ran twice would leave two. Kill the program anywhere and start it again, here or on another machine: it goes on
where it was. `tests/processes/test_release_example.py` does so at every step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import dibs

STEPS = ("build", "tag", "publish", "announce", "close-milestone")


def look(outside: Path, step: str, version: str) -> str | None:
    """What the outside has of this step. A real one is asked by a name that follows from the job."""
    file = outside / step
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line for line in lines if line.startswith(f"{version} ")), None)


def do(outside: Path, step: str, version: str) -> str:
    with (outside / step).open("a") as file:
        file.write(f"{version} by step {step}\n")
    return f"{version} by step {step}"


def release(
    version: str, outside: Path, *, ttl: int = 5, between: Callable[[str, str], None] = lambda step, moment: None
) -> None:
    """`between` is called around the work of each step: a test ends the process there."""
    with dibs.claim(f"release-{version}", ttl=ttl, wait="1m") as claim:
        for step in STEPS:
            with claim.once(step) as effect:
                if effect.done:
                    print(f"{step}: done by {effect.owner} before")
                    continue
                between(step, "before")
                found = look(outside, step, version) if effect.in_doubt else None
                effect.result = found or do(outside, step, version)
                between(step, "after")
                print(f"{step}: {'found' if found else 'done'}")
        claim.done(f"{version} is out")


if __name__ == "__main__":
    release(sys.argv[1], Path(sys.argv[2]))
