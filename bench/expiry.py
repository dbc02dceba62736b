"""How late leases expire: many live ones on one server, and when their `expired` events came.

The promise is "never early, late by a stated bound". Nobody asks for these names while they run out, so only
the server's own sweep can end them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import load
from procs import BenchError
from stats import percentile
from targets import DibsTarget, HttpServer

from dibs.stores.registry import open_store

FILL_CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    leases: int = 100_000
    ttl_min: int = 30
    ttl_max: int = 60
    grace: int = 15
    """Seconds to wait after the last lease is due. What has not expired by then counts as missing."""


@dataclass(frozen=True, slots=True)
class History:
    """Result of the events: the number of leases, and how late each expired, sorted, on the store's clock."""

    leases: int
    late_ms: list[int]
    outages: int


@dataclass(frozen=True, slots=True)
class Lateness:
    leases: int
    expired: int
    early: int
    outages: int
    fill_seconds: float
    all_live_at_once: bool
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    def flagged(self) -> bool:
        return bool(self.early or self.outages or self.expired < self.leases or not self.all_live_at_once)


class Event(Protocol):
    """The fields of the store's events that are used here."""

    @property
    def seq(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def ttl_ms(self) -> int | None: ...


def read_events(database: Path) -> Iterator[Event]:
    """All events of the store, in order, read in pages."""
    store = open_store(f"sqlite:///{database}")
    try:
        yield from in_pages(store.events)
    finally:
        store.close()


def in_pages(page: Callable[[int, int], Sequence[Event]], size: int = 10_000) -> Iterator[Event]:
    """Every event, from a call that gives up to `size` of them after a sequence number."""
    after = 0
    while found := page(after, size):
        yield from found
        after = found[-1].seq


def history(events: Iterable[Event]) -> History:
    """Each name is acquired once and never renewed, so its deadline follows from the time of its grant."""
    due: dict[str, int] = {}
    late, outages = [], 0
    for event in events:
        if event.kind == "acquired" and event.ttl_ms is not None:
            due[event.job] = event.at_ms + event.ttl_ms
        elif event.kind == "expired" and event.job in due:
            late.append(event.at_ms - due[event.job])
        elif event.kind == "outage":
            outages += 1
    return History(leases=len(due), late_ms=sorted(late), outages=outages)


def fill(server: HttpServer, plan: Plan) -> float:
    """Acquire the leases. Returns how many seconds that took.

    It is done in pieces, because wrk runs for its full time even if its script has stopped, and because the pieces
    take the principals in turn.
    """
    start, made = time.monotonic(), 0
    while made < plan.leases:
        args = (str(plan.leases - made), str(plan.ttl_min), str(plan.ttl_max))
        piece = load.wrk("dibs_fill", server.url, FILL_CONNECTIONS, 1, args, server.next_token())
        if piece.bad or not piece.acquired:
            raise BenchError(f"{piece.bad} bad answers while filling, the first: {piece.first_bad}")
        made += piece.acquired
    return time.monotonic() - start


def lateness(found: History, fill_seconds: float, plan: Plan) -> Lateness:
    if not found.late_ms:
        raise BenchError(f"none of {found.leases} leases expired within the time")
    return Lateness(
        leases=found.leases,
        expired=len(found.late_ms),
        early=sum(1 for value in found.late_ms if value < 0),
        outages=found.outages,
        fill_seconds=fill_seconds,
        all_live_at_once=fill_seconds < plan.ttl_min,
        p50_ms=percentile(found.late_ms, 50),
        p90_ms=percentile(found.late_ms, 90),
        p99_ms=percentile(found.late_ms, 99),
        max_ms=found.late_ms[-1],
    )


def measure(plan: Plan, folder: Path, dibs: DibsTarget, say: Callable[[str], None]) -> Lateness:
    with tempfile.TemporaryDirectory(prefix="dibs-expiry-", dir=folder) as temp:
        with dibs.open(Path(temp)) as server:
            fill_seconds = fill(server, plan)
            wait = plan.ttl_max + plan.grace
            say(f"{plan.leases:,} leases in {fill_seconds:.1f} s; waiting {wait} s for them to run out")
            time.sleep(wait)
        # After the server ended: reading 100,000 events must not disturb the measurement.
        return lateness(history(read_events(Path(temp) / "dibs.db")), fill_seconds, plan)


def table(result: Lateness) -> list[str]:
    lines = ["**Lateness of `expired`, ms**", "", "| live leases | expired | early | p50 | p90 | p99 | max |"]
    lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    tail = " | ".join(f"{v:,.0f}" for v in (result.p50_ms, result.p90_ms, result.p99_ms, result.max_ms))
    lines += [f"| {result.leases:,} | {result.expired:,} | {result.early:,} | {tail} |", ""]
    if not result.all_live_at_once:
        lines += [f"**FLAGGED** filling took {result.fill_seconds:.0f} s, so not all were live at once.", ""]
    if result.expired < result.leases or result.early:
        lines += [
            f"**FLAGGED** {result.leases - result.expired:,} never expired, {result.early:,} early.",
            "",
        ]
    if result.outages:
        lines += [f"**FLAGGED** {result.outages} outages: owners got credit, so some are late by design.", ""]
    return lines
