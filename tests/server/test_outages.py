"""An outage of the server costs no owner its lease; a failure of the store is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreFull
from dibs.core import limits
from dibs.core.limits import COMMIT_QUEUE_MAX
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Maintenance
from dibs.testing.clock import ManualClock
from dibs.testing.faulty import FaultyStore
from tests.server.harness import running
from tests.server.test_contract import assert_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dibs.stores.port import Due, Snapshot


@pytest.mark.promise("lease:outage-credit")
def test_a_server_that_was_paused_does_not_give_a_live_lease_away(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        lease = server.lease("job", ttl_seconds=10)
        server.clock.advance(60_000)  # as SIGSTOP or a closed lid would
        assert server.acquire("job", who="other").json["status"] == "held"
        assert server.ask("POST", "/locks/job/renew", {"lease_id": lease}).status == 200


@pytest.mark.promise("lease:outage-credit")
def test_a_server_that_was_down_does_not_give_a_live_lease_away(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    with running(tmp_path, store=store, clock=clock) as server:
        lease = server.lease("job", ttl_seconds=10)
        dead = server.lease("dead", ttl_seconds=10)
    clock.advance(3_600_000)
    with running(tmp_path, store=store, clock=clock) as server:
        assert server.acquire("job", who="other").json["status"] == "held"
        assert server.ask("POST", "/locks/job/renew", {"lease_id": lease}).status == 200
        server.pass_time(10_000)
        assert server.acquire("dead", who="other").json["status"] == "acquired"
        assert_error(server.ask("POST", "/locks/dead/renew", {"lease_id": dead}), 400, "lease_not_current")


@pytest.mark.promise("lease:outage-credit")
def test_a_lease_that_ended_before_the_pause_gets_no_credit(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.lease("job", ttl_seconds=1)
        server.pass_time(2_000)
        server.clock.advance(60_000)
        assert server.acquire("job", who="other").json["status"] == "acquired"


@pytest.mark.promise("lease:outage-credit")
def test_a_store_that_could_not_be_written_is_an_outage_too(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    with running(tmp_path, store=store, clock=clock) as server:
        server.lease("job", ttl_seconds=3)
        store.faults = ["refused"] * 1_000
        for _ in range(8):
            clock.advance(500)
            assert_error(server.acquire("other-job"), 503, "upstream_unavailable")
        store.faults = []
        assert server.acquire("job", who="other").json["status"] == "held"


def test_a_store_that_does_not_answer_makes_health_503_and_leaves_liveness_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    with running(tmp_path, store=store, clock=clock) as server:
        store.reads_lost = 1_000_000
        for path in ("/health", "/readyz"):
            assert_error(server.ask("GET", path, who=None), 503, "upstream_unavailable")
        assert server.ask("GET", "/healthz", who=None).status == 200
        assert_error(server.acquire("job"), 503, "upstream_unavailable")
        assert_error(server.ask("GET", "/locks"), 503, "upstream_unavailable")
        store.reads_lost = 0
        assert server.ask("GET", "/health", who=None).status == 200
        assert server.acquire("job").json["status"] == "acquired"


def test_a_store_that_hangs_makes_health_503_within_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    free = threading.Event()

    class Hanging(FaultyStore, Maintenance):
        def size_bytes(self) -> int:
            assert free.wait(60)
            return 0

    monkeypatch.setattr(limits, "HEALTH_MS_MAX", 50)
    clock = ManualClock()
    with running(tmp_path, store=Hanging(MemoryStore(clock)), clock=clock) as server:
        assert_error(server.ask("GET", "/health", who=None), 503, "upstream_unavailable")
        free.set()


@pytest.mark.fault("F-022")
def test_a_claim_does_not_wait_for_upkeep(tmp_path: Path) -> None:
    import threading

    free, inside = threading.Event(), threading.Event()

    class HangingUpkeep(FaultyStore):
        hangs = False

        def due(self, limit: int) -> Due:
            if self.hangs:
                inside.set()
                assert free.wait(60)
            return super().due(limit)

    clock = ManualClock()
    store = HangingUpkeep(MemoryStore(clock))
    with running(tmp_path, store=store, clock=clock) as server:
        store.hangs = True
        server.engine.sweeper.hurry(0)
        assert inside.wait(60)
        lease = server.lease("job")
        assert server.ask("POST", "/locks/job/renew", {"lease_id": lease}).status == 200
        assert not free.is_set()
        store.hangs = False
        free.set()


def test_a_fault_of_ours_is_reported_without_its_insides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FaultyStore):
        def scan(self, prefix: str, *args: object, **more: object) -> list[object]:  # type: ignore[override]
            if prefix not in ("", "lock/", "session/", "pulse/", "credential/"):
                raise RuntimeError("secret insides")
            return []

    clock = ManualClock()
    with running(tmp_path, store=Broken(MemoryStore(clock)), clock=clock) as server:
        reply = server.ask("GET", "/locks")
        body = assert_error(reply, 500, "internal_error")
    assert "secret" not in reply.body.decode()
    assert body["request_id"] in caplog.text
    assert "secret insides" in caplog.text


def test_more_than_can_be_written_is_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    assert COMMIT_QUEUE_MAX > 1_000
    with running(tmp_path) as server:
        server.engine.batcher.queue_max = 0
        reply = server.acquire("job")
        body = assert_error(reply, 503, "capacity_exceeded")
        assert (body["retry_after_ms"], reply.headers["retry-after"]) == (1_000, "1")
        assert "retry_after_ms" not in server.ask("GET", "/nowhere").json


def test_a_principal_that_holds_as_much_as_it_may_gets_no_more(tmp_path: Path) -> None:
    with running(tmp_path, locks_per_principal=2) as server:
        first = server.lease("a")
        server.lease("b", request_key="k")
        assert_error(server.acquire("c"), 403, "lock_limit_exceeded")
        assert server.acquire("b", {"request_key": "k"}).json["status"] == "acquired"
        assert server.acquire("c", who="other").json["status"] == "acquired"
        server.ask("POST", "/locks/a/release", {"lease_id": first})
        assert server.acquire("d").json["status"] == "acquired"


def test_the_status_counts_what_happened_since_the_start(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        leases = {name: server.lease(name) for name in "abc"}
        server.ask("POST", "/locks/c/release", {"lease_id": leases["c"]})
        status = server.ask("GET", "/status", who=None).json
        assert (status["active_locks"], status["total_acquires"], status["total_releases"]) == (2, 3, 1)
        server.pass_time(2_000)
        assert server.ask("GET", "/status", who=None).json["uptime_seconds"] == 2


def test_a_removed_line_is_a_revoked_token(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.acquire("job", who="other").status == 200
        tokens = tmp_path / "tokens"
        tokens.write_text(tokens.read_text().replace("other:tok-other\n", ""))
        assert server.guard.reload()
        assert_error(server.acquire("job", who="other"), 401, "authentication_failed")
        assert server.acquire("job").status == 200


def test_a_full_store_is_reported_as_full(tmp_path: Path) -> None:
    class Full(FaultyStore):
        def read(self, keys: Iterable[str]) -> Snapshot:
            if list(keys):
                raise StoreFull("The disk that holds /srv/dibs.db is full.")
            return super().read(())

    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    with running(tmp_path, store=store, clock=clock) as server:
        store.__class__ = Full
        told = assert_error(server.acquire("job"), 503, "upstream_unavailable")["details"]
        assert told == StoreFull.public
