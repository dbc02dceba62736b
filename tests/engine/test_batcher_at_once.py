"""Batches decided on the event loop: the same answers, no wait for anybody, and nothing lost on the way to the
thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core.commands import Acquire, Inspect, Renew
from dibs.core.lease_outcomes import Swept
from dibs.core.limits import COMMIT_BATCH_MAX
from dibs.engine.batcher import GATHER_TURNS_MAX, Batcher
from dibs.engine.decider import Decider
from dibs.engine.pace import COMMAND_US, QUICK_US_MAX, STUCK_US_MIN, Pace
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Busy
from tests.engine.test_batcher import Answers, command, outcome
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dibs.core.commands import Command
    from dibs.engine.batcher import Result


class Loop:
    """An event loop that turns when the test says so."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], object]] = []
        self._some = threading.Condition()

    def soon(self, call: Callable[..., object], *args: object) -> None:
        with self._some:
            self._ready.append(lambda: call(*args))
            self._some.notify_all()

    def turn(self) -> None:
        """Run what is ready; wait until something is."""
        with self._some:
            assert self._some.wait_for(lambda: self._ready, WAIT_S_MAX), "nothing happens"
            ready, self._ready = self._ready, []
        for call in ready:
            call()

    @property
    def is_idle(self) -> bool:
        return not self._ready


