"""One of several workers that claim the same job over and over, and write to the protected resource while they hold
it.

python -m tests.faults.contender URL TOKEN NAME FOLDER SEED       TOKEN may be empty

Each believes to be the owner when `check()` says so, and writes a little later, because work takes time: once to a
file that takes everything, once to a database behind a fence. It notes its beliefs and their times in
FOLDER/NAME.jsonl. It ends when the file FOLDER/over exists.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs import Client, DibsError, Fence, StaleToken
from dibs.base.clock import steady_ms
from tests.programs import pause

if TYPE_CHECKING:
    from dibs import Claim

JOB = "job"
TTL_S = 1
OVER = "over"
LIFE_MS_MAX = 180_000


class Resource:
    """The protected resources: a file without a fence, and a table with one."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / "unfenced", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._diary = open(folder / f"{name}.jsonl", "a", buffering=1)  # noqa: SIM115  # as long as the process
        self._db = sqlite3.connect(folder / "fenced.db", timeout=0.5, isolation_level=None)
        self._fence = Fence(self._db)

    def close(self) -> None:
        self._db.close()
        self._diary.close()
        os.close(self._file)

    def note(self, **what: Any) -> None:
        self._diary.write(json.dumps(what) + "\n")

    def write(self, token: int) -> None:
        os.write(self._file, f"{token}\n".encode())

    def write_fenced(self, token: int, job: str = JOB) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._fence.admit(name=job, token=token)
            self._db.execute("INSERT INTO writes (job, token) VALUES (?, ?)", (job, token))
            self._db.execute("COMMIT")
        except StaleToken:
            self._db.execute("ROLLBACK")
            self.note(refused=token, job=job)
        except sqlite3.OperationalError:  # another worker was stopped in the middle of a write
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


def work(claim: Claim, resource: Resource, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 10)):
        before_ms = steady_ms()
        claim.check()
        resource.note(token=claim.fencing_token, before_ms=before_ms, after_ms=steady_ms())
        pause(chance.random() * 0.15)
        resource.write(claim.fencing_token)
        resource.write_fenced(claim.fencing_token)


def main(url: str, token: str, name: str, folder: str, seed: str) -> None:
    chance = random.Random(f"{seed} {name}")
    resource = Resource(Path(folder), name)
    until_ms = steady_ms() + LIFE_MS_MAX
    with Client(url, token or None, owner=name, timeout=1) as client:
        while not (Path(folder) / OVER).exists() and steady_ms() < until_ms:
            try:
                with client.claim(JOB, ttl=TTL_S, wait=chance.choice([0, 0.5, 2])) as claim:
                    work(claim, resource, chance)
            except DibsError as error:
                resource.note(told=error.code)
                pause(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
