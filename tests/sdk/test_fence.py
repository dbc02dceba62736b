"""Fences: whatever a write goes to refuses the late one."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from dibs import AsyncFence, Client, Fence, InvalidInput, LeaseLost, StaleToken, Unavailable

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


@pytest.fixture(
    params=["sqlite3", "sqlite3.Row", "SQLAlchemy connection", "SQLAlchemy session", "get/set", "cas"]
)
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


def test_a_fence_says_what_it_cannot_stand_on() -> None:
    with pytest.raises(InvalidInput, match="sqlite3, psycopg or SQLAlchemy"):
        Fence({})
    with pytest.raises(InvalidInput, match="not on mysql"):
        Fence(sqlalchemy.create_mock_engine("mysql://", lambda *_: None))
    with pytest.raises(InvalidInput, match="no table name"):
        Fence(Values(), table="x; DROP TABLE y")
    with pytest.raises(InvalidInput, match="a name and a token"):
        Fence(Values()).admit(name="job")
    with pytest.raises(InvalidInput, match="use Fence"):
        AsyncFence(Values())


def test_the_example_of_a_paused_owner_does_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "paused:  has the job with token 1",
        "next:    took over with token 2",
        "next:    wrote 250",
        "paused:  refused, token 1 is older than 2",
        "the price is 250",
    ]
