"""How long from a release to the reply that tells the next in line that the job is theirs.

python bench/handoff.py --quick     a smoke run of some seconds
python bench/handoff.py             1, 16, 256 and 1,000 waiters on one job, dibs and etcd side by side

All waiters are long polls of this one process, each on a connection of its own. In each hand-off the owner releases,
the clock runs from before the release is written until the next owner's reply is read, and the old owner goes to the
end of the line: the line is as long at every hand-off. Targets take turns, each on a fresh server, in every round.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib.util
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from http_client import LIMIT_SECONDS, Connection
from procs import BenchError, cpu_seconds, end_on_sigterm, memory_mb
from stats import paired_ratio, percentile
from targets import DibsTarget, EtcdServer, EtcdTarget, HttpServer

JOB = "issue-1842"
AIM = 1 / 3
FLAT = 2.0


class Line(Protocol):
    """A lock service, as far as waiting in line for one job goes."""

    async def join(self, worker: int) -> None:
        """Ask for the job, without waiting for the answer."""

    async def owned(self, worker: int) -> Any:
        """The answer; what proves ownership."""

    async def release(self, worker: int, proof: Any) -> None:
        """Let go. Returns when it is sent."""

    async def released(self, worker: int) -> None:
        """The answer to that."""

    async def length(self) -> int:
        """How many wait."""


class DibsLine:
    def __init__(self, connections: list[Connection], control: Connection, job: str = JOB) -> None:
        self._connections = connections
        self._control = control
        self._job = job

    @classmethod
    async def open(cls, url: str, token: str, workers: int) -> DibsLine:
        made = [await Connection.open(url, token) for _ in range(workers)]
        return cls(made, await Connection.open(url, token))

    async def join(self, worker: int) -> None:
        body = {"ttl_seconds": 600, "wait_seconds": 600, "owner": f"worker-{worker}"}
        self._connections[worker].send("POST", f"/locks/{self._job}/acquire", body)

    async def owned(self, worker: int) -> Any:
        reply = await self._connections[worker].receive()
        if reply["status"] != "acquired":
            raise BenchError(f"worker {worker} was told {reply}")
        return reply["lease_id"]

    async def release(self, worker: int, proof: Any) -> None:
        self._connections[worker].send("POST", f"/locks/{self._job}/release", {"lease_id": proof})

    async def released(self, worker: int) -> None:
        await self._connections[worker].receive()

    async def length(self) -> int:
        reply = await self._control.ask("GET", f"/locks/{self._job}")
        return int(reply["waiting"])


class EtcdLine:
    """Lock and Unlock of etcd's lock service, through its JSON gateway. Every worker has a lease of its own."""

    def __init__(self, connections: list[Connection], control: Connection, leases: list[str]) -> None:
        self._connections = connections
        self._control = control
        self._leases = leases
        self._name = base64.b64encode(JOB.encode()).decode()

    @classmethod
    async def open(cls, url: str, workers: int) -> EtcdLine:
        made = [await Connection.open(url) for _ in range(workers)]
        control = await Connection.open(url)
        leases = [str((await control.ask("POST", "/v3/lease/grant", {"TTL": "3600"}))["ID"]) for _ in range(workers)]
        return cls(made, control, leases)

    async def join(self, worker: int) -> None:
        body = {"name": self._name, "lease": self._leases[worker]}
        self._connections[worker].send("POST", "/v3/lock/lock", body)

    async def owned(self, worker: int) -> Any:
        return (await self._connections[worker].receive())["key"]

    async def release(self, worker: int, proof: Any) -> None:
        self._connections[worker].send("POST", "/v3/lock/unlock", {"key": proof})

    async def released(self, worker: int) -> None:
        await self._connections[worker].receive()

    async def length(self) -> int:
        end = base64.b64encode(JOB.encode() + b"0").decode()  # "0" follows "/", after which the waiters' keys go on
        body = {"key": self._name, "range_end": end, "count_only": True}
        reply = await self._control.ask("POST", "/v3/kv/range", body)
        return int(reply.get("count", 0)) - 1  # one of the keys is the owner's


async def until_length(line: Line, count: int) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while await line.length() != count:
        if time.monotonic() > end:
            raise BenchError(f"the line did not become {count} long")
        await asyncio.sleep(0.001)


async def take_places(line: Line, waiters: int) -> Any:
    """The first worker gets the job, the others wait for it, in their order. Returns the first one's proof."""
    await line.join(0)
    proof = await asyncio.wait_for(line.owned(0), LIMIT_SECONDS)
    for worker in range(1, waiters + 1):
        await line.join(worker)
        await until_length(line, worker)
    return proof


