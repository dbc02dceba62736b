"""Opens the socket of a server: `127.0.0.1:3427`, `[::1]:3427`, `unix:/path`. Port 0 asks for any free one."""

from __future__ import annotations

import errno
import grp
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass

from dibs.base.errors import InvalidInput, Unavailable

BACKLOG = 2048
GROUP_MODE = 0o660
_FORM = "Write HOST:PORT (127.0.0.1:3427), [IPV6]:PORT ([::1]:3427) or unix:/path."


@dataclass(frozen=True)
class BindAddress:
    """A parsed `--bind`: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_bind(text: str) -> BindAddress:
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path[2:] if path.startswith("//") else path
        if not os.path.isabs(path) or "\0" in path:
            raise InvalidInput(f"{text!r} does not name a socket. Write unix:/path, with the whole path.")
        return BindAddress(path=path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidInput(f"{text!r} is not an address. {_FORM}")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidInput(f"{text!r} is not an address. {_FORM}")
    return BindAddress(host=host, port=int(port))


def open_socket(address: BindAddress, *, mode: int | None = None, group: str | None = None) -> socket.socket:
    """A socket that listens there. Every failure has its own message. A Unix socket is for this user only, unless
    `mode` or `group` say otherwise; with a group alone it is also for the members of that group."""
    made = socket.socket(socket.AF_UNIX if address.path else _family(address), socket.SOCK_STREAM)
    try:
        if address.path:
            _bind_unix(made, address.path)
            _share(address.path, mode, group)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _notice_the_dead(made)
            made.bind((address.host, address.port))
        made.listen(BACKLOG)
        made.setblocking(False)
        return made
    except OSError as error:
        made.close()
        raise _refusal(address, error) from None
    except BaseException:
        made.close()
        raise


def url_of(address: BindAddress, listening: socket.socket, scheme: str = "http") -> str:
    if address.path:
        return f"unix://{address.path}"
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _notice_the_dead(made: socket.socket) -> None:
    """Make the kernel probe silent clients; connections inherit this. A machine that lost its power does not close its
    connections, and its place in line must not be kept for its whole waiting time."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # macOS calls it so
    for option, value in ((idle, 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _family(address: BindAddress) -> int:
    try:
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
    except OSError:
        raise InvalidInput(f"{address.host!r} is not a host address. {_FORM}") from None


def _bind_unix(made: socket.socket, path: str) -> None:
    """Bind, for this user only. A socket file that nobody listens on is left over from a crash and is removed."""
    if _is_left_over(path):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        made.bind(path)
    finally:
        os.umask(before)


def _share(path: str, mode: int | None, group: str | None) -> None:
    """The socket is this user's own until the group is set."""
    if group is not None:
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError:
            raise InvalidInput(f"There is no group {group!r}. Make it first: groupadd {group}") from None
        os.chown(path, -1, number)
    if mode is not None or group is not None:
        os.chmod(path, GROUP_MODE if mode is None else mode)


def _is_left_over(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _refusal(address: BindAddress, error: OSError) -> InvalidInput | Unavailable:
    where = address.path or f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"{where} is in use; perhaps a dibs server runs there already. Choose another with --bind.")
    return InvalidInput(f"Cannot listen on {where}: {error.strerror or error}.")
