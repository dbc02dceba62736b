"""Reads, decides, writes if unchanged: many commands per write.

`run` takes every command it is given, loads what they need, decides them one after another over the same view, and
commits once. A command sees what the ones before it in the batch did. If anything that was looked at has changed
meanwhile, all of it is loaded and decided again; nobody is answered before the commit that makes the answer true.

It is synchronous and holds no state but the store: the embedded client calls it directly, the server from the thread
that `service/batcher.py` keeps for it.
"""

from __future__ import annotations

from dibs.core.commands import Break, Free, SetAcl
from dibs.core.decide import decide, keys_of
from dibs.core.limits import CONFLICT_RETRIES_MAX, UNKNOWN_RETRIES_MAX
from dibs.core.view import Missing, View
from dibs.errors import DibsError, StoreUnavailable
from dibs.stores.port import Conflict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored
    from dibs.core.view import Decision, Handed
    from dibs.stores.port import Store


class _Batch:
    """One attempt at deciding some commands: what was read, at which versions, and what is to be written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._view = View(now_ms=0)
        self.versions: dict[str, int] = {}
        self.puts: dict[str, Stored | None] = {}
        self.events: list[Event] = []
        self.handed: list[Handed] = []

    def load(self, keys: Iterable[str]) -> None:
        wanted = [key for key in keys if key not in self.versions]
        snapshot = self._store.read(wanted)
        self._view.now_ms = max(self._view.now_ms, snapshot.now_ms)
        for key, found in snapshot.records.items():
            self.versions[key] = found.version
            self._view.records[key] = found.record

    def decide(self, command: Command) -> Outcome:
        decision = self._decide(command)
        self._view.apply(decision)
        self.puts.update(decision.writes)
        self.events += decision.events
        self.handed += decision.handed
        return decision.outcome

    def _decide(self, command: Command) -> Decision:
        while True:
            try:
                return decide(self._view, command)
            except Missing as missing:
                self.load(missing.keys)


class Coordinator:
    """One per store and process. Right after each commit, `on_events` is told what was committed, in order, and
    `on_handed` which waiters were given what they waited for. A commit whose reply was lost is not told: whoever must
    not miss one follows the store's events."""

    def __init__(
        self,
        store: Store,
        on_events: Callable[[Sequence[Event]], None] | None = None,
        on_handed: Callable[[Sequence[Handed]], None] | None = None,
    ) -> None:
        self.store = store
        self._on_events = on_events
        self._on_handed = on_handed

    def one(self, command: Command) -> Outcome:
        """The outcome of one command; raises what went wrong."""
        result = self.run((command,))[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def run(self, commands: Sequence[Command]) -> list[Outcome | BaseException]:
        """One result a command, in order: its outcome, or the exception that it alone met. Raises what all met."""
        failed: dict[int, BaseException] = {}
        unknown = 0
        for _ in range(CONFLICT_RETRIES_MAX):
            batch = _Batch(self.store)
            batch.load({key: None for command in commands for key in keys_of(command)})
            results = [self._attempt(batch, index, command, failed) for index, command in enumerate(commands)]
            try:
                self._commit(batch)
                return results
            except Conflict:
                continue
            except StoreUnavailable as error:
                # Did the write happen? Deciding again finds out: an acquire recognises its own fresh lease id, a
                # release its own ending. What cannot be recognised must not be done twice, and says so instead.
                unknown += 1
                if not error.unknown or unknown > UNKNOWN_RETRIES_MAX:
                    raise
                failed.update(
                    {
                        index: error
                        for index, command in enumerate(commands)
                        if isinstance(command, Break | Free | SetAcl)
                    }
                )
        raise StoreUnavailable("The store is too busy: others kept changing the same records. Try again.")

    def _attempt(
        self, batch: _Batch, index: int, command: Command, failed: dict[int, BaseException]
    ) -> Outcome | BaseException:
        if index in failed:
            return failed[index]
        try:
            return batch.decide(command)
        except DibsError:
            raise  # the store's: it concerns the whole batch
        except Exception as error:  # a fault of one rule must not take the batch down with it
            return error

    def _commit(self, batch: _Batch) -> None:
        if not batch.puts and not batch.events:
            return
        self.store.commit(batch.versions, batch.puts, batch.events)
        if self._on_events is not None:
            self._on_events(batch.events)
        if self._on_handed is not None and batch.handed:
            self._on_handed(batch.handed)
