"""Calls to etcd through its JSON gateway: connections kept alive, members tried in turn, every call bounded in time.

    reading   A read is repeated at the next member until an answer comes or ETCD_MS_MAX is over.
    writing   A write is sent once. It is repeated only if nothing can have been written: no connection was made, or
              etcd refused before it proposed anything to the cluster.

A member that did not answer is not asked first the next time. A new token is requested when the old one has expired.
"""

from __future__ import annotations

import select
import socket
import time
from _thread import allocate_lock
from base64 import b64decode, b64encode

from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, InvalidInput
from dibs.base.generators import run_generator
from dibs.base.http1 import ConnectionLost, ReplyReader, read_reply, request_bytes
from dibs.base.jsontext import decode, encode
from dibs.core.limits import ETCD_MS_MAX, ETCD_TRY_MS_MAX
from dibs.stores.etcd.errors import UNIMPLEMENTED, UNKNOWN, LostConnection, Refusal, translated
from dibs.stores.etcd.location import shown_endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from typing import Any

    from dibs.base.reply import Reply
    from dibs.stores.etcd.location import EtcdLocation

    Document = dict[str, Any]

# One connection to one member of etcd: a request at a time, or a stream that is read line by line. Nothing here is
# retried; the gateway below decides that.

ANSWER_BYTES_MAX = 256 * 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 64 * 1024


class EtcdConnection:
    """The constructor connects. Every failure raises LostConnection."""

    def __init__(self, endpoint: tuple[str, int], tls: ssl.SSLContext | None, timeout_ms: int) -> None:
        self.endpoint = endpoint
        self._host = shown_endpoint(endpoint)
        self._deadline_ms = steady_ms() + timeout_ms
        try:
            self._socket = socket.create_connection(endpoint, timeout=timeout_ms / 1000)
        except OSError as error:
            raise _lost(error, sent=False) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint[0])
        except (OSError, ValueError) as error:
            self._socket.close()
            raise _lost(error, sent=False) from None

    def is_usable(self) -> bool:
        """False if the other side has closed it, or sent something that nobody asked for."""
        try:
            return not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def request(self, path: str, body: bytes, token: str | None, timeout_ms: int) -> Reply:
        self._deadline_ms = steady_ms() + timeout_ms
        try:
            self._send(path, body, token)
            return read_reply(self._receive, HEAD_BYTES_MAX, ANSWER_BYTES_MAX)
        except (OSError, BadReply, ConnectionLost) as error:
            self.close()
            raise _lost(error, sent=True) from None

    def stream(self, path: str, body: bytes, token: str | None, silence_ms: int) -> Iterator[bytes]:
        """The lines of an answer that does not end. A silence longer than `silence_ms` ends it."""
        self._deadline_ms = steady_ms() + silence_ms
        reader = ReplyReader(HEAD_BYTES_MAX, ANSWER_BYTES_MAX)
        try:
            self._send(path, body, token)
            status, headers = run_generator(reader.head(), lambda _: self._receive())
            if headers.get("transfer-encoding", "").lower() != "chunked":  # a refusal
                yield run_generator(reader.rest(status, headers), lambda _: self._receive()).content
                return
            rest = b""
            while chunk := run_generator(reader.stream_part(), lambda _: self._receive()):
                self._deadline_ms = steady_ms() + silence_ms
                *lines, rest = (rest + chunk).split(b"\n")
                yield from [line for line in lines if line]
            if rest:
                yield rest
        except (OSError, BadReply, ConnectionLost) as error:
            raise _lost(error, sent=True) from None
        finally:
            self.close()

    def close(self) -> None:
        try:
            self._socket.close()
        except OSError:
            pass  # nothing else can be done with it

    def cut(self) -> None:
        """End it from another thread: a thread that reads from it returns at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def _send(self, path: str, body: bytes, token: str | None) -> None:
        headers = {"Host": self._host, **({"Authorization": token} if token else {})}
        self._wait()
        self._socket.sendall(request_bytes("POST", path, headers, body))

    def _receive(self) -> bytes:
        self._wait()
        return self._socket.recv(RECEIVE_BYTES)

    def _wait(self) -> None:
        """The next step may take the rest of the call's time."""
        left_ms = self._deadline_ms - steady_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._socket.settimeout(left_ms / 1000)


