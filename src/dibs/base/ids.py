"""Ids: random ones, which only this file makes, and one-way names made from texts."""

from __future__ import annotations

import os

from dibs.base import cheap

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

    return binascii.b2a_base64(os.urandom(24), newline=False).decode().replace("+", "-").replace("/", "_")


def new_signing_secret() -> str:
    """Return what signs the deliveries of a webhook."""
    return os.urandom(32).hex()


def new_number() -> int:
    """From 1 to 2**63 - 1: a name, where only a number can be kept."""
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


def new_fraction() -> float:
    """At least 0 and less than 1, for what must not happen everywhere at once."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def digest(*parts: str) -> str:
    """32 hexadecimal digits, different for different parts. Halves of surrogate pairs count like anything else."""
    text = "\0".join([f"{len(part)}:{part}" for part in parts])
    return cheap.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest_id(*parts: str) -> str:
    """The same, written like the ids that dibs gives out."""
    return dashed(digest(*parts))


def dashed(text: str) -> str:
    """32 hexadecimal digits as a UUID has them."""
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# A client that found a token in its user's own folder does not send it to whatever listens: the server first proves
# that it has the token, or its hash, for this connection. A tokens file holds hashes, so the hash is the key.


def token_key(token: str) -> bytes:
    """Return what a server or a store keeps of a token: its SHA-256."""
    import hashlib  # only for those who have a token

    return hashlib.sha256(token.encode()).digest()


def proof_key_id(key: bytes) -> str:
    """A name for a key that does not reveal it."""
    return cheap.blake2b(b"dibs key id", key=key, digest_size=16).hexdigest()


def proof_of(key: bytes, challenge: str) -> str:
    """`challenge` has the client's fresh value, and the address it is connected to: no other server can answer."""
    return cheap.blake2b(b"dibs proof\0" + challenge.encode(), key=key, digest_size=32).hexdigest()


def is_id(text: str) -> bool:
    """Tell whether text is shaped like the ids that dibs gives out (a UUID)."""
    return (
        len(text) == 36
        and text[8] == text[13] == text[18] == text[23] == "-"
        and text.count("-") == 4
        and not text.replace("-", "").strip("0123456789abcdefABCDEF")  # nothing but these
    )
