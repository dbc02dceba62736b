"""One request at a time, with one deadline. Here errors of sockets and TLS become errors of dibs."""

from __future__ import annotations

import os

from dibs.base.cheap import Any, Sequence, socket
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, ServerUnreachable
from dibs.base.http1 import ConnectionLost, read_reply, reply_size, request_bytes, whole_reply
from dibs.base.reply import Reply
from dibs.core.limits import CLIENT_IDLE_MS_MAX, HEAD_BYTES_MAX, REPLY_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from ssl import SSLError

    from dibs.client.urls import ServerAddress

Address = tuple[int, int, object]  # family, protocol, where

# Checks that a server is the user's own before the token of that server is sent. Pure, except `is_ours`.
#
# Any process can listen on a port of this machine when the server is down. So the listener must prove, on the same
# connection, that it knows the token: it answers a fresh value and the connected address with a digest under the
# token's hash. A stranger that forwards the challenge to the real server gets an answer for another address. On a Unix
# socket the kernel says which user listens.


class Challenge:
    """One challenge and its only right answer. `peer` is the connected address, from the kernel."""

    def __init__(self, address: ServerAddress, token: str, peer: Any) -> None:
        from dibs.base.ids import new_id, proof_key_id, proof_of, token_key
        from dibs.wire.parts import challenge_text

        self._address = address
        key, nonce = token_key(token), new_id()
        self._answer = proof_of(key, challenge_text(nonce, peer))
        target = f"{address.path}/proof?key={proof_key_id(key)}&nonce={nonce}"
        self.request = request_bytes("GET", target, {"Host": address.authority, "Accept": "application/json"}, None)

    def check(self, reply: Reply) -> None:
        right = f'"{self._answer}"'.encode()
        if reply.status != 200 or right not in reply.content or not reply.again:
            raise not_ours(self._address)


def is_ours(uid: int) -> bool:
    """Tell whether a process of this user id may get the user's token: the user's own, or root's."""
    return uid in (os.geteuid(), 0)


def not_ours(address: ServerAddress) -> ServerUnreachable:
    if speaks_tls(address):
        return needs_https(address)
    return ServerUnreachable(
        f"What listens at {address.url} is not your own server, so your token was not sent. For another server, "
        f"log in (dibs login) or set DIBS_TOKEN. {DO_NOT_BEGIN}"
    )


# TLS of a client: its own certificate, and whom it trusts: the authorities of the system, or those in SSL_CERT_FILE.


def client_context() -> ssl.SSLContext:
    """With DIBS_CLIENT_CERT it has a certificate to show, whose key is in DIBS_CLIENT_KEY or in the same file."""
    import ssl

    context = ssl.create_default_context()
    cert = os.environ.get("DIBS_CLIENT_CERT")
    if cert:
        key = os.environ.get("DIBS_CLIENT_KEY") or cert
        try:
            context.load_cert_chain(cert, key, lambda: "")  # without a password OpenSSL would ask at the terminal
        except OSError as error:  # SSLError is one
            reason = getattr(error, "reason", None) or error.strerror
            raise InvalidInput(
                f"The certificate in DIBS_CLIENT_CERT ({cert}) with the key in {key} cannot be used ({reason}). "
                "Both are in PEM form, and the key is not encrypted."
            ) from None
    return context


RECEIVE_BYTES = 64 * 1024
WINDOW_BYTES = 64 * 1024  # of requests whose replies have not come
SLACK_SECONDS = 0.01
PROBE_S = 0.5  # how long a server may take to begin TLS, if it closed a plain connection
# Never suggest another store: it would be a separate one, which grants everything.
DO_NOT_BEGIN = "Do not begin the work; try again later."


class Deadline:
    """The end of a whole call, on a steady clock. `began_ms`: when it was read last, just before the call."""

    def __init__(self, timeout_ms: int, began_ms: int | None = None) -> None:
        self.timeout_ms = timeout_ms
        self.began_ms = steady_ms() if began_ms is None else began_ms
        self._ends_ms = self.began_ms + timeout_ms

    def left_seconds(self) -> float:
        """More than zero, or TimeoutError: a socket takes zero for "do not wait"."""
        left_ms = self._ends_ms - steady_ms()
        if left_ms <= 0:
            raise TimeoutError
        return left_ms / 1000


class NotConnected(ServerUnreachable):
    """No connection could be made: nothing was sent."""


class TimedOut(ServerUnreachable):
    """No answer in time. Whether the request was carried out is not known if `sent`."""

    def __init__(self, details: str, *, sent: bool) -> None:
        super().__init__(details)
        self.sent = sent


