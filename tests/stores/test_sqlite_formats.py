"""Files of every earlier format open, and go on from where they were. `formats/` has one of each, as SQL."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core.commands import Acquire, Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Granted, Queued
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore, backup
from dibs.stores.sqlite import driver as fileformat
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import key_of

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome

FORMATS = Path(__file__).parent / "formats"
VERSIONS = range(1, fileformat.VERSION)
LAST_MS = 120  # after the first second of the file: when it was last written


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def path(tmp_path: Path, version: int) -> str:
    path = str(tmp_path / "dibs.db")
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript((FORMATS / f"version-{version}.sql").read_text(encoding="utf-8"))
    db.close()
    return path


def version_of(path: str) -> int:
    db = sqlite3.connect(path)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    assert isinstance(version, int)
    return version


def opened(path: str) -> SqliteStore:
    clock = ManualClock()
    clock.advance(LAST_MS)
    return SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)


def acquire(store: SqliteStore, name: str, **more: object) -> Outcome:
    command = Acquire(
        ns="default", name=name, principal="p", owner="agent-9", ttl_ms=60_000, fresh_lease_id="new"
    )
    return Coordinator(store).one(command.replace(**more))


def test_there_is_a_file_of_every_earlier_format() -> None:
    assert sorted(each.name for each in FORMATS.iterdir()) == [f"version-{number}.sql" for number in VERSIONS]


@pytest.mark.promise("token:rises")
def test_it_keeps_its_jobs_its_line_and_its_history_and_numbers_go_on(path: str) -> None:
    store = opened(path)
    assert [key for key, _ in store.scan("", live=True)] == [
        key_of("held"),
        key_of("waited"),
        "session/open",
    ]
    assert [each.token for each in store.events(0, 100, ("default", "idle"))] == [1, 1, 2, 2, 3, 3, 4, 4]
    granted = acquire(store, "idle")
    assert isinstance(granted, Granted)
    assert granted.lease.token == 5
    queued = acquire(store, "waited", wait=True)
    assert isinstance(queued, Queued)
    assert queued.position == 2
    assert store.events(0, 1, newest=True)[0].seq == 14
    renewed = Coordinator(store).one(Renew(ns="default", name="held", principal="p", lease_id="lease-1"))
    assert isinstance(renewed, Renewed)
    versions = [found.version for _, found in store.scan("lock/")]
    assert sorted(versions) == [14, 15, 16]  # the file's last one was 13
    store.close()
    assert version_of(path) == fileformat.VERSION


def test_its_counters_are_read_without_bringing_it_up_to_date(path: str, version: int) -> None:
    """A file that `dibs restore` replaces is not opened before."""
    with backup.sole_use(path) as found:
        assert found is not None
        assert (found.revision, found.last_seq, found.token) == (13, 12, 4)
    assert version_of(path) == version


def test_a_file_that_cannot_be_written_stays_as_it_is_and_the_error_says_so(
    path: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite3.connect
    monkeypatch.setattr(
        "dibs.stores.sqlite.opener.FileOpener._connect",
        lambda self, how: real(f"file:{self.path}?mode=ro", uri=True, isolation_level=None),
    )
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        SqliteStore(path)
    assert version_of(path) == version


_STOPS_IN_THE_MIDDLE = """
import sys, time
from dibs.stores.sqlite import SqliteStore, schema
from dibs.stores.sqlite import schema as blocks

def register(db):
    blocks.register(db)
    db.create_function("stop", 0, lambda: (print("here", flush=True), time.sleep(60)))

known, schema.register = schema.MIGRATIONS, register
schema.MIGRATIONS = (*known[:-1], (*known[-1], "SELECT stop()"))
SqliteStore(sys.argv[1])
"""


@pytest.mark.promise("durable")
def test_a_process_killed_in_the_middle_changes_nothing(path: str, version: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", _STOPS_IN_THE_MIDDLE, path], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"here\n"
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    assert version_of(path) == version
    store = opened(path)
    assert [key for key, _ in store.scan("lock/", live=True)] == [key_of("held"), key_of("waited")]
    store.close()
    assert version_of(path) == fileformat.VERSION
