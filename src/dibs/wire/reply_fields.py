"""The fields of answers, by document: which are always there, which may be null, and what they mean.
`fields.REPLY_KINDS` has their types, `fields.REPLIES` those that a client needs. Like `meanings.py` this is for pages,
schemas and tests: a test compares every kind of answer with it."""

from __future__ import annotations

from dibs.wire.fields import OBJECT, REPLY_KINDS, TEXT

# Marks before a meaning.
ALWAYS, NULL, LEFT_OUT, EITHER = "", "?", "-", "?-"

_NAME = (ALWAYS, "the job")
_HOLD = {
    "holder_id": (EITHER, "a one-way name for credential and owner, shaped like a UUID"),
    "owner": (EITHER, "who"),
    "fencing_token": (LEFT_OUT, "its token"),
    "mode": (LEFT_OUT, "`exclusive` or `shared`"),
    "since": (LEFT_OUT, "since when"),
    "held_ms": (LEFT_OUT, "how long already"),
    "last_heartbeat": (LEFT_OUT, "the owner's last sign of life: a heartbeat of the lease or of its session"),
    "silent_ms": (LEFT_OUT, "how long ago that was"),
    "last_active": (
        LEFT_OUT,
        "when the worker itself last did something, such as a tool call of an agent. Only where its session says so "
        "(`active`)",
    ),
    "idle_ms": (LEFT_OUT, "how long ago that was"),
    "expires_at": (EITHER, "when it ends without a heartbeat"),
    "remaining_ms": (EITHER, "when the hold ends, from now"),
    "metadata": (EITHER, "its metadata"),
    "checkpoint": (EITHER, "how far it got"),
    "attempt": (LEFT_OUT, "its attempt"),
}
_IN_THE_WAY = {
    "conflict": (
        LEFT_OUT,
        "in a tree: the name of the claim in the way, if it is another name than the one asked for",
    ),
    "holders": (
        LEFT_OUT,
        "if several are in the way: each with `name`, `owner` and `fencing_token`",
    ),
}
_PREVIOUS = (LEFT_OUT, "the last owner, if there was one: see [previous](#previous)")
_TOKEN = {
    "token": (LEFT_OUT, "the token, shown only here"),
    "id": (ALWAYS, "the beginning of its hash: identifies it, and proves nothing"),
    "name": (ALWAYS, "its principal"),
    "role": (ALWAYS, "what it may do"),
    "namespace": (NULL, "the only namespace it may use; null: any"),
    "created_at": (ALWAYS, "when it was made"),
    "created_by": (ALWAYS, "the principal that made it"),
    "last_used_at": (
        NULL,
        "when it was last used, to about two minutes; null: never, or in the last minute only",
    ),
    "expires_at": (NULL, "when it ends by itself; null: never"),
    "revoked_at": (NULL, "when it was revoked; null: it was not"),
    "valid": (ALWAYS, "whether it is accepted now"),
    "max_held": (ALWAYS, "its limits; 0 is none"),
    "max_waiting": (ALWAYS, "the same"),
    "max_sessions": (ALWAYS, "the same"),
    "rate_per_second": (ALWAYS, "the same"),
}
_ROOM = (ALWAYS, "the id")

