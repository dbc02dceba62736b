"""A PostgreSQL of one's own: in a temporary folder, on a free port of this machine, never as root, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.testing.clock import ManualClock
from tests.processes import WAIT_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS = ("postgres", "nobody")  # whom root becomes


def program(name: str) -> str | None:
    """On the path, or where Debian puts it."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, homes)]))


def _somebody() -> dict[str, Any]:
    """Arguments for subprocess: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    known = {each.pw_name: each for each in pwd.getpwall()}
    user = next(known[name] for name in USERS if name in known)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Schema:
    """A schema of its own in a running database, with a clock that can be stopped and moved."""

    def __init__(self, server_url: str, name: str) -> None:
        self.server_url = server_url
        self.name = name
        self.url = f"{server_url}?schema={name}"
        self.clock = ManualClock()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """A statement with `{s}` for the schema, as the database's owner."""
        import psycopg

        with psycopg.connect(self.server_url, autocommit=True) as db:
            found = db.execute(sql.replace("{s}", f'"{self.name}"').encode())
            return found.fetchall() if found.description else []

    def make(self) -> None:
        """The tables of a store."""
        from dibs.stores.registry import open_store

        open_store(self.url).close()

    def stop_clock(self) -> None:
        """From now on the database's wall clock moves only by `advance` and `step`."""
        self.make()
        self.run("CREATE TABLE {s}.wall (ms bigint)")
        self.run(f"INSERT INTO {{s}}.wall VALUES ({self.clock.wall_ms()})")
        self.run(
            "CREATE OR REPLACE FUNCTION {s}.clock_1() RETURNS bigint LANGUAGE sql VOLATILE AS"
            " $$ SELECT ms FROM {s}.wall $$"
        )

    def advance(self, ms: int) -> None:
        """Time passes, here and there."""
        self.clock.advance(ms)
        self.step(ms)

    def step(self, ms: int) -> None:
        """Somebody sets the database's clock, forwards or back."""
        self.run(f"UPDATE {{s}}.wall SET ms = ms + {ms}")

    def drop(self) -> None:
        self.run("DROP SCHEMA IF EXISTS {s} CASCADE")


@contextmanager
def running(initdb: str, postgres: str) -> Iterator[str]:
    """The URL of a server that runs while the block does."""
    import psycopg

    who = _somebody()
    with tempfile.TemporaryDirectory(prefix="dibs-pg-", ignore_cleanup_errors=True) as folder:
        if who:
            os.chown(folder, who["user"], who["group"])
        data = f"{folder}/data"
        made = [initdb, "-D", data, "-U", "dibs", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, timeout=60, **who)
        port = _free_port()
        words = [postgres, "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1", "-F"]
        with open(f"{folder}/log", "wb") as log:
            server = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder, **who)
        url = f"postgresql://dibs@127.0.0.1:{port}/postgres"

        def answers() -> bool:
            assert server.poll() is None, Path(f"{folder}/log").read_text()
            try:
                psycopg.connect(url, connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            wait_until(answers, "PostgreSQL answers")
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # its fast shutdown
            try:
                server.wait(WAIT_S_MAX)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(WAIT_S_MAX)
