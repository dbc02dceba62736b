"""Counts of one server since it started: plain integers, changed where an answer, a commit or an error passes once.

Commands and batches are counted by whoever decides, requests by the event loop, deliveries by the thread that delivers.
Events, commits and errors of the store are counted under a lock, because upkeep writes beside the batches. Any thread
may read, except requests. A reader may see a commit without its commands; it never sees a count fall. What is counted
is named by kinds of things: a job, an owner or other free text is never part of it.

`server/monitor/metric_table.py` makes samples for Prometheus from this; OctoStore's JSON is made from the same numbers.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

from dibs.base.clock import stopwatch_us, wall_ms
from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Command
from dibs.core.events import ACQUIRED, KINDS, OWNERSHIP_ENDS, Event
from dibs.core.limits import WRITE_FAILED_MS, WRITE_SLOW_MS
from dibs.core.outcomes import Outcome
from dibs.core.service.delivery import COUNTED
from dibs.stores.port import Busy
from dibs.wire.codes import OUTCOMES

Result = Outcome | BaseException

# Upper bounds of the buckets. Those of requests contain the bounds that OctoStore has.
REQUEST_S: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COMMIT_S: tuple[float, ...] = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)
LEASE_S: tuple[float, ...] = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
BATCH_SIZES: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
CLAIMS = (Acquire, AcquireAny, AcquireAll)
UNCOUNTED_MAX = 250
# The results of checking a signed token (`oidc/tokens.py`).
IDENTITY_CHECKS = ("accepted", "malformed", "issuer", "unknown_key", "signature", "time", "no_rule", "no_keys")
ABANDONED = "abandoned"
WAIT = "wait"  # counted as the verb of a claim that may wait in the queue
OTHER = "other"  # no verb of ours: an unknown address, or no request at all


class Histogram:
    """Counts values by size. `counts` has one more entry than `bounds`: for what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: list[float]) -> None:
        """Count many values. The list is sorted afterwards."""
        values.sort()
        reached = 0
        for index, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound)
            self.counts[index] += upto - reached
            reached = upto
        self.counts[-1] += len(values) - reached
        self.total += sum(values)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which that share is reached; infinity above all; 0.0 without values."""
        wanted = share * self.count
        reached = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            reached += count
            if reached and reached >= wanted:
                return bound
        return 0.0


class RequestCounts:
    """The requests of one verb: by class of status (index 2 is 2xx), and how long their answers took to begin. For the
    event loop only. A request leaves its duration behind, and many are counted at once: that costs less."""

    __slots__ = ("_new", "classes", "durations", "max_s", "min_s")

    def __init__(self) -> None:
        self._new: list[list[float]] = [[] for _ in range(6)]  # durations that are not counted yet
        self.classes = [0] * 6
        self.durations = Histogram(REQUEST_S)
        self.min_s = float("inf")  # if there was none
        self.max_s = 0.0

    def add(self, status: int, took_s: float) -> None:
        new = self._new[status // 100]
        new.append(took_s)
        if len(new) >= UNCOUNTED_MAX:
            self.counted()

    def counted(self) -> RequestCounts:
        """Return these counts, brought up to date: with all requests so far."""
        for index, new in enumerate(self._new):
            if new:
                self.classes[index] += len(new)
                self.durations.observe_all(new)
                self.min_s = min(self.min_s, new[0])
                self.max_s = max(self.max_s, new[-1])
                new.clear()
        return self

    def include(self, other: RequestCounts) -> None:
        self.classes = [ours + theirs for ours, theirs in zip(self.classes, other.classes, strict=True)]
        counts = zip(self.durations.counts, other.durations.counts, strict=True)
        self.durations.counts = [ours + theirs for ours, theirs in counts]
        self.durations.total += other.durations.total
        self.min_s, self.max_s = min(self.min_s, other.min_s), max(self.max_s, other.max_s)


class RequestsByVerb(dict[str, RequestCounts]):
    """A verb that is asked for has counts from then on."""

    def __missing__(self, verb: str) -> RequestCounts:
        found = self[verb] = RequestCounts()
        return found


class Metrics:
    def __init__(self) -> None:
        self._commands: dict[type, dict[type, int]] = {}  # by the kind of its answer
        self._waited: Counter[type] = Counter()  # claims answered after they waited; below 0: they wait still
        self.abandoned = 0
        self.overloaded = 0
        self.batches = Histogram(BATCH_SIZES)
        self.commits = Histogram(COMMIT_S)
        self.events = Counter(dict.fromkeys(KINDS, 0))
        self.holds = Histogram(LEASE_S)
        self.waits = Histogram(LEASE_S)
        self.conflicts = self.busy = self.read_errors = self.write_errors = 0
        self._lock = threading.Lock()
        self._writing_since_us: dict[int, int] = {}  # by thread: commits under way, by `stopwatch_us`
        self.write_failed_us = 0  # the last commit failed then; 0: it succeeded
        self.stalls = self.outages_ms = 0
        self.requests = RequestsByVerb()
        self.connections = self.connections_open = self.turned_away = 0
        self.rate_limited = 0
        self.refused = {401: 0, 403: 0}  # requests, by their status
        self.identities = dict.fromkeys(IDENTITY_CHECKS, 0)  # signed tokens that were checked, by result
        self.deliveries = dict.fromkeys(COUNTED, 0)  # to webhooks
        self.started_ms = wall_ms()

    # Counting. All of it is called often.

    def decided(self, commands: Sequence[Command], results: Sequence[Result]) -> None:
        counts = self._commands
        for command, result in zip(commands, results, strict=True):
            try:
                counts[type(command)][type(result)] += 1
            except KeyError:
                counts.setdefault(type(command), {}).setdefault(type(result), 1)
        self.batches.observe(len(commands))

    def committed(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                self.events[event.kind] += 1
                if event.began_ms is not None:
                    took_s = (event.at_ms - event.began_ms) / 1000
                    if event.kind in OWNERSHIP_ENDS:
                        self.holds.observe(took_s)
                    elif event.kind == ACQUIRED:
                        self.waits.observe(took_s)

    def add(self, name: str) -> None:
        """One more of what the store says: `conflicts`, `busy`, `read_errors`, `write_errors`; or of `stalls`."""
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def writes(self) -> int:
        """This thread begins a commit. Returns the time of `stopwatch_us`."""
        began_us = self._writing_since_us[threading.get_ident()] = stopwatch_us()
        return began_us

    def wrote(self, took_us: int) -> None:
        with self._lock:
            self._writing_since_us.pop(threading.get_ident(), None)
            self.commits.observe(took_us / 1_000_000)

    def write_failed(self) -> None:
        """A commit of this server failed, and not because of another process's commit."""
        self.add("write_errors")
        self.write_failed_us = stopwatch_us()

    def kept_back(self, result: Result) -> None:
        """Do not count this answer to a claim: its caller waits in the queue, and is answered later."""
        self._waited[type(result)] -= 1

    def answered(self, result: Result) -> None:
        """Count the answer to a caller that waited. It comes from another caller's command."""
        self._waited[type(result)] += 1

    # Reading.

    def claims(self) -> dict[str, int]:
        counts = self.outcomes_of(*CLAIMS)
        for kind, count in self._waited.copy().items():
            counts[outcome_word(kind)] += count
        counts[ABANDONED] += self.abandoned
        return dict(counts)

    def is_write_blocked(self) -> bool:
        """Return whether the last commit failed a short while ago, or the one under way takes too long."""
        now_us = stopwatch_us()
        failed_us = self.write_failed_us
        since_us = min(list(self._writing_since_us.values()), default=now_us)
        if now_us - since_us > WRITE_SLOW_MS * 1000:
            return True
        return bool(failed_us) and now_us - failed_us < WRITE_FAILED_MS * 1000

    def outcomes_of(self, *commands: type) -> Counter[str]:
        counts: Counter[str] = Counter()
        for command in commands:
            for result, count in self._commands.get(command, {}).copy().items():
                if result is not Busy:  # those were decided again
                    counts[outcome_word(result)] += count
        return counts


def outcome_word(kind: type) -> str:
    """The word of an answer: the status of its document, or the code of its error."""
    if issubclass(kind, BaseException):
        code: str = getattr(kind, "code", "")
        return code or "internal_error"
    row = OUTCOMES.get(kind.__name__)
    return "internal_error" if row is None else row.word
