"""The clock rule of the etcd store: several machines whose clocks are apart, drift, are stepped or stand still.

Records are in a real etcd. What its leader counts, and the clocks of the machines, are moved by the test.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreTooNew, StoreUnavailable
from dibs.base.ids import new_token
from dibs.stores.codec import FORMAT
from dibs.stores.etcd.clock import CHECK_MS, RECOVER_MS, UNCOUNTED_MS, ClockOff, EtcdTime
from dibs.stores.etcd.messages import delete_op, put_op, range_op
from dibs.stores.etcd.store import EtcdStore
from dibs.testing.contract_base import event, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.etcd import Cluster

HOUR_MS = 3_600_000
BEGAN_MS = 1_700_000_000_000
# Whole seconds, the tolerance, one check, and the last look before it.
AHEAD_MS_MAX = 1_000 + 500 + 1_000 + CHECK_MS
APART_MS_MAX = 20  # two processes


class World:
    """What really passes, and an etcd whose leader counts it."""

    def __init__(self, cluster: Cluster) -> None:
        self._location = cluster.location(f"clock/{new_token()}")
        self.passed_ms = 10_000
        self.term = 1
        self._started: dict[str, int] = {}
        self._count = 0
        self._opened: list[EtcdStore] = []

    def start(self) -> str:
        self._count += 1
        self._started[f"lease-{self._count}"] = self.passed_ms
        return f"lease-{self._count}"

    def read(self, lease: str) -> tuple[int, str] | None:
        began_ms = self._started.get(lease)
        """Counts a second that has begun, as etcd does."""
        return None if began_ms is None else (-((began_ms - self.passed_ms) // 1_000), str(self.term))

    def pause(self, seconds: float) -> None:
        self.passed_ms += round(seconds * 1_000)

    def stop(self, lease: str) -> None:
        self._started.pop(lease, None)

    def change_leader(self) -> None:
        self.term += 1
        self._started = dict.fromkeys(self._started, self.passed_ms)

    def store_ms(self) -> int:
        """What the store's time would be if everybody knew all."""
        return BEGAN_MS + self.passed_ms - 10_000

    def open(self, machine: Machine) -> EtcdStore:
        def time(client: Any, layout: Any) -> EtcdTime:
            return EtcdTime(
                client,
                layout,
                stopwatch=self,  # type: ignore[arg-type]  # it has the three methods
                steady_ms=machine.steady_ms,
                wall_ms=machine.wall_ms,
                boot_id=lambda: machine.boot,
                pause=self.pause,
            )

        self._opened.append(EtcdStore(self._location, time))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


class Machine:
    """Steady and wall clock of one machine; `rate` is how fast the steady one runs."""

    def __init__(self, world: World, boot: str = "one", *, rate: float = 1.0, wall_off_ms: int = 0) -> None:
        self._world = world
        self.boot = boot
        self._rate = rate
        self._stepped_ms = 0
        self._wall_off_ms = wall_off_ms

    def steady_ms(self) -> int:
        return int(self._world.passed_ms * self._rate) + self._stepped_ms

    def wall_ms(self) -> int:
        return self._world.store_ms() + self._wall_off_ms

    def step(self, ms: int) -> None:
        self._stepped_ms += ms


@pytest.fixture
def world(etcd_cluster: Cluster) -> Iterator[World]:
    world = World(etcd_cluster)
    yield world
    world.close()


def now_of(store: EtcdStore) -> int:
    return store.read(()).now_ms


def told(store: EtcdStore) -> int | None:
    """The time it tells, or None if it refuses."""
    try:
        return now_of(store)
    except ClockOff:
        return None


def write(store: EtcdStore) -> None:
    store.commit({}, {}, [event("x")])


