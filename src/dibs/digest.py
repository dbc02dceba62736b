"""A short one-way name for a text. Not `hashlib`, whose import costs more than what is done with it here."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # another Python than those we know
    from hashlib import blake2b


def digest(*parts: str) -> str:
    """32 hexadecimal digits, different for different parts. Halves of surrogate pairs count like anything else."""
    text = "\0".join([f"{len(part)}:{part}" for part in parts])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest_id(*parts: str) -> str:
    """The same, written like the ids that dibs gives out."""
    text = digest(*parts)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
