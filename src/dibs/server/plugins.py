"""Finds what plugins and packages of others add to a server: routes, MCP, the answers of another program.

A package registers routes by an entry point of the group `dibs.routes`: a function that takes the `Api` and returns
`PluginRoutes`. `dibs serve --routes WORD` switches them on. Those of dibs' own wheel are registered in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from dibs.base.errors import InvalidInput
from dibs.base.plugins import PARTS, plugin
from dibs.server.routes.table import Table

Api = Any  # dibs.server.handlers.Api, which knows the settings, which know these


class PluginRoutes(Protocol):
    def routes(self) -> Table:
        """Operations and their handlers."""

    def close(self) -> None:
        """The server stops: answer those who wait."""


class FixedRoutes:
    """Routes that nobody waits at."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def routes(self) -> Table:
        return self._table

    def close(self) -> None:
        pass


GROUP = "dibs.routes"  # of entry points
# Those of our own wheel that every server has, if their part of it is installed.
_ALWAYS = ("accounts", "elections", "mcp")


def open_routes(api: Api, words: Iterable[str]) -> list[PluginRoutes]:
    """The routes that were switched on. Raises InvalidInput for a word that nobody has."""
    found: list[PluginRoutes] = []
    for word in words:
        opens = plugin(GROUP, word, f"the routes {word}")
        if opens is None:
            raise InvalidInput(f"No installed package has routes called {word!a} (--routes).")
        found.append(opens(api))
    return found


def shared_routes(api: Api) -> Table:
    opened = [opens(api) for word in _ALWAYS if (opens := plugin(GROUP, word)) is not None]
    return [route for each in opened for route in each.routes()]


def metrics_document() -> Any | None:
    return plugin(PARTS, "octostore-metrics")
