"""A change by another server wakes its waiters at once, and no others."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core.events import Event
from dibs.core.limits import SWEEP_LATE_MS_MAX, WATCH_MS
from dibs.engine import feed as watcher_module
from dibs.engine.feed import StoreWatcher
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator


class Watched(MemoryStore):
    """Notes each wait at it; can be told to fail."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.waits = 0
        self.fails = False
        self.asked = threading.Event()

    def watch(self, after: int, timeout_ms: int) -> bool:
        self.waits += 1
        fails = self.fails  # as it is before anybody is told that it was asked
        self.asked.set()
        if fails:
            raise StoreUnavailable("The connection was lost, as the test asked.")
        return super().watch(after, timeout_ms)

    def write(self) -> int:
        return self.commit({}, {}, [Event(at_ms=0, kind="released", ns="d", job="x")])


class World:
    def __init__(self) -> None:
        self.store = Watched()
        self.known_seq = 0
        self.wanted = False
        self.told = threading.Semaphore(0)
        self.watcher = StoreWatcher(self.store, lambda: self.known_seq, lambda: self.wanted, self.read)

    def want(self) -> None:
        self.wanted = True
        self.watcher.wake()

    def read(self) -> None:
        self.known_seq = self.store.events(0, 1, newest=True)[-1].seq
        self.told.release()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.watcher.start()
    yield world
    world.watcher.stop()
    world.wanted = False
    world.store.write()


def test_who_waits_is_told_once_of_what_another_did(world: World) -> None:
    world.want()
    assert world.store.asked.wait(WAIT_S_MAX)
    for _ in range(3):
        world.store.write()
        assert world.told.acquire(timeout=WAIT_S_MAX)
    assert not world.told.acquire(timeout=SWEEP_LATE_MS_MAX / 1000 / 5), "it was read: there is nothing to tell"


def test_nobody_asks_the_store_while_nobody_waits(world: World) -> None:
    world.store.write()
    assert not world.told.acquire(timeout=0.05)
    assert world.store.waits == 0


def test_a_store_that_fails_is_asked_again_after_a_pause(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.store.fails = True
    world.want()
    assert world.store.asked.wait(WAIT_S_MAX)
    world.store.write()
    world.store.fails = False
    assert world.told.acquire(timeout=WAIT_S_MAX)
    assert world.store.waits < 10
    assert caplog.text.count("does not report news") == 1


def test_what_is_known_already_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own commits end the wait, too. By then they are counted."""
    monkeypatch.setattr(watcher_module, "WATCH_MS", 20)
    world = World()

    class Own(Watched):
        def watch(self, after: int, timeout_ms: int) -> bool:
            world.known_seq = self.write()
            return super().watch(after, timeout_ms)

    world.watcher = StoreWatcher(Own(), lambda: world.known_seq, lambda: True, world.told.release)
    world.watcher.watch()
    assert not world.told.acquire(blocking=False)


def test_a_store_that_can_only_be_looked_at_gets_no_thread() -> None:
    store = Watched()
    store.capabilities = store.capabilities.replace(watch="polling")
    before = {*threading.enumerate()}  # some may be about to end
    watcher = StoreWatcher(store, lambda: 0, lambda: True, lambda: None)
    watcher.start()
    watcher.wake()
    assert {*threading.enumerate()} <= before
    watcher.stop()


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_fails_or_reports_nothing_is_asked_again_only_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(watcher_module, "SWEEP_LATE_MS_MAX", 50)
    world = World()
    world.store.fails = fails
    world.store.write()
    watcher = StoreWatcher(world.store, lambda: 0, lambda: True, lambda: None)
    began_s = time.monotonic()
    watcher.watch()
    assert time.monotonic() - began_s >= 0.049


def test_the_store_is_watched_while_somebody_waits_and_until_the_watcher_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    said: list[str] = []

    def sleep(seconds: float) -> None:
        assert seconds == WATCH_MS / 1000
        said.append("sleep")
        world.wanted = said.count("sleep") in (2, 4)

    def watch() -> None:
        said.append("watch")
        world.wanted = said.count("watch") != 2
        if said.count("watch") == 4:
            world.watcher.stop()

    monkeypatch.setattr(world.watcher._wake, "wait", sleep)
    monkeypatch.setattr(world.watcher, "watch", watch)
    world.watcher._work()
    assert said == ["sleep", "sleep", "watch", "watch", "sleep", "sleep", "watch", "watch"]
