"""The transport to a URL, for tests that have no settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.client.embedded import EmbeddedTransport
from dibs.client.http import HttpTransport
from dibs.client.servers import Servers
from dibs.client.settings import servers_at
from dibs.client.transport import OneNamespace

if TYPE_CHECKING:
    from dibs.client.transport import Transport


def connect(url: str | None, *, namespace: str | None, token: str | None, timeout_ms: int) -> Transport:
    """The transport to `url`; None is the user's own store. Reaches out for nothing before it is asked."""
    found = servers_at(url)
    for address in found:
        address.token = token
    if not found:
        return EmbeddedTransport.at(url, namespace)
    return HttpTransport(Servers(found), naming=OneNamespace(namespace), timeout_ms=timeout_ms)
