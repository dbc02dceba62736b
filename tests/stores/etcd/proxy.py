"""A proxy for HTTP/2 that loses, cuts and garbles, one call at a time."""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

from dibs.stores.etcd.http2 import DATA, END_STREAM, HEADERS
from tests.faults.proxy import Fault, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator


class GrpcProxy(Proxy):
    """Calls come one after another on a connection. The frames that belong to no call pass at once."""

    def _serve(self, near: socket.socket) -> None:
        far = self._connected()
        request = reply = b""
        fault = Fault.NONE
        try:
            while not self._over.is_set():
                ready = select.select([near, far], [], [], 0.1)[0]
                if near in ready:
                    sent = near.recv(1 << 20)
                    if ends(sent, DATA):
                        request, reply, fault = sent, b"", self.fault(sent)
                    if not sent or fault is Fault.REQUEST_LOST:
                        return
                    far.sendall(sent)
                if far in ready:
                    got = far.recv(1 << 20)
                    reply += got
                    if not got:
                        return
                    if fault is Fault.NONE:
                        near.sendall(got)
                    elif ends(reply, HEADERS) and not self._answer(near, request, reply, fault):
                        return
        except OSError:
            pass  # one side is gone; the close below tells the other
        finally:
            near.close()
            far.close()


def ends(data: bytes, kind: int) -> bool:
    """Whether a frame of this kind ends a call."""
    return any(each == kind and flags & END_STREAM for each, flags in frames(data))


def frames(data: bytes) -> Iterator[tuple[int, int]]:
    at = 24 if data.startswith(b"PRI ") else 0
    while at + 9 <= len(data):
        yield data[at + 3], data[at + 4]
        at += 9 + int.from_bytes(data[at : at + 3])