class ServerConnection:
    """A way to a server. With `keep` its connection stays open for the next request, if the server agrees."""

    def __init__(self, address: ServerAddress, *, keep: bool = False) -> None:
        self._address = address
        self._keep = keep
        self._kept: socket.socket | None = None
        self._kept_ms = 0

    def exchange(self, request: bytes, deadline: Deadline, *, repeatable: bool) -> Reply:
        """Send, and read the reply. Raises ServerUnreachable if nothing was sent, ConnectionLost if it is not known
        whether the server carried it out.

        A kept connection may have been closed by the other side, which shows only when it is used. A repeatable
        request is then sent over a new connection; any other request uses a new connection from the start."""
        kept = self._idle(deadline)
        if kept is not None and repeatable:
            try:
                return self._over(kept, request, deadline, at_once=True)
            except ConnectionLost:
                try:
                    again = self.proven(deadline)  # another program may have the port by now
                except ServerUnreachable:  # whether the server carried it out is not known
                    raise ConnectionLost from None
                return self._over(again, request, deadline)
        if kept is not None:
            kept.close()
        return self._over(self.proven(deadline), request, deadline)

    def exchange_all(self, requests: Sequence[bytes], deadline: Deadline) -> list[Reply]:
        """Send requests that may be repeated one behind the other, without waiting for each reply: together they take
        one round trip for each WINDOW_BYTES. Returns the replies in order, as many as came; the rest may have been
        carried out. A server answers in order. More than the buffers on the way hold is never sent ahead."""
        found: list[Reply] = []
        keep = False
        connection = self._idle(deadline)
        try:
            connection = self.proven(deadline) if connection is None else connection
            data, sent, ahead = b"", 0, 0
            while len(found) < len(requests):
                part: list[bytes] = []
                while sent < len(requests) and (ahead == 0 or ahead + len(requests[sent]) <= WINDOW_BYTES):
                    part.append(requests[sent])
                    sent, ahead = sent + 1, ahead + len(requests[sent])
                if part:
                    send(connection, b"".join(part), deadline)
                size = reply_size(data)
                while size is None or len(data) < size:
                    data, was = data + receive(connection, deadline), len(data)
                    if len(data) == was:
                        return found
                    size = reply_size(data)
                reply = whole_reply(data[:size])
                if reply is None:
                    return found
                data, ahead = data[size:], ahead - len(requests[len(found)])
                found.append(reply)
                if not reply.again:
                    return found
            keep = self._keep and not data
        except (OSError, ConnectionLost, ServerUnreachable):  # what came counts; who asks for the rest learns why
            pass
        finally:
            if keep:
                self._kept, self._kept_ms = connection, steady_ms()
            elif connection is not None:
                connection.close()
        return found

    def _idle(self, deadline: Deadline) -> socket.socket | None:
        """The connection that was kept, if the server has it still, as far as one can know."""
        kept, self._kept = self._kept, None
        if kept is None or deadline.began_ms - self._kept_ms < CLIENT_IDLE_MS_MAX:
            return kept
        kept.close()
        return None

    def proven(self, deadline: Deadline) -> socket.socket:
        """A new connection, to this user's own server if it must be that."""
        connection = _connect(self._address, deadline)
        if self._address.own_token is not None and self._address.scheme != "https":
            self._prove(connection, self._address.own_token, deadline)
        return connection

    def _prove(self, connection: socket.socket, token: str, deadline: Deadline) -> None:
        """Raises ServerUnreachable, and closes, unless the server is this user's own."""
        from dibs.system.socket_peer import peer_uid

        proven = False
        try:
            if self._address.scheme == "unix":
                if not is_ours(peer_uid(connection)):
                    raise not_ours(self._address)
            else:
                asked = Challenge(self._address, token, connection.getpeername())
                send(connection, asked.request, deadline)
                asked.check(_read(connection, deadline))
            proven = True
        except TimeoutError:
            raise TimedOut(too_slow(self._address, deadline.timeout_ms), sent=False) from None
        except (OSError, ConnectionLost):
            raise not_ours(self._address) from None
        finally:
            if not proven:
                connection.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _over(self, connection: socket.socket, request: bytes, deadline: Deadline, *, at_once: bool = False) -> Reply:
        """`at_once`: the whole time of the call is left."""
        keep = False
        try:
            try:
                _bound(connection, deadline.timeout_ms / 1000 if at_once else deadline.left_seconds())
                connection.sendall(request)
            except TimeoutError:
                raise
            except OSError:
                # A server that refuses early (a body too large) answers before everything is sent. That counts.
                pass
            reply = _read(connection, deadline)
            keep = self._keep and reply.again
            return reply
        except TimeoutError:
            raise TimedOut(too_slow(self._address, deadline.timeout_ms), sent=True) from None
        finally:
            if keep:
                self._kept, self._kept_ms = connection, steady_ms()
            else:
                connection.close()


