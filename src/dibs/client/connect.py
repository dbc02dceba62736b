"""Opens the door for a URL. Schemes of servers are known here; those of stores are in the registry of stores."""

from __future__ import annotations

from dibs.client.urls import is_server, server_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.door import Door
    from dibs.client.settings import Settings
    from dibs.client.urls import ServerAddress


def server_at(url: str | None) -> ServerAddress | None:
    """The server of `url`, or None if it is a store. Raises InvalidInput if it is neither."""
    return server_address(url) if url is not None and is_server(url) else None


def connect(url: str | None, *, namespace: str | None, token: str | None, timeout_ms: int) -> Door:
    """The door to `url`; None is the user's own store. Opens nothing before the first request."""
    return _door(server_at(url), url, namespace, token, timeout_ms)


def connect_as(settings: Settings) -> Door:
    """The door that the settings name, with its token."""
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