@pytest.mark.promise("lease:never-early")
def test_a_newcomer_whose_wall_clock_is_an_hour_ahead_has_the_time_of_the_others(world: World) -> None:
    first = world.open(Machine(world))
    assert now_of(first) == world.store_ms()
    world.passed_ms += 60_500
    write(first)
    newcomer = world.open(Machine(world, "two", wall_off_ms=HOUR_MS))
    assert now_of(newcomer) == world.store_ms()
    assert world.open(Machine(world, "three", wall_off_ms=-HOUR_MS)).due(0).next_ms is None


def test_processes_of_one_machine_agree_to_the_millisecond_however_long_nobody_asked(world: World) -> None:
    machine = Machine(world)
    now_of(world.open(machine))
    for silence_ms in (1, 777, HOUR_MS, 5 * HOUR_MS + 333):
        world.passed_ms += silence_ms
        assert now_of(world.open(machine)) == world.store_ms()


@pytest.mark.fault("F-038")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("silence_ms", [0, 400, 3 * HOUR_MS, 3 * HOUR_MS + 1, 3 * HOUR_MS + 900])
def test_a_lone_process_on_another_machine_has_the_time_of_the_others_however_long_nobody_asked(
    world: World, silence_ms: int
) -> None:
    first = world.open(Machine(world))
    write(first)
    world.passed_ms += silence_ms
    second = world.open(Machine(world, "two", wall_off_ms=-2 * HOUR_MS))
    assert world.store_ms() - 10 <= now_of(second) <= world.store_ms()
    expires_ms = now_of(second) + 1_000
    put(second, lock("x", expires_ms=expires_ms))
    world.passed_ms += 950  # for so long its owner believes in a lease of a second
    assert first.due(10).keys == []
    assert now_of(first) < expires_ms


@pytest.mark.fault("F-038")
def test_a_clock_that_runs_slow_follows_what_etcd_counts(world: World) -> None:
    slow = world.open(Machine(world, rate=0.9995))
    for _ in range(500):
        world.passed_ms += 4_003
        now_of(slow)
    assert world.store_ms() - 1_000 <= now_of(slow) <= world.store_ms()


