"""A server that is away for longer than a TTL takes no lease from an owner that could not renew. An owner that is away
itself loses, and does no harm when it comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.client.transport import Ask
from tests.faults.standing import events_of
from tests.models.history import broken_promises
from tests.programs import (
    WAIT_S_MAX,
    ServerProcess,
    pass_by,
    pause,
    start_program,
    wait_until,
    wait_until_stopped,
)
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from dibs.client.transport import Transport

pytestmark = pytest.mark.e2e

OWNER = "tests.faults.owner"
TTL_S = 2
MORE_MS = 1_500  # an absence that is surely an outage
OWNER_TTL_S = 5  # enough for a heartbeat on a busy machine


def asked(transport: Transport, verb: str, job: str, **document: Any) -> dict[str, Any]:
    reply = transport.ask(Ask(verb, job, document))
    assert reply.status == 200, reply
    return reply.body or {}


class Rival(threading.Thread):
    """Asks for a job without a pause, also while no server answers, until an answer comes."""

    def __init__(self, transport: Callable[[], Transport], job: str) -> None:
        super().__init__(daemon=True)
        self._transport = transport
        self._job = job
        self.told: dict[str, Any] = {}

    def run(self) -> None:
        give_up_ms = steady_ms() + int(2 * WAIT_S_MAX * 1000)
        while not self.told and steady_ms() < give_up_ms:
            reply = self._transport().ask(Ask("acquire", self._job, {"owner": "rival", "ttl_seconds": 60}))
            if reply.status == 200:
                self.told = reply.body or {}
            else:
                pause(0.005)


def stop_cleanly(server: ServerProcess) -> None:
    assert server.stop() == 0


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize(
    ("go_away", "come_back"),
    [
        pytest.param(ServerProcess.pause, ServerProcess.resume, id="paused"),
        pytest.param(ServerProcess.kill, ServerProcess.start, id="killed"),
        pytest.param(stop_cleanly, ServerProcess.start, id="stopped"),
    ],
)
def test_an_owner_that_was_live_when_the_server_went_away_gets_time_to_renew(
    tmp_path: Path, go_away: Callable[[ServerProcess], None], come_back: Callable[[ServerProcess], None]
) -> None:
    # A Unix socket is the same address after every start, and a killed server leaves its file behind. Its path is
    # bounded to a hundred characters or so.
    with (
        tempfile.TemporaryDirectory(prefix="dibs-") as folder,
        ServerProcess(tmp_path, bind=f"unix:{folder}/socket") as server,
    ):
        transport = server.transport()
        kept = asked(transport, "acquire", "kept", owner="owner", ttl_seconds=TTL_S)
        asked(transport, "acquire", "lost", owner="owner", ttl_seconds=TTL_S)
        asked_ms = steady_ms()
        token = server.token
        rivals = [
            Rival(lambda: connect(server.url, namespace=None, token=token, timeout_ms=30_000), job)
            for job in ("kept", "lost")
        ]
        go_away(server)
        for rival in rivals:
            rival.start()
        pass_by(asked_ms + TTL_S * 1000 + MORE_MS)
        assert not any(rival.told for rival in rivals), "the server was not away"
        come_back(server)
        for rival in rivals:
            rival.join(2 * WAIT_S_MAX)

        # The waiting claims were answered first, long after the TTL.
        for rival in rivals:
            assert rival.told["status"] == "held", rival.told
            assert rival.told["owner"] == "owner"
            assert 0 <= rival.told["remaining_ms"] <= TTL_S * 1000
        renewed = asked(transport, "renew", "kept", lease_id=kept["lease_id"], ttl_seconds=60)
        assert renewed["fencing_token"] == kept["fencing_token"]

        # An owner that does not come back loses the job, but not before its full TTL.
        def taken() -> dict[str, Any] | None:
            told = asked(transport, "acquire", "lost", owner="rival", ttl_seconds=60)
            return told if told["status"] == "acquired" else None

        successor = wait_until(taken, "the time of the silent owner is over")
        assert successor["previous"]["how"] == "expired"
        assert asked(transport, "acquire", "kept", owner="rival")["owner"] == "owner"

    events = events_of(server.store_url)
    assert broken_promises(events) == []
    outages = [event.at_ms for event in events if event.kind == "outage"]
    (expired,) = [event for event in events if event.kind == "expired"]
    assert outages, "the outage was not noted"
    assert expired.job == "lost"
    assert expired.at_ms >= outages[0] + TTL_S * 1000


@pytest.mark.promise("lease:outage-credit")
def test_the_shortest_lease_survives_a_pause_that_is_longer_than_itself(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        transport = server.transport()
        lease = asked(transport, "acquire", "job", owner="owner", ttl_seconds=1)
        server.pause()
        pass_by(steady_ms() + 1_300)
        server.resume()
        told = asked(transport, "acquire", "job", owner="rival", ttl_seconds=60)
        assert (told["status"], told["owner"]) == ("held", "owner"), told
        assert transport.ask(Ask("renew", "job", {"lease_id": lease["lease_id"]})).status == 200


@pytest.fixture(params=["one SQLite file", "one server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """URL and token to connect with, and the URL of the store behind."""
    url = f"sqlite://{tmp_path}/jobs.db"
    if request.param == "one SQLite file":
        yield url, "", url
    else:
        with ServerProcess(tmp_path, store=url) as server:
            yield server.url, server.token, url


@pytest.mark.promise("proof")
@pytest.mark.promise("lease:never-early")
@pytest.mark.promise("same-answer")
def test_an_owner_that_was_stopped_loses_the_job_and_cannot_touch_its_successor(
    place: tuple[str, str, str],
) -> None:
    url, token, store_url = place
    transport = connect(url, namespace=None, token=token or None, timeout_ms=10_000)
    sleeper = start_program(OWNER, url, token, "a job", str(OWNER_TTL_S), stdout=subprocess.PIPE, text=True)
    with sleeper:
        try:
            assert sleeper.stdout is not None
            first = json.loads(sleeper.stdout.readline())["body"]
            assert first["status"] == "acquired"
            assert first["attempt"] == 1
            wait_until_stopped(sleeper.pid)
            seen = asked(transport, "inspect", "a job")
            last = (seen if seen["status"] == "held" else seen["previous"])["checkpoint"]
            assert last == "beat 3"

            def taken() -> dict[str, Any] | None:
                told = asked(transport, "acquire", "a job", owner="next", ttl_seconds=60)
                assert told["status"] in ("acquired", "held"), told
                return told if told["status"] == "acquired" else None

            successor = wait_until(taken, "the stopped owner's time is over")
            assert successor["attempt"] == 2
            assert successor["fencing_token"] > first["fencing_token"]
            assert successor["previous"]["how"] == "expired"
            assert successor["previous"]["owner"] == "sleeper"
            assert successor["previous"]["checkpoint"] == last
            before = asked(transport, "inspect", "a job")

            sleeper.send_signal(signal.SIGCONT)
            out, _ = sleeper.communicate(timeout=WAIT_S_MAX)
            assert sleeper.returncode == 0
        finally:
            sleeper.kill()
    *_, renewed, released = [json.loads(line) for line in out.splitlines()]
    for refused in (renewed, released):
        assert refused["body"]["code"] == "lease_not_current", refused
        assert "expired" in refused["body"]["details"]
        assert "next has the job now" in refused["body"]["details"]
    after = asked(transport, "inspect", "a job")
    same = ("status", "owner", "fencing_token", "since", "expires_at", "checkpoint", "attempt")
    assert {field: after[field] for field in same} == {field: before[field] for field in same}
    assert asked(transport, "renew", "a job", lease_id=successor["lease_id"])["remaining_ms"] > 0
    transport.close()
    events = events_of(store_url)
    assert broken_promises(events) == []
    kinds = [event.kind for event in events if event.kind != "outage"]
    assert [kind for kind in kinds if kind != "progress"] == ["acquired", "expired", "acquired"]
    assert kinds[-1] == "acquired", "a ghost's checkpoint was written down"
