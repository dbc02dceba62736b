"""/health tells the truth about the store, and nothing that is asked elsewhere keeps it waiting."""

from __future__ import annotations

import contextlib
import http.client
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import (
    FATE_UNKNOWN,
    DibsError,
    StoreCorrupt,
    StoreDenied,
    StoreFull,
    StoreReplaced,
    StoreTooNew,
    StoreUnavailable,
)
from dibs.base.ids import new_id
from dibs.core.commands import Freeze, Thaw
from dibs.core.limits import PULSE_MS, READERS_MAX
from dibs.engine.coordinator import Coordinator
from dibs.server.http.response import answer_for_error, trouble_log
from dibs.stores.memory import MemoryStore
from dibs.stores.sqlite import SqliteStore, rows
from dibs.stores.sqlite import store as store_module
from dibs.testing.clock import ManualClock
from dibs.testing.faulty import FaultyStore
from dibs.wire.codes import NOT_NOW, kind_of
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "dibs.db"))
    yield store
    store.close()


@pytest.fixture
def server(tmp_path: Path, store: SqliteStore) -> Iterator[Server]:
    with running(tmp_path, store=store, real_time=True) as server:
        yield server


@pytest.mark.promise("damage:told")
def test_damage_that_was_met_turns_it_to_503_and_no_call_takes_a_part_for_the_whole(
    server: Server, store: SqliteStore, tmp_path: Path
) -> None:
    path = tmp_path / "dibs.db"
    assert server.ask("GET", "/health").json["status"] == "ok"
    server.lease("kept")
    with store._link.turn, store._link as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA cache_size = 1")
        page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records_live'").fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
        db.execute("PRAGMA shrink_memory")
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, b"\xee" * size, (page - 1) * size)
    # Not closed: that would drop the locks which this process has on the file.
    listing = server.ask("GET", "/locks")
    assert (listing.status, listing.json["code"]) == (503, "upstream_unavailable")
    assert "is damaged" in listing.json["details"]
    for path_ in ("/health", "/locks", "/locks/kept", "/locks/other/history"):
        answer = server.ask("GET", path_)
        assert answer.status == 503, path_
        assert "is damaged" in answer.json["details"]
    assert server.acquire("kept").status == 503


def test_a_store_file_that_is_gone_turns_it_to_503(server: Server, store: SqliteStore, tmp_path: Path) -> None:
    lease = server.lease("kept")
    (tmp_path / "dibs.db").rename(tmp_path / "away.db")
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/locks", None),
        ("POST", "/locks/kept/renew", {"lease_id": lease}),
        ("POST", "/locks/new/acquire", {}),
    ):
        answer = server.ask(method, path, body)
        assert answer.status == 503, path
        assert "deleted or replaced" in answer.json["details"]
    assert not (tmp_path / "dibs.db").exists()
    (tmp_path / "away.db").rename(tmp_path / "dibs.db")
    assert server.ask("GET", "/health").status == 200
    assert server.ask("POST", "/locks/kept/renew", {"lease_id": lease}).status == 200


