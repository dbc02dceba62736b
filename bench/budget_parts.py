"""The parts of one request, each in a loop of its own: read the request, decide, ask the store, write the answer.

    python bench/budget_parts.py FOLDER COUNT

Prints a line of JSON with the time of each part. Under `valgrind --tool=callgrind --dump-before=getsid` callgrind also
writes the instructions between two marks (`budget.py` starts it so). There are no threads and no sockets here: what
they cost is what a real server takes more (`budget_trace.py`).

The requests go through the server's own protocol class, with a transport that keeps what is written. The commands that
come out are decided on a store that writes down each call and its result. Then each part is done again alone: the rules
over the results that were written down, the store with the calls that were written down, on a second file in the same
state.

The stores have a clock that stands still. A store looks at its file (`FileBelow`), and writes its time apart from the
events', after so many milliseconds, and under valgrind every request would take longer. A look is counted apart.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from dibs.base.clock import steady_ms, wall_ms
from dibs.core.limits import CHECKPOINT_PAGES
from dibs.engine.auth import TokenGuard
from dibs.engine.coordinator import Coordinator
from dibs.server.connection import HttpConnection
from dibs.server.engine import Engine
from dibs.server.handlers import Api
from dibs.server.http_server import make_server
from dibs.server.run import GC_THRESHOLDS
from dibs.server.settings import ServerSettings
from dibs.stores import codec
from dibs.stores.port import Store, StoreProxy
from dibs.stores.sqlite import SqliteStore
from dibs.stores.sqlite.file_identity import BELOW_LOOK_MS

OPERATIONS = ("acquire", "renew", "get", "release")
PARTS = ("parse", "decide", "encode", "store read", "store commit", "answer")
WARM = 40  # the interpreter adapts its bytecode to what it sees; a server has done so long ago
TOKEN = "0123456789abcdef" * 3
METHODS = [name for name in dir(Store) if not name.startswith("_") and callable(getattr(Store, name))]

Call = tuple[str, tuple[Any, ...], dict[str, Any], Any]


class Meter:
    """Marks where a part begins and ends. callgrind looks for calls of getsid(2), which nothing else here calls."""

    def __init__(self) -> None:
        self.spent: list[dict[str, Any]] = []
        self.on = False

    @contextmanager
    def part(self, operation: str, name: str, count: int) -> Iterator[None]:
        if not self.on:
            yield
            return
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        os.getsid(0)
        yield
        os.getsid(0)
        wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
        self.spent.append(
            {
                "operation": operation,
                "part": name,
                "count": count,
                "wall_us": wall / count / 1e3,
                "cpu_us": cpu / count / 1e3,
            }
        )


def _recording(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        # Views are made lists: a replay must be able to go through them again.
        kept = tuple(list(arg) if name == "read" else arg for arg in args)
        result = getattr(self.inner, name)(*kept, **named)
        self.calls.append((name, kept, named, result))
        return result

    return method


def _replaying(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return self.results.popleft()

    return method


class Recorder(StoreProxy):
    """Asks the inner store, and writes down every call."""

    calls: list[Call]


class Replayer(StoreProxy):
    """Gives results that were written down, in their order."""

    results: deque[Any]


for _name in METHODS:
    setattr(Recorder, _name, _recording(_name))
    setattr(Replayer, _name, _replaying(_name))


class Wire:
    """A transport that keeps what was written last."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written = data

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: object) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def request(operation: str, name: str, lease: str) -> bytes:
    body = b""
    if operation == "acquire":
        body = b'{"ttl_seconds":3600}'  # longer than a slow machine takes under valgrind
    elif operation != "get":
        body = b'{"lease_id":"%b"}' % lease.encode()
    head = f"GET /locks/{name}" if operation == "get" else f"POST /locks/{name}/{operation}"
    head += f" HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer {TOKEN}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Lane:
    """The server's way from bytes to commands and from outcomes to bytes, without a socket."""

    def __init__(self, store: Store, folder: Path, count: int) -> None:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        tokens = folder / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(f"bench:{TOKEN}:agent\n")
        engine = Engine(store, loop)
        engine.store_id = "0" * 32
        api = Api(engine, TokenGuard(str(tokens)), ServerSettings(locks_per_principal=10**9))
        api.post = self._post
        state = make_server(api).server_state
        self.posted: list[tuple[Any, Callable[[Any], None]]] = []
        self.wires = [Wire() for _ in range(count)]
        self.connections: list[Any] = [HttpConnection(state, loop) for _ in range(count)]
        for connection, wire in zip(self.connections, self.wires, strict=True):
            connection.connection_made(wire)

    def _post(self, command: Any, callback: Callable[[Any], None], is_gone: Any = None) -> None:
        self.posted.append((command, callback))


