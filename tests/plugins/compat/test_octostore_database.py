"""`dibs import --from octostore.db`: what OctoStore 0.14 keeps in its database goes on in a store of dibs.

The tables are made here, as an OctoStore server makes them. A database of the real program was tried by hand.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.client.store_admin import import_from
from dibs.compat.octostore.contract import OctoStoreContract
from dibs.core.records import META_KEY, Meta
from dibs.engine.credentials import credentials
from dibs.engine.queries import scan_records
from dibs.server.settings import PublicElections, ServerSettings
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.build import tries
from tests.programs import WAIT_S_MAX
from tests.server.harness import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.base.jsontext import Document
    from tests.server.harness import Response, Server

NOW_MS = 1_800_000_000_000
TABLES = {
    "users": "id TEXT PRIMARY KEY, github_id INTEGER, github_username TEXT, token TEXT, namespace TEXT, "
    "identity_source TEXT, created_at TEXT",
    "locks": "name TEXT PRIMARY KEY, holder_id TEXT, lease_id TEXT, fencing_token INTEGER, expires_at TEXT, "
    "metadata TEXT, acquired_at TEXT, session_id TEXT, ephemeral INTEGER, lock_delay_seconds INTEGER",
    "lock_acls": "name TEXT PRIMARY KEY, acquire_acl TEXT",
    "fencing_counter": "id INTEGER PRIMARY KEY, counter INTEGER",
    "sessions": "id TEXT PRIMARY KEY, user_id TEXT, ttl_seconds INTEGER, expires_at TEXT, created_at TEXT",
    "webhooks": "id TEXT PRIMARY KEY, user_id TEXT, url TEXT, secret TEXT, events TEXT, lock_pattern TEXT, "
    "created_at TEXT, active INTEGER",
}
ALICE, BOB, SESSION, LEASE, SHORT, HOOK = (str(uuid.UUID(int=number)) for number in range(1, 7))
COOLING, NIL = str(uuid.UUID(int=2**128 - 1)), str(uuid.UUID(int=0))


def at(after_s: float) -> str:
    return datetime.fromtimestamp(NOW_MS / 1000 + after_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f789+00:00")


def user(whose: str, name: str, token: str, namespace: str | None = None, source: str = "local") -> tuple[Any, ...]:
    number = -uuid.UUID(whose).int
    return whose, -number if source == "oauth" else number, name, token, namespace, source, at(-1000)


def lock(name: str, holder: str, ends_s: float, **more: Any) -> tuple[Any, ...]:
    given = {"lease": LEASE, "token": 7, "metadata": None, "session": None, "ephemeral": 0, "delay": 0, **more}
    return (
        *(name, holder, given["lease"], given["token"], at(ends_s), given["metadata"], at(-10)),
        *(given["session"], given["ephemeral"], given["delay"]),
    )


USERS = [user(ALICE, "Alice", "tok-a"), user(BOB, "bob", "tok-b", "team")]


def database(path: Path, counter: int = 41, tables: dict[str, str] = TABLES, **rows: list[tuple[Any, ...]]) -> str:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for table, columns in tables.items():
            db.execute(f"CREATE TABLE {table} ({columns})")
        for table, values in {"users": USERS, "fencing_counter": [(1, counter)], **rows}.items():
            for row in values:
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        db.commit()
    return str(path)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr("dibs.client.store_admin.wall_ms", lambda: NOW_MS)
    monkeypatch.setattr("dibs.engine.archive_import.wall_ms", lambda: NOW_MS)
    return MemoryStore(ManualClock(NOW_MS))


def imported(store: MemoryStore, path: str) -> Document:
    with open(path, "rb") as file:
        return import_from(lambda: store, file, path, adds=False)


@pytest.fixture
def move(tmp_path: Path, store: MemoryStore) -> Iterator[Any]:
    """Imports a database, and serves it as OctoStore does."""
    opened = []

    def moved(**rows: Any) -> tuple[Server, Document]:
        told = imported(store, database(tmp_path / "octostore.db", **rows))
        settings = ServerSettings(contract=OctoStoreContract(admin_key="adm"), public_elections=PublicElections())
        context = running(tmp_path, store=store, settings=settings)
        opened.append(context)
        return context.__enter__(), told

    yield moved
    for context in opened:
        context.__exit__(None, None, None)


def claim(server: Server, name: str, token: str, body: Document | None = None) -> Response:
    return bearer(server, "POST", f"/locks/{name}/acquire", token, body or {})


def bearer(server: Server, method: str, path: str, token: str, body: Any = None) -> Response:
    return server.ask(method, path, body, who=None, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.fault("F-695")
def test_bob_does_not_get_the_lock_that_is_alices(move: Any) -> None:
    users = [user(ALICE, "Alice", "tok-a"), user(BOB, "bob", "tok-b")]
    lists = [("free", '{"acquire":["user:ALICE"]}'), ("mine", '{"acquire":["user:alice","token:tok-b"]}')]
    server, told = move(users=users, lock_acls=lists, locks=[lock("mine", ALICE, 60)])
    assert told["octostore"] == {
        **{"users": 2, "tokens": 2, "locks": 1, "access_lists": 2, "sessions": 0, "webhooks": 0},
    }
    assert claim(server, "free", "tok-b").status == 403
    assert claim(server, "free", "tok-a").json["status"] == "acquired"
    assert claim(server, "mine", "tok-b").json["status"] == "held"  # it may claim, by its token
    assert bearer(server, "GET", "/locks/mine", "tok-b").json["acl"] == {"acquire": ["token:[redacted]", "user:alice"]}


def test_a_lease_goes_on_with_its_id_its_token_and_its_time(move: Any) -> None:
    server, _ = move(locks=[lock("job", ALICE, 100, metadata="issue 7")])
    assert claim(server, "job", "tok-x").status == 401
    seen = claim(server, "job", "tok-a").json
    assert (seen["lease_id"], seen["fencing_token"], seen["metadata"]) == (LEASE, 7, "issue 7")
    renewed = bearer(server, "POST", "/locks/job/renew", "tok-a", {"lease_id": LEASE, "ttl_seconds": 30})
    assert renewed.status == 200
    assert bearer(server, "POST", "/locks/job/release", "tok-a", {"lease_id": LEASE}).body == b"null"


def test_fencing_tokens_go_on_above_all_that_were_given(move: Any, store: MemoryStore) -> None:
    server, told = move(counter=10**14, locks=[lock("job", ALICE, 100, token=2**40)])
    given = claim(server, "other", "tok-a").json["fencing_token"]
    assert given > told["floor"] - 1 >= 10**14


def test_a_user_with_a_namespace_has_names_that_begin_with_it_and_no_other(move: Any) -> None:
    server, _ = move(locks=[lock("team.job", BOB, 60)])
    assert claim(server, "team.job", "tok-b").json["lease_id"] == LEASE
    assert claim(server, "job", "tok-b").status == 403


@pytest.mark.parametrize("namespace", ["default", "public-elections", "a/b"])
def test_a_namespace_that_dibs_cannot_have_gives_no_token(move: Any, namespace: str) -> None:
    server, told = move(users=[user(BOB, "bob", "tok-b", namespace)])
    assert told["octostore"]["tokens"] == 0
    assert "the token of bob" in told["left"][0]
    assert claim(server, f"{namespace}.job".replace("/", ""), "tok-b").status == 401


def test_what_had_expired_is_free_and_a_delay_goes_on(move: Any) -> None:
    cooling = {"metadata": "__octostore_cooling_v1:30", "session": NIL, "lease": NIL}
    server, told = move(
        locks=[
            lock("over", ALICE, -1),
            lock("resting", ALICE, -1, delay=30),
            lock("cooling", COOLING, 20, **cooling),
            lock("cooled", COOLING, -20, **cooling),
        ]
    )
    assert claim(server, "over", "tok-a").json["status"] == "acquired"
    assert claim(server, "cooled", "tok-a").json["status"] == "acquired"
    assert [claim(server, name, "tok-a").json["status"] for name in ("resting", "cooling")] == ["delayed"] * 2
    assert "2 locks that had expired" in told["left"][-1]


def test_a_session_keeps_its_ephemeral_locks_and_its_end_lets_them_go(move: Any) -> None:
    of_session = {"session": SESSION, "lease": SHORT}
    server, _ = move(
        users=[user(ALICE, "Alice", "tok-a")],
        sessions=[(SESSION, ALICE, 60, at(50), at(-100))],
        locks=[lock("eph", SESSION, 600, ephemeral=1, **of_session), lock("plain", ALICE, 600, session=SESSION)],
    )
    assert bearer(server, "GET", f"/sessions/{SESSION}", "tok-a").json["lock_count"] == 2
    assert bearer(server, "POST", "/locks/eph/renew", "tok-a", {"lease_id": SHORT}).status == 200
    assert bearer(server, "POST", f"/sessions/{SESSION}/keepalive", "tok-a").status == 200
    assert bearer(server, "DELETE", f"/sessions/{SESSION}", "tok-a").status == 204
    assert bearer(server, "GET", "/locks/eph", "tok-a").json["status"] == "free"
    assert bearer(server, "GET", "/locks/plain", "tok-a").json["status"] == "held"


def test_an_ephemeral_lock_whose_session_is_over_is_free(move: Any) -> None:
    server, _ = move(
        sessions=[(SESSION, ALICE, 60, at(-1), at(-100))],
        locks=[lock("eph", SESSION, 600, ephemeral=1, session=SESSION)],
    )
    assert claim(server, "eph", "tok-a").json["status"] == "acquired"
    assert bearer(server, "GET", f"/sessions/{SESSION}", "tok-a").status == 404


def test_webhooks_come_with_their_secrets_for_their_users_alone(move: Any, store: MemoryStore) -> None:
    hook = (HOOK, ALICE, "https://hooks.example.com/x", "s3", '["acquired"]', "job*", at(-5), 1)
    server, told = move(webhooks=[hook, (SHORT, ALICE, "https://hooks.example.com/y", None, '["*"]', None, at(-5), 0)])
    [shown] = bearer(server, "GET", "/webhooks", "tok-a").json
    assert (shown["id"], shown["secret"], shown["events"], shown["lock_pattern"]) == (
        HOOK,
        "****",
        ["acquired"],
        "job*",
    )
    assert bearer(server, "GET", "/webhooks", "tok-b").json == []
    assert told["octostore"]["webhooks"] == 1


def test_a_leader_keeps_its_term_until_it_ends(move: Any) -> None:
    said = '{"candidate_id":"agent-a","metadata":"m"}'
    server, _ = move(locks=[lock("__election/room-123", SHORT, 100, metadata=said)])
    found = server.ask("GET", "/elections/room-123", who=None).json
    assert (found["leader"]["candidate_id"], found["leader"]["term"]) == ("agent-a", 7)
    rival = server.ask("POST", "/elections/room-123/campaign", {"candidate_id": "agent-b"}, who=None)
    assert rival.json["status"] == "follower"


def test_the_admins_lock_is_the_admins(move: Any) -> None:
    server, _ = move(locks=[lock("job", NIL, 100)])
    headers = {"X-Admin-Key": "adm"}
    assert server.ask("POST", "/locks/job/renew", {"lease_id": LEASE}, who=None, headers=headers).status == 200
    assert bearer(server, "POST", "/locks/job/renew", "tok-a", {"lease_id": LEASE}).status == 400


def test_no_token_is_in_the_store_in_clear(tmp_path: Path, store: MemoryStore) -> None:
    lists = [("free", '{"acquire":["token:tok-listed"]}')]
    imported(
        store, database(tmp_path / "o.db", lock_acls=lists, users=[user(ALICE, "tok-bare", "tok-bare"), *USERS[1:]])
    )
    kept = repr([record.dump() for _, record in scan_records(store, "")])
    assert "tok-" not in kept
    assert {each.name for each in credentials(store)} >= {"bob"}


def test_with_githubs_sign_in_its_tokens_alone_are_taken(tmp_path: Path, store: MemoryStore) -> None:
    users = [user(ALICE, "Alice", "tok-a", source="oauth"), user(BOB, "bob", "tok-b", source="static")]
    told = imported(store, database(tmp_path / "o.db", users=users))
    assert [each.name for each in credentials(store)] == ["Alice"]
    assert "1 token that is not of GitHub's sign-in" in told["left"][0]


def test_an_older_database_lacks_what_it_did_not_have(tmp_path: Path, store: MemoryStore) -> None:
    older = {
        "users": "id TEXT, github_id INTEGER, github_username TEXT, token TEXT, created_at TEXT",
        "locks": "name TEXT, holder_id TEXT, lease_id TEXT, fencing_token INTEGER, expires_at TEXT, metadata TEXT, "
        "acquired_at TEXT",
        "fencing_counter": TABLES["fencing_counter"],
    }
    row, held = user(ALICE, "Alice", "tok-a"), lock("job", ALICE, 60)
    told = imported(store, database(tmp_path / "o.db", tables=older, users=[(*row[:4], row[6])], locks=[held[:7]]))
    assert (told["octostore"]["users"], told["octostore"]["locks"]) == (1, 1)


@pytest.mark.fault("F-780")
def test_what_sqlite_notes_for_itself_is_no_table_of_another_version(tmp_path: Path, store: MemoryStore) -> None:
    path = database(tmp_path / "o.db", locks=[lock("job", ALICE, 60)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE INDEX by_holder ON locks (holder_id)")
        db.execute("ANALYZE")  # makes sqlite_stat1
        db.commit()
    assert imported(store, path)["octostore"]["locks"] == 1


@pytest.mark.parametrize(
    ("tables", "rows", "why"),
    [
        (TABLES | {"locks": TABLES["locks"] + ", mode TEXT"}, {}, "the column mode of locks"),
        (TABLES | {"quotas": "id TEXT"}, {}, "the table quotas"),
        (TABLES | {"locks": "name TEXT"}, {}, "locks lacks holder_id"),
        (TABLES, {"users": [user(ALICE, "a", "t1"), user(BOB, "A", "t2")]}, "differ in case alone"),
        (TABLES, {"lock_acls": [("x", "not json")]}, "a row that OctoStore does not write"),
        (TABLES, {"lock_acls": [("x", '{"acquire":[]}')]}, "access list"),
        (TABLES, {"lock_acls": [("x", '{"acquire":["group:all"]}')]}, "access list"),
        (TABLES, {"lock_acls": [("x", '{"acquire":["user:a"],"deny":["user:b"]}')]}, "access list"),
        (TABLES, {"locks": [lock("x", "nobody", 60)]}, "a row that OctoStore does not write"),
        (TABLES, {"locks": [(*lock("x", ALICE, 60)[:4], None, *lock("x", ALICE, 60)[5:])]}, "a row that OctoStore"),
        (TABLES, {"fencing_counter": [(1, 2**60)]}, "out of bounds"),
        (TABLES, {"locks": [lock("\x00", ALICE, 60)]}, "name"),
        (TABLES, {"locks": [lock("to-1 ", ALICE, 60)]}, "cannot have the lock to-1 : .*blank.*release that lock"),
        (TABLES, {"lock_acls": [("x" * 513, '{"acquire":["user:a"]}')]}, "remove its access list"),
    ],
)
def test_what_it_does_not_understand_in_full_is_refused_whole(
    tmp_path: Path, store: MemoryStore, tables: dict[str, str], rows: dict[str, Any], why: str
) -> None:
    path = database(tmp_path / "o.db", tables=tables, **({} if tables is not TABLES else rows))
    with pytest.raises(InvalidInput, match=why):
        imported(store, path)
    assert list(scan_records(store, "")) == []


def test_a_database_that_is_cut_anywhere_is_refused_or_whole(tmp_path: Path, store: MemoryStore) -> None:
    whole = database(tmp_path / "o.db", locks=[lock(f"job-{number}", ALICE, 60) for number in range(300)])
    with open(whole, "rb") as file:
        content = file.read()
    for _ in range(tries(12, 300)):
        cut = tmp_path / "cut.db"
        cut.write_bytes(content[: random.randrange(16, len(content))])
        with pytest.raises(InvalidInput):
            imported(store, str(cut))
    assert list(scan_records(store, "")) == []


def test_a_database_that_a_server_has_open_is_refused(tmp_path: Path, store: MemoryStore) -> None:
    path = database(tmp_path / "o.db")
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM users').fetchall(); "
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "open\n"
        with pytest.raises(InvalidInput, match="is in use"):
            imported(store, path)
        server.communicate(timeout=WAIT_S_MAX)
    assert imported(store, path)["octostore"]["users"] == 2


def test_a_log_that_a_killed_server_left_is_read(tmp_path: Path, store: MemoryStore) -> None:
    path = database(tmp_path / "o.db")
    program = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA wal_autocheckpoint = 0'); "
        "db.execute('UPDATE fencing_counter SET counter = 77'); db.commit(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, path], check=False, timeout=WAIT_S_MAX).returncode == 9
    imported(store, path)
    assert isinstance(store.read((META_KEY,)).records[META_KEY].record, Meta)


def test_other_databases_and_ways_are_refused_with_what_to_do(tmp_path: Path, store: MemoryStore) -> None:
    other = database(tmp_path / "other.db", tables={"users": TABLES["users"], "fencing_counter": "id, counter"})
    with pytest.raises(InvalidInput, match="does not know"):
        imported(store, other)
    path = database(tmp_path / "o.db")
    with open(path, "rb") as file, pytest.raises(InvalidInput, match="--from FILE"):
        import_from(lambda: store, file, None, adds=False)
    with open(path, "rb") as file, pytest.raises(InvalidInput, match="empty store"):
        import_from(lambda: store, file, path, adds=True)
