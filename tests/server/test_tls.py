"""TLS: certificates and their faults, a new certificate without a restart, clients that need one, slow handshakes."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import shutil
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.server import connection as http_connection
from dibs.server.http import tls
from dibs.server.http.admission import Admission
from dibs.server.http.tls import ServerTls, TlsFiles, validity_of
from dibs.wire.parts import timestamp
from tests.server.certificates import Authority
from tests.server.harness import Poll, Server, read_all, read_response, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Files:
    """An authority, and the server's certificate and key."""

    def __init__(self, folder: Path, openssl: str) -> None:
        self.authority = Authority(folder, openssl)
        self.cert, self.key = self.authority.issue("server")

    def tls(self, client_ca: str | None = None) -> ServerTls:
        return ServerTls(TlsFiles(str(self.cert), str(self.key), client_ca))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Files:
    return Files(tmp_path_factory.mktemp("tls"), need_program("openssl"))


@pytest.fixture(scope="module")
def secured(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    contexts = files.tls().context, files.authority.trusted()
    with running(tmp_path_factory.mktemp("secured"), tls=contexts, admission=Admission(60, 30)) as server:
        yield server


def serial_of(server: Server, context: ssl.SSLContext, name: str | None = "127.0.0.1") -> str:
    with context.wrap_socket(server.raw_from("127.0.0.1"), server_hostname=name) as connection:
        found = connection.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


def test_claims_waiters_streams_and_health_are_as_without_tls(secured: Server, name: str) -> None:
    lease = secured.lease(name)
    assert secured.acquire(name, who="other").json["status"] == "held"
    assert secured.ask("GET", "/health").json["status"] == "ok"
    waiter = Poll(secured, f"/locks/{name}/acquire", {"wait_seconds": 30}, "other")
    wait_until(lambda: secured.waiting() == 1, "nobody waits")
    with secured.raw() as stream:
        stream.sendall(b"GET /events?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tok-viewer\r\n\r\n")
        seen = read_response(stream)[3]
        assert secured.ask("POST", f"/locks/{name}/release", {"lease_id": lease}).status < 300
        assert waiter.answer()["status"] == "acquired"
        while b'"released"' not in seen:
            part = stream.recv(65536)
            assert part, seen
            seen += part


def test_a_waiter_that_hangs_up_gives_up_its_place(secured: Server, name: str) -> None:
    secured.lease(name)
    waiter = Poll(secured, f"/locks/{name}/acquire", {"wait_seconds": 30}, "other")
    wait_until(lambda: secured.waiting() == 1, "nobody waits")
    waiter.hang_up()
    wait_until(lambda: secured.waiting() == 0, "it still waits")


def test_a_server_that_ends_gives_waiters_and_streams_their_last_word(files: Files, tmp_path: Path) -> None:
    contexts = files.tls().context, files.authority.trusted()
    with running(tmp_path, tls=contexts) as server:
        server.lease("job")
        waiter = Poll(server, "/locks/job/acquire", {"wait_seconds": 30}, "other")
        wait_until(lambda: server.waiting() == 1, "nobody waits")
        stream = server.raw()
        stream.sendall(b"GET /events?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tok-agent\r\n\r\n")
        assert read_response(stream)[0] == 200
        idle, silent = server.raw(), server.raw_from("127.0.0.1")
        server.begin_stop()
        assert waiter.answer()["status"] == "queued"
        assert read_all(stream).endswith(b"0\r\n\r\n")
        for connection in (stream, idle, silent):
            connection.close()


def test_a_reader_that_never_reads_is_cut_off_over_tls_too(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.3)
    monkeypatch.setattr(http_connection.HttpConnection, "keep_alive_s", 0.3)
    contexts = files.tls().context, files.authority.trusted()
    with running(tmp_path, tls=contexts) as server, server.raw_from("127.0.0.1") as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy = contexts[1].wrap_socket(plain, server_hostname="127.0.0.1")
        lazy.settimeout(0.5)
        try:
            with contextlib.suppress(OSError):
                lazy.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200_000)
            wait_until(lambda: server.connections() == 0, "the connection stays")
        finally:
            lazy.close()
        assert server.ask("GET", "/health").status == 200


