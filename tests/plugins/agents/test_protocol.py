"""The protocol over lines, as a client writes and reads them: what the SDK's client never sends."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.mcp import Methods
from dibs.agents.stdio import HANDSHAKE, Connection
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