def test_servers_that_live_side_by_side_follow_the_one_that_is_furthest(world: World) -> None:
    machines = [Machine(world, f"boot-{number}") for number in range(3)]
    machines[1].step(HOUR_MS)  # before anybody looked: steady time counts from any zero
    stores = []
    for machine in machines:
        stores.append(world.open(machine))
        now_of(stores[-1])
        world.passed_ms += 450
    for _ in range(20):
        world.passed_ms += 100
        for store in stores:
            write(store)
            assert now_of(store) <= world.store_ms()
    assert {now_of(store) for store in stores} == {world.store_ms()}


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("step_ms", [5_000, HOUR_MS])
def test_a_clock_that_is_stepped_forward_is_refused_and_says_so_and_is_believed_again_later(
    world: World, step_ms: int
) -> None:
    machine = Machine(world)
    store, other = world.open(machine), world.open(Machine(world, "two"))
    write(store)
    now_of(other)
    machine.step(step_ms)
    for use in (lambda: now_of(store), lambda: write(store), lambda: store.due(1)):
        with pytest.raises(ClockOff, match=r"steady clock came \d+\.\d s ahead of what etcd's leader counted"):
            use()
    assert isinstance(store.trouble(), ClockOff)
    assert now_of(other) <= world.store_ms()
    for _ in range(RECOVER_MS // 1_000 + 5):
        world.passed_ms += 1_000
        told(store)
    assert store.trouble() is None
    assert world.store_ms() - 2_000 < now_of(store) <= world.store_ms()


@pytest.mark.promise("lease:never-early")
def test_a_process_that_begins_on_a_machine_whose_clock_was_stepped_does_not_believe_it(world: World) -> None:
    machine = Machine(world)
    write(world.open(machine))
    world.passed_ms += 30_000
    machine.step(HOUR_MS)
    assert world.store_ms() - 2_000 < now_of(world.open(machine)) <= world.store_ms()


def test_a_clock_that_is_stepped_back_never_turns_the_stores_time_back(world: World) -> None:
    machine = Machine(world)
    store = world.open(machine)
    write(store)
    before_ms = now_of(store)
    machine.step(-HOUR_MS)
    seen = [before_ms]
    for _ in range(10):
        world.passed_ms += 1_000
        seen += [each for each in (told(store),) if each is not None]
    assert seen == sorted(seen)
    assert world.store_ms() - 2_500 < seen[-1] <= world.store_ms()


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("rate", [2.0, 1.2, 1.05, 1.01])
def test_a_clock_that_runs_fast_is_found_out_before_it_leads_by_much(world: World, rate: float) -> None:
    store, honest = world.open(Machine(world, rate=rate)), world.open(Machine(world, "two"))
    refused, lead_ms = 0, 0
    for _ in range(1_000):
        world.passed_ms += 300
        now_ms = told(store)
        if now_ms is None:
            refused += 1
            continue
        lead_ms = max(lead_ms, now_ms - world.store_ms())
        write(store)
        lead_ms = max(lead_ms, now_of(honest) - world.store_ms())
    assert refused > 50
    assert lead_ms <= AHEAD_MS_MAX


def test_a_clock_that_is_a_little_off_is_served(world: World) -> None:
    """A hundred parts in a million is what cheap hardware does."""
    stores = [world.open(Machine(world, f"boot-{at}", rate=rate)) for at, rate in enumerate((1.0001, 0.9999, 1.0))]
    for _ in range(300):
        world.passed_ms += 5_000
        for store in stores:
            assert abs(now_of(store) - world.store_ms()) < 2_000


@pytest.mark.promise("lease:never-early")
def test_a_process_that_was_paused_goes_on_with_the_right_time(world: World) -> None:
    paused, other = world.open(Machine(world)), world.open(Machine(world, "two"))
    write(paused)
    for _ in range(60):
        world.passed_ms += 1_000
        write(other)
    assert abs(now_of(paused) - world.store_ms()) < 1_000
    world.passed_ms += HOUR_MS
    assert now_of(paused) == world.store_ms()


def test_a_change_of_leader_loses_time_at_most_and_the_count_goes_on(world: World) -> None:
    machine = Machine(world)
    store = world.open(machine)
    write(store)
    world.passed_ms += HOUR_MS
    world.change_leader()
    assert now_of(store) <= world.store_ms()
    write(store)
    for _ in range(5):
        world.passed_ms += CHECK_MS
        assert now_of(store) <= world.store_ms()
        write(store)
    before_ms = now_of(store)
    world.passed_ms += HOUR_MS
    late = world.open(Machine(world, "two"))
    assert before_ms + HOUR_MS - 2_000 <= now_of(late) <= world.store_ms()


def test_a_stopwatch_that_is_gone_is_started_anew(world: World) -> None:
    store = world.open(Machine(world))
    write(store)
    world.passed_ms += 3_000
    world.stop("lease-1")
    assert now_of(store) <= world.store_ms()
    world.passed_ms += HOUR_MS
    assert world.store_ms() - 3_000 <= now_of(world.open(Machine(world, "two"))) <= world.store_ms()


def test_notes_of_boots_of_long_ago_are_tidied_away(world: World) -> None:
    for number in range(3):
        now_of(world.open(Machine(world, f"old-{number}")))
    world.passed_ms += 31 * 24 * HOUR_MS
    store = world.open(Machine(world, "new"))
    assert store.tidy() == {"boots": 3}
    assert store.tidy() == {"boots": 0}
    assert now_of(world.open(Machine(world, "old-1"))) <= world.store_ms()


@pytest.mark.fault("F-431")
@pytest.mark.parametrize("note", [b'{"offset_ms":1,"before_ms":2,"after_ms":3}', b"{", b"[]", b"\xff"])
def test_a_note_of_this_boot_that_another_version_wrote_is_made_anew(world: World, note: bytes) -> None:
    machine = Machine(world)
    first = world.open(machine)
    write(first)
    key = first._layout.boot(machine.boot)
    first._client.txn([put_op(key, note)])
    world.passed_ms += 1_700
    assert world.store_ms() - 20 <= now_of(world.open(machine)) <= world.store_ms()
    assert first._client.range(key)[0].value != note
    assert first.tidy() == {"boots": 0}


@pytest.mark.fault("F-430")
def test_a_prefix_of_a_newer_format_is_refused_and_one_without_a_number_is_brought_up(world: World) -> None:
    first = world.open(Machine(world))
    assert first.migrated() == (0, FORMAT)
    key = first._layout.format
    first._client.txn([delete_op(key)])
    assert world.open(Machine(world)).migrated() == (1, FORMAT)
    assert first._client.range(key)[0].value == b"%d" % FORMAT
    first._client.txn([put_op(key, b"%d" % (FORMAT + 1))])
    revision = first._client.txn([range_op(key)]).revision
    with pytest.raises(StoreTooNew, match=r"newer dibs: its format is 11.*Upgrade dibs"):
        now_of(world.open(Machine(world, "two")))
    assert first._client.txn([range_op(key)]).revision == revision, "nothing was written"
    write(first)  # a server that runs goes on


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("seed", range(6))
def test_no_mixture_of_bad_clocks_pushes_the_time_ahead(world: World, seed: int) -> None:
    dice = random.Random(seed)
    write(world.open(Machine(world, "the first")))
    machines = [
        Machine(world, f"b{at}", rate=dice.choice((1.0, 1.0, 1.1, 0.9)), wall_off_ms=dice.choice((0, HOUR_MS)))
        for at in range(3)
    ]
    stores = [world.open(machine) for machine in machines]
    for _ in range(150):
        world.passed_ms += dice.choice((10, 200, 1_000, 5_000, 60_000))
        at = dice.randrange(3)
        chance = dice.random()
        if chance < 0.04:
            machines[at].step(dice.choice((-HOUR_MS, 10_000, HOUR_MS)))
        elif chance < 0.06:
            world.change_leader()
        elif chance < 0.2:
            stores[at] = world.open(machines[at])
        now_ms = told(stores[at])
        if now_ms is not None:
            assert now_ms - world.store_ms() <= AHEAD_MS_MAX, f"seed {seed}"
            if dice.random() < 0.5:
                _quietly(write, stores[at])


@pytest.mark.fault("F-734")
def test_a_stopwatch_that_took_long_to_start_is_not_used(world: World) -> None:
    """Others would be behind for as long as that: they do not know when it began to count."""
    machine = Machine(world)
    stores = [world.open(machine) for _ in range(2)]
    assert now_of(stores[0]) == now_of(stores[1])
    world.change_leader()
    world.passed_ms += CHECK_MS
    start, slow_ms = world.start, 600

    def slowly() -> str:
        world.passed_ms += slow_ms
        return start()

    world.start = slowly  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="takes long to answer"):
        now_of(stores[0])
    slow_ms = 400
    assert now_of(stores[1]) == world.store_ms()
    assert world.store_ms() - 420 <= now_of(world.open(Machine(world, "two"))) <= world.store_ms()


