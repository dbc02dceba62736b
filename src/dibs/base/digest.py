"""A short one-way name for a text, and a proof that somebody has the same token."""

from __future__ import annotations

from dibs.base.cheap import blake2b


def digest(*parts: str) -> str:
    """32 hexadecimal digits, different for different parts. Halves of surrogate pairs count like anything else."""
    text = "\0".join([f"{len(part)}:{part}" for part in parts])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest_id(*parts: str) -> str:
    """The same, written like the ids that dibs gives out."""
    text = digest(*parts)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# A client that found a token in its user's own folder does not send it to whatever listens: the server first proves
# that it has the token, or its hash, for this connection. A tokens file holds hashes, so the hash is the key.


def token_key(token: str) -> bytes:
    """Return what a server keeps of a token."""
    import hashlib  # only for a server's own user, who has found a token

    return hashlib.sha256(token.encode()).digest()


def proof_key_id(key: bytes) -> str:
    """Names a key and does not tell it."""
    return blake2b(b"dibs key id", key=key, digest_size=16).hexdigest()


def proof_of(key: bytes, challenge: str) -> str:
    """`challenge` is the client's fresh value, and where it takes itself to be connected to: so that nobody can have a
    server elsewhere answer it."""
    return blake2b(b"dibs proof\0" + challenge.encode(), key=key, digest_size=32).hexdigest()
