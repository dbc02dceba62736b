"""Checks that a server is the user's own before the token of that server is sent. Pure, except `is_ours`.

Any process can listen on a port of this machine when the server is down. So the listener must prove, on the same
connection, that it knows the token: it answers a fresh value and the connected address with a digest under the token's
hash. A stranger that forwards the challenge to the real server gets an answer for another address. On a Unix socket
the kernel says which user listens.
"""

from __future__ import annotations

import os

from dibs.base.errors import ServerUnreachable
from dibs.base.http1 import request_bytes
from dibs.base.ids import new_id, proof_key_id, proof_of, token_key
from dibs.wire.parts import challenge_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.base.http1 import RawReply
    from dibs.client.urls import ServerAddress


class Challenge:
    """One challenge and its only right answer. `peer` is the connected address, from the kernel."""

    def __init__(self, address: ServerAddress, token: str, peer: Any) -> None:
        self._address = address
        key, nonce = token_key(token), new_id()
        self._answer = proof_of(key, challenge_text(nonce, peer))
        target = f"{address.path}/proof?key={proof_key_id(key)}&nonce={nonce}"
        headers = {"Host": address.authority, "Accept": "application/json"}
        self.request = request_bytes("GET", target, headers, None)

    def check(self, reply: RawReply) -> None:
        right = f'"{self._answer}"'.encode()
        if reply.status != 200 or right not in reply.body or not reply.again:
            raise not_ours(self._address)


def is_ours(uid: int) -> bool:
    """Tell whether a process of this user id may get the user's token: the user's own, or root's."""
    return uid in (os.geteuid(), 0)


def not_ours(address: ServerAddress) -> ServerUnreachable:
    return ServerUnreachable(
        f"What listens at {address.url} is not your own server, so your token was not sent. Do not begin the "
        f"work. For another server, set DIBS_TOKEN."
    )
