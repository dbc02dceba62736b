"""What has happened so far, from the workers' events. Pure: each event carries its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.demo.plan import STEPS, STEPS_BEFORE_DEATH, steps_in

if TYPE_CHECKING:
    from dibs.demo.plan import DemoPlan, Job

    Document = dict[str, Any]


class LogEntry(NamedTuple):
    """A line of the log: a worker, an action, a job. `kind` is the event's; `more` is the rest of the sentence."""

    at_ms: int
    kind: str
    worker: str
    job: str
    more: str = ""


class Killed(NamedTuple):
    worker: str
    job: str
    at_ms: int
    pid: int


class Takeover(NamedTuple):
    """`after_ms`: how long after the kill."""

    worker: str
    before: str
    job: str
    checkpoint: str
    after_ms: int


class JobState:
    """The state of a job: `owner` or None, the number of `steps` done, and all `owners` so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.owner: str | None = None
        self.owners: list[str] = []
        self.steps = 0
        self.done = False
        self.skips = 0


class WorkerState:
    """The state of a worker. `skipped`: the jobs it passed by since its last claim, with their owners."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.job: str | None = None
        self.waits: tuple[str, str, int] | None = None  # job, owner, and when its lease is over
        self.skipped: list[tuple[str, str]] = []
        self.ready = False
        self.killed = False
        self.failed = False
        self.gone = False


class Story:
    """Takes one event after another, and returns the event's line for the log, if it has one."""

    def __init__(self, plan: DemoPlan) -> None:
        self.plan = plan
        self.jobs = {job.name: JobState(job) for job in plan.jobs}
        self.workers = {name: WorkerState(name) for name in plan.workers}
        self.killed: Killed | None = None
        self.takeover: Takeover | None = None
        self._troubles: dict[str, list[str]] = {}
        self._patient: set[str] = set()

    @property
    def troubles(self) -> list[str]:
        """What went wrong, each with the workers concerned."""
        return [f"{', '.join(names)}: {why}" for why, names in self._troubles.items()]

    @property
    def all_ready(self) -> bool:
        return all(worker.ready for worker in self.workers.values())

    @property
    def over(self) -> bool:
        """Whether every worker has ended."""
        return all(worker.gone for worker in self.workers.values())

    @property
    def ripe(self) -> str | None:
        """The worker to kill now: the owner of the fatal job, in the middle of its work."""
        fatal = self.jobs[self.plan.jobs[self.plan.fatal].name]
        first = len(fatal.owners) == 1 and fatal.steps == STEPS_BEFORE_DEATH
        return fatal.owner if first and self.killed is None else None

    def hear(self, name: str, event: Document, at_ms: int) -> LogEntry | None:
        """Takes an event of a worker."""
        kind: str = event["event"]
        told: LogEntry | None = getattr(self, f"_{kind}")(self.workers[name], event, at_ms)
        return told

    def kill(self, name: str, pid: int, at_ms: int) -> LogEntry:
        """The demo killed a worker."""
        worker = self.workers[name]
        worker.killed = True
        job = self.jobs[worker.job or ""]
        self.killed = Killed(name, job.job.name, at_ms, pid)
        more = f"kill -9 {pid}, in the middle of step {job.steps + 1} of {len(STEPS)}"
        return LogEntry(at_ms, "killed", name, job.job.label, more)

    def _ready(self, worker: WorkerState, event: Document, at_ms: int) -> None:
        worker.ready = True

    def _skipped(self, worker: WorkerState, event: Document, at_ms: int) -> None:
        job = self.jobs[event["job"]]
        job.skips += 1
        worker.skipped.append((job.job.label, str(event["owner"])))

    def _waits(self, worker: WorkerState, event: Document, at_ms: int) -> LogEntry | None:
        """Only the wait for a dead owner gets a line, and only once: live owners finish their jobs."""
        job, owner = self.jobs[event["job"]].job, str(event["owner"])
        worker.waits = (job.label, owner, at_ms + event["left_ms"])
        if self.killed is None or (owner, job.name) != self.killed[:2] or worker.name in self._patient:
            return None
        self._patient.add(worker.name)
        left = f"{event['left_ms'] / 1000:.1f}s"
        return LogEntry(at_ms, "waits", worker.name, job.label, f"{owner} is silent: its lease lasts {left}")

    def _claimed(self, worker: WorkerState, event: Document, at_ms: int) -> LogEntry:
        job = self.jobs[event["job"]]
        job.owner, worker.job = worker.name, event["job"]
        job.owners.append(worker.name)
        skipped, worker.skipped, worker.waits = worker.skipped, [], None
        before, checkpoint = event["before"], event["checkpoint"]
        job.steps = steps_in(checkpoint)
        if event["attempt"] == 1:
            more = ", ".join(f"{label} ({owner})" for label, owner in skipped)
            return LogEntry(at_ms, "claimed", worker.name, job.job.label, f"skipped {more}" if more else "")
        if self.killed is not None and before == self.killed.worker:
            after_ms = at_ms - self.killed.at_ms
            self.takeover = Takeover(worker.name, before, job.job.name, checkpoint or "", after_ms)
        at = f'resumes {before}\'s work at "{checkpoint}"' if checkpoint else f"from {before}, from the start"
        return LogEntry(at_ms, "took over", worker.name, job.job.label, at)

    def _step(self, worker: WorkerState, event: Document, at_ms: int) -> None:
        self.jobs[event["job"]].steps = event["step"]

    def _done(self, worker: WorkerState, event: Document, at_ms: int) -> LogEntry:
        job = self.jobs[event["job"]]
        job.done, job.owner, worker.job = True, None, None
        return LogEntry(at_ms, "done", worker.name, job.job.label)

    def _lost(self, worker: WorkerState, event: Document, at_ms: int) -> LogEntry:
        job = self.jobs[event["job"]]
        worker.job = None
        if job.owner == worker.name:
            job.owner = None
        return LogEntry(at_ms, "lost", worker.name, job.job.label, str(event["why"]))

    def _failed(self, worker: WorkerState, event: Document, at_ms: int) -> LogEntry:
        worker.failed = True
        self._troubles.setdefault(event["why"], []).append(worker.name)
        return LogEntry(at_ms, "failed", worker.name, "", str(event["why"]))

    def _gone(self, worker: WorkerState, event: Document, at_ms: int) -> LogEntry | None:
        """The worker's last output counts only when nothing else explains its end."""
        worker.gone = True
        worker.waits = None
        if worker.killed or worker.failed or not event["why"]:
            return None
        return self._failed(worker, {"why": f"it ended: {event['why'].splitlines()[-1]}"}, at_ms)
