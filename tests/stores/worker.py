"""What the tests start as another process. Needs `src` on the path; prints one JSON line an answer.

worker.py claim FILE ROUNDS          says "ready", waits for a line, then claims job-0 .. job-ROUNDS, once each
worker.py load FILE WORKER           claims and releases without end; prints what was acknowledged
worker.py contend FILE ROUNDS        says "ready", waits for a line, then looks at two jobs, claims and releases them;
                                     prints the tokens it got, and each answer that was not true
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Inspect, Release
from dibs.core.lease_outcomes import Released
from dibs.core.outcomes import Granted, Held, Status
from dibs.core.records import LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def acquire(store: SqliteStore, name: str, owner: str) -> Granted | None:
    command = Acquire(ns="default", name=name, principal="p", owner=owner, ttl_ms=3_600_000, fresh_lease_id=new_id())
    outcome = Coordinator(store).one(command)
    return outcome if isinstance(outcome, Granted) else None


def claim(path: str, rounds: str) -> None:
    say("ready")
    sys.stdin.readline()
    store = SqliteStore(path)
    say([number for number in range(int(rounds)) if acquire(store, f"job-{number}", str(os.getpid()))])


def load(path: str, worker: str) -> None:
    store = SqliteStore(path)
    number = 0
    while True:
        number += 1
        kept = number % 5 == 0
        name = f"kept-{worker}-{number}" if kept else f"job-{worker}-{number % 3}"
        won = acquire(store, name, worker)
        assert won is not None, "nobody else knows the name"
        say([name, won.lease.token])
        if not kept:
            Coordinator(store).one(Release(ns="default", name=name, principal="p", lease_id=won.lease.lease_id))


def contend(path: str, rounds: str) -> None:
    """A record that is the same before and after a question was so when it was answered."""
    say("ready")
    sys.stdin.readline()
    coordinator, truth, me = Coordinator(SqliteStore(path)), SqliteStore(path), str(os.getpid())
    tokens: list[tuple[str, int]] = []
    wrong: list[str] = []

    def ask(command: Acquire | Inspect | Release) -> Outcome:
        key = lock_key("default", command.name)
        before = truth.read([key]).records[key]
        outcome = coordinator.one(command)
        lock = before.record
        if truth.read([key]).records[key] == before and isinstance(lock, LockRecord):
            if isinstance(outcome, Held):
                said = tuple(each.holder for each in outcome.blockers)
            else:
                said = outcome.lock.holders if isinstance(outcome, Status) else ()
            if said != lock.holders:
                wrong.append(f"{lock}, and the answer was {outcome}")
        return outcome

    for number in range(int(rounds)):
        name = f"job-{number % 2}"
        ask(Inspect(ns="default", name=name))
        asked = Acquire(ns="default", name=name, principal="p", owner=me, ttl_ms=3_600_000, fresh_lease_id=new_id())
        got = ask(asked)
        if isinstance(got, Granted):
            tokens.append((name, got.lease.token))
            ask(asked.replace(owner="another", fresh_lease_id=new_id()))
            gone = ask(Release(ns="default", name=name, principal="p", lease_id=got.lease.lease_id))
            if not isinstance(gone, Released) or gone.again:
                wrong.append(f"held, and its release was told {gone}")
    say([tokens, wrong])


if __name__ == "__main__":
    work: dict[str, Callable[..., None]] = {
        "claim": claim,
        "load": load,
        "contend": contend,
    }
    work[sys.argv[1]](*sys.argv[2:])
