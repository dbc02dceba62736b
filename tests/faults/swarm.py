"""Workers that are alive while an operator does something: owners of jobs, a line of waiters, a program of `dibs run`.

Each is a process, so that it can be of another version than the servers. Nothing may happen to any of them, unless the
page says so: `all_go_on` holds it to numbers.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dibs import Client
from dibs.stores.registry import open_store
from tests.programs import ROOT, WAIT_S_MAX, clean_env, slowness, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

HOLDERS = 3
WAITERS = 5
_WORKER = Path(__file__).with_name("live_worker.py")


class Worker:
    """One process. What it says goes into a file, so that looking never waits."""

    def __init__(self, words: list[str], env: Mapping[str, str], log: Path, *, works: bool) -> None:
        self._log = log
        with log.open("wb") as file:
            stdin = subprocess.PIPE if works else subprocess.DEVNULL
            self.process = subprocess.Popen(words, env=env, stdin=stdin, stdout=file, stderr=subprocess.STDOUT)

    @property
    def said(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines()

    def token(self) -> int:
        """The fencing token of what it has; waits until it has it."""
        first = wait_until(lambda: self.said[:1], "the worker has its job")[0]
        assert first.startswith("has "), self.said
        return int(first.removeprefix("has "))

    def finish(self) -> str:
        """End its work. What it says of it."""
        self.process.communicate(timeout=2 * WAIT_S_MAX)
        return self.said[-1] if self.said else ""

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Swarm:
    """`url` are the servers that the workers know; `source` is the code that they run."""

    def __init__(self, url: str, token: str, folder: Path, source: Path = ROOT / "src") -> None:
        self._env = clean_env(folder / "workers", PYTHONPATH=str(source), DIBS_URL=url, DIBS_TOKEN=token)
        self._folder = folder
        self._started: list[Worker] = []
        self._stack = ExitStack()
        self._looks = self._stack.enter_context(Client(url, token))
        self.ttl_s = 40 * slowness()

    def __enter__(self) -> Self:
        self.holders = [self.worker(f"held-{number}") for number in range(HOLDERS)]
        words = [sys.executable, "-m", "dibs", "run", "run", "--ttl", f"{self.ttl_s}s", "--", "cat"]
        self.runs = self._start(words, works=True)
        self.first = self.worker("line")
        self.tokens = [holder.token() for holder in self.holders]
        self.first.token()
        wait_until(lambda: self._looks.owner("run").status == "held", "dibs run has its job")
        self.waiters: list[Worker] = []
        for number in range(WAITERS):
            self.waiters.append(self.worker("line", f"waiter-{number}", wait_s=4 * WAIT_S_MAX))
            wait_until(lambda: self.waiting() == len(self.waiters), "it is in line")
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._started:
            each.end()
        self._stack.close()

    def worker(self, job: str, owner: str = "holder", *, wait_s: float = 0) -> Worker:
        words = [sys.executable, "-P", str(_WORKER), job, owner, str(self.ttl_s), str(wait_s)]
        return self._start(words, works=not wait_s)

    def _start(self, words: list[str], *, works: bool) -> Worker:
        made = Worker(words, self._env, self._folder / f"worker-{len(self._started)}", works=works)
        self._started.append(made)
        return made

    def waiting(self, client: Client | None = None) -> int:
        return int((client or self._looks).owner("line").document.get("waiting") or 0)

    def all_go_on(self, client: Client, url: str, *, more: int = 0) -> None:
        """Every owner has what it had, and every waiter its place: at `client`, whose store is `url`. Ends all of them.
        `more` jobs were claimed and released by others."""
        wait_until(lambda: self.waiting(client) == WAITERS, "all are in line")
        assert [client.owner(f"held-{number}").fencing_token for number in range(HOLDERS)] == self.tokens
        assert [each.finish() for each in (*self.holders, self.first)] == ["released"] * (HOLDERS + 1)
        assert [each.finish() for each in self.waiters] == ["released"] * WAITERS
        served = [each.token() for each in self.waiters]
        assert served == sorted(served), "the line was not served in its order"
        self.runs.finish()
        assert self.runs.process.returncode == 0, self.runs.said
        store = open_store(url)
        kinds = [event.kind for event in store.events(0, 10_000)]
        store.close()
        assert not {"expired", "broken", "failed"}.intersection(kinds)
        assert kinds.count("acquired") == kinds.count("released") == HOLDERS + WAITERS + 2 + more
