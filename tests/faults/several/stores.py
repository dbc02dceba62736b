"""The stores that the servers share, each server's way to its store, and the faults of the stores."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dibs.stores.registry import open_store
from tests import postgres_pair
from tests.programs import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.etcd import Cluster as EtcdCluster
    from tests.postgres_pair import PostgresPair

T = TypeVar("T")

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Fault:
    """A fault that begins and ends. `serves`: claims must go through while it lasts."""

    name: str
    begin: Callable[[], None]
    heal: Callable[[], None]
    serves: bool = False


def all_of(things: Sequence[T], change: Callable[[T], object]) -> Callable[[], None]:
    def change_all() -> None:
        for thing in things:
            change(thing)

    return change_all


class SharedStore:
    """`places` are the addresses of the store. Every server has its own link to each of them."""

    places: Sequence[tuple[str, int]] = ()
    url = ""

    def url_by(self, ports: Sequence[int]) -> str:
        """Its URL for a server that reaches `places` by these ports."""
        return self.url

    def faults(self, chance: random.Random) -> list[Fault]:
        return []


class SqliteFile(SharedStore):
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite://{folder}/several.db"


class ReplicatedPostgres(SharedStore):
    """A primary and a standby. As dibs reads their clocks, one is an hour ahead of the other, and both can be set."""

    def __init__(self, pair: PostgresPair) -> None:
        self._pair = pair
        self.places = [("127.0.0.1", node.port) for node in pair.nodes]
        self.url = self.url_by([node.port for node in pair.nodes])
        open_store(self.url).close()
        postgres_pair.run(pair.primary, "CREATE TABLE public.clock_set (ms bigint)")
        postgres_pair.run(pair.primary, "INSERT INTO public.clock_set VALUES (0)")
        postgres_pair.run(
            pair.primary,
            "CREATE OR REPLACE FUNCTION dibs.clock_1() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT"
            " (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
            f" + CASE inet_server_port() WHEN {pair.standby.port} THEN {HOUR_MS} ELSE 0 END"
            " + (SELECT ms FROM public.clock_set) $$",
        )

    def url_by(self, ports: Sequence[int]) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://dibs@{hosts}/postgres?timeout=3s"

    def faults(self, chance: random.Random) -> list[Fault]:
        pause, go_on = self._signal(signal.SIGSTOP), self._signal(signal.SIGCONT)
        step_ms = chance.choice([-1, 1, 1]) * chance.randrange(10_000, HOUR_MS)
        return [
            Fault("PostgreSQL's clock stepped", lambda: self._step(step_ms), lambda: None, serves=True),
            Fault("PostgreSQL killed", self._kill, self._start),
            Fault("PostgreSQL restarted", self._stop, self._start),
            Fault("PostgreSQL paused", pause, go_on),
            Fault("standby killed", self._kill_standby, self._start_standby),
            Fault("standby promoted", self._fail_over, self._pair.follow),
        ]

    # Look up the primary when a fault begins: an earlier failover may have changed it.

    def _signal(self, number: signal.Signals) -> Callable[[], None]:
        return lambda: self._pair.primary.signal(number)

    def _step(self, ms: int) -> None:
        postgres_pair.run(self._pair.primary, f"UPDATE public.clock_set SET ms = ms + {ms}")

    def _kill(self) -> None:
        self._pair.primary.kill()

    def _stop(self) -> None:
        self._pair.primary.stop()

    def _kill_standby(self) -> None:
        self._pair.standby.kill()

    def _start(self) -> None:
        self._pair.primary.start()
        wait_until(self._pair.is_safe, "the standby follows again")

    def _start_standby(self) -> None:
        self._pair.standby.start()
        wait_until(self._pair.is_safe, "the standby follows again")

    def _fail_over(self) -> None:
        self._pair.primary.kill()
        self._pair.promote()


class ThreeEtcdMembers(SharedStore):
    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self.places = [member.endpoint for member in cluster.members]
        self.url = cluster.url()

    def url_by(self, ports: Sequence[int]) -> str:
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}/dibs"

    def faults(self, chance: random.Random) -> list[Fault]:
        numbers = [chance.sample(range(3), 3) for _ in range(2)]
        found = []
        for count, word in ((1, "one etcd member"), (2, "two etcd members"), (3, "all etcd members")):
            killed, paused = numbers[0][:count], numbers[1][:count]
            found.append(Fault(f"{word} killed", self._kill(killed), self._start(killed), serves=count == 1))
            if count < 3:
                stop, go_on = self._signal(paused, signal.SIGSTOP), self._signal(paused, signal.SIGCONT)
                found.append(Fault(f"{word} paused", stop, go_on, serves=count == 1))
        return found

    def _kill(self, numbers: list[int]) -> Callable[[], None]:
        return all_of(numbers, lambda number: self._cluster.members[number].kill())

    def _start(self, numbers: list[int]) -> Callable[[], None]:
        def start() -> None:
            for number in numbers:
                self._cluster.members[number].start()
            wait_until(self._cluster.answers, "etcd answers")

        return start

    def _signal(self, numbers: list[int], which: signal.Signals) -> Callable[[], None]:
        return all_of(numbers, lambda number: self._cluster.members[number].signal(which))
