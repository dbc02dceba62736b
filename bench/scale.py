"""A server with much to remember: 10,000 sessions, 100,000 leases, and 1,000 jobs with 10 waiters each.

python bench/scale.py --quick       a hundredth of it, some seconds
python bench/scale.py               all of it, some minutes

Prints how long it takes to build that, how much memory the server needs, and how long a claim of a free job takes
then, next to the same on the empty server.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from http_client import LIMIT_SECONDS, Connection
from procs import BenchError, end_on_sigterm
from stats import percentile
from targets import DibsTarget, HttpServer

BUILDERS = 32  # connections that build
PROBES = 1_000


def say(text: str) -> None:
    print(text, flush=True)


class Build:
    """Builds the load: `one` is called for every number, on several connections at once."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._connections: list[Connection] = []

    async def open(self) -> None:
        # Each principal has its own token and connections, because the holds of one principal are limited.
        url, tokens = self._server.url, self._server.tokens
        self._connections = [await Connection.open(url, tokens[number % len(tokens)]) for number in range(BUILDERS)]

    async def each(self, what: str, count: int, one: Callable[[Connection, int], Awaitable[None]]) -> None:
        began = time.monotonic()

        async def share(first: int) -> None:
            for number in range(first, count, BUILDERS):
                await one(self._connections[first], number)

        await asyncio.gather(*[share(first) for first in range(BUILDERS)])
        spent = time.monotonic() - began
        say(f"{count:8,} {what:28} in {spent:6.1f} s   {count / spent:8,.0f}/s")


async def sessions(build: Build, count: int) -> list[str]:
    made = [""] * count

    async def one(connection: Connection, number: int) -> None:
        made[number] = (await connection.ask("POST", "/sessions", {"ttl_seconds": 300}))["session_id"]

    await build.each("sessions", count, one)
    return made


async def leases(build: Build, count: int, opened: list[str]) -> None:
    # The share of a connection and of its principal: only the principal that opened a session may use it.
    step = BUILDERS * (len(opened) // BUILDERS) or BUILDERS

    async def one(connection: Connection, number: int) -> None:
        body = {"ttl_seconds": 3600, "session_id": opened[number % step % len(opened)]}
        _expect(await connection.ask("POST", f"/locks/lease-{number}/acquire", body), "acquired")

    await build.each("leases in sessions", count, one)


async def lines(build: Build, server: HttpServer, jobs: int, deep: int) -> list[Connection]:
    async def hold(connection: Connection, number: int) -> None:
        reply = await connection.ask("POST", f"/locks/line-{number}/acquire", {"ttl_seconds": 3600})
        _expect(reply, "acquired")

    await build.each("jobs to wait for", jobs, hold)
    waiting: list[Connection] = []

    async def wait(_: Connection, number: int) -> None:
        connection = await Connection.open(server.url, server.tokens[0])
        waiting.append(connection)
        connection.send("POST", f"/locks/line-{number % jobs}/acquire", {"ttl_seconds": 60, "wait_seconds": 3600})
        await asyncio.sleep(0)

    await build.each("waiters sent", jobs * deep, wait)
    began = time.monotonic()
    control = await Connection.open(server.url, server.tokens[0])
    while (found := (await control.ask("GET", "/status"))["waiting"]) < jobs * deep:
        if time.monotonic() - began > LIMIT_SECONDS:
            raise BenchError(f"only {found} of {jobs * deep} wait")
        await asyncio.sleep(0.05)
    say(f"{jobs * deep:8,} waiting, {time.monotonic() - began:.1f} s after the last was sent")
    return waiting


async def probe(server: HttpServer, tag: str) -> tuple[float, float]:
    """p50 and p99 of claiming a free job, in milliseconds, on one connection."""
    connection = await Connection.open(server.url, server.tokens[1])
    taken = []
    for number in range(PROBES):
        began = time.perf_counter()
        reply = await connection.ask("POST", f"/locks/{tag}-{number}/acquire", {})
        taken.append((time.perf_counter() - began) * 1000)
        _expect(reply, "acquired")
        lease = {"lease_id": reply["lease_id"]}
        await connection.ask("POST", f"/locks/{tag}-{number}/release", lease)
    taken.sort()
    return percentile(taken, 50), percentile(taken, 99)


def _expect(reply: dict[str, Any], status: str) -> None:
    if reply["status"] != status:
        raise BenchError(f"told {reply['status']} instead of {status}: {reply}")


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError("the server's memory cannot be read")


async def run(server: HttpServer, pid: int, args: argparse.Namespace) -> None:
    empty_mb, empty = resident_mb(pid), await probe(server, "empty")
    build = Build(server)
    await build.open()
    opened = await sessions(build, args.sessions)
    await leases(build, args.leases, opened)
    waiting = await lines(build, server, args.jobs, args.deep)
    full_mb, full = resident_mb(pid), await probe(server, "full")
    say("")
    say("| | empty | full |")
    say("| --- | ---: | ---: |")
    say(f"| resident memory of the server, MB | {empty_mb:.0f} | {full_mb:.0f} |")
    say(f"| acquire on one connection, p50 / p99, ms | {_pair(empty)} | {_pair(full)} |")
    for connection in waiting:
        connection.close()


def _pair(figures: tuple[float, float]) -> str:
    return f"{figures[0]:.2f} / {figures[1]:.2f}"


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--sessions", type=int, default=10_000)
    made.add_argument("--leases", type=int, default=100_000)
    made.add_argument("--jobs", type=int, default=1_000, help="jobs with waiters")
    made.add_argument("--deep", type=int, default=10, help="waiters of each")
    made.add_argument("--quick", action="store_true", help="a hundredth of it")
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the server keeps data")
    args = made.parse_args()
    if args.quick:
        args.sessions, args.leases, args.jobs = args.sessions // 100, args.leases // 100, args.jobs // 100
    end_on_sigterm()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each waiter needs a connection, here and at the server
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dibs-scale-", dir=args.folder) as folder,
            DibsTarget().open(Path(folder)) as server,
        ):
            asyncio.run(run(server, server.pids[0], args))
    except BenchError as error:
        say(f"!!! {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
