"""A server that is told to end: owners are served on, new claims are sent elsewhere. And /ready."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.core.limits import DRAIN_QUIET_MS, SHUTDOWN_MS_MAX
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.programs import ServerProcess, clean_env, dibs, pause, wait_until
from tests.server.harness import Response, Server, running
from tests.server.sse import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.full

DRAIN_S = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, flags=("--drain", f"{DRAIN_S}s")) as server:
        yield server


def ask(server: ServerProcess, method: str, path: str, body: dict[str, Any] | None = None) -> Response:
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        raw = connection.getresponse()
        return Response(raw.status, raw.getheaders(), raw.read())
    finally:
        connection.close()


def begin_drain(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: is_draining(server), "it drains")


def is_draining(server: ServerProcess) -> bool:
    try:
        return ask(server, "GET", "/ready").status == 503
    except ConnectionResetError:  # connections of which no request was read yet are closed when the drain begins
        return False


@pytest.mark.promise("servers:drain")
def test_nothing_new_begins_and_what_is_held_is_served(server: ServerProcess) -> None:
    assert ask(server, "GET", "/ready").json == {"status": "ready"}
    lease = ask(server, "POST", "/locks/job/acquire", {}).json["lease_id"]
    session = ask(server, "POST", "/sessions", {}).json["session_id"]
    begin_drain(server)
    begins: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/locks/other/acquire", {}),
        ("POST", "/locks/other/acquire", {"wait_seconds": 5}),
        ("POST", "/locks/acquire-any", {"names": ["a", "b"]}),
        ("POST", "/locks/acquire-all", {"names": ["a", "b"]}),
        ("POST", "/sessions", {}),
    ]
    for method, path, body in begins:
        refused = ask(server, method, path, body)
        assert (refused.status, refused.json["code"]) == (503, "draining"), path
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
    goes_on: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", "/locks/job/renew", {"lease_id": lease, "checkpoint": "half"}),
        ("GET", "/locks/job", None),
        ("GET", "/locks", None),
        ("POST", f"/sessions/{session}/keepalive", {}),
        ("POST", "/locks/job/release", {"lease_id": lease, "done_seconds": 60, "result": "r"}),
        ("GET", "/health", None),
        ("GET", "/healthz", None),
    ]
    for method, path, sent in goes_on:
        served = ask(server, method, path, sent)
        assert served.status == 200, (path, served.body)
        assert served.headers["connection"] == "close"
    assert ask(server, "DELETE", f"/sessions/{session}").status == 204


@pytest.mark.promise("servers:drain")
@pytest.mark.promise("queue:fifo")
def test_who_waits_is_told_its_ticket_and_the_place_stays(server: ServerProcess) -> None:
    ask(server, "POST", "/locks/job/acquire", {"ttl_seconds": 60})
    told: list[Any] = []
    body = {"wait_seconds": 60, "owner": "w"}
    waiter = threading.Thread(target=lambda: told.append(ask(server, "POST", "/locks/job/acquire", body)))
    waiter.start()
    wait_until(lambda: ask(server, "GET", "/status").json["waiting"] == 1, "it waits")
    begin_drain(server)
    waiter.join(60)
    assert (told[0].json["status"], told[0].json["position"]) == ("queued", 1)
    assert told[0].headers["connection"] == "close"
    assert ask(server, "GET", "/locks/job").json["waiting"] == 1
    assert ask(server, "POST", "/locks/job/leave", {"ticket": told[0].json["ticket"]}).json["left"] is True


@pytest.mark.promise("servers:drain")
def test_it_ends_in_time_also_if_somebody_keeps_asking(server: ServerProcess) -> None:
    begin_drain(server)
    began_ms = steady_ms()

    def ended() -> bool:
        try:
            ask(server, "GET", "/locks/job")
        except OSError:
            return server.process.poll() is not None
        return False

    wait_until(ended, "it has ended")
    took_ms = steady_ms() - began_ms
    # Not for ever: a machine that is slow may take a few times longer than the server means to.
    assert DRAIN_S * 1000 - 1_000 <= took_ms <= 3 * (DRAIN_S * 1000 + SHUTDOWN_MS_MAX)
    assert server.process.returncode == 0


@pytest.mark.promise("servers:drain")
@pytest.mark.promise("events:ordered")
def test_streams_end_when_the_drain_begins_and_none_begins_then(server: ServerProcess) -> None:
    port = int(server.url.rpartition(":")[2])
    with StreamReader(port, "/events", who=server.token) as reader:
        reader.settle()
        ask(server, "POST", "/locks/job/acquire", {})
        assert reader.next().document["event"] == "acquired"
        began_ms = steady_ms()
        begin_drain(server)
        assert reader.rest() == []
        assert reader.ended
        assert reader.text.endswith(b"retry: 1000\n\n")
        assert steady_ms() - began_ms < DRAIN_S * 1000
    with StreamReader(port, "/events", who=server.token) as late:
        assert late.status == 503
        assert late.headers["retry-after"] == "1"
    assert ask(server, "GET", "/events?after=0").json["events"][0]["event"] == "acquired"
    assert server.process.wait(60) == 0


def test_it_ends_soon_when_nobody_asks_any_more(server: ServerProcess) -> None:
    began_ms = steady_ms()
    assert server.stop() == 0
    assert steady_ms() - began_ms < DRAIN_S * 1000
    assert steady_ms() - began_ms >= DRAIN_QUIET_MS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(server: ServerProcess, number: int) -> None:
    begin_drain(server)
    began_ms = steady_ms()
    server.process.send_signal(number)
    assert server.process.wait(60) == 0
    assert steady_ms() - began_ms < DRAIN_QUIET_MS + SHUTDOWN_MS_MAX // 2


def test_an_interrupt_and_a_drain_of_nothing_end_it_without_draining(tmp_path: Path) -> None:
    for flags, number in (((), signal.SIGINT), (("--drain", "0"), signal.SIGTERM), ((), signal.SIGTERM)):
        with ServerProcess(tmp_path, flags=flags) as server:
            ask(server, "POST", "/locks/job/acquire", {})
            server.process.send_signal(number)
            assert server.process.wait(60) == 0
            assert "draining" not in server.log.read_text(), "it is alone: its clients wait for it to come back"


@pytest.mark.promise("servers:drain")
def test_one_of_two_drains_without_being_told_how_long(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/two.db"
    homes = [tmp_path / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
    with ServerProcess(homes[0], store=store) as one, ServerProcess(homes[1], store=store) as two:
        ask(two, "POST", "/locks/job/acquire", {})  # servers tell of themselves while something is held
        pause(1)
        assert one.stop() == 0
        assert "draining" in one.log.read_text()
        assert two.stop() == 0
        assert "draining" not in two.log.read_text()


@pytest.mark.parametrize("text", ["x", "-1s", "11m", ""])
def test_a_drain_is_a_time(tmp_path: Path, text: str) -> None:
    ran = dibs(clean_env(tmp_path), "serve", "--drain", text, "--bind", "127.0.0.1:0")
    assert ran.exit == 64
    assert "--drain" in ran.err


class BrokenStore(MemoryStore):
    broken = False

    def read(self, keys: Any) -> Any:
        if self.broken:
            raise StoreUnavailable("The database does not answer.")
        return super().read(keys)


def test_ready_says_why_not_without_a_token_and_to_head_as_well(tmp_path: Path) -> None:
    clock = ManualClock()
    store = BrokenStore(clock)
    with running(tmp_path, store=store, clock=clock) as server:
        for path in ("/ready", "/readyz"):
            assert server.ask("GET", path, who=None).json == {"status": "ready"}
            head = server.ask("HEAD", path, who=None)
            assert (head.status, head.body) == (200, b"")
        store.broken = True
        answer = server.ask("GET", "/ready", who=None)
        assert (answer.status, answer.json["code"]) == (503, "upstream_unavailable")
        assert answer.json["details"].startswith("The server's store does not answer.")
        assert server.ask("HEAD", "/ready", who=None).status == 503
        assert server.ask("GET", "/healthz", who=None).status == 200
        store.broken = False


@pytest.mark.promise("servers:one-store")
def test_a_request_for_another_store_is_refused_and_does_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        store_id = server.ask("GET", "/locks/job").headers["x-dibs-store"]
        assert store_id == server.engine.store_id
        refused = server.acquire("job", headers={"X-Dibs-Store": "another"})
        assert (refused.status, refused.json["code"]) == (421, "invalid_input")
        assert server.ask("GET", "/locks/job").json["status"] == "free"
        assert server.acquire("job", headers={"X-Dibs-Store": store_id}).json["status"] == "acquired"


def test_many_who_probe_at_once_cost_one_look_at_the_store(tmp_path: Path) -> None:
    clock = ManualClock()
    looks: list[object] = []

    class SlowStore(MemoryStore):
        def read(self, keys: Any) -> Any:
            if threading.current_thread().name.startswith("dibs-health"):
                looks.append(keys)
                pause(0.5)
            return super().read(keys)

    with running(tmp_path, store=SlowStore(clock), clock=clock) as server:
        answers = probe_at_once(server, 20)
    assert set(answers) == {200}
    assert len(looks) <= 2


def probe_at_once(server: Server, count: int) -> list[int]:
    found: list[int] = []

    def probe() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/ready")
        found.append(connection.getresponse().status)
        connection.close()

    threads = [threading.Thread(target=probe) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == count
    return found
