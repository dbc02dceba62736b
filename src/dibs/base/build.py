"""Which build of dibs this is."""

from __future__ import annotations


def build_kind() -> str:
    """All of `core` is Python files, or all of it is compiled."""
    from dibs.core import limits

    return "pure Python" if limits.__file__.endswith((".py", ".pyc")) else "compiled"
