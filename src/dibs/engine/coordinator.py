"""Reads, decides, writes if unchanged: many commands per write.

`run` loads the records that its commands need, decides the commands one after another over the same view, and commits
once. A command sees what earlier ones of the batch did. If a record that was read has changed meanwhile, it is loaded
and decided again. No command is answered before its commit.

**Every answer is true at one moment.** A commit compares all records that were read. So the first attempt may use the
records that the store remembers (`Store.recall`). An answer that writes nothing, such as a refusal or an error of a
rule, has no commit: if its records were remembered, or came from more than one read, they are read once more and
compared. Versions never repeat, so equal versions mean that nothing changed in between.

**A conflict costs only the commands in conflict.** Commands whose records did not change are committed without the
others. Those are tried again after a short pause, and finally refused because the store is too busy.

**A doubt stays.** A commit without an answer may have been written. Deciding again finds out; until that succeeded,
every error for its commands says that the outcome is unknown, whatever failed last. For a caller that has gone
meanwhile nothing is decided anew: it may have been refused elsewhere. What its claim got is withdrawn, unless its
request key can ask for it.

**A store takes every decision**, however many records it compares and writes. It may say how many commands are good
for its speed in one commit (`batch_max`).

**A fault of one record costs only who needs it.** A record may be too long, damaged, or meet a fault of the store: then
the batch is halved until that command is alone. A store that cannot be used concerns everyone, and is asked once.

The coordinator is synchronous, and keeps no state that an answer depends on: the embedded client calls it directly, the
server through `engine/batcher.py`.
"""

from __future__ import annotations

import time

from dibs.base.cheap import Callable, Iterable, Sequence
from dibs.base.errors import DibsError, StoreUnavailable, Unavailable
from dibs.base.ids import new_fraction
from dibs.core import limits
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    Command,
    Free,
    Inspect,
    InspectSession,
    SetAcl,
    SetPool,
    Withdraw,
)
from dibs.core.decide import decide, keys_of
from dibs.core.draft import Decision, HandedOver, Missing, View
from dibs.core.events import Event
from dibs.core.outcomes import Outcome
from dibs.core.records import Stored
from dibs.stores.port import Conflict, Store, concerns_all

Result = Outcome | BaseException


class Contended(StoreUnavailable):
    """Other commands kept changing the same records. The store works; nothing of this command was written."""

    public = None


class CallerGone(Unavailable):
    """The caller hung up before its command was decided. Nothing was done."""


def _gone() -> CallerGone:
    return CallerGone("The caller hung up. Nothing was done.")


class StoreFailure(StoreUnavailable):
    """A commit failed in a way it should not, and may have been written."""

    public = "The server's store failed in a way it should not. Who runs the server finds the reason in its log."


