"""A PostgreSQL whose disk is full: told until there is room again, whatever small commits go well meanwhile."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreFull
from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.store import PostgresStore
from dibs.testing.contract_base import drop, event, key_of, lock, put
from tests.postgres import somebody
from tests.server.harness import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import Schema

pytestmark = [pytest.mark.fault("F-063"), pytest.mark.promise("damage:told"), pytest.mark.full]


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    return postgres_schema()


@pytest.fixture
def store(schema: Schema) -> Iterator[PostgresStore]:
    made = PostgresStore(PostgresLocation(schema.url))
    yield made
    made.close()


def test_it_is_remembered_until_the_tables_can_grow(schema: Schema, store: PostgresStore) -> None:
    put(store, lock("kept"))
    make_room = schema.fill()
    with pytest.raises(StoreFull):
        put(store, lock("new"), events=(event("new"),))
    assert isinstance(store.trouble(), StoreFull)
    store.commit({}, {}, ())  # changes the row of `state` where it is
    assert isinstance(store.trouble(), StoreFull)
    assert [each["check"] for each in store.probe() if not each["ok"]] == ["write"]
    make_room()
    store.commit({}, {}, ())
    assert store.trouble() is None


def test_a_commit_that_was_done_is_not_reported_as_failed_because_there_is_no_room_for_more(
    schema: Schema, store: PostgresStore
) -> None:
    put(store, lock("kept"))
    schema.fill()
    with pytest.raises(StoreFull):
        put(store, lock("new"))
    drop(store, key_of("kept"))
    assert isinstance(store.trouble(), StoreFull)
    assert store.scan("lock/") == []


class SmallDisk:
    """A file system of four megabytes. A file takes what others are not to have."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._ballast = Path(path, "ballast")

    def fill(self, leave: int) -> None:
        space = os.statvfs(self.path)
        self._ballast.write_bytes(b"x" * (space.f_bavail * space.f_frsize - leave))

    def free(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def small_disk() -> Iterator[SmallDisk]:
    who = somebody()
    if not who:
        pytest.skip("only root can mount a small file system")
    options = f"size=4m,uid={who['user']},gid={who['group']},mode=755"
    with tempfile.TemporaryDirectory(prefix="dibs-full-") as top:
        os.chmod(top, 0o755)
        path = f"{top}/disk"
        os.mkdir(path)
        words = ["mount", "-t", "tmpfs", "-o", options, "dibs", path]
        if subprocess.run(words, capture_output=True, check=False, timeout=60).returncode:
            pytest.skip("this machine lets nobody mount a small file system")
        try:
            yield SmallDisk(path)
        finally:
            subprocess.run(["umount", "-l", path], check=True, timeout=60)


def test_a_server_on_a_full_tablespace_says_so_as_long_as_it_lasts(
    schema: Schema, store: PostgresStore, small_disk: SmallDisk, tmp_path: Path
) -> None:
    space = f"small_{schema.name[-8:]}"
    os.mkdir(f"{small_disk.path}/space")
    os.chown(f"{small_disk.path}/space", somebody()["user"], somebody()["group"])
    schema.run(f"CREATE TABLESPACE {space} LOCATION '{small_disk.path}/space'")
    move = "ALTER TABLE {s}.records SET TABLESPACE %s; ALTER TABLE {s}.events SET TABLESPACE %s"
    schema.run(move % (space, space))
    try:
        with running(tmp_path, store=store, real_time=True) as server:
            assert server.acquire("kept").status == 200
            small_disk.fill(leave=64 * 1024)
            body = {"metadata": "".join(chr(33 + number % 80) for number in range(1000))}
            full = [server.acquire(f"job-{number}", body) for number in range(150)][-1]
            assert full.status == 503
            assert "store is full" in full.json["details"]
            for _ in range(5):
                answer = server.ask("GET", "/health")
                assert (answer.status, answer.json["status"]) == (503, "degraded")
                assert "store is full" in answer.json["details"]
            assert server.ask("GET", "/locks/kept").json["status"] == "held"
            small_disk.free()
            assert server.ask("GET", "/health").status == 200
            assert server.acquire("more", body).status == 200
    finally:
        schema.run(move % ("pg_default", "pg_default"))
        schema.run(f"DROP TABLESPACE {space}")
