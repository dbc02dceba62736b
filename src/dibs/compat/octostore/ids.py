"""The ids that OctoStore shows, made from what dibs has: a user is a principal, a holder is a user or a session."""

from __future__ import annotations

import hashlib

_USER = b"dibs octostore user\0"
_HOLDER = b"octostore.public-lock-holder.v1\0"


def user_id(principal: str, namespace: str | None) -> str:
    """The id of a principal. It says nothing about the name."""
    return _uuid(hashlib.sha256(_USER + f"{namespace or ''}/{principal}".encode()).digest())


def holder_id(internal: str) -> str:
    """The id that is shown of whoever holds a lock: one-way, because a session's own id is a proof."""
    raw = bytes.fromhex(internal.replace("-", ""))
    return _uuid(hashlib.sha256(_HOLDER + raw).digest())


def _uuid(digest: bytes) -> str:
    """A UUID of version 8: custom."""
    raw = bytearray(digest[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
