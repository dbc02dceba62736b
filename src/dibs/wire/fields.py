"""The fields of documents, declared once: those of requests with their types and bounds, and the least that a reply
has.

The server checks requests by it, a client checks replies. These are plain tables, because every command reads them at
its start. `meanings.py` and `reply_fields.py` say what the fields mean and who sees them; no running command reads
those; the tables of docs/reference/http.md and JSON schemas (`schemas.py`) are made from all three.
"""

from __future__ import annotations

from dibs.core import limits

# Requests, by verb: each field with its type. "!" marks a required field, "?" a required one that may be null.
_PROOF = {"lease_id": "id", "session_id": "id"}
_ASK = {
    "ttl_seconds": "whole",
    "ttl_ms": "whole",
    "metadata": "text",
    "owner": "text",
    "request_key": "text",
    "session_id": "id",
    "ephemeral": "flag",
    "lock_delay_seconds": "whole",
    "mode": "text",
    "slots": "whole",
    "max_attempts": "whole",
    "again": "flag",
}
_WAIT = {"wait_seconds": "seconds", "ticket": "text"}
_LIMITS = {"max_held": "whole", "max_waiting": "whole", "max_sessions": "whole", "rate_per_second": "whole"}
REQUESTS: dict[str, dict[str, str]] = {
    "acquire": {**_ASK, **_WAIT, "lease_id": "id", "acl": "object"},
    "acquire-any": {**_ASK, "names": "list!", "wait_seconds": "seconds"},
    "acquire-all": {**_ASK, **_WAIT, "names": "list!"},
    "leave": {"ticket": "text!"},
    "renew": {**_PROOF, "ttl_seconds": "whole", "ttl_ms": "whole", "metadata": "text", "checkpoint": "text"},
    "release": {
        **_PROOF,
        "done": "flag",
        "done_seconds": "whole",
        "result": "text",
        "checkpoint": "text",
        "failed": "flag",
        "reason": "text",
        "retry_after_seconds": "whole",
        "uncounted": "flag",
    },
    "transfer": {
        **_PROOF,
        "to_owner": "text",
        "to_session": "id",
        "fresh_lease_id": "id",
        "ttl_seconds": "whole",
        "ttl_ms": "whole",
        "checkpoint": "text",
    },
    "break": {"reason": "text"},
    "free": {},
    "acl": {"acl": "object?"},
    "inspect": {},
    "session-open": {
        "ttl_seconds": "whole",
        "ttl_ms": "whole",
        "owner": "text",
        "metadata": "text",
        "process": "text",
        "parent_id": "id",
        "fresh_session_id": "id",
    },
    "session-keep": {"ttl_ms": "whole", "active": "flag"},
    "session-end": {},
    "session-show": {},
    "session-break": {"reason": "text"},
    "token-create": {
        "name": "text!",
        "role": "text",
        "namespace": "text",
        "expires_seconds": "whole",
        "sha256": "text",
        **_LIMITS,
    },
    "token-rotate": {"expires_seconds": "whole", "grace_seconds": "whole"},
    "token-limit": _LIMITS,
    "webhook-create": {"url": "text!", "secret": "text", "events": "list", "lock_pattern": "text"},
    "webhook-replay": {"after": "number"},
    "campaign": {
        "candidate_id": "text!",
        "ttl_seconds": "whole",
        "metadata": "text",
        "request_key": "text",
    },
    "election-renew": {"leader_token": "text!", "ttl_seconds": "whole"},
    "resign": {"leader_token": "text!"},
    "login": {"token": "text!"},
}

