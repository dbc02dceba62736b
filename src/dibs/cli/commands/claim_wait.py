"""Waiting in line for `claim --wait` and `claim-all --wait`, with or without a server. The flow is in
`client/queueing.py`."""

from __future__ import annotations

from dibs.base.terminal import plain
from dibs.cli.framework.flag_values import seconds
from dibs.cli.framework.flags import next_words
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import no
from dibs.cli.supervise.process_session import waits_for_itself
from dibs.cli.text import queue as queue_text
from dibs.cli.text.status_line import StatusLine
from dibs.cli.text.words import shell_line
from dibs.client.queueing import PendingClaim, drive, status_of
from dibs.core.limits import TTL_MS_MAX
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.client.queueing import StillWaiting
    from dibs.wire.documents import Reply

    Document = dict[str, Any]
    Meanwhile = Callable[[Document | None], int]

SLICE_SECONDS_LIVE = 1  # shorter at a terminal, so that the status line is fresh


def wait_in_line(
    call: Call,
    verb: str,
    name: str,
    document: Document,
    meanwhile: Meanwhile | None = None,
    *,
    wait_ms: int | None = None,
) -> Reply:
    """The reply to a claim after waiting for it. A `queued` reply with a ticket means that the place was kept.
    `meanwhile` is called with every `queued` answer, and returns in how many ms it wants to be called again.
    `wait_ms`: what is left of --wait."""
    if wait_ms is None:
        wait_ms = (seconds(call, "wait", TTL_MS_MAX) or 0) * 1000
    ticket, keeps = call.values.get("ticket"), call.values.get("keep_place", False)
    if ticket is not None and not ticket.strip():
        raise UsageError("--ticket is empty. Did the wait before it keep its place?", call.command)
    if not wait_ms and ticket is None:
        if keeps:
            raise UsageError("--keep-place needs --wait TIME.", call.command)
        return call.claim(verb, name, document)
    if wait_ms:
        refusal = waits_for_itself(call, name, document)
        if refusal is not None:
            return refusal
    own_key = call.values.get("request_key") is None
    pending = PendingClaim(verb, name, document, ticket=ticket, own_key=own_key, wait_ms=wait_ms)
    door = call.door()
    call.begin_claim(pending)
    if not wait_ms:  # a caller that comes back later wants to keep the place
        return drive(door, pending.ask_once())
    with StatusLine(call) as status:
        if status.on:
            pending.slice_seconds = SLICE_SECONDS_LIVE
        reply = drive(door, pending.wait(), lambda still: _show(status, still, wait_ms, meanwhile))
        if status_of(reply) == "queued" and not keeps:
            reply = drive(door, pending.leave(reply))
    return reply


def _show(status: StatusLine, still: StillWaiting, wait_ms: int, meanwhile: Meanwhile | None) -> int | None:
    body = still.reply.body or {}
    if status_of(still.reply) == "queued":
        status.show(queue_text.waiting(body, still.waited_ms, wait_ms))
    elif "refused" in body:
        status.show(queue_text.waiting_for_any(body["refused"], still.waited_ms, wait_ms))
    else:
        status.show(queue_text.unheard(body))
    return None if meanwhile is None else meanwhile(body if status_of(still.reply) == "queued" else None)


def time_is_over(call: Call, body: Document) -> Answer:
    """The answer for a wait that ended without the job."""
    ticket: str | None = body.get("ticket")
    command = None
    if ticket is not None:
        flags = next_words(call, ("url", "namespace", "session", "ttl", "owner"))
        names = call.values.get("name") or [call.values["job"]]
        wait = ["--wait", call.values.get("wait") or "5m", "--ticket", ticket]
        command = shell_line(["dibs", call.command, *flags, *wait, "--", *names])
    message = queue_text.over_sentence(body)
    text = queue_text.over(body, call.paint, command)
    return no(NO, body, text, code="queued", message=message, quiet=plain(ticket or ""))
