"""Several dibs servers on PostgreSQL and on etcd, beside the usual ways without dibs.

Rounds are interleaved: in each, every contender has its turn on a new database. Then hand-offs: from one server to
another, and on one of the two, in turns. Then what each operation costs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import handoff
import operations
import store_targets
from disk import Disk
from http_client import Connection
from load import Sample
from operations import Cost
from stats import percentile
from store_targets import Contender, Measured, dibs_servers

Say = Callable[[str], None]
_jobs = itertools.count()


@dataclass(frozen=True, slots=True)
class StorePlan:
    rounds: int
    seconds: int
    connections: Sequence[int]
    hand_offs: int
    jobs: int
    """For each of 32 workers, when operations are measured."""
    folder: Path
    disk: Disk


@dataclass(frozen=True, slots=True)
class Turn:
    database: str
    contender: str
    connections: int
    round: int
    measured: Measured


@dataclass(frozen=True, slots=True)
class HandOff:
    """Milliseconds from a release to the next owner's reply. `way`: "same" server, or "across" to the other one."""

    database: str
    way: str
    round: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class StoreResults:
    turns: list[Turn]
    hand_offs: list[HandOff]
    costs: list[Cost]

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> StoreResults:
        turns = [
            Turn(**each | {"measured": Measured(**measured | {"sample": Sample(**measured["sample"])})})
            for each in document["turns"]
            for measured in [each["measured"]]
        ]
        hand_offs = [HandOff(**each) for each in document["hand_offs"]]
        return cls(turns, hand_offs, [Cost(**each) for each in document["costs"]])

    def rounds(self) -> int:
        return 1 + max((turn.round for turn in self.turns), default=-1)

    def flagged(self) -> bool:
        return any(turn.measured.sample.bad for turn in self.turns)


def measure(plan: StorePlan, found: StoreResults, say: Say) -> Iterator[int]:
    """Adds rounds to `found`. Gives the number of each one that is over."""
    contenders = usable(store_targets.CONTENDERS, say)
    kinds = list(dict.fromkeys(each.database for each in contenders))
    first = found.rounds()
    for number in range(first, first + plan.rounds):
        shift = number % max(1, len(contenders))
        for contender in contenders[shift:] + contenders[:shift]:
            found.turns.extend(_turns(contender, plan, number, say))
        for kind in kinds:
            found.hand_offs.extend(_hand_offs(kind, plan, number, say))
            if plan.jobs:
                with _folder(plan) as folder:
                    found.costs.extend(operations.measure(kind, Path(folder), plan.jobs, say))
        yield number


def read(path: Path | None) -> StoreResults:
    """What an earlier run left there."""
    if path is None or not path.exists():
        return StoreResults([], [], [])
    return StoreResults.from_document(json.loads(path.read_text()))


def write(path: Path, found: StoreResults, machine: object) -> None:
    document = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine} | asdict(found)
    path.write_text(json.dumps(document, indent=1) + "\n")


def usable(contenders: Sequence[Contender], say: Say) -> list[Contender]:
    kept = []
    for contender in contenders:
        if why := contender.missing():
            say(f"!!! SKIPPED {contender.name}: {why}")
        else:
            kept.append(contender)
    return kept


def _folder(plan: StorePlan) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=plan.folder, ignore_cleanup_errors=True)


def _turns(contender: Contender, plan: StorePlan, number: int, say: Say) -> list[Turn]:
    made = []
    with _folder(plan) as folder:
        Path(folder).chmod(0o755)  # a database of another user is in it
        with contender.open(Path(folder)) as bench:
            bench.drive(max(plan.connections), 1)  # does not count
            for connections in plan.connections:
                if connections < contender.servers:
                    continue
                found = plan.disk.calm(
                    f"{contender.database} {contender.name} {connections}",
                    partial(bench.measure, connections, plan.seconds),
                )
                if found is None:
                    continue
                turn = Turn(contender.database, contender.name, connections, number, found[0])
                say(_progress(turn))
                made.append(turn)
    return made


def _progress(turn: Turn) -> str:
    sample = turn.measured.sample
    line = (
        f"round {turn.round + 1}  {turn.database:<9} {turn.contender:<40} {turn.connections:>3} connections "
        f"{sample.requests_per_s:>8,.0f} requests/s  p50 {sample.p50_ms:.2f} ms  p99 {sample.p99_ms:.2f} ms  "
        f"CPU {turn.measured.service_cpu_s:.2f} + {turn.measured.database_cpu_s:.2f} s"
    )
    return f"{line}\n!!! {sample.bad} bad answers, the first: {sample.first_bad}" if sample.bad else line


def _hand_offs(kind: str, plan: StorePlan, number: int, say: Say) -> list[HandOff]:
    """Both ways on the same two servers, first the one and then the other in each second round."""
    made = []
    ways = ["same", "across"] if number % 2 == 0 else ["across", "same"]
    with _folder(plan) as folder:
        Path(folder).chmod(0o755)
        with (
            store_targets.database(kind, Path(folder)) as database,
            dibs_servers(Path(folder), database.url, 2) as servers,
        ):
            for way in ways:
                urls = servers.urls if way == "across" else [servers.urls[0]] * 2
                found = plan.disk.calm(
                    f"{kind} hand-off {way}",
                    lambda urls=urls, way=way: asyncio.run(_pass_on(urls, servers.tokens[0], way, plan.hand_offs)),
                )
                if found is None:
                    continue
                taken = sorted(found[0])
                one = HandOff(kind, way, number, percentile(taken, 50), percentile(taken, 99))
                say(f"{kind:<9} hand-off {way:<6} p50 {one.p50_ms:.2f} ms  p99 {one.p99_ms:.2f} ms")
                made.append(one)
    return made


async def _pass_on(urls: Sequence[str], token: str, way: str, count: int) -> list[float]:
    """One owner and one who waits; a fresh job goes to and fro between the servers at `urls`."""
    connections = [await Connection.open(url, token) for url in urls]
    line = handoff.DibsLine(connections, await Connection.open(urls[0], token), job=f"job-{way}-{next(_jobs)}")
    return await handoff.hand_offs(line, 1, count, await handoff.take_places(line, 1))
