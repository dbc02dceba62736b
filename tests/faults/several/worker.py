"""A program with a few threads that claim a few jobs over and over, at any of several servers.

python -m tests.faults.several.worker URLS TOKEN NAME FOLDER SEED

One more thread keeps a job of its own for as long as the program runs. Each thread notes its answers in a file of its
own, with the time of the clock that all processes of a machine share. Every claim has an owner's name of its own, so
that it can be found in the store's history. The program ends when the file FOLDER/over exists.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dibs import Client, DibsError, LeaseLost, NotClaimed
from dibs.base.clock import steady_ms
from tests.build import SOAK
from tests.faults.contender import OVER, Resource
from tests.programs import pause, slowness

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs import Claim, Lease

Answer = TypeVar("Answer")

JOBS = ("job-0", "job-1", "job-2", "job-3")
THREADS = 3
TTL_S = 3
SHORT_TTL_S = 1
KEPT_TTL_S = 30 * slowness()  # longer than any fault: whoever lives must not lose it
WAIT_S = 5
PAUSE_S = 0.02
# How long a job is worked on between two questions. Short ones ask more: with 0.04 three programs take two cores.
WORK_S_MAX = 0.04 if SOAK else 0.25
ASK_MS_MAX = 60_000
LIFE_MS_MAX = 1_800_000


class Worker:
    """One thread: it claims in blocks, by hand and in sessions, as its seed says."""

    def __init__(self, url: str, token: str, name: str, folder: Path, seed: str) -> None:
        self._chance = random.Random(f"{seed} {name}")
        self._client = Client(url, token, timeout=5)
        self._name = name
        self._over = folder / OVER
        self._resource = Resource(folder, name)
        self._number = 0

    def run(self) -> None:
        until_ms = steady_ms() + LIFE_MS_MAX
        ways = [self._in_a_block] * 3 + [self._by_hand] * 2 + [self._in_a_session]
        while not self._over.exists() and steady_ms() < until_ms:
            try:
                self._chance.choice(ways)()
            except NotClaimed as refused:
                self._note("refused", code=refused.code)
            except LeaseLost:
                self._note("lost")
            except DibsError as trouble:
                self._note("trouble", code=trouble.code, says=str(trouble))
                pause(PAUSE_S)
            except Exception as error:  # a fault of the SDK, or of this file
                self._note("crashed", says=f"{type(error).__name__}: {error}")
                raise
        self.close()

    def keep(self) -> None:
        """Have one job all the time. No fault lasts as long as its lease, so it is never lost."""
        until_ms = steady_ms() + LIFE_MS_MAX
        job = f"kept-{self._name}"
        try:
            lease = self._until_answered(
                lambda: self._client.claim(job, ttl=KEPT_TTL_S, owner=self._owner()).__enter__()
            )
            while not self._over.exists() and steady_ms() < until_ms:
                lease.check()
                self._note("kept")
                pause(0.2)
            self._until_answered(lease.release)
        except LeaseLost as lost:
            self._note("not kept", says=f"{job}: {lost}")
        self.close()

    def close(self) -> None:
        self._client.close()
        self._resource.close()

    def _note(self, what: str, **more: object) -> None:
        self._resource.note(what=what, at_ms=steady_ms(), **more)

    def _owner(self) -> str:
        self._number += 1
        return f"{self._name}.{self._number}"

    def _wait_s(self) -> int:
        return self._chance.choice([0, 1, WAIT_S, WAIT_S])

    def _in_a_block(self) -> None:
        job, owner = self._chance.choice(JOBS), self._owner()
        with self._client.claim(job, ttl=TTL_S, wait=self._wait_s(), owner=owner) as claim:
            self._work(claim, job, owner)

    def _in_a_session(self) -> None:
        """Two jobs, in any order. Two sessions may deadlock, and then one of them is refused."""
        first, second = self._chance.sample(JOBS, 2)
        with self._client.session(owner=self._name, ttl=TTL_S) as session:
            one, two = self._owner(), self._owner()
            with session.claim(first, wait=self._wait_s(), owner=one) as claim:
                with session.claim(second, wait=self._wait_s(), owner=two) as other:
                    self._work(other, second, two)
                self._work(claim, first, one)

    def _work(self, claim: Claim, job: str, owner: str) -> None:
        token = claim.fencing_token
        self._note("got", job=job, owner=owner, token=token)
        for _ in range(self._chance.randrange(1, 4)):
            before_ms = steady_ms()
            claim.check()
            self._note("believed", job=job, owner=owner, token=token, before_ms=before_ms)
            pause(self._chance.random() * WORK_S_MAX)
            self._resource.write_fenced(token, job)
        asked_ms = steady_ms()
        claim.release()
        self._note("released", job=job, owner=owner, token=token, asked_ms=asked_ms)

    def _by_hand(self) -> None:
        job, owner = self._chance.choice(JOBS), self._owner()
        is_left = self._chance.random() < 0.05
        ttl_s = SHORT_TTL_S if is_left else TTL_S
        wait_s = self._wait_s()
        asked_ms = steady_ms()

        def acquire() -> Lease:
            return self._client.acquire(job, ttl=ttl_s, wait=wait_s, owner=owner, request_key=owner)

        lease = self._until_answered(acquire)
        known: dict[str, Any] = {"job": job, "owner": owner, "token": lease.fencing_token}
        self._note("got", **known)
        self._note("sure", **known, until_ms=asked_ms + ttl_s * 1000)
        if is_left:
            return
        if self._chance.random() < 0.3:
            self._repeat(acquire, lease, known)
        asked_ms = steady_ms()
        self._until_answered(lambda: self._client.renew(job, lease.lease_id, checkpoint=owner))
        self._note("renewed", **known)
        self._note("sure", **known, until_ms=asked_ms + TTL_S * 1000)
        pause(self._chance.random() * WORK_S_MAX)
        asked_ms = steady_ms()
        self._note("releases", **known)  # before it is asked for: a program that is killed meanwhile notes nothing more
        self._until_answered(lambda: self._client.release(job, lease.lease_id))
        self._note("released", **known, asked_ms=asked_ms)

    def _repeat(self, acquire: Callable[[], Lease], lease: Lease, known: dict[str, Any]) -> None:
        """The same request key again: the same lease, or the news that it has ended."""
        again = self._until_answered(acquire)
        if (again.lease_id, again.fencing_token) != (lease.lease_id, lease.fencing_token):
            self._note("doubled", **known, again=again.fencing_token)

    def _until_answered(self, ask: Callable[[], Answer]) -> Answer:
        give_up_ms = steady_ms() + ASK_MS_MAX
        while True:
            try:
                return ask()
            except (NotClaimed, LeaseLost):
                raise
            except DibsError as trouble:
                self._note("again", code=trouble.code, says=str(trouble))
                # A request key whose lease has ended is refused for good.
                if trouble.code == "conflict" or steady_ms() > give_up_ms:
                    raise
                pause(PAUSE_S)


def main(url: str, token: str, name: str, folder: str, seed: str) -> None:
    def work(number: int) -> None:
        Worker(url, token, f"{name}-{number}", Path(folder), seed).run()

    def keep() -> None:
        Worker(url, token, f"{name}-keeper", Path(folder), seed).keep()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    threads.append(threading.Thread(target=keep))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    faulthandler.enable()  # who aborts it sees what its threads do
    main(*sys.argv[1:])
