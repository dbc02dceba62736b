"""Which build is tested: the source, or the compiled one (scripts/dev/compile). And how long random tests search."""

from __future__ import annotations

import os

COMPILED = os.environ.get("DIBS_TEST_COMPILED") == "1"
SOAK = os.environ.get("DIBS_SOAK") == "1"


def tries(usual: int, soak: int | None = None) -> int:
    """Return how often a random test tries. The source is searched for wrong rules; the compiled build a quarter as
    long, for wrong code."""
    if SOAK:
        return soak or usual
    return max(2, usual // 4) if COMPILED else usual
