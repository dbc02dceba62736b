"""What others do in the database or on the way to it: functions of other users, transactions that are kept open, names
that are not resolved, events that are committed while the history is pruned."""

from __future__ import annotations

import json
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.stores.postgres import PostgresLocation, pool
from dibs.stores.postgres.store import PostgresStore
from dibs.stores.registry import open_store
from dibs.testing.contract_base import drop, event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import Schema


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    return postgres_schema()


@pytest.fixture
def store(schema: Schema) -> Iterator[PostgresStore]:
    made = PostgresStore(PostgresLocation(schema.url))
    yield made
    made.close()


@pytest.mark.fault("F-064")
@pytest.mark.promise("audit")
@pytest.mark.parametrize("step", range(4))
def test_an_event_that_is_committed_between_two_steps_of_pruning_stays(
    step: int, store: PostgresStore, schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PostgresStore(PostgresLocation(schema.url))
    put(store, lock("old"), events=tuple(event("old") for _ in range(20)))
    calls = iter(range(100))
    ask = store._pool.rows

    def rows(*words: Any, **more: Any) -> Any:
        if next(calls) == step:
            put(other, lock("young"), events=(event("young", at_ms=1_000),))
        return ask(*words, **more)

    monkeypatch.setattr(store._pool, "rows", rows)
    assert store.prune(keep=1_000, before_ms=100) == 20
    assert [each.job for each in store.events(0, 100)] == ["young"]
    other.close()


TRAPS = (
    "cardinality(bigint[]) RETURNS integer",
    "hashtextextended(text, integer) RETURNS bigint",
    "pg_total_relation_size(text) RETURNS bigint",
    "substr(text, smallint) RETURNS text",
    "pg_notify(text, varchar) RETURNS void",
)


@pytest.mark.fault("F-066")
def test_no_function_of_another_user_is_called_by_the_role_of_dibs(schema: Schema) -> None:
    name = f"shared_{schema.name[-8:]}"
    schema.run(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    url = schema.server_url.replace("/postgres", f"/{name}")
    try:
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE mallory_{name}".encode())
            owner.execute(f"GRANT CREATE ON SCHEMA public TO mallory_{name}".encode())
            owner.execute(f"SET ROLE mallory_{name}".encode())
            for trap in TRAPS:
                owner.execute(
                    f"CREATE FUNCTION public.{trap} LANGUAGE plpgsql AS"
                    " $$ BEGIN RAISE EXCEPTION 'mallory runs as %', current_user; END $$".encode()
                )
        store = PostgresStore(PostgresLocation(url))
        put(store, lock("x"), events=(event("x"),))
        drop(store, key_of("x"))
        store.due(10)
        store.scan("")
        store.watch(0, 0)
        store.prune(keep=0, before_ms=0)
        assert store.size_bytes() > 0
        assert [each for each in store.probe() if not each["ok"]] == []
        store.tidy()
        store.close()
    finally:
        schema.run(f"DROP DATABASE {name} WITH (FORCE)")
        schema.run(f"DROP ROLE mallory_{name}")


@pytest.fixture
def backup(schema: Schema, store: PostgresStore) -> Iterator[psycopg.Connection]:
    """A transaction that sees the database as it is now, as pg_dump's does."""
    with psycopg.connect(schema.server_url, application_name="backup") as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute(f'SELECT * FROM "{schema.name}".records'.encode())
        yield db


@pytest.mark.fault("F-067")
def test_what_is_due_is_found_without_passing_what_was_due_before(
    schema: Schema, store: PostgresStore, backup: psycopg.Connection
) -> None:
    for number in range(300):
        put(store, lock("renewed", expires_ms=10**12 + number))
        if number % 10 == 0:
            assert store.due(0).next_ms == 10**12 + number
    assert entries_passed(schema) < 30
    put(store, lock("earlier", expires_ms=10**11))
    assert store.due(1).keys == [key_of("earlier")]
    put(store, lock("earliest", expires_ms=10**10), lock("never", expires_ms=10**15))
    assert store.due(3).keys == [key_of("earliest"), key_of("earlier"), key_of("renewed")]
    drop(store, key_of("earliest"), key_of("earlier"), key_of("renewed"), key_of("never"))
    assert store.due(1).next_ms is None
    put(store, lock("again", expires_ms=5))
    assert store.due(1).keys == [key_of("again")]


def entries_passed(schema: Schema) -> int:
    """How many pages the index scan of `due` looks at."""
    with psycopg.connect(schema.server_url) as db:
        db.execute("SET enable_seqscan = off")
        db.execute("SET enable_bitmapscan = off")
        ((found,),) = db.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT due_ms FROM {s}.records WHERE due_ms >="
            " (SELECT due_from_ms FROM {s}.state) ORDER BY due_ms LIMIT 1".replace("{s}", f'"{schema.name}"').encode()
        ).fetchall()
    plans = [found[0]["Plan"]]
    for plan in plans:
        plans += plan.get("Plans", [])
    (scan,) = [plan for plan in plans if plan.get("Index Name") == "records_due"]
    assert "actual" in json.dumps(scan).lower()
    return int(scan["Shared Hit Blocks"] + scan["Shared Read Blocks"])


@pytest.mark.fault("F-067")
def test_who_keeps_an_old_view_of_the_database_is_named_to_operators(
    store: PostgresStore,
    backup: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "HELD_BACK_MAX", 20)
    with caplog.at_level(logging.WARNING, "dibs"):
        store.prune(keep=10, before_ms=0)
        assert store.notices() == []
        for _ in range(30):
            store.commit({}, {}, ())
        for _ in range(2):
            store.prune(keep=10, before_ms=0)
    assert caplog.text.count("application backup) sees the database as it was") == 1
    assert "application backup" in store.notices()[0]
    (found,) = [each for each in store.probe() if not each["ok"]]
    assert "application backup" in found["says"]
    backup.rollback()
    store.prune(keep=10, before_ms=0)
    assert store.notices() == []


@pytest.mark.fault("F-065")
def test_who_has_locked_the_store_is_named(schema: Schema) -> None:
    store = PostgresStore(PostgresLocation(f"{schema.url}&timeout=8s"))
    with psycopg.connect(schema.server_url, application_name="forgotten") as other:
        other.execute(f'SELECT * FROM "{schema.name}".state FOR UPDATE'.encode())
        with pytest.raises(StoreUnavailable, match=r"locked by process \d+ \(role dibs, application forgotten\)"):
            put(store, lock("x"))
    store.close()


@pytest.mark.fault("F-068")
@pytest.mark.parametrize("url", ["postgresql://certificate-db.invalid:1/x", "postgresql:///x?host=/tmp/no-certificate"])
def test_a_word_in_the_name_of_a_host_is_no_reason_to_give_up(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_store(f"{url}{'&' if '?' in url else '?'}timeout=2s")


@pytest.mark.fault("F-069")
def test_a_name_that_is_not_resolved_is_waited_for_just_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def slow(*words: Any, **more: Any) -> list[Any]:
        over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    began_ms = steady_ms()
    with pytest.raises(StoreUnavailable, match=r"gave no answer within 0\.3 seconds"):
        open_store("postgresql://db.example.org/x?timeout=300ms")
    over.set()
    assert steady_ms() - began_ms < 15_000


@pytest.mark.fault("F-069")
def test_all_addresses_of_a_name_are_tried(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    port = schema.server_url.rpartition(":")[2].partition("/")[0]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ("127.0.0.99", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: found)
    open_store(f"postgresql://dibs@db.example.org:{port}/postgres?schema={schema.name}").close()
