"""A server's store, watched: each answer is a sign of life, each error is counted, and each commit is timed.

`engine/liveness.py` learns here when the store was asked and when it answered or failed, `engine/pace.py` how long
commits take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from dibs.base.clock import stopwatch_us
from dibs.base.errors import StoreBroken, StoreUnavailable
from dibs.core.events import Event
from dibs.core.records import Stored
from dibs.engine.liveness import Liveness
from dibs.engine.metrics import Metrics
from dibs.engine.pace import Pace
from dibs.stores.port import Busy, Conflict, RecordCorrupt, Snapshot, Store, StoreProxy

Answer = TypeVar("Answer")


class ObservedStore(StoreProxy):
    """A store whose answers are signs of life, and are counted. Pruning may take long, and says nothing."""

    def __init__(self, store: Store, liveness: Liveness, pace: Pace, metrics: Metrics) -> None:
        super().__init__(store)
        self._liveness = liveness
        self._pace = pace
        self._metrics = metrics

    def _ask(self, call: Callable[..., Answer], *args: object, **named: object) -> Answer:
        liveness, this = self._liveness, object()
        asked_ms = liveness.calls[this] = liveness.steady()
        try:
            answer = call(*args, **named)
            liveness.answered(asked_ms)
        except Busy:
            self._metrics.add("busy")
            raise
        except (Conflict, RecordCorrupt) as error:
            self._metrics.add("conflicts" if isinstance(error, Conflict) else "read_errors")
            liveness.answered(asked_ms)
            raise
        except (StoreUnavailable, StoreBroken):
            liveness.failed(asked_ms)
            if call == self.inner.commit:
                self._metrics.write_failed()
            else:
                self._metrics.add("read_errors")
            raise
        finally:
            liveness.calls.pop(this, None)  # not before the answer is noted: another thread may vouch meanwhile
        return answer

    # The proxy's way round costs two calls more, and every decision reads.
    def read(self, keys: Iterable[str]) -> Snapshot:
        return self._ask(self.inner.read, keys)

    def recall(self, keys: Iterable[str]) -> Snapshot:
        return self._ask(self.inner.recall, keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        began_us = self._metrics.writes()
        try:
            last_seq = self._ask(self.inner.commit, expect, puts, events)
        finally:
            took_us = stopwatch_us() - began_us
            self._pace.took(took_us)
            self._metrics.wrote(took_us)
        self._metrics.write_failed_us = 0
        return last_seq
