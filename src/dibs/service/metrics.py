"""What one server counts since it started: plain integers, changed where an answer, a commit or an error passes once.

Each part is changed by one thread at a time: commands, batches, events and commits by whoever decides, requests by the
event loop. Any thread may read. A reader may see a commit without its commands; it never sees a count fall. What is
counted is named by kinds of things: a job, an owner or other free text is never part of it.

`server/monitor/metric_table.py` makes samples for Prometheus from this; OctoStore's JSON is made from the same numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from dibs.clock import wall_ms
from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Release, Renew
from dibs.core.events import ACQUIRED, OWNERSHIP_ENDS
from dibs.core.outcomes import Queued
from dibs.stores.port import Busy
from dibs.wire.codes import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome

    Result = Outcome | BaseException

# Upper bounds of the buckets. Those of requests contain the bounds that OctoStore has.
REQUEST_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COMMIT_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)
LEASE_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
CLAIMS = (Acquire, AcquireAny, AcquireAll)
ABANDONED = "abandoned"
WAIT = "wait"  # a claim that may wait in line, as a verb
OTHER = "other"  # no verb of ours: an unknown address, or no request at all

_kind = attrgetter("kind")


class Histogram:
    """How many values there were, by size. `counts` has one more place than `bounds`: for what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which that share of the values is reached; infinity above all bounds. 0.0 if
        there are no values."""
        wanted = share * self.count
        reached = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            reached += count
            if reached and reached >= wanted:
                return bound
        return 0.0


class RequestCounts:
    """The requests of one verb: by class of status (index 2 is 2xx), and how long their answers took to begin."""

    __slots__ = ("classes", "durations", "max_s", "min_s")

    def __init__(self) -> None:
        self.classes = [0] * 6
        self.durations = Histogram(REQUEST_S)
        self.min_s = float("inf")
        self.max_s = 0.0

    @property
    def count(self) -> int:
        return sum(self.classes)

    @property
    def errors(self) -> int:
        return self.classes[4] + self.classes[5]

    def include(self, other: RequestCounts) -> None:
        """Add those of another verb."""
        self.classes = [ours + theirs for ours, theirs in zip(self.classes, other.classes, strict=True)]
        durations = self.durations
        durations.counts = [
            ours + theirs for ours, theirs in zip(durations.counts, other.durations.counts, strict=True)
        ]
        durations.total += other.durations.total
        self.min_s, self.max_s = min(self.min_s, other.min_s), max(self.max_s, other.max_s)

    def add(self, status: int, took_s: float) -> None:
        self.classes[status // 100] += 1
        self.durations.observe(took_s)
        if took_s > self.max_s:  # noqa: PLR1730 - three times as quick as max()
            self.max_s = took_s
        if took_s < self.min_s:  # noqa: PLR1730 - the same
            self.min_s = took_s


class Metrics:
    """The counts of one server, all of them 0 at its start."""

    def __init__(self) -> None:
        self._commands: Counter[tuple[type, type]] = Counter()
        self._waited: Counter[type] = Counter()  # claims answered after they waited; below 0: they wait still
        self.abandoned = 0
        self.overloaded = 0
        self.batches = Histogram(BATCH_SIZES)
        self.commits = Histogram(COMMIT_S)
        self.events: Counter[str] = Counter()
        self.holds = Histogram(LEASE_S)
        self.waits = Histogram(LEASE_S)
        self.conflicts = self.busy = self.read_errors = self.write_errors = 0
        self.stalls = 0
        self.outages_ms = 0
        self.requests: dict[str, RequestCounts] = {}
        self.connections = self.connections_open = self.turned_away = 0
        self.rate_limited = 0
        self.started_ms = wall_ms()

    # Counting. All of it is called often.

    def decided(self, commands: Sequence[Command], results: Sequence[Result]) -> None:
        """A batch was decided."""
        self._commands.update(zip(map(type, commands), map(type, results), strict=True))
        self.batches.observe(len(commands))

    def committed(self, events: Sequence[Event]) -> None:
        """A commit of this server wrote these events."""
        self.events.update(map(_kind, events))
        for event in events:
            if event.began_ms is not None:
                took_s = (event.at_ms - event.began_ms) / 1000
                if event.kind in OWNERSHIP_ENDS:
                    self.holds.observe(took_s)
                elif event.kind == ACQUIRED:
                    self.waits.observe(took_s)

    def parked(self) -> None:
        """The answer of a claim that was decided is kept back, because its caller waits in line."""
        self._waited[Queued] -= 1

    def answered(self, result: Result) -> None:
        """A caller that waited is answered, and not by a command of its own."""
        self._waited[type(result)] += 1

    def requests_of(self, verb: str) -> RequestCounts:
        found = self.requests.get(verb)
        if found is None:
            found = self.requests[verb] = RequestCounts()
        return found

    # Reading.

    def claims(self) -> dict[str, int]:
        """Claims answered, by the word of their answer."""
        counts = self._outcomes_of(CLAIMS)
        for kind, count in self._waited.copy().items():
            counts[outcome_word(kind)] += count
        counts[ABANDONED] += self.abandoned
        return dict(counts)

    def renewals(self) -> dict[str, int]:
        return dict(self._outcomes_of((Renew,)))

    def releases(self) -> dict[str, int]:
        return dict(self._outcomes_of((Release,)))

    def _outcomes_of(self, commands: Iterable[type]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (command, result), count in self._commands.copy().items():
            if command in commands and result is not Busy:  # those were decided again
                counts[outcome_word(result)] += count
        return counts


def outcome_word(kind: type) -> str:
    """The word of an answer: the status of its document, or the code of its error."""
    row = OUTCOMES.get(kind)
    if row is not None:
        return row.word
    code: str = getattr(kind, "code", "") if issubclass(kind, BaseException) else ""
    return code or "internal_error"
