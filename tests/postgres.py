"""Starts a PostgreSQL for tests: in a temporary folder, on a free port, never as root, removed afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dibs.testing.clock import ManualClock
from tests.programs import WAIT_S_MAX, ending_with_us, reserved_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

CONNECTIONS_MAX = 300  # forty processes that race keep one for each test
USERS = ("postgres", "nobody")  # whom root becomes


def program(name: str) -> str | None:
    """On the path, or where Debian puts it."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = [os.environ.get("PATH", ""), *map(str, homes), "/usr/sbin"]
    return shutil.which(name, path=os.pathsep.join(places))


def somebody() -> dict[str, Any]:
    """Arguments for subprocess: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    known = {each.pw_name: each for each in pwd.getpwall()}
    user = next(known[name] for name in USERS if name in known)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = status.read_text()
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(status.parent.name))
    return found


class Schema:
    """A schema of its own in a running database, with a clock that can be stopped and moved."""

    def __init__(self, server_url: str, name: str) -> None:
        self.server_url = server_url
        self.name = name
        self.url = f"{server_url}?schema={name}"
        self.clock = ManualClock()
        self._db: psycopg.Connection[tuple[Any, ...]] | None = None

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Statements with `{s}` for the schema, as the database's owner. What the last one found."""
        import psycopg

        if self._db is None or self._db.closed:
            self._db = psycopg.connect(self.server_url, autocommit=True)
        found = self._db.execute(sql.replace("{s}", f'"{self.name}"').encode())
        return found.fetchall() if found.description else []

    def make(self) -> None:
        """The tables of a store."""
        from dibs.stores.registry import open_store

        open_store(self.url).close()

    def stop_clock(self) -> None:
        """From now on the database's wall clock moves only by `advance` and `step`."""
        self.make()
        self.run(
            f"CREATE TABLE {{s}}.wall (ms bigint); INSERT INTO {{s}}.wall VALUES ({self.clock.wall_ms()});"
            " CREATE OR REPLACE FUNCTION {s}.clock_1() RETURNS bigint LANGUAGE sql VOLATILE AS"
            " $$ SELECT ms FROM {s}.wall $$"
        )

    def advance(self, ms: int) -> None:
        """Let time pass, on both clocks."""
        self.clock.advance(ms)
        self.step(ms)

    def step(self, ms: int) -> None:
        """Set the database's clock, forwards or back."""
        self.run(f"UPDATE {{s}}.wall SET ms = ms + {ms}")

    def fill(self) -> Callable[[], None]:
        """Let the tables take no row more, as on a full disk. Rows that are there can be changed. Returns what undoes
        it."""
        self.run(
            "CREATE FUNCTION {s}.no() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
        )
        for table in ("records", "events"):
            self.run(f"CREATE TRIGGER no BEFORE INSERT ON {{s}}.{table} FOR EACH ROW EXECUTE FUNCTION {{s}}.no()")

        def make_room() -> None:
            self.run("DROP FUNCTION {s}.no() CASCADE")

        return make_room

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def drop(self) -> None:
        """A statement of a store that was just closed may still be under way; then one of the two is a deadlock's
        victim."""
        from psycopg.errors import DeadlockDetected

        for _ in range(5):
            with suppress(DeadlockDetected):
                self.run("DROP SCHEMA IF EXISTS {s} CASCADE")
                self.close()
                return
        raise AssertionError(f"the schema {self.name} is still in use")


class PostgresServer:
    """A server in a folder, with its own port. It can be stopped, killed and started again."""

    def __init__(self, postgres: str, folder: str, data: str, port: int) -> None:
        self.folder = folder
        self.data = data
        self.port = port
        self.url = f"postgresql://dibs@127.0.0.1:{port}/postgres"
        self._postgres = postgres
        self._process: subprocess.Popen[bytes] | None = None

    def make(self, initdb: str) -> None:
        words = [initdb, "-D", self.data, "-U", "dibs", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        subprocess.run(words, check=True, capture_output=True, cwd=self.folder, timeout=60, **somebody())

    def start(self, *more: str) -> None:
        words = [self._postgres, "-D", self.data, "-p", str(self.port), "-k", self.folder, "-h", "127.0.0.1"]
        with open(f"{self.folder}/log", "ab") as log:
            self._process = subprocess.Popen(
                ending_with_us(*words, "-F", "-N", str(CONNECTIONS_MAX), *more),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **somebody(),
            )
        wait_until(self.answers, "PostgreSQL answers")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def answers(self) -> bool:
        import psycopg

        assert self._process is not None
        assert self._process.poll() is None, Path(f"{self.folder}/log").read_text()
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the server and all its backends, each its own process group. Nothing if it is dead."""
        if not self.is_running:
            return
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(WAIT_S_MAX)

    def stop(self) -> None:
        if self._process is None or not self.is_running:
            return
        self.signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGINT)  # its fast shutdown
        try:
            self._process.wait(WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def server(initdb: str, postgres: str, *more: str) -> Iterator[PostgresServer]:
    """A server that runs while the block does. `more` are words of its command line; fsync is off without them."""
    who = somebody()
    temporary = tempfile.TemporaryDirectory(prefix="dibs-pg-", ignore_cleanup_errors=True)
    with temporary as folder, reserved_ports(1) as (port,):
        if who:
            os.chown(folder, who["user"], who["group"])
        running = PostgresServer(postgres, folder, f"{folder}/data", port)
        running.make(initdb)
        try:
            running.start(*more)
            yield running
        finally:
            running.stop()


@contextmanager
def running(initdb: str, postgres: str) -> Iterator[str]:
    """The URL of a server that runs while the block does."""
    with server(initdb, postgres) as made:
        yield made.url


@contextmanager
def bouncer(pgbouncer: str, url: str) -> Iterator[str]:
    """The URL of a pgbouncer in front of the server at `url`: transaction mode, three backends for everybody."""
    who = somebody()
    behind = urlsplit(url)
    temporary = tempfile.TemporaryDirectory(prefix="dibs-pgb-", ignore_cleanup_errors=True)
    with temporary as folder, reserved_ports(1) as (port,):
        if who:
            os.chown(folder, who["user"], who["group"])
        Path(f"{folder}/ini").write_text(
            f"[databases]\npostgres = host={behind.hostname} port={behind.port} dbname=postgres user=dibs\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 500\n"
        )
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                ending_with_us(pgbouncer, f"{folder}/ini"), stdout=log, stderr=log, cwd=folder, **who
            )

        def listens() -> bool:
            assert process.poll() is None, Path(f"{folder}/log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_until(listens, "pgbouncer listens")
            yield f"postgresql://dibs@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait(WAIT_S_MAX)
