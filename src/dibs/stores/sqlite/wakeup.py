"""One wake for one waiter, across threads and processes of a machine: a datagram socket named after what is waited for.

A process that waits for the deletion of a record binds a socket whose name is made of the store's id and the record's
key. The process that deletes the record sends a byte there. Names are Linux's abstract ones: they leave nothing on the
disk, and end with their socket. A wake is only a hint: the waiter looks at the store after it, and now and then without
it. So without such sockets (another system, another network namespace, no descriptor left) nothing is missed, only
noticed later.
"""

from __future__ import annotations

from binascii import crc32
from time import sleep

from dibs.system import ways

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Iterable
    from types import TracebackType


def _address(store_id: str, key: str) -> bytes:
    """Two keys may share an address: then a waiter looks in vain, or one of two is not woken."""
    text = key.encode()
    return b"\0dibs-wake/%s/%08x/%s" % (store_id.encode(), crc32(text), text[-32:])


class Wakeup:
    """Waits to be woken for `key`. `can_hear` says whether a wake can arrive."""

    def __init__(self, store_id: str, key: str) -> None:
        self._socket: Socket | None = None
        if not ways.IS_LINUX:
            return
        from _socket import AF_UNIX, SOCK_DGRAM
        from _socket import socket as Socket

        try:
            made = Socket(AF_UNIX, SOCK_DGRAM)
        except OSError:
            return  # no descriptor is left
        try:
            made.bind(_address(store_id, key))
        except OSError:  # the name is taken
            made.close()
            return
        self._socket = made

    @property
    def can_hear(self) -> bool:
        return self._socket is not None

    def wait(self, timeout_ms: int) -> None:
        if self._socket is None:
            sleep(timeout_ms / 1000)
            return
        self._socket.settimeout(timeout_ms / 1000)
        try:
            self._socket.recv(1)
        except TimeoutError:
            pass

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()


def wake(store_id: str, keys: Iterable[str]) -> None:
    """Wake the processes that wait for the deletion of these records. Never waits, and never fails."""
    if not ways.IS_LINUX:
        return
    from _socket import AF_UNIX, MSG_DONTWAIT, SOCK_DGRAM
    from _socket import socket as Socket

    try:
        sender = Socket(AF_UNIX, SOCK_DGRAM)
    except OSError:
        return
    try:
        for key in keys:
            try:
                sender.sendto(b"!", MSG_DONTWAIT, _address(store_id, key))
            except OSError:
                pass  # nobody waits, or has not looked since the last one
    finally:
        sender.close()
