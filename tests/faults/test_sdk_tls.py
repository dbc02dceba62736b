"""Certificates without a known authority, and servers that do not speak TLS: each error names the cause, in time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dibs import AsyncClient, Client, Unavailable
from dibs.base.clock import steady_ms
from tests.client.scripted import ScriptedServer, reply_of
from tests.programs import slowness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = slowness()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    words = [need_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True, timeout=60)
    return made, key


def ask(kind: str, url: str) -> Any:
    if kind == "sync":
        with Client(url, timeout=PATIENCE_S) as client:
            return client.owner("job")

    async def go() -> Any:
        async with AsyncClient(url, timeout=PATIENCE_S) as client:
            return await client.owner("job")

    return asyncio.run(go())


def wrapper(certificate: tuple[Path, Path]) -> Callable[[socket.socket], socket.socket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return lambda plain: context.wrap_socket(plain, server_side=True)


FREE = reply_of(200, {"name": "job", "status": "free", "fencing_token": 0})


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_certificate_that_nobody_vouches_for_is_refused(kind: str, certificate: tuple[Path, Path]) -> None:
    with ScriptedServer([FREE] * 3, wrap=wrapper(certificate)) as server:
        with pytest.raises(Unavailable, match=r"is not trusted.*SSL_CERT_FILE"):
            ask(kind, server.url.replace("http://", "https://"))
        assert server.requests == [], "something was told to a stranger"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_one_that_the_user_vouches_for_is_taken(
    kind: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with ScriptedServer([FREE], wrap=wrapper(certificate)) as server:
        assert ask(kind, server.url.replace("http://", "https://")).status == "free"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_does_not_speak_tls_is_called_so(kind: str) -> None:
    with ScriptedServer([lambda connection: connection.sendall(b"HTTP/1.1 400 What\r\n\r\n")] * 3) as server:
        began_ms = steady_ms()
        with pytest.raises(Unavailable):
            ask(kind, server.url.replace("http://", "https://"))
        assert steady_ms() - began_ms < 10_000 * PATIENCE_S


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_never_shakes_hands_is_not_waited_for(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_ms = steady_ms()
        with pytest.raises(Unavailable, match=f"did not answer within {PATIENCE_S} s"):
            ask(kind, f"https://127.0.0.1:{silent.getsockname()[1]}")
        assert steady_ms() - began_ms < 10_000
