"""/mcp of a server: the same tools, let in by the same tokens, with the lease id as the handle of a claim."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.mcp.http_endpoint import ApiTransport
from dibs.agents.mcp.stdio import HANDSHAKE
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.engine.coordinator import Coordinator
from tests.plugins.agents.connection import LEGACY, MODERN, Agent
from tests.plugins.agents.test_protocol import ENVELOPE
from tests.server.harness import TOKENS, running, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.server.harness import Response, Server

pytestmark = pytest.mark.anyio
ACCEPT = {"Accept": "application/json, text/event-stream"}
UNKNOWN_LEASE = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[LEGACY, MODERN])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@asynccontextmanager
async def agent(server: Server, who: str = "agent", mode: str = MODERN, **headers: str) -> AsyncIterator[Agent]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    sent = {"Authorization": f"Bearer {TOKENS[who]}", **headers}
    async with httpx2.AsyncClient(headers=sent, timeout=60) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{server.port}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield Agent(client)


def post(server: Server, headers: dict[str, str] | None = None, who: str | None = "agent") -> Response:
    """A first message as a client of the handshake kind sends it."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    return server.ask("POST", "/mcp", message, who=who, headers={**ACCEPT, **(headers or {})})


def status(server: Server, name: str) -> dict[str, Any]:
    document: dict[str, Any] = server.ask("GET", f"/locks/{name}").json
    return document


async def test_a_claim_through_mcp_is_a_claim_of_the_server(fast: Server, name: str, mode: str) -> None:
    name = f"{name}-{mode}"
    async with agent(fast, mode=mode) as first, agent(fast, "other", mode=mode) as second:
        answer = await first.call("claim_job", job=name, metadata="m")
        assert answer["claimed"] is True
        assert answer["owner"] == "agent"  # the token's principal
        assert answer["expires_in_seconds"] == 900
        assert "call heartbeat_job with this lease_id" in answer["message"]
        held = status(fast, name)
        assert (held["owner"], held["metadata"]) == ("agent", "m")
        refused = await second.call("claim_job", job=name)
        assert refused["claimed"] is False
        assert refused["refused"][0]["owner"] == "agent"
        assert answer["lease_id"] not in json.dumps(refused)
        listed = await second.call("list_claimed_jobs", prefix=name)
        assert [each["job"] for each in listed["jobs"]] == [name]
        history = json.loads(await second.read(f"dibs://jobs/{name}/history"))
        assert [each["event"] for each in history["events"]] == ["acquired"]
        done = await first.call("release_job", job=name, lease_id=answer["lease_id"], done=True, result="r")
        assert done["released"] is True
        assert (await second.call("claim_job", job=name))["refused"][0]["result"] == "r"


async def test_the_claim_outlives_the_connection_and_the_lease_id_is_its_handle(fast: Server, name: str) -> None:
    async with agent(fast) as first:
        lease = (await first.call("claim_job", job=name))["lease_id"]
    assert status(fast, name)["status"] == "held"
    async with agent(fast) as second:
        without = await second.error("release_job", job=name)
        assert "lease_id is missing" in without
        wrong = await second.call("release_job", job=name, lease_id=UNKNOWN_LEASE)
        assert wrong["released"] is False
        assert lease not in json.dumps(wrong)
        assert (await second.call("release_job", job=name, lease_id=lease))["released"] is True


@pytest.mark.promise("proof")
async def test_a_lease_of_another_principal_is_no_proof(fast: Server, name: str) -> None:
    async with agent(fast) as first, agent(fast, "other") as second:
        lease = (await first.call("claim_job", job=name))["lease_id"]
        stolen = await second.call("heartbeat_job", job=name, lease_id=lease)
        assert stolen["yours"] is False
        assert (await second.call("get_job_owner", job=name, lease_id=lease))["yours"] is False
        assert (await first.call("heartbeat_job", job=name, lease_id=lease))["yours"] is True


async def test_every_call_that_shows_the_handle_renews_it(fast: Server, name: str) -> None:
    async with agent(fast) as one:
        lease = (await one.call("claim_job", job=name, ttl_seconds=60))["lease_id"]
        assert status(fast, name)["remaining_ms"] <= 60_000
        for tool in ("heartbeat_job", "get_job_owner"):
            fast.pass_time(40_000)
            answer = await one.call(tool, job=name, lease_id=lease)
            assert answer["yours"] is True
            assert status(fast, name)["remaining_ms"] > 55_000
        looked = await one.call("get_job_owner", job=name)
        assert looked["yours"] is False
        fast.pass_time(61_000)
        late = await one.call("heartbeat_job", job=name, lease_id=lease)
        assert late["yours"] is False
        assert "expired" in late["message"]


