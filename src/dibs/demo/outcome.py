"""How the demo ended: the workers' story beside the ledger. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.demo.ledger import counted
from dibs.demo.plan import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.demo.ledger import Effect
    from dibs.demo.story import Killed, Story, Takeover

    Document = dict[str, Any]


class JobSummary(NamedTuple):
    """One job. `steps` and `duplicates` come from the ledger, the rest from the workers' events."""

    name: str
    label: str
    title: str
    owners: tuple[str, ...]
    attempts: int
    skips: int
    steps: int
    duplicates: int
    done: bool


class DemoResult(NamedTuple):
    rows: tuple[JobSummary, ...]
    effects: int
    killed: Killed | None
    takeover: Takeover | None
    elapsed_ms: int
    troubles: tuple[str, ...]

    @property
    def duplicates(self) -> int:
        return sum(row.duplicates for row in self.rows)

    @property
    def good(self) -> bool:
        """Whether every step of every job was done exactly once."""
        return not self.duplicates and all(row.done and row.steps == len(STEPS) for row in self.rows)

    def document(self) -> Document:
        """For --json."""
        return {
            "jobs": [row._asdict() | {"owners": list(row.owners)} for row in self.rows],
            "side_effects": {
                "expected": len(self.rows) * len(STEPS),
                "done": self.effects,
                "duplicates": self.duplicates,
            },
            "killed": self.killed._asdict() if self.killed else None,
            "takeover": self.takeover._asdict() if self.takeover else None,
            "elapsed_ms": self.elapsed_ms,
            "troubles": list(self.troubles),
        }


def outcome_of(
    story: Story, effects: Sequence[Effect], elapsed_ms: int, troubles: Sequence[str]
) -> DemoResult:
    counts = counted(effects, list(story.jobs))
    rows = []
    for name, state in story.jobs.items():
        count = counts[name]
        rows.append(
            JobSummary(
                name,
                state.job.label,
                state.job.title,
                tuple(state.owners),
                len(state.owners),
                state.skips,
                count.steps,
                count.duplicates,
                state.done,
            )
        )
    done = sum(count.steps for count in counts.values())
    told = (*story.troubles, *troubles)
    return DemoResult(tuple(rows), done, story.killed, story.takeover, elapsed_ms, told)
