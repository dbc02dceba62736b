"""Sentences of `help()` about the SDK's parameters that are fields of a request, by verb.

Written from `request_fields.py`, which takes longer to import than a claim takes. Change that, and write this again
with `DIBS_REWRITE=1 python -m pytest tests/wire/test_fields.py`.
"""

from __future__ import annotations

# fmt: off
# ruff: noqa: E501
PARAMETER_TEXTS: dict[str, dict[str, str]] = {
    "acquire": {
        "ttl": 'how long the claim lasts without a heartbeat: seconds, text such as "2m" or a timedelta; 60 by default, from a second to a day',
        "ttl_ms": "the same in milliseconds, instead of `ttl_seconds`",
        "owner": "who you are, as shown to others; it proves nothing",
        "metadata": "a short text shown to everybody, such as repo=acme/app",
        "request_key": "a value that is new for each claim: repeating the claim with it gives the same lease",
        "session_id": "the session that the claim belongs to",
        "ephemeral": "false: the lease outlives its session, by its own TTL. true needs a `session_id`",
        "lock_delay": "if the claim is lost, not released, nobody gets the job for this long, a minute at most",
        "shared": "shared: coexists with other shared claims, excludes exclusive ones",
        "slots": "up to this many owners at once; all must give the same number, and none may be shared. Of a pool it may be left out",
        "units": "how many of the slots to take",
        "max_attempts": "after this many failures and losses in a row, park the job until somebody frees it",
        "again": "claim the job even if it is marked as done",
        "max_hold": "the claim ends after this long, whatever is renewed",
        "wait": "how long to wait in line: not at all by default, math.inf without end",
        "ticket": "the place in line that an earlier `queued` gave",
        "replaces": "with `wait`: a group of which only the newest waits in line; older ones raise JobSuperseded",
        "lease_id": "proves that the caller already holds the job: gives the same lease, or `lease_not_current`",
        "acl": "who may claim the job, see [below](#put-locksnameacl)",
    },
    "acquire-any": {
        "ttl": 'how long the claim lasts without a heartbeat: seconds, text such as "2m" or a timedelta; 60 by default, from a second to a day',
        "ttl_ms": "the same in milliseconds, instead of `ttl_seconds`",
        "owner": "who you are, as shown to others; it proves nothing",
        "metadata": "a short text shown to everybody, such as repo=acme/app",
        "request_key": "a value that is new for each claim: repeating the claim with it gives the same lease",
        "session_id": "the session that the claim belongs to",
        "ephemeral": "false: the lease outlives its session, by its own TTL. true needs a `session_id`",
        "lock_delay": "if the claim is lost, not released, nobody gets the job for this long, a minute at most",
        "shared": "shared: coexists with other shared claims, excludes exclusive ones",
        "slots": "up to this many owners at once; all must give the same number, and none may be shared. Of a pool it may be left out",
        "units": "how many of the slots to take",
        "max_attempts": "after this many failures and losses in a row, park the job until somebody frees it",
        "again": "claim the job even if it is marked as done",
        "max_hold": "the claim ends after this long, whatever is renewed",
        "names": "tried in this order",
        "count": "claim this many of them or none",
        "wait": "only 0: claiming any of several does not wait",
    },
    "release": {
        "lease_id": "the lease id that the claim gave: it proves that the job is yours",
        "session_id": "or this: the session of the claim",
        "done": "how long the job is marked as done; True is a day",
        "result": "a short text for later claims while the job is marked as done, such as a link to the pull request",
        "checkpoint": "how far the work has come, for the next owner",
        "failed": "the work failed; this counts as an attempt",
        "reason": "with a failure: why; everybody who may see the job sees it",
        "retry_after": "with a failure: nobody gets the job for this long, a week at most",
        "uncounted": "neither failed nor done, as after an interruption: the count of attempts stays",
    },
    "transfer": {
        "lease_id": "the lease id that the claim gave: it proves that the job is yours",
        "session_id": "or this: the session of the claim",
        "to_owner": "who gets the job, as shown to others. Without `to_session` it stays under the same token",
        "to_session": "the open session that gets the job, of this namespace; may be of another token. It needs no lease id",
        "fresh_lease_id": "a random UUID of yours, from which the server makes the new owner's lease id. After a lost reply, send the same: you get the same answer",
        "ttl": "a new TTL",
        "ttl_ms": "the same in milliseconds, instead of `ttl_seconds`",
        "checkpoint": "for the new owner",
    },
    "break": {
        "reason": "the old owner is told, history keeps it",
        "fencing_token": "take it only from the owner with this fencing token, and from nobody if that hold has ended",
    },
    "close": {
        "until": "when it ends by the store's clock, such as 2026-11-17T18:00:00Z, in UTC unless it has an offset; or",
        "for": "for how long; one of the two is needed",
        "reason": "shown to everybody who asks for the job",
    },
}