async def test_the_texts_say_that_nothing_watches_the_connection(fast: Server) -> None:
    async with agent(fast) as one:
        tools = {tool.name: tool for tool in (await one.client.list_tools()).tools}
    claim = tools["claim_job"]
    assert "Keep the lease_id" in (claim.description or "")
    assert claim.input_schema["properties"]["ttl_seconds"]["default"] == 900
    assert "lease_id" in tools["heartbeat_job"].input_schema["required"]
    looking = tools["get_job_owner"].annotations
    assert looking is not None
    assert looking.read_only_hint is False  # it may renew


@pytest.mark.promise("idem:acquire")
async def test_a_repeated_claim_with_a_request_key_is_the_same_claim(fast: Server, name: str) -> None:
    async with agent(fast) as one:
        first = await one.call("claim_job", job=name, request_key="k")
        assert (await one.call("claim_job", job=name, request_key="k"))["lease_id"] == first["lease_id"]
        assert (await one.call("claim_job", job=name))["claimed"] is False


@pytest.mark.promise("all-or-nothing")
async def test_who_repeats_a_claim_of_several_of_which_one_was_lost_is_told_what_it_still_has(
    fast: Server, name: str
) -> None:
    async with agent(fast) as one:
        asked = {"jobs": [name, f"{name}-too"], "request_key": "k-all"}
        lease = (await one.call("claim_all_jobs", **asked))["lease_id"]
        await one.call("release_job", job=name, lease_id=lease)
        answer = await one.call("claim_all_jobs", **asked)
        assert answer["claimed"] is False
        assert f"still has {name}-too, with lease id {lease}" in answer["message"]


async def test_the_namespace_is_the_token_s_or_the_one_named(fast: Server, name: str) -> None:
    async with agent(fast, "scoped") as scoped, agent(fast) as other:
        assert (await scoped.call("claim_job", job=name))["claimed"] is True
        assert (await other.call("claim_job", job=name))["claimed"] is True
    async with agent(fast, **{"X-Dibs-Namespace": "team-a"}) as same:
        assert (await same.call("claim_job", job=name))["claimed"] is False
    async with agent(fast, "scoped", **{"X-Dibs-Namespace": "team-b"}) as outside:
        assert "for the namespace team-a" in await outside.error("claim_job", job=name)


async def test_a_mebibyte_of_metadata_is_refused_in_words(fast: Server, name: str, mode: str) -> None:
    async with agent(fast, mode=mode) as one:
        said = await one.error("claim_job", job=name, metadata="x" * 1024 * 1024)
        assert "1024" in said
        assert len(said) < 500
    assert status(fast, name)["status"] == "free"


async def test_a_claim_that_waits_gets_its_place_and_the_job(fast: Server, name: str) -> None:
    async with agent(fast) as first, agent(fast, "other") as second:
        lease = (await first.call("claim_job", job=name))["lease_id"]
        waiting = asyncio.create_task(second.call("claim_job", job=name, wait_seconds=30))
        await until(lambda: status(fast, name)["waiting"] == 1)
        await first.call("release_job", job=name, lease_id=lease)
        assert (await waiting)["claimed"] is True


async def test_a_client_that_hangs_up_in_mid_claim_leaves_nothing_behind(fast: Server, name: str, mode: str) -> None:
    name = f"{name}-{mode}"
    async with agent(fast, mode=mode) as first:
        lease = (await first.call("claim_job", job=name))["lease_id"]
        connection = await asyncio.to_thread(hang_on, fast, name, mode)
        await until(lambda: status(fast, name)["waiting"] == 1)
        connection.close()
        await until(lambda: status(fast, name)["waiting"] == 0)
        await until(lambda: fast.waiting() == 0)
        await first.call("release_job", job=name, lease_id=lease)
        assert status(fast, name)["status"] == "free"


