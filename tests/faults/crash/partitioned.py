"""Workers share jobs on etcd while its members are cut off from each other. Runs in the namespace of the bridge.

    python -m tests.faults.crash.partitioned ADDRESS:PORT,ADDRESS:PORT,ADDRESS:PORT ROUNDS

The n-th member is behind the link `m<n>` of this namespace. Prints a line of JSON for each partition, then the verdict.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dibs.base.errors import DibsError
from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Release
from dibs.core.lease_outcomes import Released
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.etcd.client import STATUS, EtcdClient
from dibs.stores.etcd.location import EtcdLocation
from dibs.stores.etcd.messages import StatusAnswer
from dibs.stores.registry import open_store
from tests.core import raw

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS = 3
WORKERS = 4
LASTS_S = 12.0  # a request that was sent to a member that is cut off is given up after 5 seconds
SETTLES_S = 3.0  # an election takes 0.5 to 1 second
HEALS_S_MAX = 30
TTL_MS = 600_000  # no lease ends by itself


@dataclass
class Told:
    """What workers were told. A hold is from the grant to the call of its release."""

    holds: list[tuple[str, int, float, float]] = field(default_factory=list)
    errors: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)

    def count_since(self, when_s: float) -> int:
        with self.guard:
            return sum(1 for hold in self.holds if hold[2] >= when_s)


def work(url: str, number: int, told: Told, end: threading.Event) -> None:
    store = open_store(url)
    while not end.is_set():
        job, lease_id = f"job-{number % JOBS}", new_id()
        asked = Acquire(
            ns="default", name=job, principal="p", owner=str(number), ttl_ms=TTL_MS, fresh_lease_id=lease_id
        )
        outcome = until_told(store, asked, told)
        number += 1
        if not isinstance(outcome, Granted):
            time.sleep(0.1)
            continue
        from_s = time.monotonic()
        time.sleep(0.05)
        to_s = time.monotonic()
        with told.guard:
            told.holds.append((job, outcome.lease.token, from_s, to_s))
        until_told(store, Release(ns="default", name=job, principal="p", lease_id=lease_id), told)
    store.close()


def until_told(store: object, command: Acquire | Release, told: Told) -> object:
    """Ask until there is an answer, as a client does. A repeat with the same ids does nothing twice."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        try:
            return Coordinator(store).one(command)  # type: ignore[arg-type]
        except DibsError:
            with told.guard:
                told.errors += 1
            time.sleep(0.05)
    raise AssertionError("no answer for a minute")


def set_links(numbers: list[int], *words: str) -> None:
    """`up` or `down`, or with the words `isolated` and `on` or `off`, a flag of the bridge."""
    for each in numbers:
        before = ["bridge", "link", "set", "dev"] if "isolated" in words else ["ip", "link", "set"]
        subprocess.run([*before, f"m{each}", *words], check=True, timeout=60)


def leader(endpoints: list[str]) -> int:
    for number, each in enumerate(endpoints):
        host, port = each.split(":")
        client = EtcdClient(EtcdLocation(endpoints=((host, int(port)),), prefix="dibs"))
        try:
            status = client.read(STATUS, b"", StatusAnswer)
            if status.is_leader:
                return number
        except DibsError:
            pass
        finally:
            client.close()
    return 0


def cut_off(*numbers: int) -> Callable[[], None]:
    """Nobody reaches these members, until what is returned is called."""
    set_links([*numbers], "down")
    return lambda: set_links([*numbers], "up")


def apart(*numbers: int) -> Callable[[], None]:
    """These members do not reach each other; everybody else reaches all of them."""
    set_links([*numbers], "isolated", "on")
    return lambda: set_links([*numbers], "isolated", "off")


def refuses(endpoint: str) -> bool:
    """Whether a member without a majority refuses to read and to write, when it is the only one that is asked."""
    try:
        store = open_store(f"etcd://{endpoint}/dibs")
        store.read(["meta"])
    except DibsError:
        return True
    return False


def main(addresses: str, rounds: str) -> None:
    endpoints = addresses.split(",")
    url = f"etcd://{addresses}/dibs"
    open_store(url).close()
    told, end = Told(), threading.Event()
    workers = [threading.Thread(target=work, args=(url, number, told, end), daemon=True) for number in range(WORKERS)]
    for each in workers:
        each.start()
    for number in range(int(rounds)):
        first = leader(endpoints)
        others = [each for each in range(3) if each != first]
        name, serves, begin, members = (
            ("the leader is cut off", True, cut_off, [first]),
            ("a follower is cut off", True, cut_off, others[:1]),
            ("the leader and a follower are apart", True, apart, [first, others[0]]),
            ("all three are apart", False, apart, [0, 1, 2]),
        )[number % 4]
        heal = begin(*members)
        time.sleep(SETTLES_S)
        since_s = time.monotonic()
        alone = refuses(endpoints[0]) if not serves else None
        time.sleep(LASTS_S)
        served = told.count_since(since_s)
        heal()
        healed_s = time.monotonic()
        while not told.count_since(healed_s):
            assert time.monotonic() < healed_s + HEALS_S_MAX, f"{name}: nothing was granted after it"
            time.sleep(0.05)
        assert (served > 0) is serves, f"{name}: {served} claims were granted"
        assert alone in (None, True), f"{name}: a member without a majority answered"
        back_s = round(time.monotonic() - healed_s, 1)
        print(json.dumps({"partition": name, "granted": served, "granted_again_s": back_s}), flush=True)
    end.set()
    for each in workers:
        each.join(90)
        assert not each.is_alive(), "a worker hangs"
    judge(url, told)
    print(json.dumps({"holds": len(told.holds), "errors": told.errors}), flush=True)


def judge(url: str, told: Told) -> None:
    by_job: dict[str, list[tuple[str, int, float, float]]] = {}
    for hold in sorted(told.holds, key=lambda each: each[2]):
        by_job.setdefault(hold[0], []).append(hold)
    for holds in by_job.values():
        for before, after in itertools.pairwise(holds):
            assert before[3] <= after[2], f"two owners at once: {before} and {after}"
            assert before[1] < after[1], f"the token did not rise: {before} and {after}"
    store = open_store(url)
    raw.check(raw.raw_of(store, store.read(()).now_ms))  # type: ignore[arg-type]  # it reads any store
    for job in by_job:
        asked = Acquire(ns="default", name=job, principal="p", owner="next", ttl_ms=TTL_MS, fresh_lease_id=new_id())
        outcome = Coordinator(store).one(asked)
        assert isinstance(outcome, Granted), outcome
        released = Coordinator(store).one(
            Release(ns="default", name=job, principal="p", lease_id=outcome.lease.lease_id)
        )
        assert isinstance(released, Released)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
