"""Notes of steps on every store: as many and as long as they may be, and written once when a reply is lost."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.core.claims.effects import before, status_of
from dibs.core.commands import Acquire, EffectNote, Release, Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.limits import EFFECT_KEY_BYTES_MAX, EFFECT_RESULT_BYTES_MAX, EFFECTS_MAX
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.registry import open_store
from dibs.testing.faulty import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Store

pytestmark = pytest.mark.promise("effect:once", "effect:doubt-told")

STORES = ("memory", "sqlite", "postgres", "etcd", "git")


@pytest.fixture(params=STORES)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Store]]:
    """One more connection to the same store."""
    stores: list[Store] = []

    def again() -> Store:
        stores.append(stores[0] if stores and url == "memory://" else open_store(url))
        return stores[-1]

    match request.param:
        case "memory":
            url = "memory://"
        case "sqlite":
            url = f"sqlite://{tmp_path}/dibs.db"
        case "postgres":
            url = request.getfixturevalue("postgres_schema")().url
        case "etcd":
            url = request.getfixturevalue("etcd_cluster").url(f"steps/{new_token()}")
        case _:
            request.getfixturevalue("need_program")("git")
            subprocess.run(["git", "init", "-q", "--template=", str(tmp_path)], check=True)
            monkeypatch.chdir(tmp_path)
            url = "git:"
    yield again
    for each in stores:
        each.close()


class Owner:
    """Owns the job under a lease of its own name."""

    def __init__(self, store: Store, name: str) -> None:
        self.rules, self.name = Coordinator(store), name

    def claim(self) -> Granted:
        asked = Acquire(
            ns="default", name="j", principal="p", owner=self.name, ttl_ms=600_000, fresh_lease_id=self.name
        )
        granted = self.rules.one(asked)
        assert isinstance(granted, Granted)
        return granted

    def note(self, key: str, state: str, result: str | None = None) -> Outcome:
        made = EffectNote(key=key, id=f"{self.name}-{key}", state=state, result=result)
        return self.rules.one(Renew(ns="default", name="j", principal="p", lease_id=self.name, effect=made))

    def fail(self) -> None:
        self.rules.one(Release(ns="default", name="j", principal="p", lease_id=self.name, failed=True))


def test_all_that_a_job_may_have_is_told_to_an_owner_on_another_connection(opened: Callable[[], Store]) -> None:
    first, second = Owner(opened(), "a"), Owner(opened(), "b")
    first.claim()
    keys = [f"{number:02}{'🔑' * 49}"[:EFFECT_KEY_BYTES_MAX] for number in range(EFFECTS_MAX)]
    results = [
        "\x01" * EFFECT_RESULT_BYTES_MAX,
        "\0",
        "",
        "\U0001f600" * (EFFECT_RESULT_BYTES_MAX // 4),
        "\u2028'\"\\\r\n",
    ]
    for number, key in enumerate(keys):
        first.note(key, "begun")
        if number % 2:
            first.note(key, "done", results[number % len(results)])
    first.fail()
    granted = second.claim()
    told = [(each.key, status_of(each, (granted.lease,)), each.result) for each in granted.effects]
    assert told == [
        (key, "done" if number % 2 else "in_doubt", results[number % len(results)] if number % 2 else None)
        for number, key in enumerate(keys)
    ]


@pytest.mark.parametrize("fault", ["lost after", "lost before", "conflict"])
def test_a_note_whose_commit_got_no_reply_is_written_once(opened: Callable[[], Store], fault: str) -> None:
    store = FaultyStore(opened())
    owner = Owner(store, "a")
    owner.claim()
    for state in ("begun", "done"):
        store.faults = [fault]  # type: ignore[list-item]  # pytest's parameters are plain text
        noted = owner.note("mail", state, "sent" if state == "done" else None)
        assert isinstance(noted, Renewed)
        assert noted.effect is not None
        assert before(noted.effect) == {"begun": "new", "done": "done"}[state]
    kinds = [each.kind for each in opened().events(0, 100) if each.effect_key is not None]
    assert kinds == ["effect-begun", "effect-done"]
