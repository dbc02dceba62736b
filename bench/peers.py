"""Further targets beside etcd and Redis: ZooKeeper, PostgreSQL without dibs, OctoStore."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import databases
import load
import pgbench
from load import Sample
from procs import free_port, http_ready, serving
from targets import ACQUIRE, CYCLE, WAVE, turns
from zookeeper_load import connect_request

ZOOKEEPER = "/usr/share/zookeeper/bin/zkServer.sh"  # where Debian has it, off the path
USERS = 8
OCTOSTORE = "OCTOSTORE_BINARY"
"""The variable that names OctoStore's program. Nothing here installs or finds one."""


@contextlib.contextmanager
def zookeeper(folder: Path) -> Iterator[tuple[int, int]]:
    """One ZooKeeper; its port and its process id. It forces its log to disk before it answers, as it comes."""
    port = free_port()
    settings = folder / "zoo.cfg"
    settings.write_text(
        f"tickTime=2000\ndataDir={folder}/zookeeper\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\nmaxClientCnxns=0\n"
    )

    def ready() -> bool:
        # It accepts connections before it answers them, and never answers those.
        try:
            with socket.create_connection(("127.0.0.1", port), 0.5) as link:
                link.sendall(connect_request())
                return bool(link.recv(4096))
        except OSError:
            return False

    env = {"ZOO_LOG_DIR": str(folder), "ZOOPIDFILE": f"{folder}/pid"}
    log = folder / "zookeeper.log"
    with serving([ZOOKEEPER, "start-foreground", str(settings)], log, ready, env) as child:
        yield port, child.pid


@dataclass(frozen=True, slots=True)
class ZookeeperServer:
    port: int
    pids: Sequence[int]

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        program = str(Path(__file__).parent / "zookeeper_load.py")
        words = [str(self.port), str(connections), str(seconds), workload, load.fresh_tag()]
        return load.generated([sys.executable, program, *words], seconds)


@dataclass(frozen=True, slots=True)
class ZookeeperTarget:
    """A node for each lock: create ephemeral, delete. Not the lock recipe, which takes three requests."""

    name: str = "zookeeper"
    workloads: tuple[str, ...] = (ACQUIRE, CYCLE)

    def missing(self) -> str | None:
        if shutil.which(ZOOKEEPER) is None:
            return f"{ZOOKEEPER} is not there (Debian's package is zookeeper)"
        return None

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[ZookeeperServer]:
        with zookeeper(folder) as (port, pid):
            yield ZookeeperServer(port, [pid])


@dataclass(frozen=True, slots=True)
class PostgresServer:
    url: str
    scripts: dict[str, str]
    pids: Sequence[int]

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        return pgbench.run(self.scripts[workload], self.url, connections, seconds)


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """PostgreSQL by pgbench, without a service between. Advisory locks are in memory only."""

    name: str
    scripts: dict[str, str]

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(self.scripts)

    def missing(self) -> str | None:
        return databases.missing_postgres()

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[PostgresServer]:
        folder.chmod(0o755)  # a database of another user is in it
        with databases.postgres(folder) as database:
            pgbench.prepare(database.url)
            yield PostgresServer(database.url, self.scripts, database.pids)


ROWS = PostgresTarget("postgres-rows", {ACQUIRE: "acquires", CYCLE: "claims"})
# Locks that are only taken would fill PostgreSQL's table of locks: it is given back in turn in both workloads.
ADVISORY = PostgresTarget("postgres-advisory", {ACQUIRE: "advisory", CYCLE: "advisory"})


@dataclass(frozen=True, slots=True)
class OctostoreServer:
    url: str
    tokens: Sequence[str]
    """Of several users, in turn: a user may hold 100 locks, and every turn leaves some behind."""
    pids: Sequence[int]
    turn: Iterator[int] = field(default_factory=itertools.count)

    def measure(self, workload: str, connections: int, seconds: int) -> Sample:
        token = self.tokens[next(self.turn) % len(self.tokens)]
        return turns(self.url, token, workload, connections, seconds)


@dataclass(frozen=True, slots=True)
class OctostoreTarget:
    """OctoStore on its SQLite file. A user may hold 100 locks there, so it has no workload of acquires alone."""

    name: str = "octostore"
    workloads: tuple[str, ...] = (CYCLE, WAVE)

    def missing(self) -> str | None:
        program = os.environ.get(OCTOSTORE, "")
        if not program:
            return f"{OCTOSTORE} does not name its program"
        return None if shutil.which(program) else f"{program} is not a program"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[OctostoreServer]:
        bind, tokens = f"127.0.0.1:{free_port()}", [secrets.token_hex(24) for _ in range(USERS)]
        env = {
            "BIND_ADDR": bind,
            "DATABASE_URL": str(folder / "octostore.db"),
            "STATIC_TOKENS": ",".join(f"bench{number}:{token}" for number, token in enumerate(tokens)),
            "RUST_LOG": "error",
        }
        argv = [os.environ[OCTOSTORE], "serve"]
        with serving(argv, folder / "octostore.log", http_ready(f"http://{bind}/health"), env) as child:
            yield OctostoreServer(f"http://{bind}", tokens, [child.pid])


def peers() -> list[ZookeeperTarget | PostgresTarget | OctostoreTarget]:
    return [ZookeeperTarget(), ROWS, ADVISORY, OctostoreTarget()]
