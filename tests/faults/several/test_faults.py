"""Three servers on one store, with every fault there is: of servers, of clients, of the network, of the store.

    scripts/dev/soak tests/faults/several -s        a few minutes of it on each store, and the counts

DIBS_FAULTS_SEED repeats a run's plan, DIBS_FAULTS_SECONDS changes how long the long one takes. DIBS_FAULTS_EARLIER is
the Python of an environment with another version of dibs: every second server and client is then of that version.
"""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from tests import etcd, postgres_pair
from tests.faults.several.rig import Rig
from tests.faults.several.stores import ReplicatedPostgres, SqliteFile, ThreeEtcdMembers
from tests.faults.several.verdict import judge
from tests.faults.standing import events_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.several.stores import SharedStore

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.promise("excl"),
    pytest.mark.promise("token:rises"),
    pytest.mark.promise("durable"),
    pytest.mark.promise("idem:acquire"),
    pytest.mark.promise("queue:fifo"),
    pytest.mark.promise("queue:one-wake"),
    pytest.mark.promise("loss:told"),
    pytest.mark.promise("servers:failover"),
]

SEED = int(os.environ.get("DIBS_FAULTS_SEED") or random.SystemRandom().randrange(10**9))
SECONDS = int(os.environ.get("DIBS_FAULTS_SECONDS", "240"))
STORES = ("sqlite", "postgresql", "etcd")


@contextmanager
def shared(name: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[SharedStore]:
    if name == "sqlite":
        yield SqliteFile(folder)
    elif name == "postgresql":
        with postgres_pair.pair(*request.getfixturevalue("postgres_programs")) as pair:
            yield ReplicatedPostgres(pair)
    else:
        with etcd.running(request.getfixturevalue("etcd_program"), 3) as cluster:
            yield ThreeEtcdMembers(cluster)


def check(name: str, folder: Path, request: pytest.FixtureRequest, lasts_ms: int = 0) -> None:
    print(f"{name}: DIBS_FAULTS_SEED={SEED}")
    began_ms = steady_ms()
    with shared(name, folder, request) as store:
        rig = Rig(folder, store, SEED)
        if lasts_ms:
            rig.run_for(lasts_ms)
        else:
            rig.run_each()
        events = events_of(store.url)
    (folder / "events").write_text("".join(f"{event}\n" for event in events))  # to be read beside what clients noted
    verdict = judge(folder, events)
    print(f"{(steady_ms() - began_ms) // 1000} s, {rig.faults.total()} faults: {dict(rig.faults)}")
    print(verdict.counts, f"slowest recovery {rig.slowest_ms} ms")
    assert verdict.wrong == []
    assert verdict.counts["claims"] >= 5 * rig.faults.total(), "too little went on"
    assert verdict.counts["hand-overs"] > 0


# On SQLite, `test_several_servers.py` tries the faults one by one in every run.
@pytest.mark.timeout(900)  # each takes about half a minute; a busy machine may need longer
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "sqlite" else ()) for name in STORES]
)
def test_every_fault_once(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    check(name, tmp_path, request)


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_faults_for_minutes(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    check(name, tmp_path, request, SECONDS * 1000)
