"""The router, which finds the operation of a request and its handler.

Paths are matched as they were sent, still percent-encoded: a `%2F` is part of a name, a `/` is not. A path has one
{part} at most, which is one segment. It may be empty, so that the error for an empty name can say what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dibs.base.errors import NOTHING_HERE
from dibs.base.reply import Reply
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import UNSUPPORTED, HttpError
from dibs.wire.operations import Operation

# `Any`, because who wraps a handler knows which of these it returns.
Handler = Callable[[HttpRequest], Any]
Table = list[tuple[Operation, Handler]]

_NOWHERE: tuple[None, bytes] = (None, b"")
_PART = b"\0"  # stands for the {part} of a path; the parser lets no path have one
_PART_LAST, _PART_BETWEEN = b"/" + _PART, b"/" + _PART + b"/"


class Route(NamedTuple):
    verb: str
    handler: Handler


class Router:
    """`refuse` makes the answer for a path without a route: 404, or 405 with the methods that it has."""

    def __init__(self, table: Iterable[tuple[Operation, Handler]], refuse: Callable[[HttpError], Reply]) -> None:
        self._refuse = refuse
        self._routes: dict[bytes, dict[bytes, Route]] = {}  # by method and path
        for operation, handler in table:
            path = re.sub(rb"\{\w+\}", _PART, operation.path.encode())
            for method in (b"GET", b"HEAD") if operation.method == "GET" else (operation.method.encode(),):
                # Of two that match, the first is taken.
                self._routes.setdefault(method, {}).setdefault(path, Route(operation.id, handler))

    def find(self, method: bytes, path: bytes) -> tuple[Route | None, bytes]:
        """The route, and the {part} of the path: the last segment, or the one before."""
        routes = self._routes.get(method)
        if routes is None:
            return _NOWHERE
        above, _, last = path.rpartition(b"/")
        begin, _, inner = above.rpartition(b"/")
        route = routes.get(begin + _PART_BETWEEN + last)  # as the usual ones are: /locks/{name}/acquire
        if route is not None:
            return route, inner
        route = routes.get(above + _PART_LAST)
        if route is not None:
            return route, last
        route = routes.get(path)
        return _NOWHERE if route is None else (route, b"")

    def refusal(self, path: bytes) -> Reply:
        methods = sorted(method for method in self._routes if self.find(method, path)[0] is not None)
        if not methods:
            details = f"{NOTHING_HERE} A / inside a name is sent as %2F."
            return self._refuse(HttpError(details, 404, code="not_found"))
        own = [method for method in methods if path in self._routes[method]]
        return self._refuse(HttpError(UNSUPPORTED, 405, headers={"allow": b", ".join(own or methods).decode()}))
