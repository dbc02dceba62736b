"""Kinds and bounds of fields, for checks at run time. Plain tables: every command reads them.

Written from `request_fields.py` and `answer_fields.py`. Change those, and write this again with
`DIBS_REWRITE=1 python -m pytest tests/wire/test_fields.py`.
"""

from __future__ import annotations

# fmt: off
# Requests, by verb: the kind of each field. With a ! it is required, with a ? required and maybe null.
REQUESTS: dict[str, dict[str, str]] = {
    "acquire": {
        "ttl_seconds": "whole", "ttl_ms": "whole", "owner": "text", "metadata": "text", "request_key": "text",
        "session_id": "id", "ephemeral": "flag", "lock_delay_seconds": "whole", "mode": "text", "slots": "whole",
        "units": "whole", "max_attempts": "whole", "again": "flag", "max_hold_seconds": "whole",
        "wait_seconds": "seconds", "ticket": "text", "replaces": "text", "lease_id": "id", "acl": "object",
    },
    "acquire-any": {
        "ttl_seconds": "whole", "ttl_ms": "whole", "owner": "text", "metadata": "text", "request_key": "text",
        "session_id": "id", "ephemeral": "flag", "lock_delay_seconds": "whole", "mode": "text", "slots": "whole",
        "units": "whole", "max_attempts": "whole", "again": "flag", "max_hold_seconds": "whole", "names": "list!",
        "count": "whole", "wait_seconds": "seconds",
    },
    "acquire-all": {
        "ttl_seconds": "whole", "ttl_ms": "whole", "owner": "text", "metadata": "text", "request_key": "text",
        "session_id": "id", "ephemeral": "flag", "lock_delay_seconds": "whole", "mode": "text", "slots": "whole",
        "units": "whole", "max_attempts": "whole", "again": "flag", "max_hold_seconds": "whole",
        "wait_seconds": "seconds", "ticket": "text", "replaces": "text", "names": "list!",
    },
    "leave": {"ticket": "text!"},
    "withdraw": {"request_key": "text", "ticket": "text", "names": "list!"},
    "renew": {
        "lease_id": "id", "session_id": "id", "ttl_seconds": "whole", "ttl_ms": "whole", "metadata": "text",
        "checkpoint": "text", "mode": "text", "effect_key": "text", "effect_status": "text", "effect_id": "id",
        "effect_result": "text", "effect_reason": "text",
    },
    "release": {
        "lease_id": "id", "session_id": "id", "done": "flag", "done_seconds": "whole", "result": "text",
        "checkpoint": "text", "failed": "flag", "reason": "text", "retry_after_seconds": "whole",
        "uncounted": "flag",
    },
    "transfer": {
        "lease_id": "id", "session_id": "id", "to_owner": "text", "to_session": "id", "fresh_lease_id": "id",
        "ttl_seconds": "whole", "ttl_ms": "whole", "checkpoint": "text",
    },
    "break": {"reason": "text", "fencing_token": "number"},
    "free": {},
    "close": {"until": "text", "for_seconds": "whole", "reason": "text"},
    "open": {},
    "acl": {"acl": "object?"},
    "pool": {"slots": "whole?"},
    "next": {"at_least": "whole", "number": "whole", "owner": "text", "request_key": "text"},
    "give-back": {"number": "whole!", "request_key": "text"},
    "inspect": {},
    "session-open": {
        "ttl_seconds": "whole", "ttl_ms": "whole", "owner": "text", "metadata": "text", "process": "text",
        "parent_id": "id", "fresh_session_id": "id",
    },
    "session-keep": {"ttl_ms": "whole", "process": "text", "metadata": "text", "active": "flag"},
    "session-end": {},
    "session-show": {},
    "session-break": {"reason": "text"},
    "token-create": {
        "name": "text!", "role": "text", "namespace": "text", "expires_seconds": "whole", "sha256": "text",
        "max_held": "whole", "max_waiting": "whole", "max_sessions": "whole", "rate_per_second": "whole",
        "max_hold_seconds": "whole",
    },
    "token-rotate": {"grace_seconds": "whole", "expires_seconds": "whole"},
    "token-limit": {
        "max_held": "whole", "max_waiting": "whole", "max_sessions": "whole", "rate_per_second": "whole",
        "max_hold_seconds": "whole",
    },
    "webhook-create": {"url": "text!", "secret": "text", "events": "list", "lock_pattern": "text"},
    "webhook-replay": {"after": "number"},
    "campaign": {
        "candidate_id": "text!", "ttl_seconds": "whole", "metadata": "text", "request_key": "text",
    },
    "election-renew": {"leader_token": "text!", "ttl_seconds": "whole"},
    "resign": {"leader_token": "text!"},
    "login": {"token": "text!"},
}
# The bounds of numbers, both included.
NUMBERS: dict[str, tuple[int, int]] = {
    "ttl_seconds": (1, 86_400), "ttl_ms": (1_000, 86_400_000), "lock_delay_seconds": (0, 60),
    "slots": (1, 10_000), "units": (1, 10_000), "max_attempts": (0, 1_000_000),
    "max_hold_seconds": (0, 31_536_000), "wait_seconds": (0, 3_600), "count": (1, 1_000),
    "done_seconds": (0, 31_536_000), "retry_after_seconds": (0, 604_800),
    "fencing_token": (1, 2_000_000_000_000_000), "for_seconds": (1, 2_592_000), "at_least": (0, 1_000_000_000),
    "number": (1, 1_000_000_000), "expires_seconds": (1, 315_360_000), "max_held": (0, 1_000_000),
    "max_waiting": (0, 1_000_000), "max_sessions": (0, 1_000_000), "rate_per_second": (0, 1_000_000),
    "grace_seconds": (0, 2_592_000),
}
# How many characters a text may have, or how many bytes.
CHARACTERS: dict[str, int] = {
    "owner": 256, "metadata": 1_024, "request_key": 256, "effect_reason": 1_024, "reason": 1_024,
    "to_owner": 256, "process": 256, "url": 2_048, "secret": 256, "candidate_id": 64, "token": 1_024,
}
BYTES: dict[str, int] = {
    "replaces": 512, "checkpoint": 4_096, "effect_key": 200, "effect_result": 1_024, "result": 4_096,
}
# Fields of a claim that go into its command unchanged, under their own names.
PLAIN_TERMS: tuple[str, ...] = ("metadata", "units", "max_attempts", "again")
# The kinds of fields of answers. What is not listed is text.
REPLY_KINDS: dict[str, str] = {
    "fencing_token": "number", "remaining_ms": "number", "renew_after_ms": "number", "attempt": "number",
    "ends_in_ms": "number", "slot": "number", "slot_numbers": "list", "held_before": "flag",
    "previous": "object", "skipped": "list", "leases": "list", "held_ms": "number", "silent_ms": "number",
    "idle_ms": "number", "waiting": "number", "retry_after_ms": "number", "reserved_for": "object",
    "paused": "flag", "holders": "list", "holder_count": "number", "refused": "list", "free": "number",
    "rest": "list", "position": "number", "closed": "object", "done_ms_ago": "number", "done": "object",
    "lock_delay_seconds": "number", "failures": "number", "effects": "list", "left": "flag", "released": "list",
    "kept": "list", "new_waiters": "number", "effect": "object", "parked": "flag", "broken": "list",
    "freed": "flag", "opened": "flag", "acl": "object", "slots": "number", "was": "number",
    "slots_taken": "number", "number": "number", "again": "flag", "returned": "flag", "last_number": "number",
    "pool": "flag", "overlapping": "list", "overlapping_count": "number", "within_seconds": "number",
    "last_success": "object", "overdue_ms": "number", "locks": "list", "total": "number", "closures": "list",
    "events": "list", "next_after": "number", "gap": "object", "seq": "number", "ttl_seconds": "number",
    "retry_after_seconds": "number", "uncounted": "flag", "keepalive_interval_secs": "number", "active": "flag",
    "lock_count": "number", "holds": "list", "waits": "list", "wanted": "list", "sessions": "list",
    "agents": "list", "jobs": "list", "files": "list", "job_count": "number", "file_count": "number",
    "open_ms": "number", "waiters": "list", "waiting_ms": "number", "units": "number", "names": "list",
    "minutes": "object", "held": "number", "stuck": "object", "whole": "flag", "valid": "flag",
    "max_held": "number", "max_waiting": "number", "max_sessions": "number", "rate_per_second": "number",
    "max_hold_seconds": "number", "replaces": "object", "tokens": "list", "revoked": "list", "leader": "object",
    "previous_term": "number", "schema_version": "number", "term": "number",
}
