"""TLS of a server: its certificate, its key, and the authority of its clients, from files. SIGHUP reads them again.

A client certificate says who may connect. It does not say who the caller is: that is what tokens are for, because a
token has a role and limits, and can be revoked at once.

The event loop could accept connections and shake hands with them by itself, but then a connection would count only
after its handshake: a client that connects and says nothing would take files and memory beyond every bound. Here
(`TlsListener`) a connection is admitted when it is accepted, and must finish its handshake in time.
"""

from __future__ import annotations

import asyncio
import calendar
import functools
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput
from dibs.base.logger import log
from dibs.core.limits import HANDSHAKE_MS_MAX, OVERLOAD_RETRY_MS, TLS_CLOSE_MS_MAX
from dibs.server.http.admission import Admission
from dibs.wire.parts import timestamp

HttpConnection = Any  # dibs.server.connection.HttpConnection, which knows these


# Finds when a certificate is valid, which Python's `ssl` shows only of the other side's: two times in a row in the DER.

FILE_BYTES_MAX = 1024 * 1024
_UTC_TIME = 0x17
_VALIDITY = re.compile(rb"\x30[\x1e-\x22](\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)")
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def certificate_text(path: str, what: str) -> str:
    """The text of a PEM file. Raises InvalidInput with what is wrong with the file."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidInput(f"The file of the {what}, {path}, cannot be read: {error.strerror}.") from None
    return content.decode("latin-1")


def validity_of(path: str) -> tuple[str, str]:
    """From when to when the first certificate in a PEM file is valid, in UTC: `2026-11-16T01:50:00`."""
    inner, end, _ = certificate_text(path, "certificate").partition(_BEGIN)[2].partition(_END)
    if not end:
        raise InvalidInput(f"{path} holds no certificate in PEM form, which begins with {_BEGIN}.")
    try:
        found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(_BEGIN + inner + _END))
    except ValueError:
        found = None
    if found is None:
        raise InvalidInput(f"The certificate in {path} is damaged.")
    return _time(found[1]), _time(found[2])


def _time(part: bytes) -> str:
    """`YYMMDDHHMMSSZ` means 1950 to 2049; the other form has the whole year."""
    text = part[2:].decode("ascii")
    if part[0] == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:14]}"


_ACCEPTED_MAX = 64  # at a time, so that others get their turn
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2: with forward secrecy, and none in CBC mode


class TlsFiles(NamedTuple):
    """`key` None: it is in the file of the certificate. `client_ca`: clients need a certificate of this authority."""

    cert: str
    key: str | None = None
    client_ca: str | None = None


class ServerTls:
    """The TLS context of a server. New connections use the newest certificate; open ones keep theirs."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._ends = ""
        self._newest = self.context = self._read()
        self.context.sni_callback = self._switch

    def reload(self) -> bool:
        """Read the files again. A broken file changes nothing."""
        try:
            self._newest = self._read()
        except InvalidInput as error:
            log.error("certificate NOT reloaded, the old one stays in use: %s", error.details)
            return False
        log.info("certificate reloaded from %s", self._files.cert)
        return True

    def ends_ms(self) -> int:
        """Return when the certificate in use ends, on the wall clock."""
        return calendar.timegm(time.strptime(self._ends, "%Y-%m-%dT%H:%M:%S")) * 1000

    def _switch(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in every handshake, whether or not the client names a host."""
        connection.context = self._newest

    def _read(self) -> ssl.SSLContext:
        cert, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        begins, ends = validity_of(cert)
        if not begins <= timestamp(wall_ms())[:19] < ends:
            said = "the certificate in %s is valid from %s to %s, and not now: clients will refuse it"
            log.warning(said, cert, begins, ends)
        _load_pair(context, cert, key or cert)
        if client_ca is not None:
            _load_authority(context, client_ca)
        self._ends = ends  # not before: a broken file changes nothing
        return context


def lacks_certificate(transport: asyncio.BaseTransport) -> bool:
    context: ssl.SSLContext | None = transport.get_extra_info("sslcontext")
    return context is not None and context.verify_mode == ssl.CERT_OPTIONAL and not transport.get_extra_info("peercert")


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    if "PRIVATE KEY-----" not in certificate_text(key, "key"):
        raise InvalidInput(f"{key} holds no private key in PEM form. Name the key's file in --tls-key.")
    asked: list[bool] = []

    def password() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(cert, key, password)
    except ssl.SSLError as error:
        if asked:
            raise InvalidInput(
                f"The key in {key} is encrypted. Decrypt it: openssl pkey -in {key} -out NEW, and chmod 600 NEW."
            ) from None
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidInput(f"The key in {key} does not belong to the certificate in {cert}.") from None
        raise InvalidInput(
            f"The certificate in {cert}, or the key in {key}, cannot be used ({error.reason})."
        ) from None


def _load_authority(context: ssl.SSLContext, path: str) -> None:
    text = certificate_text(path, "authority of clients")
    validity_of(path)  # says if it holds no certificate
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise InvalidInput(f"The certificates in {path} cannot be used ({error.reason}).") from None
    # A certificate of another authority ends the handshake. Without any, the connection is made and every request is
    # refused (`lacks_certificate`): after a failed handshake a client would learn nothing.
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed connection is not checked again, so it would outlive its authority. TLS 1.3 without tickets has none.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0


class TlsListener:
    """For one event loop. It can be closed like the servers that the loop makes."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        connect: Callable[[], HttpConnection],
        admission: Admission | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._context = context
        self._connect = connect
        self._admission = admission
        self._handshakes: set[asyncio.Task[None]] = set()
        self._closed = False
        self._listen()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening)
            for task in self._handshakes:
                task.cancel()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left: it would fail again at once
                log.error("cannot accept connections: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(OVERLOAD_RETRY_MS / 1000, self._listen)
                return
            accepted.setblocking(False)
            client = str(peer[0])
            protocol = self._connect()
            if self._admission is not None and self._admission.enter(protocol, client) is not None:
                accepted.close()  # without a handshake there is no way to tell it why
                continue
            task = protocol.handshake = self._loop.create_task(self._shake_hands(protocol, accepted, client))
            self._handshakes.add(task)
            task.add_done_callback(functools.partial(self._end, protocol, accepted))

    def _end(self, protocol: HttpConnection, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        """Also of a handshake that was cancelled before it began."""
        self._handshakes.discard(task)
        protocol.handshake = None
        if not protocol.is_connected:
            accepted.close()
            if self._admission is not None:
                self._admission.leave(protocol)

    async def _shake_hands(self, protocol: HttpConnection, accepted: socket.socket, client: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_MS_MAX / 1000,
                ssl_shutdown_timeout=TLS_CLOSE_MS_MAX / 1000,
            )
        except (OSError, asyncio.CancelledError) as error:  # TLS errors and time-outs are of the first kind
            log.debug("no handshake with %s: %s", client, error)
