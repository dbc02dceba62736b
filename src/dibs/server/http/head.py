"""What the headers of a request mean for an operation on a job, worked out once. A client sends the same ones with
every request, so the fast lane keeps what it parsed for the next one.

What is kept does not depend on the server's state: a credential is kept as its hash, and looked up with every request,
because it may be revoked. Only headers of callers that were accepted are kept, so strangers cannot fill the memory.
They hold credentials, and are never shown or logged. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.engine.auth import digest_of
from dibs.server.http.request import NAMES_HEADER, is_acceptable

if TYPE_CHECKING:
    from collections.abc import Mapping

STORE_HEADER = b"x-dibs-store"  # the store that a client of several servers expects
SERVERS_HEADER = b"x-dibs-servers"  # from a client that can ask other servers
KEY_HEADER = b"idempotency-key"
NAMESPACE_HEADER = b"x-dibs-namespace"
LINE_END, END = b"\r\n", b"\r\n\r\n"
KEPT_MAX = 512  # a few for each kind of client: the length of the body is one of the headers
KEPT_BYTES_MAX = 1024
_TERMS = frozenset((STORE_HEADER, KEY_HEADER, NAMESPACE_HEADER, NAMES_HEADER))


class RequestHead:
    __slots__ = ("digest", "has_terms", "headers", "is_acceptable", "may_move")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.digest = digest_of(headers.get(b"authorization"))  # not whether it is valid: that may change
        # The type and length of its body. If not, `check_head` says what is wrong.
        self.is_acceptable = is_acceptable(headers)
        self.has_terms = not _TERMS.isdisjoint(headers)  # some header is an argument of the operation
        self.may_move = SERVERS_HEADER in headers


class KnownHeads:
    """Headers that the parser accepted in requests of the fast lane, as they came, from the end of the request line to
    the empty line; with the length of the body. For one server."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, RequestHead]] = {}

    def learn(self, block: bytes | None, length: int, head: RequestHead) -> None:
        if block is None or len(block) > KEPT_BYTES_MAX or KEY_HEADER in head.headers:
            return  # a key is new with every claim
        if len(self.known) >= KEPT_MAX:
            self.known.clear()  # whoever is still there is learnt again
        self.known[block] = (length, head)


def block_of(data: bytes, method: bytes, url: bytes, body: bytes) -> bytes | None:
    """The headers in `data`, if it is the request with this method, address and body and nothing else: no line before
    it, no line end that only a parser accepts, no second request."""
    line = b"%b %b HTTP/1.1" % (method, url)
    end = data.find(END, len(line))
    if not data.startswith(line + LINE_END) or data[end + len(END) :] != body or end < 0:
        return None
    block = data[len(line) : end]
    return block if block.count(b"\n") == block.count(LINE_END) else None
