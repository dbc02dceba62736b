"""Works on an SQLite store under `shim.c`, which writes down what is done to files, and notes what was acknowledged.

    LD_PRELOAD=shim.so python -m tests.faults.crash.recorded FILE ROUNDS LOG

A note is a line of the log: `ack`, the number of the last event that was acknowledged, and the leases of renewals.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import TYPE_CHECKING, Any

from dibs.base.ids import new_id
from dibs.core.commands import EndSession, OpenSession, Release, Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore
from tests.faults.crash import shim
from tests.faults.crash.operations import HOUR_MS, acquire

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome


def main(path: str, rounds: str, log: str) -> None:
    chance = random.Random(rounds)
    notes = os.open(log, os.O_WRONLY | os.O_APPEND)
    renewed: dict[str, int] = {}
    shim.of_this_process().arm()

    def note(store: SqliteStore) -> None:
        said = json.dumps({"seq": store.newest_seq(), "renewed": renewed})
        os.write(notes, f"ack 0 0\t{said}\t\n".encode())

    def claim(job: str, owner: str = "w", **more: Any) -> Outcome:
        return Coordinator(store).one(acquire(job, new_id(), owner, **more))

    held: dict[str, str] = {}
    store = SqliteStore(path, checkpoint_pages=24)
    for number in range(int(rounds)):
        coordinator = Coordinator(store)
        job = f"job-{chance.randrange(6)}"
        if job not in held:
            granted = claim(job)
            assert isinstance(granted, Granted), granted
            held[job] = granted.lease.lease_id
            if chance.random() < 0.3:
                claim(job, "waiter", wait=True)
        elif chance.random() < 0.5:
            outcome = coordinator.one(Renew(ns="default", name=job, principal="p", lease_id=held[job]))
            assert isinstance(outcome, Renewed), outcome
            renewed[held[job]] = outcome.lease.renewed_ms
        else:
            renewed.pop(held[job], None)
            coordinator.one(Release(ns="default", name=job, principal="p", lease_id=held.pop(job)))
            found = claim(job)
            # Or somebody waited, and has it.
            mine = found.lease if isinstance(found, Granted) else found.blockers[0].holder  # type: ignore[attr-defined]
            held[job] = mine.lease_id
        note(store)
        if number % 9 == 4:
            session = new_id()
            coordinator.one(OpenSession(fresh_id=session, principal="p", owner="s", ttl_ms=HOUR_MS, ns="default"))
            for each in range(3):
                claim(f"of-{session}-{each}", "s", session=session)
            note(store)
            coordinator.one(EndSession(session=session, principal="p"))
            note(store)
        if number % 40 == 39:  # the log goes into the file, and away
            store.close()
            store = SqliteStore(path, checkpoint_pages=24)
    note(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