@pytest.mark.fault("F-456")
async def test_a_claim_that_came_too_late_for_its_caller_is_withdrawn(
    fast: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(fast) as one:
        lease = (await one.call("claim_job", job=name))["lease_id"]
        await one.call("release_job", job=name, lease_id=lease, failed=True)
        with monkeypatch.context() as patch:
            leave_after(patch, "acquire", "acquire-all")
            assert "The client left" in await one.error("claim_job", job=name)
            assert "The client left" in await one.error("claim_all_jobs", jobs=[name, f"{name}-too"])
            assert [status(fast, each)["status"] for each in (name, f"{name}-too")] == ["free", "free"]
            assert "The client left" in await one.error("claim_job", job=name, request_key="k")
        assert (await one.call("get_job_owner", job=name))["status"] == "held"  # it can ask again
        assert (await one.call("claim_job", job=name, request_key="k"))["attempt"] == 2
        events = fast.ask("GET", f"/locks/{name}/history").json["events"]
        ends = [each.get("uncounted") for each in events if each["event"] == "released"]
        assert ends == [True, True]  # nothing is said of work that nobody did


@pytest.mark.fault("F-456")
async def test_who_leaves_between_two_requests_of_a_wait_waits_no_more(
    fast: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(fast) as first, agent(fast, "other") as second:
        await first.call("claim_job", job=name)
        asked = leave_after(monkeypatch, "acquire", has_heard=True)
        assert "The client left" in await second.error("claim_job", job=name, wait_seconds=30)
        assert asked.count("acquire") == 1
        assert status(fast, name)["waiting"] == 0


def leave_after(patch: pytest.MonkeyPatch, *verbs: str, has_heard: bool = False) -> list[str]:
    """Let the client of a claim be gone when it is decided, or when it has heard how. Returns what is asked."""
    answer, ask, left = ApiTransport._answer, ApiTransport.ask, set[ApiTransport]()
    asked: list[str] = []

    async def decided(self: ApiTransport, step: Ask) -> Any:
        asked.append(step.verb)
        reply = await answer(self, step)
        if step.verb in verbs and not has_heard:
            left.add(self)
        return reply

    async def heard(self: ApiTransport, step: Ask, timeout_ms: int, lane: str) -> Any:
        reply = await ask(self, step, timeout_ms, lane)
        if step.verb in verbs and has_heard:
            left.add(self)
        return reply

    patch.setattr(ApiTransport, "_answer", decided)
    patch.setattr(ApiTransport, "ask", heard)
    patch.setattr(ApiTransport, "is_gone", property(left.__contains__))
    return asked


async def test_who_waits_when_the_server_stops_is_told_so_and_leaves_the_line(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.lease("job")
        async with agent(server, "other") as second:
            waiting = asyncio.create_task(second.error("claim_job", job="job", wait_seconds=60))
            await until(lambda: status(server, "job")["waiting"] == 1)
            server.begin_stop()
            assert "The server is stopping" in await waiting
        transport = EmbeddedTransport(lambda: Coordinator(server.store))
        assert (transport.ask(Ask("inspect", "job")).body or {})["waiting"] == 0


def hang_on(server: Server, name: str, mode: str) -> Any:
    """A claim that waits, on a socket that can be closed under it."""
    params: dict[str, Any] = {"name": "claim_job", "arguments": {"job": name, "wait_seconds": 60}}
    more = ""
    if mode == MODERN:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        more = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: claim_job\r\n"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    connection = server.raw()
    connection.sendall(
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['other']}\r\n{more}"
        f"Accept: {ACCEPT['Accept']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


async def until(is_so: Any) -> None:
    await asyncio.to_thread(wait_until, is_so, "it is so")


# The transport


def test_without_a_token_nobody_is_let_in(fast: Server) -> None:
    reply = post(fast, who=None)
    assert (reply.status, reply.json["code"]) == (401, "authentication_required")
    assert reply.headers["www-authenticate"] == "Bearer"
    reply = post(fast, who="no-such-token")
    assert (reply.status, reply.json["code"]) == (401, "authentication_failed")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:3427", "[::1]:3427", "LOCALHOST:80"])
def test_this_machine_may_be_asked_under_its_own_names(fast: Server, host: str) -> None:
    assert post(fast, {"Host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:3427", "", "["])
def test_another_name_in_the_host_header_is_refused(fast: Server, host: str) -> None:
    reply = post(fast, {"Host": host})
    assert reply.status == 421
    assert "--mcp-host" in reply.json["details"]


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://127.0.0.1", "http://[::1]:1"])
def test_a_page_of_this_machine_may_ask(fast: Server, origin: str) -> None:
    assert post(fast, {"Origin": origin}).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://"])
def test_a_page_from_elsewhere_may_not(fast: Server, origin: str) -> None:
    reply = post(fast, {"Origin": origin})
    assert (reply.status, reply.json["code"]) == (403, "forbidden")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_there_is_no_stream_to_open_and_no_session_to_end(fast: Server, method: str) -> None:
    reply = fast.ask(method, "/mcp", headers=ACCEPT)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_what_is_no_message_is_refused(fast: Server) -> None:
    assert fast.ask("POST", "/mcp", b"{", headers={**ACCEPT, "Content-Type": "application/json"}).status == 400
    large = b" " * (3 * 1024 * 1024)
    reply = fast.ask("POST", "/mcp", large, headers={**ACCEPT, "Content-Type": "application/json"})
    assert reply.status == 413


def test_only_json_is_taken_and_answered(fast: Server) -> None:
    assert post(fast, {"Content-Type": "text/plain"}).status == 415
    for kinds, status in (("*/*", 200), ("application/json;q=0.5", 200), ("text/event-stream", 406), ("", 406)):
        assert post(fast, {"Accept": kinds}).status == status


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
BATCH_OF_ONE = [PING]


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (PING, 200, None),
        ({**PING, "params": {"_meta": {"progressToken": 1}}}, 200, None),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202, None),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 202, None),
        ({**PING, "method": "no/such"}, 200, -32601),
        ({**PING, "method": "tools/list", "params": {"cursor": 5}}, 200, -32602),
        ({**PING, "jsonrpc": "1.0"}, 400, -32600),
        (BATCH_OF_ONE, 400, -32600),
        ({**PING, "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}}, 400, -32020),
    ],
)
@pytest.mark.parametrize("version", [None, *HANDSHAKE])
def test_a_message_of_a_revision_with_a_handshake(
    fast: Server, version: str | None, message: Any, status: int, code: int | None
) -> None:
    headers = ACCEPT if version is None else {**ACCEPT, "MCP-Protocol-Version": version}
    reply = fast.ask("POST", "/mcp", message, headers=headers)
    assert reply.status == status
    if status == 202:
        assert reply.body == b""
    else:
        assert reply.json.get("error", {}).get("code") == code


NAMING = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "get_job_owner"}
IN_BASE64 = "=?base64?Z2V0X2pvYl9vd25lcg==?="


