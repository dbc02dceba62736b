"""A terminal in this process, for what stands beside the real ones."""

from __future__ import annotations

from tests.cli.conftest import terminal

__all__ = ["terminal"]
