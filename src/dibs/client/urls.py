"""Parses URLs of servers. Pure. `urllib.parse` would cost more than the whole request."""

from __future__ import annotations

from dibs.base.cheap import Callable
from dibs.base.errors import InvalidInput

SERVER_SCHEMES = ("http", "https", "unix")
_PORTS = {"http": 80, "https": 443}
_UNRESERVED_TEXT = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_UNRESERVED = frozenset(_UNRESERVED_TEXT.encode())
_EXAMPLES = (
    "Examples: http://127.0.0.1:3427, https://dibs.example.org, unix:///run/dibs.sock, sqlite:///var/lib/dibs.db."
)


class ServerAddress:
    """The address of a server. `path` is the socket's for unix, else what stands before `/locks`. `token` is sent to
    it, and nowhere else. `own_token`: that of this user's own server, which must show that it has it. `renewed` gives
    the token that is to be sent now, if that may change."""

    __slots__ = ("host", "own_token", "path", "port", "renewed", "scheme", "token", "url")

    def __init__(self, url: str, scheme: str, host: str, port: int, path: str) -> None:
        self.url = url
        self.scheme = scheme
        self.host = host
        self.port = port
        self.path = path
        self.token: str | None = None
        self.own_token: str | None = None
        self.renewed: Callable[[], str] | None = None

    @property
    def is_local(self) -> bool:
        """Tell whether only processes of this machine can be on the other end."""
        parts = self.host.split(".")
        is_ipv4 = len(parts) == 4 and parts[0] == "127" and all(part.isdecimal() for part in parts)
        return self.scheme == "unix" or self.host in ("localhost", "::1") or is_ipv4

    @property
    def origin(self) -> str:
        """The URL, written in the one way in which a saved token names its server."""
        return self.url if self.scheme == "unix" else f"{self.scheme}://{self.authority.lower()}{self.path}"

    @property
    def authority(self) -> str:
        """The Host header."""
        if self.scheme == "unix":
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def _shown(url: str) -> str:
    from dibs.base.redact import without_secrets

    return repr(without_secrets(url))


def is_server(url: str) -> bool:
    """Tell whether `url` names a server. The registry of stores handles all other URLs."""
    if not url:
        raise InvalidInput(f"The URL is empty. {_EXAMPLES}")
    if "://" not in url and url[-1].isdecimal() and ":" in url and "/" not in url:
        raise InvalidInput(f"{_shown(url)} is not a URL. Did you mean http://{url}?")
    return _has_server_scheme(url)


def server_addresses(url: str) -> tuple[ServerAddress, ...]:
    """The servers that `url` names: one, or several with commas between; none when it names a store."""
    if "," not in url:
        return (server_address(url),) if is_server(url) else ()
    parts = [part.strip() for part in url.split(",")]
    if not any(_has_server_scheme(part) for part in parts):
        return ()  # the URL of a store may have commas of its own
    for part in parts:
        if not part:
            raise InvalidInput(f"The list {_shown(url)} has an empty part. Write http://a:3427,http://b:3427.")
        if not is_server(part):
            raise InvalidInput(f"{_shown(part)} is not a server, and a list names servers only. {_EXAMPLES}")
    found = tuple(server_address(part) for part in parts)
    seen: set[tuple[str, str, int, str]] = set()
    for each in found:
        where = (each.scheme, each.host.lower(), each.port, each.path)
        if where in seen:
            raise InvalidInput(f"{each.url} is in the list twice. Name each server once.")
        seen.add(where)
    plain = [each.url for each in found if each.scheme == "http" and not each.is_local]
    if plain and any(each.scheme == "https" for each in found):
        raise InvalidInput(
            f"{plain[0]} would be sent unencrypted what the others are sent over TLS. Use https:// for all of them."
        )
    return found


def _has_server_scheme(part: str) -> bool:
    head, mark, _ = part.partition("://")
    return bool(mark) and head.lower() in SERVER_SCHEMES


def server_address(url: str) -> ServerAddress:
    """The parts of a server URL, or InvalidInput."""
    head, _, rest = url.partition("://")
    scheme = head.lower()
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInput(
            f"{_shown(url)} is not a server URL: it may hold printable ASCII characters only. {_EXAMPLES}"
        )
    if scheme == "unix":
        if not rest.startswith("/"):
            raise InvalidInput(f"{_shown(url)} needs an absolute path after unix://, as in unix:///run/dibs.sock.")
        return ServerAddress(url, scheme, "", 0, rest)
    authority, _, path = rest.partition("/")
    if "?" in rest or "#" in rest:
        raise InvalidInput(f"{_shown(url)} may not carry a query or a fragment. {_EXAMPLES}")
    if "@" in authority:
        raise InvalidInput(
            "A server URL carries no user or password. Put the token into DIBS_TOKEN or DIBS_TOKEN_FILE."
        )
    host, port = _host_and_port(url, authority, _PORTS[scheme])
    return ServerAddress(url, scheme, host, port, "/" + path.strip("/") if path.strip("/") else "")


def _host_and_port(url: str, authority: str, port: int) -> tuple[str, int]:
    host, text = authority, ""
    if authority.startswith("["):
        host, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise InvalidInput(f"{_shown(url)} has a broken IPv6 address: write http://[::1]:3427.")
        text = after[1:]
    elif authority.count(":") == 1:
        host, _, text = authority.partition(":")
    elif ":" in authority:
        raise InvalidInput(f"{_shown(url)} has an IPv6 address without brackets: write http://[::1]:3427.")
    if text:
        if not text.isdecimal() or not 1 <= int(text) <= 65535:
            raise InvalidInput(f"{_shown(url)} has an invalid port: it must be a number from 1 to 65535.")
        port = int(text)
    if not host:
        raise InvalidInput(f"{_shown(url)} names no host. {_EXAMPLES}")
    return host, port


def quote(text: str) -> str:
    """Percent-encoded UTF-8, including slashes: a job name is one segment of a path, or one value of a query."""
    if text in (".", ".."):
        return text.replace(".", "%2E")  # unquoted they would mean a folder
    if not text.strip(_UNRESERVED_TEXT):
        return text  # like most names, it needs no quoting
    return "".join([chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode()])
