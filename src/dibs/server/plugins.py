"""Finds what plugins and packages of others add to a server: routes, MCP, the answers of another program.

A package registers routes by an entry point of the group `dibs.routes`: a function that takes the `Api` and returns
`PluginRoutes`. `dibs serve --routes WORD` switches them on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from dibs.base.errors import InvalidInput
from dibs.base.plugins import needed, own_plugin, plugin
from dibs.server.routes.table import Table

Api = Any  # dibs.server.handlers.Api, which knows the settings, which know these


class PluginRoutes(Protocol):
    def routes(self) -> Table:
        """Operations and their handlers."""

    def close(self) -> None:
        """The server stops: answer those who wait."""


GROUP = "dibs.routes"  # of entry points
# The word that switches routes on, and what opens them, written as in an entry point.
ROUTES = {"gateway": "dibs.compat.action_llama.routes:open_gateway"}
_OCTOSTORE = "dibs.compat.octostore.admin"
# Served by every server. Each module has a function `routes`.
_ALWAYS = (_OCTOSTORE, "dibs.compat.octostore.elections", "dibs.agents.http_endpoint")


def open_routes(api: Api, words: Iterable[str]) -> list[PluginRoutes]:
    """The routes that were switched on. Raises InvalidInput for a word that nobody has."""
    found: list[PluginRoutes] = []
    for word in words:
        if word in ROUTES:
            module, _, function = ROUTES[word].partition(":")
            opens = getattr(needed(module, f"--{word}"), function)
        else:
            opens = plugin(GROUP, word, f"the routes {word}")
        if opens is None:
            raise InvalidInput(f"No installed package has routes called {word!a} (--routes).")
        found.append(opens(api))
    return found


def shared_routes(api: Api) -> Table:
    return [route for module in _ALWAYS if (found := own_plugin(module)) is not None for route in found.routes(api)]


def metrics_document() -> Any | None:
    found = own_plugin(_OCTOSTORE)
    return None if found is None else found.metrics_document
