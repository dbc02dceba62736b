"""The lease clock: steady under a stepped wall clock, across boots and on other machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base import clock
from dibs.stores.sqlite import SqliteStore
from dibs.stores.sqlite.rows import UNWRITTEN_MS
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOUR_MS = 3_600_000


@pytest.fixture
def open_with(tmp_path: Path) -> Iterator[Callable[[ManualClock], SqliteStore]]:
    opened: list[SqliteStore] = []

    def open_with(clock: ManualClock) -> SqliteStore:
        opened.append(
            SqliteStore(
                str(tmp_path / "dibs.db"),
                steady_ms=clock.steady_ms,
                wall_ms=clock.wall_ms,
                boot_id=clock.boot_id,
            )
        )
        return opened[-1]

    yield open_with
    for store in opened:
        store.close()


def now_ms(store: SqliteStore) -> int:
    return store.read(()).now_ms


def commit(store: SqliteStore) -> int:
    """Any write; the store's time at it."""
    store.commit({}, {}, ())
    return now_ms(store)


def test_a_new_file_begins_at_wall_time(open_with: Callable[[ManualClock], SqliteStore]) -> None:
    clock = ManualClock(wall_ms=1_800_000_000_000)
    assert now_ms(open_with(clock)) == 1_800_000_000_000


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("step_ms", [5 * HOUR_MS, -5 * HOUR_MS])
def test_a_wall_clock_stepped_by_hours_moves_nothing_for_anybody(
    open_with: Callable[[ManualClock], SqliteStore], step_ms: int
) -> None:
    clock = ManualClock()
    before = open_with(clock)
    began_ms = commit(before)
    clock.step_wall(step_ms)
    clock.advance(250)
    opened_after = open_with(clock)
    assert now_ms(before) == now_ms(opened_after) == began_ms + 250
    commit(opened_after)
    clock.step_wall(-2 * step_ms)
    clock.advance(HOUR_MS)  # asleep, perhaps: it counts
    assert now_ms(before) == now_ms(opened_after) == now_ms(open_with(clock)) == began_ms + 250 + HOUR_MS


@pytest.mark.promise("lease:never-early")
def test_a_boot_with_a_wall_clock_in_the_past_goes_on_from_the_last_commit(
    open_with: Callable[[ManualClock], SqliteStore],
) -> None:
    clock = ManualClock()
    last_ms = commit(open_with(clock))
    clock.reboot()
    clock.step_wall(-40 * 365 * 24 * HOUR_MS)
    after = open_with(clock)
    again_ms = last_ms + UNWRITTEN_MS  # a renewal that the file's time does not show may have been the last
    assert now_ms(after) == again_ms
    clock.advance(70)
    assert now_ms(after) == now_ms(open_with(clock)) == again_ms + 70


def test_a_boot_with_a_right_wall_clock_counts_the_time_it_was_off(
    open_with: Callable[[ManualClock], SqliteStore],
) -> None:
    clock = ManualClock()
    last_ms = commit(open_with(clock))
    clock.reboot()
    clock.step_wall(HOUR_MS)
    assert now_ms(open_with(clock)) == last_ms + HOUR_MS


def test_all_who_open_the_file_after_a_boot_agree_whatever_the_wall_clock_does_between_them(
    open_with: Callable[[ManualClock], SqliteStore],
) -> None:
    clock = ManualClock()
    commit(open_with(clock))
    clock.reboot()
    first = open_with(clock)
    clock.step_wall(3 * HOUR_MS)
    second = open_with(clock)
    clock.advance(11)
    assert now_ms(first) == now_ms(second)


def test_a_file_copied_to_another_machine_goes_on_from_its_own_time(
    open_with: Callable[[ManualClock], SqliteStore],
) -> None:
    here = ManualClock()
    here.advance(HOUR_MS)
    last_ms = commit(open_with(here))
    there = ManualClock(wall_ms=last_ms - 10 * HOUR_MS, steady_ms=17)
    there.reboot(steady_ms=17)
    elsewhere = open_with(there)
    assert now_ms(elsewhere) == last_ms + UNWRITTEN_MS
    there.advance(5)
    assert commit(elsewhere) == last_ms + UNWRITTEN_MS + 5


def test_time_stands_rather_than_run_backwards_where_steady_time_means_something_else(
    open_with: Callable[[ManualClock], SqliteStore],
) -> None:
    here, inside = (
        ManualClock(steady_ms=5 * HOUR_MS),
        ManualClock(steady_ms=1),
    )  # of one boot: a time namespace
    last_ms = commit(open_with(here))
    store = open_with(inside)
    assert now_ms(store) == last_ms
    inside.advance(1_000)
    assert now_ms(store) == last_ms


@pytest.mark.promise("lease:never-early")
def test_a_clock_that_the_file_does_not_know_leaves_the_anchors_of_others_alone(
    open_with: Callable[[ManualClock], SqliteStore],
) -> None:
    here, elsewhere = ManualClock(), ManualClock(steady_ms=77)
    first = open_with(here)
    began_ms = commit(first)
    elsewhere.reboot(steady_ms=77)
    here.advance(50)
    elsewhere.advance(50)
    commit(open_with(elsewhere))
    here.step_wall(HOUR_MS)
    here.advance(1_000)
    assert now_ms(first) == now_ms(open_with(here)) == began_ms + 1_050


READ_TIME = """
import sys
from dibs.base import clock
from dibs.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], wall_ms=lambda: clock.wall_ms() + int(sys.argv[2]))
store.commit({}, {}, ())
print(store.read(()).now_ms, clock.boot_id())
store.close()
"""


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("boottime_s", [900_000, -30])
def test_a_time_namespace_with_another_wall_clock_goes_by_the_time_of_the_file(tmp_path: Path, boottime_s: int) -> None:
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None or not os.path.exists("/proc/self/timens_offsets"):
        pytest.skip("TIME NAMESPACES NOT TESTED: that takes root, unshare(1) and a kernel that has them")
    path = str(tmp_path / "dibs.db")
    here = SqliteStore(path)
    before_ms = now_ms(here)
    inside = [unshare, "--time", "--boottime", str(boottime_s), sys.executable, "-c", READ_TIME, path]
    ran = subprocess.run([*inside, str(HOUR_MS)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    told_ms, boot = ran.stdout.split()
    here.commit({}, {}, ())
    assert boot == clock.boot_id()
    assert before_ms <= int(told_ms) <= now_ms(here) < before_ms + 60_000
    here.close()
