"""By which names a request may call this machine. Pure.

A page in a browser can reach a server on this machine under a name of its own, whose address its owner changes to
127.0.0.1 once the page is loaded (DNS rebinding). To the browser they are one origin then. What gives it away is the
name in `Host`, and in `Origin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dibs.server.http.response import MISDIRECTED, HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable

    Sent = Iterable[tuple[bytes, bytes]]

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_OF_LOCALHOST = ".localhost"  # browsers ask no server for the address of these
_KEPT_MAX = 256


class OwnNames:
    """`names` are those besides localhost; pages of `origins` may ask, too."""

    def __init__(self, names: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in (*LOCAL_NAMES, *names)}
        self._origins = {origin.encode() for origin in origins}
        self._known: dict[bytes, bool] = {}

    def knows(self, host: bytes) -> bool:
        """Whether this value of Host names this machine."""
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[host] = self._names_us(b"//" + host)
        return known

    def check(self, headers: Sent, *, strict: bool = False) -> None:
        """Raise if Host or Origin names another machine. A request without them is of no browser. `strict`: also the
        pages that may ask are others."""
        for name, value in headers:
            if name == b"host" and not self.knows(value):
                raise HttpError(
                    "The Host header does not name this machine. Use the name it listens on, or start the server "
                    "with --mcp-host NAME; behind a proxy, with --trusted-proxy ADDRESS.",
                    MISDIRECTED,
                )
            if name == b"origin" and not self._names_us(value) and (strict or value not in self._origins):
                raise HttpError(
                    "Pages of this Origin may not ask here. If yours should, start the server with --mcp-host NAME.",
                    403,
                    code="forbidden",
                )

    def _names_us(self, url: bytes) -> bool:
        try:
            name = urlsplit(url.decode("latin-1")).hostname or ""
        except ValueError:
            return False
        return name in self._names or name.endswith(_OF_LOCALHOST)
