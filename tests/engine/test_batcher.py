"""Group commit: one write answers many, one fault costs one, and nothing that was taken is left unanswered."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import Overloaded, StoreUnavailable, Unavailable
from dibs.core.commands import Acquire, Inspect, KeepTickets, Release, Renew
from dibs.core.lease_outcomes import Swept
from dibs.core.limits import COMMIT_BATCH_MAX, OVERLOAD_RETRY_MS, QUEUE_MS_MAX
from dibs.engine.batcher import Batcher
from dibs.engine.coordinator import Coordinator
from dibs.engine.metrics import Metrics
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dibs.core.commands import Command
    from dibs.engine.batcher import Callback, Result


def command(name: str) -> Inspect:
    return Inspect(ns="default", name=name)


def outcome(of: Command) -> Swept:
    assert isinstance(of, Inspect)
    return Swept(now_ms=0, key=of.name)


class Runner:
    """Stands for the coordinator: notes the batches, and waits at a gate that the test opens."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def __call__(self, commands: Sequence[Command]) -> list[Result]:
        self.batches.append([each.name for each in commands if isinstance(each, Inspect)])
        self.entered.release()
        assert self.gate.acquire(timeout=WAIT_S_MAX)
        if self.batches[-1] == ["all fail"]:
            raise StoreUnavailable("gone")
        return [KeyError(name) if name == "bad" else outcome(command(name)) for name in self.batches[-1]]


class Answers:
    """Collects what callbacks are given, from whichever thread."""

    def __init__(self) -> None:
        self.got: dict[str, Result] = {}
        self._some = threading.Condition()

    def callback(self, name: str) -> Callback:
        def got(result: Result) -> None:
            with self._some:
                self.got[name] = result
                self._some.notify_all()

        return got

    def wait_for(self, count: int) -> dict[str, Result]:
        with self._some:
            assert self._some.wait_for(lambda: len(self.got) >= count, WAIT_S_MAX)
            return dict(self.got)


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def batcher(runner: Runner) -> Iterator[Batcher]:
    made = Batcher(runner, deliver=lambda call, *args: call(*args))
    made.start()
    yield made
    for _ in range(100):
        runner.gate.release()
    assert made.stop(10_000)


def test_what_comes_while_a_commit_is_under_way_is_the_next_batch(batcher: Batcher, runner: Runner) -> None:
    answers = Answers()
    batcher.post(command("first"), answers.callback("first"))
    assert runner.entered.acquire(timeout=WAIT_S_MAX)
    for name in ("a", "b", "c"):
        batcher.post(command(name), answers.callback(name))
    assert answers.got == {}
    runner.gate.release(2)
    got = answers.wait_for(4)
    assert runner.batches == [["first"], ["a", "b", "c"]]
    assert {name: result.key for name, result in got.items() if isinstance(result, Swept)} == {
        name: name for name in ("first", "a", "b", "c")
    }


def test_a_batch_has_a_bound(batcher: Batcher, runner: Runner) -> None:
    answers = Answers()
    batcher.post(command("first"), answers.callback("first"))
    assert runner.entered.acquire(timeout=WAIT_S_MAX)
    names = [str(number) for number in range(COMMIT_BATCH_MAX + 1)]
    for name in names:
        batcher.post(command(name), answers.callback(name))
    runner.gate.release(3)
    answers.wait_for(1 + len(names))
    assert [len(batch) for batch in runner.batches] == [1, COMMIT_BATCH_MAX, 1]


def test_answers_come_with_one_call_a_batch(runner: Runner) -> None:
    calls = []

    def deliver(call: object, *args: object) -> None:
        assert callable(call)
        calls.append(call)
        call(*args)

    made, answers = Batcher(runner, deliver=deliver), Answers()
    for name in ("a", "b", "c"):
        made.post(command(name), answers.callback(name))
    runner.gate.release()
    made.start()
    answers.wait_for(3)
    assert len(calls) == 1
    assert made.stop(10_000)


def test_the_fault_of_one_command_is_its_own(batcher: Batcher, runner: Runner) -> None:
    answers = Answers()
    batcher.post(command("first"), answers.callback("first"))
    assert runner.entered.acquire(timeout=WAIT_S_MAX)
    for name in ("good", "bad"):
        batcher.post(command(name), answers.callback(name))
    runner.gate.release(2)
    got = answers.wait_for(3)
    assert isinstance(got["bad"], KeyError)
    assert isinstance(got["good"], Swept)


