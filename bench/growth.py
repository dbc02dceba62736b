"""How cost grows with what a store holds: many leases, and as many events, against a store with few.

    python bench/growth.py fill FILE COUNT      claims COUNT jobs in an SQLite file, through the rules and the port
    python bench/growth.py                      a try with 20,000 leases; `performance.py growth` does all of them

Measured on both files, in turns: the time from the start of a server to its first answer, how long a renewal, a claim
and a look take at one connection, and the memory of the server.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import load
from builds import Build
from procs import BenchError, cpu_seconds, free_port, memory_mb, plain_environment, stop
from stats import percentile

FEW = 1_000
BATCH = 1_000
TTL_MS = 24 * 3600 * 1000
TOKENS = [f"{number:048x}" for number in range(4)]
ANSWER_SECONDS = 120.0
FILL_SECONDS = 900.0
LATER_SECONDS = 3.0
COUNT_SECONDS = 60.0


def job(number: int) -> str:
    return f"growth-{number:08}"


def lease(number: int) -> str:
    return str(uuid.UUID(int=number + 1, version=4))


def fill(path: str, count: int) -> None:
    """Many claims in each commit, decided by the rules as a server would decide them."""
    import msgspec  # noqa: F401  # before the codec, which then writes with it as a server does

    from dibs.core.commands import Acquire
    from dibs.engine.coordinator import Coordinator
    from dibs.stores.port import Opening
    from dibs.stores.registry import open_store

    store = open_store(f"sqlite://{path}", Opening(serves=True))
    coordinator = Coordinator(store)
    for first in range(0, count, BATCH):
        commands = [
            Acquire(
                ns="default",
                principal="bench0",
                owner="bench0",
                ttl_ms=TTL_MS,
                fresh_lease_id=lease(number),
                name=job(number),
            )
            for number in range(first, min(first + BATCH, count))
        ]
        for outcome in coordinator.run(commands):
            if isinstance(outcome, BaseException):
                raise outcome
    store.close()


class Client:
    """One connection, blocking."""

    def __init__(self, port: int) -> None:
        self._link = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method: str, path: str, body: bytes = b"", token: str = TOKENS[0]) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._link.sendall(head.encode() + b"\r\n" + body)
        reply = self._link.recv(65536)
        head_bytes, _, text = reply.partition(b"\r\n\r\n")
        length = int(head_bytes.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(text) < length:
            text += self._link.recv(65536)
        if not reply.startswith(b"HTTP/1.1 200"):
            raise BenchError(f"{method} {path}: {reply[:400].decode(errors='replace')}")
        return text

    def close(self) -> None:
        self._link.close()


Request = tuple[str, str, bytes, str]
"""Method, path, body, token."""


def renew(number: int) -> Request:
    body = b'{"lease_id":"%b"}' % lease(number).encode()
    return "POST", f"/locks/{job(number)}/renew", body, TOKENS[0]


def claim(number: int) -> Request:
    """By another principal than the one that has all the others: that one has as many as it may."""
    return "POST", f"/locks/fresh-{number:08}/acquire", b'{"ttl_seconds":600}', TOKENS[1]


def look(number: int) -> Request:
    return "GET", f"/locks/{job(number)}", b"", TOKENS[0]


@dataclass(slots=True)
class Running:
    port: int
    pid: int
    first_answer_s: float


@contextlib.contextmanager
def server(build: Build, file: Path, tag: int) -> Iterator[Running]:
    """A server on a file, and how long from its start to the answer to a claim."""
    tokens = file.with_suffix(".tokens")
    tokens.touch(mode=0o600)
    tokens.write_text("".join(f"bench{number}:{token}:agent\n" for number, token in enumerate(TOKENS)))
    port = free_port()
    argv = [*build.target().command, "serve", "--bind", f"127.0.0.1:{port}", "--store", f"sqlite://{file}"]
    with file.with_suffix(".log").open("wb") as log:
        began = time.perf_counter()
        child = subprocess.Popen(
            [*argv, "--tokens", str(tokens)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=plain_environment(),
        )
    try:
        _first_answer(port, child, tag, began)
        yield Running(port, child.pid, time.perf_counter() - began)
    finally:
        stop(child)


def _first_answer(port: int, child: subprocess.Popen[bytes], tag: int, began: float) -> None:
    while True:
        try:
            client = Client(port)
        except OSError:
            if child.poll() is not None or time.perf_counter() - began > ANSWER_SECONDS:
                raise BenchError("the server did not start") from None
            time.sleep(0.002)
            continue
        client.ask(*claim(90_000_000 + tag))
        client.close()
        return


def restarts(build: Build, files: dict[str, Path], times: int) -> dict[str, list[float]]:
    """Seconds from the start of a server to its first answer, in turns."""
    found: dict[str, list[float]] = {name: [] for name in files}
    for number in range(times + 1):
        for name, file in files.items():
            with server(build, file, number) as running:
                if number:  # the first start may have to bring the file up to date
                    found[name].append(running.first_answer_s)
    return found


def _is_counting(client: Client) -> bool:
    try:
        return b"\ndibs_counting 1.0\n" in client.ask("GET", "/metrics/prometheus")  # not in the help text
    except BenchError:
        return False  # an older version does not say


def _until_counted(client: Client) -> None:
    """A server counts the leases that it finds, for a while after its start, and requests wait for it then."""
    time.sleep(LATER_SECONDS)
    until = time.perf_counter() + COUNT_SECONDS
    while _is_counting(client):
        if time.perf_counter() > until:
            raise BenchError("the server still counts its leases")
        time.sleep(0.2)


OPERATIONS: dict[str, Callable[[int], Request]] = {
    "renew": renew,
    "acquire": claim,
    "get": look,
}


def latencies(
    build: Build, files: dict[str, Path], counts: dict[str, int], times: int, blocks: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[float]]]:
    """Milliseconds by file and operation; memory of each server in MB: at its first answer, later, and at the end."""
    taken: dict[str, dict[str, list[float]]] = {name: {each: [] for each in OPERATIONS} for name in files}
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(server(build, file, 99)) for name, file in files.items()}
        memory = {name: [memory_mb(each.pid)] for name, each in running.items()}
        clients = {name: Client(each.port) for name, each in running.items()}
        for client in clients.values():
            _until_counted(client)
        for name, each in running.items():
            memory[name].append(memory_mb(each.pid))
        for block in range(-1, blocks):
            for operation, request in OPERATIONS.items():
                for name, client in clients.items():
                    for number in range(times):
                        # Spread over the whole store, in no order.
                        which = ((block + 2) * times + number) * 7_368_787
                        which = which % 50_000_000 if operation == "acquire" else which % counts[name]
                        words = request(which)
                        began = time.perf_counter()
                        client.ask(*words)
                        if block >= 0:
                            taken[name][operation].append((time.perf_counter() - began) * 1e3)
        for name, each in running.items():
            memory[name].append(memory_mb(each.pid))
    return taken, memory


def acquired_memory(build: Build, folder: Path, count: int) -> dict[str, float]:
    """Bytes of server memory, and CPU time, for each lease that was claimed through it and is held."""
    file = folder / "acquired.db"
    with server(build, file, 0) as running:
        before, used, made = memory_mb(running.pid), cpu_seconds(running.pid), 0
        url, turn = f"http://127.0.0.1:{running.port}", 0
        while made < count:
            turn += 1
            args = (str(count - made), "3600", "3600")
            piece = load.wrk("dibs_fill", url, 32, 1, args, TOKENS[turn % len(TOKENS)])
            if piece.bad or not piece.acquired:
                raise BenchError(f"{piece.bad} bad answers while filling, the first: {piece.first_bad}")
            made += piece.acquired
        time.sleep(1.0)
        grown = memory_mb(running.pid) - before
        return {
            "leases": made,
            "bytes_each": grown * 1024 * 1024 / made,
            "cpu_us_each": (cpu_seconds(running.pid) - used) / made * 1e6,
        }


def filled(build: Build, path: Path, count: int) -> float:
    began = time.perf_counter()
    build.run([__file__, "fill", str(path), str(count)], FILL_SECONDS)
    return time.perf_counter() - began


def measure(
    build: Build, folder: Path, files: dict[str, Path], counts: dict[str, int], *, quick: bool
) -> dict[str, Any]:
    starts = restarts(build, files, 2 if quick else 5)
    taken, memory = latencies(build, files, counts, 50 if quick else 200, 2 if quick else 10)
    pairs = {
        name: {
            operation: {"p50_ms": percentile(each, 50), "p99_ms": percentile(each, 99), "count": len(each)}
            for operation, values in operations.items()
            for each in [sorted(values)]
        }
        for name, operations in taken.items()
    }
    return {
        "build": build.name,
        "leases": counts,
        "restart_s": starts,
        "latency": pairs,
        "memory_mb": memory,
        "file_mb": {name: file.stat().st_size / 1e6 for name, file in files.items()},
        "acquired": acquired_memory(build, folder, 5_000 if quick else 100_000),
    }


def main() -> int:
    if sys.argv[1:2] == ["fill"]:
        fill(sys.argv[2], int(sys.argv[3]))
        print("filled")
        return 0
    build = Build()
    with tempfile.TemporaryDirectory(prefix="dibs-growth-") as temp:
        counts = {"few": FEW, "many": 20_000}
        files = {name: Path(temp) / f"{name}.db" for name in counts}
        for name, file in files.items():
            filled(build, file, counts[name])
        print(json.dumps(measure(build, Path(temp), files, counts, quick=True), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
