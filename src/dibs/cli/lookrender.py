"""What owner, list and history show. Pure: the time comes in where a document does not carry it."""

from __future__ import annotations

from dibs.cli.render import field, hold_fields, previous
from dibs.cli.words import ago, instant_ms, plain, span, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.paint import Paint

    Document = dict[str, Any]


def status(document: Document, paint: Paint, now_ms: int) -> str:
    """How one job stands. `now_ms` is this machine's clock, for what carries no remaining time."""
    if document["status"] == "held":
        return _held(document, paint)
    name = plain(document["name"])
    if document["status"] == "done":
        done = document["done"]
        at_ms, until_ms = instant_ms(done["at"]), instant_ms(done["until"])
        lines = [
            f"{paint.good('Done:')} {name}, by {plain(done['owner'])}, {ago(now_ms - at_ms)}. "
            f"It counts as done for another {span(until_ms - now_ms)}."
        ]
        if done.get("result"):
            lines.append(field("result", plain(done["result"])))
        return "\n".join(lines)
    lines = [f"Nobody has {name}."]
    if document["status"] == "delayed":
        lines[0] += f" It rests after a loss and can be claimed in {span(document['retry_after_ms'])}."
    if document.get("previous"):
        lines += previous(document["previous"], now_ms)
    return "\n".join(lines)


def _held(document: Document, paint: Paint) -> str:
    name, owner = plain(document["name"]), paint.strong(plain(document["owner"]))
    return "\n".join(
        [f"{owner} has {name} for another {span(document['remaining_ms'])}.", *hold_fields(document)]
    )


def listing(document: Document, paint: Paint) -> str:
    locks = document["locks"]
    if not locks:
        prefix = document["prefix"]
        return f"No job that begins with {plain(prefix)} is claimed." if prefix else "No job is claimed."
    rows = [("JOB", "OWNER", "LEFT", "SINCE", "NOTE")]
    for lock in locks:
        note = lock.get("checkpoint") or lock.get("metadata") or ""
        rows.append(
            (
                plain(lock["name"]),
                plain(lock["owner"]),
                span(lock["remaining_ms"]),
                ago(lock["held_ms"]),
                _short(plain(note)),
            )
        )
    head, *lines = table(rows)
    if document["next"]:
        lines.append(paint.faint(f"More follow: --after {plain(document['next'])}"))
    return "\n".join([paint.faint(head), *lines])


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def history(document: Document, paint: Paint, now_ms: int) -> str:
    events = document["events"]
    if not events:
        return f"Nothing is on record about {plain(document['name'])}."
    rows = []
    for event in events:
        when = event["at"][:19].replace("T", " ") + "Z"
        rows.append((when, ago(now_ms - instant_ms(event["at"])), _told(event)))
    lines = table(rows)
    if paint.on:
        lines = [paint.faint(line[:20]) + line[20:] for line in lines]
    return "\n".join(lines)


def _told(event: Document) -> str:
    """One event as a sentence."""
    owner = plain(event.get("owner", ""))
    note = {
        key: f"{key} {plain(event[key])}" for key in ("metadata", "checkpoint", "result") if event.get(key)
    }
    kind = event["event"]
    if kind == "acquired":
        ttl = f" for {span(event['ttl_seconds'] * 1000)}" if event.get("ttl_seconds") else ""
        attempt = f", attempt {event['attempt']}" if event.get("attempt", 1) > 1 else ""
        told = f"{owner} claimed it{ttl} (token {event['fencing_token']}{attempt})"
    elif kind == "progress":
        told = f"{owner} got on"
        if "checkpoint" in note:  # the metadata is repeated with every one of them
            note.pop("metadata", None)
    elif kind == "released":
        told = f"{owner} released it" + (" as done" if event.get("done_until") else "")
    elif kind == "expired":
        told = f"{owner} went silent; the claim ran out"
    elif kind == "broken":
        told = f"{plain(event.get('by'))} took it from {owner}: {plain(event.get('reason'))}"
    elif kind == "forgotten":
        told = "idle for long; its record was put away"
    else:
        told = f"{plain(kind)} {owner}".rstrip()
    return ": ".join([told, ", ".join(note.values())]) if note else told
