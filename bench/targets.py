"""What is measured: how each target is started, and what an acquire and a release are there.

A target's server lives for one cell (one number of connections in one round) on a new, empty data folder, and no
other server runs meanwhile. So no target pays for what another, or an earlier cell, left behind: expiring leases,
compactions, full logs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import secrets
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import load
from load import Sample
from procs import free_port, http_ready, serving

CYCLE, ACQUIRE, WAVE = "cycle", "acquire", "wave"
PRINCIPALS = 4


class Server(Protocol):
    @property
    def pids(self) -> Sequence[int]: ...
    def measure(self, workload: str, connections: int, seconds: int) -> Sample: ...


class Target(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def workloads(self) -> tuple[str, ...]: ...
    def missing(self) -> str | None:
        """Why it cannot run here, or None."""
        ...

    def open(self, folder: Path) -> contextlib.AbstractContextManager[Server]: ...


def need_programs(*programs: str) -> str | None:
    absent = [program for program in programs if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def _need_modules(*modules: str) -> str | None:
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"Python module {', '.join(absent)} not installed" if absent else None


TURNS = {CYCLE: ("acquire,release", "fresh"), WAVE: ("acquire,get,renew,release", "own")}


def turns(url: str, token: str, workload: str, workers: int, seconds: int) -> Sample:
    """Workers that each do the operations of a workload in turn, on a connection of their own."""
    return load.wrk("turns", url, workers, seconds, TURNS[workload], token, threads=workers)


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server with the lock API, or one that looks enough like it."""

    url: str
    tokens: Sequence[str]
    """One for each principal. Calls take them in turn: how many leases one principal may hold is limited."""
    pids: Sequence[int] = ()
    turn: Iterator[int] = field(default_factory=itertools.count)

    def next_token(self) -> str:
        return self.tokens[next(self.turn) % len(self.tokens)]

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        if workload == WAVE:
            return turns(self.url, self.next_token(), workload, connections, seconds)
        return load.wrk(f"dibs_{workload}", self.url, connections, seconds, token=self.next_token())


@dataclass(frozen=True, slots=True)
class DibsTarget:
    """`dibs serve` on SQLite. `command` is what stands before `serve`."""

    command: Sequence[str] = (sys.executable, "-m", "dibs")
    name: str = "dibs"
    workloads: tuple[str, ...] = (CYCLE, ACQUIRE)

    def missing(self) -> str | None:
        own_module = tuple(self.command[1:]) == ("-m", "dibs")
        return need_programs("wrk") or (_need_modules("dibs") if own_module else None)

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[HttpServer]:
        tokens = [secrets.token_hex(24) for _ in range(PRINCIPALS)]
        file = folder / "tokens"
        file.touch(mode=0o600)
        file.write_text("".join(f"bench{number}:{token}:agent\n" for number, token in enumerate(tokens)))
        bind = f"127.0.0.1:{free_port()}"
        argv = [*self.command, "serve", "--bind", bind]
        argv += ["--store", f"sqlite://{folder / 'dibs.db'}", "--tokens", str(file)]
        with serving(argv, folder / "dibs.log", http_ready(f"http://{bind}/health")) as child:
            yield HttpServer(f"http://{bind}", tokens, [child.pid])


@dataclass(frozen=True, slots=True)
class NoopTarget:
    """The same HTTP stack without work. It sees the same requests as dibs' acquire."""

    name: str = "noop"
    workloads: tuple[str, ...] = (ACQUIRE,)

    def missing(self) -> str | None:
        return need_programs("wrk") or _need_modules("uvicorn", "uvloop", "httptools")

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[HttpServer]:
        url = f"http://127.0.0.1:{(port := free_port())}"
        argv = [sys.executable, str(Path(__file__).parent / "noop.py"), str(port)]
        with serving(argv, folder / "noop.log", http_ready(url)) as child:
            yield HttpServer(url, [secrets.token_hex(24)], [child.pid])


@dataclass(frozen=True, slots=True)
class EtcdServer:
    url: str
    lease: str
    pids: Sequence[int] = ()

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        args = (self.lease, str(connections))
        return load.wrk(f"etcd_{workload}", self.url, connections, seconds, args)


@dataclass(frozen=True, slots=True)
class GrpcEtcdServer:
    url: str
    lease: str
    pids: Sequence[int] = ()

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        program = str(Path(__file__).parent / "etcd_load.py")
        words = [self.url.rpartition(":")[2], str(connections), str(seconds), workload, load.fresh_tag(), self.lease]
        return load.generated([sys.executable, program, *words], seconds)


@dataclass(frozen=True, slots=True)
class EtcdTarget:
    """One etcd member, fsync on as it comes: through its JSON gateway, or by gRPC."""

    name: str = "etcd"
    workloads: tuple[str, ...] = (CYCLE, ACQUIRE)
    server: type[EtcdServer | GrpcEtcdServer] = EtcdServer

    def missing(self) -> str | None:
        return need_programs("wrk", "etcd")

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[EtcdServer | GrpcEtcdServer]:
        url, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        argv = ["etcd", "--name", "bench", "--data-dir", str(folder / "etcd"), "--logger", "zap"]
        argv += ["--listen-client-urls", url, "--advertise-client-urls", url]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--initial-cluster", f"bench={peer}"]
        # etcd 3.4 refuses to start on arm64 and others unless told that this is known.
        env = {"ETCD_UNSUPPORTED_ARCH": arch} if (arch := _unsupported_arch()) else {}
        with serving(argv, folder / "etcd.log", http_ready(f"{url}/health"), env) as child:
            yield self.server(url, grant_lease(url), [child.pid])


ETCD_GRPC = EtcdTarget("etcd-grpc", server=GrpcEtcdServer)


def _unsupported_arch() -> str | None:
    return {"aarch64": "arm64", "armv7l": "arm", "riscv64": "riscv64"}.get(os.uname().machine)


def grant_lease(url: str) -> str:
    """The lease all keys of one cell hang on: one grant for each acquire would be two writes to our one."""
    request = urllib.request.Request(f"{url}/v3/lease/grant", data=b'{"TTL":"3600"}', method="POST")
    with urllib.request.urlopen(request, timeout=5) as reply:
        return str(json.load(reply)["ID"])


@dataclass(slots=True)
class RedisServer:
    port: int
    pids: Sequence[int] = ()
    rate: dict[int, float] = field(default_factory=dict)

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        """redis-benchmark runs for a count, not a time: a short probe says which count lasts long enough."""
        if connections not in self.rate:
            self.rate[connections] = load.redis_benchmark(self.port, connections, 2000).requests_per_s
        count = int(min(max(self.rate[connections] * seconds, 2000), 2_000_000))
        sample = load.redis_benchmark(self.port, connections, count)
        self.rate[connections] = sample.requests_per_s
        return sample


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """Redis that has every write on disk before it answers. RESP, not HTTP."""

    name: str = "redis"
    workloads: tuple[str, ...] = (ACQUIRE,)

    def missing(self) -> str | None:
        return need_programs("redis-server", "redis-benchmark")

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[RedisServer]:
        port = free_port()
        argv = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        argv += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        # No rewrite of the log in the middle of a cell.
        argv += ["--auto-aof-rewrite-percentage", "0"]

        def ready() -> bool:
            try:
                return load.redis_line(port, "PING") == "+PONG"
            except OSError:
                return False

        with serving(argv, folder / "redis.log", ready) as child:
            yield RedisServer(port, [child.pid])
