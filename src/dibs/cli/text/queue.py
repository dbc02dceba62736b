"""Texts for callers that wait in line. Pure."""

from __future__ import annotations

from dibs.cli.text.claim import hold_fields, sentence
from dibs.cli.text.words import plain, span
from dibs.core.limits import TICKET_MS
from dibs.wire.sentences import held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]


def waiting(document: Document, waited_ms: int, wait_ms: int) -> str:
    """The status line of a wait: position, owner, remaining time."""
    name, position = plain(document["name"]), document["position"]
    place = "next in line" if position == 1 else f"number {position} in line"
    waited = span(min(max(waited_ms, 1_000), wait_ms))
    return f"Waiting for {name}, {place}: {_in_the_way(document)} ({waited} of {span(wait_ms)})"


def waiting_for_any(refused: list[Document], waited_ms: int, wait_ms: int) -> str:
    """The status line of claim-any."""
    waited = span(min(max(waited_ms, 1_000), wait_ms))
    shown = ", ".join([plain(each.get("name")) for each in refused[:3]]) + (", ..." if len(refused) > 3 else "")
    return f"Waiting for any of {len(refused)}: {shown} ({waited} of {span(wait_ms)})"


def _in_the_way(document: Document) -> str:
    if document["owner"] is None:
        return "it is delayed, or others come first"
    return plain(held({**document, "name": "it"})).rstrip(".")


def watching(taken: list[Document]) -> str:
    """The status line of `dibs wait`."""
    document, others = taken[0], len(taken) - 1
    name, owner, overlapping = plain(document["name"]), document.get("owner"), document.get("overlapping")
    more = f", and {others} more" if others else ""
    if owner is None and overlapping:
        return f"Waiting for {name}{more}: {plain(overlapping[0]['owner'])} has {plain(overlapping[0]['name'])}"
    return f"Waiting for {name}{more}: {plain(owner)} has it for another {span(document['remaining_ms'])}"


def unheard(document: Document) -> str:
    return f"Still waiting, but: {plain(document.get('details', 'no answer'))}"


def over_sentence(document: Document) -> str:
    """The wait is over, and the job is still not available."""
    position = document["position"]
    place = "next in line" if position == 1 else f"number {position} in line"
    if "ticket" in document:
        kept = f"You are {place}. The place is kept for {span(TICKET_MS)}."
    else:
        kept = f"You were {place}, and have left the line."
    return f"{sentence(document)} {kept}"


def over(document: Document, paint: Paint, command: str | None) -> str:
    """The answer after a wait. `command` continues from the place that was kept."""
    lines = [f"{paint.wait('Not yet:')} {over_sentence(document)}", *hold_fields(document)]
    if command is not None:
        lines.append(f"To continue:  {command}")
    return "\n".join(lines)
