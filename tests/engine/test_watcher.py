"""A change by another server wakes its waiters at once, and no others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core.events import Event
from dibs.core.limits import SWEEP_LATE_MS_MAX
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
        self.asked.set()
        if self.fails:
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


def test_what_is_known_already_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
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
    before = threading.active_count()
    watcher = StoreWatcher(store, lambda: 0, lambda: True, lambda: None)
    watcher.start()
    watcher.wake()
    assert threading.active_count() == before
    watcher.stop()
