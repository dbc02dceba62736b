"""The proxies in front of a server, and what a request that came through them says about its client. Pure.

Anybody can write `X-Forwarded-For`. So it counts only if the connection comes from a proxy that the operator named, and
only back to the first hop that is not such a proxy: what is left of that was written by strangers. `Forwarded` is not
read. A proxy writes one of the two and may pass on the other as the client sent it.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

UNIX = "unix"
_SCHEMES = (b"http", b"https")


class TrustedProxies:
    """`named` are addresses, networks, or `unix` for whoever connects to a Unix socket."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        words = tuple(named)
        self._unix = UNIX in words
        self._networks = [_network(word) for word in words if word != UNIX]

    def __bool__(self) -> bool:
        return self._unix or bool(self._networks)

    def trusts(self, client: str) -> bool:
        """Tell whether a client, as `admission.client_of` calls it, is one of the proxies."""
        address = _address(client)
        if address is None:
            return self._unix
        return any(address in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The client of a request that came over a connection from the proxy `peer`."""
        lines = [value for name, value in headers if name == b"x-forwarded-for"]
        found = peer
        for hop in reversed(b",".join(lines).split(b",") if lines else []):
            address = _address(_without_port(hop.decode("latin-1").strip()))
            if address is None:
                break  # the proxy passed on what is no address
            found = str(address)
            if not self.trusts(found):
                break
        return found


def forwarded_scheme(headers: Iterable[tuple[bytes, bytes]], scheme: str) -> str:
    """The scheme that the browser used, by the word of the nearest proxy; else `scheme`."""
    lines = [value for name, value in headers if name == b"x-forwarded-proto"]
    told = lines[-1].rpartition(b",")[2].strip().lower() if lines else b""
    return told.decode() if told in _SCHEMES else scheme


def _network(word: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(word)
    except ValueError:
        raise InvalidInput(
            f"{word!r} is no proxy's address. Write addresses or networks with commas between: "
            "10.0.0.2,192.168.7.0/24. Or unix, for a proxy on a Unix socket."
        ) from None
    if network.prefixlen == 0:
        raise InvalidInput(f"{word} would trust everybody to say who a client is.")
    return network


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
