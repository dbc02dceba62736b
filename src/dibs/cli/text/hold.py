"""The events of `hold` in words. Pure."""

from __future__ import annotations

from dibs.cli.text.words import plain, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]


def said(event: Document) -> str:
    """One line, beginning with the time of day."""
    return f"{event['at'][11:19]}Z  {event['event']:<9}  {_words(event)}".rstrip()


def _words(event: Document) -> str:
    name = plain(event["name"])
    match event["event"]:
        case "waiting":
            owner = event.get("owner")
            has = f"{plain(owner)} has it" if owner is not None else "others come first"
            return f"{name}: {has}, you are number {event['position']} in line"
        case "acquired":
            return f"{name} is yours, fencing token {event['fencing_token']}"
        case "renewed":
            return f"{name}, certain for {span(event['remaining_ms'])}"
        case "uncertain":
            return f"{name}, certain only for {span(event['remaining_ms'])}: {plain(event['why'])}"
        case "lost":
            return f"{name}: {plain(event['why'])}"
        case "released":
            return f"{name}: {plain(event['why'])}"
    return plain(event["message"])
