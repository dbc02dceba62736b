"""One store after another: SQLite, PostgreSQL, etcd, git and back, each with what the one before it had."""

from __future__ import annotations

import io
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, OpenSession, Release, Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Queued
from dibs.engine.archive import export
from dibs.engine.archive_import import import_archive
from dibs.engine.coordinator import Coordinator
from dibs.stores.registry import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.stores.port import Store
    from tests.etcd import Cluster
    from tests.postgres import Schema

pytestmark = pytest.mark.full

NS = "default"
JOBS = 600  # more than one part


def acquire(name: str, **changes: Any) -> Acquire:
    made = Acquire(ns=NS, name=name, principal="team", owner="a1", ttl_ms=600_000, fresh_lease_id=f"lease-{name}")
    return made.replace(**changes)


def fill(store: Store) -> None:
    coordinator = Coordinator(store)
    coordinator.run([acquire(f"job-{number}") for number in range(JOBS)])
    coordinator.one(OpenSession(fresh_id="s1", principal="team", owner="a1", ttl_ms=600_000, ns=NS))
    for command in (
        acquire("in-session", session="s1", ttl_ms=0),
        acquire("job-1", owner="a2", wait=True, fresh_lease_id="place"),
        acquire("path:src/a.py"),
        Release(ns=NS, name="job-2", principal="team", lease_id="lease-job-2", done_ms=3_600_000),
    ):
        coordinator.one(command)


def text_of(store: Store) -> str:
    out = io.StringIO()
    export(store, out.write, freeze=True)
    return out.getvalue()


def keys_of(text: str) -> list[str]:
    return [line["key"] for line in map(json.loads, text.splitlines()) if line.get("key", "meta") != "meta"]


@pytest.mark.promise("move:whole")
def test_a_store_goes_from_engine_to_engine_and_stays_what_it_was(
    tmp_path: Path, postgres_schema: Callable[[], Schema], etcd_cluster: Cluster
) -> None:
    clone = tmp_path / "clone.git"
    subprocess.run(["git", "init", "-q", "--bare", str(clone)], check=True, timeout=60)
    route = [
        f"sqlite:{tmp_path}/first.db",
        postgres_schema().url,
        etcd_cluster.url(new_id()),
        f"git+file://{clone}",
        f"sqlite:{tmp_path}/last.db",
    ]
    store = open_store(route[0])
    fill(store)
    text = first = text_of(store)
    for url in route[1:]:
        store.close()
        store = open_store(url)
        import_archive(store, io.BytesIO(text.encode()))
        if url != route[-1]:
            text = text_of(store)
            assert keys_of(text) == keys_of(first), url
    coordinator = Coordinator(store)
    assert isinstance(
        coordinator.one(Renew(ns=NS, name="job-599", principal="team", lease_id="lease-job-599")), Renewed
    )
    again = acquire("job-1", owner="a2", wait=True, ticket=1, ticket_id="place", fresh_lease_id="new")
    assert isinstance(coordinator.one(again), Queued)
    store.close()