class _Batch:
    """One attempt to decide some commands: what was read, at which versions, and what to write."""

    def __init__(self, store: Store, vouch: Callable[[], Callable[[int], int]] | None, *, recalls: bool) -> None:
        self._store = store
        self._vouch = vouch
        self._get = store.recall if recalls else store.read
        self.has_recalled = False
        self.reads = 0
        self._view = View(now_ms=0)
        self._seen: list[set[str]] = []  # for each command decided, the keys it looked at
        self.versions: dict[str, int] = {}
        self.puts: dict[str, Stored | None] = {}
        self.events: list[Event] = []
        self.handed: list[HandedOver] = []

    def load(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        if self.versions:
            wanted = [key for key in wanted if key not in self.versions]
            # Before the first decision, all records can be read again, so that they are of one moment. If there are
            # many keys, or a decision already depends on them, they are compared at the end instead.
            if len(self._seen) > 1 or len(self.versions) > limits.REREAD_KEYS_MAX:
                self._view.is_of_one_moment = False
            elif self._view.is_of_one_moment:
                wanted = [*self.versions, *wanted]
        vouched = None if self._vouch is None else self._vouch()
        snapshot = self._get(wanted)
        self.reads += 1
        if snapshot.is_recalled:
            self.has_recalled = True
            self._view.is_of_one_moment = False
        self._view.now_ms = max(self._view.now_ms, snapshot.now_ms)
        if vouched is not None:
            self._view.vouched_ms = vouched(self._view.now_ms)
        versions, records = self.versions, self._view.records
        for key, found in snapshot.records.items():
            versions[key] = found.version
            records[key] = found.record
        if not self._view.is_of_one_moment:
            self._view.load = self.load  # nothing is gained by deciding from the beginning

    def decide(self, command: Command) -> Result:
        """The outcome. An error of a rule is an answer, too, and depends on the records it read: a fault in one rule
        must not fail the whole batch, nor must a record that cannot be read. Raises errors of the whole store."""
        seen = self._view.seen = set()
        self._seen.append(seen)
        decision: Decision | None = None
        try:
            while decision is None:
                try:
                    decision = decide(self._view, command)
                except Missing as missing:
                    self.load(missing.keys)
        except Exception as error:
            seen.intersection_update(self.versions)  # without the one that failed
            if concerns_all(error):
                raise
            return error
        self._view.records.update(decision.writes)  # the next command of the batch sees them
        self.puts.update(decision.writes)
        self.events += decision.events
        self.handed += decision.handed
        return decision.outcome

    def commit(self) -> int | None:
        """Return the number of the store's last event after a write, else None. Raises Conflict."""
        if self.puts or self.events:
            expect = {key: self.versions[key] for key in self._looked()}
            try:
                return self._store.commit(expect, self.puts, self.events)
            except (Conflict, DibsError):
                raise
            except Exception as error:
                _log(error)
                raise StoreFailure(f"The store failed in a way it should not: {error!r}.", unknown=True) from error
        if not self._view.is_of_one_moment and self._changed():
            raise Conflict
        return None

    def overtaken(self) -> list[int]:
        """Return which of the commands, in the order they were decided, read a record that others have changed."""
        changed = self._changed()
        return [at for at, seen in enumerate(self._seen) if not changed.isdisjoint(seen)]

    def _changed(self) -> set[str]:
        looked = self._looked()
        records = self._store.read(looked).records
        return {key for key in looked if records[key].version != self.versions[key]}

    def _looked(self) -> set[str]:
        """The keys of records that are compared: all that a decision looked at or writes. Others that were loaded are
        not."""
        return set(self.puts).union(*self._seen)


def _log(fault: Exception) -> None:
    from dibs.base.logger import log  # a command that claims does without `logging`

    log.error("a fault of dibs: %s", fault, exc_info=fault)


# Commands that cannot recognise their own effect: they must not be decided again after a commit without an answer.
_ONCE = (Break, Free, SetAcl, SetPool)
LOOKS = frozenset((Inspect, InspectSession))


def _is_look(command: Command) -> bool:
    """Return whether it writes nothing, as a rule."""
    return type(command) in LOOKS or (type(command) is Acquire and command.lease_id is not None)


def undo_of(command: Acquire | AcquireAny | AcquireAll) -> Withdraw:
    """The withdrawal of a claim whose caller has gone, and did not say that it gives up. With a request key it may ask
    again: only its place ends."""
    names = (command.name,) if isinstance(command, Acquire) else command.names
    undo = Withdraw(ns=command.ns, principal=command.principal, names=names)
    if command.request_key is None:
        return undo.replace(fresh_lease_id=command.fresh_lease_id)
    return undo.replace(ticket_id=command.ticket_id, ticket=getattr(command, "ticket", 0))


class _CommitGroup:
    """Commands that one commit is to answer, by their index. Some leave it on the way: those in `left` are tried later,
    without the others, and those in `failed` have an answer without a decision."""

    def __init__(self, commands: Sequence[Command], todo: list[int], doubts: dict[int, StoreUnavailable]) -> None:
        self.commands = commands
        self.todo = todo
        self.left: list[int] = []
        self.failed: dict[int, BaseException] = {}
        self._instead: dict[int, Command] = {}  # what is decided for callers that have gone
        self._doubts = doubts  # of all groups: what a commit without an answer may have written
        self._unknown = 0  # how many commits had no answer
        if doubts:
            self._fail_doubted()

    def keys(self) -> dict[str, None]:
        found: dict[str, None] = {}
        for index in self.todo:
            found.update(dict.fromkeys(keys_of(self.commands[index])))
        return found

    def decide(self, batch: _Batch) -> dict[int, Result]:
        return {
            index: self.failed.get(index) or batch.decide(self._instead.get(index) or self.commands[index])
            for index in self.todo
        }

    def answers(self, decided: dict[int, Result]) -> dict[int, Result]:
        """The results that callers get of what was decided."""
        if not self._instead:
            return decided
        return {index: _gone() if index in self._instead else result for index, result in decided.items()}

    def find_gone(self, is_gone: Callable[[Command], bool]) -> bool:
        """Note the callers that have gone. Returns whether there are new ones."""
        known = len(self.failed) + len(self._instead)
        for index in self.todo:
            command = self.commands[index]
            if index not in self.failed and index not in self._instead and is_gone(command):
                undo = undo_of(command) if isinstance(command, Acquire | AcquireAny | AcquireAll) else None
                if index in self._doubts and undo is not None and undo.fresh_lease_id is not None:  # no key asks for it
                    self._instead[index] = undo
                else:
                    self.failed[index] = _gone()
        return len(self.failed) + len(self._instead) > known

    def put_off_overtaken(self, batch: _Batch) -> bool:
        """Put the commands off that read what others have changed, so that the rest can be committed. False if that
        would be none or all of them."""
        if len(self.todo) < 2:
            return False
        decided = [index for index in self.todo if index not in self.failed]
        late = [decided[at] for at in batch.overtaken()]
        if not late or len(late) == len(decided):
            return False
        self.left += late
        self.todo = [index for index in self.todo if index not in late]
        return True

    def halve(self) -> None:
        """Put half of the commands off: the error is that of one command, and nobody knows which."""
        half = len(self.todo) // 2
        self.left += self.todo[half:]
        self.todo = self.todo[:half]
        self._unknown = 0

    def may_find_out(self, error: Exception) -> bool:
        """Return whether to decide again because the write may have happened: an acquire finds its lease id then, a
        release its end. Not for ever."""
        if not isinstance(error, StoreUnavailable) or not error.unknown:
            return False
        self._unknown += 1
        for index in self.todo:
            if index not in self.failed:  # those were not in the write
                self._doubts.setdefault(index, error)
        self._fail_doubted()
        return self._unknown <= limits.UNKNOWN_RETRIES_MAX

    def _fail_doubted(self) -> None:
        for index in self.todo:
            if index in self._doubts and index not in self.failed and isinstance(self.commands[index], _ONCE):
                self.failed[index] = self._doubts[index]


class Coordinator:
    """For any thread that may sleep for `pause`. Right after each commit, `on_commit` gets the committed events in
    order and the number of the store's last event, and `on_handed` the waiters that were given their jobs. A commit
    whose reply was lost is not reported: a caller that must not miss one follows the store's events. `is_gone` says of
    a command that its caller waits no more: it is not decided.

    `vouch` is called before records are read, and what it returns is called with the time that was read with them. It
    says up to when deadlines are known to be reached (`engine/liveness.py`). Without a server that is the time."""

    def __init__(
        self,
        store: Store,
        on_commit: Callable[[Sequence[Event], int], None] | None = None,
        on_handed: Callable[[Sequence[HandedOver]], None] | None = None,
        *,
        vouch: Callable[[], Callable[[int], int]] | None = None,
        pause: Callable[[float], None] = time.sleep,
        fraction: Callable[[], float] = new_fraction,
        is_gone: Callable[[Command], bool] | None = None,
    ) -> None:
        self.store = store
        self._is_gone = is_gone
        self._on_commit = on_commit
        self._on_handed = on_handed
        self._vouch = vouch
        self._sleep = pause
        self._fraction = fraction
        self._asks = 0  # how many of the next batches ask the store for all they need

    def one(self, command: Command) -> Outcome:
        result = self.run((command,))[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def run(self, commands: Sequence[Command]) -> list[Result]:
        """One result per command, in order. Errors are results, too: the store may fail after it has written some of
        the commands, or with some in doubt, and an error for all of them would say that nothing was done."""
        results: dict[int, Result] = {}
        doubts: dict[int, StoreUnavailable] = {}  # commands that a commit without an answer may have written
        todo = list(range(len(commands)))
        size = self.store.capabilities.batch_max
        while todo:
            group = _CommitGroup(commands, todo[:size], doubts)
            try:
                self._run(group, results)
                todo = sorted(group.left) + todo[size:]
            except Exception as error:
                if not isinstance(error, DibsError):  # raised by a listener to commits
                    _log(error)
                results.update({index: error for index in todo if index not in results})
                break
        for index, doubt in doubts.items():
            if isinstance(results[index], BaseException):
                results[index] = doubt
        return [results[index] for index in range(len(commands))]

    def _run(self, group: _CommitGroup, results: dict[int, Result]) -> None:
        """Answer the commands of a group, but for those that leave it for later."""
        for conflicts in range(limits.CONFLICT_RETRIES_MAX):
            batch = self._next_batch(group.commands, conflicts)
            try:
                decided = self._decide(group, batch)
                if decided is None:
                    continue
                last_seq = batch.commit()
            except Conflict:
                self._give_way(group, batch, conflicts)
            except Exception as error:
                if self._is_answer(group, error):
                    results[group.todo[0]] = error
                    return
            else:
                results.update(group.answers(decided))
                self._report(batch, last_seq)
                return
        busy = Contended("The store is too busy: others kept changing the same records. Try again.")
        results.update(dict.fromkeys(group.todo, busy))

    def _next_batch(self, commands: Sequence[Command], conflicts: int) -> _Batch:
        """Begin with what the store remembers; but looks write nothing, so they would be read anyway."""
        recalls = not conflicts and not self._asks and not all(map(_is_look, commands))
        if self._asks and not conflicts:
            self._asks -= 1
        return _Batch(self.store, self._vouch, recalls=recalls)

    def _decide(self, group: _CommitGroup, batch: _Batch) -> dict[int, Result] | None:
        """Return the outcomes. None if a caller has gone meanwhile: if a rule needs more records, all are read anew,
        which may take long."""
        batch.load(group.keys())
        is_gone = self._is_gone
        if is_gone is not None:
            group.find_gone(is_gone)
        decided = group.decide(batch)
        return None if is_gone is not None and batch.reads > 1 and group.find_gone(is_gone) else decided

    def _give_way(self, group: _CommitGroup, batch: _Batch, conflicts: int) -> None:
        """Others have changed what was read. Those in conflict pause for a random time, and not after the first
        conflict: they must spread out."""
        if batch.has_recalled:
            # What the store remembered was old. Others write these records: ask for them for a while.
            self._asks = limits.RECALL_PAUSE
        elif not group.put_off_overtaken(batch) and conflicts:
            self._sleep(self._fraction() * min(2**conflicts, limits.CONFLICT_PAUSE_MS_MAX) / 1000)

    def _is_answer(self, group: _CommitGroup, error: Exception) -> bool:
        """Return whether the error is the answer of the only command. Otherwise the group is tried again, or half of
        it. Raises an error that is everyone's."""
        goes_on = group.may_find_out(error)
        if concerns_all(error) and not isinstance(error, StoreFailure):
            if not goes_on:
                raise error
        elif len(group.todo) > 1:
            group.halve()
        else:
            return not goes_on
        return False

    def _report(self, batch: _Batch, last_seq: int | None) -> None:
        if last_seq is not None and self._on_commit is not None:
            self._on_commit(batch.events, last_seq)
        if batch.handed and self._on_handed is not None:
            self._on_handed(batch.handed)


# For whoever has a store and neither a server's batches nor a client's transport: administration, archives, webhooks.


def run_one(store: Store, command: Command) -> Outcome:
    return Coordinator(store).one(command)


def run_all(store: Store, commands: Sequence[Command]) -> list[Result]:
    return Coordinator(store).run(commands)
