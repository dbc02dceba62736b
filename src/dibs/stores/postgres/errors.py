"""Tells what an error of PostgreSQL means, and what to do about it. Only pool.py calls this."""

from __future__ import annotations

import re

from dibs.base import errors
from dibs.stores.postgres.connection import LinkBehind, LinkLost, QueryRefused
from dibs.stores.postgres.location import PostgresLocation

# Rolled back because of another transaction: these should be tried again.
SERIALIZATION = ("40001", "40P01")
READ_ONLY = "25006"
MISSING = ("42P01", "42883", "3F000", "42703")  # no such table, function, schema or column
LOCKED = "55P03"
_CANCELLED = "57014"
_REFUSED_FOR_GOOD = ("authentication", "pg_hba.conf", "does not exist", "no password supplied", "certificate")
_NO_SLOT = ("too many clients", "remaining connection slots", "too many connections")
_FULL = ("53100", "53200", "53400")


def is_final(lost: LinkLost) -> bool:
    """Return whether connecting again would fail in the same way. libpq gives no code for errors before the login."""
    return _says_any(str(lost), _REFUSED_FOR_GOOD)


def _says_any(says: str, words: tuple[str, ...]) -> bool:
    """Return whether libpq or the server says one of these. Names, which are quoted, may hold any word."""
    plain = re.sub(r'"[^"]*"', "", says)
    return any(each in plain for each in words)


def unreachable(lost: LinkLost, location: PostgresLocation, *, unknown: bool) -> errors.DibsError:
    says = " ".join(location.without_secrets(str(lost)).split()).rstrip(".?") or "the connection ended"
    if lost.late:
        return errors.StoreUnavailable(
            f"PostgreSQL ({location.shown}) gave no answer within {location.timeout_ms / 1000:g} seconds.\n"
            "Try again; if it stays so, look at the database, and at the standby if its commits wait for one.",
            unknown=unknown,
        )
    if isinstance(lost, LinkBehind):
        return errors.StoreReplaced(
            f"PostgreSQL ({location.shown}) lacks what it had: {says}.\nAn old primary came back, or a copy was "
            "restored under running servers: stop the one, or start the servers again."
        )
    if is_final(lost) and not unknown:
        return errors.StoreDenied(
            f"PostgreSQL refused the login ({location.shown}): {says}. Check user, password and database."
        )
    if _says_any(says, _NO_SLOT):
        return _no_connection_left(says, location)
    return errors.StoreUnavailable(
        f"PostgreSQL ({location.shown}) cannot be reached: {says}. Try again when it is there.", unknown=unknown
    )


def refusal(error: QueryRefused, location: PostgresLocation) -> errors.DibsError:
    """The error for a statement that was rolled back. Nothing was changed."""
    state, says = error.sqlstate, location.without_secrets(str(error))
    if state == "42501":
        return missing_right(says, location, error.user)
    if state == READ_ONLY:
        return errors.StoreUnavailable(
            f"The PostgreSQL at {location.shown} is read-only: a standby, most likely. Name the primary, or all hosts, "
            "as in postgresql://one,two/database."
        )
    if state == "53300":
        return _no_connection_left(says, location)
    if state in _FULL:
        return errors.StoreFull(f"PostgreSQL ({location.shown}) has no room left: {says}. Make room, then try again.")
    if state == LOCKED:
        return _held_up(error, location)
    if state in (_CANCELLED, *SERIALIZATION):
        return errors.StoreUnavailable(f"PostgreSQL ({location.shown}) gave up on a statement: {says}. Try again.")
    if state in MISSING:
        return errors.StoreBroken(
            f"The schema {location.schema} lacks what dibs keeps there: {says}. Was it dropped, or put back from a "
            "copy? Start dibs again to make it anew, or restore it."
        )
    if state[:2] in ("22", "21"):
        return errors.InvalidInput(f"PostgreSQL cannot keep this: {says}.")
    if state in ("XX001", "XX002"):
        return errors.StoreCorrupt(f"PostgreSQL finds its data damaged: {says}. Restore the database from a backup.")
    return errors.StoreUnavailable(f"PostgreSQL ({location.shown}) refused to work: {says} ({state}).")


def _held_up(error: QueryRefused, location: PostgresLocation) -> errors.DibsError:
    if error.by_standby:
        return errors.StoreUnavailable(
            f"PostgreSQL ({location.shown}) waits for a standby (synchronous_standby_names), and none answers.\n"
            "Start the standby. Do not end the transaction that waits: it is a commit of dibs."
        )
    return errors.StoreUnavailable(
        f"The schema {location.schema} was locked by {error.holder or 'somebody else'} for too long. Try again; if it "
        "stays so, look in pg_stat_activity for a transaction that is kept open."
    )


def _no_connection_left(says: str, location: PostgresLocation) -> errors.DibsError:
    return errors.StoreUnavailable(
        f"PostgreSQL ({location.shown}) has no connection left: {says}. Raise max_connections, or put pgbouncer in "
        "between."
    )


def missing_right(says: str, location: PostgresLocation, user: str) -> errors.DibsError:
    """42501: which GRANT is missing."""
    schema, role = quoted(location.schema), quoted(user)
    if says.startswith("permission denied for database "):
        return errors.StoreDenied(
            f"{says}: the role {user} may not make the schema {location.schema}.\nAs the database's owner, run: "
            f"CREATE SCHEMA {schema} AUTHORIZATION {role};"
        )
    return errors.StoreDenied(
        f"{says}: the role {user} lacks a right. As the schema's owner, run:\n"
        f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "
        f"{schema} TO {role};"
    )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
