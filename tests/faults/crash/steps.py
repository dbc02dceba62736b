"""Does an operation again and again, and is killed at its first call to the system, at its second, and so on, until it
ends without being killed. After each it looks whether the store is whole.

    LD_PRELOAD=shim.so python -m tests.faults.crash.steps KIND WHERE FAULT OPERATION...

FAULT is `kill`, or a name of errno with which the call fails: `EIO`, or `ENOSPC+` for that call and all that follow.
Prints a line of JSON for each operation: how many steps there were, and after how many it had happened all the same.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from dibs.base.errors import DibsError
from dibs.core.names import in_tree
from dibs.core.records import TreeClaim
from dibs.engine.queries import disagreeing
from dibs.stores.registry import open_store
from tests.core import raw
from tests.faults.crash import shim
from tests.faults.crash.operations import OPERATIONS, Operation, Place, next_claim_rises

if TYPE_CHECKING:
    from dibs.stores.port import Store

STEPS_MAX = 5_000
STEP_S_MAX = 60
SPARED = 2  # how many tries in a row are not struck before all steps were; their number differs a little
# How the child ended, as its exit code.
DONE, REFUSED, UNKNOWN, WRONG, KILLED = 0, 10, 11, 12, 13


class Fault:
    def __init__(self, word: str) -> None:
        self.is_kill = word == "kill"
        name = word.rstrip("+")
        self.error = 0 if self.is_kill else getattr(errno, name)
        self.lasts = shim.FOR_EVER if word.endswith("+") else 1
        self.kinds = shim.ANY if self.is_kill else shim.WRITES | shim.SYNCS | shim.NAMES
        if name == "ENOSPC":
            self.kinds = shim.WRITES | shim.NAMES


def child(operation: Operation, fault: Fault, step: int) -> int:
    """Do it in another process, and say how that ended."""
    pid = os.fork()
    if pid == 0:
        code = WRONG
        try:
            code = _in_child(operation, fault, step)
        except BaseException as error:
            print(f"step {step}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    until = time.monotonic() + STEP_S_MAX
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED
        time.sleep(0.001)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"step {step} hangs")


def _in_child(operation: Operation, fault: Fault, step: int) -> int:
    os.setsid()
    control = shim.of_this_process()
    numbers = {"at": step, "error": fault.error, "lasts": fault.lasts, "kinds": fault.kinds, "group": os.getpid()}
    store: Store | None = None
    if not operation.opens:
        store = open_store(operation.url)
    control.arm(**numbers)
    try:
        if store is None:
            store = open_store(operation.url)
        operation.act(store)
    except DibsError as error:
        control.disarm()
        ended = UNKNOWN if getattr(error, "unknown", False) else REFUSED
    else:
        control.disarm()
        return DONE
    # The fault is over. The same process goes on, with what it has open.
    if ended == REFUSED:
        other = open_store(operation.url)
        assert not operation.happened(other), "refused, and yet it happened"
        other.close()
    if store is None or type(operation).__name__ in ("Restoration", "Migration"):
        store = open_store(operation.url)
    operation.act(store)
    assert operation.happened(store)
    store.close()
    return ended


def judge(operation: Operation, ended: int) -> bool:
    """Whether it had happened when the other process was gone. Afterwards it has."""
    store = None if type(operation).__name__ == "Migration" else open_store(operation.url)
    looked: Store = store  # type: ignore[assignment]  # a migration looks for itself
    happened = operation.happened(looked)
    assert happened or ended == KILLED, "acknowledged, and gone"
    if store is None:
        if not happened:
            operation.act(open_store(operation.url))
        assert operation.happened(looked)
        return happened
    if operation.judges_records:
        whole(store, repeated=False)
    operation.act(store)
    if type(operation).__name__ == "Restoration":
        store = open_store(operation.url)
    assert operation.happened(store)
    if operation.judges_records:
        next_claim_rises(store, operation.job)
        whole(store)
    store.close()
    return happened


def whole(store: Store, *, repeated: bool = True) -> None:
    """All records agree with each other, and with the history. `repeated`: so was the operation."""
    found = raw.raw_of(store, store.read(()).now_ms)  # type: ignore[arg-type]  # it reads any store
    if store.capabilities.name.startswith("git"):
        # Here the remote's own git is killed with the worker. It changes the refs of a push one after the other, so a
        # ticket may be in no line. It is passed over, and gone when it ends (tests/engine/test_torn_lines.py).
        places = {(lock.name, number) for lock in found.locks.values() for number in lock.line}
        found = found._replace(tickets={place: each for place, each in found.tickets.items() if place in places})
        if not repeated:  # and a claim may be in its lock or its tree alone (tests/engine/test_torn_trees.py)
            claims = [
                TreeClaim(name=lock.name, lease_id=each.lease_id)
                for lock in found.locks.values()
                if in_tree(lock.name)
                for each in lock.holders
            ]
            found = found._replace(tree=found.tree.replace(claims=tuple(claims)))
    raw.check(found)
    assert disagreeing(store) == []


def run(place: Place, fault: Fault, kind: type[Operation]) -> dict[str, object]:
    counts: dict[int, int] = {}
    had_happened = spared = locks_left = 0
    control = shim.of_this_process()
    for step in range(1, STEPS_MAX):
        operation = kind(place, step)
        if kind.__name__ != "NewStore":
            store = open_store(operation.url)
            operation.prepare(store)
            store.close()
        ended = child(operation, fault, step)
        calls = control.count
        control.disarm()
        assert ended != WRONG, f"{kind.__name__}, step {step}"
        locks_left += place.remove_locks() > 0
        happened = judge(operation, ended)
        if calls < step:
            assert ended == DONE, ended
            spared += 1
            if spared < SPARED:
                continue
            return {
                "operation": kind.__name__,
                "steps": sum(counts.values()),  # those that were struck
                "killed": counts.get(KILLED, 0),
                "had_happened": had_happened,
                "refused": counts.get(REFUSED, 0),
                "unknown": counts.get(UNKNOWN, 0),
                "done": counts.get(DONE, 0),
                "locks_left": locks_left,
            }
        spared = 0
        counts[ended] = counts.get(ended, 0) + 1
        had_happened += happened
    raise AssertionError("it does not end")


def main(kind: str, where: str, fault: str, *names: str) -> None:
    for name in names:
        began = os.times()
        found = run(Place(kind, where), Fault(fault), OPERATIONS[name])
        ended = os.times()
        cpu_s = sum(ended[:4]) - sum(began[:4])
        print(json.dumps({"store": kind, "fault": fault, **found, "cpu_s": round(cpu_s, 1)}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
