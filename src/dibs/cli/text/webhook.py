"""What is said about webhooks. Pure."""

from __future__ import annotations

from dibs.base.terminal import plain
from dibs.cli.text.words import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]

_SHOWN_MAX = 10


def added(body: Document, secret: str, *, by_server: bool) -> str:
    lines = [f"Sends {_what(body)} to {plain(body['url'])}. Its id: {plain(body['id'])}"]
    if secret:
        lines += ["Its secret, shown this once:", plain(secret)]
    if not by_server:
        lines.append("A server on this store delivers the events. If none runs, start one: dibs serve")
    return "\n".join(lines)


def listed(webhooks: list[Document], paint: Paint) -> str:
    if not webhooks:
        return "There is no webhook. Make one with: dibs webhook add https://..."
    rows = [("ID", "OWNER", "NAMESPACE", "JOBS", "EVENTS", "TARGET")]
    for each in webhooks:
        state = "" if each["active"] else " (stopped)"
        rows.append(
            (
                plain(each["id"]),
                plain(each["user_id"]),
                plain(each["namespace"]),
                plain(each["lock_pattern"]),
                plain(",".join(each["events"])),
                plain(each["url"]) + state,
            )
        )
    head, *lines = table(rows)
    return "\n".join([paint.faint(head), *lines])


def shown(body: Document, paint: Paint) -> str:
    log = body["log"]
    counts = f"{body['delivered']} delivered, {body['failed']} failed tries, {body['dead']} dead letters"
    waits = f"{body['waiting']} jobs wait, {body['behind']} events not looked at yet"
    lines = [f"{plain(body['url'])}: {_what(body)}", f"{counts}, {waits}"]
    if not body["active"]:
        lines.append(paint.bad(f"Stopped: {plain(body['stopped'] or '')}"))
    if body["gaps"]:
        lines.append(f"History was pruned before it was sent {body['gaps']} times; the target was told.")
    for title, rows in (
        ("LAST TRIES", [_try(each) for each in log["deliveries"]]),
        ("WAITING", [_waiting(each) for each in log["waiting"]]),
        ("DEAD LETTERS", [_dead(each) for each in log["dead"]]),
    ):
        if rows:
            lines += ["", paint.faint(title), *table(rows[:_SHOWN_MAX])]
            if len(rows) > _SHOWN_MAX:
                lines.append(f"and {len(rows) - _SHOWN_MAX} more; --json shows all")
    return "\n".join(lines)


def replayed(after: str | None) -> str:
    what = "The dead letters are" if after is None else f"All events after {after} are"
    return f"{what} sent again."


def tested(body: Document) -> str:
    if body["delivered"]:
        return f"Delivered: the target answered {body['status']} after {body['took_ms']} ms."
    return f"Not delivered: {plain(body['error'] or '')}."


def _what(body: Document) -> str:
    events = "all events" if body["events"] == ["*"] else plain(", ".join(body["events"]))
    jobs = "all jobs" if body["lock_pattern"] == "*" else plain(body["lock_pattern"])
    return f"{events} of {jobs} in {plain(body['namespace'])}"


def _try(each: Document) -> tuple[str, ...]:
    said = plain(each["error"]) if each["error"] else f"answered {each['status']}"
    return f"#{each['id']}", plain(each["at"][:19]) + "Z", plain(each["name"]), plain(each["event"]), said


def _waiting(each: Document) -> tuple[str, ...]:
    at = f"next try {plain(each['next_try_at'][:19])}Z" if each["next_try_at"] else "at once"
    return plain(each["name"]) or "(a gap)", f"{each['tries']} tries", at, plain(each["error"] or "")


def _dead(each: Document) -> tuple[str, ...]:
    again = "is sent again" if each["again"] else f"{each['tries']} tries"
    return f"#{each['id']}", plain(each["name"]), plain(each["event"]), again, plain(each["error"] or "")
