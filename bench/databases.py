"""The databases under dibs, with fsync on.

They are the tests' own: a temporary folder, free ports, another user than root.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from procs import BenchError, cpu_seconds

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import etcd as etcd_servers
from tests import postgres as postgres_servers


@dataclass(frozen=True, slots=True)
class Database:
    kind: str
    url: str
    """As `dibs serve --store` takes it."""
    pids: tuple[int, ...]

    def cpu_seconds(self) -> float:
        return cpu_seconds(*self.pids)

    def written_bytes(self) -> int:
        """What its log on disk has grown by: PostgreSQL's own count, or what the kernel wrote for etcd."""
        if self.kind == "postgres":
            import psycopg

            with psycopg.connect(self.url, autocommit=True) as db:
                row = db.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
                assert row is not None
                return int(row[0])
        lines = [line for pid in self.pids for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
        return sum(int(line.split(": ")[1]) for line in lines if line.startswith("write_bytes"))


def program(name: str) -> str | None:
    """A program of PostgreSQL."""
    return postgres_servers.program(name)


def missing_postgres() -> str | None:
    absent = [name for name in ("postgres", "initdb", "pgbench") if program(name) is None]
    return f"{', '.join(absent)} not installed" if absent else None


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Database]:
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        raise BenchError("PostgreSQL is not installed")
    with _temporary_folders_in(folder), postgres_servers.server(initdb, server, "-c", "fsync=on") as running:
        yield Database("postgres", running.url, (running.pid,))


@contextlib.contextmanager
def etcd(folder: Path, members: int = 1) -> Iterator[Database]:
    program = etcd_servers.program()
    if program is None:
        raise BenchError("etcd is not installed")
    options = ["--unsafe-no-fsync=false"]
    with (
        _temporary_folders_in(folder),
        etcd_servers.running(program, members, options=options) as cluster,
    ):
        yield Database("etcd", cluster.url(), tuple(member.pid for member in cluster.members))


@contextlib.contextmanager
def _temporary_folders_in(folder: Path) -> Iterator[None]:
    """Data goes to the disk that was asked for, and the user who is not root may get there."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
