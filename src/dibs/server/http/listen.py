"""Opens the socket of a server: `127.0.0.1:3427`, `[::1]:3427`, `unix:/path`. Port 0 asks for any free one.

Clients take a Unix socket's name for a service. So a server listens under another name beside it (`draft_of`) until all
is ready, and is given its name then (`publish`). Of two servers that start there, the second finds the draft in use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import hashlib
import ipaddress
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from dibs.base.errors import InvalidInput, Unavailable

BACKLOG = 2048
GROUP_MODE = 0o660
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.01
_PATH_BYTES_MAX, _DRAFT_BYTES = 103, 9  # of a socket, on every system; of its draft's name, if there is room
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


def check_address(address: BindAddress, group: str | None = None) -> None:
    """Raise what `open_socket` would, as far as it can be known before. Changes nothing."""
    group_number(group)
    if address.path:
        try:
            _check_free(address.path)
        except OSError as error:
            raise _refusal(address, error) from None


def open_socket(address: BindAddress, *, mode: int | None = None, group: str | None = None) -> socket.socket:
    """A socket that listens there, a Unix socket under its draft's name. Every failure has its own message and leaves
    nothing behind. A Unix socket is for this user only, unless `mode` or `group` say otherwise; with a group alone it
    is also for the members of that group."""
    number = group_number(group)
    made = socket.socket(socket.AF_UNIX if address.path else _family(address), socket.SOCK_STREAM)
    try:
        if address.path:
            with _folder_locked(address.path):
                _listen_unix(made, address.path, mode, number)
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


def publish(address: BindAddress) -> None:
    """Give a Unix socket its name."""
    if address.path:
        try:
            with _folder_locked(address.path):
                _check_free(address.path)
                os.rename(draft_of(address.path), address.path)
        except OSError as error:
            raise _refusal(address, error) from None


def withdraw(address: BindAddress) -> None:
    """Remove the names of a Unix socket that was closed. A server that has taken them since keeps them."""
    if address.path:
        with contextlib.suppress(OSError), _folder_locked(address.path):
            for path in (draft_of(address.path), address.path):
                if _is_left_over(path):
                    os.unlink(path)


def draft_of(path: str) -> str:
    """A name of this path alone: other servers may start in the same folder. It is as long as the path or longer, so
    that a path which is too long is refused; and longer only where the system allows it."""
    folder, name = os.path.split(path)
    length = len(os.fsencode(name))
    room = _PATH_BYTES_MAX - len(os.fsencode(folder)) - 1
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, f"~{digest}"[: max(length, min(room, _DRAFT_BYTES))].ljust(length, "~"))


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
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # the same, on macOS
    for option, value in ((idle, 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _family(address: BindAddress) -> int:
    try:
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
    except OSError:
        raise InvalidInput(f"{address.host!r} is not a host address. {_FORM}") from None


@contextlib.contextmanager
def _folder_locked(path: str) -> Iterator[None]:
    """One server at a time looks at the names in this folder and changes them. Anybody who may read the folder may lock
    it, so this does not wait for long."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(folder)


def _listen_unix(made: socket.socket, path: str, mode: int | None, group: int | None) -> None:
    """Listen under the draft's name, for this user only until the group is set."""
    _check_free(path)
    draft = draft_of(path)
    if _is_left_over(draft):
        os.unlink(draft)
    before = os.umask(0o177)
    try:
        made.bind(draft)
    finally:
        os.umask(before)
    try:
        if group is not None:
            os.chown(draft, -1, group)
        if mode is not None or group is not None:
            os.chmod(draft, GROUP_MODE if mode is None else mode)
        made.listen(BACKLOG)
    except BaseException:
        os.unlink(draft)
        raise


def group_number(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidInput(f"There is no group {group!r}. Make it first: groupadd {group}") from None


def _check_free(path: str) -> None:
    """A socket file that nobody listens on is left over from a crash, and will be replaced."""
    if os.path.lexists(path) and not _is_left_over(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _is_left_over(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server that stands still has a full queue
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _refusal(address: BindAddress, error: OSError) -> InvalidInput | Unavailable:
    where = address.path or f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"{where} is in use; perhaps a dibs server runs there already. Choose another with --bind.")
    return InvalidInput(f"Cannot listen on {where}: {error.strerror or error}.")
