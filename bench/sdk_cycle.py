"""How long a Python program takes to get a lock and let it go, next to the locks it could have used instead.

python bench/sdk_cycle.py --quick         a smoke run
python bench/sdk_cycle.py                 the full run; prints a table for bench/README.md

One thread, one client, one free lock after another, a server of its own for each turn, in turns that shift by round.
Peers are used as their documentation shows. redis-py, kazoo and etcd3gw are not dependencies of dibs: install them to
have them measured, and their servers with apt (redis-server, zookeeper, etcd-server).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers import ZOOKEEPER, zookeeper
from procs import BenchError, cpu_seconds, end_on_sigterm
from stats import paired_ratio, percentile
from targets import DibsTarget, EtcdTarget, RedisTarget

Cycle = Callable[[str], None]
WARM = 20


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    modules: tuple[str, ...]
    program: str | None
    open: Callable[[Path], contextlib.AbstractContextManager[Cycle]]

    def missing(self) -> str | None:
        absent = [module for module in self.modules if importlib.util.find_spec(module) is None]
        if absent:
            return f"Python module {', '.join(absent)} not installed"
        if self.program is not None and shutil.which(self.program) is None:
            return f"{self.program} not installed"
        return None


@contextlib.contextmanager
def dibs_claim(folder: Path) -> Iterator[Cycle]:
    """The whole block: a heartbeat is started and stopped each time."""
    import dibs

    with DibsTarget().open(folder) as server, dibs.Client(server.url, server.next_token()) as client:

        def cycle(name: str) -> None:
            with client.claim(name, ttl=60):
                pass

        yield cycle


@contextlib.contextmanager
def dibs_acquire(folder: Path) -> Iterator[Cycle]:
    """Without a heartbeat, as the peers are."""
    import dibs

    with DibsTarget().open(folder) as server, dibs.Client(server.url, server.next_token()) as client:

        def cycle(name: str) -> None:
            client.release(name, client.acquire(name, ttl=60).lease_id)

        yield cycle


@contextlib.contextmanager
def dibs_embedded(folder: Path) -> Iterator[Cycle]:
    """Without a server: the same rules on an SQLite file."""
    import dibs

    with dibs.Client(f"sqlite://{folder}/jobs.db") as client:

        def cycle(name: str) -> None:
            client.release(name, client.acquire(name, ttl=60).lease_id)

        yield cycle


@contextlib.contextmanager
def redis_lock(folder: Path) -> Iterator[Cycle]:
    redis: Any = importlib.import_module("redis")
    with RedisTarget().open(folder) as server, redis.Redis(port=server.port) as client:

        def cycle(name: str) -> None:
            with client.lock(name, timeout=60):
                pass

        yield cycle


@contextlib.contextmanager
def kazoo_lock(folder: Path) -> Iterator[Cycle]:
    kazoo: Any = importlib.import_module("kazoo.client")
    with zookeeper(folder) as (port, _):
        client = kazoo.KazooClient(f"127.0.0.1:{port}")
        client.start(timeout=20)

        def cycle(name: str) -> None:
            with client.Lock(f"/locks/{name}"):
                pass

        try:
            yield cycle
        finally:
            client.stop()
            client.close()


@contextlib.contextmanager
def etcd_lock(folder: Path) -> Iterator[Cycle]:
    etcd3gw: Any = importlib.import_module("etcd3gw")
    with EtcdTarget().open(folder) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        client = etcd3gw.client(host=host, port=int(port), api_path="/v3/")

        def cycle(name: str) -> None:
            with client.lock(name, ttl=60):
                pass

        yield cycle


SERVICES = [
    Service("dibs: `with client.claim`", ("dibs",), None, dibs_claim),
    Service("dibs: `acquire`, `release`", ("dibs",), None, dibs_acquire),
    Service("dibs, embedded", ("dibs",), None, dibs_embedded),
    Service("redis-py `Lock`", ("redis",), "redis-server", redis_lock),
    Service("kazoo `Lock`", ("kazoo",), ZOOKEEPER, kazoo_lock),
    Service("etcd3gw `Lock`", ("etcd3gw",), "etcd", etcd_lock),
]


@dataclass(frozen=True, slots=True)
class Turn:
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of one cycle, of this process and of the server it started."""


def one_turn(service: Service, count: int, folder: Path) -> Turn:
    with (
        tempfile.TemporaryDirectory(prefix="dibs-sdk-", dir=folder) as place,
        service.open(Path(place)) as cycle,
    ):
        for number in range(WARM):
            cycle(f"warm-{number}")
        taken = []
        used = cpu_seconds(os.getpid())
        for number in range(count):
            began = time.perf_counter()
            cycle(f"job-{number}")
            taken.append((time.perf_counter() - began) * 1000)
        used = cpu_seconds(os.getpid()) - used
        taken.sort()
        return Turn(percentile(taken, 50), percentile(taken, 99), used / count * 1e6)


def table(found: dict[str, list[Turn]]) -> list[str]:
    lines = [
        "| one cycle | median, ms | lowest..highest | CPU, client and server, µs | dibs' `with` block takes |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    ours = [turn.p50_ms for turn in found[SERVICES[0].name]]
    for name, turns in found.items():
        medians = [turn.p50_ms for turn in turns]
        ratio = paired_ratio(ours, medians)
        times = "-" if name == SERVICES[0].name or ratio is None else f"{ratio.text(2)} times as long"
        spread = f"{min(medians):.2f}..{max(medians):.2f}"
        cpu = statistics.median(turn.cpu_us for turn in turns)
        lines.append(f"| {name} | {statistics.median(medians):.2f} | {spread} | {cpu:.0f} | {times} |")
    return lines


def print_turn(name: str, count: int, folder: Path) -> int:
    (service,) = [each for each in SERVICES if each.name == name]
    if why := service.missing():
        print(why, file=sys.stderr)
        return 1
    print(json.dumps(asdict(one_turn(service, count, folder))))
    return 0


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--count", type=int, default=500, help="cycles in each turn")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--turn", default="", help="one turn of this service; prints a line of JSON")
    made.add_argument("--quick", action="store_true", help="one round, few cycles")
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where servers keep data")
    args = made.parse_args()
    if args.quick:
        args.rounds, args.count = 1, 50
    end_on_sigterm()
    if args.turn:
        return print_turn(args.turn, args.count, args.folder)
    usable = []
    for service in SERVICES:
        if why := service.missing():
            print(f"!!! SKIPPED {service.name}: {why}", flush=True)
        else:
            usable.append(service)
    found: dict[str, list[Turn]] = {service.name: [] for service in usable}
    for number in range(args.rounds):
        shift = number % len(usable)
        for service in usable[shift:] + usable[:shift]:
            try:
                found[service.name].append(one_turn(service, args.count, args.folder))
            except BenchError as error:
                print(f"!!! {service.name}: {error}", flush=True)
                return 1
            print(f"round {number + 1}: {service.name}: {found[service.name][-1].p50_ms:.2f} ms", flush=True)
    print("\n" + "\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
