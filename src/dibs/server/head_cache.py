"""Headers that have been seen before need not be parsed again.

A client sends exactly the same headers with every request. Parsing them costs more than deciding the request. So when a
whole request came in one read and went through the fast lane, its head (everything between the request line and the
body) is remembered with the result of parsing it. The next request with the same head is parsed with two searches and a
look-up.

This is safe: only an ordinary head that the real parser accepted is remembered, the request line is checked by the
parser's own rules, and everything else goes to the parser unchanged, as if this file did not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.limits import HEAD_BYTES_MAX, HEADS_KEPT
from dibs.server.fast_lane import FastLaneProtocol

if TYPE_CHECKING:
    from typing import Any

# Characters of a path that need no closer look. A request with a query or fragment takes the general way.
_PLAIN = bytes(each for each in range(0x21, 0x7F) if each not in b"?#")
_END = b"\r\n\r\n"
_heads: dict[bytes, tuple[int, dict[bytes, bytes]]] = {}  # shared: many connections, few kinds of client


class HeadCacheProtocol(FastLaneProtocol):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._whole = b""  # the read that is being parsed, if a request begins with it; for `_learn`

    def data_received(self, data: bytes) -> None:
        if (
            self._receiving
            or self._deaf
            or self.access_log
            or self.peer
            or self._busy()
            or not self._take(data)
        ):
            self._whole = b"" if self._receiving or self._unread else data
            super().data_received(data)
            self._whole = b""

    def on_message_complete(self) -> None:
        if self._in_lane and self._whole:
            self._learn(self._whole)
        super().on_message_complete()

    def _take(self, data: bytes) -> bool:
        """Serve `data` if it is exactly one whole request with a known head."""
        end = data.find(_END)
        line_end = data.find(b"\r\n")
        known = _heads.get(data[line_end:end]) if 0 < line_end < end else None
        if known is None or len(data) != end + 4 + known[0] or self.flow.write_paused:
            return False
        method, _, rest = data[:line_end].partition(b" ")
        url, _, version = rest.partition(b" ")
        if version != b"HTTP/1.1" or url.translate(None, _PLAIN):
            return False
        if not self.route(method, url) or (known[0] and self._verb == "inspect"):
            return False
        self._found = known[1]
        self._in_lane = True
        self.begin_turn()
        self._body = data[end + 4 :]
        self.on_message_complete()
        return True

    def _learn(self, data: bytes) -> None:
        """Remember the head of a request that came in one read and took the lane."""
        end = data.find(_END)
        line_end = data.find(b"\r\n")
        length = len(self._body)
        head = data[line_end:end]
        if data[:line_end] != b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url):
            return  # an empty line came first, or something else that only the parser accepts
        if len(data) != end + 4 + length or len(head) > HEAD_BYTES_MAX // 16 or head in _heads:
            return
        if len(_heads) >= HEADS_KEPT:
            _heads.clear()
        _heads[head] = (length, self._found)
