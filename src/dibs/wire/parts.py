"""Parts that several documents share: times, a hold as everybody may see it, the end of an earlier hold."""

from __future__ import annotations

import time

from dibs.base.cheap import Any
from dibs.base.ids import dashed
from dibs.base.jsontext import Document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.events import Event
    from dibs.core.outcomes import Blocker
    from dibs.core.records import Closure, EffectState, Ending, Holder, Ticket

# In a stream of events, what is no event: history that was pruned, and the end for a reader that was too slow.
GAP = "gap"
DROPPED = "dropped"
# How the note begins that an agent's session has about the agent, in `metadata` (`agent_notes.py`).
AGENT_NOTE = '{"agent":'

_SECONDS: dict[int, str] = {}  # a busy server formats the same few seconds thousands of times


def timestamp(ms: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    text = _SECONDS.get(ms // 1000)
    if text is None:
        year, month, day, hour, minute, second, *_ = time.gmtime(ms // 1000)
        text = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        if len(_SECONDS) >= 256:
            _SECONDS.clear()
        _SECONDS[ms // 1000] = text
    return f"{text}.{str(1000 + ms % 1000)[1:]}Z"  # a format of its own would take longer than all before it


def offset_timestamp(ms: int) -> str:
    """The same with `+00:00`, as OctoStore has it in a few places."""
    return timestamp(ms).replace("Z", "+00:00")


def instant_ms(text: str) -> int:
    """Milliseconds since 1970 of a time as replies carry it: 2025-11-15T02:14:05.123Z."""
    year, month, day = int(text[0:4]), int(text[5:7]), int(text[8:10])
    # Days since 1970 by the proleptic calendar; a year begins in March, so that the leap day is its last.
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    seconds = days * 86_400 + int(text[11:13]) * 3_600 + int(text[14:16]) * 60 + int(text[17:19])
    return seconds * 1_000 + int(text[20:23])


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of a time as people write it: 2026-11-17T18:00 with or without seconds, or a day; in UTC
    unless it names an offset. Raises ValueError."""
    from datetime import UTC, datetime  # rare

    try:
        found = datetime.fromisoformat(text.strip().upper())
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
        return int(found.timestamp() * 1000)
    except OverflowError:
        raise ValueError(text) from None


def moment(at_ms: int | None) -> str | None:
    """A time as a document has it; null if there is none."""
    return timestamp(at_ms) if at_ms else None


def challenge_text(nonce: str, address: Any) -> str:
    """`address` is (host, port) of the server's end of the connection, as either end sees it."""
    host, port = address[:2]
    return f"{nonce}@{str(host).removeprefix('::ffff:')}:{port}"


def slot_fields(hold: Holder | Event) -> Document:
    """The numbers of the slots of a hold, one for each unit, and the first of them; empty if it has none."""
    numbers = hold.slot_numbers
    return {"slot": numbers[0], "slot_numbers": list(numbers)} if numbers else {}


def lease_document(status: str, name: str, lease: Holder, now_ms: int) -> Document:
    """A lease as its owner sees it, in every answer that gives, renews or hands over one."""
    remaining_ms = lease.expires_ms - now_ms
    document: Document = {
        "status": status,
        "name": name,
        "lease_id": lease.lease_id,
        "fencing_token": lease.token,
        "owner": lease.owner,
        "expires_at": timestamp(lease.expires_ms),
        "remaining_ms": remaining_ms,
        "renew_after_ms": remaining_ms // 2,
        "metadata": lease.metadata,
        "attempt": lease.attempt,
    }
    if lease.ends_ms:
        document["ends_at"], document["ends_in_ms"] = timestamp(lease.ends_ms), max(0, lease.ends_ms - now_ms)
    if lease.slot_numbers:
        document.update(slot_fields(lease))
    return document


def holder_document(holder: Holder, now_ms: int) -> Document:
    """A hold as everybody may see it, without proofs. A session's hold lives by the session's heartbeats."""
    heard_ms = max(holder.renewed_ms, holder.heard_ms)
    document: Document = {
        "holder_id": holder_id(holder),
        "owner": holder.owner,
        "fencing_token": holder.token,
        "mode": holder.mode,
        "since": timestamp(holder.since_ms),
        "held_ms": now_ms - holder.since_ms,
        "last_heartbeat": timestamp(heard_ms),
        "silent_ms": max(0, now_ms - heard_ms),
    }
    if holder.active_ms:
        document["last_active"] = timestamp(holder.active_ms)
        document["idle_ms"] = max(0, now_ms - holder.active_ms)
    document["expires_at"] = timestamp(holder.expires_ms)
    document["remaining_ms"] = max(0, holder.expires_ms - now_ms)
    document["metadata"] = holder.metadata
    document["checkpoint"] = holder.checkpoint
    document["attempt"] = holder.attempt
    if holder.ends_ms:
        document["ends_at"], document["ends_in_ms"] = timestamp(holder.ends_ms), max(0, holder.ends_ms - now_ms)
    if holder.slot_numbers:
        document.update(slot_fields(holder))
    return document


def closure_document(closure: Closure, now_ms: int) -> Document:
    document: Document = {
        "name": closure.name,
        "reason": closure.reason,
        "by": closure.by,
        "since": moment(closure.at_ms),
        "until": moment(closure.until_ms),
    }
    document["remaining_ms"] = max(0, closure.until_ms - now_ms)
    return document


def in_the_way(name: str, blockers: tuple[Blocker, ...], unnamed: int, now_ms: int) -> Document:
    """Return what blocks a claim: in full the hold that ends first, because that is the one to wait for."""
    if not blockers:
        return {"holder_id": None, "owner": None, "expires_at": None, "remaining_ms": None, "metadata": None}
    first = min(blockers, key=lambda blocker: blocker.holder.expires_ms)
    document = holder_document(first.holder, now_ms)
    if first.name != name:
        document["conflict"] = first.name  # in a tree it overlaps the one asked for; else it is another of several
    if len(blockers) > 1:
        document["holders"] = [
            {"name": each.name, "owner": each.holder.owner, "fencing_token": each.holder.token} for each in blockers
        ]
    if unnamed:
        document["holder_count"] = len(blockers) + unnamed
    return document


def first_document(ticket: Ticket) -> Document:
    """The first in line, for a job that nobody holds. Clients of OctoStore's contract need a value in its two fields;
    `owner` stays null, because nobody is the owner."""
    return {
        "holder_id": holder_id(ticket),
        "expires_at": timestamp(ticket.expires_ms),
        "reserved_for": {"owner": ticket.owner, "since": timestamp(ticket.since_ms)},
    }


_HOLDER_IDS: dict[tuple[str, str], str] = {}  # the same few owners are asked for again and again


def holder_id(holder: Holder | Ticket | Event) -> str:
    """A one-way name for a hold's owner, shaped like a UUID: the same for the same credential and owner."""
    key = (holder.principal, holder.owner)
    found = _HOLDER_IDS.get(key)
    if found is None:
        import hashlib  # only refusals and listings need it

        found = dashed(hashlib.sha256(f"{holder.principal}\0{holder.owner}".encode()).hexdigest()[:32])
        if len(_HOLDER_IDS) >= 256:
            _HOLDER_IDS.clear()
        _HOLDER_IDS[key] = found
    return found


def effect_document(effect: EffectState, status: str) -> Document:
    """A step and what is known of it: who did it, or whose try failed or is in doubt, when, and under which token."""
    document: Document = {"key": effect.key, "status": status}
    if status == "in_doubt" and effect.doubt_token:
        document |= {"owner": effect.doubt_owner, "fencing_token": effect.doubt_token, "at": moment(effect.doubt_ms)}
    elif status != "new":
        document |= {"owner": effect.owner, "fencing_token": effect.token, "at": moment(effect.at_ms)}
    if effect.result is not None:
        document["result"] = effect.result
    if effect.reason and (status == "failed" or (status == "in_doubt" and effect.doubt_token)):
        document["reason"] = effect.reason  # without a doubt on record it is that of an earlier failure
    return document


def effects_document(effects: tuple[EffectState, ...], holders: tuple[Holder, ...]) -> list[Document]:
    from dibs.core.claims.effects import status_of  # few jobs have any

    return [effect_document(each, status_of(each, holders)) for each in effects]


def previous_document(ending: Ending) -> Document:
    document: Document = {
        "owner": ending.owner,
        "how": ending.how,
        "at": timestamp(ending.at_ms),
        "fencing_token": ending.token,
        "checkpoint": ending.checkpoint,
        "attempt": ending.attempt,
    }
    if ending.by is not None:
        document["by"] = ending.by
    if ending.reason is not None:
        document["reason"] = ending.reason
    if ending.metadata is not None:
        document["metadata"] = ending.metadata
    return document
