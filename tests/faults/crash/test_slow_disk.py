"""A disk that takes seconds for a sync: answers are late, nothing is lost, and nobody loses a lease that could not be
renewed meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.client.transport import Ask
from tests.faults.crash import shim
from tests.faults.standing import events_of
from tests.models.history import broken_promises
from tests.programs import WAIT_S_MAX, ServerProcess
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.e2e, pytest.mark.linux("a library that is loaded before libc")]

TTL_S = 2


@pytest.fixture
def server(tmp_path: Path, need_program: Callable[[str], str]) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    server.env.update(shim.environment(shim.build(need_program("cc"), tmp_path), tmp_path))
    with server:
        yield server


def asked_at_once(server: ServerProcess, asks: list[Ask]) -> list[dict[str, Any]]:
    """The answers to questions that were asked at the same time, each on its own connection."""
    told: dict[int, dict[str, Any]] = {}
    token = server.token

    def ask(number: int) -> None:
        transport = connect(server.url, namespace=None, token=token, timeout_ms=int(WAIT_S_MAX * 1000))
        told[number] = transport.ask(asks[number]).body or {}
        transport.close()

    threads = [threading.Thread(target=ask, args=[number], daemon=True) for number in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    return [told[number] for number in range(len(asks))]


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.promise("excl")
def test_who_could_not_renew_because_the_disk_hung_is_still_the_owner(server: ServerProcess, tmp_path: Path) -> None:
    transport = server.transport()
    mine = transport.ask(Ask("acquire", "job", {"owner": "owner", "ttl_seconds": TTL_S})).body or {}
    disk = shim.Shim(str(tmp_path / "shim"))
    disk.arm(sync_us=(TTL_S + 1) * 1_000_000)
    began_ms = steady_ms()
    # The first waits for the disk, the second comes while the server is silent.
    asks = [Ask("acquire", "other", {"owner": "rival"}), Ask("acquire", "job", {"owner": "rival"})]
    other, rival = asked_at_once(server, asks)
    disk.disarm()
    assert steady_ms() - began_ms > TTL_S * 1000, "the disk did not hang"
    assert other["status"] == "acquired"
    assert (rival["status"], rival.get("owner")) == ("held", "owner"), rival
    renewed = transport.ask(Ask("renew", "job", {"lease_id": mine["lease_id"], "ttl_seconds": 60})).body or {}
    assert renewed["fencing_token"] == mine["fencing_token"]
    assert broken_promises(events_of(server.store_url)) == []


@pytest.mark.promise("durable")
def test_many_claims_share_one_slow_sync(server: ServerProcess, tmp_path: Path) -> None:
    disk = shim.Shim(str(tmp_path / "shim"))
    disk.arm(sync_us=300_000, kinds=shim.SYNCS)
    answers = asked_at_once(server, [Ask("acquire", f"job-{number}", {"owner": "o"}) for number in range(40)])
    disk.disarm()
    assert [answer["status"] for answer in answers] == ["acquired"] * 40
    assert disk.count < 20, "every claim waited for a sync of its own"
    assert len([event for event in events_of(server.store_url) if event.kind == "acquired"]) == 40
