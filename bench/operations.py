"""What one operation costs: CPU time of the dibs server and of the database, bytes written, events.

32 connections do the same operation on jobs of their own, phase by phase: claim, renew, look, release. CPU time is read
before and after each phase, so the load generator, this process, is not in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import store_targets
from databases import Database
from http_client import Connection
from procs import cpu_seconds
from store_targets import DibsServers, dibs_servers

from dibs.stores.port import Store
from dibs.stores.registry import open_store

WORKERS = 32
EVENTS_MAX = 1_000_000
OPERATIONS = ("acquire", "renew", "get", "release")


@dataclass(frozen=True, slots=True)
class Cost:
    database: str
    operation: str
    count: int
    seconds: float
    server_cpu_us: float
    database_cpu_us: float
    written_bytes: float
    events: float | None = None
    """None in rounds that did not count them."""


class Worker:
    """One connection and its jobs."""

    def __init__(self, connection: Connection, number: int, jobs: int) -> None:
        self._connection = connection
        self._leases = {f"worker-{number}-job-{job}": "" for job in range(jobs)}

    async def run(self, operation: str) -> None:
        for name, lease in self._leases.items():
            reply = await self._connection.ask(*_request(operation, name, lease))
            if operation == "acquire":
                self._leases[name] = reply["lease_id"]


def _request(operation: str, name: str, lease: str) -> tuple[str, str, Any]:
    if operation == "get":
        return "GET", f"/locks/{name}", None
    body = {"ttl_seconds": 600} if operation == "acquire" else {"lease_id": lease}
    return "POST", f"/locks/{name}/{operation}", body


async def _phases(database: Database, servers: DibsServers, jobs: int) -> list[Cost]:
    workers = [
        Worker(await Connection.open(servers.urls[0], servers.tokens[0]), number, jobs) for number in range(WORKERS)
    ]
    store = open_store(database.url)
    found = []
    for operation in OPERATIONS:
        seen = _last_event(store)
        before = _state(database, servers)
        await asyncio.gather(*(worker.run(operation) for worker in workers))
        after = _state(database, servers)
        count = WORKERS * jobs
        seconds, server_s, database_s, written = (b - a for a, b in zip(before, after, strict=True))
        found.append(
            Cost(
                database=database.kind,
                operation=operation,
                count=count,
                seconds=seconds,
                server_cpu_us=server_s / count * 1e6,
                database_cpu_us=database_s / count * 1e6,
                written_bytes=written / count,
                events=len(store.events(seen, EVENTS_MAX)) / count,
            )
        )
    store.close()
    return found


def _last_event(store: Store) -> int:
    return max((event.seq for event in store.events(0, 1, newest=True)), default=0)


def _state(database: Database, servers: DibsServers) -> tuple[float, ...]:
    written = float(database.written_bytes())
    return time.perf_counter(), cpu_seconds(*servers.pids), database.cpu_seconds(), written


def measure(kind: str, folder: Path, jobs: int, say: Callable[[str], None]) -> list[Cost]:
    folder.chmod(0o755)  # a database of another user is in it
    with (
        store_targets.database(kind, folder) as database,
        dibs_servers(folder, database.url, 1) as servers,
    ):
        found = asyncio.run(_phases(database, servers, jobs))
    for cost in found:
        say(
            f"{cost.database:<9} {cost.operation:<8} server {cost.server_cpu_us:6.0f} us  database "
            f"{cost.database_cpu_us:6.0f} us  {cost.written_bytes:7.0f} bytes"
        )
    return found