class World:
    """Notes which commands were decided at once and which on the thread."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.answers = Answers()
        self.at_once: list[list[str]] = []
        self.on_thread: list[list[str]] = []
        self.quick = True
        self.busy: set[str] = set()  # names that have to wait
        self.batcher = Batcher(
            self._run,
            deliver=self.loop.soon,
            soon=self.loop.soon,
            run_at_once=self._run_at_once,
            is_quick=lambda: self.quick,
        )

    def _run_at_once(self, commands: Sequence[Command]) -> list[Result]:
        self.at_once.append([each.name for each in commands])  # type: ignore[union-attr]
        if self.at_once[-1] == ["all fail"]:
            raise StoreUnavailable("gone")
        return [self._result(each, each.name in self.busy) for each in commands]  # type: ignore[union-attr]

    def _result(self, each: Command, busy: bool) -> Result:
        if busy:
            return Busy("wait")
        return KeyError("bad") if each == command("bad") else outcome(each)

    def _run(self, commands: Sequence[Command]) -> list[Result]:
        self.on_thread.append([each.name for each in commands])  # type: ignore[union-attr]
        return [self._result(each, busy=False) for each in commands]

    def answer(self, *names: str) -> None:
        """Turn the loop until they are answered."""
        while not set(names) <= set(self.answers.got):
            self.loop.turn()

    def post(self, *names: str) -> None:
        for name in names:
            self.batcher.post(command(name), self.answers.callback(name))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.batcher.start()
    yield made
    assert made.batcher.stop(10_000)


def test_all_that_is_ready_is_one_batch_and_answered_in_the_same_turn(world: World) -> None:
    world.post("a")
    assert world.answers.got == {}
    world.loop.turn()
    assert set(world.answers.got) == {"a"}
    assert (world.at_once, world.on_thread) == ([["a"]], [])
    assert world.loop.is_idle


def test_a_batch_waits_for_the_loop_as_long_as_every_turn_brings_more(world: World) -> None:
    for number in range(1, GATHER_TURNS_MAX + 2):  # every batch anew
        world.post(f"a{number}", f"b{number}")
        world.loop.turn()
        world.post(f"c{number}")
        world.loop.turn()
        assert len(world.at_once) == number - 1
        world.loop.turn()
        assert world.at_once[-1] == [f"a{number}", f"b{number}", f"c{number}"]
        assert set(world.answers.got) >= set(world.at_once[-1])


def test_a_batch_does_not_wait_for_ever(world: World) -> None:
    turns = 0
    world.post("first", "second")
    while not world.at_once:
        world.loop.turn()
        turns += 1
        world.post(str(turns))
    assert turns == GATHER_TURNS_MAX + 1


def test_a_batch_has_a_bound_and_the_rest_follows_in_order(world: World) -> None:
    names = [str(number) for number in range(COMMIT_BATCH_MAX + 3)]
    world.post(*names)
    world.loop.turn()
    assert not world.loop.is_idle, "the rest follows by itself"
    world.post("late")
    world.answer("late")
    assert world.at_once == [names[:COMMIT_BATCH_MAX], [*names[COMMIT_BATCH_MAX:], "late"]]
    assert len(world.answers.got) == len(names) + 1


def test_the_fault_of_one_command_or_of_one_caller_is_its_own(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fail(result: Result) -> None:
        raise RuntimeError("the connection is gone")

    world.batcher.post(command("x"), fail)
    world.post("bad", "good")
    world.answer("bad", "good")
    assert isinstance(world.answers.got["bad"], KeyError)
    assert isinstance(world.answers.got["good"], Swept)
    assert "the connection is gone" in caplog.text
    world.post("all fail")
    world.loop.turn()
    assert isinstance(world.answers.got["all fail"], StoreUnavailable)
    world.post("next")
    world.loop.turn()
    assert isinstance(world.answers.got["next"], Swept)


def test_what_has_to_wait_goes_to_the_thread_before_all_that_came_later(world: World) -> None:
    world.busy = {"b", "c"}
    world.post("a", "b", "c", "d")
    world.answer("a", "d")
    world.post("e")
    world.answer("b", "c", "e")
    decided = [name for batch in world.on_thread for name in batch]
    assert decided[:2] == ["b", "c"]
    assert world.at_once[0] == ["a", "b", "c", "d"]


def test_a_heartbeat_that_has_to_wait_stays_before_the_claims() -> None:
    world = World()  # without its thread
    claim = Acquire(ns="d", name="claim", principal="p", owner="o", ttl_ms=1_000, fresh_lease_id="l")
    beat = Renew(ns="d", name="beat", principal="p", lease_id="l")
    world.busy = {"claim", "beat"}
    for each in (claim, beat):
        world.batcher.post(each, lambda result: None)
    while not world.at_once:
        world.loop.turn()
    assert [asked[0] for asked in world.batcher._first] == [beat]
    assert [asked[0] for asked in world.batcher._later] == [claim]


def test_while_commits_are_slow_the_thread_decides_and_afterwards_the_loop_again(world: World) -> None:
    world.quick = False
    world.post("slow")
    world.answer("slow")
    assert (world.at_once, world.on_thread) == ([], [["slow"]])
    world.quick = True
    world.post("quick")
    world.loop.turn()
    assert world.at_once == [["quick"]]


def test_what_a_batch_brings_about_for_others_comes_after_its_answers() -> None:
    order: list[str] = []
    loop = Loop()

    def run(commands: Sequence[Command]) -> list[Result]:
        made.after(order.append, "news")
        return [outcome(command) for command in commands]

    made = Batcher(run, deliver=loop.soon, soon=loop.soon, run_at_once=run)
    made.post(command("a"), lambda result: order.append("answer"))
    loop.turn()
    loop.turn()
    assert order == ["answer", "news"]


def test_an_answer_may_ask_the_next_thing(world: World) -> None:
    world.batcher.post(command("first"), lambda result: world.post("second"))
    world.loop.turn()
    assert world.at_once == [["first"]]
    world.loop.turn()
    assert world.at_once == [["first"], ["second"]]


def test_stopping_answers_what_the_loop_had_to_leave_to_the_thread() -> None:
    inside, leave = threading.Event(), threading.Event()
    loop, answers, on_thread = Loop(), Answers(), []

    def at_once(commands: Sequence[Command]) -> list[Result]:
        inside.set()
        assert leave.wait(WAIT_S_MAX)
        return [Busy("wait")] * len(commands)

    def run(commands: Sequence[Command]) -> list[Result]:
        on_thread.append(list(commands))
        return [outcome(command) for command in commands]

    made = Batcher(run, deliver=lambda call, *args: call(*args), soon=loop.soon, run_at_once=at_once)
    made.start()
    made.post(command("a"), answers.callback("a"))
    turning = threading.Thread(target=loop.turn)
    turning.start()
    assert inside.wait(WAIT_S_MAX)
    assert not made.stop(50), "the loop is not finished"
    leave.set()
    turning.join(WAIT_S_MAX)
    assert made.stop(10_000)
    assert isinstance(answers.got["a"], Swept)
    assert on_thread == [[command("a")]]


def test_one_stuck_commit_changes_the_pace_at_once_and_some_quick_ones_change_it_back() -> None:
    pace = Pace()
    assert not pace.is_quick, "nothing is known yet"
    quick = [is_quick_after(pace, us) for us in [300, STUCK_US_MIN, *[300] * 50]]
    assert quick[:2] == [True, False]
    assert quick[-1]
    assert 5 < quick[1:].index(True) < 50


@pytest.mark.fault("F-054")
def test_one_slow_decision_on_the_loop_sends_the_next_ones_to_the_thread() -> None:
    pace = Pace()
    pace.took(300)
    quick = []
    for us, commands in ((COMMIT_BATCH_MAX * COMMAND_US, COMMIT_BATCH_MAX), (STUCK_US_MIN + COMMAND_US, 1)):
        pace.kept_loop(us, commands)
        quick.append(pace.is_quick)
    assert quick == [True, False], "a full batch may take its time"
    assert [is_quick_after(pace, 300) for _ in range(50)][-1]


@pytest.mark.fault("F-054")
def test_a_server_whose_decision_took_long_on_the_loop_is_not_quick_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(lambda: 1_000)
    acquire = Acquire(ns="default", name="job", principal="team", owner="w", ttl_ms=60_000, fresh_lease_id="one")
    Decider(store, lambda events, seq: None).run([acquire])
    decider = Decider(store, lambda events, seq: None)  # whose pace knows nothing of this machine's
    decider.pace.took(100)
    assert decider.is_quick
    times = iter((0, STUCK_US_MIN + COMMAND_US))
    monkeypatch.setattr("dibs.engine.decider.stopwatch_us", lambda: next(times))
    decider.run_at_once([Inspect(ns="default", name="job")])
    assert not decider.is_quick


def is_quick_after(pace: Pace, us: int) -> bool:
    pace.took(us)
    return pace.is_quick


def test_a_disk_that_is_slow_every_time_is_never_quick_and_a_hiccup_is_forgiven() -> None:
    pace = Pace()
    slow_us = 3 * QUICK_US_MAX
    quick = [is_quick_after(pace, us) for us in [300, slow_us, *[slow_us] * 20]]
    assert quick[:2] == [True, True]
    assert not quick[-1]


@pytest.mark.fault("F-353")
@pytest.mark.parametrize("signalled", [KeyboardInterrupt, SystemExit])
def test_a_signal_while_the_main_thread_decides_is_nobodys_answer(signalled: type[BaseException]) -> None:
    """`dibs simulate` decides there: it went on, and told a client of the interrupt."""

    def run(commands: Sequence[Command]) -> list[Result]:
        raise signalled

    loop, answers = Loop(), Answers()
    batcher = Batcher(run, deliver=loop.soon, soon=loop.soon, run_at_once=run)
    batcher.post(command("a"), answers.callback("a"))
    with pytest.raises(signalled):
        loop.turn()
    assert answers.got == {}
