"""A server under the same load for long: open sessions, claims at 80 % of its peak, lines, clients that vanish, pauses.

    python bench/steady.py --minutes 60                what scripts/dev/soak runs
    python bench/steady.py --minutes 1 --sessions 200  a trial

Says each tenth of the time: claims a second, p99, memory of the server, size of its files, the longest wait in a line.
Ends with 1 if after the first fifth memory grows by more than 5 %, if p99 doubles, or if somebody waited too long.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from http_client import Connection
from procs import BenchError, end_on_sigterm
from scale import Build, resident_mb, say, sessions
from stats import percentile
from targets import DibsTarget, HttpServer

WORKERS = 24
IN_LINE = 8  # more workers, who wait for two jobs
PEAK_S = 5.0
SHARE = 0.8
SESSION_TTL_S = 300
PAUSE_EVERY_S, PAUSE_S = 30.0, 0.5
HANGS_UP_ONE_IN = 50
MEMORY_GROWTH_MAX, P99_GROWTH_MAX, WAIT_S_MAX = 1.05, 2.0, 30.0


class Load:
    def __init__(self, server: HttpServer, pid: int, folder: Path) -> None:
        self._server, self._pid, self._folder = server, pid, folder
        self.taken_ms: list[float] = []
        self.longest_wait_s = 0.0
        self.failed = 0
        self.rate = 0.0  # cycles a second of one worker; 0: as fast as it goes
        self.ends = False

    async def connect(self, number: int) -> Connection:
        return await Connection.open(self._server.url, self._server.tokens[number % len(self._server.tokens)])

    async def claims(self, number: int) -> None:
        """Claim and release jobs of its own."""
        connection, turn = await self.connect(number), 0
        due = time.monotonic()
        while not self.ends:
            turn += 1
            if self.rate:
                due = max(due + 1 / self.rate, time.monotonic() - 1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            name = f"/locks/own-{number}-{turn % 50}"
            began = time.perf_counter()
            reply = await connection.ask("POST", f"{name}/acquire", {"ttl_seconds": 30})
            self.taken_ms.append((time.perf_counter() - began) * 1000)
            await connection.ask("POST", f"{name}/release", {"lease_id": reply["lease_id"]})

    async def waits(self, number: int) -> None:
        """Wait in the line of a job that others want, too. Now and then hang up while waiting, or while holding."""
        chance, connection = random.Random(number), await self.connect(number)
        while not self.ends:
            name = f"/locks/line-{number % 2}"
            began = time.monotonic()
            connection.send("POST", f"{name}/acquire", {"ttl_seconds": 2, "wait_seconds": 60})
            if chance.randrange(HANGS_UP_ONE_IN) == 0:
                connection.close()
                connection = await self.connect(number)
                continue
            reply = await connection.receive()
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began)
            if reply["status"] != "acquired":
                self.failed += 1
                continue
            await asyncio.sleep(0.02)
            if chance.randrange(HANGS_UP_ONE_IN) == 0:  # killed: its lease runs out
                connection.close()
                connection = await self.connect(number)
                continue
            await connection.ask("POST", f"{name}/release", {"lease_id": reply["lease_id"]})

    async def keeps(self, build: Build, opened: list[str]) -> None:
        """Renew every session, three times in its TTL."""
        connections = [await self.connect(number) for number in range(32)]
        due = time.monotonic()
        while not self.ends:
            for number, session in enumerate(opened):
                due = max(due + SESSION_TTL_S / 3 / len(opened), time.monotonic() - 1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if self.ends:
                    return
                await connections[number % 32].ask("POST", f"/sessions/{session}/keepalive", {})

    async def pauses(self) -> None:
        while not self.ends:
            await asyncio.sleep(PAUSE_EVERY_S)
            os.kill(self._pid, signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)
            os.kill(self._pid, signal.SIGCONT)

    def files_mb(self) -> float:
        return sum(each.stat().st_size for each in self._folder.rglob("*.db*")) / 1e6


async def run(server: HttpServer, pid: int, folder: Path, minutes: float, count: int) -> int:
    load = Load(server, pid, folder)
    build = Build(server)
    await build.open()
    opened = await sessions(build, count)
    tasks = [asyncio.create_task(load.claims(number)) for number in range(WORKERS)]
    await asyncio.sleep(PEAK_S)
    peak = len(load.taken_ms) / PEAK_S
    load.rate = SHARE * peak / WORKERS
    say(f"peak: {peak:,.0f} claims and releases a second; from now on {SHARE * peak:,.0f}")
    tasks += [asyncio.create_task(load.waits(number)) for number in range(IN_LINE)]
    tasks += [asyncio.create_task(load.keeps(build, opened)), asyncio.create_task(load.pauses())]
    rows: list[tuple[float, float]] = []
    say("| minute | claims a second | p99, ms | memory, MB | files, MB | longest wait in line, s |")
    say("| ---: | ---: | ---: | ---: | ---: | ---: |")
    part_s = minutes * 60 / 10
    for part in range(1, 11):
        load.taken_ms.clear()
        ended, _ = await asyncio.wait(tasks, timeout=part_s, return_when=asyncio.FIRST_EXCEPTION)
        for each in ended:
            each.result()
        taken = sorted(load.taken_ms)
        rows.append((resident_mb(pid), percentile(taken, 99)))
        say(
            f"| {part * part_s / 60:.1f} | {len(taken) / part_s:,.0f} | {rows[-1][1]:.1f} | {rows[-1][0]:.1f}"
            f" | {load.files_mb():.1f} | {load.longest_wait_s:.1f} |"
        )
    load.ends = True
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    os.kill(pid, signal.SIGCONT)
    return verdict(rows[2:], load)


def verdict(rows: list[tuple[float, float]], load: Load) -> int:
    memory = rows[-1][0] / rows[0][0]
    p99 = sorted(row[1] for row in rows[-3:])[1] / sorted(row[1] for row in rows[:3])[1]
    say(f"memory x {memory:.3f}, p99 x {p99:.2f}, longest wait {load.longest_wait_s:.1f} s, not granted {load.failed}")
    is_good = memory <= MEMORY_GROWTH_MAX and p99 <= P99_GROWTH_MAX and load.longest_wait_s <= WAIT_S_MAX
    return 0 if is_good and not load.failed else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/steady.py", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="dibs-steady-") as top:
        try:
            with DibsTarget().open(Path(top)) as server:
                return asyncio.run(run(server, server.pids[0], Path(top), options.minutes, options.sessions))
        except BenchError as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
