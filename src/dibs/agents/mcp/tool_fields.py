"""The arguments and answers of the tools: each field once, with its type, its bounds and its meaning. The JSON schemas
for clients, the check of a call and the reference page are made from these."""

from __future__ import annotations

from typing import Any, NamedTuple

from dibs.core.limits import ALL_NAMES_MAX, DONE_MS_DEFAULT, NAMES_MAX, REASON_CHARS_MAX
from dibs.wire.request_fields import REQUESTS, tool_text

TTL_SECONDS_LOOSE = 15 * 60  # for HTTP: how long a model may think without a call
WAIT_SECONDS_MAX = 300  # clients give up on a tool call after some minutes
LIST_MAX = 1_000
TEXT, NUMBER, TRUTH = "string", "integer", "boolean"
IGNORED = "number"  # of an argument that changes nothing
NAMES = "list of string"
# Over stdio the connection keeps its claims. Over HTTP a lease id proves them.
STDIO, HTTP = "stdio", "http"


class ToolField(NamedTuple):
    """A field of a tool's arguments or of its answer. `kind` is a type of JSON, or a part of answers."""

    name: str
    meaning: str
    kind: str = TEXT
    default: Any = None
    # Of a number, or of the length of a text or a list.
    least: int | None = None
    most: int | None = None
    # It is in every call, or in every answer.
    always: bool = False
    # The only transport that has it.
    over: str | None = None
    # Other names under which a call may have it.
    also: tuple[str, ...] = ()


# Arguments


def _given(verb: str, name: str, kind: str = TEXT, default: Any = None, **more: Any) -> ToolField:
    """An argument that is a field of a request, described and bounded as that is."""
    least, most = REQUESTS[verb][name].numbers or (None, None)
    return ToolField(name, tool_text(verb, name), kind, default, **{"least": least, "most": most, **more})


def _wait(meaning: str, default: int = 0) -> ToolField:
    return ToolField("wait_seconds", meaning, NUMBER, default, 0, WAIT_SECONDS_MAX)


JOB = ToolField(
    "job", "Stable name of the work, such as issue-1842 or path:src/auth.rs.", always=True, also=("job_id", "name")
)
METADATA = _given("acquire", "metadata")
CHECKPOINT = _given("release", "checkpoint")
LEASE_ID = (
    ToolField(
        "lease_id", "Leave out for a claim of this connection. A lease_id from elsewhere is also valid.", over=STDIO
    ),
    _given("release", "lease_id", always=True, over=HTTP),
)
IN_LINE = _wait(f"If somebody has it, wait in line this long; at most {WAIT_SECONDS_MAX}.")


def _claim(wanted: ToolField, wait: ToolField = IN_LINE) -> tuple[ToolField, ...]:
    return (
        wanted,
        _given("acquire", "owner"),
        METADATA,
        wait,
        _given("acquire", "again", TRUTH, False),
        _given("acquire", "ttl_seconds", NUMBER, TTL_SECONDS_LOOSE, over=HTTP),
        _given("acquire", "request_key", over=HTTP),
    )