# The bounds of numbers, both included.
NUMBERS: dict[str, tuple[int, int]] = {
    "ttl_seconds": (limits.TTL_MS_MIN // 1000, limits.TTL_MS_MAX // 1000),
    "ttl_ms": (limits.TTL_MS_MIN, limits.TTL_MS_MAX),
    "wait_seconds": (0, limits.WAIT_MS_MAX // 1000),
    "lock_delay_seconds": (0, limits.LOCK_DELAY_MS_MAX // 1000),
    "slots": (1, limits.SLOTS_MAX),
    "max_attempts": (0, limits.ATTEMPTS_MAX),
    "done_seconds": (0, limits.DONE_MS_MAX // 1000),
    "retry_after_seconds": (0, limits.RETRY_MS_MAX // 1000),
    "expires_seconds": (1, limits.CREDENTIAL_LIFE_MS_MAX // 1000),
    "grace_seconds": (0, limits.ROTATION_GRACE_MS_MAX // 1000),
    **dict.fromkeys(_LIMITS, (0, limits.PRINCIPAL_LIMIT_MAX)),
}
# How long texts may be.
CHARACTERS = {
    "owner": limits.OWNER_CHARS_MAX,
    "to_owner": limits.OWNER_CHARS_MAX,
    "process": limits.OWNER_CHARS_MAX,
    "metadata": limits.METADATA_CHARS_MAX,
    "request_key": limits.REQUEST_KEY_CHARS_MAX,
    "candidate_id": limits.CANDIDATE_CHARS_MAX,
    "reason": limits.REASON_CHARS_MAX,
    "token": limits.TOKEN_CHARS_MAX,
    "url": limits.WEBHOOK_URL_CHARS_MAX,
    "secret": limits.WEBHOOK_SECRET_CHARS_MAX,
}
BYTES = {"checkpoint": limits.CHECKPOINT_BYTES_MAX, "result": limits.RESULT_BYTES_MAX}

# The types of reply fields. What is not listed is text.
TEXT, NUMBER, FLAG, LIST, OBJECT = "text", "number", "flag", "list", "object"
REPLY_KINDS: dict[str, str] = {
    **dict.fromkeys(
        ("fencing_token", "position", "failures", "attempt", "ttl_seconds", "seq", "waiting"), NUMBER
    ),
    **dict.fromkeys(("remaining_ms", "renew_after_ms", "retry_after_ms", "done_ms_ago", "held_ms"), NUMBER),
    **dict.fromkeys(("silent_ms", "idle_ms", "new_waiters", "next_after", "waiting_ms", "held"), NUMBER),
    **dict.fromkeys(("lock_delay_seconds", "retry_after_seconds", "slots", "lock_count", "total"), NUMBER),
    **dict.fromkeys(("keepalive_interval_secs", "took_ms"), NUMBER),
    **dict.fromkeys(("term", "previous_term", "schema_version"), NUMBER),
    **dict.fromkeys(("locks", "events", "sessions", "runs", "leases", "refused", "skipped"), LIST),
    **dict.fromkeys(("broken", "holders", "holds", "waits", "wanted", "overlapping", "cycle"), LIST),
    **dict.fromkeys(("tokens", "revoked", "webhooks", "deliveries"), LIST),
    **dict.fromkeys(("waiters", "names"), LIST),
    **dict.fromkeys(("left", "freed", "active", "held_before", "parked", "valid", "whole"), FLAG),
    **dict.fromkeys(("acl", "previous", "reserved_for", "replaces", "leader", "minutes"), OBJECT),
    **dict.fromkeys((*_LIMITS, "grace_seconds"), NUMBER),
    # Of a run: how many ended, and what they let go. `ended` of a lease that is not current is text.
    "ended": NUMBER,
    "released": LIST,
}


_TYPES: dict[str, type] = {TEXT: str, FLAG: bool, LIST: list, OBJECT: dict}


def is_of_kind(kind: str, value: object) -> bool:
    if kind == NUMBER:
        return type(value) is int and value >= 0  # True is not a number here
    return isinstance(value, _TYPES[kind])


# The least that a reply has, by verb; for a claim, by its status. Other JSON did not come from dibs.
_TOKEN = ("id", "name", "role", "valid")
_WEBHOOK = ("id", "url", "lock_pattern", "active")
REPLIES = {
    "renew": ("lease_id", "remaining_ms"),
    "release": (),
    "leave": ("left",),
    "transfer": ("lease_id", "fencing_token", "owner", "remaining_ms"),
    "free": ("freed",),
    "inspect": ("name", "status", "fencing_token"),
    "break": ("name", "broken"),
    "acl": ("acl",),
    "list": ("locks", "next"),
    "history": ("name", "events"),
    "events": ("events", "next_after"),
    "session-open": ("session_id", "owner", "remaining_ms", "ttl_seconds"),
    "session-keep": ("session_id", "remaining_ms"),
    "session-show": ("session_id", "owner", "remaining_ms", "active"),
    "session-end": (),
    "sessions": ("sessions",),
    "whoami": ("principal", "role"),
    "run-open": ("secret", "holder", "namespace"),
    "runs": ("runs",),
    "run-end": ("holder", "ended", "released"),
    "tokens": ("tokens",),
    "token-create": _TOKEN,
    "token-rotate": (*_TOKEN, "token", "replaces"),
    "token-revoke": ("revoked",),
    "token-limit": ("tokens",),
    "webhooks": ("webhooks",),
    "webhook-create": _WEBHOOK,
    "webhook-show": _WEBHOOK,
    "webhook-remove": (),
    "webhook-deliveries": ("deliveries",),
    "webhook-replay": _WEBHOOK,
    "webhook-test": ("took_ms",),
}
CLAIM_REPLIES = {
    "acquired": (
        "name",
        "lease_id",
        "fencing_token",
        "owner",
        "expires_at",
        "remaining_ms",
        "renew_after_ms",
    ),
    "held": ("name", "owner", "remaining_ms"),
    "queued": ("name", "ticket", "position", "owner", "remaining_ms", "retry_after_ms"),
    "done": ("name", "owner", "done_ms_ago", "retry_after_ms"),
    "delayed": ("name", "retry_after_ms"),
    "parked": ("name", "failures"),
}
# What each entry has in a list of several.
ROW_FIELDS = {
    "leases": ("name", "lease_id", "fencing_token", "expires_at", "remaining_ms"),
    "locks": REPLIES["inspect"],
    "events": ("seq", "at", "event"),
    "sessions": ("session_id",),
    "tokens": _TOKEN,
    "revoked": _TOKEN,
    "webhooks": _WEBHOOK,
}
# A claim of several has these in another form.
SEVERAL_REPLIES = {
    ("acquire-any", "held"): ("refused",),
    ("acquire-all", "held"): ("refused",),
    ("acquire-all", "acquired"): ("leases", "owner", "remaining_ms", "renew_after_ms"),
}
PREVIOUS_FIELDS = ("owner", "how", "at", "fencing_token")
