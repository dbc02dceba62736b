"""The plan of the demo: jobs, workers, and which worker is killed. The same seed gives the same plan."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

STEPS = (
    "read the issue",
    "reproduced it",
    "wrote a failing test",
    "fixed it",
    "opened a pull request",
)
# The worker is killed after this many steps, in the middle of the next one.
STEPS_BEFORE_DEATH = 2
TTL_SECONDS = 4
WORKERS_DEFAULT, WORKERS_MIN, WORKERS_MAX = 5, 2, 20
JOBS_DEFAULT, JOBS_MAX = 8, 50
SEED_DEFAULT, SEED_MAX = 1, 999_999_999
STEP_MS_MIN, STEP_MS_SPREAD = 550, 300
# Names of the demo begin with this in a store that may have real jobs.
PREFIX = "dibs-demo-"
_REPOSITORY = "github://acme/app/issues/"
_FIRST_NUMBER = 1842
_TITLES = (
    "Login fails after a reset",
    "Export drops the last row",
    "Search ignores accents",
    "Upload hangs at 99%",
    "Dates are off by one",
    "Dark mode hides the caret",
    "Sync never frees memory",
    "Avatar is cut off",
    "A retry mails twice",
    "Prices sort as text",
    "Back loses the filter",
    "Empty cart has a total",
)


class Job(NamedTuple):
    """`name` is claimed, the shorter `label` is shown. `paces_ms`: how long each step takes."""

    name: str
    label: str
    title: str
    paces_ms: tuple[int, ...]


class DemoPlan(NamedTuple):
    """`fatal` is the job whose first owner is killed. It is one of the first jobs to be claimed."""

    jobs: tuple[Job, ...]
    workers: tuple[str, ...]
    fatal: int
    seed: int

    @property
    def work_ms(self) -> int:
        """How long all the work would take one worker."""
        return sum(sum(job.paces_ms) for job in self.jobs)


def plan_of(jobs: int, workers: int, seed: int, prefix: str = "") -> DemoPlan:
    """`prefix` keeps the names apart from those of real jobs."""

    def dice(what: str, sides: int) -> int:
        return crc32(f"{seed} {what}".encode()) % sides

    first_title = dice("titles", len(_TITLES))
    number = _FIRST_NUMBER
    backlog = []
    for index in range(jobs):
        paces_ms = [STEP_MS_MIN + dice(f"pace {index} {step}", STEP_MS_SPREAD) for step in range(len(STEPS))]
        title = _TITLES[(first_title + index) % len(_TITLES)]
        backlog.append(Job(f"{prefix}{_REPOSITORY}{number}", f"#{number}", title, tuple(paces_ms)))
        number += 1 + dice(f"gap {index}", 9)
    names = tuple(f"agent-{each}" for each in range(1, workers + 1))
    return DemoPlan(tuple(backlog), names, dice("fatal", min(jobs, workers)), seed)


def checkpoint_of(steps: int) -> str:
    """The checkpoint of an owner after this many steps, for the next owner."""
    return f"{steps}/{len(STEPS)} {STEPS[steps - 1]}"


def steps_in(checkpoint: str | None) -> int:
    """How many steps the previous owner had done."""
    return int(checkpoint.partition("/")[0]) if checkpoint else 0
