"""OctoStore's database as an archive, which `dibs import` brings into a store like any other.

A user is a principal by its name, as with STATIC_TOKENS. Its token goes on working, and is kept as its hash alone. A
lock that is held keeps its lease id, its fencing token and the time that it has left; an expired one is not brought,
because it is free there, too. All locks are in one namespace, where `dibs serve --octostore` has them.

A database that this does not understand in full is refused: a column that says who may have a lock, and is passed over,
would let in others. The file is only read.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dibs.base.errors import DibsError, InvalidInput
from dibs.compat.octostore.admin import ADMIN_PRINCIPAL, ELECTIONS, RESERVED
from dibs.compat.octostore.bodies import OctoStoreRefusal, acl_of
from dibs.compat.octostore.callers import NIL, principal_of
from dibs.compat.octostore.elections import PUBLIC_NAMESPACE, PUBLIC_PRINCIPAL
from dibs.core.limits import CREDENTIAL_CHANGES_KEPT
from dibs.core.names import DEFAULT_NAMESPACE, check_name, check_namespace, election_job
from dibs.core.records import (
    META_KEY,
    REGISTER_KEY,
    WEBHOOK_REGISTER_KEY,
    Holder,
    LockRecord,
    Meta,
    SessionRecord,
    Stored,
    lock_key,
    progress_key,
    session_key,
    webhook_key,
)
from dibs.core.service.credentials import Credential, CredentialRegister, credential_key
from dibs.core.service.webhooks import EVERY, Webhook, WebhookEntry, WebhookProgress, WebhookRegister
from dibs.engine.archive import ArchiveHeader, ArchiveWriter, Write

# The tables of OctoStore 0.14, with their columns. Those of older versions may lack the columns in `_MISSING_BEFORE`,
# which have here what their absence meant, and the tables in `_LATER`.
_TABLES: dict[str, dict[str, Any]] = {
    "users": dict.fromkeys(("id", "github_id", "github_username", "token", "created_at"))
    | {"namespace": None, "identity_source": "legacy"},
    "locks": dict.fromkeys(("name", "holder_id", "lease_id", "fencing_token", "expires_at", "metadata", "acquired_at"))
    | {"session_id": None, "ephemeral": 0, "lock_delay_seconds": 0},
    "fencing_counter": dict.fromkeys(("id", "counter")),
    "lock_acls": dict.fromkeys(("name", "acquire_acl")),
    "sessions": dict.fromkeys(("id", "user_id", "ttl_seconds", "expires_at", "created_at")),
    "webhooks": dict.fromkeys(("id", "user_id", "url", "secret", "events", "lock_pattern", "created_at", "active")),
}
_MISSING_BEFORE = {
    "users": ("namespace", "identity_source"),
    "locks": ("session_id", "ephemeral", "lock_delay_seconds"),
}
_LATER = ("lock_acls", "sessions", "webhooks")
_OAUTH, _LEGACY = "oauth", "legacy"
_NOBODY = "unknown user"  # with a blank, so that no token can have this name
# A lock that nobody has and nobody gets yet is a row of this holder.
_COOLING = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_NUMBER_MAX = 2**53

Row = dict[str, Any]


def is_octostore(db: sqlite3.Connection) -> bool:
    return {"users", "locks", "fencing_counter"} <= _names(db)


def write_archive(db: sqlite3.Connection, path: str, write: Write, now_ms: int) -> dict[str, Any]:
    """Write the database as an archive. Returns how much of each there is, and what was left behind, in sentences."""
    try:
        found = _Contents(_rows(db), now_ms)
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path} is damaged: {error}. Nothing of it was used.") from None
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InvalidInput(
            f"{path} has a row that OctoStore does not write ({error}). Nothing of it was used."
        ) from None
    writer = ArchiveWriter(write, ArchiveHeader(at_ms=now_ms, store="octostore"))
    for key, record in sorted(found.records.items()):
        writer.record(key, record)
    writer.end()
    return {"octostore": found.counts(), "left": found.left}


def _names(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _rows(db: sqlite3.Connection) -> dict[str, list[Row]]:
    """All rows, as of one moment. Raises InvalidInput for a database of another version."""
    db.execute("BEGIN")
    found: dict[str, list[Row]] = {}
    for name in sorted(_names(db)):
        if name not in _TABLES and not name.startswith("sqlite_"):  # those are SQLite's own, as ANALYZE makes them
            raise _unknown(f"the table {name}")
    for table, known in _TABLES.items():
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        if not columns and table in _LATER:
            found[table] = []
            continue
        for column in columns:
            if column not in known:
                raise _unknown(f"the column {column} of {table}")
        for column in known:
            if column not in columns and column not in _MISSING_BEFORE.get(table, ()):
                raise InvalidInput(
                    f"This database is not one of OctoStore 0.14: {table} lacks {column}. Nothing of it was used."
                )
        (fault,) = db.execute(f"PRAGMA quick_check({table})").fetchone()
        if fault != "ok":
            raise sqlite3.DatabaseError(fault)
        chosen = f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid"
        found[table] = [{**known, **dict(zip(columns, row, strict=True))} for row in db.execute(chosen)]
    return found


def _unknown(what: str) -> InvalidInput:
    return InvalidInput(
        f"This database has {what:.80}, which OctoStore 0.14 does not have: it is of another version. Nothing of it "
        "was used, because it may say who may have a lock."
    )


class _Contents:
    """The records of a store for what a database has."""

    def __init__(self, rows: dict[str, list[Row]], now_ms: int) -> None:
        self._now_ms = now_ms
        self.records: dict[str, Stored] = {}
        self.left: list[str] = []
        self._users: dict[str, tuple[str, str | None]] = {}  # principal and namespace, by id
        self._names: set[str] = set()
        self._locks: dict[tuple[str, str], LockRecord] = {}
        self._tokens = self._expired = 0
        for row in rows["users"]:
            self._add_user(row)
        self._add_tokens(rows["users"])
        sessions = {session.id: session for session in map(self._session, rows["sessions"]) if session is not None}
        for row in rows["locks"]:
            self._add_lock(row, sessions)
        for row in rows["lock_acls"]:
            self._add_list(row)
        holds: dict[str | None, list[str]] = {}
        for (ns, name), lock in sorted(self._locks.items()):
            self.records[lock_key(ns, name)] = lock
            for holder in lock.holders:
                holds.setdefault(holder.session, []).append(lock_key(ns, name))
        for session in sessions.values():
            self.records[session_key(session.id)] = session.replace(holds=tuple(holds.get(session.id, ())))
        self._add_webhooks(rows["webhooks"])
        highest = max(
            [row["counter"] for row in rows["fencing_counter"]] + [row["fencing_token"] for row in rows["locks"]]
        )
        self.records[META_KEY] = Meta(token_floor=_whole(highest))
        if self._expired:
            self.left.append(
                f"{_many(self._expired, 'lock that had expired', 'locks that had expired')}: free here, too"
            )

    def counts(self) -> dict[str, int]:
        kinds = [type(record) for record in self.records.values()]
        locks = self._locks.values()
        return {
            "users": len(self._users),
            "tokens": self._tokens,
            "locks": sum(bool(lock.holders) for lock in locks),
            "access_lists": sum(bool(lock.acl) for lock in locks),
            "sessions": kinds.count(SessionRecord),
            "webhooks": kinds.count(Webhook),
        }

    # Users.

    def _add_user(self, row: Row) -> None:
        whose = _id(row["id"])
        if whose == NIL:  # which older versions wrote for the admin's key
            return
        principal = principal_of(_text(row["github_username"]), _text(row["token"]))
        if principal.lower() in self._names:
            raise InvalidInput(
                "Two users of this database have names that differ in case alone, and an access list could mean "
                "either. Rename one of them; OctoStore does not start on it, either."
            )
        self._names.add(principal.lower())
        self._users[whose] = (principal, row["namespace"] or None)

    def _add_tokens(self, rows: Iterable[Row]) -> None:
        """With GitHub's sign-in, OctoStore takes no other tokens; they stay in the database. So do we."""
        rows = [row for row in rows if _id(row["id"]) in self._users]
        oauth = [row for row in rows if _is_oauth(row)]
        digests = []
        for row in oauth or rows:
            principal, namespace = self._users[_id(row["id"])]
            if not _is_namespace(namespace):
                self.left.append(f"the token of {principal}: dibs cannot have its namespace. Give it a new one")
                continue
            digest = hashlib.sha256(row["token"].encode()).hexdigest()
            since_ms = min(_instant_ms(row["created_at"]), self._now_ms)
            self.records[credential_key(digest)] = Credential(
                digest=digest, name=principal, since_ms=since_ms, namespace=namespace, by="import"
            )
            digests.append(digest)
        if digests:
            recent = tuple(digests[-CREDENTIAL_CHANGES_KEPT:])
            self.records[REGISTER_KEY] = CredentialRegister(changes=len(digests), recent=recent)
        self._tokens = len(digests)
        if oauth and len(oauth) < len(rows):
            others = _many(len(rows) - len(oauth), "token that is", "tokens that are")
            self.left.append(
                f"{others} not of GitHub's sign-in, which the others are: OctoStore took one kind or the other"
            )

    def _whose(self, user_id: str) -> tuple[str, str | None]:
        return (ADMIN_PRINCIPAL, None) if user_id == NIL else self._users.get(user_id, (_NOBODY, None))

    # Sessions and locks.

    def _session(self, row: Row) -> SessionRecord | None:
        expires_ms, ttl_ms = _instant_ms(row["expires_at"]), _whole(row["ttl_seconds"]) * 1000
        if expires_ms <= self._now_ms:
            return None
        principal, namespace = self._whose(_id(row["user_id"]))
        return SessionRecord(
            id=_id(row["id"]),
            principal=principal,
            owner=principal,
            ttl_ms=ttl_ms,
            since_ms=min(_instant_ms(row["created_at"]), self._now_ms),
            renewed_ms=self._now_ms,
            expires_ms=expires_ms,
            ns=namespace if namespace and _is_namespace(namespace) else DEFAULT_NAMESPACE,
        )

    def _add_lock(self, row: Row, sessions: dict[str, SessionRecord]) -> None:
        holder_id, session_id = _id(row["holder_id"]), row["session_id"] and _id(row["session_id"])
        ends_ms, token = _instant_ms(row["expires_at"]), _whole(row["fencing_token"])
        ns, name = _place(_text(row["name"]))
        lock = LockRecord(ns=ns, name=name, token=token)
        delay_ms = _whole(row["lock_delay_seconds"]) * 1000
        session = sessions.get(session_id) if session_id else None
        is_lost = bool(row["ephemeral"]) and session is None  # it ended with its session
        if holder_id == _COOLING or ends_ms <= self._now_ms or is_lost:
            until_ms = ends_ms if holder_id == _COOLING else min(ends_ms, self._now_ms) + delay_ms
            if until_ms > self._now_ms:
                self._locks[ns, name] = lock.replace(delay_until_ms=until_ms)
            else:
                self._expired += 1
            return
        metadata: str | None = row["metadata"]
        if ns == PUBLIC_NAMESPACE:
            principal, (owner, metadata) = PUBLIC_PRINCIPAL, _candidate(metadata)
        else:
            principal = session.principal if session is not None and row["ephemeral"] else self._whose(holder_id)[0]
            owner = principal
        holder = Holder(
            lease_id=_id(row["lease_id"]),
            owner=owner,
            principal=principal,
            token=token,
            since_ms=min(_instant_ms(row["acquired_at"]), self._now_ms),
            renewed_ms=self._now_ms,
            ttl_ms=ends_ms - self._now_ms,
            expires_ms=ends_ms,
            session=None if session is None else session.id,
            ephemeral=bool(row["ephemeral"]),
            metadata=metadata,
            delay_ms=delay_ms,
            delays_release=bool(delay_ms),
        )
        self._locks[ns, name] = lock.replace(holders=(holder,))

    def _add_list(self, row: Row) -> None:
        ns, name = _place(_text(row["name"]))
        listed = json.loads(row["acquire_acl"])
        if not isinstance(listed, dict) or not isinstance(listed.get("acquire"), list) or len(listed) > 1:
            raise InvalidInput("An access list of this database cannot be read. Nothing of it was used.")
        lock = self._locks.get((ns, name), LockRecord(ns=ns, name=name))
        try:
            self._locks[ns, name] = lock.replace(acl=acl_of([_text(entry) for entry in listed["acquire"]]))
        except OctoStoreRefusal as error:
            raise InvalidInput(f"An access list of this database cannot be used: {error.details}.") from None

    # Webhooks. They begin with what happens here.

    def _add_webhooks(self, rows: Iterable[Row]) -> None:
        entries = []
        for row in rows:
            principal, namespace = self._whose(_id(row["user_id"]))
            if not row["active"] or principal == _NOBODY or not _is_namespace(namespace):
                self.left.append(f"a webhook of {principal} that OctoStore does not send to")
                continue
            made = Webhook(
                id=_id(row["id"]),
                ns=DEFAULT_NAMESPACE,
                principal=principal,
                url=_text(row["url"]),
                since_ms=min(_instant_ms(row["created_at"]), self._now_ms),
                secret=row["secret"] or "",
                events=tuple([_text(each) for each in json.loads(row["events"])]),
                pattern=row["lock_pattern"] or EVERY,
                bound=namespace,
                own=True,
            )
            self.records[webhook_key(made.id)] = made
            self.records[progress_key(made.id)] = WebhookProgress(at=0)
            entries.append(WebhookEntry(id=made.id, ns=made.ns, principal=principal, bound=namespace))
        if entries:
            self.records[WEBHOOK_REGISTER_KEY] = WebhookRegister(changes=len(entries), entries=tuple(entries))


