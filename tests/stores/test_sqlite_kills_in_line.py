"""Waiters in line on one file are killed at random: one owner at a time, tokens rise, all others are served."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

WORKERS, ROUNDS, TURNS = 5, 40, 60
TTL_MS = 1_000
PATIENCE_S = 120

CONTEND = f"""
import json, random, sys, time
from dibs.client.embedded import claim
from dibs.base.clock import steady_ms
from dibs.core.commands import Acquire, Release
from dibs.core.lease_outcomes import Released
from dibs.core.outcomes import Granted
from dibs.base.ids import new_id
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore

path, log, turns = sys.argv[1], open(sys.argv[2], "a", buffering=1), int(sys.argv[3])
coordinator = Coordinator(SqliteStore(path))
while turns:
    asked = dict(ns="d", name="job", owner=str(turns), principal="p", fresh_lease_id=new_id())
    outcome = claim(coordinator, Acquire(ttl_ms={TTL_MS}, wait=True, **asked), 60_000)
    if not isinstance(outcome, Granted):
        continue
    lease, began_ms = outcome.lease, steady_ms()
    time.sleep(random.random() / 50)
    until_ms = steady_ms()
    # Who is released was the owner until then: a release of what ran out is told so.
    let_go = coordinator.one(Release(ns="d", name="job", principal="p", lease_id=lease.lease_id))
    if isinstance(let_go, Released):
        log.write(json.dumps([lease.token, began_ms, until_ms]) + "\\n")
    turns -= 1
"""


def start(path: Path, log: Path, turns: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CONTEND, str(path), str(log), str(turns)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("excl", "token:rises", "queue:no-dead-grant")
def test_a_line_whose_waiters_and_owners_are_killed_goes_on(tmp_path: Path) -> None:
    path, log = tmp_path / "dibs.db", tmp_path / "log"
    store = SqliteStore(str(path))
    chance = random.Random()
    workers = [start(path, log, 10**6) for _ in range(WORKERS)]
    try:
        for _ in range(ROUNDS):
            at = chance.randrange(WORKERS)
            with pytest.raises(subprocess.TimeoutExpired):
                workers[at].wait(chance.random() / 2)  # nobody ends by itself
            workers[at].kill()
            workers[at].wait(PATIENCE_S)
            workers[at] = start(path, log, 10**6)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(PATIENCE_S)
    survivors = [start(path, log, TURNS) for _ in range(WORKERS)]
    for survivor in survivors:  # behind whatever the dead left in the line
        assert survivor.wait(PATIENCE_S) == 0
    assert_one_at_a_time(store, log)
    last = Coordinator(store).one(
        Acquire(ns="d", name="job", owner="last", principal="p", fresh_lease_id=new_id(), ttl_ms=TTL_MS)
    )
    assert isinstance(last, Granted)
    store.close()


def assert_one_at_a_time(store: SqliteStore, log: Path) -> None:
    history = [event for event in store.events(0, 10**6) if event.job == "job"]
    tokens = [event.token for event in history if event.kind == "acquired"]
    assert tokens == sorted(set(tokens))
    owner = 0
    for event in history:
        if event.kind == "acquired":
            assert owner == 0, "two owners"
            owner = event.token
        elif event.kind in ("released", "expired"):
            assert event.token == owner
            owner = 0
    held = sorted(json.loads(line) for line in log.read_text().splitlines() if line.endswith("]"))
    assert len(held) >= WORKERS * TURNS // 2  # what ran out on a busy machine is not in it
    assert {token for token, _, _ in held} <= set(tokens)
    for (_, _, until_ms), (_, began_ms, _) in itertools.pairwise(held):
        assert began_ms >= until_ms, "a later owner began while an earlier one surely was one"
