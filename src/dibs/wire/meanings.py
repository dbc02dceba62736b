"""What the fields of documents mean, who sees them, and which fields an answer has.

`fields.py` has types and bounds, and every command reads it when it starts. This file has the words, for pages, schemas
and tests. `schemas.py` combines both. The classes of the Python SDK are written out by hand, because type checkers must
see them; a test compares them with `reply_fields.py`.
"""

from __future__ import annotations

from dibs.core import limits
from dibs.core.identity import AGENT, ROLES

# Of each request field: its default, and what it means. A default may be a sentence; "" is none.
NEEDED = "needed"
_TTL_MS = ("", "the same in milliseconds, instead of `ttl_seconds`")
_PROOF = {"lease_id": ("", "the proof"), "session_id": ("", "or this")}
CLAIM_FIELDS = {
    "ttl_seconds": (
        "60, or inside a session as long as that lives",
        "how long the lease lasts without a heartbeat",
    ),
    "ttl_ms": _TTL_MS,
    "owner": ("the token's name", "who, as shown to everybody. Proves nothing"),
    "metadata": ("", "shown to everybody"),
    "request_key": (
        "",
        "a value that is new for each claim. Repeating the request with it gives the same lease",
    ),
    "session_id": ("", "the session that the claim belongs to"),
    "ephemeral": (
        "true inside a session",
        "false: the lease outlives its session, by its own TTL. true needs a `session_id`",
    ),
    "lock_delay_seconds": ("0", "how long the job rests if this lease is lost, not released"),
    "mode": ("", "shared: coexists with other shared claims, excludes exclusive ones"),
    "slots": ("1", "up to so many owners at once. All must give the same number; not with `shared`"),
    "max_attempts": ("0 for no limit", "after so many failures and losses in a row the job is parked"),
    "again": ("false", "claim although the job is marked done"),
}
_LIMIT_MEANINGS = {
    "max_held": ("0", "how many jobs its principal may hold, places in line counted; 0 is no limit"),
    "max_waiting": ("0", "how many places in line"),
    "max_sessions": ("0", "how many open sessions"),
    "rate_per_second": ("0", "how many requests a second, at each server"),
}
REQUEST_MEANINGS: dict[str, dict[str, tuple[str, str]]] = {
    "acquire": {
        **CLAIM_FIELDS,
        "wait_seconds": ("0", "get in line, and keep the request open for so long"),
        "ticket": ("", "the place in line that an earlier `queued` gave"),
        "lease_id": (
            "",
            "proves that the caller already holds the job: gives the same lease, or `lease_not_current`",
        ),
        "acl": ("", "who may claim the job, see [below](#put-locksnameacl)"),
    },
    "acquire-any": {
        **CLAIM_FIELDS,
        "names": ("", "tried in this order"),
        "wait_seconds": ("", "only 0: claiming any of several does not wait"),
    },
    "acquire-all": {
        **CLAIM_FIELDS,
        "names": ("", "all of them or none"),
        "wait_seconds": ("0", "wait in all lines at once, holding nothing"),
        "ticket": ("", "as with `acquire`"),
    },
    "leave": {"ticket": ("", "the place to give up")},
    "renew": {
        **_PROOF,
        "ttl_seconds": ("the one it has", "a new TTL, from now. It may be shorter"),
        "ttl_ms": _TTL_MS,
        "metadata": ("", "replaces what there is"),
        "checkpoint": ("", "how far the work has come"),
    },
    "release": {
        **_PROOF,
        "done": ("false", "the job counts as done, for a day unless `done_seconds` says how long"),
        "done_seconds": ("0, with `done` 86,400", "the job counts as done for so long"),
        "result": ("", "shown meanwhile; needs `done` or `done_seconds`"),
        "checkpoint": ("", "for the next owner"),
        "failed": (
            "false",
            "the work did not succeed: it counts as an attempt. Not with `done_seconds`",
        ),
        "reason": ("", "why it failed; needs `failed`"),
        "retry_after_seconds": ("0", "nobody gets the job for so long; needs `failed`"),
        "uncounted": (
            "false",
            "neither failed nor done, for instance because the worker was interrupted: the count of attempts "
            "does not change",
        ),
    },
    "transfer": {
        **_PROOF,
        "to_owner": (
            "",
            "the new owner, as shown to others. Without `to_session` it stays under the same token",
        ),
        "to_session": ("", "the new owner's open session, of this namespace; may be of another token"),
        "fresh_lease_id": (
            "one that the server makes",
            "a random UUID that you made for this, from which the server makes the new owner's lease id. After a lost "
            "reply, send the same: you get the same answer",
        ),
        "ttl_seconds": ("the one it has", "a new TTL"),
        "ttl_ms": _TTL_MS,
        "checkpoint": ("the one it has", "for the new owner"),
    },
    "break": {"reason": (NEEDED, "the old owner is told, history keeps it")},
    "free": {},
    "acl": {
        "acl": (
            "",
            "`user:NAME` for a token's name, `token:TOKEN` for a token itself, kept as its hash. Null, or no entries, "
            "removes the list",
        )
    },
    "inspect": {},
    "session-open": {
        "ttl_seconds": (
            "60. A value out of bounds is set to the nearest bound",
            "how long the session lives without a keepalive",
        ),
        "ttl_ms": (
            "",
            "the same, instead of `ttl_seconds`. A value out of bounds is refused (`invalid_ttl`)",
        ),
        "owner": ("the token's name", "who"),
        "metadata": ("", "shown to those who may see the session"),
        "process": (
            "",
            "identifies the session's process for others on the same machine; the command line fills it in",
        ),
        "parent_id": (
            "",
            "a session of yours whose part this one is, such as an agent's whose subagent opens this one. Claims of a "
            "session and of its parent do not exclude each other. Two with the same parent exclude each other",
        ),
        "fresh_session_id": (
            "one that the server makes",
            "a random UUID that you made for this, from which the server makes the session's id. After a lost reply, "
            "send the same: you get the same session",
        ),
    },
    "session-keep": {
        "ttl_ms": ("as it is", "from now on the session lives this long without a keepalive"),
        "active": (
            "false",
            "the worker itself asks, not a timer. Refusals show when that was, and the answer says who began to wait "
            "for a job of the session",
        ),
    },
    "session-end": {},
    "session-show": {},
    "session-break": {"reason": ("needed", "history keeps it, and the late worker is told")},
    "token-create": {
        "name": (
            "",
            "the principal, in letters, digits and `. _ @ + -`. Several tokens may have one name",
        ),
        "role": ("", "what it may do"),
        "namespace": ("any", "the only namespace that it may use"),
        "expires_seconds": ("never", "how long it is valid"),
        "sha256": (
            "",
            "64 hexadecimal digits: the hash of an existing token. Then no token is made, and the reply has "
            "none",
        ),
        **_LIMIT_MEANINGS,
    },
    "token-rotate": {
        "grace_seconds": ("600", "how long the old one stays valid; 0 ends it at once"),
        "expires_seconds": ("the lifetime of the old one", "how long the new one is valid"),
    },
    "token-limit": {field: ("as it is", meaning) for field, (_, meaning) in _LIMIT_MEANINGS.items()},
    "webhook-create": {
        "url": ("", "where deliveries go: https, without a user name"),
        "secret": ("deliveries are not signed", "signs each delivery. It is not shown again"),
        "events": (
            "`*`",
            "`*`, OctoStore's `acquired`, `renewed`, `released`, `expired`, or kinds of events as `GET /events` says "
            "them",
        ),
        "lock_pattern": ("`*`", "a job's name, the beginning of names with `*` after it, or `*`"),
    },
    "webhook-replay": {
        "after": ("only dead letters", "the number of an event: all events after it are sent again"),
    },
    "campaign": {
        "candidate_id": ("", "who, as shown to everybody: letters, digits and `- _ . : @`. Proves nothing"),
        "ttl_seconds": ("30", "how long the term lasts without a heartbeat. Without a token 5 to 300"),
        "metadata": ("", "shown to everybody"),
        "request_key": (
            "",
            "a value that is new for each campaign. Repeating the request with it gives the same term, so a lost "
            "reply can be asked for again",
        ),
    },
    "election-renew": {
        "leader_token": ("", "the proof"),
        "ttl_seconds": ("the one it has; without a token 30", "a new TTL, from now. It may be shorter"),
    },
    "resign": {"leader_token": ("", "the proof")},
    "login": {"token": ("", "a token that the server accepts")},
}

