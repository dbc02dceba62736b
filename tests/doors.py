"""The door to a URL, for tests that have no settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.client.door import OneNamespace
from dibs.client.embedded import EmbeddedDoor
from dibs.client.http import HttpDoor
from dibs.client.servers import Servers
from dibs.client.settings import servers_at

if TYPE_CHECKING:
    from dibs.client.door import Door


def connect(url: str | None, *, namespace: str | None, token: str | None, timeout_ms: int) -> Door:
    """The door to `url`; None is the user's own store. Reaches out for nothing before it is asked."""
    found = servers_at(url)
    for address in found:
        address.token = token
    if not found:
        return EmbeddedDoor.at(url, namespace)
    return HttpDoor(Servers(found), naming=OneNamespace(namespace), timeout_ms=timeout_ms)
