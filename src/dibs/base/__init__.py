"""Tools that know nothing of the rules of dibs: errors, clock, ids, records, text, files."""

from __future__ import annotations


def build_kind() -> str:
    """Tell which build of dibs this is."""
    from dibs.base import ids  # a module that a compiled build has as machine code

    return "pure Python" if ids.__file__.endswith((".py", ".pyc")) else "compiled"
