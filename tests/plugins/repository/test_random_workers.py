"""Actors, kinds of names, folders, runs and time, combined at random against a small model: an actor is one worker."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dibs.core.limits import ACTOR_TTL_MS
from dibs.core.names import RESOURCES, in_tree
from dibs.core.overlap import overlaps
from tests.build import tries
from tests.cli.conftest import Terminal
from tests.plugins.repository.test_one_worker import repository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("path:src", "path:src/a.py", "path:docs", "repo:all", "branch:fix", "issue-1", "issue-2")
ACTORS = ("hal", "ann", "bob")
RUNNER = "runner"


class Job(NamedTuple):
    namespace: str
    name: str


class World:
    """Commands, and what they should do. A worker is an actor, or the `dibs run` around when no actor is named."""

    def __init__(self, terminal: Terminal, folders: dict[str, Path], go: Callable[[Path], None], seed: int) -> None:
        self.terminal, self.folders, self.random = terminal, folders, random.Random(seed)
        self._go = go
        self.places: dict[str, str] = {}  # the namespace of each folder's repository
        for name in ("app", "other"):
            self.go(name)
            self.places[name] = terminal("owner", "path:x", "--json").everything["namespace"]
        self.held: dict[Job, str] = {}
        self.known: set[str] = set()  # workers that ever opened a session
        self.until_ms: dict[str, int] = {}  # of their sessions
        self.run_job: Job | None = None

    def go(self, folder: str) -> None:
        self.folder = folder
        self._go(self.folders[folder])

    # The model.

    def job(self, worker: str | None, name: str, *, proves: bool) -> Job | None:
        """What a name means. None: it may be one of several, and the command must say so."""
        if not name.startswith(RESOURCES):
            return Job("default", name)
        if self.run_job is not None and name == self.run_job.name:
            return self.run_job
        here = self.places.get(self.folder)
        if here is None or proves:
            mine = [job for job, owner in self.held.items() if owner == worker and job.name == name]
            if mine and Job(here or "default", name) not in mine:
                return mine[0] if len(mine) == 1 else None
        return Job(here or "default", name)

    def blocked(self, worker: str, job: Job) -> bool:
        return any(
            owner != worker
            and other.namespace == job.namespace
            and (other == job or (in_tree(other.name) and in_tree(job.name) and overlaps(other.name, job.name)))
            for other, owner in self.held.items()
        )

    def lives(self, worker: str) -> bool:
        return worker == RUNNER or self.terminal.now_ms < self.until_ms.get(worker, 0)

    def heard(self, worker: str) -> None:
        self.until_ms[worker] = self.terminal.now_ms + ACTOR_TTL_MS

    def expire(self) -> None:
        self.held = {job: owner for job, owner in self.held.items() if self.lives(owner)}

    # The steps.

    def step(self) -> str:
        self.expire()
        steps = (self.claim, self.claim, self.claim, self.prove, self.prove, self.mine, self.wait, self.time, self.cd)
        return self.random.choice((*steps, self.run))()

    def worker(self) -> tuple[str, tuple[str, ...]]:
        worker = self.random.choice((*ACTORS, RUNNER) if self.run_job is not None else ACTORS)
        return worker, () if worker == RUNNER else ("--actor", worker)

    def claim(self) -> str:
        (worker, flags), name = self.worker(), self.random.choice(NAMES)
        job = self.job(worker if self.lives(worker) else None, name, proves=False)
        ran = self.terminal("claim", name, *flags, "--json")
        if job is None:
            assert ran.exit == 64, ran.err
            return f"claim {name} {flags}: one of several"
        # 3: who was refused before, and asks again, may close a circle.
        assert ran.exit in ((1, 3) if self.blocked(worker, job) else (0,)), (ran.out, ran.err)
        if ran.exit == 0:
            assert ran.data["owner"] == worker
            self.held[job] = worker
        self.known.add(worker)
        self.heard(worker)
        return f"claim {job} {flags}: {ran.exit}"

    def prove(self) -> str:
        (worker, flags), name = self.worker(), self.random.choice(NAMES)
        verb = self.random.choice(("heartbeat", "release"))
        lives = self.lives(worker)
        job = self.job(worker if lives else None, name, proves=True)
        ran = self.terminal(verb, name, *flags)
        if job is None or (worker not in self.known and worker != RUNNER):
            assert ran.exit == 64, ran.err
        elif self.held.get(job) == worker:
            assert ran.exit == 0, (ran.out, ran.err)
            if verb == "release":
                del self.held[job]
        else:
            # A repeated release is no error.
            assert ran.exit in ((2,) if verb == "heartbeat" else (0, 2)), (ran.out, ran.err)
        if lives and job is not None:
            self.heard(worker)
        return f"{verb} {job} {flags}: {ran.exit}"

    def mine(self) -> str:
        worker, flags = self.worker()
        ran = self.terminal("release", "--mine", *flags)
        assert ran.exit == (
            64 if worker not in self.known and worker != RUNNER else 0 if self.lives(worker) else ran.exit
        )
        self.held = {job: owner for job, owner in self.held.items() if owner != worker}
        if self.lives(worker):
            self.heard(worker)
        return f"release --mine {flags}"

    def wait(self) -> str:
        worker = self.random.choice(ACTORS)
        name = self.random.choice(NAMES)
        job = self.job(worker if self.lives(worker) else None, name, proves=False)
        ran = self.terminal("wait", name, "--for", "0s", "--actor", worker)
        if job is None:
            assert ran.exit == 64
            return f"wait {name}: one of several"
        taken = self.blocked(worker, job)  # nobody waits for what is its own
        assert ran.exit == (1 if taken else 0), (ran.out, ran.err)
        if taken and self.lives(worker):
            self.heard(worker)
        return f"wait {job} --actor {worker}: {ran.exit}"

    def time(self) -> str:
        minutes = self.random.randrange(1, 9)
        self.terminal.wait(minutes * 60)
        return f"{minutes} minutes"

    def cd(self) -> str:
        self.go(self.random.choice(tuple(self.folders)))
        return f"cd {self.folder}"

    def run(self) -> str:
        """Begin or end a `dibs run`: the same commands are inside it then."""
        env = self.terminal.env
        if self.run_job is not None:
            self.terminal("session", "end")
            self.held = {job: owner for job, owner in self.held.items() if owner != RUNNER}
            for key in ("DIBS_SESSION", "DIBS_JOB", "DIBS_JOB_NAMESPACE", "DIBS_OWNER", "DIBS_SESSION_OWNER"):
                env.pop(key, None)
            self.run_job = None
            return "the run ends"
        name = self.random.choice(NAMES)
        job = self.job(None, name, proves=False)
        assert job is not None
        env["DIBS_SESSION"] = self.terminal.session("--owner", RUNNER, "--ttl", "24h")
        env |= {"DIBS_OWNER": RUNNER, "DIBS_SESSION_OWNER": RUNNER}
        if self.terminal("claim", name).exit != 0:
            assert self.blocked(RUNNER, job)
            self.terminal("session", "end")
            for key in ("DIBS_SESSION", "DIBS_OWNER", "DIBS_SESSION_OWNER"):
                del env[key]
            return f"no run {job}"
        self.held[job] = RUNNER
        self.run_job = job
        env["DIBS_JOB"] = name
        if job.namespace != "default":
            env["DIBS_JOB_NAMESPACE"] = job.namespace
        return f"run {job}"

    def check(self) -> None:
        self.expire()
        sessions = self.terminal("session", "list", "--json").data["sessions"]
        owners = [each["owner"] for each in sessions]
        assert len(owners) == len(set(owners)), "a worker is two"
        held = {Job(hold["namespace"], hold["name"]): each["owner"] for each in sessions for hold in each["holds"]}
        assert held == self.held


@pytest.mark.fault("F-300")
def test_an_actor_is_one_worker_whatever_is_combined(
    tmp_path: Path, need_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_program("git")
    (tmp_path / "outside").mkdir()
    folders = {"outside": tmp_path / "outside", **{name: repository(tmp_path, name) for name in ("app", "other")}}
    for seed in range(tries(12, 200)):
        terminal = Terminal()
        state = tmp_path / f"state-{seed}"
        terminal.env |= {"XDG_STATE_HOME": str(state), "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        world = World(terminal, folders, monkeypatch.chdir, seed)
        log: list[str] = []
        try:
            for _ in range(60):
                log.append(world.step())
                world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(log)) from error
