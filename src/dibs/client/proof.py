"""Before the token of the user's own server is sent: is this that server? Pure but for `is_ours`.

Anybody may listen on a port of this machine when the server does not. So whoever listens must show, on the connection
that the token would go over, that it has the token already: it answers a fresh value, and the address we are connected
to, with a digest under the token's hash. A stranger that passes the question on to the real server gets an answer for
another address. On a Unix socket the kernel tells whose process listens.
"""

from __future__ import annotations

import os

from dibs.client.http1 import request_bytes
from dibs.digest import proof_key_id, proof_of, token_key
from dibs.errors import ServerUnreachable
from dibs.ids import new_id
from dibs.wire.parts import challenge_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.client.http1 import RawReply
    from dibs.client.urls import ServerAddress


class Challenge:
    """One question, and the only right answer to it. `peer` is what we are connected to, as the kernel says."""

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
    """Whether a process of this user may be given this user's token: one's own, or the administrator's."""
    return uid in (os.geteuid(), 0)


def not_ours(address: ServerAddress) -> ServerUnreachable:
    return ServerUnreachable(
        f"What listens at {address.url} is not your own server, so your token was not sent. Do not begin the "
        f"work. For another server, set DIBS_TOKEN."
    )
