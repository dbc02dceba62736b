"""How each operation grows with what a store holds: leases, `path:` claims, waiters of one job, sessions, events.

    python bench/growth_curves.py paths                  one kind at all its sizes; added to measured/growth.json
    python bench/growth_curves.py leases --most 300000   no size above
    python bench/growth_curves.py plot                   measured/growth.svg from that file

In this process, on SQLite, one command in each commit, through the rules and the port as a server does it: median CPU
time, which is up to four times as long on a busy machine, and for writes the bytes given to the kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import machine
import msgspec  # noqa: F401  # before the codec, which then writes with it as a server does

from dibs.core.commands import Acquire, KeepSession, OpenSession, Release, Renew, Sweep
from dibs.core.events import ACQUIRED, Event
from dibs.core.outcomes import Granted
from dibs.core.records import lock_key
from dibs.engine.archive import export
from dibs.engine.coordinator import Coordinator
from dibs.stores.port import Opening, Store
from dibs.stores.registry import open_store

if TYPE_CHECKING:
    from dibs.core.commands import Command

FILE = Path(__file__).parent / "measured" / "growth.json"
SIZES = {
    "leases": (1_000, 10_000, 100_000, 1_000_000),
    "paths": (10, 1_000, 10_000, 100_000),
    "waiters": (10, 100, 1_000, 10_000),
    "sessions": (1_000, 10_000, 100_000),
    "events": (10_000, 100_000, 1_000_000, 10_000_000),
}
BATCH = 1_000
TIMES = 41
DAY_MS = 24 * 3600 * 1000
PAGE = 1_000  # what a list and a page of history have


def lease(number: int) -> str:
    return str(uuid.UUID(int=number + 1, version=4))


def claim(name: str, number: int, *, wait: bool = False) -> Acquire:
    terms = {"principal": "bench", "owner": "bench", "ttl_ms": DAY_MS}
    return Acquire(ns="default", name=name, fresh_lease_id=lease(number), wait=wait, **terms)  # type: ignore[arg-type]


def job(number: int) -> str:
    return f"growth-{number:08}"


def path(number: int) -> str:
    """Four folders deep, 50 files in a folder."""
    return f"path:src/d{number % 50}/e{number // 50 % 40}/f{number // 2000:03}/{number:08}"


class Filling:
    """A store that is filled further and further, and the operations that are measured on it."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind, self.url, self.have, self.fresh = kind, f"sqlite://{folder}/{kind}.db", 0, 50_000_000
        self.store: Store = open_store(self.url, Opening(serves=True))
        self.rules = Coordinator(self.store)

    def one(self, command: Command) -> object:
        return self.rules.one(command)

    def fill(self, count: int) -> None:
        for first in range(self.have, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            if self.kind == "events":
                made = [Event(kind=ACQUIRED, ns="default", job=job(n % 9_999), at_ms=n, token=n) for n in numbers]
                self.store.commit({}, {}, made)
            elif self.kind == "sessions":
                self._run([self._session(lease(number)) for number in numbers])
            else:
                self._run([claim(self._name(number), number, wait=self.kind == "waiters") for number in numbers])
        self.have = count

    def _run(self, commands: list[Command]) -> None:
        for outcome in self.rules.run(commands):
            if isinstance(outcome, BaseException):
                raise outcome

    def _name(self, number: int) -> str:
        return "job" if self.kind == "waiters" else path(number) if self.kind == "paths" else job(number)

    def _renewal(self, number: int) -> Renew:
        return Renew(ns="default", name=self._name(number), principal="bench", lease_id=lease(number))

    def _session(self, session: str) -> OpenSession:
        return OpenSession(fresh_id=session, principal="bench", owner="bench", ttl_ms=DAY_MS, ns="default")

    def _next(self) -> int:
        self.fresh += 1
        return self.fresh

    def operations(self) -> dict[str, Callable[[], object]]:
        """The work by its name. What needs no preparation is measured as it is; a release is preceded by its claim."""
        if self.kind == "events":
            return {
                "a page of history": lambda: self.store.events(self.have // 2, PAGE),
                "history of a job": lambda: self.store.events(0, 100, ("default", job(77)), newest=True),
                "claim": lambda: self.one(claim(job(self._next()), self.fresh)),
            }
        if self.kind == "sessions":
            return {
                "open": lambda: self.one(self._session(lease(self._next()))),
                "heartbeat": lambda: self.one(KeepSession(session=lease(self._some()), principal="bench")),
                "list": lambda: self.store.scan("session/", "", PAGE, live=True),
            }
        if self.kind == "waiters":
            return {"wait": lambda: self.one(claim("job", self._next(), wait=True)), "release, hand over": self._hand}
        name = self._name
        return {
            "claim": lambda: self.one(claim(name(self._next()), self.fresh)),
            "refused claim": lambda: self.one(claim(name(self._some()), self._next())),
            "renew": lambda: self.one(self._renewal(self._some())),
            "list": lambda: self.store.scan("lock/default/", lock_key("default", name(self._some())), PAGE, live=True),
            "sweep": lambda: (self.store.due(64), self.one(Sweep(key=lock_key("default", name(self._some()))))),
        }

    def _some(self) -> int:
        return self._next() * 7_368_787 % self.have

    def _hand(self) -> object:
        """Release the job of whoever has it; the next in line gets it."""
        lock = self.store.read((lock_key("default", "job"),)).records[lock_key("default", "job")].record
        held = lock.holders[0]  # type: ignore[union-attr]
        return self.one(Release(ns="default", name="job", principal="bench", lease_id=held.lease_id))

    def whole(self) -> dict[str, Callable[[], object]]:
        """What concerns all of the store, measured once."""
        again: dict[str, Callable[[], object]] = {"open the file, first claim": self._reopen}
        if self.kind != "waiters" and self.have <= 1_000_000:
            again["export, each"] = lambda: export(self.store, lambda text: None)
        if self.kind == "events":
            again["prune a tenth, each"] = lambda: self.store.prune(keep=self.have * 9 // 10, before_ms=0)
        return again

    def _reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.url, Opening(serves=True))
        self.rules = Coordinator(self.store)
        self.one(claim(f"again-{self._next()}", self.fresh))


def written() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def measure(kind: str, most: int, folder: Path) -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="dibs-growth-", dir=folder) as temp:
        filling = Filling(kind, temp)
        for size in [size for size in SIZES[kind] if size <= most]:
            filling.fill(size)
            for name, work in filling.operations().items():
                taken, before = [], written()
                for _ in range(TIMES):
                    began = time.process_time()
                    outcome = work()
                    taken.append((time.process_time() - began) * 1e6)
                    if name == "claim":
                        assert isinstance(outcome, Granted), outcome
                each = (written() - before) / TIMES
                yield {"kind": kind, "size": size, "what": name, "us": round(median(taken)), "bytes": round(each)}
            for name, work in filling.whole().items():
                began = time.process_time()
                work()
                us = (time.process_time() - began) * 1e6
                count = size if "export" in name else size / 10 if "prune" in name else 1
                yield {"kind": kind, "size": size, "what": name, "us": round(us / count, 2)}
        filling.store.close()


def plotted(rows: list[dict[str, object]]) -> str:
    sys.path.insert(0, os.fspath(FILE.parents[2]))
    from scripts.dev.pages import plot

    steps = [f"{size:,}" for size in sorted({int(str(row["size"])) for row in rows})]
    names = list(dict.fromkeys((str(row["kind"]), str(row["what"])) for row in rows if row["what"] in DRAWN))
    series: list[plot.Series] = []
    for number, (kind, what) in enumerate(names):
        own = [row for row in rows if (row["kind"], row["what"]) == (kind, what)]
        points = {f"{row['size']:,}": float(str(row["us"])) for row in own}
        series.append((f"{kind}: {what}", number % len(plot.COLOURS), number >= len(plot.COLOURS), points))
    return plot.lines("CPU time of one operation, µs, by what the store holds", "Logarithmic. SQLite.", steps, series)


DRAWN = ("claim", "renew", "wait", "release, hand over", "open", "heartbeat", "history of a job")


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("kinds", nargs="+", choices=[*SIZES, "plot"])
    made.add_argument("--most", type=int, default=10**9, help="the largest size")
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the stores are")
    made.add_argument("--into", type=Path, default=FILE, help="where the figures are kept")
    args = made.parse_args()
    for kind in [kind for kind in args.kinds if kind != "plot"]:
        document = json.loads(args.into.read_text()) if args.into.exists() else {"rows": []}
        document["machine"] = machine.describe(args.folder)
        document["rows"] = [row for row in document["rows"] if row["kind"] != kind]
        for row in measure(kind, args.most, args.folder):
            print(json.dumps(row), flush=True)
            document["rows"].append(row)
            args.into.write_text(json.dumps(document, indent=1) + "\n")
    if "plot" in args.kinds:
        args.into.with_suffix(".svg").write_text(plotted(json.loads(args.into.read_text())["rows"]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