def _is_oauth(row: Row) -> bool:
    """As OctoStore takes it: of old users, those with an id of GitHub's."""
    source, github_id = row["identity_source"], row["github_id"]
    return bool(source == _OAUTH or (source == _LEGACY and github_id >= 0))


def _is_namespace(namespace: str | None) -> bool:
    try:
        return namespace is None or check_namespace(namespace) not in RESERVED
    except DibsError:
        return False


def _place(name: str) -> tuple[str, str]:
    """The place of a lock in dibs, namespace and name. An election is a lock there, too."""
    try:
        if name.startswith(ELECTIONS):
            return PUBLIC_NAMESPACE, check_name(election_job(name.removeprefix(ELECTIONS)))
        return DEFAULT_NAMESPACE, check_name(name)
    except DibsError as error:
        raise InvalidInput(
            f"dibs cannot have the lock {name:.80}: {error.details} Nothing of this database was used. At OctoStore, "
            "release that lock and remove its access list; then import again."
        ) from None


def _candidate(metadata: str | None) -> tuple[str, str | None]:
    """The leader of an election and what it said, which OctoStore has in one text."""
    said = json.loads(metadata or "{}")
    return _text(said.get("candidate_id", PUBLIC_PRINCIPAL)), said.get("metadata")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _id(value: Any) -> str:
    return str(UUID(_text(value)))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < _NUMBER_MAX:
        raise ValueError("a number is out of bounds")
    return value


def _instant_ms(value: Any) -> int:
    at = datetime.fromisoformat(_text(value))
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
