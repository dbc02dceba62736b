"""Administration of a store: copies, sweep, facts, probe. For `export`, `import`, `backup`, `restore`, `gc`, `doctor`.

One of the few client modules that may import stores and the engine. Everything here raises what the store raises.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from io import TextIOWrapper
from shutil import copyfileobj
from typing import Any, BinaryIO, TextIO
from urllib.parse import quote

from dibs.base.clock import wall_ms
from dibs.base.errors import (
    DibsError,
    HookRefused,
    InvalidInput,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from dibs.base.files import to_disk
from dibs.base.ids import new_id
from dibs.base.jsontext import Document, encode
from dibs.base.new_files import draft_beside, new_file, sync
from dibs.base.plugins import PARTS, plugin
from dibs.client.embedded import EmbeddedTransport
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import RaiseFloor, Renew, Sweep, Thaw
from dibs.core.lease_outcomes import Frozen, Thawed
from dibs.core.limits import SWEEP_BATCH_MAX
from dibs.core.outcomes import Outcome
from dibs.core.records import LOCK_PREFIX, META_KEY, REGISTER_KEY, LockRecord, Meta, Stored, lock_key
from dibs.core.service.credentials import CredentialRegister, credential_key
from dibs.core.upkeep.sweep import is_swept
from dibs.engine.archive import export
from dibs.engine.archive_import import AlreadyImported, import_into
from dibs.engine.coordinator import run_all, run_one
from dibs.engine.credentials import every_credential
from dibs.engine.queries import disagreeing, recount, scan_records, why_frozen
from dibs.engine.token_floor import floor_after, number_after, raise_floor
from dibs.engine.webhooks import ANY_TARGET, is_refused, parse_target
from dibs.stores.codec import FORMAT
from dibs.stores.port import EVENT_PREFIX, Opening, Store, maintenance_of
from dibs.stores.sqlite import SqliteStore, sqlite_path
from dibs.stores.sqlite import backup as copies
from dibs.stores.sqlite.errors import translated
from dibs.stores.sqlite.opener import connect
from dibs.stores.sqlite.rows import APPLICATION_ID
from dibs.wire.documents import Reply, reply_for_error, reply_to
from dibs.wire.requests import command_for, shape

# Moving and copying a store: `export`, `import`, `backup`, `restore`.

PRIVATE = 0o600
STORE_FORMAT = FORMAT  # what this dibs writes


def export_to_stream(store: Store, stream: TextIO, *, freeze: bool) -> Document:
    """Write the archive there. A new file is made readable for its owner alone first: it holds lease ids."""
    try:
        file = os.fstat(stream.fileno())
        if stat.S_ISREG(file.st_mode) and not file.st_size:
            os.fchmod(stream.fileno(), PRIVATE)
    except (OSError, ValueError):
        pass  # not a file, or not ours
    with _written("The archive"):
        exported = export(store, stream.write, freeze=freeze)
        stream.flush()
    return exported.dump()


def export_to_file(store: Store, path: str, *, freeze: bool) -> Document:
    """Write the archive into a new file, which is there when it is complete. One that is there already stays."""
    with new_file(path) as draft, _written(path), open(draft, "w", encoding="ascii") as file:
        exported = export(store, file.write, freeze=freeze)
        file.flush()
        to_disk(file.fileno())
    return exported.dump()


def import_from(opens: Callable[[], Store], source: BinaryIO, path: str | None, *, adds: bool) -> Document:
    """Bring in what `source` gives: an archive, or the database of another program, by what is in it. `path` is that of
    a file. An archive is read twice, so a pipe is written to a temporary file first. The store is opened last."""
    with tempfile.TemporaryFile(prefix="dibs-import-") as spool:
        if not source.seekable():
            with _written("The temporary copy of what is imported"):
                copyfileobj(source, spool, 1 << 20)
                spool.flush()
            source = spool
        source.seek(0)
        is_database = source.read(len(_SQLITE)) == _SQLITE
        if not is_database:
            return import_into(opens, source, adds=adds).dump()
        if path is None:
            raise InvalidInput("This is a database, whose log is a file beside it. Name it with --from FILE.")
        if adds:
            raise InvalidInput(
                "A database of another program goes into an empty store: its users may have the names of others here.\n"
                "Import it into a store of its own, and `dibs export` that for --add."
            )
        with _written("The temporary copy of what is imported"):
            text = TextIOWrapper(spool, encoding="ascii", newline="")
            summary = _translated(path, text.write)
            text.flush()
        text.detach()
        return {**import_into(opens, spool).dump(), **summary}


_SQLITE = b"SQLite format 3\0"


def _translated(path: str, write: Callable[[str], object]) -> Document:
    """Write the database of another program as an archive. Returns what people want to know about it."""
    known = plugin(PARTS, "octostore-database")

    def opened() -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None))

    try:
        with opened() as db:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            if application == APPLICATION_ID:
                raise InvalidInput(
                    f"{path} is a store of dibs, not a copy of one. Copy it with `dibs export`; `dibs restore` puts a "
                    "backup back."
                )
            if known is None or not known.is_octostore(db):
                raise InvalidInput(f"{path} is an SQLite database that dibs does not know. It knows OctoStore's.")
        if copies.is_in_use(path):  # between two connections: the look would end the locks of an open one
            raise InvalidInput(
                f"{path} is in use: a server runs on it. Stop that server first; else both would give out locks."
            )
        with opened() as db:
            summary: Document = known.write_archive(db, path, write, wall_ms())
            return summary
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path} cannot be read as an SQLite database: {error}. Nothing of it was used.") from None


def thaw(store: Store) -> Document:
    """Let a store that was frozen for a move be used again."""
    outcome = run_one(store, Thaw(id=None, fresh_id=new_id()))
    if isinstance(outcome, Frozen):
        raise InvalidInput("An import into this store is not complete. Repeat the import until it is.")
    return {"was_frozen": isinstance(outcome, Thawed) and outcome.was_frozen}


@contextmanager
def _written(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFull(f"{what} could not be written ({error.strerror}). It is not complete; do not use it.") from None


# Backups of an SQLite store: `backup`, `restore`.

__all__ = ["AlreadyImported", "backup", "restore", "sqlite_path"]


def backup(store: Store, path: str, *, takes_damage: bool = False) -> Document:
    """Copy an SQLite store into the new file `path`, while others use it. A store with a damaged record is refused,
    because the copy may take the place of an older one that has the record; `takes_damage` copies it all the same."""
    if not isinstance(store, SqliteStore):
        raise InvalidInput(
            f"dibs backup copies SQLite files, and this is a {store.capabilities.name} store. Use its own tools, or "
            "dibs export."
        )
    with new_file(path) as draft:
        copies.copy(store.path, draft)
        damaged = copies.unreadable(draft)
        if damaged and not takes_damage:
            raise StoreCorrupt(
                f"The store has damaged records: {', '.join(damaged[:SHOWN_MAX])}. Nothing was copied: "
                f"older backups may have them.\n{SET_ASIDE} --damaged copies it all the same."
            )
        size = os.stat(draft).st_size
    return {"path": path, "bytes": size, "damaged": damaged}


def restore(source: str, path: str) -> Document:
    """Put the backup `source` in the place of the store at `path`. At any time the old file is there or the new one."""
    path = os.path.realpath(path)
    if not os.path.isfile(source):
        raise InvalidInput(f"{source} is not a file. Name one that dibs backup made.")
    if os.path.exists(path) and os.path.samefile(source, path):
        raise InvalidInput(f"{source} is the store itself. Name a backup of it.")
    with draft_beside(path) as draft:
        try:
            copies.copy(source, draft)
        except StoreCorrupt as error:
            why = f" ({error.__cause__})" if error.__cause__ else ""
            raise InvalidInput(
                f"{source} is damaged, or no file that dibs backup made{why}. Name another backup. Nothing was changed."
            ) from None
        if copies.is_empty(draft):  # which SQLite takes for a database: it would wipe out the store
            raise InvalidInput(f"{source} is empty. Name a file that dibs backup made.")
        try:  # a file of another program is refused, and one of an older version brought up to date
            SqliteStore(draft).close()
        except DibsError as error:
            raise InvalidInput(error.details.replace(draft, source)) from None
        damaged = copies.unreadable(draft)
        with copies.sole_use(path) as old:
            done = _prepare(draft, old)
            copies.take_over_owner(draft, path)
            sync(draft)
            kept = copies.keep_aside(path)
            os.rename(draft, path)
            sync(os.path.dirname(path))
    return {"path": path, "kept": kept, "damaged": damaged, **done}


def _prepare(draft: str, old: copies.Counters | None) -> Document:
    """Let the draft go on above all that was handed out, as another store than the one that was copied, and with the
    tokens of the file that it replaces. Returns the floor under its new fencing tokens, and what it did with tokens."""
    with translated(draft, copies.WAIT_MS):
        db = connect(draft, copies.WAIT_MS)
        try:
            own = copies.counters(db)
        finally:
            db.close()
    last = old or copies.Counters()
    now_ms = max(wall_ms(), own.time_ms, last.time_ms)
    floor = floor_after(max(own.token, last.token), now_ms)
    last_seq = number_after(max(own.last_seq, last.last_seq), now_ms)
    copies.raise_counters(draft, last.replace(last_seq=last_seq))
    store = SqliteStore(draft)
    try:
        meta = store.read((META_KEY,)).records[META_KEY].record
        mark = meta.frozen if isinstance(meta, Meta) else None
        if mark is not None and mark.incomplete:
            raise InvalidInput("The backup was made while an import was not complete. Take another one.")
        if mark is None:  # the time since the backup, of which it knows nothing, counts as an outage
            run_one(store, Thaw(id=None, since_ms=own.time_ms, floor=floor))
        else:  # a frozen store stays so
            run_one(store, RaiseFloor(floor=floor))
        # Without a file in its place, the store that was copied may live on, here or elsewhere: this one names nobody.
        meta = store.read((META_KEY,)).records[META_KEY].record
        named = (meta if isinstance(meta, Meta) else Meta()).replace(store_id="", moved_from=last.names)
        _replace(store, {META_KEY: named})
        return {"token_floor": floor, **_keep_tokens(store, old)}
    finally:
        store.close()


def _keep_tokens(store: Store, old: copies.Counters | None) -> Document:
    """Bearer tokens stay as the replaced file has them: what was revoked or replaced since the backup stays so. Returns
    whether there was such a file, and the valid tokens that it did not have: perhaps they were revoked long ago."""
    known = dict(() if old is None else old.tokens)
    now_ms = store.read(()).now_ms
    back = [each for each in every_credential(store) if credential_key(each.digest) not in known]
    back = [each for each in back if not each.is_over(now_ms)]
    if known:
        register = store.read((REGISTER_KEY,)).records[REGISTER_KEY].record
        changes = register.changes if isinstance(register, CredentialRegister) else 0
        _replace(store, {**known, REGISTER_KEY: CredentialRegister(changes=changes + 1)})
    shown = [{"id": each.id, "principal": each.name} for each in sorted(back, key=lambda each: each.name)]
    return {"tokens_kept": old is not None, "tokens_back": shown}


def _replace(store: Store, puts: Mapping[str, Stored]) -> None:
    """Write records into a store that nobody else has."""
    store.commit({key: each.version for key, each in store.read(puts).records.items()}, puts, ())


# Pushes a branch together with the claim on its job: the remote accepts both or neither.


def push_branch(
    transport: EmbeddedTransport, name: str, document: dict[str, Any], branch: str | None, folder: str
) -> Reply:
    """Renew a claim that is kept at a git remote, and push a branch there, in one step. Raises HookRefused."""
    try:
        command = command_for("renew", transport.namespace((name,)), name, shape("renew", document), LOCAL)
        assert isinstance(command, Renew)  # the verb makes a Renew
        outcome, pushed = push_with_claim(transport.store(), command, branch, folder)
    except HookRefused:
        raise
    except DibsError as error:
        return reply_for_error(error)
    reply = reply_to("renew", outcome)
    return reply if reply.status >= 400 else Reply(status=200, body=(reply.body or {}) | {"pushed": pushed})


def push_with_claim(store: Store, command: Renew, branch: str | None, folder: str) -> tuple[Outcome, dict[str, Any]]:
    """The outcome of the renewal, and what was pushed if it succeeded. Raises InvalidInput if the branch has moved."""
    carry = getattr(store, "carry", None)
    if carry is None:
        raise InvalidInput("A branch can go with a claim only where both are at one git remote: --url git:origin.")
    key = lock_key(command.ns, command.name)

    def holds(puts: Mapping[str, Stored | None]) -> bool:
        """Tell whether the caller still has the job after this write. A write that notes a loss carries no branch."""
        lock = puts.get(key)
        return isinstance(lock, LockRecord) and any(
            holder.lease_id == command.lease_id if command.lease_id is not None else holder.session == command.session
            for holder in lock.holders
        )

    pushed = carry(branch, folder, holds)
    return run_one(store, command), pushed


SHOWN_MAX = 5
EVENTS_LOOKED_AT = 10_000  # a store may have a million, which take half a minute
SET_ASIDE = "To set one aside, with its text in a file: dibs doctor --set-aside KEY."


def damaged(store: Store) -> list[str]:
    """The keys of all records that cannot be read, and of such events among the newest."""
    for _ in scan_records(store, ""):
        pass
    store.events(0, EVENTS_LOOKED_AT, newest=True)
    return store.damaged()


def set_aside(store: Store, key: str) -> Document:
    """Remove a record or an event that cannot be read. Its text is in a new file first. What a record said of fencing
    tokens is lost, so the floor under all of them is raised, as an import does."""
    is_event = key.startswith(EVENT_PREFIX) and key.removeprefix(EVENT_PREFIX).isdecimal()
    if is_event:
        store.events(int(key.removeprefix(EVENT_PREFIX)[:16]) - 1, 1)
    if key not in (store.damaged() if is_event else damaged(store)):
        raise InvalidInput(f"There is no damaged record under {key!a}. Nothing was changed; `dibs doctor` names them.")
    path = os.path.abspath(f"dibs-set-aside-{new_id()[:8]}.json")
    tokens = [store.read(()).now_ms]

    def keep(text: str) -> None:
        with new_file(path) as draft, _written(path), open(draft, "w", encoding="utf-8") as file:
            file.write(encode({"key": key, "text": text}) + "\n")
            file.flush()
            to_disk(file.fileno())
        tokens.extend(int(number) for number in re.findall(r'"token(?:_floor)?": ?(\d{1,15})\b', text))

    if key != META_KEY and not is_event:  # the record of the floor, and what says nothing of tokens
        raise_floor(store, tokens[0])
    if not maintenance_of(store).set_aside(key, keep):
        raise StoreUnavailable(f"Somebody has just changed {key!a}. Look again: dibs doctor.")
    if is_event:
        return {"key": key, "path": path}
    return {"key": key, "path": path, "token_floor": raise_floor(store, max(tokens))}


def sweep(store: Store) -> Document:
    """Sweep all jobs: write expiries as events, delete long idle records. Then tidy the store."""
    store.read((META_KEY,))  # without it nothing can be decided, and nothing is due then
    swept: Document = {"jobs": 0, "expired": 0, "forgotten": 0}
    seen: set[str] = set()
    while True:
        # A lease with outage credit may stay due for the store but not for the rules, so each key is swept once.
        found = store.due(SWEEP_BATCH_MAX)
        keys = [key for key in found.keys if key not in seen and is_swept(key)]
        if not keys and not found.has_more:
            return swept | {"recounted": miscounted(store, recounts=True)} | maintenance_of(store).tidy()
        seen.update(keys)
        for outcome in run_all(store, [Sweep(key=key) for key in keys]):
            if isinstance(outcome, BaseException):
                raise outcome
            swept["jobs"] += 1
            swept["expired"] += getattr(outcome, "expired", 0)
            swept["forgotten"] += getattr(outcome, "forgotten", False)


def miscounted(store: Store, *, recounts: bool = False) -> list[str]:
    """The principals whose usage record does not say what they have. `recounts`: correct these records."""
    wrong = disagreeing(store) if store.capabilities.serves else []
    for payer in wrong if recounts else ():
        recount(store, payer)
    return [payer.partition("/")[2] for payer in wrong]


def facts(store: Store) -> Document:
    """Facts about a store for its administrator. `frozen`: why nothing can be claimed in it; None: it is not."""
    found = store.read((META_KEY,))
    return {
        "kind": store.capabilities.name,
        "clock": store.capabilities.clock,
        # An opened store has this format: older ones were brought up to it, newer ones refused.
        "format": (maintenance_of(store).migrated() or (None, None))[1],
        "path": getattr(store, "path", None),
        "now_ms": found.now_ms,
        "size_bytes": maintenance_of(store).size_bytes(),
        "frozen": why_frozen(found.records[META_KEY].record),
    }


def probe(store: Store) -> list[Document]:
    """The results of the store's own probe of its location; without one, a try to write, which changes no record."""
    found = maintenance_of(store).probe()
    if not found:
        store.commit({}, {}, ())
    return found or [{"check": "write", "ok": True, "says": "can be written"}]


def holds_anything(store: Store) -> bool:
    """Tell whether any job of any namespace is held right now."""
    now_ms = store.read(()).now_ms
    return any(
        each.expires_ms > now_ms or not each.ttl_ms
        for _, lock in scan_records(store, LOCK_PREFIX, live=True)
        if isinstance(lock, LockRecord)
        for each in lock.holders
    )


def migrate(url: str | None) -> Document:
    """Bring a store up to date, whatever its URL says about doing so by itself."""
    from dibs.stores.registry import default_url, open_store

    store = open_store(url or default_url(), Opening(migrate=True))
    try:
        was, now = maintenance_of(store).migrated() or (None, None)
        return {"store": store.capabilities.name, "was": was, "version": now}
    finally:
        store.close()


def flags_to_send(url: str) -> list[str]:
    """The flags without which a server does not send to a webhook's URL. A host's name is not looked up."""
    target = parse_target(url, ANY_TARGET)
    is_name = not (target.host[-1:].isdecimal() or ":" in target.host)
    is_private = target.host == "localhost" if is_name else is_refused(target.host)
    wanted = {"--webhook-allow-http": not target.is_tls, "--webhook-allow-private": is_private}
    return [flag for flag, is_needed in wanted.items() if is_needed]