def _lost(error: Exception, *, sent: bool) -> LostConnection:
    # Compared by name: importing `ssl` takes longer than a claim, and is not needed without TLS.
    name = type(error).__name__
    return LostConnection(_why(error, name), sent=sent, is_tls=name in ("SSLError", "SSLCertVerificationError"))


def _why(error: Exception, name: str) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionLost):
        return "it closed the connection"
    if isinstance(error, BadReply):
        return "its answer is not HTTP, or too long"
    if name == "SSLCertVerificationError":
        return f"its certificate is not accepted: {getattr(error, 'verify_message', '')}"
    if name.startswith("SSL"):
        return f"TLS failed: {getattr(error, 'reason', None) or 'unexpected end'}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or name


PAUSE_S = 0.05
IDLE_MAX = 16
PROXY_FAILED = (502, 503, 504)  # a proxy could not reach etcd


class EtcdGateway:
    """For any thread. Raises errors of dibs, and Refusal for errors that the caller wants to handle."""

    def __init__(self, location: EtcdLocation) -> None:
        self.location = location
        self._tls = _tls(location) if location.tls else None
        self._lock = allocate_lock()
        self._idle: list[EtcdConnection] = []
        self._first = 0  # which endpoint is asked first
        self._token: str | None = None
        self._closed = False

    def read(self, path: str, document: Document, *, refusals: bool = False) -> Document:
        """A call that changes nothing, or may be repeated."""
        return self._call(path, document, writes=False, refusals=refusals)

    def write(self, path: str, document: Document) -> Document:
        """A call that must not be repeated. StoreUnavailable(unknown=True) if it may have been executed."""
        return self._call(path, document, writes=True, refusals=False)

    def _call(self, path: str, document: Document, *, writes: bool, refusals: bool) -> Document:
        body = encode(document).encode()
        began_ms = steady_ms()
        failed = 0
        while True:
            endpoint = self.location.endpoints[self._first]
            try:
                return self._try(path, body, endpoint, began_ms + ETCD_MS_MAX, writes=writes)
            except (LostConnection, Refusal) as error:
                failed += 1
                # Unreachable members get less time than members that answer.
                ends_ms = began_ms + (ETCD_TRY_MS_MAX if _is_unsent(error) else ETCD_MS_MAX)
                by_tls = isinstance(error, LostConnection) and error.is_tls and failed >= len(self.location.endpoints)
                if self._is_final(error, writes) or by_tls or steady_ms() >= ends_ms:
                    if refusals and isinstance(error, Refusal):
                        raise
                    where = self.location.shown() if _is_unsent(error) else shown_endpoint(endpoint)
                    raise translated(error, where, writes=writes) from None
                if isinstance(error, Refusal) and error.wants_new_token:
                    self._token = None
                else:
                    self._turn_from(endpoint)
            # Try each member once without a pause; then pause, so that they can elect a leader.
            if failed >= len(self.location.endpoints):
                time.sleep(PAUSE_S)

    def _is_final(self, error: LostConnection | Refusal, writes: bool) -> bool:
        if isinstance(error, LostConnection):
            return writes and error.sent
        if error.wants_new_token:
            return self.location.user is None
        return not error.is_passing or (writes and not error.is_before_write)

    def _try(self, path: str, body: bytes, endpoint: tuple[str, int], until_ms: int, *, writes: bool) -> Document:
        left_ms = max(1, until_ms - steady_ms())
        token = self._authenticated(endpoint, min(left_ms, ETCD_TRY_MS_MAX))
        connection = self._connection(endpoint, min(left_ms, ETCD_TRY_MS_MAX))
        # A write may use all the time, because it cannot be tried elsewhere.
        reply = connection.request(path, body, token, left_ms if writes else min(left_ms, ETCD_TRY_MS_MAX))
        self._keep(connection, reply)
        return _answer(reply)

    def _connection(self, endpoint: tuple[str, int], timeout_ms: int) -> EtcdConnection:
        while True:
            with self._lock:
                found = next((each for each in reversed(self._idle) if each.endpoint == endpoint), None)
                if found is not None:
                    self._idle.remove(found)
            if found is None:
                return EtcdConnection(endpoint, self._tls, timeout_ms)
            if found.is_usable():
                return found
            found.close()

    def _keep(self, connection: EtcdConnection, reply: Reply) -> None:
        with self._lock:
            if reply.again and not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _turn_from(self, endpoint: tuple[str, int]) -> None:
        """Ask the next member first, unless another thread has already changed that."""
        with self._lock:
            if self.location.endpoints[self._first] == endpoint:
                self._first = (self._first + 1) % len(self.location.endpoints)

    def _authenticated(self, endpoint: tuple[str, int], timeout_ms: int) -> str | None:
        if self.location.user is None or self._token is not None:
            return self._token
        body = encode({"name": self.location.user, "password": self.location.password}).encode()
        connection = self._connection(endpoint, timeout_ms)
        try:
            reply = connection.request("/v3/auth/authenticate", body, None, timeout_ms)
        except LostConnection as error:
            raise LostConnection(error.why, sent=False) from None  # the call itself was not sent
        self._keep(connection, reply)
        self._token = str(_answer(reply)["token"])
        return self._token

    def stream(self, path: str, body: bytes, silence_ms: int) -> tuple[EtcdConnection, Iterator[bytes]]:
        """A separate connection, and the lines that it receives. Raises LostConnection or Refusal."""
        endpoint = self.location.endpoints[self._first]
        try:
            token = self._authenticated(endpoint, ETCD_TRY_MS_MAX)
            connection = EtcdConnection(endpoint, self._tls, ETCD_TRY_MS_MAX)
        except LostConnection:
            self._turn_from(endpoint)
            raise
        return connection, connection.stream(path, body, token, silence_ms)

    def stream_failed(self, connection: EtcdConnection, *, bad_token: bool) -> None:
        if bad_token:
            self._token = None
        else:
            self._turn_from(connection.endpoint)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()


