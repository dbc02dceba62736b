"""Where a webhook may lead. The promise `webhook:private`: a webhook cannot be used to reach what only the server can
reach, unless the operator allows it.

A URL's name is looked up for every connection, all its addresses are checked, and the connection goes to the address
that was checked. So a name whose address changes between two lookups gains nothing.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from dibs.base.errors import InvalidInput
from dibs.base.record import Record
from dibs.core.limits import WEBHOOK_URL_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The registries of special addresses (RFC 6890 and later ones), and multicast. What Python's `is_global` says differs
# between its versions.
_REFUSED_V4 = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
        "192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 "
        "198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
    ).split()
)
# Only this part is given out to networks. All else is refused: loopback, link-local, unique local, multicast, NAT64 and
# addresses with an IPv4 address in them.
_GIVEN_V6 = ip_network("2000::/3")
_REFUSED_V6 = tuple(ip_network(each) for each in "2001::/23 2001:db8::/32 2002::/16 3fff::/20".split())
_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


class TargetRefused(InvalidInput):
    """A webhook may not lead there."""


class TargetPolicy(Record):
    """What an operator allows."""

    private: bool = False
    http: bool = False


class Target(Record):
    """A parsed URL. `host` is a name or an address, without brackets."""

    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == (443 if self.is_tls else 80) else f"{shown}:{self.port}"


def parse_target(url: str, policy: TargetPolicy) -> Target:
    """The parts of a webhook's URL. Raises TargetRefused, without the URL: it may hold a secret."""
    if len(url) > WEBHOOK_URL_CHARS_MAX:
        raise TargetRefused(f"url has {WEBHOOK_URL_CHARS_MAX} characters at most.")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise TargetRefused(
            "url has characters that a URL cannot have. Percent-encode them, and write a host's name as xn--..."
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").removesuffix(".")
    except ValueError:
        raise TargetRefused("url is not a URL.") from None
    if parts.scheme not in ("https", "http"):
        raise TargetRefused("url must begin with https://.")
    if parts.scheme == "http" and not policy.http:
        raise TargetRefused(
            "url must begin with https://. A server allows http:// only if it runs with --webhook-allow-http."
        )
    if "@" in parts.netloc:
        raise TargetRefused("url must not hold a user name or password. Use a secret, which signs each delivery.")
    if port == 0 or not _is_host(host):
        raise TargetRefused("url names no host that can be reached.")
    query = f"?{parts.query}" if parts.query else ""
    is_tls = parts.scheme == "https"
    return Target(is_tls=is_tls, host=host, port=port or (443 if is_tls else 80), path=(parts.path or "/") + query)


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            return "%" not in host and bool(IPv6Address(host))
        except ValueError:
            return False
    return 0 < len(host) <= 253 and _HOST_CHARACTERS.issuperset(host) and not host.startswith((".", "-"))


def check_addresses(addresses: Iterable[str], policy: TargetPolicy) -> list[str]:
    """The addresses, all of which may be connected to. Raises TargetRefused if one may not: a name with a public and a
    private address could change over at any time."""
    found = list(addresses)
    if not found:
        raise TargetRefused("The host in url has no address.")
    if not policy.private and any(is_refused(each) for each in found):
        raise TargetRefused(
            "url leads to a private, local or reserved address. "
            "A server allows those only if it runs with --webhook-allow-private."
        )
    return found


def is_refused(address: str) -> bool:
    """Return whether an address is not one of the public internet."""
    try:
        found = ip_address(address)
    except ValueError:  # with a zone, for instance: link-local
        return True
    if isinstance(found, IPv4Address):
        return any(found in network for network in _REFUSED_V4)
    return found not in _GIVEN_V6 or any(found in network for network in _REFUSED_V6)
