"""Claims in a database: dibs servers on it, and the usual ways without dibs.

A contender's database is new and empty in each round, and no other one runs meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import databases
import load
import pgbench
from databases import Database
from load import Sample
from procs import cpu_seconds, free_port, http_ready, serving
from targets import PRINCIPALS, grant_lease, need_programs

POOL = 32


@dataclass(frozen=True, slots=True)
class DibsServers:
    urls: Sequence[str]
    tokens: Sequence[str]
    pids: Sequence[int]


@contextlib.contextmanager
def dibs_servers(folder: Path, store: str, count: int) -> Iterator[DibsServers]:
    """`count` times `dibs serve` on one store, with the same tokens."""
    tokens = [secrets.token_hex(24) for _ in range(PRINCIPALS)]
    file = folder / "tokens"
    file.touch(mode=0o600)
    file.write_text("".join(f"bench{number}:{token}:agent\n" for number, token in enumerate(tokens)))
    with contextlib.ExitStack() as stack:
        urls, pids = [], []
        for number in range(count):
            bind = f"127.0.0.1:{free_port()}"
            argv = [sys.executable, "-m", "dibs", "serve", "--bind", bind]
            argv += ["--store", store, "--tokens", str(file)]
            ready = http_ready(f"http://{bind}/health")
            child = stack.enter_context(serving(argv, folder / f"dibs{number}.log", ready))
            urls.append(f"http://{bind}")
            pids.append(child.pid)
        yield DibsServers(urls, tokens, pids)


@dataclass(frozen=True, slots=True)
class Measured:
    """One contender at one number of connections: the load's figures, and the CPU time of who did the work."""

    sample: Sample
    service_cpu_s: float
    database_cpu_s: float


Drive = Callable[[int, int], Sample]
"""Connections and seconds to figures."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is running: how to put load on it, and whose CPU time counts."""

    drive: Drive
    database: Database
    service_pids: Sequence[int] = ()

    def measure(self, connections: int, seconds: int) -> Measured:
        service, database = cpu_seconds(*self.service_pids), self.database.cpu_seconds()
        sample = self.drive(connections, seconds)
        return Measured(sample, cpu_seconds(*self.service_pids) - service, self.database.cpu_seconds() - database)


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    database: str
    open: Callable[[Path], contextlib.AbstractContextManager[Bench]]
    servers: int = 0

    def missing(self) -> str | None:
        programs = need_programs("wrk", *(["etcd"] if self.database == "etcd" else []))
        return programs or (databases.missing_postgres() if self.database == "postgres" else None)


def _wrk_at(urls: Sequence[str], token: str | None, script: str = "dibs_cycle", *args: str) -> Drive:
    """One thread of wrk for each server, each with its share of the connections."""
    ports = ",".join(url.rpartition(":")[2] for url in urls)

    def drive(connections: int, seconds: int) -> Sample:
        os.environ["BENCH_PORTS"] = ports
        try:
            return load.wrk(script, urls[0], connections, seconds, args, token=token, threads=len(urls))
        finally:
            del os.environ["BENCH_PORTS"]

    return drive


def database(kind: str, folder: Path, members: int = 1) -> contextlib.AbstractContextManager[Database]:
    return databases.postgres(folder) if kind == "postgres" else databases.etcd(folder, members)


def _dibs(kind: str, count: int, members: int = 1) -> Contender:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Bench]:
        with (
            database(kind, folder, members) as running,
            dibs_servers(folder, running.url, count) as servers,
        ):
            yield Bench(_wrk_at(servers.urls, servers.tokens[0]), running, servers.pids)

    name = f"dibs, {count} server{'s' if count > 1 else ''}"
    return Contender(name + (f", {members} members" if members > 1 else ""), kind, opened, count)


@contextlib.contextmanager
def _sql_server(folder: Path) -> Iterator[Bench]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with databases.postgres(folder) as database:
        argv = [
            sys.executable,
            str(Path(__file__).parent / "sql_server.py"),
            database.url,
            str(port),
            str(POOL),
        ]
        with serving(argv, folder / "sql.log", http_ready(f"{url}/health")) as child:
            yield Bench(_wrk_at([url], None), database, [child.pid])


def _pgbench(script: str) -> Callable[[Path], contextlib.AbstractContextManager[Bench]]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Bench]:
        with databases.postgres(folder) as database:
            pgbench.prepare(database.url)
            yield Bench(lambda *load_of: pgbench.run(script, database.url, *load_of), database)

    return opened


def _etcd_script(script: str, *, lag: bool) -> Callable[[Path], contextlib.AbstractContextManager[Bench]]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Bench]:
        with databases.etcd(folder) as database:
            url = "http://" + database.url.removeprefix("etcd://").partition("/")[0]
            lease = grant_lease(url)

            def drive(connections: int, seconds: int) -> Sample:
                args = (lease, str(connections)) if lag else (lease,)
                return load.wrk(script, url, connections, seconds, args)

            yield Bench(drive, database)

    return opened


SQL_HTTP, SQL_BARE = "one transaction per claim, HTTP", "one transaction per claim, bare SQL"
CONTENDERS = [
    _dibs("postgres", 1),
    _dibs("postgres", 3),
    Contender(SQL_HTTP, "postgres", _sql_server),
    Contender(SQL_BARE, "postgres", _pgbench("claims")),
    Contender("advisory locks, bare SQL (not durable)", "postgres", _pgbench("advisory")),
    _dibs("etcd", 1),
    _dibs("etcd", 3),
    Contender("etcd's lock service", "etcd", _etcd_script("etcd_lock", lag=False)),
    Contender("etcd, one transaction per claim", "etcd", _etcd_script("etcd_cycle", lag=True)),
    _dibs("etcd", 3, members=3),
]