class Turns:
    """Some processes, of which any may be asked while another one waits. What each says is compared with what was said
    before: none may be ahead of another. For then a lease of the other would be over too early for it."""

    def __init__(self, world: World, dice: random.Random, *boots: str) -> None:
        self._world, self._dice = world, dice
        self._machines = [Machine(world, each) for each in boots]
        self._stores = [world.open(machine) for machine in self._machines]
        self._busy: set[int] = set()
        self._least_ms = 0
        world.pause = self._pause  # type: ignore[method-assign]

    def take(self) -> None:
        at, chance = self._dice.randrange(len(self._stores)), self._dice.random()
        if chance < 0.15:
            self._world.change_leader()
        if at in self._busy:
            return
        if chance > 0.9:
            self._stores[at] = self._world.open(self._machines[at])
        self._busy.add(at)
        ahead_ms = now_of(self._stores[at]) - self._world.store_ms()
        assert ahead_ms <= self._least_ms + APART_MS_MAX, f"process {at}"
        self._least_ms = min(self._least_ms, ahead_ms)
        if self._dice.random() < 0.4:
            write(self._stores[at])
        self._busy.remove(at)

    def _pause(self, seconds: float) -> None:
        if seconds < 1:
            self._world.passed_ms += round(seconds * 1_000)
            return
        for _ in range(10):
            self._world.passed_ms += round(seconds * 100)
            if self._dice.random() < 0.3:
                self.take()


