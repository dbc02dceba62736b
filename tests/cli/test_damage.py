"""One record that cannot be read costs only those who need it, and one command sets it aside: each kind of record."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.client.settings import connect_as
from dibs.core.commands import Acquire
from dibs.core.outcomes import Queued
from dibs.core.records import META_KEY
from dibs.engine.coordinator import Coordinator
from dibs.engine.token_floor import raise_floor
from dibs.stores.sqlite import SqliteStore
from dibs.testing.contract_base import key_of, lock, put
from tests.server.harness import running, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

HALF = '{"ns":"default","na'
# What is under the key, and what is of no use while it is damaged.
KINDS = [
    "lock/default/idle",
    "lock/default/held",
    "ticket/",
    "session/",
    "tree/default",
    "usage/",
    "credential/",
    "credentials",
    "webhooks",
    "webhook/",
    META_KEY,
]


@pytest.fixture
def outside(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal._open = connect_as  # type: ignore[method-assign, assignment]
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)
    terminal.env["DIBS_URL"] = f"sqlite://{tmp_path / 'dibs.db'}"
    monkeypatch.chdir(tmp_path)
    return terminal


def filled(terminal: Terminal) -> None:
    """A store with a record of each kind."""

    def run(*words: str) -> dict[str, object]:
        ran = terminal(*words, "--json")
        assert ran.exit in (0, 1), (words, ran.err)
        found: dict[str, object] = json.loads(ran.out)["data"]
        return found

    lease = run("claim", "idle")["lease_id"]
    run("release", "idle", "--lease", str(lease))
    run("claim", "held", "--ttl", "10m", "--actor", "worker")
    run("claim", "well", "--ttl", "10m")
    run("claim", "path:src/a.py", "--ttl", "10m")
    run("token", "create", "bob", "--max-held", "5")
    run("webhook", "add", "https://example.org/hook")
    store = SqliteStore(terminal.env["DIBS_URL"].removeprefix("sqlite://"))
    raise_floor(store, 5)
    waiting = Acquire(
        ns="default", name="well", owner="waits", principal="p", fresh_lease_id=new_id(), ttl_ms=600_000, wait=True
    )
    assert isinstance(Coordinator(store).one(waiting), Queued)
    store.close()


def keys_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [key for (key,) in db.execute("SELECT key FROM records ORDER BY key")]


def spoil(path: Path, key: str, text: str = HALF) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE records SET body = ? WHERE key = ?", (text, key))
        db.commit()


def damaged_key(path: Path, kind: str) -> str:
    """The first key of a kind, whose record is then half of one."""
    key = next(key for key in keys_of(path) if key == kind or (kind.endswith("/") and key.startswith(kind)))
    spoil(path, key)
    return key


@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-433")
@pytest.mark.parametrize("kind", KINDS)
def test_doctor_names_a_damaged_record_and_sets_it_aside_with_its_text_in_a_file(
    outside: Terminal, tmp_path: Path, kind: str
) -> None:
    filled(outside)
    path = tmp_path / "dibs.db"
    key = damaged_key(path, kind)
    told = outside("doctor")
    assert told.exit == 69
    assert key in told.out
    assert "backup" not in told.out.lower()
    before = keys_of(path)
    done = outside("doctor", "--set-aside", key, "--json")
    assert done.exit == 0, done.err
    kept = json.loads(done.out)["data"]["path"]
    assert json.loads(Path(kept).read_text()) == {"key": key, "text": HALF}
    assert Path(kept).stat().st_mode & 0o777 == 0o600
    assert {*before} - {*keys_of(path)} <= {key}
    assert "cannot be read" not in outside("doctor").out
    assert outside("claim", "another").exit == 0
    again = outside("doctor", "--set-aside", key)
    assert again.exit == 64
    assert "no damaged record" in again.err


@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-433")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != META_KEY])
def test_list_and_export_go_on_and_name_it_and_a_backup_is_refused(
    outside: Terminal, tmp_path: Path, kind: str
) -> None:
    filled(outside)
    key = damaged_key(tmp_path / "dibs.db", kind)
    listed = outside("list", "--all", "--json")
    assert listed.exit == 0, listed.err
    names = {each["name"] for each in json.loads(listed.out)["data"]["locks"]}
    assert {"held", "well", "path:src/a.py"} - names <= {key.rpartition("/")[2]}
    assert (key in listed.err) == key.startswith(("lock/", "session/"))
    exported = outside("export", "--to", str(tmp_path / "copy"))
    assert exported.exit == 0, exported.err
    assert key in exported.out
    there = {json.loads(line).get("key") for line in (tmp_path / "copy").read_text().splitlines()} - {None}
    assert there == {*keys_of(tmp_path / "dibs.db")} - {key}
    refused = outside("backup", str(tmp_path / "backup"))
    assert refused.exit == 69
    assert key in refused.err
    assert "--set-aside" in refused.err
    assert not (tmp_path / "backup").exists()
    forced = outside("backup", str(tmp_path / "backup"), "--damaged")
    assert forced.exit == 0
    assert key in forced.out


@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-433")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != META_KEY])
def test_a_server_starts_serves_all_others_and_its_health_notices(outside: Terminal, tmp_path: Path, kind: str) -> None:
    filled(outside)
    path = tmp_path / "dibs.db"
    key = damaged_key(path, kind)
    store = SqliteStore(str(path))
    with running(tmp_path, store=store) as server:
        assert server.acquire("another").status == 200
        assert server.ask("GET", "/locks/well").status == 200
        wait_until(lambda: server.ask("GET", "/health", who=None).json.get("damaged") == 1, "all records were read")
        health = server.ask("GET", "/health", who=None)
        assert (health.status, health.json["status"]) == (200, "ok")
        assert key not in health.body.decode()
        assert server.ask("GET", "/locks").status == 200
        assert outside("doctor", "--set-aside", key).exit == 0
        assert "damaged" not in server.ask("GET", "/health", who=None).json
        assert server.acquire("third").status == 200
    store.close()


@pytest.mark.promise("token:rises")
@pytest.mark.fault("F-433")
@pytest.mark.parametrize("kind", ["lock/default/held", META_KEY])
def test_fencing_tokens_rise_over_a_record_that_was_set_aside(outside: Terminal, tmp_path: Path, kind: str) -> None:
    filled(outside)
    path, above = tmp_path / "dibs.db", 10**14
    spoil(path, kind, f'{{"ns":"default","token":{above},"token_floor":{above}')
    assert outside("doctor", "--set-aside", kind).exit == 0
    claimed = outside("claim", "held" if kind.startswith("lock") else "new", "--json")
    assert json.loads(claimed.out)["data"]["fencing_token"] > above


@pytest.mark.fault("F-433")
def test_without_the_record_of_the_floor_nothing_is_decided_and_gc_says_so(outside: Terminal, tmp_path: Path) -> None:
    filled(outside)
    spoil(tmp_path / "dibs.db", META_KEY)
    for words in (("claim", "x"), ("gc",), ("export", "--to", str(tmp_path / "copy"))):
        ran = outside(*words)
        assert ran.exit == 69, words
        assert "dibs doctor --set-aside meta" in ran.err


@pytest.mark.fault("F-433")
def test_text_that_is_not_utf_8_is_a_damaged_record_too(outside: Terminal, tmp_path: Path) -> None:
    filled(outside)
    path = tmp_path / "dibs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE records SET body = CAST(x'7bff22' AS TEXT) WHERE key = 'lock/default/idle'")
        db.commit()
    assert "lock/default/idle" in outside("doctor").out
    assert outside("claim", "idle").exit == 69
    assert outside("list", "--all").exit == 0
    assert outside("doctor", "--set-aside", "lock/default/idle").exit == 0
    assert outside("claim", "idle").exit == 0


def test_a_page_with_damaged_records_is_as_long_as_any(tmp_path: Path) -> None:
    """Whoever reads page by page takes a short one for the last."""
    path = str(tmp_path / "dibs.db")
    store = SqliteStore(path)
    for number in range(12):
        put(store, lock(f"{number:02}"))
    for number in (0, 1, 2, 5, 11):
        spoil(Path(path), key_of(f"{number:02}"))
    store.close()
    store = SqliteStore(path)
    pages, after = [], ""
    while page := store.scan("lock/", after, 3):
        after = page[-1][0]
        pages.append([key for key, _ in page])
    assert [len(page) for page in pages] == [3, 3, 1]
    assert store.damaged() == [key_of(f"{number:02}") for number in (0, 1, 2, 5, 11)]
    store.close()


@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-471")
@pytest.mark.parametrize("which", ["first", "last"])
def test_one_event_that_cannot_be_read_is_left_out_named_and_set_aside(
    outside: Terminal, tmp_path: Path, which: str
) -> None:
    filled(outside)
    path = tmp_path / "dibs.db"
    with closing(sqlite3.connect(path)) as db:
        numbers = [seq for (seq,) in db.execute("SELECT seq FROM events WHERE job = 'idle' ORDER BY seq")]
        count = db.execute("SELECT count(*) FROM events").fetchone()[0]
        seq = {"first": numbers[0], "last": numbers[-1]}[which]
        db.execute("UPDATE events SET body = CAST(x'7bff22' AS TEXT) WHERE seq = ?", (seq,))
        db.commit()
    key = f"event/{seq}"
    told = outside("doctor")
    assert told.exit == 69
    assert key in told.out
    history = outside("history", "idle", "--json")
    assert history.exit == 0, history.err
    assert key in history.err
    assert [each["seq"] for each in json.loads(history.out)["data"]["events"]] == [
        each for each in numbers if each != seq
    ]
    exported = outside("export", "--to", str(tmp_path / "copy"))
    assert exported.exit == 0, exported.err
    assert key in exported.out
    assert (tmp_path / "copy").read_text().count('{"event":') == count - 1
    assert key in outside("backup", str(tmp_path / "backup")).err
    store = SqliteStore(str(path))
    with running(tmp_path, store=store) as server:
        assert server.acquire("another").status == 200
        found = server.ask("GET", "/events?after=0&limit=1000").json
        assert seq not in {each["seq"] for each in found["events"]}
        done = outside("doctor", "--set-aside", key, "--json")
        assert done.exit == 0, done.err
        kept = json.loads(Path(json.loads(done.out)["data"]["path"]).read_text())
        assert kept["key"] == key
        assert server.acquire("third").status == 200
        assert server.ask("GET", "/health", who=None).json["status"] == "ok"
    store.close()
    assert outside("doctor", "--set-aside", key).exit == 64
    assert "cannot be read" not in outside("doctor").out
    assert outside("claim", "fourth").exit == 0
    assert outside("import", "--from", str(tmp_path / "copy"), "--url", f"sqlite://{tmp_path / 'new.db'}").exit == 0


@pytest.mark.parametrize("key", ["event/", "event/x", "event/99999999999999999999", "event/-1", "event/\u0661"])
def test_no_event_is_set_aside_that_is_none(outside: Terminal, key: str) -> None:
    filled(outside)
    refused = outside("doctor", "--set-aside", key)
    assert refused.exit == 64
    assert "no damaged record" in refused.err
