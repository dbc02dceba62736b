"""Three servers on one store, clients of all three, and faults by seed. The clients' notes are checked afterwards.

    clients --- link --- server --- link --- store         one link for each server and each member of the store

With DIBS_FAULTS_EARLIER, which names the Python of an environment that has another version of dibs, every second server
and every second client is of that version.

The wall clocks of the servers are apart by minutes. All processes share the machine's steady clock. Clients note
their answers with its time, so that the notes of two clients can be compared.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dibs.base.clock import steady_ms
from tests.faults.cluster import TOKEN, Cluster
from tests.faults.contender import OVER
from tests.faults.schedules import prepare
from tests.faults.several.link import Link, Links
from tests.faults.several.stores import Fault, all_of
from tests.faults.several.worker import TTL_S
from tests.faults.standing import left_behind
from tests.programs import WAIT_S_MAX, pass_by, start_program, wait_until, wait_until_stopped

if TYPE_CHECKING:
    from tests.faults.several.stores import SharedStore

EARLIER = os.environ.get("DIBS_FAULTS_EARLIER")
WORKER = "tests.faults.several.worker"
STEPPED = Path(__file__).parents[1] / "stepped.py"
SERVERS = 3
PROGRAMS = 3
CLOCKS_MS = (0, 20 * 60_000, -35 * 60_000)
PAUSE_MS = TTL_S * 1000 + 500  # of a client: longer than its leases
ENOUGH = 5  # claims that must go through before and after the end of a fault
PROGRESS_S_MAX = 45.0


class Rig:
    def __init__(self, folder: Path, store: SharedStore, seed: int) -> None:
        self.folder = folder
        self.store = store
        self.faults: Counter[str] = Counter()
        self.slowest_ms = 0  # from the end of a fault until claims went through again
        self._seed = seed
        self._chance = random.Random(seed)
        self._stack = ExitStack()
        self._programs: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._fronts: list[Link] = []
        self._backs: list[list[Link]] = []
        self._read: dict[Path, tuple[int, int]] = {}

    def run_each(self) -> None:
        """Every fault once, and not for long. Faults that do not concern the store happen on a file only."""
        with self._stack:
            self._begin()
            faults = self._of_servers() + (self._of_the_store() if self.store.places else self._of_clients())
            self._chance.shuffle(faults)
            for fault in faults:
                self._suffer([fault], 500)
            self._end()

    def run_for(self, lasts_ms: int) -> None:
        """Random faults, again and again, and now and then two at once."""
        until_ms = steady_ms() + lasts_ms
        with self._stack:
            self._begin()
            while steady_ms() < until_ms:
                faults = self._of_servers() + self._of_the_store() + self._of_clients()
                count = 2 if self._chance.random() < 0.25 else 1
                self._suffer(_apart(self._chance.sample(faults, count)), 2_000)
            self._end()

    def _begin(self) -> None:
        prepare(self.folder)
        links = self._stack.enter_context(Links())
        for number in range(SERVERS):
            self._clock(number).write_text(str(CLOCKS_MS[number]))
            self._backs.append([links.link(lambda place=place: place) for place in self.store.places])  # type: ignore[misc]
        self._cluster = Cluster(
            self.folder,
            lambda number: self.store.url_by([link.port for link in self._backs[number]]),
            self._stack,
            lambda number: (self._python(number), str(STEPPED), str(self._clock(number))),
        )
        self._cluster.start(SERVERS, "--drain", "2s")
        for number in range(SERVERS):
            self._fronts.append(links.link(lambda number=number: self._address(number)))  # type: ignore[misc]
        self._stack.callback(self._kill_programs)
        for _ in range(PROGRAMS):
            self._start_program()
        self._progress("the workers begin")

    def _python(self, number: int) -> str:
        """The interpreter of a server or a program, and with it its version of dibs."""
        return EARLIER if EARLIER and number % 2 else sys.executable

    def _clock(self, number: int) -> Path:
        return self.folder / f"clock-{number}"

    def _address(self, number: int) -> tuple[str, int]:
        url = urlsplit(self._cluster.servers[number].url)
        return str(url.hostname), int(url.port or 0)

    def _start_program(self) -> None:
        self._started += 1
        url = ",".join(f"http://127.0.0.1:{link.port}" for link in self._fronts)
        words = (url, TOKEN, f"p{self._started}", str(self.folder), str(self._seed))
        with open(self.folder / f"p{self._started}.log", "wb") as log:
            python = self._python(self._started)
            self._programs.append(start_program(WORKER, *words, python=python, stderr=log))

    def _kill_programs(self) -> None:
        for program in self._programs:
            program.kill()
            program.wait(WAIT_S_MAX)

    def _end(self) -> None:
        (self.folder / OVER).touch()
        for program in self._programs:
            self._await(program)
        seen: list[str] = []

        def is_clean() -> bool:
            # What a killed program kept lasts longer. History must say of each other hold how it ended.
            seen[:] = left_behind(self.store.url, "job-", unswept=True)
            return not seen

        try:
            wait_until(is_clean, "nothing is left behind")
        except AssertionError:
            raise AssertionError(f"left behind: {seen}") from None

    def _await(self, program: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a worker. One that does not end says where its threads are, and what they met."""
        try:
            assert program.wait(PROGRESS_S_MAX) == 0, f"a worker failed (seed {self._seed})"
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGABRT)
            program.wait(WAIT_S_MAX)
            diaries = sorted(self.folder.glob("p*.jsonl"))
            noted = [f"{diary.name}: {line}" for diary in diaries for line in diary.read_text().splitlines()[-3:]]
            said = [log.read_text() for log in self.folder.glob("p*.log")]
            now = f"a worker does not end (seed {self._seed}, now {steady_ms()})"
            raise AssertionError("\n".join([now, *noted, *said])) from None

    # Faults

    def _suffer(self, faults: list[Fault], lasts_ms_max: int) -> None:
        for fault in faults:
            self.faults[fault.name] += 1
            with open(self.folder / "faults", "a") as file:
                file.write(f"{steady_ms()} {fault.name}\n")
            fault.begin()
        until_ms = steady_ms() + self._chance.randrange(200, lasts_ms_max)
        if len(faults) == 1 and faults[0].serves:
            self._progress(f"claims go through: {faults[0].name}")
        pass_by(until_ms)
        for fault in reversed(faults):
            fault.heal()
        healed_ms = steady_ms()
        self._progress(f"claims go through after: {', '.join(fault.name for fault in faults)}")
        self.slowest_ms = max(self.slowest_ms, steady_ms() - healed_ms)

    def _progress(self, what: str) -> None:
        wanted = self.granted() + ENOUGH
        wait_until(lambda: self.granted() >= wanted, f"{what} (seed {self._seed})", PROGRESS_S_MAX)

    def granted(self) -> int:
        """How many claims the workers have noted so far."""
        for diary in self.folder.glob("p*.jsonl"):
            at, count = self._read.get(diary, (0, 0))
            with open(diary, "rb") as file:
                file.seek(at)
                more = file.read()
            self._read[diary] = (at + len(more), count + more.count(b'"what": "got"'))
        return sum(count for _, count in self._read.values())

    # Each chooses its own server, program, or members.

    def _of_servers(self) -> list[Fault]:
        number = self._chance.randrange(SERVERS)
        found = [self._of_a_server(number, what) for what in ("killed", "paused")]
        found.append(Fault("all servers killed", self._kill_servers, self._start_servers))
        found.append(self._of_a_clock(number))
        return found

    def _of_clients(self) -> list[Fault]:
        number = self._chance.randrange(SERVERS)
        found = [self._of_a_server(number, "drained")]
        found += self._of_links("clients", [self._fronts[number]])
        found += [self._of_a_program("killed"), self._of_a_program("paused")]
        return found

    def _of_the_store(self) -> list[Fault]:
        if not self.store.places:
            return []
        links = self._backs[self._chance.randrange(SERVERS)]
        return [*self.store.faults(self._chance), *self._of_links("store", links)]

    def _of_a_server(self, number: int, what: str) -> Fault:
        server = self._cluster.servers[number]
        begin, heal = {
            "killed": (server.kill, server.start),
            "paused": (server.pause, server.resume),
            "drained": (lambda: server.process.send_signal(signal.SIGTERM), lambda: self._restart(number)),
        }[what]
        # A process that is stopped in the middle of a write to an SQLite file blocks all other writers.
        return Fault(f"server {what}", begin, heal, serves=what != "paused" or bool(self.store.places))

    def _restart(self, number: int) -> None:
        server = self._cluster.servers[number]
        server.process.wait(WAIT_S_MAX)
        server.start()

    def _kill_servers(self) -> None:
        for server in self._cluster.servers:
            server.kill()

    def _start_servers(self) -> None:
        for server in self._cluster.servers:
            server.spawn()
        for server in self._cluster.servers:
            server.await_start()

    def _of_links(self, whom: str, links: list[Link]) -> list[Fault]:
        heal = all_of(links, Link.heal)
        return [
            Fault(f"server cut off from its {whom}", all_of(links, Link.cut), heal, serves=True),
            Fault(f"server cut off from its {whom}, silently", all_of(links, Link.hold), heal, serves=True),
            Fault(f"server slow to its {whom}", all_of(links, lambda link: link.slow(0.3)), heal, serves=True),
        ]

    def _of_a_program(self, what: str) -> Fault:
        hit: list[subprocess.Popen[bytes]] = []

        def stop() -> None:
            hit.append(self._chance.choice(self._programs))
            hit[0].send_signal(signal.SIGSTOP)
            wait_until_stopped(hit[0].pid)
            pass_by(steady_ms() + PAUSE_MS)

        def kill() -> None:
            program = self._programs.pop(self._chance.randrange(len(self._programs)))
            program.kill()
            program.wait(WAIT_S_MAX)

        if what == "killed":
            return Fault("client killed", kill, self._start_program, serves=True)
        return Fault("client paused", stop, lambda: hit[0].send_signal(signal.SIGCONT), serves=True)

    def _of_a_clock(self, number: int) -> Fault:
        step_ms = self._chance.choice([-1, 1]) * self._chance.randrange(1_000, 3_600_000)
        file = self._clock(number)

        def step() -> None:
            new = file.with_suffix(".new")
            new.write_text(str(int(file.read_text()) + step_ms))
            new.replace(file)

        return Fault("server's wall clock stepped", step, lambda: None, serves=True)


def _apart(faults: list[Fault]) -> list[Fault]:
    """At most one fault that touches the store. It comes last, so that it is over first."""
    of_store = [fault for fault in faults if not fault.name.startswith(("server", "client", "all servers"))]
    others = [fault for fault in faults if fault not in of_store]
    return [*others[:1], *of_store[:1]]
