"""Counts lost updates: workers add 1 to a number under a lock with a lease of 2 seconds, and owners are paused.

Four workers read the number, work, and write it. Now and then an owner is paused (SIGSTOP) for longer than its lease. A
lock that nobody fences loses what others wrote meanwhile.

    scripts/dev/paused-owner [--pauses 24] [--only dibs]

Prints a table in Markdown. `lost` is how many additions the number lacks at the end; `told`, how many owners were told
afterwards that their lock had not been theirs to the end; `refused`, how many late writes were refused.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from procs import BenchError
from targets import DibsTarget, EtcdTarget, RedisTarget

TTL_S = 2
PAUSE_S = 3.0
WORK_S = 0.02
WORKERS = 4
ONE_IN = 12  # so many turns of a worker, one pause


@dataclass
class Turn:
    """One addition. `pause` is called after the lock was taken, or after the number was read."""

    db: sqlite3.Connection
    pause_early: Callable[[], None]
    pause_late: Callable[[], None]

    def add(self) -> None:
        self.pause_early()
        (value,) = self.db.execute("SELECT value FROM number").fetchone()
        time.sleep(WORK_S)
        self.pause_late()
        self.db.execute("UPDATE number SET value = ?", (value + 1,))


class Told(Exception):
    """The lock was not ours to the end; the write was made."""


class Refused(Exception):
    """The write was refused."""


Taken = Callable[[Turn], None]


def dibs_plain(url: str, token: str) -> Taken:
    import dibs

    client = dibs.Client(url, token)

    def turn(it: Turn) -> None:
        try:
            with client.claim("number", ttl=TTL_S, wait=60):
                it.add()
        except dibs.LeaseLost:
            raise Told from None

    return turn


def dibs_fenced(url: str, token: str) -> Taken:
    import dibs

    client = dibs.Client(url, token)

    def turn(it: Turn) -> None:
        fence = dibs.Fence(it.db)
        done = False
        try:
            with client.claim("number", ttl=TTL_S, wait=60) as claim:
                it.pause_early()
                with fence.transaction(claim):
                    Turn(it.db, lambda: None, it.pause_late).add()
                done = True
        except (dibs.StaleToken, dibs.LeaseLost):
            raise (Told if done else Refused) from None

    return turn


def redis_lock(port: str) -> Taken:
    redis: Any = importlib.import_module("redis")
    client = redis.Redis(port=int(port))

    def turn(it: Turn) -> None:
        lock = client.lock("number", timeout=TTL_S, blocking_timeout=60, sleep=0.01)
        assert lock.acquire()
        it.add()
        try:
            lock.release()
        except redis.exceptions.LockError:
            raise Told from None

    return turn


def etcd_lock(url: str) -> Taken:
    """The lock of etcd's own API, on a lease that a thread keeps alive."""

    def ask(path: str, **document: Any) -> Any:
        request = urllib.request.Request(f"{url}/v3/{path}", json.dumps(document).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.readline())

    name = base64.b64encode(b"number").decode()

    def turn(it: Turn) -> None:
        lease = ask("lease/grant", TTL=TTL_S)["ID"]
        end = threading.Event()

        def keep() -> None:
            while not end.wait(TTL_S / 3):
                with contextlib.suppress(OSError):
                    ask("lease/keepalive", ID=lease)

        threading.Thread(target=keep, daemon=True).start()
        try:
            ask("lock/lock", name=name, lease=lease)
            it.add()
        finally:
            end.set()
        try:
            ask("lease/revoke", ID=lease)
        except urllib.error.HTTPError:  # there is no such lease any more
            raise Told from None

    return turn


@dataclass(frozen=True)
class Contestant:
    name: str
    take: Callable[..., Taken]
    open: Callable[[Path], contextlib.AbstractContextManager[Any]]
    words: Callable[[Any], tuple[str, ...]]