def test_what_all_met_is_reported_to_all_and_the_thread_goes_on(batcher: Batcher, runner: Runner) -> None:
    answers = Answers()
    runner.gate.release(2)
    batcher.post(command("all fail"), answers.callback("all fail"))
    assert isinstance(answers.wait_for(1)["all fail"], StoreUnavailable)
    batcher.post(command("next"), answers.callback("next"))
    assert isinstance(answers.wait_for(2)["next"], Swept)


def test_a_caller_that_fails_does_not_cost_the_others_their_answers(
    batcher: Batcher, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers()
    batcher.post(command("first"), answers.callback("first"))
    assert runner.entered.acquire(timeout=WAIT_S_MAX)

    def fail(result: Result) -> None:
        raise RuntimeError("the connection is gone")

    batcher.post(command("a"), fail)
    batcher.post(command("b"), answers.callback("b"))
    runner.gate.release(2)
    assert set(answers.wait_for(2)) == {"first", "b"}
    assert "the connection is gone" in caplog.text


def test_stopping_answers_what_was_taken_and_takes_nothing_more(runner: Runner) -> None:
    made, answers = Batcher(runner, deliver=lambda call, *args: call(*args)), Answers()
    made.start()
    names = [str(number) for number in range(COMMIT_BATCH_MAX + 10)]
    for name in names:
        made.post(command(name), answers.callback(name))
    runner.gate.release(len(names))
    assert made.stop(10_000)
    assert set(answers.got) == set(names)
    with pytest.raises(Unavailable, match="shutting down"):
        made.post(command("late"), answers.callback("late"))


def test_stopping_a_store_that_hangs_is_bounded(runner: Runner) -> None:
    made = Batcher(runner, deliver=lambda call, *args: call(*args))
    made.start()
    made.post(command("x"), lambda result: None)
    assert runner.entered.acquire(timeout=WAIT_S_MAX)
    assert not made.stop(10)
    runner.gate.release()
    assert made.stop(10_000)


def test_a_queue_that_is_far_too_long_is_refused(runner: Runner) -> None:
    made = Batcher(runner, deliver=lambda call, *args: call(*args), queue_max=3)
    for _ in range(3):
        made.post(command("x"), lambda result: None)
    with pytest.raises(Overloaded) as refused:
        made.post(command("x"), lambda result: None)
    assert (refused.value.code, refused.value.retry_after_ms) == ("capacity_exceeded", 1_000)


@pytest.fixture
def decided() -> list[list[Command]]:
    return []


def by_hand(decided: list[list[Command]], steady: ManualClock | None = None) -> Batcher:
    """A batcher whose batches the test begins."""

    def run(commands: Sequence[Command]) -> list[Result]:
        decided.append(list(commands))
        return [Swept(now_ms=0, key="") for _ in commands]

    clock = steady or ManualClock()
    return Batcher(run, deliver=lambda call, *args: call(*args), soon=lambda call: None, steady=clock.steady_ms)


def a_claim(name: str) -> Acquire:
    return Acquire(ns="d", name=name, principal="p", owner="o", ttl_ms=60_000, fresh_lease_id=name)


def a_heartbeat(name: str) -> Renew:
    return Renew(ns="d", name=name, principal="p", lease_id=name)


@pytest.mark.fault("F-008")
def test_a_claim_whose_caller_has_gone_is_not_decided() -> None:
    told: list[str] = []
    store = MemoryStore(ManualClock())

    def run(commands: Sequence[Command]) -> list[Result]:
        return Coordinator(store, is_gone=made.is_gone).run(commands)

    made = Batcher(run, deliver=lambda call, *args: call(*args), soon=lambda call: None)
    gone = [False, False]
    made.post(a_claim("stays"), lambda result: told.append(type(result).__name__), lambda: gone[0])
    made.post(a_claim("goes"), lambda result: told.append(type(result).__name__), lambda: gone[1])
    gone[1] = True
    made._answer()
    assert told == ["Granted", "CallerGone"]
    made.post(a_claim("goes"), lambda result: told.append(type(result).__name__), lambda: True)
    made._answer()
    assert told[2:] == ["CallerGone"], "nothing is left to decide, and everybody is answered"


def test_who_decides_a_batch_can_ask_whose_callers_have_gone_while_it_does() -> None:
    seen: list[list[bool]] = []

    def run(commands: Sequence[Command]) -> list[Result]:
        seen.append([made.is_gone(each) for each in commands])
        return [outcome(command("x"))] * len(commands)

    metrics = Metrics()
    made = Batcher(run, deliver=lambda call, *args: call(*args), soon=lambda call: None, metrics=metrics)
    for is_gone in (lambda: True, lambda: False, None):
        made.post(a_claim("one"), lambda result: None, is_gone)
    assert not made.is_gone(a_claim("of nobody"))
    made._answer()
    assert seen == [[True, False, False]]
    assert made.metrics is metrics


@pytest.mark.fault("F-009")
def test_heartbeats_go_before_claims_and_claims_have_their_share(decided: list[list[Command]]) -> None:
    made = by_hand(decided)
    for number in range(COMMIT_BATCH_MAX):
        made.post(a_claim(f"{number}"), lambda result: None)
        made.post(a_heartbeat(f"{number}"), lambda result: None)
    made._answer()
    kinds = [type(each) for each in decided[0]]
    assert len(kinds) == COMMIT_BATCH_MAX
    assert kinds == [Renew] * (COMMIT_BATCH_MAX * 3 // 4) + [Acquire] * (COMMIT_BATCH_MAX // 4)


@pytest.mark.fault("F-009")
@pytest.mark.promise("lease:never-early")
def test_a_queue_full_of_claims_takes_heartbeats(decided: list[list[Command]]) -> None:
    made = by_hand(decided)
    made.queue_max = 3
    for number in range(3):
        made.post(a_claim(f"{number}"), lambda result: None)
    with pytest.raises(Overloaded):
        made.post(a_claim("more"), lambda result: None)
    release = Release(ns="d", name="x", principal="p", lease_id="x")
    for command in (a_heartbeat("x"), release, KeepTickets(tickets=())):
        made.post(command, lambda result: None)
    made._answer()
    assert [type(each) for each in decided[0]] == [Renew, Release, KeepTickets, *[Acquire] * 3]


@pytest.mark.fault("F-010")
def test_claims_are_refused_while_one_waits_longer_than_its_caller_would(
    decided: list[list[Command]],
) -> None:
    clock = ManualClock()
    made = by_hand(decided, clock)
    made.post(a_claim("first"), lambda result: None)
    clock.advance(QUEUE_MS_MAX)
    made.post(a_claim("second"), lambda result: None)
    clock.advance(1)
    with pytest.raises(Overloaded) as refused:
        made.post(a_claim("third"), lambda result: None)
    assert refused.value.retry_after_ms == OVERLOAD_RETRY_MS
    made.post(a_heartbeat("x"), lambda result: None)
    made._answer()
    made.post(a_claim("third"), lambda result: None)


@pytest.mark.fault("F-285")
def test_a_store_that_is_away_is_not_reported_as_too_much_asked() -> None:
    clock, away = ManualClock(), True

    def run(commands: Sequence[Command]) -> list[Result]:
        if not away:
            return [Swept(now_ms=0, key="x") for _ in commands]
        made.post(a_claim("second"), lambda result: None)
        clock.advance(QUEUE_MS_MAX + 1)
        with pytest.raises(Unavailable, match="has not answered for 3s") as refused:
            made.post(a_claim("third"), lambda result: None)
        assert (refused.value.code, refused.value.retry_after_ms) == ("upstream_unavailable", OVERLOAD_RETRY_MS)
        return [StoreUnavailable("no answer") for _ in commands]

    made = Batcher(run, deliver=lambda call, *args: None, soon=lambda call: None, steady=clock)
    made.post(a_claim("first"), lambda result: None)
    made._answer()
    with pytest.raises(Unavailable, match="has not answered"):  # it failed, and the next batch has not begun
        made.post(a_claim("third"), lambda result: None)
    assert made.metrics.overloaded == 0
    away = False
    made._answer()
    made.post(a_claim("third"), lambda result: None)
    clock.advance(QUEUE_MS_MAX + 1)
    with pytest.raises(Overloaded):  # the store answers, and the queue is long
        made.post(a_claim("fourth"), lambda result: None)
    assert made.metrics.overloaded == 1


def test_a_coroutine_gets_its_outcome_or_what_went_wrong(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[Result, str]:
        loop = asyncio.get_running_loop()
        made = Batcher(runner, deliver=loop.call_soon_threadsafe, soon=loop.call_soon)
        made.start()
        runner.gate.release(3)
        good = await asyncio.wait_for(made.submit(command("good")), WAIT_S_MAX)
        with pytest.raises(KeyError) as failed:
            await asyncio.wait_for(made.submit(command("bad")), WAIT_S_MAX)
        gone = asyncio.ensure_future(made.submit(command("nobody waits")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.to_thread(made.stop, 10_000)
        await asyncio.sleep(0)
        return good, str(failed.value)

    assert asyncio.run(main()) == (Swept(now_ms=0, key="good"), "'bad'")
    assert caplog.messages == []


def test_everything_that_is_ready_is_posted_before_a_sleeping_thread_is_woken(runner: Runner) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        made = Batcher(runner, deliver=loop.call_soon_threadsafe, soon=loop.call_soon)
        made.start()
        runner.gate.release(1)
        done = [made.submit(command(name)) for name in ("a", "b", "c")]
        await asyncio.wait_for(asyncio.gather(*done), WAIT_S_MAX)
        await asyncio.to_thread(made.stop, 10_000)

    asyncio.run(main())
    assert runner.batches == [["a", "b", "c"]]


def test_nobody_left_to_answer_is_no_reason_to_die(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    def closed(*args: object) -> None:
        raise RuntimeError("Event loop is closed")

    made = Batcher(runner, deliver=closed)
    made.start()
    runner.gate.release(2)
    made.post(command("a"), lambda result: None)
    made.post(command("b"), lambda result: None)
    assert made.stop(10_000)
    assert "could not be delivered" in caplog.text


def test_what_a_batch_brings_about_for_others_comes_after_its_answers(runner: Runner) -> None:
    order: list[str] = []
    told = threading.Event()

    def run(commands: Sequence[Command]) -> list[Result]:
        made.after(order.append, "news")
        made.after(told.set)
        return [outcome(command) for command in commands]

    made = Batcher(run, deliver=lambda call, *args: call(*args))
    made.start()
    made.post(command("a"), lambda result: order.append("answer"))
    assert told.wait(WAIT_S_MAX)
    assert made.stop(10_000)
    assert order == ["answer", "news"]


def test_what_upkeep_brings_about_for_others_waits_for_the_answers_of_the_batch_under_way(
    runner: Runner,
) -> None:
    """It may concern somebody who gets a place in line with this batch."""
    order: list[str] = []
    answered = threading.Event()
    made = Batcher(runner, deliver=lambda call, *args: call(*args))
    made.start()
    made.after(order.append, "nothing is under way")
    made.post(command("a"), lambda result: order.append("answer"))
    made.after(order.append, "news")
    made.after(answered.set)
    assert order == ["nothing is under way"]
    runner.gate.release(1)
    assert answered.wait(WAIT_S_MAX)
    assert made.stop(10_000)
    assert order == ["nothing is under way", "answer", "news"]


def test_news_for_a_loop_that_is_closed_are_dropped(runner: Runner) -> None:
    def closed(call: object, *args: object) -> None:
        raise RuntimeError("closed")

    made = Batcher(runner, deliver=closed)
    made.after(lambda: None)


def test_who_asks_while_answers_are_handed_out_is_gathered_once() -> None:
    turns: list[Any] = []
    decided: list[list[str]] = []
    got: list[str] = []

    def run(commands: Sequence[Command]) -> list[Result]:
        decided.append([each.name for each in commands if isinstance(each, Inspect)])
        return [outcome(each) for each in commands]

    made = Batcher(run, deliver=lambda call, *args: call(*args), soon=turns.append, run_at_once=run)

    def note(name: str, result: Result) -> None:
        got.append(name)

    def ask_again(result: Result) -> None:
        for name in ("b", "c"):
            made.post(command(name), partial(note, name))

    made.post(command("a"), ask_again)
    while turns:
        assert len(turns) == 1, "two turns for one batch"
        turns.pop()()
    assert (decided, got) == ([["a"], ["b", "c"]], ["b", "c"])
