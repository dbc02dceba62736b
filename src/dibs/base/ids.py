"""The only file that makes random values."""

from __future__ import annotations

import os

_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}  # two bits of a UUID are fixed


def new_id() -> str:
    """A version 4 UUID as text, without the cost of importing `uuid`: lease ids, session ids."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:]}"


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


def new_signing_secret() -> str:
    """Return what signs the deliveries of a webhook."""
    return os.urandom(32).hex()


def new_fraction() -> float:
    """At least 0 and less than 1, for what must not happen everywhere at once."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
