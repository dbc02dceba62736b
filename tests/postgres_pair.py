"""A PostgreSQL and a standby that follows it by streaming replication: two servers of this machine, gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import postgres
from tests.postgres import PostgresServer, somebody
from tests.programs import reserved_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE = "role.conf"  # what differs between a primary and a standby; read again on SIGHUP
COMMON = f"include_if_exists = '{ROLE}'\nwal_retrieve_retry_interval = 200ms\nwal_keep_size = 64MB\n"


class PostgresPair:
    """`primary` takes writes, `standby` follows. With `synchronous`, a commit is answered when both have it."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, *, synchronous: bool) -> None:
        self.primary = primary
        self.standby = standby
        self._synchronous = synchronous

    @property
    def nodes(self) -> list[PostgresServer]:
        """Both, in an order that no failover changes."""
        return sorted((self.primary, self.standby), key=lambda node: node.port)

    def begin(self) -> None:
        with open(f"{self.primary.data}/postgresql.conf", "a") as file:
            file.write(COMMON)
        self.primary.start()
        self.follow()

    def follow(self) -> None:
        """Make the standby anew, as a copy of the primary."""
        shutil.rmtree(self.standby.data, ignore_errors=True)
        make_standby(self.primary, self.standby.data)
        _become(self.standby, "")
        self.standby.start()
        wait_until(lambda: self._following("state") == "streaming", "the standby follows")
        if self._synchronous:
            _become(self.primary, "*")
            self.primary.signal(signal.SIGHUP)
            wait_until(self.is_safe, "commits wait for the standby")

    def is_safe(self) -> bool:
        """Whether a promotion now would lose nothing that was acknowledged."""
        return self._following("sync_state") == "sync"

    def has_all(self) -> bool:
        """Whether the standby has received all that the primary has written."""
        return self._following("replay_lsn = pg_current_wal_lsn()") == "True"

    def _following(self, column: str) -> str:
        rows = run(self.primary, f"SELECT {column} FROM pg_stat_replication WHERE application_name = 'walreceiver'")
        return str(rows[0][0]) if rows else ""

    def promote(self) -> None:
        """Promote the standby. The old primary must be dead: two servers that take writes would be two stores."""
        assert not self.primary.is_running
        promote_standby(self.standby)
        self.primary, self.standby = self.standby, self.primary


def make_standby(primary: PostgresServer, data: str) -> None:
    program = postgres.program("pg_basebackup")
    assert program is not None
    words = [program, "-h", "127.0.0.1", "-p", str(primary.port), "-U", "dibs", "-D", data]
    words += ["-R", "-X", "stream", "-c", "fast", "--no-sync"]
    subprocess.run(words, check=True, capture_output=True, cwd=primary.folder, timeout=60, **somebody())


def promote_standby(standby: PostgresServer) -> None:
    """By its program: a query is cancelled if it is in the way of what the standby still has to replay."""
    program = postgres.program("pg_ctl")
    assert program is not None
    words = [program, "promote", "-w", "-t", "60", "-D", standby.data]
    subprocess.run(words, check=True, capture_output=True, cwd=standby.folder, timeout=90, **somebody())


class PostgresCopies:
    """One address, behind which one of several servers runs at a time."""

    def __init__(self, program: str, first: PostgresServer) -> None:
        self._program = program
        self.node = first
        self.url = first.url

    def copy(self, name: str) -> str:
        """A standby that has what the server has now, as a folder."""
        data = f"{self.node.folder}/{name}"
        make_standby(self.node, data)
        return data

    def stopped_copy(self, name: str) -> str:
        """What a snapshot of the disk is; the server is started again."""
        data = f"{self.node.folder}/{name}"
        self.node.stop()
        words = ["cp", "-a", self.node.data, data]  # with its owner
        subprocess.run(words, check=True, capture_output=True, timeout=60, **somebody())
        self.node.start()
        return data

    def put(self, data: str, *, promote: bool = False) -> None:
        """Kill the server that runs, and run the copy."""
        self.node.kill()
        self.node = PostgresServer(self._program, self.node.folder, data, self.node.port)
        self.node.start()
        if promote:
            promote_standby(self.node)


@contextmanager
def copies(initdb: str, program: str) -> Iterator[PostgresCopies]:
    who = somebody()
    temporary = tempfile.TemporaryDirectory(prefix="dibs-pgs-", ignore_cleanup_errors=True)
    with temporary as top, reserved_ports(1) as (port,):
        if who:
            os.chown(top, who["user"], who["group"])
        first = PostgresServer(program, top, f"{top}/data", port)
        first.make(initdb)
        made = PostgresCopies(program, first)
        try:
            first.start()
            yield made
        finally:
            made.node.kill()


def run(node: PostgresServer, sql: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(node.url, autocommit=True, connect_timeout=5) as db:
        found = db.execute(sql.encode())
        return found.fetchall() if found.description else []


def _become(node: PostgresServer, waits_for: str) -> None:
    """`waits_for`: the standbys that must have a commit before it is answered."""
    Path(f"{node.data}/{ROLE}").write_text(f"synchronous_standby_names = '{waits_for}'\n")


@contextmanager
def pair(initdb: str, program: str, *, synchronous: bool = True) -> Iterator[PostgresPair]:
    who = somebody()
    temporary = tempfile.TemporaryDirectory(prefix="dibs-pgs-", ignore_cleanup_errors=True)
    with temporary as top, reserved_ports(2) as ports:
        os.chmod(top, 0o755)
        nodes = []
        for name, port in zip("ab", ports, strict=True):
            folder = f"{top}/{name}"
            os.mkdir(folder, 0o700)
            if who:
                os.chown(folder, who["user"], who["group"])
            nodes.append(PostgresServer(program, folder, f"{folder}/data", port))
        nodes[0].make(initdb)
        made = PostgresPair(nodes[0], nodes[1], synchronous=synchronous)
        try:
            made.begin()
            yield made
        finally:
            for node in nodes:
                node.signal(signal.SIGCONT)
                node.kill()
