"""Texts of sessions. Pure."""

from __future__ import annotations

from dibs.cli.text.claim import field, waited_for
from dibs.cli.text.words import ago, instant_ms, plain, shell_line, span, table
from dibs.core.names import DEFAULT_NAMESPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]


def opened(document: Document, paint: Paint, flags: list[str]) -> str:
    owner, ttl = plain(document["owner"]), span(document["ttl_seconds"] * 1000)
    keep = shell_line(["dibs", "session", "keep", *flags])
    return "\n".join(
        [
            f"{paint.good('Opened')} a session for {owner}; it ends {ttl} after its last renewal.",
            f"  export DIBS_SESSION={plain(document['session_id'])}",
            f"Renew it within {span(document['ttl_seconds'] * 500)}:  {keep}",
        ]
    )


def kept(document: Document, paint: Paint) -> str:
    lines = [f"{paint.good('Alive')} for another {span(document['remaining_ms'])}."]
    for job in document.get("wanted", ()):
        lines += waited_for(job)
    return "\n".join(lines)


def session(document: Document, paint: Paint) -> str:
    owner = plain(document["owner"])
    if not document["active"]:
        return f"{paint.bad('Over:')} the session of {owner} has ended, and its jobs were released."
    now_ms = instant_ms(document["expires_at"]) - document["remaining_ms"]
    lines = [f"{paint.good('Alive:')} {owner}, for another {span(document['remaining_ms'])}."]
    lines.append(field("since", ago(now_ms - instant_ms(document["since"]))))
    if document.get("metadata"):
        lines.append(field("metadata", plain(document["metadata"])))
    for hold in document.get("holds", ()):
        shared = ", shared" if hold.get("mode") == "shared" else ""
        where = hold.get("namespace", DEFAULT_NAMESPACE)
        elsewhere = "" if where == DEFAULT_NAMESPACE else f", namespace {where}"
        lines.append(
            field("holds", f"{plain(hold['name'])} (token {hold['fencing_token']}{shared}{elsewhere})")
        )
    lines += [field("waits for", plain(name)) for name in document.get("waits", ())]
    return "\n".join(lines)


def sessions(document: Document, paint: Paint) -> str:
    found = document["sessions"]
    if not found:
        return "No session is open."
    rows = [("SESSION", "OWNER", "LEFT", "HOLDS", "WAITS FOR")]
    for each in found:
        rows.append(
            (
                each["session_id"],
                plain(each["owner"]),
                span(each["remaining_ms"]),
                _names([hold["name"] for hold in each.get("holds", ())]),
                _names(each.get("waits", ())),
            )
        )
    head, *lines = table(rows)
    return "\n".join([paint.faint(head), *lines])


def _names(names: list[str], most: int = 3) -> str:
    shown = ", ".join(plain(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "-"
