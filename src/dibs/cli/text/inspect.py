"""Texts of owner, list and history. Pure: the time is an argument where a document does not have it."""

from __future__ import annotations

from dibs.cli.text import claim as claim_text
from dibs.cli.text.claim import field, hold_fields, previous
from dibs.cli.text.listing import how_held
from dibs.cli.text.words import ago, instant_ms, job_command, plain, span, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]


def status(document: Document, paint: Paint, now_ms: int) -> str:
    """The state of one job. `now_ms` is this machine's clock, for documents without a remaining time."""
    if document["status"] == "held":
        return _held(document, paint)
    if document["status"] == "done":
        done = document["done"]
        at_ms, until_ms = instant_ms(done["at"]), instant_ms(done["until"])
        times = {"done_ms_ago": now_ms - at_ms, "retry_after_ms": until_ms - now_ms}
        return claim_text.done({**done, **times, "status": "done", "name": document["name"]}, paint)
    lines = [claim_text.sentence({**document, "overlapping": None})]  # overlapping claims get lines of their own
    if document["status"] == "parked":
        lines[0] += f" `{job_command(['free'], [document['name']])}` frees it."
    if document.get("previous"):
        lines += previous(document["previous"], now_ms)
    return "\n".join([*lines, *_around(document)])


def _held(document: Document, paint: Paint) -> str:
    name, holders = plain(document["name"]), document.get("holders", [])
    if len(holders) > 1:
        how = how_held(document)
        rows = [("OWNER", "LEFT", "SINCE", "TOKEN")]
        for each in holders:
            left, since = span(each["remaining_ms"]), ago(each["held_ms"])
            rows.append((plain(each["owner"]), left, since, str(each["fencing_token"])))
        head, *lines = [f"  {line}" for line in table(rows)]
        return "\n".join([f"{len(holders)} have {name} ({how}):", paint.faint(head), *lines, *_around(document)])
    owner = plain(document["owner"])
    lines = [paint.strong(owner) + claim_text.sentence(document).removeprefix(owner)]
    # Waiters and overlapping claims come last, once.
    lines += hold_fields({key: value for key, value in document.items() if key != "waiting"})
    if document.get("slots", 1) > 1:
        lines.append(field("slots", how_held(document)))
    return "\n".join([*lines, *_around(document)])


def _around(document: Document) -> list[str]:
    """Overlapping claims, and the number of waiters."""
    lines = [
        field("overlaps", f"{plain(each['name'])}, which {plain(each['owner'])} has")
        for each in document.get("overlapping", ())
    ]
    if document.get("waiting"):
        lines.append(field("waiting", f"{document['waiting']} in line"))
    return lines


def history(document: Document, paint: Paint, now_ms: int, since: str | None = None) -> str:
    events = document["events"]
    if not events:
        when = "" if since is None else f" since {plain(since)}"
        return f"Nothing is on record about {plain(document['name'])}{when}."
    rows = []
    for event in events:
        when = event["at"][:19].replace("T", " ") + "Z"
        rows.append((when, ago(now_ms - instant_ms(event["at"])), _told(event)))
    lines = table(rows)
    if paint.on:
        lines = [paint.faint(line[:20]) + line[20:] for line in lines]
    return "\n".join(lines)


def event_line(event: Document, paint: Paint) -> str:
    """One event of any job, for a reader who follows."""
    if event["event"] == "gap":
        return f"Events up to number {int(event['oldest']) - 1} are no longer on record; some may be missing here."
    when = str(event.get("at", ""))[:19].replace("T", " ") + "Z"
    return f"{paint.faint(plain(when))}  {paint.strong(plain(event.get('name', '')))}  {_told(event)}"


def rights_line(event: Document, paint: Paint) -> str:
    """One change of who may do what."""
    when = str(event.get("at", ""))[:19].replace("T", " ") + "Z"
    where = "/".join([plain(event[key]) for key in ("namespace", "name") if event.get(key)])
    of = "" if event["event"] == "access-set" else f" of {plain(event.get('user_id'))}"
    told = f"{plain(event['event'])}{of} by {plain(event.get('by') or 'dibs')}: {plain(event.get('reason'))}"
    return f"{paint.faint(plain(when))}  {paint.strong(where or '*')}  {told}"


def _told(event: Document) -> str:
    """One event as a sentence."""
    owner = plain(event.get("owner", ""))
    note = {key: f"{key} {plain(event[key])}" for key in ("metadata", "checkpoint", "result") if event.get(key)}
    kind = event["event"]
    if kind == "acquired":
        ttl = f" for {span(event['ttl_seconds'] * 1000)}" if event.get("ttl_seconds") else ""
        attempt = f", attempt {event['attempt']}" if event.get("attempt", 1) > 1 else ""
        told = f"{owner} claimed it{ttl} (token {event['fencing_token']}{attempt})"
    elif kind == "progress":
        told = f"{owner} made progress"
        if "checkpoint" in note:  # metadata is repeated in every event
            note.pop("metadata", None)
    elif kind == "released":
        told = f"{owner} released it" + (" as done" if event.get("done_until") else "")
    elif kind == "failed":
        told = _told_failed(event, owner)
    elif kind == "expired":
        told = f"the claim of {owner} expired without a heartbeat"
    elif kind == "broken":
        told = f"{plain(event.get('by'))} took it from {owner}: {plain(event.get('reason'))}"
    else:
        told = _told_rarely(kind, event, owner)
    return ": ".join([told, ", ".join(note.values())]) if note else told


def _told_failed(event: Document, owner: str) -> str:
    told = f"{owner} failed at it"
    if event.get("reason"):
        told += f": {plain(event['reason'])}"
    if event.get("retry_after_seconds"):
        told += f"; to be tried again after {span(event['retry_after_seconds'] * 1000)}"
    return told


def _told_rarely(kind: str, event: Document, owner: str) -> str:
    if kind == "queued":
        return f"{owner} got in line"
    if kind == "refused":
        return f"{owner} asked for it and was refused"
    if kind == "renewed":
        return f"{owner} sent a heartbeat"
    if kind == "left":
        why = {"left": "", "stopped asking": ": it stopped asking", "session ended": ": its session ended"}
        reason = str(event.get("reason", "left"))
        return f"{owner} left the line{why.get(reason, f': {plain(reason)}')}"
    if kind == "transferred":
        return f"{owner} handed it to {plain(event.get('by'))}"
    if kind == "parked":
        return f"parked after the last attempt, by {owner}, failed or was lost"
    if kind == "freed":
        return f"{plain(event.get('by'))} freed it"
    if kind == "access-set":
        return f"{plain(event.get('by'))} changed who may claim it: {plain(event.get('reason'))}"
    if kind == "forgotten":
        return "its record was deleted after a long time idle"
    return f"{plain(kind)} {owner}".rstrip()
