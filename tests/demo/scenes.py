"""A short demo as its workers would tell it, without any of them."""

from __future__ import annotations

from typing import Any

from dibs.demo.plan import STEPS, DemoPlan, checkpoint_of, plan_of
from dibs.demo.story import LogEntry, Story


class Telling:
    """Tells a story event by event, 100 ms apart, and keeps the log."""

    def __init__(self, plan: DemoPlan | None = None) -> None:
        self.plan = plan or plan_of(jobs=3, workers=3, seed=1)
        self.story = Story(self.plan)
        self.log: list[LogEntry] = []
        self.now_ms = 0

    def tell(self, worker: str, event: str, **fields: Any) -> None:
        self.now_ms += 100
        entry = self.story.hear(worker, {"event": event, **fields}, self.now_ms)
        self.log += [entry] if entry else []

    def claims(self, worker: str, job: str, attempt: int = 1, before: str | None = None, at: int = 0) -> None:
        checkpoint = checkpoint_of(at) if at else None
        self.tell(
            worker, "claimed", job=job, attempt=attempt, fencing_token=1, before=before, checkpoint=checkpoint
        )

    def works(self, worker: str, job: str, since: int = 0, until: int = len(STEPS)) -> None:
        for step in range(since + 1, until + 1):
            self.tell(worker, "step", job=job, step=step)
        if until == len(STEPS):
            self.tell(worker, "done", job=job)

    def kill(self, worker: str) -> None:
        self.now_ms += 100
        self.log.append(self.story.kill(worker, 4711, self.now_ms))


def whole_story() -> Telling:
    """Three jobs; agent-1 dies in the fatal one, agent-2 takes over, agent-3 only finds work once."""
    telling = Telling()
    fatal = telling.plan.jobs[telling.plan.fatal].name
    one, two = [job.name for job in telling.plan.jobs if job.name != fatal]
    for worker in telling.plan.workers:
        telling.tell(worker, "ready")
    telling.claims("agent-1", fatal)
    telling.tell("agent-2", "skipped", job=fatal, owner="agent-1")
    telling.claims("agent-2", one)
    telling.tell("agent-3", "skipped", job=fatal, owner="agent-1")
    telling.tell("agent-3", "skipped", job=one, owner="agent-2")
    telling.claims("agent-3", two)
    telling.works("agent-1", fatal, until=2)
    assert telling.story.ripe == "agent-1"
    telling.kill("agent-1")
    telling.tell("agent-1", "gone", why="")
    telling.works("agent-2", one)
    telling.tell("agent-2", "waits", job=fatal, owner="agent-1", left_ms=900)
    telling.tell("agent-2", "waits", job=fatal, owner="agent-1", left_ms=700)
    telling.claims("agent-2", fatal, attempt=2, before="agent-1", at=2)
    telling.works("agent-2", fatal, since=2)
    telling.works("agent-3", two)
    for worker in ("agent-2", "agent-3"):
        telling.tell(worker, "gone", why="")
    return telling
