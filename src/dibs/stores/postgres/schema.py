"""The schema as numbered steps. A released step is never changed; new ones are appended.

All missing steps are applied in one transaction, under an advisory lock that ends with it: if several servers start at
once, one does the work and the others find it done. The lock belongs to the transaction and not to the session, so all
of this works behind pgbouncer.

Steps only add: a server of an older version continues beside a newer one, with the functions it knows. A step that
older versions cannot work with raises `state.needs`, the oldest version that may use the schema from then on.
"""

from __future__ import annotations

from dibs.base.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from dibs.stores.postgres import statements
from dibs.stores.postgres.connection import QueryRefused
from dibs.stores.postgres.errors import MISSING, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.stores.postgres.connection import PostgresConnection
    from dibs.stores.postgres.location import PostgresLocation
    from dibs.stores.postgres.pool import Pool

SERVER_VERSION_MIN = 130_000
MIGRATE_MS_MAX = 60_000  # how long a server waits for another server's migration, and for its own

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Text in the order of its bytes, which is the order of code points.
        'CREATE TABLE {s}.records (key text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, due_ms bigint,'
        " live boolean NOT NULL, body text NOT NULL)",
        "CREATE INDEX records_due ON {s}.records (due_ms) WHERE due_ms IS NOT NULL",
        "CREATE INDEX records_live ON {s}.records (key) WHERE live",
        'CREATE TABLE {s}.events (seq bigint PRIMARY KEY, at_ms bigint NOT NULL, ns text COLLATE "C" NOT NULL,'
        ' job text COLLATE "C" NOT NULL, kind text NOT NULL, body text NOT NULL)',
        "CREATE INDEX events_job ON {s}.events (ns, job, seq)",
        # One row, written by every commit. The fill factor leaves room for its next versions on the same page.
        "CREATE TABLE {s}.state (id integer PRIMARY KEY CHECK (id = 1), version integer NOT NULL,"
        " needs integer NOT NULL, store_id text NOT NULL, revision bigint NOT NULL, last_seq bigint NOT NULL,"
        " high_ms bigint NOT NULL, offset_ms bigint NOT NULL, offset_no bigint NOT NULL) WITH (fillfactor = 10)",
        "INSERT INTO {s}.state VALUES (1, 0, 1, md5(random()::text || clock_timestamp()::text), 0, 0, 0, 0, 0)",
    ),
    (
        "ALTER TABLE {s}.state ADD timeline bigint NOT NULL DEFAULT 0, ADD due_from_ms bigint NOT NULL DEFAULT 0",
        f"UPDATE {{s}}.state SET timeline = {statements.TIMELINE}",
        "DROP FUNCTION IF EXISTS {s}.read_1, {s}.due_1, {s}.commit_1, {s}.correct_1",
        statements.CLOCK,
        statements.READ,
        statements.DUE,
        statements.COMMIT,
        statements.CORRECT,
        statements.ROOM,
        "UPDATE {s}.state SET needs = 2",
    ),
)
VERSION = len(MIGRATIONS)


def prepare(pool: Pool, location: PostgresLocation, *, migrate: bool) -> tuple[int, int]:
    """The version that was found (0: none), and the schema's version now."""
    found = pool.call(lambda link, deadline_ms: _look(link, location, deadline_ms))
    if found >= VERSION:
        return found, found
    if not migrate:
        what = f"is at version {found}" if found else "is not there"
        raise StoreUnavailable(
            f"The schema {location.schema} {what}, this dibs needs version {VERSION}, and migrate=off. Run, as a role "
            f"that may change it: dibs migrate URL"
        )
    pool.call(lambda link, deadline_ms: migrated(link, location, deadline_ms), timeout_ms=MIGRATE_MS_MAX)
    return found, VERSION


def _look(link: PostgresConnection, location: PostgresLocation, deadline_ms: int) -> int:
    """The schema's version, if this dibs may use it; 0: there is no schema."""
    if link.server_version < SERVER_VERSION_MIN:
        raise StoreUnavailable(
            f"PostgreSQL 13 or newer is needed; the one at {location.shown} is {link.server_version // 10_000}."
        )
    schema = quoted(location.schema)
    try:
        (row,) = link.query(f"SELECT version, needs FROM {schema}.state".encode(), (), deadline_ms)
    except QueryRefused as error:
        if error.sqlstate not in MISSING:
            raise
        return 0
    version, needs = (int(each or 0) for each in row)
    if needs > VERSION:
        raise StoreTooNew(
            f"The schema {location.schema} is at version {version} and needs a dibs of version {needs}; "
            f"this one knows up to {VERSION}. Upgrade dibs; nothing was changed."
        )
    return version


def migrated(
    link: PostgresConnection,
    location: PostgresLocation,
    deadline_ms: int,
    steps: Sequence[Sequence[str]] = MIGRATIONS,
) -> None:
    """Bring the schema up to date, in one transaction."""
    schema = quoted(location.schema)
    literal = "'dibs:" + location.schema.replace("'", "''") + "'"
    (row,) = link.script(
        f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{MIGRATE_MS_MAX}ms';"
        " SET LOCAL standard_conforming_strings = on; SET LOCAL search_path = pg_catalog, pg_temp;"
        f" SELECT pg_advisory_xact_lock(hashtextextended({literal}, 0));"
        " SELECT current_setting('server_encoding'),"
        f" (SELECT count(*) FROM pg_namespace WHERE nspname = substr({literal}, 6)),"
        " (SELECT count(*) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid ="
        f" c.relnamespace WHERE nspname = substr({literal}, 6) AND relname = 'state' AND attname = 'needs')",
        deadline_ms,
    )
    try:
        encoding, schemas, ours = (each or b"" for each in row)
        if encoding != b"UTF8":
            raise StoreUnavailable(
                f"The database's encoding is {encoding.decode()}, and dibs needs UTF8. Make one: "
                "CREATE DATABASE dibs ENCODING 'UTF8' TEMPLATE template0."
            )
        if schemas == b"0":
            link.script(f"CREATE SCHEMA {schema}", deadline_ms)
        version = _look(link, location, deadline_ms) if ours != b"0" else 0
        statements_left = [each.replace("{s}", schema) for step in steps[version:] for each in step]
        _apply(link, location, statements_left, deadline_ms)
        if version < len(steps):
            link.script(f"UPDATE {schema}.state SET version = {len(steps)}", deadline_ms)
        link.script("COMMIT", deadline_ms)
    except QueryRefused:
        link.script("ROLLBACK", deadline_ms)  # for every other error the connection is closed
        raise


def _apply(link: PostgresConnection, location: PostgresLocation, left: list[str], deadline_ms: int) -> None:
    try:
        for each in left:
            link.script(each, deadline_ms)
    except QueryRefused as error:
        if error.sqlstate not in ("42P07", "42723"):
            raise
        raise StoreCorrupt(
            f"The schema {location.schema} holds tables of another program ({error}). Nothing in it was changed; give "
            "dibs a schema of its own with ?schema=NAME."
        ) from None
