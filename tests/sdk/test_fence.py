"""Fences: every kind of store refuses a late write."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from dibs import AsyncFence, Client, Fence, InvalidInput, LeaseLost, StaleToken, Unavailable
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator


EXAMPLE = Path(__file__).parents[2] / "examples" / "fence_paused_owner.py"


class Values:
    """A key-value store with nothing but get and set."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.kept.get(key)

    def set(self, key: str, value: Any) -> None:
        self.kept[key] = value


class SwappingValues(Values):
    """One that can also compare and set; `meanwhile` is what others do before the first one goes through."""

    def __init__(self, meanwhile: str | None = None) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        if self._meanwhile is not None:
            self.kept[key], self._meanwhile = self._meanwhile, None
        if self.kept.get(key) != old:
            return False
        self.kept[key] = new
        return True


class NeverSwapping(Values):
    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        return False


@pytest.fixture(params=["sqlite3", "sqlite3.Row", "SQLAlchemy connection", "SQLAlchemy session", "get/set", "cas"])
def place(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind: str = request.param
    if kind.startswith("sqlite3"):
        db = sqlite3.connect(":memory:")
        if kind == "sqlite3.Row":
            db.row_factory = sqlite3.Row
        yield db
        db.close()
    elif kind.startswith("SQLAlchemy"):
        engine = sqlalchemy.create_engine("sqlite://")
        with engine.connect() if kind.endswith("connection") else Session(engine) as opened:
            yield opened
        engine.dispose()
    else:
        yield Values() if kind == "get/set" else SwappingValues()


def test_a_fence_lets_equal_and_larger_tokens_through_and_refuses_smaller_ones(place: Any) -> None:
    fence = Fence(place)
    fence.create()
    for token in (3, 3, 7):
        fence.admit(name="job", token=token)
    with pytest.raises(StaleToken) as told:
        fence.admit(name="job", token=6)
    assert (told.value.name, told.value.token, told.value.newest) == ("job", 6, 7)
    fence.admit(name="another job", token=1)
    fence.admit(name="job", token=7)


def test_a_fence_takes_name_and_token_from_a_claim_and_refuses_one_that_was_lost(place: Any) -> None:
    fence = Fence(place)
    fence.create()
    with Client("memory://") as client:
        with client.claim("job") as claim:
            fence.admit(claim)
        with pytest.raises(LeaseLost):
            fence.admit(claim)
        with client.claim("job") as successor:
            fence.admit(successor)
            with pytest.raises(StaleToken):
                fence.admit(name="job", token=claim.fencing_token)


def test_whoever_came_in_between_counts() -> None:
    values = SwappingValues(meanwhile="9")
    with pytest.raises(StaleToken):
        Fence(values).admit(name="job", token=8)
    values = SwappingValues(meanwhile="7")
    Fence(values).admit(name="job", token=8)
    assert values.get("dibs_fence:job") == "8"
    with pytest.raises(Unavailable, match="compare_and_set"):
        Fence(NeverSwapping()).admit(name="job", token=1)


def test_check_and_write_are_one_transaction(tmp_path: Path) -> None:
    """What the late owner wrote in the same transaction is undone with it."""
    db = sqlite3.connect(tmp_path / "data.db")
    fence = Fence(db)
    with db:
        fence.create()
        db.execute("CREATE TABLE balance (amount INTEGER)")
        db.execute("INSERT INTO balance VALUES (0)")
    with db:
        fence.admit(name="job", token=2)
        db.execute("UPDATE balance SET amount = 200")

    def write_late() -> None:
        with db:
            db.execute("UPDATE balance SET amount = 100")
            fence.admit(name="job", token=1)

    with pytest.raises(StaleToken):
        write_late()
    assert db.execute("SELECT amount FROM balance").fetchone() == (200,)
    db.close()


def test_of_a_claim_on_several_jobs_each_is_admitted_with_its_own_token(place: Any) -> None:
    fence = Fence(place)
    fence.create()
    with Client("memory://") as client:
        for _ in range(3):
            with client.claim("b"):
                pass
        with client.claim_all(["a", "b"]) as claim:
            assert claim.fencing_tokens == {"a": 1, "b": 4}
            fence.admit(name="b", token=3)
            fence.admit(claim, name="b")
            with pytest.raises(StaleToken):
                fence.admit(name="b", token=3)
            with pytest.raises(InvalidInput, match="on a, b, not on c"):
                fence.admit(claim, name="c")
            with pytest.raises(InvalidInput, match="its own token"):
                fence.admit(claim, token=9)


def test_a_claim_on_several_jobs_is_refused_when_any_of_them_has_a_newer_owner(place: Any) -> None:
    fence = Fence(place)
    fence.create()
    with Client("memory://") as client, client.claim_all(["a", "b"]) as claim:
        fence.admit(claim)
        fence.admit(name="b", token=2)
        with pytest.raises(StaleToken) as told:
            fence.admit(claim)
        assert told.value.name == "b"


def only(places: list[Any], number: int) -> Any:
    """One of them. The others are closed."""
    place = places.pop(number)
    for each in places:
        each.close()
    return place


def autocommitting() -> list[Any]:
    engine = sqlalchemy.create_engine("sqlite://", isolation_level="AUTOCOMMIT", poolclass=NullPool)
    found: list[Any] = [
        sqlite3.connect(":memory:", isolation_level=None),
        engine.connect(),
        Session(engine),
    ]
    if sys.version_info >= (3, 12):
        found.append(sqlite3.connect(":memory:", autocommit=True))
    return found


@pytest.mark.parametrize("number", range(4 if sys.version_info >= (3, 12) else 3))
def test_a_connection_in_autocommit_is_refused_with_the_remedy(number: int) -> None:
    place = only(autocommitting(), number)
    fence = Fence(place)
    fence.create()
    with pytest.raises(InvalidInput, match=r"autocommit.*transaction"):
        fence.admit(name="job", token=1)
    place.close()


@pytest.mark.parametrize("number", [0, 3] if sys.version_info >= (3, 12) else [0])
def test_a_transaction_that_the_program_began_itself_is_one_in_autocommit_too(number: int) -> None:
    db = only(autocommitting(), number)
    fence = Fence(db)
    fence.create()
    db.execute("BEGIN")
    fence.admit(name="job", token=1)
    db.execute("COMMIT")
    with fence.transaction(name="job", token=2):
        pass
    assert not db.in_transaction
    with pytest.raises(StaleToken), fence.transaction(name="job", token=1):
        pass
    assert not db.in_transaction
    db.close()


def test_a_missing_table_is_said_with_the_remedy(place: Any) -> None:
    if isinstance(place, Values):
        return
    fence = Fence(place)
    with pytest.raises(InvalidInput, match=r"dibs_fence does not exist.*fence.create\(\)"):
        fence.admit(name="job", token=1)


def made(folder: Path) -> Path:
    path = folder / "data.db"
    with sqlite3.connect(path) as db:
        Fence(db).create()
        db.execute("CREATE TABLE balance (amount INTEGER)")
        db.execute("INSERT INTO balance VALUES (0)")
    db.close()
    return path


def sqlite_ways(path: Path) -> list[Any]:
    """Every way to open the file, each with a timeout that a waiting transaction may use up."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30}, poolclass=NullPool)
    found: list[Any] = [
        sqlite3.connect(path, timeout=30),
        sqlite3.connect(path, timeout=30, isolation_level=None),
        engine.connect(),
        Session(engine),
    ]
    if sys.version_info >= (3, 12):
        found.append(sqlite3.connect(path, timeout=30, autocommit=False))
        found.append(sqlite3.connect(path, timeout=30, autocommit=True))
    return found


def told_to(place: Any, sql: str) -> Any:
    return place.execute(sqlalchemy.text(sql) if not isinstance(place, sqlite3.Connection) else sql)


@pytest.mark.parametrize("number", range(6 if sys.version_info >= (3, 12) else 4))
def test_a_transaction_commits_what_it_wrote_and_rolls_back_what_failed(tmp_path: Path, number: int) -> None:
    path = made(tmp_path)
    place = only(sqlite_ways(path), number)
    with Client("memory://") as client, client.claim("job") as claim:
        with Fence(place).transaction(claim) as connection:
            told_to(connection, "UPDATE balance SET amount = 1")
        with pytest.raises(ZeroDivisionError), Fence(place).transaction(claim):
            told_to(place, "UPDATE balance SET amount = 2")
            raise ZeroDivisionError
    with pytest.raises(StaleToken), Fence(place).transaction(name="job", token=0):
        raise AssertionError("a late owner never gets in")
    place.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT amount FROM balance").fetchone() == (1,)
    db.close()


@pytest.mark.parametrize("number", range(4))
def test_a_transaction_that_is_open_already_is_refused_because_it_may_have_read(tmp_path: Path, number: int) -> None:
    place = only(sqlite_ways(made(tmp_path)), number)
    if number == 1:
        place.execute("BEGIN")
    told_to(place, "UPDATE balance SET amount = 5")
    with pytest.raises(InvalidInput, match="open on this connection"):
        Fence(place).transaction(name="job", token=1).__enter__()
    place.rollback()
    place.close()


@pytest.mark.promise("token:rises")
def test_an_owner_that_has_read_and_not_written_is_known_to_the_fence(tmp_path: Path) -> None:
    """The successor reads; the paused owner wakes and writes; the successor writes what it made of its read."""
    path = made(tmp_path)
    came: list[str] = []

    def wake() -> None:
        late = sqlite3.connect(path, timeout=30)
        try:
            with Fence(late).transaction(name="job", token=1):
                late.execute("UPDATE balance SET amount = amount + 100")
            came.append("written")
        except StaleToken:
            came.append("refused")
        late.close()

    successor = sqlite3.connect(path, timeout=30)
    paused = threading.Thread(target=wake)
    with Fence(successor).transaction(name="job", token=2):
        (amount,) = successor.execute("SELECT amount FROM balance").fetchone()
        paused.start()
        paused.join(0.2)
        assert came == [], "the late one waits for the transaction that was admitted first"
        successor.execute("UPDATE balance SET amount = ?", (amount + 1,))
    paused.join(WAIT_S_MAX)
    assert came == ["refused"]
    assert successor.execute("SELECT amount FROM balance").fetchone() == (1,)
    successor.close()


def test_no_update_is_lost_however_owners_overlap(tmp_path: Path) -> None:
    """Each owner adds one to what it read. Some wake late: they are refused, or come first and are counted."""
    path = made(tmp_path)
    written: list[int] = []

    def own(token: int) -> None:
        db = sqlite3.connect(path, timeout=60)
        try:
            with Fence(db).transaction(name="job", token=token):
                (amount,) = db.execute("SELECT amount FROM balance").fetchone()
                db.execute("UPDATE balance SET amount = ?", (amount + 1,))
            written.append(token)
        except StaleToken:
            pass
        db.close()

    tokens = list(range(1, 101))
    random.Random(7).shuffle(tokens)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(own, tokens))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT amount FROM balance").fetchone() == (len(written),)
    db.close()
    assert written == sorted(written)
    assert written[-1] == 100


def test_a_fence_says_what_it_cannot_stand_on() -> None:
    with pytest.raises(InvalidInput, match="sqlite3, psycopg or SQLAlchemy"):
        Fence({})
    with pytest.raises(InvalidInput, match="not on mysql"):
        Fence(sqlalchemy.create_mock_engine("mysql://", lambda *_: None))
    with pytest.raises(InvalidInput, match="not a valid table name"):
        Fence(Values(), table="x; DROP TABLE y")
    with pytest.raises(InvalidInput, match="a name and a token"):
        Fence(Values()).admit(name="job")
    with pytest.raises(InvalidInput, match="no transactions"):
        Fence(Values()).transaction(name="job", token=1).__enter__()
    with pytest.raises(InvalidInput, match="use Fence"):
        AsyncFence(Values())


def test_the_example_of_a_paused_owner_does_what_it_says() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "paused:  has the job with token 1",
        "next:    took over with token 2",
        "next:    wrote 250",
        "paused:  refused, token 1 is older than 2",
        "the price is 250",
    ]


@pytest.mark.fault("F-345")
def test_a_claim_that_may_have_other_owners_beside_it_is_refused_and_told_what_to_do() -> None:
    values, client = Values(), Client("memory://", owner="alice")
    fence = Fence(values)
    with client.claim("gpu", slots=2) as first, client.claim("gpu", slots=2) as second:
        for claim in (first, second, first):
            with pytest.raises(InvalidInput, match="gpu has slots"):
                fence.admit(claim)
            fence.admit(name=f"{claim.name} {claim.slot}", token=claim.fencing_token)
    with client.claim("table", shared=True) as reader, pytest.raises(InvalidInput, match="table is shared"):
        fence.admit(reader)
    with client.claim("table") as alone:
        fence.admit(alone)
        alone.share()
        with pytest.raises(InvalidInput, match="Claim it alone"):
            fence.admit(alone)
    client.set_pool("pool", 3)
    with client.claim_all(["job", "pool"]) as both:
        with pytest.raises(InvalidInput, match="pool has slots"):
            fence.admit(both)
        fence.admit(both, name="job")
        with client.claim("job", nested=True) as inner:
            fence.admit(inner)
    with client.claim("one", slots=1) as one:  # that is one owner
        fence.admit(one)
    assert set(values.kept) == {f"dibs_fence:{name}" for name in ("gpu 0", "gpu 1", "table", "job", "one")}


@pytest.mark.fault("F-345")
def test_what_is_no_claim_is_refused_in_words() -> None:
    fence, client = Fence(Values()), Client("memory://")
    lease = client.acquire("job")
    for wrong in (lease, "job", 3, client, client.session()):
        with pytest.raises(InvalidInput, match=rf"this is a {type(wrong).__name__}\. Of a lease, give name="):
            fence.admit(wrong)  # type: ignore[arg-type]  # on purpose
    for name, token in ((b"job", 3), ("job", "3"), ("job", True), ("job", 1.5)):
        with pytest.raises(InvalidInput, match="a token a whole number"):
            fence.admit(name=name, token=token)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidInput, match="was not taken yet"):
        fence.admit(client.claim("job"))
    fence.admit(name=lease.name, token=lease.fencing_token)
