"""When a session is kept alive, and when it is taken for lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.client import keepalive
from dibs.client.embedded import EmbeddedDoor
from dibs.client.keepalive import Keeper, Plan
from dibs.clock import steady_ms
from dibs.errors import ServerUnreachable
from dibs.stores.memory import MemoryStore
from dibs.wire.documents import Reply, reply_for_error

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.promise("loss:told")

STOP_MS = 5_500


@pytest.mark.parametrize("ttl_ms", [10_000, 60_000, 300_000])
def test_there_is_time_for_a_second_try_and_to_stop_before_anybody_else_may_own(ttl_ms: int) -> None:
    plan = Plan(ttl_ms, sent_ms=1_000, stop_ms=STOP_MS)
    assert plan.next_ms == 1_000 + ttl_ms // 3
    assert plan.lost_ms + STOP_MS == 1_000 + ttl_ms
    plan.failed(plan.next_ms)
    assert plan.next_ms < plan.lost_ms
    assert plan.call_ms < ttl_ms // 3


def test_time_counts_from_before_it_was_sent() -> None:
    plan = Plan(60_000, sent_ms=0, stop_ms=STOP_MS)
    plan.kept(20_000)  # whenever the answer came
    assert (plan.next_ms, plan.lost_ms) == (40_000, 80_000 - STOP_MS)
    plan.failed(45_000)
    assert plan.lost_ms == 80_000 - STOP_MS
    assert plan.next_ms == 46_000


class Answering:
    """A door that answers as it is told, one answer a call."""

    def __init__(self, answers: list[Callable[[], Reply]]) -> None:
        self.answers = answers
        self.closed = False

    def call(self, verb: str, name: str, document: dict[str, Any]) -> Reply:
        assert (verb, document) == ("session-keep", {})
        return self.answers.pop(0)()

    def close(self) -> None:
        self.closed = True


def kept() -> Reply:
    return Reply(status=200, body={})


def unheard() -> Reply:
    return reply_for_error(ServerUnreachable("Nobody there."))


def over() -> Reply:
    return Reply(status=410, body={"details": "It is over."})


def fault() -> Reply:
    raise RuntimeError("ours")


def keeper_for(door: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Keeper, list[int]]:
    """A keeper for which every look at the clock is a second later."""
    now = iter(range(0, 10**9, 1_000))
    monkeypatch.setattr(keepalive, "steady_ms", lambda: next(now))
    lost: list[int] = []
    plan = Plan(60_000, sent_ms=0, stop_ms=STOP_MS)
    return Keeper(lambda: door, "id", plan, lambda: lost.append(1)), lost


def test_trouble_is_borne_and_the_end_of_the_session_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "NAP_MS", 0)
    door = Answering([kept, unheard, fault, unheard, kept, over])
    keeper, lost = keeper_for(door, monkeypatch)
    keeper.start()
    keeper.join(20)
    assert not keeper.is_alive()
    assert (door.answers, lost, keeper.why) == ([], [1], "It is over.")
    assert keeper.is_lost
    assert door.closed


def test_a_keeper_that_is_told_to_stop_asks_nothing_more() -> None:
    plan = Plan(60_000, sent_ms=steady_ms(), stop_ms=STOP_MS)
    store = MemoryStore(lambda: 1_000_000)
    keeper = Keeper(lambda: EmbeddedDoor(lambda: store), "id", plan, lambda: None)
    keeper.start()
    keeper.stop()
    assert not keeper.is_alive()
    assert not keeper.is_lost
    assert 0 < keeper.left_ms() <= 60_000 - STOP_MS