CLAIM_JOB = _claim(JOB)
CLAIM_ANY_JOB = _claim(
    ToolField("jobs", "Names, in order of preference.", NAMES, None, 1, NAMES_MAX, always=True),
    _wait("If all are held, try again for this long, without a place."),
)
CLAIM_ALL_JOBS = _claim(ToolField("jobs", "Names of the jobs.", NAMES, None, 1, ALL_NAMES_MAX, always=True))
HEARTBEAT_JOB = (
    JOB,
    *LEASE_ID,
    CHECKPOINT,
    METADATA,
    _given("renew", "effect_key"),
    _given("renew", "effect_status"),
    _given("renew", "effect_result"),
)
RELEASE_JOB = (
    JOB,
    *LEASE_ID,
    _given("release", "done", TRUTH, False),
    _given("release", "done_seconds", NUMBER, DONE_MS_DEFAULT // 1000, least=1),
    _given("release", "result"),
    _given("release", "failed", TRUTH, False),
    _given("release", "reason", most=REASON_CHARS_MAX),
    _given("release", "retry_after_seconds", NUMBER),
    CHECKPOINT,
)
HAND_OVER_JOB = (
    JOB,
    *LEASE_ID,
    _given("transfer", "to_owner"),
    _given("transfer", "to_session"),
    CHECKPOINT,
    _given("acquire", "ttl_seconds", NUMBER, TTL_SECONDS_LOOSE),
)
GET_JOB_OWNER = (JOB, ToolField("lease_id", "If the job is yours: giving the lease_id renews your lease.", over=HTTP))
LIST_CLAIMED_JOBS = (
    ToolField("prefix", "Only names that begin with this.", default=""),
    ToolField("limit", f"How many to list, at most {LIST_MAX}.", NUMBER, 100, 1, LIST_MAX),
)
WAIT_FOR_JOB = (JOB, _wait(f"Return after this long in any case; at most {WAIT_SECONDS_MAX}.", 30))

# Answers

OF_EVERY = (
    ToolField("message", "What happened, and what to do next.", always=True),
    ToolField(
        "lost", "Jobs of yours that were lost since the last call. Stop any work on them at once.", "list of lost claim"
    ),
)
_JOB = ToolField("job", "The job.", always=True)
_OWNER = ToolField("owner", "The owner, or the last one.")
_TOKEN = "fencing_token"
_SLOT = ToolField("slot", "Of a pool: the number of your slot, from 0.", NUMBER)
_PREVIOUS = ToolField("previous", "Who had it before you.", "previous owner")
_NAMESPACE = ToolField("namespace", "The namespace of the git repository, for path: and repo: names.")
_EXPIRES = ToolField("expires_in_seconds", "How long it stays yours without a renewal.", NUMBER)
JOB_OWNER = (
    _JOB,
    ToolField(
        "status",
        "held, done, free, delayed, parked, closed, paused or frozen; deadlock for a refused claim.",
        always=True,
    ),
    _OWNER,
    ToolField("since", "When its owner got it."),
    ToolField("held_seconds", "For how long its owner has had it.", NUMBER),
    ToolField("silent_seconds", "How long ago its owner was last heard of.", NUMBER),
    ToolField("free_in_seconds", "When it expires without another heartbeat.", NUMBER),
    ToolField("retry_after_seconds", "When to try again.", NUMBER),
    ToolField("metadata", "The owner's metadata."),
    ToolField("checkpoint", "The owner's checkpoint."),
    ToolField("result", "If it is done: the result."),
    _NAMESPACE,
)
# Parts of answers, each under the word that schemas call it by.
PARTS = {
    "job owner": JOB_OWNER,
    "claimed job": (
        _JOB,
        ToolField(_TOKEN, "Rises with every owner.", NUMBER),
        ToolField("attempt", "As of a single claim.", NUMBER),
        _SLOT,
        _PREVIOUS,
    ),
    "previous owner": (
        _OWNER,
        ToolField("how", "How its hold ended: released, failed, expired, broken or transferred."),
        ToolField("at", "When it ended."),
        ToolField("checkpoint", "Its last checkpoint."),
        ToolField("reason", "Why it failed or was broken."),
    ),
    "lost claim": (_JOB, ToolField("why", "How it was lost.")),
}
CLAIM_ANSWER = (
    *OF_EVERY,
    ToolField("claimed", "True: the job is yours, begin. False: do not begin.", TRUTH, always=True),
    ToolField(
        "status",
        "claimed; or why not: held (somebody has it now), done (it was finished: skip it), delayed, "
        "parked or deadlock. Of several: held if one of them is.",
        always=True,
    ),
    ToolField("job", "The job."),
    ToolField("lease_id", "The proof that the job is yours. Keep it secret."),
    ToolField(_TOKEN, "Rises with every owner. Send it with writes; the receiver refuses smaller ones.", NUMBER),
    _OWNER,
    ToolField("attempt", "1 for the first owner since the last success, 2 for the next, and so on.", NUMBER),
    _SLOT,
    _EXPIRES,
    _PREVIOUS,
    _NAMESPACE,
    ToolField("claims", "Of claim_all_jobs: one entry for each.", "list of claimed job"),
    ToolField("refused", "One entry for each job that you cannot have, with the reason.", "list of job owner"),
)
HEARTBEAT_ANSWER = (
    *OF_EVERY,
    ToolField("yours", "False: stop the work, somebody else may have it.", TRUTH, always=True),
    _JOB,
    _EXPIRES,
    ToolField("checkpoint", "The checkpoint that was stored."),
    ToolField("effect_status", "new, done, failed or in_doubt."),
    ToolField("effect_result", "What the step gave."),
)
RELEASE_ANSWER = (
    *OF_EVERY,
    ToolField("released", "False: the job was not yours any more; the message says why.", TRUTH, always=True),
    _JOB,
)
HAND_OVER_ANSWER = (
    *OF_EVERY,
    ToolField("handed_over", "False: the job was not yours; the message says why.", TRUTH, always=True),
    _JOB,
    _OWNER,
    ToolField("lease_id", "The new owner's lease. Give it to the new owner and to nobody else."),
    ToolField(_TOKEN, "The new owner's.", NUMBER),
    ToolField("expires_in_seconds", "How long the new owner has until its first heartbeat or release.", NUMBER),
)
JOB_ANSWER = (
    *JOB_OWNER,
    *OF_EVERY,
    ToolField("yours", "Whether the job is yours: by your lease_id, or by this connection.", TRUTH),
    ToolField(_TOKEN, "The latest fencing token.", NUMBER),
    ToolField("waiting", "How many wait in line.", NUMBER),
    ToolField("previous", "The last owner before the present one.", "previous owner"),
)
JOBS_ANSWER = (
    *OF_EVERY,
    ToolField("jobs", "One entry for each.", "list of job owner", always=True),
    ToolField("more", "Whether there are more jobs than the limit.", TRUTH),
)
