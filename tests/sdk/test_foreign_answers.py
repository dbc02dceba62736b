"""A server that answers what no dibs says: the program is told so, by an error of ours, and within its timeout."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from tests.client.scripted import ScriptedServer, reply_of
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable

SEEN = {"name": "job", "status": "free", "fencing_token": 1}
TIMEOUT_S = 5
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "ask"),
    [
        ({**SEEN, "previous": 5}, lambda client: client.owner("job")),
        ({**SEEN, "previous": {"owner": "bob"}}, lambda client: client.owner("job")),
        ({"locks": [5], "next": None}, lambda client: client.list()),
        ({"locks": [{"name": "job"}], "next": None}, lambda client: client.list()),
        ({"name": "job", "events": [5]}, lambda client: client.history("job")),
        ({"name": "job", "events": [{"seq": "one"}]}, lambda client: client.history("job")),
    ],
)
def test_a_row_that_is_not_from_dibs_is_called_so(body: dict[str, Any], ask: Callable[[Any], Any]) -> None:
    with (
        ScriptedServer([reply_of(200, body)]) as server,
        dibs.Client(server.url, "token") as client,
        pytest.raises(dibs.DibsError, match="not from dibs"),
    ):
        ask(client)

    async def main() -> None:
        async with dibs.AsyncClient(server.url, "token") as client:
            with pytest.raises(dibs.DibsError, match="not from dibs"):
                await ask(client)

    with ScriptedServer([reply_of(200, body)]) as server:
        asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"\0" * 5000,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        CHUNKED + b"ffffffffffffffff\r\n",
        CHUNKED + b"zz\r\n",
        reply_of(200, [[]]),
        b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + b"[" * 50_000,
    ],
    ids=range(10),
)
def test_whatever_comes_is_reported_as_an_error_of_ours_and_in_time(answer: bytes) -> None:
    began_s = time.monotonic()
    with (
        ScriptedServer([answer]) as server,
        dibs.Client(server.url, "token", timeout=TIMEOUT_S) as client,
        pytest.raises(dibs.DibsError),
    ):
        client.owner("job")

    async def main() -> None:
        async with dibs.AsyncClient(server.url, "token", timeout=TIMEOUT_S) as client:
            with pytest.raises(dibs.DibsError):
                await client.owner("job")

    with ScriptedServer([answer]) as server:
        asyncio.run(main())
    assert is_in_time(began_s, 4 * TIMEOUT_S)
