"""Random walks of two connections to one SQLite file: every answer is that of the reference store.

`scripts/dev/compare` holds the statements that the file was asked against those of another commit. They are what an
operation costs: what is remembered is not read again, a claim of a new job reads nothing, a renewal writes one row.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from dibs.core.events import Event
from dibs.core.records import Ending, LockRecord
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Conflict
from dibs.stores.sqlite import SqliteStore, queries, rows
from dibs.testing.contract_base import key_of, lock
from tests.walks.step import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.core.records import Stored

STEPS = 80
NAMES = "abcdefgh"
WALKS = ["roomy", "roomy again", "renewals", "many events", "small cache", "small cache again", "little text"]
DAY_MS = 24 * 3600 * 1000


class Walk:
    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.chance = Random(name)
        self.now_ms = 10**12
        self.memory = MemoryStore(lambda: self.now_ms)
        self.asked: list[str] = []
        self.stores = [self.opened(), self.opened()]
        self.token = 0
        self.steps: list[Step] = []

    def opened(self) -> SqliteStore:
        clocks: dict[str, Any] = {"steady_ms": lambda: self.now_ms - 10**11, "wall_ms": lambda: self.now_ms}
        made = SqliteStore(str(self.path), boot_id=lambda: "boot", **clocks)
        made._link._db.set_trace_callback(self.on_statement)  # type: ignore[union-attr]
        return made

    def on_statement(self, text: str) -> None:
        self.asked.append(" ".join(re.sub(r"'(?:[^']|'')*'", "?", text).split()))

    def said(self, way: str) -> Step:
        """What was asked since the last time, in short, and a checksum of all of it but the texts."""
        short: list[str] = []
        for each in self.asked:
            verb, table = each.split()[0].lower(), re.search(r"(?:FROM|INTO|UPDATE|PRAGMA) (\w+)", each)
            short.append(f"{verb} {table[1]}" if table is not None else verb)
        runs = [(words, len(list(group))) for words, group in itertools.groupby(short)]
        text = ", ".join([words if count == 1 else f"{count} {words}" for words, count in runs])
        full, self.asked = "\n".join(self.asked), []
        return Step(f"{way}: {text} {crc32(full.encode()):08x}", full)

    def step(self) -> None:
        ways = [self.put, self.put, self.put, self.renew, self.read, self.scan, self.due, self.events, self.prune]
        way = self.chance.choice(ways if self.name != "renewals" else [self.put, self.renew, self.renew, self.due])
        if self.name == "many events":
            way = self.chance.choice([self.log, self.log, self.events, self.events, self.prune])
        self.now_ms += self.chance.choice((0, 1, 20, 400, 1_200, 30_000))
        at = self.chance.randrange(2)
        said = way(self.stores[at])
        self.steps.append(self.said(f"{at} {way.__name__}{said}"))
        if self.chance.random() < 0.04:
            self.stores[at].close()
            self.stores[at] = self.opened()
            self.asked.clear()

    def keys(self, most: int) -> list[str]:
        return [key_of(name) for name in self.chance.sample(NAMES, self.chance.randint(1, most))]

    def record(self, name: str) -> LockRecord | None:
        """Due soon, later, or never; live or not; short or long."""
        self.token += 1
        kind = self.chance.randrange(6)
        if kind == 0:
            return None
        made = lock(name, token=self.token, expires_ms=self.now_ms + self.chance.choice((500, 5_000, DAY_MS)))
        if kind == 1:
            ending = Ending(lease_id="l", owner="o", principal="p", token=1, how="released", at_ms=self.now_ms)
            return made.replace(holders=(), endings=(ending,))
        if kind == 2:
            return made.replace(holders=(), acl=("team",))
        return made.replace(acl=("x" * 3_000,)) if kind == 3 else made

    def commit(
        self, store: SqliteStore, puts: Mapping[str, Stored | None], also: list[str], events: list[Event]
    ) -> str:
        """As the coordinator does: by what is remembered first, then by what is read."""
        keys = [*dict.fromkeys([*puts, *also])]
        recalls = self.chance.random() < 0.6
        seen = (store.recall if recalls else store.read)(keys)
        mine = self.memory.read(keys).records
        is_old = any(seen.records[key].record != mine[key].record for key in keys)
        assert not is_old or seen.is_recalled, "what was read is not what is there"
        expect = {key: seen.records[key].version for key in keys}
        if is_old:
            with pytest.raises(Conflict):
                store.commit(expect, puts, events)
            return " in vain"
        seq = store.commit(expect, puts, events)
        assert seq == self.memory.commit({key: mine[key].version for key in keys}, puts, events)
        return " recalled" if seen.is_recalled else ""

    def put(self, store: SqliteStore) -> str:
        puts = {key: self.record(key[-1]) for key in self.keys(3)}
        also = self.keys(2) if self.chance.random() < 0.3 else []
        events = [self.event() for _ in range(self.chance.randrange(3))]
        return self.commit(store, puts, also, events)

    def renew(self, store: SqliteStore) -> str:
        """Of a job that is there, without an event."""
        held = [(key, each.record) for key, each in self.memory.scan("lock/", live=True) if each.record is not None]
        if not held:
            return self.put(store)
        key, record = self.chance.choice(held)
        self.token += 1
        assert isinstance(record, LockRecord)
        later = [each.replace(expires_ms=self.now_ms + 20_000) for each in record.holders]
        return self.commit(store, {key: record.replace(holders=tuple(later), token=self.token)}, [], [])

    def event(self) -> Event:
        return Event(at_ms=self.now_ms, kind="acquired", ns="default", job=self.chance.choice(NAMES[:3]))

    def log(self, store: SqliteStore) -> str:
        return self.commit(store, {}, [key_of("a")], [self.event() for _ in range(self.chance.choice((60, 130, 300)))])

    def read(self, store: SqliteStore) -> str:
        keys = self.keys(7)
        found, mine = store.read(keys), self.memory.read(keys)
        assert found.now_ms == self.now_ms
        assert not found.is_recalled
        assert {key: found.records[key].record for key in keys} == {key: mine.records[key].record for key in keys}
        return f" {len(keys)}"

    def scan(self, store: SqliteStore) -> str:
        prefix, after = self.chance.choice(("", "lock/", key_of("b"), "m")), self.chance.choice(("", key_of("c"), "z"))
        limit, live = self.chance.choice((-1, 0, 1, 3, 100)), self.chance.random() < 0.5
        found = store.scan(prefix, after, limit, live=live)
        mine = self.memory.scan(prefix, after, max(0, limit), live=live)
        assert [(key, each.record) for key, each in found] == [(key, each.record) for key, each in mine]
        return ""

    def due(self, store: SqliteStore) -> str:
        limit = self.chance.choice((-1, 0, 1, 2, 100))
        found, mine = store.due(limit), self.memory.due(max(0, limit))
        while found.has_more:
            found = store.due(limit)
        assert len(found.keys) == len(mine.keys)
        assert set(found.keys) <= set(self.memory.due(1_000).keys)
        assert mine.next_ms is None or (found.next_ms is not None and found.next_ms <= mine.next_ms)
        if mine.next_ms is not None and mine.next_ms <= self.now_ms:
            assert found.next_ms == mine.next_ms
        return f" {len(found.keys)}"

    def events(self, store: SqliteStore) -> str:
        newest = self.memory.newest_seq()
        assert store.newest_seq() == newest
        after, limit = self.chance.choice((0, newest // 2, newest)), self.chance.choice((0, 1, 5, 1_000))
        job = self.chance.choice((None, ("default", "a"), ("default", "b"), ("other", "a")))
        backwards = self.chance.random() < 0.5
        found = store.events(after, limit, job, newest=backwards)
        assert found == self.memory.events(after, limit, job, newest=backwards)
        return f" {len(found)}"

    def prune(self, store: SqliteStore) -> str:
        keeps = (0, 5, 40) if self.name != "many events" else (5, 600, 900, 900)
        bounds = {
            "keep": self.chance.choice(keeps),
            "before_ms": self.now_ms - self.chance.choice((0, 500, DAY_MS)),
        }
        count = store.prune(**bounds)
        assert count == self.memory.prune(**bounds)
        return f" {count}"


def walked(name: str) -> list[Step]:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        if name.startswith("small"):
            patch.setattr(rows, "CACHE_ENTRIES_MAX", 5)
            patch.setattr(rows, "DROPPED_AT_ONCE", 1)
            patch.setattr(rows, "_KEYS_A_SELECT", 3)
            patch.setattr(queries, "CORRECTED_MIN", 2)
        if name.startswith("little"):
            patch.setattr(rows, "CACHE_TEXT_MAX", 5_000)
        patch.setattr(rows, "_GUESS_PAUSE", 3)
        patch.setattr(queries, "PRUNE_ROWS", 4 if name != "many events" else 100)
        walk = Walk(name, Path(folder, "dibs.db"))
        for _ in range(STEPS):
            walk.step()
        for store in walk.stores:
            store.close()
        return walk.steps
