"""Random fault schedules: workers that are stopped, woken and killed, a server that is killed, a network that fails.

A seed is a schedule. Its results are checked afterwards, on the one clock that all processes of a machine share.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dibs import Fence
from dibs.base.clock import steady_ms
from tests.faults.contender import JOB, OVER
from tests.faults.proxy import Fault, Proxy
from tests.programs import WAIT_S_MAX, ServerProcess, pass_by, start_program, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENDER = "tests.faults.contender"
WORKERS = 3
LASTS_MS = 5_000  # the faults; then the workers go on until they have done enough
ENOUGH_BELIEFS, ENOUGH_TENURES = 10, 3
ENOUGH_S_MAX = 60.0
FAULTS_MAX = 6
NETWORK = [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.REPLY_CUT, Fault.REPLY_GARBLED, Fault.HANGS]


@dataclass
class Outcome:
    """The results of one schedule. `late`: writes that came after one with a larger token. `overlaps`: workers that
    believed to be the owner after a worker with a larger token did."""

    seed: int
    writes: int = 0
    late: int = 0
    fenced_writes: int = 0
    fenced_late: int = 0
    refused: int = 0
    beliefs: int = 0
    tenures: int = 0
    overlaps: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


class Schedule:
    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = random.Random(seed)
        self._folder = folder
        self._outcome = Outcome(seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._names = 0
        self._named: dict[int, str] = {}
        self._server: ServerProcess | None = None
        self._proxy: Proxy | None = None
        self._todo: list[tuple[int, Callable[[], None]]] = []
        self._ends_ms = 0
        self._seed = seed

    def run(self) -> Outcome:
        prepare(self._folder)
        with ExitStack() as stack:
            if self._chance.random() < 0.6:
                self._server = stack.enter_context(ServerProcess(self._folder))
                self._proxy = stack.enter_context(Proxy(lambda: self._server.url))  # type: ignore[union-attr]
            stack.callback(self._end_workers)
            for _ in range(WORKERS):
                self._start_worker()
            wait_until(self._all_began, "every worker began", ENOUGH_S_MAX)
            self._ends_ms = steady_ms() + LASTS_MS
            self._plan()
            while self._todo:
                self._todo.sort(key=lambda each: each[0])
                at_ms, do = self._todo.pop(0)
                pass_by(at_ms)
                do()
            wait_until(self._is_enough, "the workers had the job often enough", ENOUGH_S_MAX)
            (self._folder / OVER).touch()
            self._await_workers()
        judge(self._folder, self._outcome)
        return self._outcome

    def _start_worker(self) -> None:
        self._names += 1
        url = f"sqlite://{self._folder}/jobs.db" if self._proxy is None else self._proxy.url
        token = "" if self._server is None else self._server.token
        words = [url, token, f"w{self._names}", str(self._folder), str(self._seed)]
        worker = start_program(CONTENDER, *words)
        self._named[worker.pid] = f"w{self._names}"
        self._workers.append(worker)

    def _all_began(self) -> bool:
        return all((self._folder / f"{name}.jsonl").exists() for name in self._named.values())

    def _is_enough(self) -> bool:
        beliefs, _ = diaries(self._folder)
        enough = sum(map(len, beliefs.values())) >= ENOUGH_BELIEFS and len(beliefs) >= ENOUGH_TENURES
        return enough and steady_ms() >= self._ends_ms

    def _plan(self) -> None:
        kinds: list[Callable[[int], None]] = [self._stop, self._stop, self._stop, self._kill]
        if self._server is not None:
            kinds += [self._kill_server, self._spoil_network]
        for _ in range(self._chance.randrange(2, FAULTS_MAX + 1)):
            at_ms = self._ends_ms - LASTS_MS + self._chance.randrange(700, LASTS_MS - 1_500)
            kind = self._chance.choice(kinds)
            self._todo.append((at_ms, lambda kind=kind, at_ms=at_ms: kind(at_ms)))  # type: ignore[misc]

    def _stop(self, at_ms: int) -> None:
        worker = self._owner() if self._chance.random() < 0.7 else self._chance.choice(self._workers)
        lasts_ms = self._chance.randrange(500, 2_500)
        self._outcome.faults["stopped"] += 1
        worker.send_signal(signal.SIGSTOP)
        self._todo.append((at_ms + lasts_ms, lambda: worker.send_signal(signal.SIGCONT)))

    def _owner(self) -> subprocess.Popen[bytes]:
        """The worker with the latest note: most likely it has the job."""

        def noted_ns(worker: subprocess.Popen[bytes]) -> int:
            diary = self._folder / f"{self._named[worker.pid]}.jsonl"
            return diary.stat().st_mtime_ns if diary.exists() else 0

        return max(self._workers, key=noted_ns)

    def _kill(self, at_ms: int) -> None:
        worker = self._workers.pop(self._chance.randrange(len(self._workers)))
        self._outcome.faults["killed"] += 1
        worker.kill()
        worker.wait(WAIT_S_MAX)
        self._start_worker()

    def _kill_server(self, at_ms: int) -> None:
        assert self._server is not None
        self._outcome.faults["server killed"] += 1
        self._server.kill()
        self._server.start()

    def _spoil_network(self, at_ms: int) -> None:
        proxy = self._proxy
        assert proxy is not None
        chance = random.Random(self._chance.random())
        share = chance.choice([0.2, 0.6, 1.0])
        self._outcome.faults["network spoilt"] += 1
        proxy.fault = lambda request: chance.choice(NETWORK) if chance.random() < share else Fault.NONE
        proxy.delay_seconds = lambda request: chance.random() * 0.3

        def heal() -> None:
            proxy.fault, proxy.delay_seconds = (lambda request: Fault.NONE), (lambda request: 0.0)

        self._todo.append((at_ms + chance.randrange(200, 1_800), heal))

    def _await_workers(self) -> None:
        for worker in self._workers:
            assert worker.wait(WAIT_S_MAX) == 0, f"a worker of schedule {self._seed} failed"

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait(WAIT_S_MAX)


def prepare(folder: Path) -> None:
    db = sqlite3.connect(folder / "fenced.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    Fence(db).create()
    db.execute("CREATE TABLE writes (number INTEGER PRIMARY KEY, job TEXT NOT NULL, token INTEGER NOT NULL)")
    db.close()


def judge(folder: Path, outcome: Outcome) -> None:
    unfenced = folder / "unfenced"
    tokens = [int(line) for line in unfenced.read_text().split()] if unfenced.exists() else []
    outcome.writes, outcome.late = len(tokens), late(tokens)
    fenced = fenced_writes(folder).get(JOB, [])
    outcome.fenced_writes, outcome.fenced_late = len(fenced), late(fenced)
    beliefs, outcome.refused = diaries(folder)
    outcome.tenures, outcome.beliefs = len(beliefs), sum(map(len, beliefs.values()))
    outcome.overlaps = overlaps(beliefs)


def fenced_writes(folder: Path) -> dict[str, list[int]]:
    """The tokens of the writes that the fence let through, in their order, by job."""
    db = sqlite3.connect(folder / "fenced.db")
    found: dict[str, list[int]] = {}
    for job, token in db.execute("SELECT job, token FROM writes ORDER BY number"):
        found.setdefault(job, []).append(token)
    db.close()
    return found


def diaries(folder: Path) -> tuple[dict[int, list[tuple[int, int]]], int]:
    """The workers' notes: for each token the times at which its owner believed to own, and how often the fence
    refused."""
    beliefs: dict[int, list[tuple[int, int]]] = {}
    refused = 0
    for diary in folder.glob("*.jsonl"):
        for line in diary.read_text().splitlines():
            try:
                noted = json.loads(line)
            except ValueError:
                continue  # its writer was killed in the middle of it
            refused += "refused" in noted
            if "token" in noted:
                beliefs.setdefault(noted["token"], []).append((noted["before_ms"], noted["after_ms"]))
    return beliefs, refused


def late(tokens: list[int]) -> int:
    newest, found = 0, 0
    for token in tokens:
        found += token < newest
        newest = max(newest, token)
    return found


def overlaps(beliefs: dict[int, list[tuple[int, int]]]) -> list[str]:
    """`check()` read the clock somewhere between before and after. It is certainly wrong if an owner believed later
    than its successor."""
    found = []
    earliest: tuple[int, int] | None = None  # among those with a larger token
    for token in sorted(beliefs, reverse=True):
        last_ms = max(before for before, _ in beliefs[token])
        first_ms = min(after for _, after in beliefs[token])
        if earliest is not None and last_ms > earliest[0]:
            found.append(f"{token} believed at {last_ms}, {earliest[1]} already at {earliest[0]}")
        if earliest is None or first_ms < earliest[0]:
            earliest = (first_ms, token)
    return found
