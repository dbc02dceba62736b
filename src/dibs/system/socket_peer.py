"""The user at the other end of a Unix socket. The kernel recorded it when the client connected."""

from __future__ import annotations

import sys
from typing import Protocol

from dibs.base.cheap import socket

_UID = slice(4, 8)  # in `ucred` after the pid, in `xucred` after the version
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES = 0, 1, 76  # macOS; Python has no names for them


class Connected(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def peer_uid(connection: Connected) -> int:
    """-1 if the kernel does not say."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        elif sys.platform == "darwin":
            raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        else:
            return -1
    except OSError:
        return -1
    return int.from_bytes(raw[_UID], sys.byteorder)
