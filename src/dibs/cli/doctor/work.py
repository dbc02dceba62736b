"""What is in a store that somebody should look at: parked jobs, long waits, tokens that end soon."""

from __future__ import annotations

from dibs.core.durations import format_duration
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.wire.parts import instant_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dibs.cli.doctor.findings import Findings
    from dibs.client.door import Door

    Document = dict[str, Any]

SHOWN_MAX = 3
PAGES_MAX = 5
EVENTS_MAX = 10_000
LOOK_BACK_MS = 86_400_000
WAIT_MS_MAX = 600_000
TOKEN_LEFT_MS_MIN = 7 * 86_400_000


def look_at_jobs(found: Findings, door: Door, now_ms: int) -> None:
    """The jobs of the namespace."""
    reply = door.claimed("", "", 1_000, ("parked",))
    if reply.status < 300 and reply.body is not None:
        names = [str(job["name"]) for job in reply.body["locks"]]
        if names:
            more = " or more" if reply.body.get("next") else ""
            found.look(
                "parked",
                f"{_these(names)}{more} failed too often. `dibs history` says why, `dibs free` lets it be claimed",
            )
    waits = [wait for wait in waiting(_events(door)) if now_ms - wait[2] > WAIT_MS_MAX]
    if waits:
        name, owner, since_ms = min(waits, key=lambda wait: wait[2])
        found.look(
            "waiting",
            f"{owner} has waited {format_duration(now_ms - since_ms)} for {name}, and {len(waits) - 1} more over "
            f"{format_duration(WAIT_MS_MAX)}. `dibs owner` says who has a job, `dibs break` takes it away",
        )


def _these(names: list[str]) -> str:
    rest = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _events(door: Door) -> Iterable[Document]:
    """Those of the last day, up to a bound."""
    after: int | None = None
    for _ in range(PAGES_MAX):
        reply = door.events("", None, after, EVENTS_MAX, 0 if after is not None else LOOK_BACK_MS)
        body = reply.body or {}
        if reply.status >= 300 or not body.get("events"):
            return
        yield from body["events"]
        after = int(body["next_after"])


def waiting(events: Iterable[Document]) -> list[tuple[str, str, int]]:
    """Job, owner and since when, of all who got in line and did not leave it."""
    queued: dict[tuple[str, str], int] = {}
    for event in events:
        who = str(event.get("name")), str(event.get("owner"))
        if event["event"] == "queued":
            queued.setdefault(who, instant_ms(event["at"]))
        elif event["event"] in ("acquired", "left"):
            queued.pop(who, None)
    return [(name, owner, since_ms) for (name, owner), since_ms in queued.items()]


def look_at_own_token(found: Findings, caller: Document, now_ms: int) -> None:
    """`caller` is what the server says about the token that was sent."""
    namespace = caller.get("namespace") or f"any namespace, {DEFAULT_NAMESPACE} unless told"
    found.good("caller", f"{caller.get('principal')}, {caller.get('role')}, in {namespace}")
    ends = caller.get("expires_at")
    if ends is not None and instant_ms(ends) - now_ms < TOKEN_LEFT_MS_MIN:
        found.look("expires", f"your token ends {ends}. An admin makes a new one: dibs token rotate")


def look_at_tokens(found: Findings, tokens: list[Document], now_ms: int) -> None:
    """All tokens of the store, as an admin sees them."""
    ending = [
        each
        for each in tokens
        if each["valid"]
        and each.get("expires_at") is not None
        and instant_ms(each["expires_at"]) - now_ms < TOKEN_LEFT_MS_MIN
    ]
    if ending:
        names = [f"{each['name']} ({each['id']}, {each['expires_at']})" for each in ending]
        found.look("tokens", f"{_these(names)} end within 7 days. Run: dibs token rotate NAME --id ID")
