"""What an `etcd:` URL means, and what the store can do.

    etcd://host:2379,other:2379/prefix         several members, and the prefix of all keys (`dibs` if none is given)
    etcds://host:2379/prefix?ca=/ca.pem        TLS; also &cert=…&key=… for a client certificate
    etcd://user:password@host:2379/prefix      a user of etcd; %40 and the like are decoded

Options of a URL: `tls=yes`, `ca`, `cert`, `key`.
"""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.base.record import Record
from dibs.core.limits import ETCD_BATCH_MAX
from dibs.stores.codec import names_no_store
from dibs.stores.port import Capabilities

CAPABILITIES = Capabilities(
    name="etcd",
    clock="the seconds that etcd's leader counts, and each process's steady clock between them; no wall clock",
    reach="network",
    watch="native",
    durable=True,
    gapless=False,
    batch_max=ETCD_BATCH_MAX,
    cannot=(
        "number events without gaps: numbers come from revisions of the cluster",
        "keep a record of more than 1.4 MB: etcd accepts no more in a request",
        "compact or defragment itself: that is for the operator of etcd",
    ),
)


PORT = 2379
PREFIX = "dibs"
_OPTIONS = ("tls", "ca", "cert", "key")
_HEX = frozenset("0123456789abcdefABCDEF")


class EtcdLocation(Record):
    """The addresses of the members, the user, and the prefix of the keys."""

    endpoints: tuple[tuple[str, int], ...]
    prefix: str = PREFIX
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str = ""

    def __repr__(self) -> str:
        """Without the password: this may end up in a traceback."""
        return f"EtcdLocation({self.shown()})"

    def shown(self) -> str:
        """For messages."""
        scheme = "etcds" if self.tls else "etcd"
        return f"{scheme}://{','.join(map(shown_endpoint, self.endpoints))}/{self.prefix}"


def shown_endpoint(endpoint: tuple[str, int]) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def etcd_location(url: str) -> EtcdLocation:
    scheme, separator, rest = url.partition("://")
    if scheme not in ("etcd", "etcds") or not separator:
        raise names_no_store(url)
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    who, _, hosts = authority.rpartition("@")
    if "@" in path or not hosts:
        raise names_no_store(url)
    user, colon, password = who.partition(":")
    options = _options(query)
    tls = scheme == "etcds" or options.get("tls", "no") == "yes" or bool(options.keys() - {"tls"})
    if options.get("tls", "yes") not in ("yes", "no") or (tls and options.get("tls") == "no"):
        raise InvalidInput("tls in an etcd URL is yes or no; with ca, cert or key it cannot be no.")
    if ("cert" in options) != ("key" in options):
        raise InvalidInput("cert and key in an etcd URL are given together.")
    if who and not (user and colon):
        raise InvalidInput("An etcd URL with a user has a password too: etcd://USER:PASSWORD@HOST.")
    return EtcdLocation(
        endpoints=tuple([_endpoint(each, url) for each in hosts.split(",")]),
        prefix=_prefix(path),
        tls=tls,
        ca=options.get("ca"),
        cert=options.get("cert"),
        key=options.get("key"),
        user=_decoded(user) if user else None,
        password=_decoded(password),
    )


def _endpoint(text: str, url: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise names_no_store(url)
        port = rest[1:]
    else:
        host, colon, port = text.partition(":")
        if colon and not port:
            raise names_no_store(url)
    if not host or any(each <= " " or each == "\x7f" for each in host):
        raise names_no_store(url)
    if not port:
        return host, PORT
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise names_no_store(url)
    return host, int(port)


def _prefix(path: str) -> str:
    """The prefix without empty parts. Two slashes separate it from the keys, so no store is inside another one's
    prefix."""
    prefix = "/".join([part for part in _decoded(path).split("/") if part])
    if any(each < " " or each == "\x7f" for each in prefix):
        raise InvalidInput("The prefix in an etcd URL holds a control character.")
    return prefix or PREFIX


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name not in _OPTIONS or name in found or not value:
            raise InvalidInput(
                f"{name!r} is not an option of an etcd URL, or has no value. There are: {', '.join(_OPTIONS)}."
            )
        found[name] = _decoded(value)
    return found


def _decoded(text: str) -> str:
    """Percent-decoded text."""
    first, *others = text.split("%")
    raw = bytearray(first.encode())
    for part in others:
        if len(part) < 2 or not _HEX.issuperset(part[:2]):
            raise InvalidInput("A % in an etcd URL is followed by two hexadecimal digits; % itself is %25.")
        raw.append(int(part[:2], 16))
        raw += part[2:].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput("An etcd URL holds bytes that are not UTF-8.") from None
