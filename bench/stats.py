"""Medians with spread, and ratios paired by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    def text(self, digits: int = 0) -> str:
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}..{self.high:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Ours divided by theirs, round by round. Whatever slows a whole round slows both, and cancels out."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if b > 0]
    return spread([a / b for a, b in pairs]) if pairs else None


def percentile(sorted_values: Sequence[float], percent: int) -> float:
    """Nearest rank; the values must be sorted and not empty."""
    rank = max(1, -(-len(sorted_values) * percent // 100))
    return sorted_values[rank - 1]
