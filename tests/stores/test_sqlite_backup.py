"""Backups: made beside others, put in place when nobody is there, whole whatever is killed."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput, StoreFull, StoreUnavailable
from dibs.base.ids import new_id
from dibs.client.store_admin import backup, restore
from dibs.core.commands import Acquire, Identify, Inspect
from dibs.core.lease_outcomes import Identified
from dibs.core.outcomes import Granted, Status
from dibs.core.service.credentials import CreateToken, RevokeToken, RotateToken, credential_key
from dibs.engine.coordinator import Coordinator
from dibs.engine.credentials import credentials
from dibs.engine.event_log import EventFilter, read_page
from dibs.stores.memory import MemoryStore
from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dibs.db")


@pytest.fixture
def copy(tmp_path: Path) -> str:
    return str(tmp_path / "copy.db")


def opened(path: str, clock: ManualClock | None = None) -> SqliteStore:
    if clock is None:
        return SqliteStore(path)
    return SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)


def owners(path: str) -> list[str]:
    """Whose lease the job `short` is, as it is now."""
    store = SqliteStore(path)
    status = Coordinator(store).one(Inspect(ns="default", name="short"))
    store.close()
    assert isinstance(status, Status)
    return [each.lease_id for each in status.lock.holders if each.expires_ms > status.now_ms]


def claim(path: str, name: str, ttl_ms: int = 3_600_000, clock: ManualClock | None = None) -> int:
    """Claim a job there, and give its fencing token."""
    store = opened(path, clock)
    try:
        outcome = Coordinator(store).one(
            Acquire(
                ns="default",
                name=name,
                principal="team",
                owner="a1",
                ttl_ms=ttl_ms,
                fresh_lease_id=f"lease-{name}",
            )
        )
    finally:
        store.close()
    assert isinstance(outcome, Granted), outcome
    return outcome.lease.token


def held(path: str) -> set[str]:
    store = SqliteStore(path)
    try:
        return {key.removeprefix("lock/default/") for key, _ in store.scan("lock/", live=True)}
    finally:
        store.close()


def back_up(path: str, copy: str) -> None:
    store = SqliteStore(path)
    try:
        backup(store, copy)
    finally:
        store.close()


def test_a_backup_is_made_while_others_write_and_is_one_plain_file(path: str, copy: str) -> None:
    claim(path, "one")
    server = SqliteStore(path)
    server.read(())
    back_up(path, copy)
    claim(path, "two")
    assert os.stat(copy).st_mode & 0o777 == 0o600
    assert sorted(os.listdir(os.path.dirname(copy))) == ["copy.db", "dibs.db", "dibs.db-shm", "dibs.db-wal"]
    server.close()
    assert held(copy) == {"one"}
    store = SqliteStore(path)
    with pytest.raises(InvalidInput, match="is there already"):
        backup(store, copy)
    store.close()
    with pytest.raises(InvalidInput, match="memory store"):
        backup(MemoryStore(lambda: 0), copy + "2")


@pytest.mark.promise("token:rises")
def test_tokens_after_a_restore_are_above_all_given_out_since_also_when_it_is_restored_again(
    path: str, copy: str
) -> None:
    claim(path, "one")
    back_up(path, copy)
    since = claim(path, "two")
    restore(copy, path)
    assert held(path) == {"one"}
    assert (first := claim(path, "two")) > since
    os.unlink(path)
    restore(copy, path)  # nothing is there to look at
    assert (second := claim(path, "two")) > first
    with open(path, "r+b") as file:
        file.write(b"x" * 4096)
    restore(copy, path)  # nothing that can be read
    assert claim(path, "two") > second


def test_events_and_versions_go_on_above_those_of_the_file_that_is_replaced(path: str, copy: str) -> None:
    claim(path, "one")
    back_up(path, copy)
    for number in range(5):
        claim(path, f"more-{number}")
    store = SqliteStore(path)
    (last,) = store.events(0, 1, newest=True)
    store.close()
    restore(copy, path)
    store = SqliteStore(path)
    (newest,) = store.events(0, 1, newest=True)
    assert newest.seq > last.seq
    store.close()


@pytest.mark.promise("events:told")
@pytest.mark.fault("F-076")
@pytest.mark.parametrize("limit", [1, 7, 1_000])
@pytest.mark.parametrize("at", [0, 90, 100, 101, 150, 200])
@pytest.mark.parametrize("old", ["there", "lost", "damaged"])
@pytest.mark.fault("F-415")
def test_who_follows_is_told_of_what_a_restore_took_away(path: str, copy: str, old: str, at: int, limit: int) -> None:
    store = SqliteStore(path)
    store.commit({}, {}, [event("job") for _ in range(100)])
    backup(store, copy)
    store.commit({}, {}, [event("job") for _ in range(100)])
    store.close()
    if old == "lost":
        os.unlink(path)
    elif old == "damaged":
        with open(path, "r+b") as file:
            file.write(b"x" * 4096)
    restore(copy, path)
    store = SqliteStore(path)
    store.commit({}, {}, [event("job") for _ in range(3)])
    position, got, gaps = at, list[int](), list[tuple[int, int]]()
    while True:
        page = read_page(store, position, limit)
        if page.oldest is not None:
            gaps.append((position, page.oldest))
        got += [each.seq for each in page.events]
        position = page.upto
        if page.is_last:
            break
    first = store.newest_seq() - 3  # the outage that the restore was
    assert first > 200
    assert got == [*range(at + 1, 101), *range(first, first + 4)]
    assert gaps == [(max(at, 100), first)]
    if at >= 100:
        job = read_page(store, at, limit, EventFilter(ns="default", name="job"))
        assert job.oldest == first
    store.close()


def test_who_was_live_at_the_backup_has_one_chance_to_renew(path: str, copy: str) -> None:
    clock = ManualClock(wall_ms=wall_ms() - 3_600_000)  # the backup is an hour old
    claim(path, "short", 60_000, clock)
    back_up(path, copy)
    assert owners(path) == []
    restore(copy, path)
    assert owners(path) == ["lease-short"]


@pytest.fixture
def user(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the store open."""
    claim(path, "one")
    program = (
        "import sys; from dibs.stores.sqlite import SqliteStore; store = SqliteStore(sys.argv[1]); store.read(());"
        " print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    yield process
    process.kill()
    process.wait(WAIT_S_MAX)
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_restore_is_refused_while_another_process_has_the_store_open(
    path: str, copy: str, user: subprocess.Popen[bytes], is_stopped: bool, is_damaged: bool
) -> None:
    back_up(path, copy)
    if is_stopped:
        user.send_signal(signal.SIGSTOP)
    if is_damaged:
        with open(path, "r+b") as file:
            file.write(b"x" * 100)
    before = sorted(os.listdir(os.path.dirname(path)))
    with pytest.raises(StoreUnavailable, match="open in another process"):
        restore(copy, path)
    assert sorted(os.listdir(os.path.dirname(path))) == before
    user.kill()
    user.wait(WAIT_S_MAX)
    restore(copy, path)
    assert held(path) == {"one"}


def test_what_is_no_backup_is_refused_and_what_is_no_store_is_left_alone(path: str, copy: str) -> None:
    claim(path, "one")
    back_up(path, copy)
    other = copy + "-other"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE mine (a)")
    db.close()
    open(copy + "-empty", "w").close()
    for wrong, why in (
        (other, "another program"),
        (path, "the store itself"),
        (copy + "-no", "not a file"),
        (copy + "-empty", "is empty"),
    ):
        with pytest.raises(InvalidInput, match=why):
            restore(wrong, path)
    with pytest.raises(InvalidInput, match="another program"):
        restore(copy, other)
    with open(copy, "r+b") as file:
        file.truncate(20_000)
    with pytest.raises(InvalidInput, match=f"{copy} is damaged, .*. Name another backup. Nothing was changed."):
        restore(copy, path)
    assert held(path) == {"one"}
    assert not [name for name in os.listdir(os.path.dirname(path)) if name.startswith(".")]  # as drafts do


KILLED = """
import os, sys
from dibs.client import store_admin as store_backup
from dibs.stores.sqlite import backup as steps
at, copy, path = sys.argv[1:]
def dies(*given, **more):
    os.kill(os.getpid(), 9)
if at == "after":
    rename = os.rename
    os.rename = lambda *given: dies(rename(*given))
else:
    setattr(store_backup if at in ("run_one", "sync") else steps, at, dies)
store_backup.restore(copy, path)
"""


@pytest.mark.fault("F-742")
@pytest.mark.parametrize("at", ["copy", "raise_counters", "run_one", "take_over_owner", "sync", "keep_aside", "after"])
def test_a_restore_that_is_killed_leaves_the_old_store_or_the_new_one(path: str, copy: str, at: str) -> None:
    claim(path, "one")
    back_up(path, copy)
    claim(path, "two")
    killed = subprocess.run([sys.executable, "-c", KILLED, at, copy, path], timeout=WAIT_S_MAX, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert held(path) == ({"one"} if at == "after" else {"one", "two"})
    claim(path, "three")
    restore(copy, path)
    assert held(path) == {"one"}
    assert not [name for name in os.listdir(os.path.dirname(path)) if name.startswith(".")]  # as drafts do


def test_a_full_disk_leaves_the_old_store_and_no_half_of_a_copy(path: str, copy: str, small_disk: Path) -> None:
    for number in range(60):
        claim(path, f"job-{number}")
    back_up(path, copy)
    target = str(small_disk / "dibs.db")
    claim(target, "one")
    (small_disk / "full").write_bytes(b"x" * (1024 * 1024 - 40 * 1024 - os.stat(target).st_size))
    with pytest.raises(StoreFull, match=str(small_disk)):
        restore(copy, target)
    with pytest.raises(StoreFull, match=str(small_disk)):
        back_up(path, str(small_disk / "copy.db"))
    assert sorted(os.listdir(small_disk)) == ["dibs.db", "full"]
    (small_disk / "full").unlink()
    assert held(target) == {"one"}


def test_the_old_file_is_kept(path: str, copy: str) -> None:
    claim(path, "one")
    back_up(path, copy)
    claim(path, "two")
    kept = restore(copy, path)["kept"]
    assert held(kept) == {"one", "two"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_a_restored_file_belongs_to_whom_the_old_one_belonged_to(path: str, copy: str) -> None:
    claim(path, "one")
    back_up(path, copy)
    os.chown(path, 12_345, 12_346)
    restore(copy, path)
    assert (os.stat(path).st_uid, os.stat(path).st_gid) == (12_345, 12_346)


def test_where_files_have_one_name_only_a_backup_is_made_and_a_restore_says_what_to_do(
    path: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(path, "one")

    def refused(old: str, _: str) -> None:
        os.stat(old)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    back_up(path, copy)
    with pytest.raises(InvalidInput, match="is there already"):
        back_up(path, copy)
    assert held(copy) == {"one"}
    with pytest.raises(StoreUnavailable, match="Move it away yourself"):
        restore(copy, path)
    assert held(path) == {"one"}
    os.rename(path, f"{path}.old")
    restore(copy, path)
    assert held(path) == {"one"}
    assert sorted(os.listdir(os.path.dirname(path))) == ["copy.db", "dibs.db", "dibs.db.old"]


def names(path: str, fresh: str = "") -> tuple[str, tuple[str, ...]]:
    """The name of the store, as a server that starts on it learns it, and the names of those that it goes on from."""
    store = SqliteStore(path)
    told = Coordinator(store).one(Identify(fresh_id=fresh or new_id()))
    store.close()
    assert isinstance(told, Identified)
    return told.store_id, told.moved_from


@pytest.mark.promise("servers:one-store")
@pytest.mark.fault("F-421")
@pytest.mark.parametrize("old", ["there", "lost", "damaged"])
def test_a_restored_file_is_a_store_of_its_own_and_goes_on_from_the_one_that_it_replaces(
    path: str, copy: str, old: str
) -> None:
    claim(path, "one")
    assert names(path, "first") == ("first", ())
    back_up(path, copy)
    elsewhere = f"{path}-elsewhere"
    restore(copy, elsewhere)
    name, before = names(elsewhere)
    assert (name != "first", before, names(path)) == (True, (), ("first", ()))
    if old == "lost":
        os.unlink(path)
    elif old == "damaged":
        with open(path, "r+b") as file:
            file.write(b"x" * 4096)
    restore(copy, path)
    second, before = names(path)
    # Nobody knows whether the store that was copied lives on elsewhere, if its file is not here.
    assert before == (("first",) if old == "there" else ())
    assert len({"first", name, second}) == 3
    restore(copy, path)
    third, before = names(path)
    assert before == (second, *(("first",) if old == "there" else ()))
    assert third not in before


def valid(path: str) -> set[str]:
    store = SqliteStore(path)
    now_ms = store.read(()).now_ms
    found = {each.digest for each in credentials(store) if not each.is_over(now_ms)}
    store.close()
    return found


def change(path: str, *commands: Any) -> None:
    store = SqliteStore(path)
    for command in commands:
        Coordinator(store).one(command)
    store.close()


@pytest.mark.promise("auth:revoked")
@pytest.mark.fault("F-422")
@pytest.mark.parametrize("old", ["there", "lost", "damaged"])
def test_a_restore_revives_no_token_that_the_old_file_knows_to_be_over_and_says_which_it_may(
    path: str, copy: str, old: str
) -> None:
    made = ("stays", "revoked", "rotated", "in-grace")
    change(path, *[CreateToken(digest=name * 3, name=name, by="root") for name in made])
    back_up(path, copy)
    change(
        path,
        RevokeToken(digest="revoked" * 3, by="root"),
        RotateToken(digest="rotated" * 3, fresh_digest="fresh", by="root", grace_ms=0),
        RotateToken(digest="in-grace" * 3, fresh_digest="next", by="root", grace_ms=1),
        CreateToken(digest="since", name="since", by="root"),
    )
    if old == "lost":
        os.unlink(path)
    elif old == "damaged":
        with open(path, "r+b") as file:
            file.write(b"x" * 4096)
    done = restore(copy, path)
    back = [each["principal"] for each in done["tokens_back"]]
    if old == "there":
        assert valid(path) == {"stays" * 3, "fresh", "next", "since"}
        assert (done["tokens_kept"], back) == (True, [])
    else:
        assert valid(path) == {name * 3 for name in made}
        assert (done["tokens_kept"], back) == (False, sorted(made))


@pytest.mark.fault("F-422")
def test_tokens_that_the_old_file_has_forgotten_or_never_had_are_named(path: str, copy: str) -> None:
    change(
        path, CreateToken(digest="forgotten", name="bob", by="root"), CreateToken(digest="kept", name="eve", by="root")
    )
    back_up(path, copy)
    store = SqliteStore(path)
    key = credential_key("forgotten")
    store.commit({key: store.read((key,)).records[key].version}, {key: None}, ())
    store.close()
    done = restore(copy, path)
    assert done["tokens_back"] == [{"id": "forgotten", "principal": "bob"}]
    assert done["tokens_kept"]
