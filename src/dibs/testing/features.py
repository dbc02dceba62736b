"""The features of which every simulated world has a random half, and how often each two of them met.

With all of them on, most requests are refused for one of the others before they come to what they are about. A fault
that lives where two features meet needs both, and little besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, product
from random import Random  # noqa: TID251 - a seed makes a run that can be repeated

FEATURES = (
    "access-lists",
    "attempts",
    "breaks",
    "ceilings",
    "claim-all",
    "claim-any",
    "closures",
    "dead-waiters",
    "delays",
    "done-marks",
    "groups",
    "keyless",  # claims without a request key
    "keys",  # a key that is used again after its lease has ended
    "lost-replies",
    "nested-sessions",
    "numbers",
    "other-ttls",
    "pools",
    "prefix-closures",
    "quotas",
    "share",
    "shared",
    "slots",
    "slow-moves",  # a waiter whose connection broke needs seconds to come to another server
    "smaller-pools",
    "steps",  # that change something outside, and are noted before and after
    "transfer",
    "trees",
    "two-asks",
)
PAIRS = list(combinations(FEATURES, 2))
NEAR_MS = 30_000  # a lease or a place of before has mostly ended after so long
TREE = "path:"

Pair = tuple[str, str]


def features_of(seed: str, without: Iterable[str] = ()) -> frozenset[str]:
    """The features that are on in the world of this seed. What is left out changes no other choice."""
    chance = Random(f"{seed} features")
    return frozenset(chance.sample(FEATURES, len(FEATURES) // 2)).difference(without)


class Meetings:
    """Two features meet where both had an effect on what one request is about, one soon after the other: its jobs, the
    tree that these are in, and its session."""

    def __init__(self) -> None:
        self.counts: Counter[Pair] = Counter()
        self._last_ms: dict[str, dict[str, int]] = {}

    def bore(self, features: Iterable[str], places: Iterable[str], now_ms: int) -> None:
        """A request had an effect on these jobs and sessions, and had these features, of which there may be none."""
        borne, met = set(features), set()
        for place in sorted({TREE if each.startswith(TREE) else each for each in places}):
            last_ms = self._last_ms.setdefault(place, {})
            near = {each for each, at_ms in last_ms.items() if now_ms - at_ms <= NEAR_MS}
            met.update([(min(pair), max(pair)) for pair in product(borne, near)])
            borne |= near
            last_ms.update(dict.fromkeys(features, now_ms))
        met.update(combinations(sorted(features), 2))
        self.counts.update([pair for pair in met if pair[0] != pair[1]])


def table(counts: Counter[Pair]) -> str:
    """Show how often each two met, the rarest first."""
    rows = sorted([(counts[pair], *pair) for pair in PAIRS])
    return "\n".join([f"{count:9,}  {one} + {other}" for count, one, other in rows])
