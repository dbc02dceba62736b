"""doctor on a server: versions, clocks, how fast it answers, and what in its store somebody should look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.cli.commands.doctor import Findings, check_one_store
from dibs.client.embedded import EmbeddedTransport
from dibs.client.settings import connect_as
from dibs.client.transport import Ask
from dibs.core.durations import format_duration
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.client.scripted import ScriptedServer, reply_of
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Terminal
    from tests.server.harness import Server

DAY_S = 86_400


@pytest.fixture
def outside(terminal: Terminal, tmp_path: Path) -> Terminal:
    """A terminal whose commands go where the settings say."""
    terminal._open = connect_as  # type: ignore[method-assign, assignment]
    terminal.env |= {"XDG_STATE_HOME": str(tmp_path), "DIBS_TOKEN": TOKENS["admin"]}
    return terminal


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as server:
        yield server


def checks(terminal: Terminal, server: Server) -> dict[str, dict[str, Any]]:
    ran = terminal("doctor", f"http://127.0.0.1:{server.port}", "--json")
    assert ran.exit == 0
    return {each["check"]: each for each in ran.data["checks"]}


def test_of_a_server_in_order_it_shows_version_clock_and_speed(outside: Terminal, tmp_path: Path) -> None:
    with running(tmp_path, store=MemoryStore(wall_ms), real_time=True) as server:
        ran = outside("doctor", f"http://127.0.0.1:{server.port}")
    assert ran.exit == 0, ran.out
    assert ran.out.endswith("All is well.\n")
    lines = {line.split()[1]: line for line in ran.out.splitlines() if line[:2] in ("ok", "!!")}
    assert "from this machine's to the store's" in lines["clock"]
    assert "median of 5" in lines["latency"]
    assert "admin, admin, in any namespace" in lines["caller"]


def test_clocks_that_differ_are_reported_with_the_error_of_the_measurement(outside: Terminal, server: Server) -> None:
    found = checks(outside, server)["clock"]
    assert (found["ok"], found["look"]) == (True, True)
    behind = format_duration(wall_ms() - server.clock.wall_ms())
    assert f"the store's is {behind} behind this machine's, ±" in found["says"]
    assert "set both by NTP" in found["says"]


def test_parked_jobs_long_waits_and_tokens_that_end_soon_are_reported(outside: Terminal, server: Server) -> None:
    for name in ("p1", "p2", "p3", "p4"):
        lease = server.acquire(name, {"max_attempts": 1}).json["lease_id"]
        server.ask("POST", f"/locks/{name}/release", {"lease_id": lease, "failed": True})
    server.ask("POST", "/tokens", {"name": "ci", "expires_seconds": 3 * DAY_S}, who="admin")
    server.ask("POST", "/tokens", {"name": "later", "expires_seconds": 30 * DAY_S}, who="admin")
    server.lease("wanted", owner="holder", ttl_seconds=DAY_S)
    ask = {"owner": "patient", "wait_seconds": 0.01, "idempotency_key": "one-ask"}
    ticket = server.acquire("wanted", ask).json["ticket"]
    assert "waiting" not in checks(outside, server)
    for _ in range(11 * 6):  # a place is kept by asking: a server does that by the machine's clock
        server.clock.advance(10_000)
        assert server.acquire("wanted", {**ask, "ticket": ticket}).json["ticket"] == ticket
    found = checks(outside, server)
    assert found["parked"]["says"].startswith("p1, p2, p3 and 1 more failed too often.")
    assert found["waiting"]["says"].startswith("patient has waited 11m for wanted, and 0 more over 10m.")
    assert found["tokens"]["says"].startswith("ci (")
    assert "later" not in found["tokens"]["says"]
    ran = outside("doctor", f"http://127.0.0.1:{server.port}")
    assert ran.exit == 0
    assert ran.out.endswith("It works. Marked !!: 4 to look at.\n")


def test_an_agent_is_told_of_its_own_token_and_of_no_other(outside: Terminal, server: Server) -> None:
    made = server.ask("POST", "/tokens", {"name": "ci", "expires_seconds": DAY_S}, who="admin").json
    outside.env["DIBS_TOKEN"] = made["token"]
    found = checks(outside, server)
    assert "tokens" not in found
    assert found["expires"]["says"].startswith(f"your token ends {made['expires_at']}.")
    assert made["token"] not in str(found)


def test_another_version_at_the_server_is_reported(outside: Terminal) -> None:
    empty = reply_of(200, {"locks": [], "next": None, "waiters": []})
    replies = [reply_of(200, {"status": "ok", "dibs": "0.0.1", "storage": "sqlite", "schema": 2})]
    with ScriptedServer([*replies, empty, reply_of(404, {}), empty, empty]) as server:
        ran = outside("doctor", server.url)
    assert "dibs 0.0.1, on sqlite, schema 2" in ran.out
    assert "!!   versions" in ran.out
    assert ran.exit == 0


def test_a_store_without_a_server_says_who_waits() -> None:
    store = MemoryStore(ManualClock())
    transport = EmbeddedTransport(lambda: Coordinator(store))
    transport.ask(Ask("acquire", "wanted", {"owner": "holder"}))
    asked = transport.ask(Ask("acquire", "wanted", {"owner": "patient", "wait_seconds": 0.001}))
    assert (asked.body or {})["status"] == "queued"
    [waiter] = (transport.ask(Ask("waiters", "", {"limit": 10})).body or {})["waiters"]
    assert (waiter["owner"], waiter["name"], waiter["holders"][0]["owner"]) == ("patient", "wanted", "holder")


def test_a_server_that_answers_with_a_fault_of_its_store_is_reported_with_that_fault(outside: Terminal) -> None:
    """It is up, and /health says what is wrong: a damaged record, a full disk, a frozen store."""
    health = {"status": "degraded", "dibs": "0.2.0", "storage": "sqlite", "details": "The disk is full."}
    with ScriptedServer([reply_of(503, health)]) as server:
        ran = outside("doctor", server.url, "--json")
    says = {each["check"]: each["says"] for each in ran.data["checks"]}
    assert says["answers"] == "The disk is full."


@pytest.mark.promise("servers:one-store")
@pytest.mark.parametrize(
    ("stores", "says"),
    [
        ({"a": ["one"], "b": ["one"]}, "all 2 serve the same"),
        ({"a": ["one"], "b": ["two"]}, "b serves another store than a: name servers of one store"),
        ({"a": ["one"], "b": ["two", "one"]}, "a serves a store that was moved to that of b: stop that server"),
        ({"b": ["two", "one"], "a": ["one"]}, "a serves a store that was moved to that of b: stop that server"),
        ({"a": ["thawed", "one"], "b": ["two", "one"]}, "b serves another store than a: name servers of one store"),
    ],
)
def test_servers_of_two_stores_are_named_and_those_of_a_moved_one_told_apart(
    stores: dict[str, list[str]], says: str
) -> None:
    found = Findings()
    check_one_store(found, stores)
    assert [each["says"] for each in found.checks] == [says]