def _is_unsent(error: LostConnection | Refusal) -> bool:
    return isinstance(error, LostConnection) and not error.sent


def _answer(reply: Reply) -> Document:
    status = reply.status
    try:
        document = decode(reply.content.decode())
    except ValueError:
        document = None
    if not isinstance(document, dict):
        # A member without the gateway answers 404 and plain text; a server other than etcd may answer anything.
        is_etcd = status in PROXY_FAILED
        raise Refusal(UNKNOWN if is_etcd else UNIMPLEMENTED, f"status {status}, with an unreadable body")
    if status == 200 and "error" not in document:
        return document
    error = document.get("error")
    details = error if isinstance(error, dict) else document
    code = details.get("grpc_code", details.get("code", UNKNOWN))
    message = str(details.get("message") or error or "")
    raise Refusal(code if isinstance(code, int) else UNKNOWN, message)


def _tls(location: EtcdLocation) -> ssl.SSLContext:
    import ssl

    files = f"ca={location.ca}"
    try:
        context = ssl.create_default_context(cafile=location.ca)
        if location.cert is not None:
            files = f"cert={location.cert} with key={location.key}"
            context.load_cert_chain(location.cert, location.key)
    except ssl.SSLError as error:
        why = (error.reason or "not PEM").replace("_", " ").lower()
        raise InvalidInput(f"{files} in the etcd URL cannot be used: {why}. Name files in PEM format.") from None
    except OSError as error:
        raise InvalidInput(f"{files} in the etcd URL cannot be read: {error.strerror}.") from None
    return context


def b64(text: bytes) -> str:
    return b64encode(text).decode()


def unb64(text: str) -> bytes:
    return b64decode(text)
