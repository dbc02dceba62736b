"""One request, one connection, one deadline. Here errors of sockets and TLS become errors of dibs, and nowhere else.

It uses `_socket`, the C part of `socket`: the Python part turns a few hundred constants into enums at import, which
is a fifth of what a whole `dibs claim` may take, for names that are not needed here.
"""

from __future__ import annotations

import _socket

from dibs.client.http1 import Broken, ReplyReader
from dibs.clock import steady_ms
from dibs.errors import ServerUnreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.http1 import RawReply
    from dibs.client.urls import ServerPlace

    Address = tuple[int, int, object]  # family, protocol, where

RECEIVE_BYTES = 64 * 1024


class Deadline:
    """How long the whole call may still take, on a clock that nobody can step."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._ends_ms = steady_ms() + timeout_ms

    def left_seconds(self) -> float:
        """More than zero, or TimeoutError: a socket takes zero for "do not wait"."""
        left_ms = self._ends_ms - steady_ms()
        if left_ms <= 0:
            raise TimeoutError
        return left_ms / 1000


class TimedOut(ServerUnreachable):
    """No answer in time. Whether the request was carried out is not known if `sent`."""

    def __init__(self, details: str, *, sent: bool) -> None:
        super().__init__(details)
        self.sent = sent


def exchange(place: ServerPlace, request: bytes, deadline: Deadline) -> RawReply:
    """Send, and read the reply. Raises ServerUnreachable when it was not sent, Broken when its fate is not known."""
    connection = _connect(place, deadline)
    try:
        try:
            _send(connection, request, deadline)
        except TimeoutError:
            raise
        except OSError:
            # A server that refuses early (a body too large) answers and closes before we are done: its answer counts.
            pass
        return ReplyReader(lambda: _receive(connection, deadline)).read()
    except TimeoutError:
        raise TimedOut(_too_slow(place, deadline), sent=True) from None
    finally:
        connection.close()


def _send(connection: _socket.socket, request: bytes, deadline: Deadline) -> None:
    connection.settimeout(deadline.left_seconds())
    connection.sendall(request)


def _receive(connection: _socket.socket, deadline: Deadline) -> bytes:
    connection.settimeout(deadline.left_seconds())
    try:
        return connection.recv(RECEIVE_BYTES)
    except TimeoutError:
        raise
    except OSError as error:  # reset, or a TLS stream cut off
        raise Broken from error


def _connect(place: ServerPlace, deadline: Deadline) -> _socket.socket:
    why: OSError | None = None
    for family, protocol, where in _addresses(place):
        connection = _socket.socket(family, _socket.SOCK_STREAM, protocol)
        try:
            connection.settimeout(deadline.left_seconds())
            connection.connect(where)  # type: ignore[arg-type]  # as getaddrinfo gave it
            return _secured(connection, place, deadline) if place.scheme == "https" else connection
        except TimeoutError:
            connection.close()
            raise TimedOut(_too_slow(place, deadline), sent=False) from None
        except OSError as error:
            connection.close()
            why = why or error
    raise ServerUnreachable(_not_there(place, why))


def _addresses(place: ServerPlace) -> list[Address]:
    if place.scheme == "unix":
        return [(_socket.AF_UNIX, 0, place.path)]
    try:
        # Bytes, because a host given as text is first run through the IDNA codec, a slow import.
        found = _socket.getaddrinfo(place.host.encode(), place.port, 0, _socket.SOCK_STREAM)
    except OSError as error:
        raise ServerUnreachable(
            f"There is no host {place.host} ({error.strerror}). Check DIBS_URL or --url: {place.url}."
        ) from None
    return [(family, protocol, where) for family, _, protocol, _, where in found]


def _secured(connection: _socket.socket, place: ServerPlace, deadline: Deadline) -> _socket.socket:
    import ssl

    context = ssl.create_default_context()
    connection.settimeout(deadline.left_seconds())
    try:
        return context.wrap_socket(connection, server_hostname=place.host)  # type: ignore[arg-type]  # needs no more
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise ServerUnreachable(
            f"The certificate of {place.url} is not trusted ({error.verify_message}). "
            "If it comes from your own authority, name its file in SSL_CERT_FILE."
        ) from None
    except ssl.SSLError as error:
        connection.close()
        raise ServerUnreachable(
            f"{place.url} does not speak TLS as it should ({error.reason}). Is it http:// and not https://?"
        ) from None


def _too_slow(place: ServerPlace, deadline: Deadline) -> str:
    seconds = deadline.timeout_ms / 1000
    return f"{place.url} did not answer within {seconds:g} s. Try again, or give it longer with --timeout."


def _not_there(place: ServerPlace, why: OSError | None) -> str:
    reason = (why.strerror or str(why)).lower() if why else "no address"
    start = "Start one with `dibs serve`, or u" if place.is_local else "Check the address, or u"
    return (
        f"No server answers at {place.url} ({reason}). {start}nset DIBS_URL (and leave out --url) "
        "to use the store of this machine."
    )
