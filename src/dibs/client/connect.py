"""From a URL to a door. A server's schemes are known here, a store's only to the registry of stores."""

from __future__ import annotations

from dibs.client.urls import is_server, server_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.door import Door
    from dibs.client.urls import ServerPlace


def server_at(url: str | None) -> ServerPlace | None:
    """The server that `url` names, or None when it names a store. Raises InvalidInput when it names nothing."""
    return server_place(url) if url is not None and is_server(url) else None


def connect(url: str | None, *, namespace: str | None, token: str | None, timeout_ms: int) -> Door:
    """The door to `url`; None is the store of this machine. Reaches out for nothing before it is asked."""
    place = server_at(url)
    if place is None:
        from dibs.client.embedded import EmbeddedDoor

        return EmbeddedDoor.at(url, namespace)
    from dibs.client.http import HttpDoor

    return HttpDoor(place, token=token, namespace=namespace, timeout_ms=timeout_ms)