@pytest.mark.parametrize(
    ("headers", "params", "status", "code"),
    [
        ({}, {}, 200, None),
        ({"Mcp-Name": IN_BASE64}, {}, 200, None),
        ({"Mcp-Name": IN_BASE64.replace("=", "", 3)}, {}, 400, -32020),
        ({"Mcp-Name": "=?base64?Z?="}, {}, 400, -32020),
        ({"Mcp-Name": "other"}, {}, 400, -32020),
        ({"Mcp-Method": "tools/list"}, {}, 400, -32020),
        ({"MCP-Protocol-Version": "2099-01-01"}, {}, 400, -32020),
        ({"Mcp-Name": "no-such"}, {"name": "no-such"}, 400, -32602),
        ({}, {"_meta": {}}, 400, -32602),
        ({}, {"_meta": 5}, 400, -32602),
    ],
)
def test_a_message_of_the_revision_without_a_handshake_says_the_same_in_its_headers(
    fast: Server, headers: dict[str, str], params: dict[str, Any], status: int, code: int | None
) -> None:
    call = {"name": "get_job_owner", "arguments": {"job": "x"}, "_meta": ENVELOPE, **params}
    message = {**PING, "method": "tools/call", "params": call}
    reply = fast.ask("POST", "/mcp", message, headers={**ACCEPT, **NAMING, **headers})
    assert (reply.status, reply.json.get("error", {}).get("code")) == (status, code)


def test_a_header_that_names_the_request_twice_is_refused(fast: Server) -> None:
    params = {"name": "get_job_owner", "arguments": {"job": "x"}, "_meta": ENVELOPE}
    body = json.dumps({**PING, "method": "tools/call", "params": params})
    lines = [f"{name}: {value}\r\n" for name, value in {**ACCEPT, **NAMING}.items()]
    with fast.raw() as connection:
        connection.sendall(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['agent']}\r\n"
            f"Mcp-Name: release_job\r\n{''.join(lines)}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert b"more than once" in connection.recv(65536)


def test_a_method_that_the_revision_without_a_handshake_does_not_have_is_not_found(fast: Server) -> None:
    for method in ("ping", "initialize", "no/such"):
        headers = {**ACCEPT, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
        message = {**PING, "method": method, "params": {"_meta": ENVELOPE}}
        reply = fast.ask("POST", "/mcp", message, headers=headers)
        assert (reply.status, reply.json["error"]["code"]) == (404, -32601)
