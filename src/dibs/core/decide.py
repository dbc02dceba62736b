"""The only entry to the rules: `decide(view, command) -> Decision`.

Pure. Time is `view.now_ms`, fresh ids come with the command, records through the view. The same inputs give the same
decision, so every rule can be tested in microseconds, and replayed. The other files:

    claims.py     who owns a job: acquire, and how a job stands
    leases.py     keeping a job and letting it go: renew, release, transfer, break; freeing a parked job, access
                  lists, pools
    grants.py     the one way in which an owner is made, and how much the owners of one job may note together
    proof.py      what proves "that was me"; who may claim: access lists, through the tree
    exclusion.py  who stands in whose way: modes, slots, trees
    names.py      what a name may be; which names of a tree overlap
    overlap.py    the claims and places of a tree that overlap a name
    tree_claims.py  the claims of a tree, in pages
    expiry.py     when a hold is over: deadlines, outage credit, the one way in which a hold ends
    queue.py      who is served when, and the one way in which a waiter is given the job
    groups.py     of a group only the newest waits
    tickets.py    places in a line; a refused ask that counts as waiting; what an owner is told of those who wait
    deadlock.py   would waiting ever end; places that a loss of their session closed a circle with
    several.py    the first free of several; all or none
    withdraw.py   what an ask is, the one way in which a claim is undone, and what refuses its late copies
    closures.py   maintenance stops: jobs that nobody is granted for a while
    sessions.py   one run of one worker, and what ends with it
    webhooks.py   making and removing webhooks, and which server delivers
    delivery.py   what a webhook is sent, in which order, and when it is tried again
    credentials.py  making, replacing and revoking tokens
    quota.py      how much a principal has, for those that have a limit
    upkeep.py     what time brings: sweeping, forgetting; counting anew; a store that is being moved; outages, which
                  are when no server could serve: pulses, and how a gap is noted
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable
from dibs.core import commands, records
from dibs.core.claims import acquire, inspect
from dibs.core.commands import Command
from dibs.core.draft import Decision, Draft, View
from dibs.core.names import in_tree
from dibs.core.outcomes import Deadlock, Outcome, Queued
from dibs.core.queue import keep_places, leave
from dibs.core.tickets import note_want

_RULES: dict[type[Any], Callable[[Draft, Any], Outcome]] = {
    commands.Acquire: acquire,
    commands.Inspect: inspect,
    commands.Leave: leave,
    commands.KeepPlaces: keep_places,
}


def decide(view: View, command: Command) -> Decision:
    """The outcome of `command`, with its writes and events. May raise `Missing`."""
    draft = Draft(view)
    if type(command) not in commands.UNFROZEN:
        frozen = draft.meta().frozen
        if frozen is not None:
            from dibs.core.upkeep import while_frozen  # rare: a store is frozen while it is moved

            return Decision(outcome=while_frozen(draft, command, frozen))
    rule = _RULES.get(type(command)) or _rule_of(command)
    outcome = rule(draft, command)
    cycles: dict[str, tuple[str, ...]] = {}
    if draft.losses:
        from dibs.core.deadlock import leave_circles  # rare: most sessions have one place for a job

        cycles = leave_circles(draft)
    if isinstance(outcome, Queued) and draft.ticket(outcome.ns, outcome.name, outcome.ticket) is None:
        outcome = _placeless(draft, command, outcome, cycles)
    return Decision(outcome=outcome, writes=draft.writes, events=tuple(draft.events), handed=tuple(draft.handed))


def _placeless(draft: Draft, command: Command, place: Queued, cycles: dict[str, tuple[str, ...]]) -> Outcome:
    """An answer describes the state after all that its decision does. So a place that is gone at its end is not told:
    it was served, or it closed a circle, and then the claim is refused and changes nothing."""
    for handed in draft.handed:
        if (handed.ns, handed.name, handed.number) == (place.ns, place.name, place.ticket):
            return handed.outcome
    cycle = cycles.get(place.ticket_id)
    if cycle is None or not isinstance(command, commands.Acquire | commands.AcquireAll):
        raise AssertionError(f"A rule gave a place for {place.name} and took it back: tell the authors of dibs.")
    draft.discard()
    names = command.names if isinstance(command, commands.AcquireAll) else (command.name,)
    note_want(draft, command, names)
    return Deadlock(now_ms=draft.now_ms, name=names[-1], cycle=cycle)


def _rule_of(command: Command) -> Callable[[Draft, Any], Outcome]:
    """The rule of a command that comes for the first time: `dibs claim` should not wait for the import of all."""
    if isinstance(command, commands.AcquireAny | commands.AcquireAll):
        from dibs.core import several

        _RULES.update({commands.AcquireAny: several.acquire_any, commands.AcquireAll: several.acquire_all})
    elif isinstance(command, commands.OpenSession | commands.KeepSession):
        from dibs.core import sessions

        _RULES.update({commands.OpenSession: sessions.open_session, commands.KeepSession: sessions.keep_session})
    elif commands.Release not in _RULES:
        _RULES.update(_other_rules())
    if type(command) not in _RULES:
        from dibs.core import credentials, webhooks

        _RULES.update(credentials.RULES)
        _RULES.update(webhooks.RULES)
    return _RULES[type(command)]


def _other_rules() -> dict[type[Any], Callable[[Draft, Any], Outcome]]:
    from dibs.core import closures, leases, sessions, upkeep, withdraw

    return {
        commands.Renew: leases.renew,
        commands.Release: leases.release,
        commands.Withdraw: withdraw.withdraw,
        commands.Transfer: leases.transfer,
        commands.Break: leases.break_,
        commands.Free: leases.free,
        commands.SetAcl: leases.set_acl,
        commands.Close: closures.close,
        commands.Open: closures.open_,
        commands.SetPool: leases.set_pool,
        commands.EndSession: sessions.end_session,
        commands.InspectSession: sessions.inspect_session,
        commands.Sweep: upkeep.sweep,
        commands.Beat: upkeep.beat,
        commands.RaiseFloor: upkeep.raise_floor,
        commands.Identify: upkeep.identify,
        commands.BeginCount: upkeep.begin_count,
        commands.CountUsage: upkeep.count,
        commands.Freeze: upkeep.freeze,
        commands.Thaw: upkeep.thaw,
    }


def keys_of(command: Command) -> list[str]:
    """Keys that the decision will look at: a hint that saves a round trip. `Missing` finds the others."""
    if isinstance(command, commands.Beat):
        return [records.pulse_key(command.server)]  # nothing that another server writes, unless there was a gap
    found = [records.META_KEY]
    names: tuple[str, ...] = ()
    if isinstance(command, _ONE_JOB):
        found.append(records.lock_key(command.ns, command.name))
        names = (command.name,)
    elif isinstance(command, commands.AcquireAny | commands.AcquireAll | commands.Withdraw):
        found += [records.lock_key(command.ns, name) for name in command.names]
        names = command.names
    elif isinstance(command, commands.Sweep | commands.CountUsage):
        found.append(command.key)
    elif hasattr(command, "digest"):
        found += [records.REGISTER_KEY, records.CREDENTIAL_PREFIX + command.digest]
    for name in names:
        if in_tree(name):
            found.append(records.tree_key(command.ns))  # type: ignore[union-attr]  # what has names has a namespace
            break
    payer = getattr(command, "payer", None)
    if payer is not None:
        found.append(records.USAGE_PREFIX + payer)
    session = getattr(command, "session", None)
    if session is not None:
        found.append(records.session_key(session))
    return found


_ONE_JOB = (commands.Acquire, commands.JobCommand)  # made once: a union would be made at every call
