"""The words that start dibs once more: by the same Python, as a module."""

from __future__ import annotations

import sys


def own_program(module: str = "dibs") -> list[str]:
    """The words that start dibs, or another program among its modules. With -P: Python would otherwise look for `dibs`
    in the folder where the user stands first, and run what somebody put there."""
    return [sys.executable, "-P", "-m", module]
