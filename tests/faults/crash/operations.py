"""What a process is doing when it is killed: each operation of dibs, how to see whether it happened, and how to repeat
it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from dibs.base.errors import InvalidInput
from dibs.base.ids import new_id
from dibs.client import store_admin
from dibs.core.commands import Acquire, AcquireAll, Break, EndSession, Inspect, OpenSession, Release, Renew, Transfer
from dibs.core.lease_outcomes import Released, Renewed, Transferred
from dibs.core.outcomes import Granted, GrantedAll, Queued, Status
from dibs.core.records import Holder, LockRecord, Meta, SessionRecord, lock_key, session_key
from dibs.core.session_outcomes import SessionState
from dibs.engine.coordinator import Coordinator
from dibs.stores.codec import FORMAT
from dibs.stores.registry import open_store

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Store

HOUR_MS = 3_600_000


class Place:
    """Where the stores of one run are."""

    def __init__(self, kind: str, where: str) -> None:
        self.kind = kind
        self._where = where

    def url(self, name: str) -> str:
        """The URL of a store of this name."""
        if self.kind == "sqlite":
            return f"sqlite://{self._where}/{name}.db"
        if self.kind == "postgresql":
            return f"{self._where}?schema=t_{name.replace('-', '_')}_{os.getpid()}&timeout=20s"
        if self.kind == "etcd":
            return f"{self._where}/{name}-{os.getpid()}"
        folder = f"{self._where}/{name}.git"
        if not os.path.exists(folder):
            words = ["git", "init", "-q", "--bare", folder]
            subprocess.run(words, check=True, capture_output=True, timeout=60)
        return f"git+file://{folder}"

    def remove_locks(self) -> int:
        """Remove the lock files that a killed git left, as its message asks the operator to. How many there were."""
        locks = list(Path(self._where).glob("*.git/**/*.lock")) if self.kind == "git" else []
        for each in locks:
            each.unlink()
        return len(locks)


class Operation:
    """One operation, which may be tried several times. `happened` looks whether it is done."""

    opens = False  # opening the store is a part of it
    judges_records = True

    def __init__(self, place: Place, number: int) -> None:
        self.place = place
        self.number = number
        self.job = f"job-{number}"
        name = type(self).__name__.lower()
        self.url = place.url(f"{name}-{number}")  # a store of its own, so that every try makes the same calls

    def prepare(self, store: Store) -> None:
        """Make what the operation needs."""

    def act(self, store: Store) -> None:
        """Do it, or raise DibsError. It may have been done before, in whole or in part."""
        raise NotImplementedError

    def happened(self, store: Store) -> bool:
        raise NotImplementedError


class Commands(Operation):
    """An operation that is one command."""

    answers: tuple[type, ...] = ()

    def __init__(self, place: Place, number: int) -> None:
        super().__init__(place, number)
        self.lease_id, self.heir_id = new_id(), new_id()

    def command(self) -> Command:
        raise NotImplementedError

    def act(self, store: Store) -> None:
        outcome = Coordinator(store).one(self.command())
        assert isinstance(outcome, self.answers), outcome


def acquire(job: str, lease_id: str, owner: str = "worker", **more: Any) -> Acquire:
    return Acquire(ns="default", name=job, principal="p", owner=owner, ttl_ms=HOUR_MS, fresh_lease_id=lease_id, **more)


def ask(store: Store, command: Command, answer: type) -> Outcome:
    outcome = Coordinator(store).one(command)
    assert isinstance(outcome, answer), outcome
    return outcome


def holders(store: Store, job: str) -> tuple[Holder, ...]:
    found = store.read([lock_key("default", job)]).records[lock_key("default", job)].record
    return found.holders if isinstance(found, LockRecord) else ()


def lease_ids(store: Store, job: str) -> list[str]:
    return [each.lease_id for each in holders(store, job)]


class Claim(Commands):
    answers = (Granted,)

    def command(self) -> Command:
        return acquire(self.job, self.lease_id)

    def happened(self, store: Store) -> bool:
        return lease_ids(store, self.job) == [self.lease_id]


class PathClaim(Claim):
    """A claim that two records must have, the job's and the tree's, and both are there."""

    def __init__(self, place: Place, number: int) -> None:
        super().__init__(place, number)
        self.job = f"path:{self.job}/file"

    def prepare(self, store: Store) -> None:
        ask(store, acquire(self.job, "before"), Granted)
        ask(store, Release(ns="default", name=self.job, principal="p", lease_id="before"), Released)

    def happened(self, store: Store) -> bool:
        """Told by who wants the folder: the owner must be in both."""
        assert lease_ids(store, self.job) in ([], [self.lease_id])
        folder = self.job.removesuffix("/file")
        found = Coordinator(store).one(Inspect(ns="default", name=folder))
        assert isinstance(found, Status)
        return bool(found.overlapping)


class NewStore(Claim):
    """A claim on a store that was not there: the file or the schema is made first."""

    opens = True


class ClaimAll(Commands):
    answers = (GrantedAll,)

    def command(self) -> Command:
        names = tuple(f"{self.job}-{each}" for each in "abc")
        return AcquireAll(
            ns="default", names=names, principal="p", owner="w", ttl_ms=HOUR_MS, fresh_lease_id=self.lease_id
        )

    def happened(self, store: Store) -> bool:
        held = [bool(holders(store, f"{self.job}-{each}")) for each in "abc"]
        assert len(set(held)) == 1, "half of a claim of several jobs"
        return held[0]


class Renewal(Commands):
    answers = (Renewed,)

    def prepare(self, store: Store) -> None:
        ask(store, acquire(self.job, self.lease_id), Granted)

    def command(self) -> Command:
        return Renew(ns="default", name=self.job, principal="p", lease_id=self.lease_id, checkpoint="half")

    def happened(self, store: Store) -> bool:
        (holder,) = holders(store, self.job)
        return holder.checkpoint is not None


class GiveBack(Commands):
    answers = (Released,)

    def prepare(self, store: Store) -> None:
        ask(store, acquire(self.job, self.lease_id), Granted)

    def command(self) -> Command:
        return Release(ns="default", name=self.job, principal="p", lease_id=self.lease_id)

    def happened(self, store: Store) -> bool:
        return self.lease_id not in lease_ids(store, self.job)


class HandOver(GiveBack):
    """A release while somebody waits: the waiter has the job in the same write."""

    def prepare(self, store: Store) -> None:
        super().prepare(store)
        ask(store, acquire(self.job, self.heir_id, "waiter", wait=True), Queued)

    def happened(self, store: Store) -> bool:
        (holder,) = holders(store, self.job)
        return holder.owner == "waiter"


class Transferral(Commands):
    answers = (Transferred,)

    def prepare(self, store: Store) -> None:
        ask(store, acquire(self.job, self.lease_id), Granted)

    def command(self) -> Command:
        return Transfer(
            ns="default",
            name=self.job,
            principal="p",
            lease_id=self.lease_id,
            fresh_lease_id=self.heir_id,
            to_owner="heir",
        )

    def happened(self, store: Store) -> bool:
        (holder,) = holders(store, self.job)
        return holder.owner == "heir"


class SessionEnd(Commands):
    """It has three jobs, and somebody waits for one."""

    answers = (SessionState,)

    def prepare(self, store: Store) -> None:
        ask(
            store,
            OpenSession(fresh_id=self.lease_id, principal="p", owner="s", ttl_ms=HOUR_MS, ns="default"),
            SessionState,
        )
        for each in ("", "-b", "-c"):
            ask(store, acquire(f"{self.job}{each}", new_id(), session=self.lease_id), Granted)
        ask(store, acquire(self.job, self.heir_id, "waiter", wait=True), Queued)

    def command(self) -> Command:
        return EndSession(session=self.lease_id, principal="p")

    def happened(self, store: Store) -> bool:
        key = session_key(self.lease_id)
        found = store.read([key]).records[key].record
        return not isinstance(found, SessionRecord) or bool(found.ended_ms)


class Move(Operation):
    """Everything goes into another store of the same kind."""

    opens = True
    judges_records = False  # of the old store; those of the new one are judged by `happened`
    jobs = 3

    def prepare(self, store: Store) -> None:
        self.target = self.place.url(f"target-{self.number}")
        self.tokens = {}
        for each in range(self.jobs):
            outcome = ask(store, acquire(f"{self.job}-{each}", new_id()), Granted)
            assert isinstance(outcome, Granted)
            self.tokens[f"{self.job}-{each}"] = outcome.lease.token
        ask(store, acquire(f"{self.job}-0", new_id(), "waiter", wait=True), Queued)

    def act(self, store: Store) -> None:
        archive = f"{os.environ['TMPDIR']}/archive-{new_id()}"
        store_admin.export_to_file(store, archive, freeze=True)
        target = open_store(self.target)
        try:
            with open(archive, "rb") as file:
                try:
                    store_admin.import_from(lambda: target, file, archive, adds=False)
                except InvalidInput:
                    # An import that is complete is not begun again.
                    if not self._complete(target):
                        raise
        finally:
            target.close()

    def happened(self, store: Store) -> bool:
        target = open_store(self.target)
        try:
            return self._complete(target)
        finally:
            target.close()

    def _complete(self, target: Store) -> bool:
        found = target.read(["meta"]).records["meta"].record
        if isinstance(found, Meta) and found.frozen is not None:
            return False
        held = {job: holders(target, job) for job in self.tokens}
        if not any(held.values()):
            return False
        assert {job: each[0].token for job, each in held.items() if each} == self.tokens, "a part of the jobs"
        return True


class Backup(Operation):
    judges_records = False

    def prepare(self, store: Store) -> None:
        ask(store, acquire(self.job, new_id()), Granted)
        self.copy = f"{os.environ['TMPDIR']}/copy-{self.number}.db"

    def act(self, store: Store) -> None:
        if not os.path.exists(self.copy):
            store_admin.backup(store, self.copy)

    def happened(self, store: Store) -> bool:
        if not os.path.exists(self.copy):
            return False
        found = open_store(f"sqlite://{self.copy}")
        try:
            assert holders(found, self.job), "a copy that is not whole"
        finally:
            found.close()
        return True


class Restoration(Operation):
    """A store is put back to its backup."""

    opens = True
    judges_records = False

    def prepare(self, store: Store) -> None:
        ask(store, acquire("first", new_id()), Granted)
        self.copy = f"{os.environ['TMPDIR']}/kept-{self.number}.db"
        store_admin.backup(store, self.copy)
        ask(store, acquire("second", new_id()), Granted)

    def act(self, store: Store) -> None:
        store.close()
        store_admin.restore(self.copy, self.url.removeprefix("sqlite://"))

    def happened(self, store: Store) -> bool:
        assert holders(store, "first"), "what both files have is gone"
        return not holders(store, "second")


class Migration(Operation):
    """An SQLite file gets the next format, with a table more."""

    opens = True
    judges_records = False

    def prepare(self, store: Store) -> None:
        ask(store, acquire(self.job, new_id()), Granted)

    def act(self, store: Store) -> None:
        from dibs.stores.sqlite import connection, opener

        store.close()
        more = ("CREATE TABLE notes (text TEXT)", "INSERT INTO notes VALUES ('x')")
        with (
            patch.object(opener, "MIGRATIONS", {**opener.MIGRATIONS, FORMAT + 1: more}),
            patch.object(opener, "FORMAT", FORMAT + 1),
            patch.object(connection, "FORMAT", FORMAT + 1),
        ):
            opened = open_store(self.url)
            assert holders(opened, self.job)
            opened.close()

    def happened(self, store: Store) -> bool:
        import sqlite3

        with sqlite3.connect(self.url.removeprefix("sqlite://")) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name = 'notes'")]
            (count,) = db.execute("SELECT count(*) FROM records WHERE live").fetchone()
        db.close()
        assert bool(tables) == (version > FORMAT), "half of a migration"
        assert count == 1, "the claim is gone"
        return bool(version > FORMAT)


EVERYWHERE: tuple[type[Operation], ...] = (
    Claim, PathClaim, NewStore, ClaimAll, Renewal, GiveBack, HandOver, Transferral, SessionEnd, Move,
)  # fmt: skip
OF_FILES: tuple[type[Operation], ...] = (Backup, Restoration, Migration)
OPERATIONS: dict[str, type[Operation]] = {each.__name__: each for each in (*EVERYWHERE, *OF_FILES)}


def next_claim_rises(store: Store, job: str) -> None:
    """Whoever comes next gets a higher token, without waiting for anybody's lease."""
    before = max([each.token for each in holders(store, job)], default=0)
    if before:
        Coordinator(store).one(Break(ns="default", name=job, principal="admin", reason="test"))
    outcome = Coordinator(store).one(acquire(job, new_id(), "next"))
    for _ in range(3):  # somebody who waited had it first
        if isinstance(outcome, Granted):
            break
        Coordinator(store).one(Break(ns="default", name=job, principal="admin", reason="test"))
        outcome = Coordinator(store).one(acquire(job, new_id(), "next"))
    assert isinstance(outcome, Granted), outcome
    assert outcome.lease.token > before, "a fencing token was given twice"