def list_alone(server: Server) -> None:
    """On a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/locks", headers={"Authorization": f"Bearer {TOKENS['agent']}"})
    assert connection.getresponse().status == 200
    connection.close()


def test_listings_that_take_long_do_not_keep_it_waiting(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Semaphore(0), threading.Event()
    scan = SqliteStore.scan

    def slow(*args: object, **more: object) -> object:
        entered.release()
        go_on.wait(60)
        return scan(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteStore, "scan", slow)
    threads = [threading.Thread(target=list_alone, args=(server,), daemon=True) for _ in range(2 * READERS_MAX)]
    for thread in threads:
        thread.start()
    for _ in range(READERS_MAX):
        assert entered.acquire(timeout=60)
    try:
        assert server.ask("GET", "/health").json["status"] == "ok"
    finally:
        go_on.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.promise("damage:told")
def test_a_disk_that_refuses_claims_shows_although_the_servers_own_small_writes_go_through(
    server: Server, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.lease("kept", ttl_seconds=600)
    real = rows.write

    def refuse(db: Any, revision: int, now_ms: int, puts: Any, bodies: Any, found: Any) -> None:
        if "lock/default/new" in puts:
            error = sqlite3.OperationalError("disk I/O error")  # as over quota
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
            raise error
        real(db, revision, now_ms, puts, bodies, found)

    monkeypatch.setattr(store_module, "write", refuse)
    assert server.acquire("new").status == 503
    for _ in range(3):
        health = server.ask("GET", "/health")
        assert (health.status, health.json["status"]) == (503, "degraded")
        assert server.ask("GET", "/locks/kept").json["status"] == "held"
    monkeypatch.undo()
    assert server.acquire("new").status == 200
    assert server.ask("GET", "/health").json["status"] == "ok"


def test_who_only_looks_is_answered_while_nothing_can_be_written(
    server: Server, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.lease("kept", ttl_seconds=600)

    def refuse(*_: Any) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        raise error

    monkeypatch.setattr(store_module, "write", refuse)
    deadline = time.monotonic() + 3 * PULSE_MS / 1000
    while time.monotonic() < deadline:  # with beats of the server in between
        assert server.ask("GET", "/locks/kept").json["status"] == "held"
    assert server.acquire("new").status == 503


@pytest.mark.promise("damage:told")
def test_a_full_disk_shows_until_there_is_room_and_who_only_looks_is_answered(small_disk: Path, tmp_path: Path) -> None:
    store = SqliteStore(str(small_disk / "dibs.db"))
    ballast = small_disk / "ballast"
    with running(tmp_path, store=store, real_time=True) as server:
        kept = server.lease("kept", ttl_seconds=600)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 512):
                pass
        refused = server.acquire("new")
        assert (refused.status, refused.json["code"]) == (503, "upstream_unavailable")
        assert "is full" in refused.json["details"]
        assert b"\ndibs_store_writable 0" in server.ask("GET", "/metrics/prometheus").body
        health = server.ask("GET", "/health")
        assert (health.status, health.json["status"]) == (503, "degraded")
        assert "is full" in health.json["details"]
        assert server.ask("GET", "/locks/kept").json["fencing_token"] == 1
        assert [each["name"] for each in server.ask("GET", "/locks").json["locks"]] == ["kept"]
        ballast.unlink()
        assert server.ask("GET", "/health").json["status"] == "ok"
        assert server.ask("POST", "/locks/kept/renew", {"lease_id": kept}).status == 200
        assert b"\ndibs_store_writable 1" in server.ask("GET", "/metrics/prometheus").body
    store.close()


@pytest.mark.fault("F-180")
def test_a_frozen_store_is_not_ready_and_says_how_that_ends(server: Server, store: SqliteStore) -> None:
    coordinator = Coordinator(store)
    coordinator.one(Freeze(id=new_id()))
    for path in ("/health", "/ready"):
        answer = server.ask("GET", path)
        assert (answer.status, answer.json["status"]) == (503, "degraded")
        assert "frozen" in answer.json["details"]
        assert "run: dibs export --unfreeze" in answer.json["details"]
    assert server.ask("GET", "/healthz").status == 200, "a restart would not help"
    assert b"\ndibs_store_writable 0.0\n" in server.ask("GET", "/metrics/prometheus").body
    coordinator.one(Thaw(id=None))
    assert server.ask("GET", "/ready").status == 200
    assert b"\ndibs_store_writable 1.0\n" in server.ask("GET", "/metrics/prometheus").body


@pytest.mark.promise("overdue")
def test_a_probe_is_told_by_the_status_whether_a_job_ran_in_time(server: Server) -> None:
    never = server.ask("GET", "/locks/nightly/overdue")
    assert (never.status, never.json["status"], never.json["last_success"]) == (409, "overdue", None)
    lease = server.lease("nightly")
    server.ask("POST", "/locks/nightly/release", {"lease_id": lease, "done": True, "result": "ok"})
    told = server.ask("GET", "/locks/nightly/overdue?within_seconds=93600")
    assert (told.status, told.json["status"], told.json["overdue_ms"]) == (200, "in_time", 0)
    assert told.json["last_success"]["result"] == "ok"
    wrong = server.ask("GET", "/locks/nightly/overdue?within_seconds=0")
    assert (wrong.status, wrong.json["code"]) == (400, "invalid_input")


PLACES = ("etcd at 10.0.0.7:2379", "PostgreSQL at db.internal:5432", "/var/lib/dibs/dibs.db")


@pytest.mark.fault("F-432")
@pytest.mark.parametrize("kind", [StoreUnavailable, StoreFull, StoreReplaced, StoreDenied, StoreCorrupt, StoreTooNew])
@pytest.mark.parametrize("where", PLACES)
def test_no_trouble_of_a_store_shows_callers_where_it_is(kind: type[DibsError], where: str) -> None:
    reply = answer_for_error(kind(f"{where} does not answer."))
    assert (reply.status, (reply.body or {})["code"]) == (503, "upstream_unavailable")
    assert kind_of(reply) == NOT_NOW
    assert where not in reply.content.decode()
    assert "server" in (reply.body or {})["details"]


@pytest.mark.fault("F-432")
def test_the_log_says_where_and_why_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble_log, "next_ms", 0)
    for _ in range(100):
        answer_for_error(StoreUnavailable("etcd at 10.0.0.7:2379 does not answer."))
    assert caplog.text.count("10.0.0.7:2379 does not answer") == 1


@pytest.mark.fault("F-432")
def test_a_doubt_stays_one_without_the_place_of_the_store() -> None:
    reply = answer_for_error(StoreUnavailable("etcd at 10.0.0.7:2379 does not answer.", unknown=True))
    assert (reply.body or {})["details"].endswith(FATE_UNKNOWN)


@pytest.mark.fault("F-432")
def test_the_health_of_a_server_does_not_say_where_its_store_is(tmp_path: Path) -> None:
    class Troubled(FaultyStore):
        said: DibsError | None = None

        def trouble(self) -> DibsError | None:
            return self.said

    store = Troubled(MemoryStore(ManualClock()))
    with running(tmp_path, store=store) as server:
        store.said = StoreCorrupt("/var/lib/dibs/dibs.db is damaged.")
        for path in ("/health", "/ready"):
            answer = server.ask("GET", path, who=None)
            assert answer.status == 503
            assert "/var/lib" not in answer.body.decode()
            assert "is damaged" in answer.json["details"]


@pytest.mark.fault("F-284")
def test_a_server_that_its_store_does_not_let_in_tells_callers_neither_a_fault_of_theirs_nor_where_it_is() -> None:
    where = "etcd at 10.0.0.7:2379 does not know this user and password."
    reply = answer_for_error(StoreDenied(where))
    assert (reply.status, (reply.body or {})["code"]) == (503, "upstream_unavailable")
    assert kind_of(reply) == NOT_NOW
    assert "10.0.0.7" not in reply.content.decode()
    assert "Ask another server" in reply.content.decode()
