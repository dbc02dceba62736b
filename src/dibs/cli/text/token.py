"""What is said about tokens. Pure. A token itself is in the answer to whoever had it made, and nowhere else."""

from __future__ import annotations

from dibs.base.terminal import plain
from dibs.cli.text.words import table
from dibs.core.durations import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]

_ONCE = "Its token, shown this once:"


def created(body: Document) -> str:
    return f"Made a token for {_who(body)}.\n{_ONCE}\n{plain(body['token'])}"


def rotated(body: Document) -> str:
    grace = body["replaces"]["grace_seconds"]
    old = f"goes on for {format_duration(grace * 1000)}" if grace else "is over"
    first = f"Made a token for {_who(body)}. The old one ({plain(body['replaces']['id'])}) {old}."
    return f"{first}\n{_ONCE}\n{plain(body['token'])}"


def revoked(tokens: list[Document], paint: Paint) -> str:
    count = f"{len(tokens)} tokens" if len(tokens) > 1 else "the token"
    return (
        f"{paint.good('Revoked')} {count} of {plain(tokens[0]['name'])}. What it holds runs out by its TTL."
    )


def limited(tokens: list[Document]) -> str:
    return f"{plain(tokens[0]['name'])}: {_limits(tokens[0])}. What is held already stays."


def imported(path: str, tokens: list[Document]) -> str:
    count = f"{len(tokens)} tokens" if len(tokens) != 1 else "1 token"
    return (
        f"{count} of {plain(path)} in the store. Start the servers without --tokens, and put the file away: "
        "a token that is revoked in the store is refused there too."
    )


def listed(tokens: list[Document], paint: Paint) -> str:
    if not tokens:
        return "The store holds no token. Make one with: dibs token create NAME"
    rows = [("NAME", "ROLE", "NAMESPACE", "EXPIRES", "LIMITS", "ID")]
    for entry in tokens:
        namespace = plain(entry["namespace"] or "any")
        rows.append(
            (
                plain(entry["name"]),
                plain(entry["role"]),
                namespace,
                _end(entry),
                _limits(entry),
                plain(entry["id"]),
            )
        )
    head, *lines = table(rows)
    return "\n".join([paint.faint(head), *lines])


def _who(body: Document) -> str:
    parts = [plain(body["role"])]
    if body["namespace"]:
        parts.append(f"namespace {plain(body['namespace'])}")
    if body["expires_at"]:
        parts.append(f"until {plain(body['expires_at'][:16])}Z")
    limits = _limits(body)
    if limits != "none":
        parts.append(limits)
    return f"{plain(body['name'])} ({', '.join(parts)})"


def _end(entry: Document) -> str:
    if entry["revoked_at"]:
        return f"revoked {plain(entry['revoked_at'][:16])}Z"
    if entry["expires_at"] is None:
        return "never"
    return f"{plain(entry['expires_at'][:16])}Z" + ("" if entry["valid"] else ", over")


def _limits(entry: Document) -> str:
    words = {"max_held": "held", "max_waiting": "waiting", "max_sessions": "sessions"}
    parts = [f"{word} {entry[field]}" for field, word in words.items() if entry[field]]
    if entry["rate_per_second"]:
        parts.append(f"{entry['rate_per_second']}/s")
    return ", ".join(parts) or "none"
