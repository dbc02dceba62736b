"""Webhooks in requests and replies, and what is sent to their targets. A secret is never shown."""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.base.jsontext import Document, encode
from dibs.core import events as kinds
from dibs.core.caller_rights import Caller
from dibs.core.events import LOCK_CHANGES, Event
from dibs.core.limits import NAME_BYTES_MAX, WEBHOOK_SECRET_CHARS_MAX
from dibs.core.names import check_name
from dibs.core.service.webhooks import EVERY, GAP, TEST, DeadLetter, Webhook, WebhookProgress
from dibs.wire.lease_documents import named_event
from dibs.wire.parts import holder_id, moment, offset_timestamp, timestamp

HIDDEN = "****"
# Kinds of events about no job, which no webhook is sent.
_ABOUT_NO_JOB = {
    *(kinds.SESSION_OPENED, kinds.SESSION_ENDED, kinds.OUTAGE, kinds.IMPORTED, kinds.IDENTITY_ACCEPTED),
    *(kinds.TOKEN_CHANGES | kinds.WEBHOOK_CHANGES),
}
# All others, and OctoStore's words for them.
EVENT_WORDS = (*sorted({*kinds.KINDS, *LOCK_CHANGES.values()} - _ABOUT_NO_JOB), EVERY)


def webhook_of(document: Document, ns: str, caller: Caller, webhook_id: str, *, own: bool) -> Webhook:
    """The webhook that a shaped document asks for. Its URL is checked elsewhere."""
    wanted = document.get("events", [EVERY])
    if not wanted or not all(isinstance(each, str) and each in EVENT_WORDS for each in wanted):
        raise InvalidInput(f"events is a list of some of {', '.join(EVENT_WORDS)}.")
    secret = document.get("secret", "")
    if len(secret) > WEBHOOK_SECRET_CHARS_MAX or not secret.isprintable():
        raise InvalidInput(f"secret has {WEBHOOK_SECRET_CHARS_MAX} printable characters at most.")
    pattern = document.get("lock_pattern", EVERY)
    is_name = 0 < len(pattern.encode()) <= NAME_BYTES_MAX and pattern.isprintable()
    if not is_name or EVERY in pattern[:-1]:
        raise InvalidInput("lock_pattern is a job's name, the beginning of names with * after it, or *.")
    if EVERY not in pattern:
        pattern = check_name(pattern)  # as a claim of it has it
    return Webhook(
        id=webhook_id,
        ns=ns,
        principal=caller.principal,
        url=document["url"],
        since_ms=0,
        secret=secret,
        events=tuple(dict.fromkeys(wanted)),
        pattern=pattern,
        bound=caller.namespace,
        own=own,
    )


def webhook_document(webhook: Webhook) -> Document:
    """A webhook, for its owner and for operators."""
    return {
        "id": webhook.id,
        "user_id": webhook.principal,
        "url": webhook.url,
        "secret": HIDDEN if webhook.secret else None,
        "events": list(webhook.events),
        "lock_pattern": webhook.pattern,
        "namespace": webhook.ns,
        "created_at": moment(webhook.since_ms),
        "active": not webhook.stopped,
        "stopped": webhook.stopped or None,
    }


def standing_document(webhook: Webhook, progress: WebhookProgress, dead: int, behind: int) -> Document:
    """A webhook, and how its deliveries stand."""
    return {
        **webhook_document(webhook),
        "delivered": progress.delivered,
        "failed": progress.failed,
        "waiting": len(progress.lanes),
        "dead": dead,
        "dropped": progress.dropped,
        "gaps": progress.gaps,
        "after": progress.at,
        "behind": behind,
    }


def deliveries_document(progress: WebhookProgress, letters: tuple[DeadLetter, ...]) -> Document:
    """The delivery log, the jobs that wait for a delivery, and the dead letters."""
    return {
        "deliveries": [
            {
                "id": note.seq,
                "at": moment(note.at_ms),
                "name": note.job,
                "event": note.kind,
                "try": note.tries,
                "status": note.status or None,
                "error": note.error or None,
                "took_ms": note.took_ms,
            }
            for note in progress.notes
        ],
        "waiting": [
            {
                "name": lane.job,
                "after": lane.after,
                "tries": lane.tries,
                "next_try_at": moment(lane.until_ms),
                "error": lane.error or None,
            }
            for lane in progress.lanes
        ],
        "dead": [
            {
                "id": letter.seq,
                "name": letter.job,
                "event": letter.kind,
                "at": moment(letter.at_ms),
                "tries": letter.tries,
                "error": letter.error or None,
                "again": letter.again,
            }
            for letter in letters
        ],
    }


def payload(webhook: Webhook, event: Event) -> bytes:
    """The body of a delivery: OctoStore's fields, and those of the event as `GET /events` has them; a webhook of
    OctoStore's kind gets the first alone."""
    document: Document = {
        "event": LOCK_CHANGES.get(event.kind, event.kind),
        "lock": event.job or None,
        "holder_id": holder_id(event) if event.owner else None,
        "fencing_token": event.token if event.owner else None,
        "timestamp": timestamp(event.at_ms),
    }
    if webhook.own:
        return encode({**document, "timestamp": offset_timestamp(event.at_ms)}).encode()
    document |= {"id": event.seq, "webhook_id": webhook.id}
    if event.kind == GAP:
        return encode({**document, "after": event.ticket, "oldest": event.seq + 1}).encode()
    if event.kind == TEST:
        return encode(document).encode()
    more = named_event(event)
    more["kind"] = more.pop("event")
    return encode({**more, **document}).encode()
