"""The processes of the demo. No process outlives the `with` block. The stage ends only processes that it started."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any

import dibs
from dibs.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    Document = dict[str, Any]

GRACE_MS = 2_000


class Stage:
    """Starts a worker for each of `names`. Their standard error goes into `folder`."""

    def __init__(self, names: Sequence[str], env: Mapping[str, str], folder: str) -> None:
        self._names = names
        self._folder = folder
        self._env = _environment(env)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._heard: dict[str, bytes] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Stage:
        try:
            for name in self._names:
                self._start(name)
        except BaseException:
            self.end()
            raise
        return self

    def _start(self, name: str) -> None:
        with open(self._log(name), "wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-P", "-m", "dibs.demo.worker", name],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C reaches only the demo, which then ends the workers in order
            )
        self._workers[name] = worker
        self._heard[name] = b""
        self._selector.register(_pipe(worker.stdout), selectors.EVENT_READ, name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def go(self, orders: Document) -> None:
        """Gives all workers the starting shot."""
        line = json.dumps(orders).encode() + b"\n"
        for worker in self._workers.values():
            try:
                pipe = _pipe(worker.stdin)
                pipe.write(line)
                pipe.close()
            except BrokenPipeError:  # it has ended; its output says so
                pass

    def listen(self, timeout_ms: int) -> list[tuple[str, Document]]:
        """The workers' events, in the order in which they happened. The last event of a worker that ended is
        `gone`."""
        if not self._selector.get_map():
            return []
        told: list[tuple[str, Document]] = []
        for key, _ in self._selector.select(max(0, timeout_ms) / 1000):
            name: str = key.data
            content = os.read(key.fd, 65536)
            *lines, self._heard[name] = (self._heard[name] + content).split(b"\n")
            told += [(name, json.loads(line)) for line in lines]
            if not content:
                self._selector.unregister(key.fileobj)
                self._workers[name].wait(GRACE_MS / 1000)
                told.append((name, {"event": "gone", "at_ms": steady_ms(), "why": self._said(name)}))
        return sorted(told, key=lambda each: int(each[1]["at_ms"]))

    def kill(self, name: str) -> int:
        """Sends SIGKILL, which a worker cannot catch. Returns its process id."""
        worker = self._workers[name]
        worker.kill()
        return worker.pid

    def end(self) -> None:
        """Ask all workers to stop. Kill those that do not."""
        for worker in self._workers.values():
            worker.terminate()
        give_up_ms = steady_ms() + GRACE_MS
        for worker in self._workers.values():
            try:
                worker.wait(max(0, give_up_ms - steady_ms()) / 1000)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                try:
                    _pipe(pipe).close()
                except BrokenPipeError:
                    pass
        self._workers.clear()
        self._selector.close()

    def _log(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.log")

    def _said(self, name: str) -> str:
        with open(self._log(name), encoding="utf-8", errors="replace") as log:
            return log.read()[-2000:].strip()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "all of them are pipes"
    return stream


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """The workers' environment. They import this same dibs, from any working directory."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(dibs.__file__)))
    paths = [source, *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}