async def hand_offs(line: Line, waiters: int, count: int, proof: Any) -> list[float]:
    """Milliseconds of `count` hand-offs, after a tenth as many that do not count. All have taken their places."""
    taken = []
    owner = 0
    for turn in range(-(count // 10), count):
        heir = (owner + 1) % (waiters + 1)
        began = time.perf_counter()
        await line.release(owner, proof)
        proof = await asyncio.wait_for(line.owned(heir), LIMIT_SECONDS)
        if turn >= 0:
            taken.append((time.perf_counter() - began) * 1000)
        await asyncio.wait_for(line.released(owner), LIMIT_SECONDS)
        await line.join(owner)
        await until_length(line, waiters)
        owner = heir
    return taken


@dataclass(frozen=True, slots=True)
class Turn:
    taken_ms: list[float]
    server_cpu_us: float
    """For one hand-off, and for the old owner's way back to the end of the line."""
    server_mb: float


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    missing: Callable[[], str | None]
    run: Callable[[Path, int, int], Turn]


async def _turn(line: Line, waiters: int, count: int, pids: Sequence[int]) -> Turn:
    proof = await take_places(line, waiters)
    used = cpu_seconds(*pids)
    taken = await hand_offs(line, waiters, count, proof)
    used = (cpu_seconds(*pids) - used) / (count + count // 10) * 1e6
    return Turn(taken, used, memory_mb(*pids))


def dibs_service(name: str, target: DibsTarget) -> Service:
    def run(folder: Path, waiters: int, count: int) -> Turn:
        async def go(server: HttpServer) -> Turn:
            line = await DibsLine.open(server.url, server.next_token(), waiters + 1)
            return await _turn(line, waiters, count, server.pids)

        with target.open(folder) as server:
            return asyncio.run(go(server))

    return Service(name, target.missing, run)


def run_etcd(folder: Path, waiters: int, count: int) -> Turn:
    async def go(server: EtcdServer) -> Turn:
        line = await EtcdLine.open(server.url, waiters + 1)
        return await _turn(line, waiters, count, server.pids)

    with EtcdTarget().open(folder) as server:
        return asyncio.run(go(server))


def no_zookeeper() -> str | None:
    """Kazoo's lock wants a ZooKeeper to talk to. Neither is a part of this repository's images."""
    if importlib.util.find_spec("kazoo") is None or shutil.which("zkServer.sh") is None:
        return "needs the Python module kazoo and a ZooKeeper (zkServer.sh)"
    return "both are here, but this bench has not been taught to start a ZooKeeper"


SERVICES = [
    dibs_service("dibs", DibsTarget()),
    Service("etcd", EtcdTarget().missing, run_etcd),
    Service("kazoo", no_zookeeper, lambda folder, waiters, count: Turn([], 0.0, 0.0)),
]


def say(text: str) -> None:
    print(text, flush=True)


def measure(args: argparse.Namespace, services: list[Service]) -> dict[tuple[str, int], list[list[float]]]:
    """Hand-offs by service and number of waiters, one list a round."""
    counts = [int(count) for count in args.waiters.split(",")]
    found: dict[tuple[str, int], list[list[float]]] = {}
    for turn in range(args.rounds):
        for waiters in counts:
            shift = turn % len(services)
            for service in services[shift:] + services[:shift]:
                with tempfile.TemporaryDirectory(prefix="dibs-handoff-", dir=args.folder) as folder:
                    turn_of = service.run(Path(folder), waiters, args.count)
                taken = sorted(turn_of.taken_ms)
                found.setdefault((service.name, waiters), []).append(taken)
                p50, p99 = percentile(taken, 50), percentile(taken, 99)
                say(
                    f"round {turn + 1}: {service.name:6} {waiters:5} waiters   p50 {p50:.2f} ms   p99 {p99:.2f} ms   "
                    f"CPU {turn_of.server_cpu_us:.0f} us"
                )
    return found


def table(found: dict[tuple[str, int], list[list[float]]]) -> tuple[list[str], bool]:
    """The table, and whether both aims were met."""
    names = list(dict.fromkeys(name for name, _ in found))
    counts = sorted({waiters for _, waiters in found})
    lines = ["| p50 / p99, ms | " + " | ".join(f"{count} waiting" for count in counts) + " |"]
    lines.append("| --- |" + " ---: |" * len(counts))
    for name in names:
        pooled = [sorted(itertools.chain(*found[name, count])) for count in counts]
        cells = [f"{percentile(each, 50):.2f} / {percentile(each, 99):.2f}" for each in pooled]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    good = True
    for name in names[1:]:
        ratios = [paired_ratio(*(_medians(found, each, count) for each in ("dibs", name))) for count in counts]
        good &= all(ratio is not None and ratio.median <= AIM for ratio in ratios)
        lines.append(f"| *dibs / {name}* | " + " | ".join(r.text(2) if r else "-" for r in ratios) + " |")
    least, most = (_medians(found, "dibs", count) for count in (counts[0], counts[-1]))
    grown = paired_ratio(most, least)
    if grown is not None:
        good &= grown.median <= FLAT
        lines += ["", f"dibs' p50 at {counts[-1]} waiting by that at {counts[0]}: {grown.text(2)}"]
    return lines, good


def _medians(found: dict[tuple[str, int], list[list[float]]], name: str, waiters: int) -> list[float]:
    return [percentile(taken, 50) for taken in found[name, waiters]]


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--waiters", default="1,16,256,1000", help="comma list (default: 1,16,256,1000)")
    made.add_argument("--count", type=int, default=200, help="hand-offs in each turn")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--only", default="", help="comma list of dibs, etcd, kazoo")
    made.add_argument("--quick", action="store_true", help="one round, few hand-offs, 1 and 64 waiters")
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where servers keep data")
    args = made.parse_args()
    if args.quick:
        args.rounds, args.count, args.waiters = 1, 20, "1,64"
    end_on_sigterm()
    usable = []
    for service in SERVICES:
        if args.only and service.name not in args.only.split(","):
            continue
        if why := service.missing():
            say(f"!!! SKIPPED {service.name}: {why}")
        else:
            usable.append(service)
    try:
        lines, good = table(measure(args, usable))
    except BenchError as error:
        say(f"!!! {error}")
        return 1
    say("\n" + "\n".join(lines))
    say(f"\naims (a third of the best peer, flat within {FLAT:g}): {'met' if good else '!!! NOT MET'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
