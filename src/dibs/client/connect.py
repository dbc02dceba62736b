"""Opens the door for a URL. Schemes of servers are known here; those of stores are in the registry of stores."""

from __future__ import annotations

from dibs.client.door import OneNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.door import Door
    from dibs.client.servers import Servers
    from dibs.client.settings import Settings
    from dibs.client.urls import ServerAddress


def servers_at(url: str | None) -> tuple[ServerAddress, ...]:
    """The servers that `url` names; none when it names a store. Raises InvalidInput when it names nothing."""
    if url is None:
        return ()
    from dibs.client.urls import server_addresses

    return server_addresses(url)


def connect(url: str | None, *, namespace: str | None, token: str | None, timeout_ms: int) -> Door:
    """The door to `url`; None is the user's own store. Reaches out for nothing before it is asked."""
    found = servers_at(url)
    for address in found:
        address.token = token
    if not found:
        return _embedded(url, namespace)
    from dibs.client.http import HttpDoor
    from dibs.client.servers import Servers

    return HttpDoor(Servers(found), naming=OneNamespace(namespace), timeout_ms=timeout_ms)


def connect_as(settings: Settings) -> Door:
    """The door that the settings name, with the token that they have for it."""
    servers = servers_of(settings)
    if servers is None:
        return _embedded(settings.url, settings.namespace)
    from dibs.client.http import HttpDoor

    return HttpDoor(servers, naming=OneNamespace(settings.namespace), timeout_ms=settings.timeout_ms)


def servers_of(settings: Settings) -> Servers | None:
    """The servers that the settings name, each with the token that is for it. None: they name a store."""
    if settings.servers is not None:
        return settings.servers
    found = servers_at(settings.url)
    if not found:
        return None
    from dibs.client.servers import Servers

    for address in found:
        address.token = settings.token(address)
    if len(found) == 1:
        settings.servers = Servers(found)
    else:
        from dibs.client.server_note import remembered

        settings.servers = remembered(found, settings.env)
    return settings.servers


def _embedded(url: str | None, namespace: str | None) -> Door:
    from dibs.client.embedded import EmbeddedDoor

    return EmbeddedDoor.at(url, namespace)
