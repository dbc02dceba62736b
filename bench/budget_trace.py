"""A real `dibs serve` that notes when each request passes from one part to the next.

    python bench/budget_trace.py FOLDER PORT

Serves until SIGTERM, then prints a line of JSON: what lies between two marks, part by part. A mark is a request with
MARK in its address. At a mark the process also calls getsid(2), by which callgrind tells the phases apart.

The clocks sit where one part calls the next: the protocol's `data_received`, the batcher's `post`, the run of a batch,
the store's methods and in them each statement of SQLite, the callback with the answer. They cost about a microsecond
each. The clock is the machine's, so a client on it can tell how long its request and the answer were on their way.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import sys
import time
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dibs.server.engine as engine_module
import dibs.server.run as run_module
import dibs.stores.sqlite.store as sqlite_store
from dibs.base import cheap
from dibs.server.settings import ServerSettings
from dibs.stores.port import Store, StoreProxy

MARK = b"/locks/--mark"
OUTER = ("store read", "store commit")  # the others are inside of these
wall, cpu = time.perf_counter_ns, time.thread_time_ns


class Trace:
    """What happened since the last mark."""

    def __init__(self) -> None:
        self.phases: list[dict[str, Any]] = []
        self.clear()

    def clear(self) -> None:
        self.samples: dict[str, list[tuple[float, float]]] = {}
        self.posted_ns: list[int] = []
        self.answered_ns = self.run_end_ns = self.read_ns = self.read_cpu = 0
        self.requests = 0
        self.began = wall(), time.process_time_ns()
        self.inner: dict[str, list[int]] = {}  # of the batch that runs: wall and CPU by part
        self.runs_on = 0  # its thread
        self.edges: list[tuple[int, int]] = []  # when each request was read, and answered

    def add(self, part: str, wall_ns: float, cpu_ns: float = 0.0) -> None:
        self.samples.setdefault(part, []).append((wall_ns, cpu_ns))

    def mark(self) -> None:
        taken, used = wall() - self.began[0], time.process_time_ns() - self.began[1]
        os.getsid(0)
        if self.requests:
            self.phases.append(
                {
                    "requests": self.requests,
                    "wall_us": taken / self.requests / 1e3,
                    "cpu_us": used / self.requests / 1e3,
                    "edges": self.edges,
                    "parts": {
                        part: {
                            "wall_us": statistics.median(each for each, _ in pairs) / 1e3,
                            "cpu_us": statistics.median(each for _, each in pairs) / 1e3,
                        }
                        for part, pairs in self.samples.items()
                    },
                }
            )
        self.clear()


trace = Trace()


def _timed(part: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call it. If a batch calls it, and not a chore beside it, its time is one of that part."""
    sums = trace.inner.get(part) if trace.runs_on == get_ident() else None
    if sums is None:
        return call(*args, **named)
    began, used = wall(), cpu()
    try:
        return call(*args, **named)
    finally:
        sums[0] += wall() - began
        sums[1] += cpu() - used


class _NotedStore(StoreProxy):
    """Reads and commits of a batch, without those of chores."""


def _noted(name: str) -> Callable[..., Any]:
    part = "store commit" if name == "commit" else "store read"
    return lambda self, *args, **named: _timed(part, getattr(self.inner, name), *args, **named)


for _name in dir(Store):
    if not _name.startswith("_") and callable(getattr(Store, _name)):
        setattr(_NotedStore, _name, _noted(_name))


class _NotedCursor(sqlite3.Cursor):
    def execute(self, sql: str, *args: Any) -> Any:
        return _timed("COMMIT" if sql == "COMMIT" else "statements", super().execute, sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:
        return _timed("statements", super().executemany, sql, *args)


class _NotedConnection(sqlite3.Connection):
    def cursor(self, *args: Any) -> Any:
        return super().cursor(_NotedCursor)


def _run_noted(run: Callable[..., Any], commands: Sequence[Any]) -> Any:
    count = max(len(commands), 1)
    trace.inner = {part: [0, 0] for part in ("store read", "store commit", "encode", "statements", "COMMIT")}
    trace.runs_on = get_ident()
    began, used = wall(), cpu()
    for posted in trace.posted_ns[:count]:
        trace.add("hand-over to the writer", (began - posted) / count)
    del trace.posted_ns[:count]
    try:
        return run(commands)
    finally:
        spent, burnt = wall() - began, cpu() - used
        for part, (inner_wall, inner_cpu) in trace.inner.items():
            trace.add(part, inner_wall / count, inner_cpu / count)
            if part in OUTER:
                spent, burnt = spent - inner_wall, burnt - inner_cpu
        trace.inner = {}
        trace.add("decide", spent / count, burnt / count)
        trace.run_end_ns = wall()


def _noted_batcher(original: type) -> type:
    class NotedBatcher(original):  # type: ignore[misc]
        def __init__(self, run: Callable[..., Any], *args: Any, **named: Any) -> None:
            if at_once := named.get("run_at_once"):
                named["run_at_once"] = partial(_run_noted, at_once)
            super().__init__(partial(_run_noted, run), *args, **named)

        def post(self, command: Any, callback: Callable[[Any], None], is_gone: Any = None) -> None:
            if not trace.read_ns:  # the mark
                super().post(command, callback, is_gone)
                return
            now, used = wall(), cpu()
            trace.add("parse", now - trace.read_ns, used - trace.read_cpu)
            trace.posted_ns.append(now)
            trace.requests += 1

            def answered(result: Any) -> None:
                began, used = wall(), cpu()
                trace.add("hand-over back", began - trace.run_end_ns)
                callback(result)
                trace.answered_ns = wall()
                trace.add("answer", trace.answered_ns - began, cpu() - used)
                trace.edges.append((trace.read_ns, trace.answered_ns))

            super().post(command, answered, is_gone)

    return NotedBatcher


def _noted_protocol(original: Any) -> type:
    class NotedProtocol(original):  # type: ignore[misc]
        def data_received(self, data: bytes) -> None:
            if MARK in data:
                trace.mark()
                trace.read_ns = 0
            else:
                trace.read_ns, trace.read_cpu = wall(), cpu()
            super().data_received(data)

    return NotedProtocol


def install() -> None:
    """Put the clocks where the parts meet. Modules are changed as `Any`: nothing else may do this."""
    run: Any = run_module
    engine: Any = engine_module
    open_store, make_server = run.open_store, run.make_server
    run.open_store = lambda *args, **named: _NotedStore(open_store(*args, **named))
    engine.Batcher = _noted_batcher(engine.Batcher)
    store: Any = sqlite_store
    store.encode = partial(_timed, "encode", store.encode)
    driver: Any = cheap.sqlite3
    driver.connect = partial(driver.connect, factory=_NotedConnection)

    def noted_server(*args: Any, **named: Any) -> Any:
        server = make_server(*args, **named)
        server.connect = partial(_noted_protocol(server.connect.func), *server.connect.args)
        return server

    run.make_server = noted_server


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    install()
    run_module.serve(
        ServerSettings(bind=f"127.0.0.1:{port}", store=f"sqlite://{folder}/dibs.db", tokens_file=str(folder / "tokens"))
    )
    print(json.dumps(trace.phases), flush=True)


if __name__ == "__main__":
    main()
