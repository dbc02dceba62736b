"""Files that cannot be used, or not now: each says what is wrong and what to do, and nothing is overwritten."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput, StoreCorrupt, StoreFull, StoreTooNew, StoreTooOld, StoreUnavailable
from dibs.base.ids import new_id
from dibs.client.store_admin import backup, restore
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.codec import FORMAT
from dibs.stores.sqlite import SqliteStore, opener
from dibs.stores.sqlite import errors as trouble
from dibs.stores.sqlite.rows import PROGRESS
from dibs.testing.contract_base import event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dibs.db"


def filled(path: Path, count: int = 400) -> None:
    store = SqliteStore(str(path))
    put(store, *[lock(f"job-{number:04}") for number in range(count)], events=(event("job-0000"),))
    store.close()


def test_the_file_its_log_and_its_new_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "dibs.db"
    store = SqliteStore(str(path))
    put(store, lock("x"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("dibs.db", "dibs.db-wal", "dibs.db-shm"), 0o600)
    store.close()


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "what?.db", "no#1.db", "é😀.db", "a%20b.db", "x&y=z.db"])
def test_any_file_name_is_taken_as_it_stands(tmp_path: Path, name: str) -> None:
    filled(tmp_path / name, 1)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_an_empty_file_is_made_a_store(path: Path) -> None:
    path.touch()
    filled(path, 1)
    store = SqliteStore(str(path))
    assert store.scan("lock/")
    store.close()


def test_a_file_from_a_newer_dibs_is_refused_with_both_versions(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 77")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=rf"newer dibs.*format is 77.*up to {FORMAT}.*Upgrade"):
        SqliteStore(str(path))
    assert path.read_bytes() == before


@pytest.mark.fault("F-430")
@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_file_of_the_first_version_is_refused_with_its_version_and_the_way_out(path: Path, number: int) -> None:
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {number}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooOld, match=r"written by dibs 0\.1\.0,.*\n.*dibs export.*with dibs 0\.1\.0"):
        SqliteStore(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"just some text, nothing else\n" * 300, b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 4096, b"x"],
)
def test_what_is_not_a_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"is not an SQLite file.*Nothing was changed"):
        SqliteStore(str(path))
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE state (theirs)")
        db.execute("INSERT INTO state VALUES (1)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="of another program"):
        SqliteStore(str(path))
    assert path.read_bytes() == before


def test_a_damaged_header_is_refused(path: Path) -> None:
    filled(path)
    content = bytearray(path.read_bytes())
    content[:40] = os.urandom(40)
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="Restore a backup"):
        SqliteStore(str(path))
    assert path.read_bytes() == content


@pytest.mark.promise("damage:told")
def test_a_damaged_page_is_noticed_when_it_is_read(path: Path) -> None:
    filled(path)
    content = bytearray(path.read_bytes())
    for page in range(4, len(content) // 2048, 4):
        content[page * 2048 : page * 2048 + 2048] = b"\xee" * 2048
    path.write_bytes(content)
    store = None
    with pytest.raises(StoreCorrupt, match=r"damaged.*Restore a backup"):  # noqa: PT012 - either may notice
        store = SqliteStore(str(path))
        store.scan("lock/", limit=10_000)
    if store is not None:
        store.close()


@pytest.mark.parametrize("body", ["{", "[]", "7", '"text"', '{"name": "no namespace"}', ""])
def test_a_record_that_is_none_is_refused_by_name(path: Path, body: str) -> None:
    filled(path, 1)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET body = ?", (body,))
    db.close()
    store = SqliteStore(str(path))
    with pytest.raises(StoreCorrupt, match="lock/default/job-0000"):
        store.read([key_of("job-0000")])
    store.close()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"is a folder\. Name a file in it"):
        SqliteStore(str(tmp_path))


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="file is not a folder"):
        SqliteStore(str(tmp_path / "file" / "deeper" / "dibs.db"))


def test_half_a_surrogate_pair_is_bad_input_and_changes_nothing(path: Path) -> None:
    store = SqliteStore(str(path))
    with pytest.raises(InvalidInput, match="UTF-8"):
        store.commit({key_of("x"): 0}, {key_of("x"): lock("x").replace(name="\ud800")}, ())
    with pytest.raises(InvalidInput, match="UTF-8"):
        store.scan("lock/default/\udcff")
    put(store, lock("x"))
    store.close()


def test_a_file_that_another_keeps_locked_is_unavailable_after_a_bounded_wait(path: Path) -> None:
    store = SqliteStore(str(path), busy_ms=50)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"in use by .*process.* for more than 0.05 seconds") as caught:
        put(store, lock("x"))
    assert not caught.value.unknown
    assert store.scan("lock/") == []  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    put(store, lock("x"))
    store.close()


def test_a_store_that_was_closed_says_so(path: Path) -> None:
    store = SqliteStore(str(path))
    store.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.read(())


def fill_up(store: SqliteStore) -> int:
    """Write until there is no room; how many commits were acknowledged."""
    for number in range(100_000):
        try:
            put(store, lock(f"job-{number}"), events=(event(f"job-{number}"),))
        except StoreFull as error:
            return number if "full" in error.details and store.path in error.details else 0
    raise AssertionError("it never became full")


@pytest.mark.promise("durable")
def test_a_file_that_may_not_grow_is_full_and_keeps_what_it_has(path: Path) -> None:
    store = SqliteStore(str(path))
    with store._link as db:
        db.execute("PRAGMA max_page_count = 40")
    count = fill_up(store)
    assert len(store.scan("lock/", limit=count + 1)) == len(store.events(0, count + 1)) == count > 0
    with store._link as db:
        db.execute("PRAGMA max_page_count = 4000")
    put(store, lock("after"))
    store.close()


def test_a_file_size_limit_of_the_process_is_reported_and_what_is_there_can_be_read(path: Path) -> None:
    code = (
        "import resource, signal, sys\nfrom dibs.stores.sqlite import SqliteStore\n"
        "from dibs.testing.contract_base import lock, put\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "store = SqliteStore(sys.argv[1])\nput(store, lock('first'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))\n"
        "try:\n    for number in range(10_000): put(store, lock(f'job-{number}'))\n"
        "except Exception as error: print(type(error).__name__, type(store.trouble()).__name__)\n"
        "print(store.scan('lock/default/first')[0][0])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "put(store, lock('after'))\nprint(store.trouble())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.splitlines() == ["StoreUnavailable StoreUnavailable", key_of("first"), "None"], ran.stderr


@pytest.mark.promise("damage:told")
@pytest.mark.promise("durable")
def test_a_full_disk_is_reported_keeps_what_was_acknowledged_and_is_used_again_when_there_is_room(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    store = SqliteStore(str(small_disk / "dibs.db"))
    count = fill_up(store)
    assert count > 0
    other = SqliteStore(str(small_disk / "dibs.db"))
    for each in (store, other):
        assert len(each.scan("lock/", limit=count + 1)) == len(each.events(0, count + 1)) == count
    ballast.unlink()
    put(store, lock("after"), events=(event("after"),))
    assert [each.seq for each in other.events(count, 10)] == [count + 1]
    store.close()
    other.close()


def test_a_file_that_a_newer_version_migrates_meanwhile_is_reported_and_left_alone(path: Path) -> None:
    store = SqliteStore(str(path))
    put(store, lock("x"))
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"DROP VIEW {PROGRESS}")
    with pytest.raises(StoreUnavailable, match="a newer dibs has brought it up to date"):
        put(store, lock("y"))
    assert [key for key, _ in store.scan("lock/")] == [key_of("x")]
    store.close()


def test_an_io_error_at_the_commit_leaves_its_outcome_unknown(path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    told = trouble.translate(error, str(path), 1, unknown=True)
    assert isinstance(told, StoreUnavailable)
    assert told.unknown


# Permissions. They do not bind root, so root's tests become somebody else for a moment.


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-perm-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_somebody_else(work: Callable[[], str]) -> str:
    """What `work` says when it is not root that asks: in a child, because there is no way back."""
    if os.geteuid() != 0:
        return work()
    for late in (trouble,):  # somebody else may not be able to read our Python files
        assert late.__name__ in sys.modules
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writes, work().encode())
        except BaseException as error:
            os.write(writes, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer


def claim(path: Path) -> str:
    command = Acquire(ns="default", name="x", principal="p", owner="o", ttl_ms=1000, fresh_lease_id=new_id())
    try:
        outcome = Coordinator(SqliteStore(str(path))).one(command)
    except StoreUnavailable as error:
        return error.details
    return type(outcome).__name__


def listed(path: Path) -> str:
    try:
        return " ".join(key for key, _ in SqliteStore(str(path)).scan("lock/"))
    except StoreUnavailable as error:
        return error.details


@pytest.mark.fault("F-337")
def test_what_root_makes_in_the_folder_of_a_service_is_the_services(open_folder: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(open_folder, NOBODY, NOBODY)
    path = open_folder / "state" / "dibs" / "dibs.db"
    store = SqliteStore(str(path))
    put(store, lock("y"))
    beside = [path.with_name(f"dibs.db{end}") for end in ("", "-wal", "-shm")]
    owners = {(file.stat().st_uid, file.stat().st_gid) for file in (path.parent.parent, path.parent, *beside)}
    assert owners == {(NOBODY, NOBODY)}
    copy = str(tmp_path / "copy.db")
    backup(store, copy)
    store.close()
    assert as_somebody_else(lambda: claim(path)) == "Granted"
    restore(copy, str(open_folder / "restored.db"))
    assert as_somebody_else(lambda: claim(open_folder / "restored.db")) == "Granted"
    own = SqliteStore(str(tmp_path / "own.db"))
    put(own, lock("x"))
    assert (tmp_path / "own.db").stat().st_uid == 0
    own.close()


def test_a_folder_that_cannot_be_made_says_where_nothing_can_be_written(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    answer = as_somebody_else(lambda: claim(open_folder / "state" / "dibs" / "dibs.db"))
    assert f"state/dibs does not exist, and {open_folder} cannot be written." in answer


def test_a_folder_that_cannot_be_written_is_named(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    answer = as_somebody_else(lambda: claim(open_folder / "dibs.db"))
    assert f"The folder {open_folder} cannot be written" in answer
    assert "Make it writable" in answer
    answer = as_somebody_else(lambda: claim(open_folder / "deeper" / "dibs.db"))
    assert "deeper does not exist" in answer


def test_a_file_of_somebody_else_is_named(open_folder: Path) -> None:
    filled(open_folder / "dibs.db", 1)
    (open_folder / "dibs.db").chmod(0)
    answer = as_somebody_else(lambda: claim(open_folder / "dibs.db"))
    assert "is not readable for you" in answer


@pytest.mark.parametrize("folder_mode", [0o777, 0o555])
def test_a_read_only_file_can_be_listed_and_not_claimed_in(open_folder: Path, folder_mode: int) -> None:
    path = open_folder / "dibs.db"
    filled(path, 1)
    path.chmod(0o444)
    before = path.read_bytes()
    open_folder.chmod(folder_mode)
    assert as_somebody_else(lambda: listed(path)) == key_of("job-0000")
    assert f"{path} cannot be written" in as_somebody_else(lambda: claim(path))
    assert path.read_bytes() == before


def test_a_read_only_file_of_another_machine_can_be_listed(open_folder: Path) -> None:
    """Its clock is not known here, and cannot be written down."""
    path = open_folder / "dibs.db"
    store = SqliteStore(str(path), boot_id=lambda: "another")
    put(store, lock("x"))
    store.close()
    path.chmod(0o444)
    assert as_somebody_else(lambda: f"{listed(path)} {listed(path)}") == f"{key_of('x')} {key_of('x')}"


def test_a_read_only_file_can_be_listed_while_its_owner_writes(open_folder: Path) -> None:
    path = open_folder / "dibs.db"
    store = SqliteStore(str(path))
    put(store, lock("x"))
    for file in open_folder.iterdir():
        file.chmod(0o644)
    open_folder.chmod(0o555)
    assert as_somebody_else(lambda: listed(path)) == key_of("x")
    open_folder.chmod(0o755)
    put(store, lock("y"))
    assert as_somebody_else(lambda: listed(path)) == f"{key_of('x')} {key_of('y')}"
    store.close()


def test_a_file_that_was_read_only_for_a_while_is_written_again_without_anybodys_help(
    open_folder: Path,
) -> None:
    """Whoever looks at it meanwhile leaves a log and an index that are as read-only as it was."""
    path = open_folder / "dibs.db"
    open_folder.chmod(0o777)

    def work() -> str:
        filled(path, 1)
        path.chmod(0o400)
        said = [listed(path), claim(path)]
        path.chmod(0o600)
        said += [f"{os.stat(f'{path}-wal').st_mode & 0o777:o}", claim(path)]
        return "\n".join(said)

    seen, refused, mode, granted = as_somebody_else(work).splitlines()
    assert seen == key_of("job-0000")
    assert f"{path} cannot be written" in refused
    assert (mode, granted) == ("400", "Granted")


def test_a_log_of_somebody_else_is_named(open_folder: Path) -> None:
    path = open_folder / "dibs.db"
    filled(path, 1)
    others = sqlite3.connect(path)  # keeps the log and the index there
    others.execute("SELECT 1 FROM counters").fetchone()
    path.chmod(0o666)
    open_folder.chmod(0o777)
    os.chmod(f"{path}-wal", 0o444)
    os.chmod(f"{path}-shm", 0o444)
    if os.geteuid() == 0:
        assert f"{path}-wal cannot be written" in as_somebody_else(lambda: claim(path))
    others.close()


def test_a_long_lived_store_goes_on_when_its_file_may_be_written_again(open_folder: Path) -> None:
    path = open_folder / "dibs.db"
    open_folder.chmod(0o777)

    def work() -> str:
        filled(path, 1)
        path.chmod(0o400)
        store = SqliteStore(str(path))
        said = []
        for mode in (0o400, 0o600):
            path.chmod(mode)
            try:
                put(store, lock("x"))
                said.append("written")
            except StoreUnavailable as error:
                said.append(error.details)
        return "\n".join(said)

    refused, *rest = as_somebody_else(work).splitlines()
    assert f"{path} cannot be written" in refused
    assert rest == ["written"]


def test_root_or_not_a_claim_in_an_ordinary_folder_works(open_folder: Path) -> None:
    open_folder.chmod(0o777)
    assert as_somebody_else(lambda: claim(open_folder / "dibs.db")) == Granted.__name__


class Overtaken:
    """A connection to an empty file. After `statements` of it another process makes the store."""

    def __init__(self, path: Path, statements: int) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._path, self._left = path, statements

    def execute(self, statement: str) -> sqlite3.Cursor:
        if not self._left:
            SqliteStore(str(self._path)).close()
        self._left -= 1
        return self._db.execute(statement)


@pytest.mark.fault("F-195")
@pytest.mark.parametrize("statements", range(4))
def test_a_store_that_another_process_makes_meanwhile_is_not_taken_for_foreign(statements: int, tmp_path: Path) -> None:
    path = tmp_path / "dibs.db"
    path.touch()
    db: Any = Overtaken(path, statements)
    opener._refuse_foreign(db, str(path))
