"""From a URL to a door. A server's schemes are known here, a store's only to the registry of stores."""

from __future__ import annotations

from dibs.client.urls import is_server, server_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.door import Door
    from dibs.client.settings import Settings
    from dibs.client.urls import ServerAddress


def server_at(url: str | None) -> ServerAddress | None:
    """The server that `url` names, or None when it names a store. Raises InvalidInput when it names nothing."""
    return server_address(url) if url is not None and is_server(url) else None


def connect(url: str | None, *, namespace: str | None, token: str | None, timeout_ms: int) -> Door:
    """The door to `url`; None is the user's own store. Reaches out for nothing before it is asked."""
    return _door(server_at(url), url, namespace, token, timeout_ms)


def connect_as(settings: Settings) -> Door:
    """The door that the settings name, with the token that they have for it."""
    address = server_at(settings.url)
    token = None if address is None else settings.token(address)
    return _door(address, settings.url, settings.namespace, token, settings.timeout_ms)


def _door(
    address: ServerAddress | None, url: str | None, namespace: str | None, token: str | None, timeout_ms: int
) -> Door:
    if address is None:
        from dibs.client.embedded import EmbeddedDoor

        return EmbeddedDoor.at(url, namespace)
    from dibs.client.http import HttpDoor

    return HttpDoor(address, token=token, namespace=namespace, timeout_ms=timeout_ms)
