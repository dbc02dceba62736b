"""A store whose files were deleted, moved or replaced under it does nothing more, and harms nobody who uses the new."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import StoreReplaced, StoreUnavailable
from dibs.stores import fork_safety
from dibs.stores.sqlite import SqliteStore, opener, rows
from dibs.stores.sqlite import file_identity as identity
from dibs.stores.sqlite import store as store_module
from dibs.stores.sqlite.file_identity import identity_of
from dibs.testing.contract_base import event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "dibs.db"


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[[], SqliteStore]]:
    opened: list[SqliteStore] = []

    def connect() -> SqliteStore:
        opened.append(SqliteStore(str(path)))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()


@pytest.fixture
def store(connect: Callable[[], SqliteStore]) -> SqliteStore:
    store = connect()
    put(store, lock("old", token=41), events=(event("old"),))
    return store


def delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        os.unlink(f"{path}{suffix}")


def move_away(path: Path) -> None:
    os.rename(path, f"{path}.old")


def put_another_in_its_place(path: Path) -> None:
    other = SqliteStore(f"{path}.other")
    put(other, lock("other"))
    other.close()
    os.rename(f"{path}.other", path)


def rename_the_folder(path: Path) -> None:
    os.rename(path.parent, f"{path.parent}.old")


def remove_the_log(path: Path) -> None:
    os.unlink(f"{path}-wal")


def remove_the_index(path: Path) -> None:
    os.unlink(f"{path}-shm")


def replace_the_log(path: Path) -> None:
    os.unlink(f"{path}-wal")
    shutil.copy(path, f"{path}-wal")


CALLS: list[Callable[[SqliteStore], object]] = [
    lambda store: store.read(()),
    lambda store: store.read([key_of("old")]),
    lambda store: store.commit({}, {}, ()),
    lambda store: store.scan("lock/"),
    lambda store: store.due(1),
    lambda store: store.due(0).next_ms,
    lambda store: store.events(0, 1),
    lambda store: store.watch(10**9, 0),
    lambda store: store.prune(keep=1, before_ms=0),
]


def let_the_folder_settle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had changed anything in it for an hour: its clock's tick is over, too."""
    monkeypatch.setattr(identity, "wall_ms", lambda: wall_ms() + 3_600_000)
    probe, until_ms = path.parent.parent / "probe", steady_ms() + 10_000
    while steady_ms() < until_ms:
        probe.touch()
        if probe.stat().st_ctime_ns > path.parent.stat().st_ctime_ns:
            return
    raise AssertionError("the file system's clock stands still")


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    "harm",
    [
        delete,
        move_away,
        put_another_in_its_place,
        rename_the_folder,
        remove_the_log,
        remove_the_index,
        replace_the_log,
    ],
)
def test_whoever_has_the_store_open_stops_and_says_so(
    store: SqliteStore,
    path: Path,
    harm: Callable[[Path], None],
    settled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if settled:
        let_the_folder_settle(path, monkeypatch)
        store.read(())
    harm(path)
    for call in CALLS * 2:
        with pytest.raises(StoreReplaced, match=r"deleted or replaced.*(restart|start)"):
            call(store)
    assert harm is put_another_in_its_place or not (path.exists() and harm in (delete, move_away))


def test_while_nothing_changes_in_the_folder_the_folder_alone_is_asked(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(name: str) -> os.stat_result:
        asked.extend([name] if name.startswith(str(path)) else [])
        return os.stat(name)

    monkeypatch.setattr(identity, "os", SimpleNamespace(stat=noted, path=os.path))
    monkeypatch.setattr(identity, "wall_ms", lambda: path.parent.stat().st_ctime_ns // 1_000_000)
    (path.parent / "something").touch()
    store.read(())
    assert len(asked) == 3, "something was made just now"
    let_the_folder_settle(path, monkeypatch)
    store.read(())
    asked.clear()
    store.read(())
    put(store, lock("new"))
    assert asked == []
    (path.parent / "something else").touch()
    store.read(())
    store.read(())
    assert len(asked) == 3


@pytest.mark.promise("token:rises")
def test_a_store_behind_a_link_is_watched_where_it_is(
    store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "dibs.db"
    link.symlink_to(path)
    through = SqliteStore(str(link))
    let_the_folder_settle(path, monkeypatch)
    through.read(())
    delete(path)
    with pytest.raises(StoreReplaced):
        through.read(())
    through.close()


def test_a_file_that_is_put_back_is_used_again(store: SqliteStore, path: Path) -> None:
    rename_the_folder(path)
    with pytest.raises(StoreReplaced):
        store.read(())
    os.rename(f"{path.parent}.old", path.parent)
    put(store, lock("new", token=42))
    assert [key for key, _ in store.scan("lock/")] == [key_of("new"), key_of("old")]


@pytest.mark.parametrize("harm", [delete, move_away])
def test_the_end_of_one_with_the_old_file_does_no_harm_to_the_new(
    store: SqliteStore, connect: Callable[[], SqliteStore], path: Path, harm: Callable[[Path], None]
) -> None:
    """SQLite's last connection removes the log by name: it would be the new file's."""
    harm(path)
    new = connect()
    put(new, lock("new"))
    with pytest.raises(StoreReplaced):
        store.read(())
    store.close()
    assert os.path.exists(f"{path}-wal")
    put(new, lock("another"))
    assert [key for key, _ in connect().scan("lock/")] == [key_of("another"), key_of("new")]


def test_a_process_that_ends_with_the_old_file_open_leaves_the_log_of_the_new(
    connect: Callable[[], SqliteStore], path: Path
) -> None:
    code = (
        "import sys\nfrom dibs.stores.sqlite import SqliteStore\nfrom dibs.testing.contract_base import lock, put\n"
        "store = SqliteStore(sys.argv[1])\nput(store, lock('old'))\nprint('open', flush=True)\nsys.stdin.readline()\n"
        "try:\n    store.read(())\nexcept Exception as error:\n    print(type(error).__name__, flush=True)\n"
        "store.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as old:
        assert old.stdin is not None
        assert old.stdout is not None
        assert old.stdout.readline() == "open\n"
        delete(path)
        new = connect()
        put(new, lock("new"))
        said, _ = old.communicate("\n", timeout=60)
    assert said == "StoreReplaced\n"
    assert os.path.exists(f"{path}-wal")
    assert [key for key, _ in connect().scan("lock/")] == [key_of("new")]


def test_a_commit_that_went_to_a_file_that_is_gone_is_not_a_yes(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes while the commit waits for its turn to write."""
    write = rows.write

    def too_late(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        delete(path)

    monkeypatch.setattr(store_module, "write", too_late)
    with pytest.raises(StoreUnavailable) as caught:
        put(store, lock("new"))
    assert caught.value.unknown


@pytest.mark.promise("token:rises")
def test_a_connection_that_is_opened_anew_does_not_take_another_file_for_its_own(
    store: SqliteStore, path: Path
) -> None:
    """The connection is closed for every fork; what is at the path afterwards may even have the same inode number."""
    fork_safety.before_fork()
    try:
        os.unlink(path)
        put_another_in_its_place(path)
        store._link._identity.main = (os.stat(path).st_dev, os.stat(path).st_ino)
    finally:
        fork_safety.after_fork()
    with pytest.raises(StoreReplaced):
        store.read(())


@pytest.mark.promise("token:rises")
def test_an_older_copy_that_is_written_over_the_file_is_noticed_when_it_is_opened_anew(
    store: SqliteStore, path: Path
) -> None:
    db = sqlite3.connect(path)
    db.execute("VACUUM INTO ?", (f"{path}.backup",))
    db.close()
    put(store, lock("new", token=42))
    fork_safety.before_fork()
    shutil.copyfile(f"{path}.backup", path)
    fork_safety.after_fork()
    with pytest.raises(StoreReplaced, match="older than before"):
        store.read(())


@pytest.fixture
def of_a_server(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """Moves its log into the file after each commit but the first."""
    monkeypatch.setattr(identity, "BELOW_LOOK_MS", 0)
    store = SqliteStore(str(path), checkpoint_pages=1)
    yield store
    store.close()


def written(store: SqliteStore, numbers: Iterable[int]) -> None:
    for number in numbers:
        put(store, lock(f"job-{number}", token=number), events=(event(f"job-{number}"),))
    assert store._checkpointer is not None
    store._checkpointer.close()


def in_the_file(path: Path) -> int:
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return int(db.execute("SELECT revision FROM counters").fetchone()[0])
    finally:
        db.close()


@pytest.mark.promise("token:rises")
@pytest.mark.fault("F-470")
@pytest.mark.parametrize("how", [shutil.copyfile, lambda old, path: Path(path).write_bytes(Path(old).read_bytes())])
def test_a_server_notices_an_older_copy_that_is_written_over_its_file(
    of_a_server: SqliteStore, path: Path, how: Callable[[str, Path], object]
) -> None:
    written(of_a_server, range(1, 10))
    before = in_the_file(path)
    shutil.copyfile(path, f"{path}.old")
    written(of_a_server, range(10, 20))
    assert in_the_file(path) > before, "the log was moved since"
    of_a_server.read(())
    how(f"{path}.old", path)
    of_a_server.read(())  # one look is not believed
    for call in CALLS * 2:
        with pytest.raises(StoreReplaced, match=r"older copy.*\n.*dibs restore"):
            call(of_a_server)


@pytest.mark.fault("F-470")
def test_checkpoints_of_others_are_not_taken_for_an_older_copy(
    of_a_server: SqliteStore, connect: Callable[[], SqliteStore], path: Path
) -> None:
    other = connect()
    for number in range(1, 60):
        put(other, lock(f"other-{number}"), events=(event("other"),))
        if number % 7 == 0:
            written(of_a_server, range(number, number + 3))
        if number % 11 == 0:
            db = sqlite3.connect(path)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            db.close()
        of_a_server.read(())
    assert of_a_server.trouble() is None


def looks_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often a store opens the file below its log, from now on."""
    opened: list[str] = []
    real = opener.connect

    def connect(path: str, wait_ms: int, how: str = "mode=rw") -> sqlite3.Connection:
        if "immutable" in how:
            opened.append(how)
        return real(path, wait_ms, how)

    monkeypatch.setattr(identity, "connect", connect)
    return opened


@pytest.mark.fault("F-510")
def test_a_new_file_with_all_of_its_tables_in_the_log_is_looked_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "BELOW_LOOK_MS", 0)
    store = SqliteStore(str(path), checkpoint_pages=1_000)
    put(store, lock("job", token=1), events=(event("job"),))
    os.utime(path, (1, 1))  # nobody has changed it for long
    looks = looks_of(monkeypatch)
    for _ in range(5):
        store.read(())
    assert len(looks) == 1
    os.utime(path, (2, 2))
    store.read(())
    assert len(looks) == 2
    store.close()


def test_the_file_is_looked_at_by_the_clock_of_its_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [steady_ms()]
    store = SqliteStore(str(path), checkpoint_pages=1_000, steady_ms=lambda: now_ms[0])
    looks = looks_of(monkeypatch)
    for _ in range(5):
        store.read(())
        store.read(())
        now_ms[0] += identity.BELOW_LOOK_MS
    assert len(looks) == 5
    store.close()


def test_each_file_has_an_id_of_its_own_that_a_copy_keeps(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.db", "b.db")]
    for path in paths:
        SqliteStore(path).close()
    paths.append(shutil.copyfile(paths[0], str(tmp_path / "copy.db")))
    ids = []
    for path in paths:
        db = sqlite3.connect(path)
        ids += db.execute("SELECT store_id FROM counters").fetchone()
        db.close()
    assert ids[0] == ids[2] != ids[1]
    assert len(ids[1]) == 32


def test_a_file_that_another_process_makes_at_this_very_moment_is_opened(
    connect: Callable[[], SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect().read(())  # it is there now
    looks = iter([None])  # as the first look saw it: nothing is there yet
    monkeypatch.setattr(identity, "identity_of", lambda path: next(looks, identity_of(path)))
    assert connect().read(()).now_ms > 0