CONTESTANTS = (
    Contestant("dibs with its fence", dibs_fenced, DibsTarget().open, lambda server: (server.url, server.next_token())),
    Contestant("dibs without a fence", dibs_plain, DibsTarget().open, lambda server: (server.url, server.next_token())),
    Contestant("etcd's lock", etcd_lock, EtcdTarget().open, lambda server: (server.url,)),
    Contestant("redis-py `Lock`", redis_lock, RedisTarget().open, lambda server: (str(server.port),)),
)


@dataclass
class Result:
    added: int = 0
    pauses: int = 0
    told: int = 0
    refused: int = 0


def work(contestant: Contestant, words: tuple[str, ...], path: str, seed: int, left: Any, results: Any) -> None:
    """Add until all pauses were made."""
    chance, result = random.Random(seed), Result()
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    take = contestant.take(*words)

    def pause() -> None:
        with left.get_lock():
            if not left.value:
                return
            left.value -= 1
        result.pauses += 1
        os.kill(os.getpid(), signal.SIGSTOP)

    def nothing() -> None:
        pass

    while left.value:
        when = chance.randrange(2 * ONE_IN)
        it = Turn(db, pause if when == 0 else nothing, pause if when == 1 else nothing)
        try:
            take(it)
            result.added += 1
        except Told:
            result.added += 1
            result.told += 1
        except Refused:
            result.refused += 1
    results.put(result)


def waking(pids: list[int], end: threading.Event) -> None:
    """Let every paused process go on after PAUSE_S."""
    stopped: dict[int, float] = {}
    while not end.wait(0.02):
        for pid in pids:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                    stopped.pop(pid, None)
                elif time.monotonic() - stopped.setdefault(pid, time.monotonic()) >= PAUSE_S:
                    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def database(folder: Path) -> Iterator[str]:
    import dibs

    path = str(folder / "data.db")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE number (value INTEGER)")
    db.execute("INSERT INTO number VALUES (0)")
    dibs.Fence(db).create()
    db.close()
    yield path


def run(contestant: Contestant, pauses: int, seed: int) -> tuple[Result, int]:
    """The sum of what the workers did, and the number at the end."""
    processes = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="dibs-paused-") as top,
        database(Path(top)) as path,
    ):
        os.chmod(top, 0o755)
        with contestant.open(Path(top)) as server:
            left, results = processes.Value("i", pauses), processes.Queue()
            words = contestant.words(server)
            index = CONTESTANTS.index(contestant)
            workers = [
                processes.Process(target=_work, args=(index, words, path, seed + number, left, results))
                for number in range(WORKERS)
            ]
            for each in workers:
                each.start()
            end = threading.Event()
            pids = [each.pid for each in workers if each.pid is not None]
            waker = threading.Thread(target=waking, args=(pids, end))
            waker.start()
            try:
                found = [results.get(timeout=60 + 30 * pauses) for _ in workers]
            finally:
                for each in workers:
                    each.join(10)
                    each.kill()
                end.set()
                waker.join()
        db = sqlite3.connect(path)
        (value,) = db.execute("SELECT value FROM number").fetchone()
        db.close()
    total = Result(*(sum(getattr(each, name) for each in found) for name in ("added", "pauses", "told", "refused")))
    return total, value


def _work(index: int, *more: Any) -> None:
    work(CONTESTANTS[index], *more)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/dev/paused-owner", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--pauses", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="those whose name has this word")
    options = parser.parse_args()
    print("| lock, lease of 2 s | owners paused for 3 s | additions | lost | told afterwards | late writes refused |")
    print("| --- | --- | --- | --- | --- | --- |")
    for contestant in CONTESTANTS:
        if options.only not in contestant.name:
            continue
        try:
            result, value = run(contestant, options.pauses, options.seed)
        except (BenchError, ImportError, FileNotFoundError) as error:
            print(f"{contestant.name} was left out: {error}", file=sys.stderr)
            continue
        lost = result.added - value
        row = (contestant.name, result.pauses, result.added, lost, result.told, result.refused)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