def _bound(connection: socket.socket, left: float) -> None:
    """Bound the next call on the socket by these seconds. Setting it is a system call: a few ms do not count."""
    known = connection.gettimeout()
    if known is None or abs(known - left) > min(SLACK_SECONDS, left / 10):
        connection.settimeout(left)


def send(connection: socket.socket, request: bytes, deadline: Deadline) -> None:
    _bound(connection, deadline.left_seconds())
    connection.sendall(request)


def receive(connection: socket.socket, deadline: Deadline) -> bytes:
    _bound(connection, deadline.left_seconds())
    try:
        return connection.recv(RECEIVE_BYTES)
    except TimeoutError:
        raise
    except OSError as error:  # reset, or a TLS stream cut off
        raise ConnectionLost from error


def _read(connection: socket.socket, deadline: Deadline) -> Reply:
    return read_reply(lambda: receive(connection, deadline), HEAD_BYTES_MAX, REPLY_BYTES_MAX)


def _connect(address: ServerAddress, deadline: Deadline) -> socket.socket:
    why: OSError | None = None
    for family, protocol, where in addresses_of(address):
        connection = socket.socket(family, socket.SOCK_STREAM, protocol)
        try:
            connection.settimeout(deadline.left_seconds())
            connection.connect(where)  # type: ignore[arg-type]  # as getaddrinfo gave it
            return _secured(connection, address, deadline) if address.scheme == "https" else connection
        except TimeoutError:
            connection.close()
            raise TimedOut(too_slow(address, deadline.timeout_ms), sent=False) from None
        except OSError as error:
            connection.close()
            why = why or error
    raise NotConnected(not_there(address, why))


def addresses_of(address: ServerAddress) -> list[Address]:
    if address.scheme == "unix":
        return [(socket.AF_UNIX, 0, address.path)]
    try:
        # Bytes, because a host given as text is first run through the IDNA codec, a slow import.
        found = socket.getaddrinfo(address.host.encode(), address.port, 0, socket.SOCK_STREAM)
    except OSError as error:
        reason = f"There is no host {address.host} ({error.strerror}), so {address.url} cannot be reached."
        raise NotConnected(f"{reason} {DO_NOT_BEGIN}") from None
    return [(family, protocol, where) for family, _, protocol, _, where in found]


def _secured(connection: socket.socket, address: ServerAddress, deadline: Deadline) -> socket.socket:
    import ssl

    context = client_context()
    connection.settimeout(deadline.left_seconds())
    try:
        return context.wrap_socket(connection, server_hostname=address.host)
    except ssl.SSLError as error:
        connection.close()
        raise not_trusted(address, error) from None


CLOSED = "closed the connection without an answer."


def speaks_tls(address: ServerAddress) -> bool:
    """Tell whether what closed a plain connection without an answer wants TLS."""
    if address.scheme != "http":
        return False
    import ssl
    from socket import create_connection

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with create_connection((address.host, address.port), PROBE_S) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        return error.reason not in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE")
    except OSError:
        return False
    return True


def needs_https(address: ServerAddress) -> NotConnected:
    return NotConnected(f"{address.url} speaks TLS. Write https:// instead of http://.")


def not_trusted(address: ServerAddress, why: SSLError) -> NotConnected:
    if reason := getattr(why, "verify_message", None):
        hint = "If it comes from your own authority, name its file in SSL_CERT_FILE."
        if path := os.environ.get("SSL_CERT_FILE"):
            hint = unread("SSL_CERT_FILE", path) or f"Its authority is not in SSL_CERT_FILE ({path})."
        return NotConnected(f"The certificate of {address.url} is not trusted ({reason}). {hint}")
    return NotConnected(f"{address.url} does not speak TLS ({why.reason}). Is it http:// and not https://?")


def unread(variable: str, path: str) -> str | None:
    """Return why the authorities in a file that a variable names do not count. OpenSSL says nothing of it."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:  # SSLError is one
        reason = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no certificate in PEM form"
        return f"{variable} names {path}, which cannot be used: {reason}."
    return None


def too_slow(address: ServerAddress, timeout_ms: int) -> str:
    return f"{address.url} did not answer within {timeout_ms / 1000:g} s. {DO_NOT_BEGIN}"


def not_there(address: ServerAddress, why: OSError | None) -> str:
    reason = (why.strerror or str(why)).lower() if why else "no address"
    return f"No server answers at {address.url} ({reason}). {DO_NOT_BEGIN}"
