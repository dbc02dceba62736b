"""Ctrl-C, alarms and signal handlers come between any two steps. None of them may leave the store locked."""

from __future__ import annotations

import dis
import functools
import gc
import itertools
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.stores.sqlite import SqliteStore, connection, file_identity, opener, rows
from dibs.stores.sqlite import store as store_module
from dibs.testing.contract_base import key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import CodeType, FrameType

pytestmark = pytest.mark.full

INTERRUPTS = 300
AGAIN_S = 1.0  # an interrupt in somebody's __del__ is ignored: without another one the loop would never end
OURS = tuple(module.__file__ for module in (connection, file_identity, opener, rows, store_module))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "dibs.db"))
    yield store
    store.close()


@pytest.fixture
def alarms() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    gc.collect()  # an interrupt in the __del__ of what earlier tests left would be theirs
    gc.disable()
    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


def is_usable(store: SqliteStore) -> bool:
    """Asks from another thread: the thread that leaked a re-entrant lock would not notice."""
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(store.read(())), daemon=True)
    asking.start()
    asking.join(60)
    return bool(answers)


@pytest.mark.usefixtures("alarms")
def test_hundreds_of_interrupts_at_any_moment_leave_a_store_that_works(store: SqliteStore) -> None:
    chance, numbers = random.Random(7), itertools.count(1)
    interrupted = 0
    for _ in range(INTERRUPTS):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004), AGAIN_S)
                while True:
                    put(store, lock("x", token=next(numbers)))
                    store.scan("lock/")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == INTERRUPTS
    assert is_usable(store)
    put(store, lock("x", token=10**9))
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x", token=10**9)


@functools.cache
def moments(code: CodeType) -> frozenset[int]:
    """Before which instructions CPython looks for signals: the first of a function, jumps back, what follows a call."""
    found, after_call = set(), False
    for each in dis.get_instructions(code):
        if after_call or each.opname == "RESUME" or each.opname.startswith("JUMP_BACKWARD"):
            found.add(each.offset)
        after_call = each.opname.startswith("CALL")
    return frozenset(found)


def interrupt_at(store: SqliteStore, moment: int) -> bool:
    """A read and a write, interrupted at the given moment of the store's own code. False: it was over before."""
    count = 0

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in OURS:
            return None
        frame.f_trace_opcodes = True
        if what == "opcode" and frame.f_lasti in moments(frame.f_code):
            count += 1
            if count == moment:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 tells of instructions only if it is asked before settrace
    sys.settrace(trace)
    try:
        put(store, lock("x", token=moment))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_single_moment_leaves_a_store_that_works(store: SqliteStore) -> None:
    put(store, lock("x"))
    moment = 1
    while interrupt_at(store, moment):
        assert is_usable(store), moment
        moment += 1
    assert moment > 50
    put(store, lock("x", token=10**9))
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x", token=10**9)


def test_a_signal_handler_that_calls_the_store_it_interrupted_is_told_and_does_not_hang(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    write = rows.write

    def interrupted(*args: Any) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            store.read(())
        said.append(caught.value.details)
        write(*args)

    monkeypatch.setattr(store_module, "write", interrupted)
    put(store, lock("x"))
    assert "signal handler" in said[0]
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x")
