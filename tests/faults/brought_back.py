"""Faults on record, brought back one at a time: each is a few lines that take its mending away while a test runs.

The simulation finds each within `OPERATIONS`, unless it is said not to. What is replaced is named: a change that makes
a patch pointless fails.
"""

from __future__ import annotations

import inspect as source
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.core.claims import acquire, inspect, several, withdraw
from dibs.core.commands import AcquireAll, Inspect, Transfer, Withdraw
from dibs.core.holds import endings, expiry
from dibs.core.holds.proof import held_by, not_current
from dibs.core.records import RELEASED
from dibs.core.waiting.queue import present_lock
from dibs.engine import batcher, coordinator, decider, liveness, sweeper, tally, waiters
from tests.rules import put_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from dibs.core.draft import Draft

    Patch = Callable[[pytest.MonkeyPatch], None]


class Fault(NamedTuple):
    """`settings` make it likely: the fault is found in fewer operations. `is_found`: by the simulation."""

    id: str
    is_found: bool
    bring_back: Patch
    settings: dict[str, Any]

    @property
    def what(self) -> str:
        return (self.bring_back.__doc__ or "").strip()


FAULTS: list[Fault] = []
OPERATIONS = 100_000


def fault(id: str, *, is_found: bool = True, **settings: Any) -> Callable[[Patch], Patch]:
    def note(patch: Patch) -> Patch:
        FAULTS.append(Fault(id, is_found, patch, settings))
        return patch

    return note


def rewrite(patch: pytest.MonkeyPatch, owner: Any, name: str, *changes: tuple[str, str]) -> None:
    """Replace parts of a function's text."""
    function = getattr(owner, name)
    text = "from __future__ import annotations\n" + textwrap.dedent(source.getsource(function))
    for old, new in changes:
        assert old in text, f"{name} has changed: this fault must be brought back in another way"
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(text, name, "exec"), vars(source.getmodule(function)), made)
    patch.setattr(owner, name, made[name])


@fault("F-003")
def _(patch: pytest.MonkeyPatch) -> None:
    """A place whose caller hung up is withdrawn, though it waits at another server."""
    rewrite(patch, waiters.Waiters, "_withdraw", ("not waiter.moves and ", ""))


@fault("F-006", jobs=2)
def _(patch: pytest.MonkeyPatch) -> None:
    """A repeat of a claim sets the TTL of its lease."""
    later = "until_ms > own_deadline_ms(draft, mine)"
    rewrite(patch, acquire, "grant_again", ("max(mine.ttl_ms, ask.ttl_ms)", "ask.ttl_ms"), (later, "True"))


@fault("F-007")
def _(patch: pytest.MonkeyPatch) -> None:
    """A withdrawal ends a hold that another ask of the session was told of."""
    rewrite(patch, withdraw, "withdraw", ("mine.used or ", ""))
    put_rule(patch, Withdraw, lambda rule: withdraw.withdraw)


@fault("F-008")
def _(patch: pytest.MonkeyPatch) -> None:
    """Claims of callers that hung up are decided."""
    rewrite(patch, coordinator._CommitGroup, "find_gone", ("and is_gone(command)", "and False"))


