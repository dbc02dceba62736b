"""Making a schema on PostgreSQL, bringing it up to date, and what is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreCorrupt, StoreDenied, StoreTooNew, StoreTooOld, StoreUnavailable
from dibs.stores.codec import FORMAT, encode
from dibs.stores.port import Opening
from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.connection import PostgresConnection
from dibs.stores.postgres.schema import MIGRATIONS, migrated
from dibs.stores.postgres.store import PostgresStore
from dibs.stores.registry import open_store
from dibs.testing.contract_base import key_of, lock, put
from tests.programs import WAIT_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.records import LockRecord
    from tests.postgres import Schema


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    return postgres_schema()


def opened(url: str, *, migrate: bool | None = None) -> PostgresStore:
    store = open_store(url, Opening(migrate=migrate))
    assert isinstance(store, PostgresStore)
    return store


def test_the_first_one_makes_it_and_the_next_one_finds_it(schema: Schema) -> None:
    first, second = opened(schema.url), opened(schema.url)
    assert first.migrated() == (0, FORMAT)
    assert second.migrated() == (FORMAT, FORMAT)
    first.close()
    second.close()


def test_of_many_that_start_at_once_all_find_one_store(schema: Schema) -> None:
    stores: list[PostgresStore] = []
    errors: list[BaseException] = []

    def start() -> None:
        try:
            stores.append(opened(schema.url))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start, daemon=True) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S_MAX)
    assert not errors
    assert len(stores) == 12
    put(stores[0], lock("x"))
    assert all(each.read([key_of("x")]).records[key_of("x")].record for each in stores)
    for store in stores:
        store.close()


NEXT = (
    "ALTER TABLE {s}.records ADD COLUMN colour text",
    "CREATE FUNCTION {s}.commit_3() RETURNS integer LANGUAGE sql AS 'SELECT 2'",
)


def bring_up(schema: Schema, step: tuple[str, ...]) -> None:
    """As a newer dibs would, beside which this one may be started."""
    location = PostgresLocation(schema.url)
    link = PostgresConnection(location.attempts[0], steady_ms() + 10_000)
    step = (*step, f"UPDATE {{s}}.state SET version = {FORMAT + 1}")
    migrated(link, location, steady_ms() + 10_000, {**MIGRATIONS, FORMAT + 1: step})
    link.close()


def test_a_server_of_this_version_goes_on_beside_a_newer_one_and_can_be_started_anew(schema: Schema) -> None:
    before = opened(schema.url)
    put(before, lock("x"))
    bring_up(schema, NEXT)
    bring_up(schema, NEXT)  # twice is once
    after = opened(schema.url)
    for each in (before, after):
        put(each, lock("x", token=2))
        assert each.read([key_of("x")]).records[key_of("x")].record == lock("x", token=2)
    assert after.migrated() == (FORMAT + 1, FORMAT + 1)
    before.close()
    after.close()


def commit_as_before(schema: Schema, version: int, record: LockRecord) -> None:
    """As a server that knows the first step only."""
    key = f"""'{{"{key_of(record.name)}"}}'"""
    put_it = f"{key}, '{{{version}}}', {key}, '{{NULL}}', '{{t}}', ARRAY['{encode(record)}'], '{{}}'"
    no_events = ", ".join(["'{}'"] * 5)
    ((last_seq,),) = schema.run(
        f"SELECT last_seq FROM {{s}}.commit_1({put_it}, {no_events}, 0, 'none', '', 0, 0, 0, 0, -1, false)"
    )
    assert last_seq is not None


def test_a_store_of_the_first_step_is_brought_up_and_a_server_of_that_step_goes_on_beside(schema: Schema) -> None:
    location, key = PostgresLocation(schema.url), key_of("x")
    link = PostgresConnection(location.attempts[0], steady_ms() + 10_000)
    migrated(link, location, steady_ms() + 10_000, {1: MIGRATIONS[1]}, 1)
    link.close()
    commit_as_before(schema, 0, lock("x", token=1))
    with pytest.raises(StoreUnavailable, match=r"is of format 1.*needs format 10.*dibs migrate"):
        opened(f"{schema.url}&migrate=off")
    store = opened(schema.url)
    assert store.migrated() == (1, FORMAT)
    assert store.read([key]).records[key].record == lock("x", token=1)
    for token in (2, 4):
        put(store, lock("x", token=token))
        commit_as_before(schema, store.read([key]).records[key].version, lock("x", token=token + 1))
        assert store.read([key]).records[key].record == lock("x", token=token + 1)
    store.close()


@pytest.mark.fault("F-375")
def test_a_migration_that_a_backup_keeps_waiting_does_not_hold_up_the_servers_of_before(schema: Schema) -> None:
    """Whoever waits to change a table keeps all others out of it meanwhile."""
    location = PostgresLocation(schema.url)
    link = PostgresConnection(location.attempts[0], steady_ms() + 10_000)
    migrated(link, location, steady_ms() + 10_000, {1: MIGRATIONS[1]}, 1)
    link.close()
    stores: list[PostgresStore] = []
    newer = threading.Thread(target=lambda: stores.append(opened(schema.url)))
    waits = "SELECT count(*) FROM pg_locks WHERE relation = '{s}.state'::regclass AND NOT granted"
    with psycopg.connect(schema.server_url) as backup:
        backup.execute(f'SELECT * FROM "{schema.name}".state'.encode())
        newer.start()
        wait_until(lambda: schema.run(waits) == [(1,)], "the migration waits for the backup")
        commit_as_before(schema, 0, lock("x", token=1))
        assert not stores
    newer.join(WAIT_S_MAX)
    assert stores[0].migrated() == (1, FORMAT)
    assert stores[0].read([key_of("x")]).records[key_of("x")].record == lock("x", token=1)
    stores[0].close()


def test_reads_are_planned_once_for_each_session(schema: Schema) -> None:
    schema.make()
    planned = "SELECT count(*) FROM pg_proc WHERE pronamespace = '{s}'::regnamespace AND proconfig @> ARRAY['{set}']"
    assert schema.run(planned.replace("{set}", "plan_cache_mode=force_generic_plan")) == [(3,)]


def test_a_schema_that_needs_a_newer_dibs_is_refused_and_left_alone(schema: Schema) -> None:
    schema.make()
    bring_up(schema, (*NEXT, f"UPDATE {{s}}.state SET needs = {FORMAT + 1}"))
    for migrate in (None, True, False):
        with pytest.raises(StoreTooNew, match=r"newer dibs: its format is 11.*reads formats up to 10.*Upgrade dibs"):
            opened(schema.url, migrate=migrate)


@pytest.mark.fault("F-430")
def test_a_schema_of_the_first_version_is_refused_with_its_version_and_left_alone(schema: Schema) -> None:
    schema.make()
    schema.run("UPDATE {s}.state SET version = 1, needs = 1")
    schema.run("ALTER TABLE {s}.state DROP COLUMN due_from_ms")
    with pytest.raises(StoreTooOld, match=r"written by dibs 0\.1\.0,.*\n.*dibs export.*with dibs 0\.1\.0"):
        opened(schema.url)
    assert schema.run("SELECT version FROM {s}.state") == [(1,)]


def test_a_step_that_fails_leaves_nothing_behind(schema: Schema) -> None:
    schema.make()
    with pytest.raises(Exception, match="no_such_thing"):
        bring_up(schema, (NEXT[0], "SELECT no_such_thing"))
    assert schema.run("SELECT version FROM {s}.state") == [(FORMAT,)]
    opened(schema.url).close()
    bring_up(schema, NEXT)


def test_with_migrate_off_nothing_is_made_and_the_command_is_named(schema: Schema) -> None:
    off = f"{schema.url}&migrate=off"
    with pytest.raises(StoreUnavailable, match=r"is not there.*migrate=off.*dibs migrate"):
        opened(off)
    assert opened(off, migrate=True).migrated() == (0, FORMAT)
    opened(off).close()


def test_tables_of_another_program_are_left_alone(schema: Schema) -> None:
    schema.run("CREATE SCHEMA {s}")
    schema.run("CREATE TABLE {s}.state (theirs text)")
    with pytest.raises(StoreCorrupt, match=r"tables of another program.*\?schema=NAME"):
        opened(schema.url)
    assert schema.run("SELECT count(*) FROM {s}.state") == [(0,)]


@pytest.mark.parametrize("odd", ['a"b', "Ä b'c", "Upper", "x" * 63])
def test_any_name_that_postgresql_takes_is_one_for_a_schema(schema: Schema, odd: str) -> None:
    from urllib.parse import quote

    made = type(schema)(schema.server_url, odd)
    made.url = f"{schema.server_url}?schema={quote(odd)}"
    try:
        store = opened(made.url)
        put(store, lock("x"))
        assert store.size_bytes() > 0
        assert all(each["ok"] for each in store.probe())
        assert store.tidy() == {}
        store.close()
    finally:
        schema.run('DROP SCHEMA "' + odd.replace('"', '""') + '" CASCADE')


@pytest.fixture
def poor(schema: Schema) -> str:
    """The URL of a role without rights."""
    role = f"poor_{schema.name[-8:]}"
    schema.run(f"CREATE ROLE {role} LOGIN")
    return schema.url.replace("dibs@", f"{role}@")


@pytest.mark.fault("F-284")
def test_who_may_not_make_a_schema_is_told_the_statement_that_helps(schema: Schema, poor: str) -> None:
    with pytest.raises(StoreDenied, match=r"may not make the schema.*\n?.*CREATE SCHEMA .* AUTHORIZATION") as caught:
        opened(poor)
    statement = caught.value.details.partition("run: ")[2]
    schema.run(statement)
    store = opened(poor)
    put(store, lock("x"))
    store.close()


def test_a_role_with_the_rights_on_the_page_needs_no_more(schema: Schema, poor: str) -> None:
    schema.make()
    with pytest.raises(StoreDenied, match="GRANT USAGE ON SCHEMA") as caught:
        opened(f"{poor}&migrate=off")
    schema.run(caught.value.details.partition("run:\n")[2])
    store = opened(f"{poor}&migrate=off")
    put(store, lock("x"))
    assert store.due(0).next_ms == 10**15
    assert store.prune(keep=0, before_ms=0) == 0
    store.close()


def test_a_database_in_another_encoding_is_refused_with_what_helps(schema: Schema) -> None:
    name = f"latin_{schema.name[-8:]}"
    schema.run(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with pytest.raises(StoreUnavailable, match=r"encoding is LATIN1.*ENCODING 'UTF8'"):
            opened(schema.url.replace("/postgres?", f"/{name}?"))
    finally:
        schema.run(f"DROP DATABASE {name}")


def test_two_schemas_of_one_database_are_two_stores(postgres_schema: Callable[[], Schema]) -> None:
    one, other = opened(postgres_schema().url), opened(postgres_schema().url)
    put(one, lock("x"))
    assert other.scan("") == []
    one.close()
    other.close()