def test_a_cookie_over_tls_is_secure_and_of_this_host_only(secured: Server) -> None:
    cookie = secured.ask("POST", "/login", {"token": "tok-agent"}, who=None).headers["set-cookie"]
    assert cookie.startswith("__Host-dibs_token=")
    assert "; Secure" in cookie
    headers = {"Cookie": cookie.partition(";")[0], "Sec-Fetch-Site": "same-origin"}
    assert secured.ask("GET", "/whoami", who=None, headers=headers).json["principal"] == "agent"
    plain = {**headers, "Cookie": "dibs_token=tok-agent"}
    assert secured.ask("GET", "/whoami", who=None, headers=plain).status == 401


def test_old_tls_and_plain_http_are_refused(secured: Server, files: Files) -> None:
    old = files.authority.trusted()
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with secured.raw_from("127.0.0.1") as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain, server_hostname="127.0.0.1")
    with secured.raw_from("127.0.0.1") as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1" not in read_all(plain)
    assert secured.ask("GET", "/health").status == 200


def test_a_refused_request_is_told_why(secured: Server) -> None:
    with secured.raw() as connection:
        connection.sendall(b"GARBAGE\r\n\r\n")
        assert read_response(connection)[0] == 400


def test_connections_count_before_their_handshake(
    secured: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    silent = [secured.raw_from("127.0.0.2") for _ in range(31)]
    try:
        assert silent[0].recv(1) == b""  # one too many: the oldest is cut off at once
        assert secured.ask("GET", "/health").status == 200
    finally:
        for each in silent:
            each.close()
    wait_until(lambda: is_let_in(secured, "127.0.0.2"), "they still count")
    assert "turned away" in caplog.text
    monkeypatch.setattr(tls, "HANDSHAKE_MS_MAX", 100)
    with secured.raw_from("127.0.0.2") as late:
        assert late.recv(1) == b""  # its time is over


def is_let_in(server: Server, source: str) -> bool:
    with server.raw_from(source) as connection:
        connection.settimeout(0.1)
        try:
            return connection.recv(1) != b""
        except TimeoutError:  # it waits for our handshake
            return True
        except ConnectionError:
            return False


def test_a_client_that_leaves_in_the_middle_of_a_handshake_disturbs_nobody(
    secured: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in (b"", b"\x16\x03\x01", b"\x16\x03\x01\xff\xff" + bytes(500), bytes(range(256))):
        with secured.raw_from("127.0.0.3") as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
    assert secured.ask("GET", "/health").status == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_new_certificate_is_used_without_dropping_connections(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "live.pem", tmp_path / "live.key"
    shutil.copy(files.cert, cert)
    shutil.copy(files.key, key)
    tls = ServerTls(TlsFiles(str(cert), str(key)))
    trust = files.authority.trusted()
    with running(tmp_path, tls=(tls.context, trust)) as server:
        first = serial_of(server, trust)
        assert server.ask("GET", "/health").status == 200
        open_before = server._connection.sock
        newer_cert, newer_key = files.authority.issue("newer", until="20981231235959Z")
        shutil.copy(newer_cert, cert)
        assert tls.reload() is False  # the key is still the old one
        assert timestamp(tls.ends_ms()) == "2099-12-31T23:59:59.000Z"
        assert "does not belong" in caplog.text
        assert serial_of(server, trust) == first
        shutil.copy(newer_key, key)
        assert tls.reload() is True
        assert timestamp(tls.ends_ms()) == "2098-12-31T23:59:59.000Z"
        assert serial_of(server, trust) != first
        nameless = files.authority.trusted()
        nameless.check_hostname = False
        assert serial_of(server, nameless, None) != first
        assert server.ask("GET", "/health").status == 200
        assert server._connection.sock is open_before


def test_clients_need_a_certificate_where_an_authority_is_named(
    files: Files, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    ca = tmp_path / "clients.pem"
    own, other = (Authority(tmp_path / name, need_program("openssl")) for name in ("own", "other"))
    shutil.copy(own.cert, ca)
    tls = files.tls(str(ca))
    mine, theirs = own.issue("worker"), other.issue("stranger")
    with running(tmp_path, tls=(tls.context, files.authority.trusted(*mine))) as server:
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/locks/a", who=None).status == 401  # a certificate is not a token
        with files.authority.trusted().wrap_socket(server.raw_from("127.0.0.1"), server_hostname="localhost") as bare:
            bare.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" * 2)
            status, _, body, rest = read_response(bare)
            assert (status, rest) == (403, b"")
            assert b"client certificate" in body
        assert not gets_in(server, files.authority.trusted(*theirs))
        shutil.copy(other.cert, ca)
        assert tls.reload()
        assert gets_in(server, files.authority.trusted(*theirs))
        assert not gets_in(server, files.authority.trusted(*mine))


def gets_in(server: Server, context: ssl.SSLContext) -> bool:
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (ssl.SSLError, ConnectionError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def test_a_fault_of_a_file_is_named(files: Files, tmp_path: Path) -> None:
    empty, damaged, none = tmp_path / "empty", tmp_path / "damaged", tmp_path / "none"
    empty.touch()
    damaged.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    _, other_key = files.authority.issue("other")
    cases = {
        (none, files.key): "No such file",
        (tmp_path, files.key): "Is a directory",
        (empty, files.key): "holds no certificate",
        (damaged, files.key): "damaged",
        (files.cert, empty): "holds no private key",
        (files.cert, files.cert): "holds no private key",
        (files.cert, none): "No such file",
        (files.cert, other_key): "does not belong to the certificate",
        (files.cert, files.authority.encrypted(files.key)): "is encrypted",
    }
    for (cert, key), said in cases.items():
        with pytest.raises(InvalidInput, match=said):
            ServerTls(TlsFiles(str(cert), str(key)))
    with pytest.raises(InvalidInput, match="holds no certificate"):
        files.tls(str(empty))
    if os.geteuid() != 0:
        empty.chmod(0)
        with pytest.raises(InvalidInput, match="Permission denied"):
            ServerTls(TlsFiles(str(files.cert), str(empty)))


def test_an_expired_certificate_is_served_with_a_warning(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = files.authority.issue("old", until="20210203040506Z")
    assert validity_of(str(cert)) == ("2020-01-01T00:00:00", "2021-02-03T04:05:06")
    ServerTls(TlsFiles(str(cert), str(key)))
    assert "2021-02-03T04:05:06, and not now" in caplog.text
    assert validity_of(str(files.cert))[1] == "2099-12-31T23:59:59"


def test_a_key_may_be_in_the_file_of_its_certificate(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
    assert ServerTls(TlsFiles(str(both))).context is not None


@pytest.mark.fault("F-099")
def test_a_browser_is_told_to_come_back_over_tls_only(secured: Server, fast: Server) -> None:
    for path in ("/status", "/locks/x", "/nowhere", "/ui/app.js"):
        assert secured.ask("GET", path).headers["strict-transport-security"] == "max-age=31536000"
        assert "strict-transport-security" not in fast.ask("GET", path).headers


@pytest.mark.fault("F-100")
def test_tls_without_forward_secrecy_or_with_cbc_is_refused(secured: Server, files: Files) -> None:
    def shake(ciphers: str) -> str:
        context = files.authority.trusted()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
        with context.wrap_socket(secured.raw_from("127.0.0.1"), server_hostname="127.0.0.1") as connection:
            return (connection.cipher() or ("",))[0]

    for refused in ("ECDHE+AES+SHA384:ECDHE+AES+SHA256:ECDHE+AES+SHA:!AESGCM:!AESCCM", "kRSA+AESGCM"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake(refused)
    assert "GCM" in shake("ECDHE+AESGCM")
