"""Outages: times in which no server could commit a renewal. How pulses show them, and how they are recorded.

Each server regularly records that it is up: its **pulse**, a separate record for each server. Decisions read another
record, `Meta`, which is written only when there was an outage. So healthy servers write nothing that another reads.

A pulse says that all time before it is accounted for: either some server could serve, or the time is recorded as an
outage. A server without a gap since its last pulse does not need the others for that. A server that starts, or was
stopped or cut off, reads the newest pulse of all others: between that pulse, or the beginning of its own gap, and the
end of the gap, no server could serve. Until that is recorded it ends nothing that was live when its gap began.
"""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.core import commands, events, records
from dibs.core.draft import Draft
from dibs.core.lease_outcomes import BeatRecorded
from dibs.core.limits import OUTAGES_KEPT, PULSE_KEPT_MS, PULSE_LATE_MS
from dibs.core.outcomes import Outcome


def beat(draft: Draft, command: commands.Beat) -> Outcome:
    """Record that a server is up. If none was up for longer than PULSE_LATE_MS before it, that was an outage. A shorter
    silence before the start of a server stays in doubt until that server's next pulse. So a server that crashes again
    and again, faster than PULSE_LATE_MS, is noticed all the same."""
    for server in command.gone:  # in the same decision that writes a newer pulse, so the newest is never lost
        old = draft.pulse(server)
        if old is not None and _is_old(old, draft.now_ms):
            draft.drop(old)
    now_ms = draft.now_ms
    pulse = records.Pulse(at_ms=now_ms, server=command.server)
    own = draft.pulse(command.server)
    if command.idle or command.alive_since_ms is None:
        draft.put(pulse)
        return BeatRecorded(now_ms=now_ms)
    if draft.meta().frozen is not None:
        draft.discard()
        return BeatRecorded(now_ms=now_ms, frozen=True)
    began_ms = _accounted_ms(draft, own, command)
    if began_ms is None or command.alive_since_ms - began_ms <= PULSE_LATE_MS:
        in_doubt = began_ms is not None and command.alive_since_ms > began_ms
        draft.put(pulse.replace(doubt_ms=began_ms) if in_doubt else pulse)
        return BeatRecorded(now_ms=now_ms)
    draft.put(pulse)
    note_outage(draft, records.Outage(began_ms=began_ms, ended_ms=now_ms))
    return BeatRecorded(now_ms=now_ms, outage_ms=now_ms - began_ms)


def accounted_ms(pulses: Sequence[records.Pulse]) -> int | None:
    """Up to when it is known whether some server could serve. None: there was never a server."""
    return max([pulse.doubt_ms or pulse.at_ms for pulse in pulses], default=None)


def live_servers(pulses: Sequence[records.Pulse], now_ms: int) -> list[str]:
    """The servers with a recent pulse, in an order that is the same for all of them."""
    return sorted([pulse.server for pulse in pulses if now_ms - pulse.at_ms <= PULSE_LATE_MS])


def gone_servers(pulses: Sequence[records.Pulse], now_ms: int) -> tuple[str, ...]:
    """The servers whose pulse nobody needs any more."""
    return tuple([pulse.server for pulse in pulses if _is_old(pulse, now_ms)])


def _is_old(pulse: records.Pulse, now_ms: int) -> bool:
    return now_ms - pulse.at_ms >= PULSE_KEPT_MS


def _accounted_ms(draft: Draft, own: records.Pulse | None, command: commands.Beat) -> int | None:
    known = [command.heard_ms] if command.heard_ms is not None else []
    if own is not None:
        # It served until its gap began. Its pulses may be older, or have gone on while its batches did not.
        began_ms = own.at_ms if command.doubt_ms is None else command.doubt_ms
        known.append(min(own.doubt_ms or began_ms, began_ms))
    if not known:
        return None
    at_ms = max(known)
    for outage in draft.meta().outages:
        # Another server recorded it at this moment, and its pulse was not read yet; or the store was moved.
        if outage.began_ms - at_ms <= PULSE_LATE_MS:
            at_ms = max(at_ms, outage.ended_ms)
    return at_ms


def note_outage(draft: Draft, outage: records.Outage) -> None:
    meta = draft.meta()
    draft.put(meta.replace(outages=remember(meta.outages, outage)))
    draft.emit(events.OUTAGE, began_ms=outage.began_ms)


def remember(outages: tuple[records.Outage, ...], outage: records.Outage) -> tuple[records.Outage, ...]:
    """Keep the newest; merge the two oldest when there are too many. The time between them is not added to the lost
    time, so a lease gets at most the credit of both, and never less than it had."""
    kept = [*outages, outage]
    if len(kept) > OUTAGES_KEPT:
        one, two = kept[:2]
        both = records.Outage(
            began_ms=one.began_ms,
            ended_ms=two.ended_ms,
            lost_ms=one.lost() + two.lost(),
            longest_ms=max(one.longest(), two.longest()),
        )
        kept[:2] = [both]
    return tuple(kept)
