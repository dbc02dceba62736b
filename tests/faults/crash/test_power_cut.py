"""The power fails while an SQLite store is in use: what was acknowledged is there, and the file is whole."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Break
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore
from tests.build import tries
from tests.core import raw
from tests.faults.crash import shim
from tests.faults.crash.power import Disk, read_log
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.events import Event

ROOT = Path(__file__).parents[3]
NONE, HALF, ALL = 0.0, 0.5, 1.0  # of what was not synced


def record(tmp_path: Path, cc: str, rounds: int) -> tuple[Path, Path]:
    """The log of a program that works on a store, and the folder of that store."""
    folder, log = tmp_path / "disk", tmp_path / "log"
    folder.mkdir()
    env = shim.environment(shim.build(cc, tmp_path), tmp_path, log=log, under=folder)
    words = [sys.executable, "-m", "tests.faults.crash.recorded", str(folder / "dibs.db"), str(rounds), str(log)]
    subprocess.run(words, check=True, cwd=ROOT, timeout=WAIT_S_MAX, env={**os.environ, **env})
    return log, folder


def history(path: Path) -> list[Event]:
    store = SqliteStore(str(path))
    found = store.events(0, 100_000)
    store.close()
    return found


def judge(path: Path, acknowledged: dict[str, Any], whole: list[Event]) -> None:
    store = SqliteStore(str(path))
    try:
        found = store.events(0, 100_000)
        assert len(found) >= acknowledged["seq"], "what was acknowledged is gone"
        assert found == whole[: len(found)], "the history is another one"
        seen = raw.raw_of(store, store.read(()).now_ms)  # type: ignore[arg-type]  # it reads any store
        raw.check(seen)
        ended = {event.token for event in found[acknowledged["seq"] :]}
        for lock in seen.locks.values():
            for holder in lock.holders:
                assert holder.renewed_ms >= acknowledged["renewed"].get(holder.lease_id, 0) or holder.token in ended
        next_owner_is_new(store)
    finally:
        store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def next_owner_is_new(store: SqliteStore) -> None:
    coordinator = Coordinator(store)
    asked = Acquire(ns="default", name="job-1", principal="p", owner="next", ttl_ms=1000, fresh_lease_id=new_id())
    before = max((event.token for event in store.events(0, 100_000) if event.job == "job-1"), default=0)
    outcome = coordinator.one(asked)
    for _ in range(9):  # those who waited come first
        if isinstance(outcome, Granted):
            break
        coordinator.one(Break(ns="default", name="job-1", principal="a", reason="test"))
        outcome = coordinator.one(asked)
    assert isinstance(outcome, Granted)
    assert outcome.lease.token > before


@pytest.mark.promise("durable")
@pytest.mark.promise("token:rises")
@pytest.mark.linux("a library that is loaded before libc")
def test_a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged(
    tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    log, folder = record(tmp_path, need_program("cc"), tries(50, 400))
    whole = history(folder / "dibs.db")
    calls = read_log(log)
    assert {"write", "sync", "make", "unlink", "truncate", "ack"} <= {call.what for call in calls}
    disk, chance, tried = Disk(calls, str(folder)), random.Random(1), 0
    every = max(1, len(calls) // tries(120, 6_000))
    for number in disk.cuts():
        # What was acknowledged a moment ago is what a cut may lose.
        is_near = number and calls[number - 1].what == "ack" and number % 3 == 0
        if number % every and not is_near:
            continue
        keep, target = (NONE, HALF, ALL)[tried % 3], tmp_path / "cut"
        target.mkdir()
        disk.write_out(target, keep, chance)
        try:
            judge(target / "dibs.db", disk.acknowledged, whole)
        except Exception as error:
            raise AssertionError(f"a cut before call {number} of {len(calls)}, {keep} of the rest") from error
        shutil.rmtree(target)
        tried += 1
    assert tried >= tries(100, 2_000)


@pytest.mark.linux("a library that is loaded before libc")
def test_a_store_that_does_not_sync_is_found_out(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    log, folder = record(tmp_path, need_program("cc"), 10)
    whole = history(folder / "dibs.db")
    calls = [call for call in read_log(log) if call.what != "sync" or not call.path.endswith("-wal")]
    disk, chance, lost = Disk(calls, str(folder)), random.Random(1), 0
    for number in disk.cuts():
        if calls[number - 1].what == "ack" and number % 2:
            target = tmp_path / f"cut-{number}"
            target.mkdir()
            disk.write_out(target, NONE, chance)
            try:
                judge(target / "dibs.db", disk.acknowledged, whole)  # right after a checkpoint it is in the file
            except AssertionError as error:
                lost += "what was acknowledged is gone" in str(error)
    assert lost > 3
