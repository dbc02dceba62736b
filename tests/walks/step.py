"""One step of a walk."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """In short, with a checksum of all that is told; and all of it."""

    line: str
    told: str
