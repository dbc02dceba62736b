"""A checker for histories: compares the events of a store, and the logs of clients, with the promises.

It knows the promises and no other rule of dibs. It reads every event once. An empty list means that it found no
violation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.events import Event
    from dibs.stores.port import Store

EXCLUSIVE = "exclusive"
ENDS = ("released", "failed", "expired", "broken")
_PAGE = 10_000


def all_events(store: Store) -> list[Event]:
    """All events of a store, oldest first."""
    found: list[Event] = []
    while page := store.events(found[-1].seq if found else 0, _PAGE):
        found += page
    return found


def broken_promises(history: Iterable[Event]) -> list[str]:
    """The violations in a history. The history must be complete from its first event, and no renewal may have made a
    TTL shorter: a renewal is no event, so an expiry is compared with the TTL of the claim.

    - seq rises without a repeat, and the time of a job never falls
    - `token:rises`: each claim of a job has a larger token than all before it
    - `excl`: no claim while an exclusive one is live, and no exclusive one while any is
    - `audit`: only a live claim ends
    - `lease:never-early`: a claim expires after its whole TTL
    """
    return _Reader().read(history)


class _Reader:
    def __init__(self) -> None:
        self._live: dict[tuple[str, str], dict[int, Event]] = {}
        self._tokens: dict[tuple[str, str], int] = {}
        self._times: dict[tuple[str, str], int] = {}
        self._seq = 0
        self._wrong: list[str] = []

    def read(self, history: Iterable[Event]) -> list[str]:
        for event in history:
            if event.seq <= self._seq:
                self._say(event, f"comes after seq {self._seq}")
            self._seq = event.seq
            if event.job:
                self._job(event, (event.ns, event.job))
        return self._wrong

    def _job(self, event: Event, job: tuple[str, str]) -> None:
        if event.at_ms < self._times.get(job, 0):
            self._say(event, "is earlier than the event of this job before it")
        self._times[job] = event.at_ms
        live = self._live.setdefault(job, {})
        if event.kind == "acquired":
            if event.token <= self._tokens.get(job, 0):
                self._say(event, f"does not rise above token {self._tokens[job]}")
            self._tokens[job] = max(event.token, self._tokens.get(job, 0))
            if any(EXCLUSIVE in (event.mode, each.mode) for each in live.values()):
                self._say(event, f"while live: {sorted(each.owner for each in live.values())}")
            live[event.token] = event
        elif event.kind in ENDS:
            claim = live.pop(event.token, None)
            if claim is None:
                self._say(event, "ends what was not live")
            elif event.kind == "expired" and event.at_ms < claim.at_ms + (claim.ttl_ms or 0):
                self._say(event, f"is early: claimed at {claim.at_ms} for {claim.ttl_ms} ms")

    def _say(self, event: Event, what: str) -> None:
        self._wrong.append(
            f"seq {event.seq}: {event.kind} {event.job!r} by {event.owner!r} (token {event.token}) {what}"
        )


@dataclass(frozen=True)
class ObservedHold:
    """The time in which one client is sure to hold a job, by its own clock: from the grant until its release request.

    If it never releases the claim, it is sure for the TTL, counted from *before* its request."""

    job: str
    owner: str
    token: int
    from_ms: int
    until_ms: int


def overlaps(holds: Iterable[ObservedHold]) -> list[str]:
    """Pairs of clients that were sure of one job at the same time, and tokens that do not rise with time."""
    wrong: list[str] = []
    before: dict[str, ObservedHold] = {}
    for hold in sorted(holds, key=lambda each: each.from_ms):
        last = before.get(hold.job)
        if last is not None and hold.from_ms < last.until_ms:
            wrong.append(f"{last} and {hold} overlap")
        if last is not None and hold.token <= last.token:
            wrong.append(f"{hold} came after {last} with a token that is no larger")
        if last is None or hold.until_ms > last.until_ms:
            before[hold.job] = hold
    return wrong


def overtaken(history: Iterable[Event], *, plain: bool = False) -> list[str]:
    """`queue:fifo`: waiters that were served before an earlier one. Shared claims of a job are granted together, in
    any order. `plain`: all claims are exclusive and for one job each, so that no claim may pass the line either."""
    wrong: list[str] = []
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for event in history:
        line = lines.setdefault((event.ns, event.job), {})
        if event.kind == "queued":
            line[event.ticket] = event.mode
        elif event.kind == "left":
            line.pop(event.ticket, None)
        elif event.kind == "forgotten":
            line.clear()
        elif event.kind == "acquired":
            before = {
                number
                for number, mode in line.items()
                if (number < event.ticket or (plain and not event.ticket)) and EXCLUSIVE in (mode, event.mode)
            }
            if before:
                wrong.append(f"seq {event.seq}: {event.owner!r} was given {event.job!r} before {sorted(before)}")
            line.pop(event.ticket, None)
    return wrong