@pytest.mark.fault("F-716", "F-734")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("seed", range(6))
def test_no_process_is_ahead_of_what_another_one_said_whatever_happens_to_the_leader(world: World, seed: int) -> None:
    """Three servers of one machine and two of another, each of which begins again now and then."""
    dice = random.Random(seed)
    write(world.open(Machine(world, "the first")))
    turns = Turns(world, dice, "one", "one", "one", "two", "two")
    for _ in range(200):
        world.passed_ms += dice.choice((0, 10, 300, CHECK_MS - 100, UNCOUNTED_MS - 1_000, UNCOUNTED_MS + 700, 60_000))
        turns.take()


def _quietly(call: Callable[[EtcdStore], None], store: EtcdStore) -> None:
    try:
        call(store)
    except ClockOff:
        pass


@pytest.mark.fault("F-475")
def test_who_waited_for_a_look_at_the_clock_that_failed_does_not_look_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While etcd is silent a look takes six seconds, and one has to wait for another."""
    machine = Machine(world)
    store = world.open(machine)
    store.read(())
    world.pause(CHECK_MS / 1_000 + 1)
    looks: list[int] = []

    def fail() -> None:
        looks.append(steady_ms())
        raise StoreUnavailable("silent")

    monkeypatch.setattr(store._time, "_check", fail)
    with pytest.raises(StoreUnavailable, match="silent"):
        store.read(())
    failed_ms, why = store._time._failed
    assert looks[0] <= failed_ms
    store._time._failed = failed_ms + 3_600_000, why  # as for who came before it failed
    with pytest.raises(StoreUnavailable, match="silent"):
        store.read(())
    assert len(looks) == 1
    store._time._failed = looks[0] - 1, why
    monkeypatch.undo()
    assert store.read(()).now_ms > 0


@pytest.mark.fault("F-716")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("first", [0, 1])
def test_processes_of_one_machine_agree_on_how_long_there_was_no_leader(world: World, first: int) -> None:
    """One that had not looked for longer trusts its own clock for less of that time."""
    machine = Machine(world)
    stores = [world.open(machine)]
    write(stores[0])
    world.passed_ms += CHECK_MS - 100
    stores.append(world.open(machine))
    now_of(stores[1])
    world.passed_ms += UNCOUNTED_MS - 1_000
    world.change_leader()

    told = now_of(stores[first])

    assert now_of(stores[1 - first]) == told
    assert now_of(world.open(machine)) == told


@pytest.mark.fault("F-716")
@pytest.mark.promise("lease:never-early")
def test_who_writes_down_second_how_long_there_was_no_leader_takes_what_the_first_one_wrote(world: World) -> None:
    machine = Machine(world)
    behind = world.open(machine)
    now_of(behind)
    world.passed_ms += CHECK_MS - 100
    exact = world.open(machine)
    now_of(exact)
    world.passed_ms += UNCOUNTED_MS - 1_000
    world.change_leader()
    read = world.read

    def meanwhile(lease: str) -> tuple[int, str] | None:
        world.read = read  # type: ignore[method-assign]
        now_of(behind)
        return read(lease)

    world.read = meanwhile  # type: ignore[method-assign]

    assert now_of(exact) == now_of(behind)
