"""The only file that makes random values."""

from __future__ import annotations

import os


def new_id() -> str:
    """A version 4 UUID as text, without the cost of importing `uuid`: lease ids, session ids."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_request_id() -> str:
    return "req_" + os.urandom(16).hex()


def new_token() -> str:
    """Names a command among all others, in letters and digits."""
    return os.urandom(12).hex()


def new_secret() -> str:
    """A bearer token: 32 random bytes."""
    return "dibs_" + os.urandom(32).hex()


def new_room_id() -> str:
    """The id of an election: 24 random bytes as 32 letters, digits, - and _."""
    import binascii

    text = binascii.b2a_base64(os.urandom(24), newline=False).decode()
    return text.replace("+", "-").replace("/", "_")


def new_fraction() -> float:
    """At least 0 and less than 1, for what must not happen everywhere at once."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