class Budget:
    def __init__(self, folder: Path, count: int) -> None:
        self._meter = Meter()
        self._count = count
        self._now_ms, self._opened_ms = steady_ms(), wall_ms()
        self._path = folder / "second.db"
        self._first = self._open(folder / "first.db")
        self._second = self._open(self._path)
        self._recorder = Recorder(self._first)
        self._replayer = Replayer(self._first)
        self._lane = Lane(self._first, folder, count)

    def _open(self, path: Path) -> Store:
        """As a server does, but for the clock."""
        return SqliteStore(
            str(path),
            checkpoint_pages=CHECKPOINT_PAGES,
            steady_ms=lambda: self._now_ms,
            wall_ms=lambda: self._opened_ms,
        )

    def run(self, tag: str, count: int, *, measured: bool) -> None:
        self._meter.on = measured
        leases = [""] * count
        for operation in OPERATIONS:
            raws = [request(operation, f"{tag}{number:08}", leases[number]) for number in range(count)]
            wires = self._operation(operation, raws, count)
            if operation == "acquire":
                leases = [json.loads(wire.partition(b"\r\n\r\n")[2])["lease_id"] for wire in wires]

    def _operation(self, operation: str, raws: list[bytes], count: int) -> list[bytes]:
        lane = self._lane
        lane.posted = []
        gc.collect()
        with self._meter.part(operation, "parse", count):
            for connection, raw in zip(lane.connections, raws, strict=False):
                connection.data_received(raw)
        posted = lane.posted
        if len(posted) != count:
            raise SystemExit(f"{len(posted)} of {count} requests became commands")
        commands = [command for command, _ in posted]
        outcomes, calls = self._decide(operation, commands, count)
        with self._meter.part(operation, "answer", count):
            for (_, callback), outcome in zip(posted, outcomes, strict=True):
                callback(outcome)
        self._store(operation, calls, count)
        answers = [wire.written for wire in lane.wires[:count]]
        bad = [answer for answer in answers if not answer.startswith(b"HTTP/1.1 200")]
        if bad:
            raise SystemExit(f"{operation} was answered with {bad[0]!r}")
        return answers

    def _decide(self, operation: str, commands: list[Any], count: int) -> tuple[list[Any], list[Call]]:
        self._recorder.calls = []
        real = Coordinator(self._recorder)
        outcomes = [real.one(command) for command in commands]
        calls = self._recorder.calls
        self._replayer.results = deque([result for _, _, _, result in calls])
        again = Coordinator(self._replayer)
        with self._meter.part(operation, "decide", count):
            for command in commands:
                again.one(command)
        return outcomes, calls

    def _store(self, operation: str, calls: list[Call], count: int) -> None:
        """The store's calls on the second file, which is where the first one was before them."""
        reads = [(getattr(self._second, name), args, named) for name, args, named, _ in calls if name != "commit"]
        writes = [args for name, args, _, _ in calls if name == "commit"]
        with self._meter.part(operation, "store read", count):
            for method, args, named in reads:
                method(*args, **named)
        if not writes:
            return
        with self._meter.part(operation, "encode", count):
            for _, puts, events in writes:
                for record in puts.values():
                    if record is not None:
                        codec.encode(record)
                for event in events:
                    codec.encode(event)
        with self._meter.part(operation, "store commit", count):
            for args in writes:
                self._second.commit(*args)

    def look(self, count: int) -> None:
        """Reads of nothing after somebody touched the file: without a look at it, and with one."""
        moved = sqlite3.connect(self._path)
        moved.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        moved.close()
        for part, passes_ms in (("no look", 0), ("look at the file", BELOW_LOOK_MS)):
            with self._meter.part("store", part, count):
                for at in range(count):
                    os.utime(self._path, (at, at))
                    self._now_ms += passes_ms
                    self._second.read(())

    @property
    def spent(self) -> list[dict[str, Any]]:
        return self._meter.spent


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    gc.set_threshold(*GC_THRESHOLDS)
    budget = Budget(folder, max(count, WARM))
    budget.run("warm", WARM, measured=False)
    budget.run("job-", count, measured=True)
    budget.look(count)
    print(json.dumps(budget.spent))


if __name__ == "__main__":
    main()
