"""Reads a server's stream of events, and follows events through any door."""

from __future__ import annotations

from dibs.client.http1 import ConnectionLost
from dibs.clock import steady_ms
from dibs.core.limits import HISTORY_PAGE_MAX, STREAM_RETRY_MS, STREAM_SILENCE_MS
from dibs.errors import BadReply, ServerUnreachable
from dibs.jsontext import decode
from dibs.wire.event_frames import DROPPED, GAP, FrameReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dibs.client.door import Door
    from dibs.client.transport import Deadline, ServerConnection
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

AWAIT_MS = 24 * 3600 * 1000
PAUSE_MS = 50


def read_events(
    connection: ServerConnection, request: bytes, deadline: Deadline, timeout_ms: int
) -> Iterator[Document]:
    """The events of a stream, until it ends or breaks. Gaps and the end of a slow reader end it, too: a page of events
    says the same, so whoever follows learns of them there."""
    until_ms = steady_ms() + timeout_ms
    reader = FrameReader()
    try:
        for part in connection.stream(
            request, deadline, lambda: min(STREAM_SILENCE_MS, until_ms - steady_ms())
        ):
            for kind, data, _ in reader.feed(part):
                if kind in (GAP, DROPPED):
                    return
                if data:
                    yield _event(data)
    except (ConnectionLost, ServerUnreachable, BadReply, ValueError):
        return


def _event(data: str) -> Document:
    event = decode(data)
    if not isinstance(event, dict) or not isinstance(event.get("seq"), int):
        raise ValueError("no event")
    return event


def follow(
    door: Door,
    prefix: str,
    name: str | None,
    after: int | None,
    *,
    since_ms: int = 0,
    for_ms: int | None = None,
) -> Iterator[Document | Reply]:
    """Events as they happen, each once and in order, for ever or for `for_ms`; gaps among them, as documents. Begins
    after a position, or with the events of the last `since_ms`, or now. The first good reply is yielded as well,
    and each failure as the reply that says so; whoever goes on after it comes back to the same position, at whichever
    server answers."""
    until_ms = steady_ms() + (AWAIT_MS * 3650 if for_ms is None else for_ms)
    is_begun, is_told = after is not None or since_ms > 0, False
    is_refused = False
    while True:
        reply = door.events(prefix, name, after, HISTORY_PAGE_MAX if is_begun else 1, since_ms)
        left_ms = until_ms - steady_ms()
        if reply.status != 200:
            yield reply
            _pause(until_ms)
        else:
            if not is_told:
                is_told = True
                yield reply
            page: Document = reply.body or {}
            if is_begun:
                if page.get("gap"):
                    yield page["gap"]
                yield from page["events"]
            is_more = is_begun and bool(page["events"])
            is_begun, after = True, int(page["next_after"])
            if left_ms > 0 and not is_more:
                if is_refused:  # a server that begins no stream is asked for pages instead
                    _pause(until_ms)
                began_ms, before = steady_ms(), after
                for event in door.await_events(prefix, name, after, min(left_ms, AWAIT_MS)):
                    after = event["seq"]
                    yield event
                is_refused = after == before and steady_ms() - began_ms < PAUSE_MS
        if left_ms <= 0:
            return


def _pause(until_ms: int) -> None:
    from time import sleep

    sleep(max(0, min(STREAM_RETRY_MS, until_ms - steady_ms())) / 1000)
