"""The one door to the rules: `decide(view, command) -> Decision`.

Pure. Time comes in as `view.now_ms`, fresh ids with the command, records through the view. The same inputs give the
same decision, so every rule is tested in microseconds, replayed and explained. Where to read on:

    claims.py   who owns a job: acquire, renew, release, break
    expiry.py   when a hold is over: deadlines, outage credit, sweeping, forgetting
    replay.py   events folded back into ownership
"""

from __future__ import annotations

from dibs.core.claims import acquire, break_, inspect, release, renew, set_acl
from dibs.core.commands import Acquire, Beat, Break, Inspect, Release, Renew, SetAcl, Sweep
from dibs.core.expiry import beat, sweep
from dibs.core.records import META_KEY, PULSE_KEY, lock_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.view import Decision, View

_RULES: dict[type[Any], Callable[[View, Any], Decision]] = {
    Acquire: acquire,
    Renew: renew,
    Release: release,
    Break: break_,
    SetAcl: set_acl,
    Inspect: inspect,
    Sweep: sweep,
    Beat: beat,
}


def decide(view: View, command: Command) -> Decision:
    """The outcome of `command`, and the writes and events that make it so. May raise `Missing`."""
    return _RULES[type(command)](view, command)


def keys_of(command: Command) -> tuple[str, ...]:
    """The keys a decision will surely look at: a hint that saves a round trip. `Missing` finds the others."""
    if isinstance(command, Beat):
        return (PULSE_KEY, META_KEY)
    return (lock_key(command.ns, command.name), META_KEY)