# Bounds of a single verb, and bounds that are not one number.
_SESSION_MS = (limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX)
VERB_NUMBERS: dict[tuple[str, str], tuple[int, int]] = {
    ("acquire-any", "wait_seconds"): (0, 0),
    ("session-open", "ttl_seconds"): (limits.SESSION_TTL_MS_MIN // 1000, limits.SESSION_TTL_MS_MAX // 1000),
    ("session-open", "ttl_ms"): _SESSION_MS,
    ("session-keep", "ttl_ms"): _SESSION_MS,
}
LIST_LENGTHS = {"acquire-any": (1, limits.NAMES_MAX), "acquire-all": (1, limits.ALL_NAMES_MAX)}
NOT_EMPTY = {
    ("break", "reason"),
    ("session-break", "reason"),
    *[(verb, "request_key") for verb in ("acquire", "campaign", *LIST_LENGTHS)],
}
CHOICES = {
    "mode": ("exclusive", "shared"),
    "role": (AGENT, *[role for role in ROLES if role != AGENT]),
}  # the first is the default
ACL_LENGTHS = {"acquire": (1, limits.ACL_ENTRIES_MAX), "acl": (0, limits.ACL_ENTRIES_MAX)}

# How texts must look, and texts whose form no pattern says: a format of our own.
NAMESPACE_PATTERN = rf"^[A-Za-z0-9._-]{{1,{limits.NAMESPACE_CHARS_MAX}}}$"
PRINCIPAL_PATTERN = rf"^[A-Za-z0-9._@+-]{{1,{limits.PRINCIPAL_CHARS_MAX}}}$"
PATTERNS = {
    ("token-create", "name"): PRINCIPAL_PATTERN,
    ("token-create", "namespace"): NAMESPACE_PATTERN,
    ("campaign", "candidate_id"): rf"^[A-Za-z0-9_.:@-]{{1,{limits.CANDIDATE_CHARS_MAX}}}$",
    ("token-create", "sha256"): "^[0-9a-f]{64}$",
}
ACL_PATTERN = "^(user|token):."
NAME_FORMAT = "dibs-job-name"
# Out of bounds is not refused, so a schema has no bounds.
CLAMPED = {("session-open", "ttl_seconds")}

# Who sees the fields of a request, as long as the job or session is on record.
EVERYBODY = "everybody who may look at the namespace"
CALLER = "only the caller that received it: it is a proof"
NOBODY = "nobody"
SEEN_BY = {
    **dict.fromkeys(("owner", "to_owner", "metadata", "checkpoint", "result", "reason"), EVERYBODY),
    "mode": EVERYBODY,
    "slots": EVERYBODY,
    "acl": f"{EVERYBODY}; an entry `token:` as `token:[redacted]`",
    "candidate_id": EVERYBODY,
    "lease_id": CALLER,
    "leader_token": CALLER,
    "ticket": CALLER,
    "session_id": f"{CALLER}. Lists of sessions show the ids of others cut short",
    "to_session": NOBODY,
    "fresh_lease_id": CALLER,
    "fresh_session_id": CALLER,
    "request_key": NOBODY,
    "process": NOBODY,
    "parent_id": NOBODY,
    "token": NOBODY,
}
