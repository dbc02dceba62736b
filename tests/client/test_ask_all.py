"""Many requests at once: one round trip to a server, one commit of a store, and the same replies as one by one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from dibs.client.embedded import EmbeddedTransport
from dibs.client.http import HttpTransport
from dibs.client.servers import Servers
from dibs.client.transport import Ask
from dibs.client.urls import server_address
from dibs.stores.sqlite.store import SqliteStore
from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 40
ASKS = [Ask("release", f"path:{number}", {"session_id": "00000000-0000-4000-8000-000000000001"}) for number in range(5)]


def released(number: int) -> bytes:
    return reply_of(200, {"name": f"path:{number}", "status": "released", "fencing_token": number})


def names_of(requests: bytes) -> list[str]:
    return [each.split("/")[0].replace("%3A", ":") for each in requests.decode().split("POST /locks/")[1:]]


@pytest.mark.fault("F-601")
def test_all_requests_are_sent_before_the_first_reply_comes() -> None:
    heard: list[bytes] = []

    def patient(connection: socket.socket) -> None:
        data = server.requests[0]
        while data.count(b"POST /") < len(ASKS) or not data.endswith(b"}"):
            data += connection.recv(65536)
        heard.append(data)
        for number in range(len(ASKS)):  # in pieces that do not end with a reply
            reply = released(number)
            connection.sendall(reply[:50])
            connection.sendall(reply[50:])

    with ScriptedServer([patient]) as server:
        transport = HttpTransport(Servers((server_address(server.url),)), keep=True)
        replies = transport.ask_all(ASKS)
        transport.close()
    assert names_of(heard[0]) == [ask.name for ask in ASKS]
    assert [(reply.status, (reply.body or {})["fencing_token"]) for reply in replies] == [(200, n) for n in range(5)]


@pytest.mark.fault("F-601")
@pytest.mark.parametrize("answered", [0, 1, 3])
@pytest.mark.parametrize("end", [b"", b"HTTP/1.1 200 Said\r\nContent-Le", b"nonsense\r\n\r\n"])
def test_what_got_no_reply_is_asked_alone(answered: int, end: bytes) -> None:
    def breaks(connection: socket.socket) -> None:
        connection.sendall(b"".join([released(number) for number in range(answered)]) + end)

    alone = [released(number) for number in range(answered, len(ASKS))]
    with ScriptedServer([breaks, *alone]) as server:
        transport = HttpTransport(Servers((server_address(server.url),)), keep=True)
        replies = transport.ask_all(ASKS)
        transport.close()
    assert [(reply.body or {}).get("fencing_token") for reply in replies] == list(range(5))


def test_a_server_that_is_not_there_is_a_reply_for_each() -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        replies = HttpTransport(Servers((server_address(url),)), timeout_ms=500).ask_all(ASKS)
    assert [reply.status for reply in replies] == [503] * len(ASKS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedTransport]:
    transport = EmbeddedTransport.at(f"sqlite:///{tmp_path}/store.db")
    yield transport
    transport.close()


def claims(session: str, numbers: range) -> list[Ask]:
    """Each of two names."""
    return [
        Ask(
            "acquire-all",
            "",
            {
                "names": [f"path:{number}", f"path:@c/{number}"],
                "session_id": session,
                "owner": "a",
                "request_key": f"{session}-{number}",
            },
        )
        for number in numbers
    ]


@pytest.mark.fault("F-601")
def test_many_claims_and_releases_are_one_commit_and_only_the_refused_are_refused(
    store: EmbeddedTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [
        (store.ask(Ask("session-open", "", {"owner": owner, "ttl_ms": 600_000})).body or {})["session_id"]
        for owner in ("a", "b")
    ]
    assert store.ask(Ask("acquire", "path:@c/7", {"session_id": sessions[1], "owner": "b"})).status == 200
    commits = []
    commit = SqliteStore.commit

    def counted(self: SqliteStore, *terms: object, **more: object) -> object:
        commits.append(terms)
        return commit(self, *terms, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteStore, "commit", counted)
    replies = store.ask_all(claims(sessions[0], range(COUNT)))
    assert [at for at, reply in enumerate(replies) if "refused" in (reply.body or {})] == [7]
    refused = (replies[7].body or {})["refused"]
    assert [(each["name"], each["owner"]) for each in refused] == [("path:@c/7", "b")]
    assert len(commits) <= 2, "the refused one is asked for once more, which may note that it wants it"
    commits.clear()
    names = [name for number in range(COUNT) for name in (f"path:{number}", f"path:@c/{number}")]
    replies = store.ask_all([Ask("release", name, {"session_id": sessions[0]}) for name in names])
    assert len(commits) == 1
    assert [name for name, reply in zip(names, replies, strict=True) if reply.status >= 300] == ["path:7", "path:@c/7"]
    assert len((store.ask(Ask("list", "path:", {"limit": 100})).body or {})["locks"]) == 1


def test_a_request_that_is_not_valid_keeps_no_other_from_its_reply(store: EmbeddedTransport) -> None:
    asks = [Ask("release", "path:a", {"session_id": 5}), Ask("inspect", "path:a")]
    assert [reply.status for reply in store.ask_all(asks)] == [422, 200]
