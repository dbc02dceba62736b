"""The protocol over lines, as a client writes and reads them: what the SDK's client never sends."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.mcp import stdio
from dibs.agents.mcp.methods import Methods
from dibs.agents.mcp.stdio import HANDSHAKE, Connection
from dibs.sdk.async_transport import ThreadedTransport
from tests.plugins.agents.connection import backend_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plugins.agents.connection import Store

pytestmark = pytest.mark.anyio
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "a client", "version": "1"},
}
HELLO = {"capabilities": {}, "clientInfo": {"name": "a client", "version": "1"}}
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602


class Lines:
    """A client that speaks JSON-RPC by hand."""

    def __init__(self, connection: Connection, got: asyncio.Queue[Any]) -> None:
        self.connection = connection
        self.got = got

    def send(self, method: str, params: Any = None, **more: Any) -> None:
        document = {"jsonrpc": "2.0", "method": method, **more}
        self.connection.receive(json.dumps(document | ({} if params is None else {"params": params})).encode())

    async def read(self) -> Any:
        async with asyncio.timeout(20):
            return await self.got.get()

    async def ask(self, method: str, params: Any = None, key: Any = 1) -> Any:
        self.send(method, params, id=key)
        answer = await self.read()
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", key)
        return answer.get("result", answer.get("error"))

    async def begin(self, version: str = HANDSHAKE[-1]) -> Any:
        return await self.ask("initialize", {**HELLO, "protocolVersion": version})

    async def tell(self, line: bytes) -> Any:
        self.connection.receive(line)
        return await self.read()


@asynccontextmanager
async def lines_to(store: Store) -> AsyncIterator[Lines]:
    transport = store.transport(ThreadedTransport)
    got: asyncio.Queue[Any] = asyncio.Queue()
    backend = backend_of(transport, "agent-7")
    connection = Connection(Methods(kept=True), backend, lambda line: got.put_nowait(json.loads(line)))
    try:
        yield Lines(connection, got)
    finally:
        await connection.close()
        transport.close()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Lines]:
    async with lines_to(store) as made:
        yield made


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_version_that_is_known_is_agreed_on(client: Lines, version: str) -> None:
    assert (await client.begin(version))["protocolVersion"] == version


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", ""])
async def test_any_other_version_is_answered_with_the_newest_that_has_a_handshake(client: Lines, version: str) -> None:
    assert (await client.begin(version))["protocolVersion"] == HANDSHAKE[-1]


async def test_a_client_may_discover_first_and_then_shake_hands(client: Lines) -> None:
    found = await client.ask("server/discover", {"_meta": ENVELOPE})
    assert (found["supportedVersions"], found["resultType"]) == (["2026-07-28"], "complete")
    assert (await client.ask("server/discover"))["code"] == NO_METHOD
    assert (await client.ask("tools/list"))["code"] == INVALID_PARAMS
    assert (await client.begin())["serverInfo"]["name"] == "dibs"
    client.send("notifications/initialized")
    assert "resultType" not in await client.ask("tools/list")
    assert (await client.ask("tools/list", {"_meta": ENVELOPE}))["resultType"] == "complete"


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({"io.modelcontextprotocol/clientCapabilities": None}, INVALID_PARAMS),
        ({"io.modelcontextprotocol/clientInfo": 5}, INVALID_PARAMS),
        ({"io.modelcontextprotocol/protocolVersion": 5}, INVALID_PARAMS),
        ({"io.modelcontextprotocol/protocolVersion": "2099-01-01"}, -32022),
    ],
)
async def test_an_envelope_that_is_wrong_is_refused(client: Lines, meta: dict[str, Any], code: int) -> None:
    assert (await client.ask("tools/list", {"_meta": ENVELOPE | meta}))["code"] == code


@pytest.mark.parametrize(
    "params",
    [
        {},
        {**HELLO, "protocolVersion": 5},
        {"protocolVersion": "2025-06-18", "clientInfo": HELLO["clientInfo"]},
        {"protocolVersion": "2025-06-18", "capabilities": {}},
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x"}},
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"version": "1"}},
    ],
)
async def test_a_handshake_without_what_it_needs_is_refused(client: Lines, params: dict[str, Any]) -> None:
    assert (await client.ask("initialize", params))["code"] == INVALID_PARAMS
    assert (await client.ask("tools/list"))["code"] == INVALID_PARAMS


@pytest.mark.parametrize(
    ("line", "key", "code"),
    [
        (b"{ not json", None, PARSE_ERROR),
        (b"\xff\xfe", None, PARSE_ERROR),
        (b"[" * 100_000, None, PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', None, PARSE_ERROR),
        (b"[]", None, INVALID_REQUEST),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, INVALID_REQUEST),
        (b"null", None, INVALID_REQUEST),
        (b"{}", None, INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","id":"a","method":"ping"}', "a", INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None, INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":"a","method":5}', "a", INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[]}', "a", INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":"a","method":"no/such"}', "a", NO_METHOD),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"cursor":5}}', "a", INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":5}}', "a", INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"_meta":5}}', "a", INVALID_PARAMS),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_goes_on(
    client: Lines, line: bytes, key: str | None, code: int
) -> None:
    await client.begin()
    answer = await client.tell(line)
    assert (answer["id"], answer["error"]["code"]) == (key, code)
    assert await client.ask("ping") == {}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" \r\n",
        b'{"jsonrpc":"2.0","id":"a","result":{}}',
        b'{"jsonrpc":"2.0","id":"a","error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","method":"notifications/no-such","params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":["x"]}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    ],
)
async def test_what_wants_no_answer_gets_none(client: Lines, line: bytes) -> None:
    await client.begin()
    client.connection.receive(line)
    assert await client.ask("ping") == {}


async def test_the_revision_with_batches_is_answered_with_one(client: Lines) -> None:
    await client.begin("2025-03-26")
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    batch = [ping, {**ping, "id": 2, "method": "no/such"}, {"jsonrpc": "2.0", "method": "notifications/x"}, 5]
    answers = await client.tell(json.dumps(batch).encode())
    assert [(each["id"], "result" in each) for each in answers] == [(1, True), (2, False), (None, False)]


async def test_a_call_that_waits_holds_up_nothing_and_gets_no_answer_once_it_is_cancelled(
    store: Store, client: Lines
) -> None:
    store.ask("acquire", "a", owner="other", ttl_seconds=60)
    await client.begin()
    claim = {"name": "claim_job", "arguments": {"job": "a", "wait_seconds": 60}}
    client.send("tools/call", claim, id="waits")

    async def until_waiting(count: int) -> None:
        async with asyncio.timeout(20):
            while (store.ask("inspect", "a").body or {})["waiting"] != count:
                assert await client.ask("ping") == {}
                await asyncio.sleep(0.01)

    await until_waiting(1)
    client.send("notifications/cancelled", {"requestId": "waits", "reason": "enough"})
    await until_waiting(0)
    assert await client.ask("ping") == {}
    assert client.got.empty()


async def test_the_end_of_the_connection_ends_a_call_that_waits(store: Store) -> None:
    store.ask("acquire", "a", owner="other", ttl_seconds=60)
    async with lines_to(store) as client:
        await client.begin()
        claim = {"name": "claim_job", "arguments": {"job": "a", "wait_seconds": 60}}
        client.send("tools/call", claim, id="waits")
        async with asyncio.timeout(20):
            while (store.ask("inspect", "a").body or {})["waiting"] == 0:
                await asyncio.sleep(0.01)
    assert (store.ask("inspect", "a").body or {})["waiting"] == 0
    assert store.sessions() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"wait_seconds": "1"}, None),
        ({"wait_seconds": " 1.0 "}, None),
        ({"wait_seconds": 1.0}, None),
        ({"wait_seconds": True}, None),
        ({"again": "Yes"}, None),
        ({"again": 1}, None),
        ({"owner": None, "metadata": None}, None),
        ({"wait_seconds": 1.5}, "wait_seconds is a whole number from 0 to 300."),
        ({"wait_seconds": "soon"}, "wait_seconds is a whole number from 0 to 300."),
        ({"wait_seconds": None}, "wait_seconds is a whole number from 0 to 300."),
        ({"wait_seconds": 10**30}, "wait_seconds is a whole number from 0 to 300."),
        ({"wait_seconds": -1}, "wait_seconds is a whole number from 0 to 300."),
        ({"wait_seconds": [1]}, "wait_seconds is a whole number from 0 to 300."),
        ({"again": "perhaps"}, "again is true or false."),
        ({"again": []}, "again is true or false."),
        ({"owner": 5, "again": 7, "x": 1}, "owner is a text; again is true or false; there is no argument 'x'."),
        ({"ttl_seconds": 60}, "there is no argument 'ttl_seconds'"),
    ],
)
async def test_arguments_are_read_as_models_write_them(client: Lines, given: dict[str, Any], said: str | None) -> None:
    await client.begin()
    result = await client.ask("tools/call", {"name": "claim_job", "arguments": {"job": "a", **given}})
    assert result["isError"] is (said is not None)
    assert (said or "is yours") in result["content"][0]["text"]


async def claimed(client: Lines, job: str, **more: Any) -> Any:
    return await client.ask("tools/call", {"name": "claim_job", "arguments": {"job": job, **more}})


@pytest.mark.fault("F-612")
@pytest.mark.parametrize("token", ["a", 7])
async def test_a_call_that_waits_tells_its_progress_until_its_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch, token: object
) -> None:
    monkeypatch.setattr(stdio, "PROGRESS_S", 0.02)
    async with lines_to(store) as other, lines_to(store) as client:
        await other.begin()
        await client.begin()
        await claimed(other, "deploy")
        asked = {"name": "claim_job", "arguments": {"job": "deploy", "wait_seconds": 60}}
        client.send("tools/call", {**asked, "_meta": {"progressToken": token}}, id=9)
        told = [await client.read() for _ in range(3)]
        assert {each["method"] for each in told} == {"notifications/progress"}
        params = [each["params"] for each in told]
        assert {each["progressToken"] for each in params} == {token}
        assert params[0]["progress"] < params[1]["progress"] < params[2]["progress"]
        assert params[0]["total"] == 60
        await other.ask("tools/call", {"name": "release_job", "arguments": {"job": "deploy"}})
        while "id" not in (answer := await client.read()):
            pass
        assert answer["result"]["structuredContent"]["claimed"] is True
        await client.ask("ping")  # nothing came between: the answer is the last word
        assert client.got.empty()


@pytest.mark.parametrize("meta", [{}, {"progressToken": None}, {"progressToken": {}}, {"progressToken": True}])
async def test_who_gives_no_token_is_told_no_progress(
    store: Store, monkeypatch: pytest.MonkeyPatch, meta: dict[str, Any]
) -> None:
    monkeypatch.setattr(stdio, "PROGRESS_S", 0.0)
    async with lines_to(store) as client:
        await client.begin()
        asked = {"name": "wait_for_job", "arguments": {"job": "free"}, "_meta": meta}
        assert "structuredContent" in await client.ask("tools/call", asked)


@pytest.mark.fault("F-613")
@pytest.mark.parametrize("uri", ["dibs://nothing", "file:///etc/passwd", "dibs://jobs/a/b/c", ""])
async def test_a_resource_that_is_not_there_has_the_code_of_the_revision(client: Lines, uri: str) -> None:
    await client.begin()
    error = await client.ask("resources/read", {"uri": uri})
    assert (error["code"], error["data"]) == (-32002, {"uri": uri})
    error = await client.ask("resources/read", {"uri": uri, "_meta": ENVELOPE})
    assert error["code"] == INVALID_PARAMS


@pytest.mark.fault("F-613")
@pytest.mark.parametrize("method", ["tools/list", "resources/list", "resources/templates/list"])
async def test_a_cursor_that_nobody_gave_is_an_error(client: Lines, method: str) -> None:
    await client.begin()
    assert (await client.ask(method, {"cursor": "page-2"}))["code"] == INVALID_PARAMS
    for first in (None, ""):
        assert "code" not in await client.ask(method, {"cursor": first})


@pytest.mark.fault("F-614")
@pytest.mark.parametrize(("name", "forms"), [("github-copilot-developer", 1), ("claude-code", 2)])
async def test_copilot_is_told_an_answer_once(client: Lines, name: str, forms: int) -> None:
    hello = {**HELLO, "clientInfo": {"name": name, "version": "1"}, "protocolVersion": HANDSHAKE[-1]}
    await client.ask("initialize", hello)
    tools = (await client.ask("tools/list"))["tools"]
    answer = await claimed(client, "deploy")
    assert sum("outputSchema" in tool for tool in tools) == (0 if forms == 1 else len(tools))
    assert json.loads(answer["content"][0]["text"])["claimed"] is True
    assert ("structuredContent" in answer) == (forms == 2)