@fault("F-009", clients=12)
def _(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats and releases wait in the queue of claims."""

    class Everything(frozenset[Any]):
        def __contains__(self, kind: object) -> bool:
            return True

    patch.setattr(batcher, "_LATER", Everything())


@fault("F-012", jobs=1, clients=6)
def _(patch: pytest.MonkeyPatch) -> None:
    """A look shows a hold as ended although its end is not written."""
    rewrite(patch, inspect, "inspect", ("if may_go_on(draft, holder)", "if False"))
    put_rule(patch, Inspect, lambda rule: inspect.inspect)


@fault("F-020", jobs=1)
def _(patch: pytest.MonkeyPatch) -> None:
    """A break is decided again after a commit without an answer."""
    patch.setattr(coordinator, "_ONCE", ())


@fault("F-021", servers=1)
def _(patch: pytest.MonkeyPatch) -> None:
    """A store or process that stands still for a second counts as an outage."""
    rewrite(patch, liveness.Liveness, "_note_silence", ("limits.OUTAGE_MS_MIN", "limits.PULSE_LATE_MS"))


@fault("F-023", clients=12)
def _(patch: pytest.MonkeyPatch) -> None:
    """A look fails if a claim of the same batch cannot be written."""
    rewrite(patch, decider.Decider, "_run", ("type(commands[at]) in LOOKS", "False"))


@fault("F-024", clients=2)
def _(patch: pytest.MonkeyPatch) -> None:
    """Servers write no pulse while there are only sessions."""
    patch.setattr(sweeper, "is_idle", lambda store: not store.scan("lock/", limit=1, live=True))


@fault("F-028")
def _(patch: pytest.MonkeyPatch) -> None:
    """A session that ends before a starting server has counted it is counted down."""
    ended = "hash((event.session, event.principal, event.owner, event.began_ms))"
    counted_down = f"self._open.pop() if self._open and {ended} not in self._open else self._open.discard("
    rewrite(patch, tally.Tally, "_fold", ("self._open.discard(", counted_down))


@fault("F-029")
def _(patch: pytest.MonkeyPatch) -> None:
    """The jobs of an ended session stay held while its server cannot vouch for the time."""
    for module in (inspect, expiry):
        patch.setattr(module, "may_go_on", lambda draft, holder: True)


@fault("F-111", jobs=2)
def _(patch: pytest.MonkeyPatch) -> None:
    """A repeated transfer is not recognised."""

    def make(rule: Any) -> Any:
        def transfer(draft: Draft, command: Transfer) -> Any:
            lock = present_lock(draft, command.ns, command.name)
            if held_by(lock, command.fresh_lease_id, None, None) is not None:
                return not_current(draft, lock, None)
            return rule(draft, command)

        return transfer

    put_rule(patch, Transfer, make)


@fault("F-113", jobs=3)
def _(patch: pytest.MonkeyPatch) -> None:
    """A repeated claim of several jobs, one of which was broken, is refused, and leaves the others held."""
    rewrite(patch, several, "_refused", ("left=tuple(left), ", ""))


@fault("F-130")
def _(patch: pytest.MonkeyPatch) -> None:
    """A claim that may be written is told as not done when its caller hangs up."""
    rewrite(patch, coordinator.Coordinator, "run", ("doubts.items()", "()"))


@fault("F-131", jobs=3)
def _(patch: pytest.MonkeyPatch) -> None:
    """A late repeat of a claim of several jobs lets go of jobs that their owner relies on."""
    refused = several._refused

    def giving_back(draft: Draft, command: AcquireAll, *how: Any) -> Any:
        answer = refused(draft, command, *how)
        for each in answer.left:
            endings.end_hold(draft, draft.lock(command.ns, each.name), each.lease, how=RELEASED, at_ms=draft.now_ms)
        return answer.replace(left=())

    patch.setattr(several, "_refused", giving_back)


@fault("F-380")
def loses_slow_movers(patch: pytest.MonkeyPatch) -> None:
    """A waiter whose move to another server takes more than 2 s loses its place."""
    last: dict[object, waiters.Waiter] = {}  # of each ask, its last request at any server
    ask, withdraw = waiters.Waiters.ask, waiters.Waiters._withdraw

    def name_of(waiter: waiters.Waiter) -> object:
        return waiter.command.request_key or waiter.command.ticket_id

    def noted(here: waiters.Waiters, *terms: Any, **more: Any) -> waiters.Waiter:
        waiter = ask(here, *terms, **more)
        last[name_of(waiter)] = waiter
        return waiter

    def leave(here: waiters.Waiters, waiter: waiters.Waiter) -> None:
        if last.get(name_of(waiter), waiter) is waiter:
            waiter.moves = False
            withdraw(here, waiter)

    def withdraw_later(here: waiters.Waiters, waiter: waiters.Waiter) -> None:
        here._later(2.0 if waiter.moves else 0.0, leave, here, waiter)

    patch.setattr(waiters.Waiters, "ask", noted)
    patch.setattr(waiters.Waiters, "_withdraw", withdraw_later)


@fault("F-256", without=frozenset())
def _(patch: pytest.MonkeyPatch) -> None:
    """What an older copy of the store lacks stays counted."""
    rewrite(patch, tally.Tally, "catch_up", ("events[0].seq > self._seen_seq + 1", "False"))


@fault("F-260", is_found=False)
def _(patch: pytest.MonkeyPatch) -> None:
    """The error of a look that is asked again is told to all of its batch."""
    told = "results = [again] * len(commands) if isinstance(again, BaseException) else results; results[at] = again"
    rewrite(patch, decider.Decider, "_run", ("results[at] = again", told))