ANSWERS: dict[str, dict[str, tuple[str, str]]] = {
    "acquired": {
        "status": (ALWAYS, "`acquired`"),
        "name": (LEFT_OUT, "the job; a claim-all names it in `leases`"),
        "lease_id": (ALWAYS, "the proof. Keep it to yourself"),
        "fencing_token": (LEFT_OUT, "a number that rises with every lease on this job"),
        "owner": (ALWAYS, "as given"),
        "expires_at": (LEFT_OUT, "when the lease ends without a heartbeat"),
        "remaining_ms": (ALWAYS, "the same, from now"),
        "renew_after_ms": (ALWAYS, "half of it: heartbeat by then"),
        "metadata": (EITHER, "as given, or null; also null if that of the other owners leaves no room"),
        "attempt": (
            LEFT_OUT,
            "1, and 1 more for each owner that failed at the job or lost it since the last clean release",
        ),
        "held_before": (
            LEFT_OUT,
            "true: an earlier request got the lease, and this request does not repeat it",
        ),
        "previous": _PREVIOUS,
        "skipped": (
            LEFT_OUT,
            "of a claim-any: the names before this one, each with `name`, `status` and the reason "
            "(`owner`, `remaining_ms`, `retry_after_ms`, `details`, ...)",
        ),
        "leases": (
            LEFT_OUT,
            "of a claim-all: one such document for each job. `lease_id`, `owner`, `remaining_ms` and "
            "`renew_after_ms` beside it then apply to all",
        ),
    },
    "held": {
        "status": (ALWAYS, "`held`"),
        "name": (LEFT_OUT, "the job"),
        **_HOLD,
        "holder_id": (
            EITHER,
            "a one-way name for credential and owner, shaped like a UUID; of the first in line, if nobody holds it",
        ),
        "expires_at": (
            EITHER,
            "when it ends without a heartbeat; for the first in line: when it loses its place unless it asks again",
        ),
        "waiting": (LEFT_OUT, "how many are in line"),
        "retry_after_ms": (ALWAYS, "when asking again makes sense"),
        "reserved_for": (
            LEFT_OUT,
            "if nobody holds it: the first in line, with `owner` and `since`",
        ),
        **_IN_THE_WAY,
        "refused": (
            LEFT_OUT,
            "of claim-any and claim-all, instead of all these: an answer for each name. An error has its "
            "`code` as `status` there",
        ),
    },
    "queued": {
        "status": (ALWAYS, "`queued`"),
        "name": _NAME,
        "ticket": (
            ALWAYS,
            "the place. Send the last one that you were given when you ask again, within 15 s",
        ),
        "position": (ALWAYS, "1: next"),
        **_HOLD,
        **_IN_THE_WAY,
        "retry_after_ms": (ALWAYS, "when to ask again: 5 s at most"),
    },
    "done": {
        "status": (ALWAYS, "`done`"),
        "name": _NAME,
        "owner": (ALWAYS, "who did it"),
        "done_at": (ALWAYS, "when"),
        "done_ms_ago": (ALWAYS, "how long ago"),
        "until": (ALWAYS, "until when it counts as done"),
        "retry_after_ms": (ALWAYS, "the same, from now"),
        "fencing_token": (ALWAYS, "the token it was done with"),
        "result": (NULL, "its result, or null"),
        "done": (
            ALWAYS,
            "the same as `GET /locks/{name}` says it: `owner`, `at`, `until`, `result`, `fencing_token`",
        ),
    },
    "delayed": {
        "status": (ALWAYS, "`delayed`"),
        "name": _NAME,
        "available_at": (ALWAYS, "until when"),
        "lock_delay_seconds": (ALWAYS, "the whole time of rest"),
        "retry_after_ms": (ALWAYS, "the rest of that time"),
        "previous": (LEFT_OUT, "the hold that ended before the rest"),
    },
    "parked": {
        "status": (ALWAYS, "`parked`"),
        "name": _NAME,
        "failures": (ALWAYS, "how many owners failed at it or lost it"),
        "previous": (LEFT_OUT, "the last of them"),
    },
    "previous": {
        "owner": (ALWAYS, "who had the job before"),
        "how": (ALWAYS, "`released`, `failed`, `expired`, `broken` or `transferred`"),
        "at": (ALWAYS, "when that was"),
        "fencing_token": (ALWAYS, "its token"),
        "checkpoint": (NULL, "how far it got, or null"),
        "attempt": (ALWAYS, "which attempt that was"),
        "by": (LEFT_OUT, "who broke it, or to whom it was handed"),
        "reason": (LEFT_OUT, "why it failed or was broken"),
    },
    "leave": {
        "name": _NAME,
        "left": (ALWAYS, "whether the caller was in the line. Leaving twice is fine"),
    },
    "renew": {
        "name": _NAME,
        "lease_id": (ALWAYS, "the same"),
        "fencing_token": (ALWAYS, "the same"),
        "expires_at": (ALWAYS, "when the lease ends now"),
        "remaining_ms": (ALWAYS, "the same, from now"),
        "renew_after_ms": (ALWAYS, "half of it"),
        "metadata": (NULL, "what there is now"),
        "checkpoint": (NULL, "what there is now"),
        "waiting": (ALWAYS, "how many wait for the job"),
        "new_waiters": (ALWAYS, "how many of them no answer to a heartbeat told of before"),
    },
    "failed": {
        "status": (ALWAYS, "`failed`"),
        "name": _NAME,
        "failures": (ALWAYS, "how many owners in a row failed at it or lost it"),
        "parked": (ALWAYS, "whether that parked it"),
        "retry_after_ms": (ALWAYS, "for how long nobody gets the job"),
        "previous": (ALWAYS, "the hold that ended, see [previous](#previous)"),
    },
    "transferred": {
        "status": (ALWAYS, "`transferred`"),
        "name": _NAME,
        "lease_id": (ALWAYS, "the new owner's"),
        "fencing_token": (ALWAYS, "the new one, higher"),
        "owner": (ALWAYS, "the new owner"),
        "expires_at": (ALWAYS, "when the lease ends"),
        "remaining_ms": (ALWAYS, "the same, from now"),
        "checkpoint": (NULL, "what there is"),
        "attempt": (ALWAYS, "the same as before"),
    },
    "break": {
        "name": _NAME,
        "broken": (
            ALWAYS,
            "what was taken away: `owner`, `fencing_token` and `checkpoint` of each. Empty if nobody held it",
        ),
    },
    "free": {
        "name": _NAME,
        "freed": (ALWAYS, "whether it was parked or rested; its count of attempts is reset"),
    },
    "acl": {
        "name": _NAME,
        "acl": (ALWAYS, "the list, as `acquire`; tokens are shown as `token:[redacted]`"),
    },
    "job": {
        "name": _NAME,
        "status": (ALWAYS, "`held`, `free`, `done`, `delayed` or `parked`"),
        **_HOLD,
        "fencing_token": (ALWAYS, "the token of the hold, else the last one; 0 if there was never one"),
        "slots": (LEFT_OUT, "while held: how many owners at once"),
        "holders": (
            LEFT_OUT,
            "if there are several: for each `holder_id`, `owner` and the other fields above",
        ),
        "done": (LEFT_OUT, "while done: `owner`, `at`, `until`, `result`, `fencing_token`"),
        "available_at": (LEFT_OUT, "while delayed, with `retry_after_ms`"),
        "retry_after_ms": (LEFT_OUT, "while delayed: the same, from now"),
        "previous": (LEFT_OUT, "see [previous](#previous)"),
        "acl": (LEFT_OUT, "if there is one"),
        "waiting": (LEFT_OUT, "how many are in line"),
        "overlapping": (
            LEFT_OUT,
            "in a tree: other claims in the way, each with `name`, `owner`, `mode`",
        ),
    },
    "list": {
        "locks": (
            ALWAYS,
            "as `GET /locks/{name}`, without `acl` and `overlapping`; in a tree also without `waiting`",
        ),
        "total": (
            NULL,
            "how many there are in all. null if there are more than on this page, or if it is not the first page",
        ),
        "prefix": (ALWAYS, "as asked"),
        "next": (NULL, "what to send as `after` for the next page; null on the last"),
    },
    "history": {"name": _NAME, "events": (ALWAYS, "in order, see below")},
    "events": {
        "events": (ALWAYS, "in order, as in a job's history, each also with `name` and `namespace`"),
        "next_after": (ALWAYS, "what to send as `after` to continue"),
        "gap": (NULL, "null, or what was asked for and is no longer on record, as in a stream"),
    },
    "event": {
        "seq": (ALWAYS, "its number in the store, rising"),
        "at": (ALWAYS, "when"),
        "event": (ALWAYS, "what, see below"),
        "owner": (LEFT_OUT, "the owner of the hold or place"),
        "fencing_token": (LEFT_OUT, "with `owner`: the token of the hold"),
        "attempt": (LEFT_OUT, "with `owner`: the attempt"),
        "ttl_seconds": (LEFT_OUT, "the TTL of the claim; 0 for a claim that lives as long as its session"),
        "metadata": (LEFT_OUT, "what the owner noted"),
        "checkpoint": (LEFT_OUT, "how far the work has come"),
        "result": (LEFT_OUT, "the result of the job"),
        "done_until": (LEFT_OUT, "until when it counts as done"),
        "by": (LEFT_OUT, "who broke, freed or received it"),
        "reason": (LEFT_OUT, "why"),
        "retry_after_seconds": (LEFT_OUT, "of a failure: for how long nobody gets the job"),
        "name": (LEFT_OUT, "of `GET /events`: the job"),
        "namespace": (LEFT_OUT, "of `GET /events`: its namespace"),
    },
    "session": {
        "session_id": (ALWAYS, "the proof. Keep it to yourself"),
        "user_id": (ALWAYS, "the token's name"),
        "owner": (ALWAYS, "who"),
        "metadata": (NULL, "as given, or null"),
        "since": (ALWAYS, "when it was opened"),
        "expires_at": (ALWAYS, "when it ends without a keepalive"),
        "remaining_ms": (ALWAYS, "the same, from now"),
        "ttl_seconds": (ALWAYS, "its TTL"),
        "keepalive_interval_secs": (ALWAYS, "half of it: send a keepalive by then"),
        "active": (ALWAYS, "whether it is open"),
        "lock_count": (LEFT_OUT, "how many leases it holds"),
        "holds": (
            LEFT_OUT,
            "each with `name`, `namespace`, `fencing_token`, `mode`, `remaining_ms` and `waiting` (how many wait)",
        ),
        "waits": (ALWAYS, "names of the jobs that it waits for in line"),
        "wanted": (
            LEFT_OUT,
            "of a keepalive with `active`: its jobs for which somebody waits of whom it was not told before. Each with "
            "`name`, `namespace`, `waiting` and `new_waiters`",
        ),
    },
    "sessions": {"sessions": (ALWAYS, "the open ones, as above")},
    "waiters": {
        "waiters": (ALWAYS, "the places in line, see [waiter](#waiter)"),
        "now": (ALWAYS, "the time of the store"),
        "next": (NULL, "what to send as `after` for the next page; null on the last"),
    },
    "waiter": {
        "name": _NAME,
        "owner": (ALWAYS, "who waits"),
        "position": (ALWAYS, "1: next"),
        "since": (ALWAYS, "since when"),
        "waiting_ms": (ALWAYS, "how long already"),
        "mode": (ALWAYS, "`exclusive` or `shared`"),
        "metadata": (NULL, "what it noted"),
        "holders": (
            ALWAYS,
            "who is in the way: each with `name` (in a tree maybe another one), `owner`, `fencing_token`, `session`",
        ),
        "session": (NULL, "its session's id, cut short"),
        "names": (LEFT_OUT, "of a claim-all: all the jobs it waits for at once"),
    },
    "activity": {
        "now": (ALWAYS, "the time of the store"),
        "since": (ALWAYS, "when the first of the 60 minutes began"),
        "minutes": (ALWAYS, "by event, how many there were in each minute, the oldest first"),
        "held": (ALWAYS, "how many claims there are now"),
        "whole": (ALWAYS, "false: there are more events than were counted so far. Ask again"),
    },
    "token": _TOKEN,
    "token-rotate": {
        **_TOKEN,
        "token": (ALWAYS, "the new token, shown only here"),
        "replaces": (ALWAYS, "the old one: `id`, and its `grace_seconds`"),
    },
    "tokens": {
        "tokens": (ALWAYS, "all, as above, without `token`. Revoked and expired ones are listed for 90 days"),
    },
    "token-limit": {"tokens": (ALWAYS, "those that were changed, as above")},
    "token-revoke": {"revoked": (ALWAYS, "the tokens, as above")},
    "election-room": {
        "election_id": (ALWAYS, "32 characters that nobody can guess. Give all candidates the same one"),
        "campaign_path": (ALWAYS, "where to campaign"),
        "status_path": (ALWAYS, "where to look"),
        "watch_path": (ALWAYS, "where to watch"),
    },
    "election-leader": {
        "status": (ALWAYS, "`leader`: you lead"),
        "election_id": _ROOM,
        "leader": (ALWAYS, "you"),
        "leader_token": (ALWAYS, "the proof, for renewing and resigning. Keep it to yourself"),
        "renew_after_ms": (ALWAYS, "half of what is left of the term: renew by then"),
    },
    "election-follower": {
        "status": (ALWAYS, "`follower`: somebody else leads, or comes first"),
        "election_id": _ROOM,
        "leader": (NULL, "who leads; null if somebody in line comes first"),
        "retry_after_ms": (ALWAYS, "how long the term lasts if it is not renewed"),
    },
    "election-resigned": {
        "election_id": _ROOM,
        "status": (ALWAYS, "`vacant`"),
        "previous_term": (ALWAYS, "the term that ended"),
    },
    "election": {
        "election_id": _ROOM,
        "status": (ALWAYS, "`leader`, or `vacant`: nobody leads"),
        "leader": (LEFT_OUT, "who leads"),
        "retry_after_ms": (ALWAYS, "how long the term lasts if it is not renewed"),
    },
    "election-state": {
        "schema_version": (ALWAYS, "1"),
        "election_id": _ROOM,
        "status": (ALWAYS, "`leader` or `vacant`"),
        "leader": (NULL, "who leads"),
        "retry_after_ms": (ALWAYS, "how long the term lasts if it is not renewed"),
        "observed_at": (ALWAYS, "when that was so"),
    },
    "leader": {
        "candidate_id": (ALWAYS, "who, as given"),
        "metadata": (LEFT_OUT, "as given"),
        "term": (ALWAYS, "a number that rises with every leader of this election: the fencing token"),
        "expires_at": (
            NULL,
            "when the term ends without a heartbeat. In a stream, of a leader that holds it by a session: when the "
            "session ends, as was known at `observed_at`",
        ),
    },
    "whoami": {
        "principal": (ALWAYS, "the token's name"),
        "role": (ALWAYS, "what it may do"),
        "namespace": (NULL, "the only namespace it may use; null: any"),
        "expires_at": (LEFT_OUT, "when the token ends by itself"),
    },
    "error": {
        "error": (ALWAYS, "a title"),
        "code": (ALWAYS, "one of the codes below, for programs"),
        "details": (ALWAYS, "a sentence for people"),
        "request_id": (LEFT_OUT, "the same as `X-Request-Id`"),
        "retry_after_ms": (LEFT_OUT, "only where asking later helps"),
        "cycle": (LEFT_OUT, "only with `deadlock`: owners and jobs in turn, beginning with the asker"),
        "ended": (
            LEFT_OUT,
            "only with `lease_not_current`, where it is remembered: `released`, `failed`, `expired`, `broken` or "
            "`transferred`",
        ),
    },
}
# Documents inside documents. Other lists hold texts, or are described in their own field.
PARTS = {
    "previous": "previous",
    "leases": "acquired",
    "locks": "job",
    "events": "event",
    "sessions": "session",
    "waiters": "waiter",
    "tokens": "token",
    "revoked": "token",
    "leader": "leader",
}
# Fields whose type differs in one document.
_OTHER_KINDS = {
    ("events", "gap"): OBJECT,
    ("error", "ended"): TEXT,
    ("done", "done"): OBJECT,
    ("job", "done"): OBJECT,
}
TEXT_LISTS = ("cycle", "waits", "names")  # lists of texts; all other lists hold documents


def kind_of(answer: str, field: str) -> str:
    """Text, number, flag, list or object."""
    return _OTHER_KINDS.get((answer, field)) or REPLY_KINDS.get(field, TEXT)
