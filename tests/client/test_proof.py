"""The token of a user's own server goes to that server only, not to a program that took its port."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base.http1 import ConnectionLost
from dibs.client.connection import Deadline, ServerConnection
from dibs.client.settings import Settings, connect_as
from dibs.client.transport import Ask
from dibs.client.urls import server_address
from tests.client.scripted import ScriptedServer
from tests.programs import ServerProcess, clean_env

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.client.urls import ServerAddress

TOKEN = "dibs_" + "5e" * 32


def settings_of(folder: Path, url: str) -> Settings:
    state = folder / "dibs"
    state.mkdir(exist_ok=True)
    (state / "token").touch(mode=0o600)
    if not (state / "token").read_text():
        (state / "token").write_text(f"me:{TOKEN}:admin\n")
    return Settings({"url": url}, {"XDG_STATE_HOME": str(folder), "USER": "me"})


def ask(settings: Settings) -> str:
    reply = connect_as(settings).ask(Ask("acquire", "x", {"request_key": "k"}))
    return str((reply.body or {}).get("details") or (reply.body or {})["status"])


@contextmanager
def thief(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Listens where the server did, answers everything with `answer`, and remembers what it was sent."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    while data := connection.recv(65536):
                        heard.append(data)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        listening.shutdown(socket.SHUT_RDWR)


def reply_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("body", [b"{}", b'{"proof":null}', b'{"proof":"' + b"0" * 64 + b'"}', b"not json"])
def test_whoever_took_the_port_does_not_get_the_token(tmp_path: Path, body: bytes) -> None:
    with thief(reply_of(body)) as (url, heard):
        told = ask(settings_of(tmp_path, url))
    assert "is not your own server" in told
    assert "Do not begin the work; try again later." in told
    assert heard
    assert TOKEN.encode() not in b"".join(heard)


def test_a_thief_that_asks_the_real_server_gets_nothing_either(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, relay_to(server.url) as (url, heard):
        settings = Settings({"url": url}, {**clean_env(tmp_path)})
        told = ask(settings)
        assert "is not your own server" in told
        assert b"/proof?" in b"".join(heard)
        assert b"Authorization" not in b"".join(heard)


@contextmanager
def relay_to(url: str) -> Iterator[tuple[str, list[bytes]]]:
    place = server_address(url)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with (
                connection,
                socket.create_connection((place.host, place.port), timeout=5) as onward,
                suppress(OSError),  # either side may hang up at any time
            ):
                connection.settimeout(5)
                while data := connection.recv(65536):
                    heard.append(data)
                    onward.sendall(data)
                    connection.sendall(onward.recv(65536))

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        listening.shutdown(socket.SHUT_RDWR)


def test_the_async_client_asks_for_the_proof_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with thief(reply_of(b'{"proof":null}')) as (url, heard):
        settings_of(tmp_path, url)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

        async def claim() -> None:
            async with dibs.AsyncClient(url) as client, client.claim("x"):
                pass

        with pytest.raises(dibs.Unavailable, match="is not your own server"):
            asyncio.run(claim())
    assert TOKEN.encode() not in b"".join(heard)


def test_a_token_that_was_given_for_the_server_is_sent_as_ever(tmp_path: Path) -> None:
    with ScriptedServer([]) as scripted:
        env = {"XDG_STATE_HOME": str(tmp_path), "DIBS_TOKEN": TOKEN}
        settings = Settings({"url": scripted.url}, env)
        place = server_address(scripted.url)
        assert settings.token(place) == TOKEN
        assert place.own_token is None


def test_whoever_takes_the_port_of_a_kept_connection_does_not_get_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.client.connection.Challenge.check", lambda *_: None)
    with thief(reply_of(b"{}")) as (url, heard):
        transport = ServerConnection(server_with_token(tmp_path, url), keep=True)
        transport.exchange(b"the first", Deadline(5_000), repeatable=True)
        assert [data.partition(b"?")[0] for data in heard] == [b"GET /proof", b"the first"]
        monkeypatch.undo()
        transport._kept.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]  # as if the server had ended
        with pytest.raises(ConnectionLost):
            transport.exchange(b"the second", Deadline(5_000), repeatable=True)
        transport.close()
    assert b"the second" not in heard[2:]


def server_with_token(folder: Path, url: str) -> ServerAddress:
    place = server_address(url)
    settings_of(folder, url).token(place)
    assert place.own_token == TOKEN
    return place


@pytest.mark.e2e
def test_the_own_server_is_recognised_on_a_port_and_on_a_socket(tmp_path: Path) -> None:
    for number, bind in enumerate(("127.0.0.1:0", f"unix:{tmp_path}/dibs.sock")):
        with ServerProcess(tmp_path, bind=bind) as server:
            assert ask(Settings({"url": server.url}, clean_env(tmp_path))) in ("acquired", "held"), number
