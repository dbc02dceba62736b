"""Replays events into ownership: the promise `audit`.

It gives owners, progress and done marks. It gives no deadlines, because a renewal is not an event.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.core import events
from dibs.core.events import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class ReplayedHold(NamedTuple):
    """One live hold, according to the history."""

    owner: str
    principal: str
    token: int
    mode: str
    attempt: int
    metadata: str | None = None
    checkpoint: str | None = None


def replay(history: Iterable[Event]) -> dict[tuple[str, str], dict[int, ReplayedHold]]:
    """`{(namespace, job): {fencing token: ReplayedHold}}` after all of `history`, which must begin at the beginning."""
    live: dict[tuple[str, str], dict[int, ReplayedHold]] = {}
    for event in history:
        apply(live, event)
    return {job: claims for job, claims in live.items() if claims}


def apply(live: dict[tuple[str, str], dict[int, ReplayedHold]], event: Event) -> None:
    """One more event. `live` is changed in place."""
    job = (event.ns, event.job)
    if event.kind == events.ACQUIRED:
        live.setdefault(job, {})[event.token] = ReplayedHold(
            owner=event.owner,
            principal=event.principal,
            token=event.token,
            mode=event.mode,
            attempt=event.attempt,
            metadata=event.metadata,
            checkpoint=event.checkpoint,
        )
    elif event.kind == events.PROGRESS:
        claims = live.get(job, {})
        claim = claims.get(event.token)
        if claim is not None:
            claims[event.token] = claim._replace(metadata=event.metadata, checkpoint=event.checkpoint)
    elif event.kind == events.SHARED:
        claims = live.get(job, {})
        claims[event.token] = claims[event.token]._replace(mode=event.mode)
    elif event.kind in events.OWNERSHIP_ENDS:  # a transfer's new owner is an `acquired` of its own, right after
        claims = live.get(job, {})
        claims.pop(event.token, None)
        if not claims:
            live.pop(job, None)
