"""release: release jobs, and mark them as done or failed if asked to."""

from __future__ import annotations

from dibs.cli.framework.batch import combined
from dibs.cli.framework.flags import (
    ACTOR,
    CHECKPOINT,
    DONE,
    FAILED,
    LEASE,
    NOT_YOURS,
    REASON,
    RETRY_AFTER,
    SESSION,
    TRACKED,
    done_fields,
    next_words,
    proof,
    put,
)
from dibs.cli.framework.result import failure, is_failure, yes
from dibs.cli.framework.spec import JOBS, Command, Option
from dibs.cli.supervise.verdict import failure_fields
from dibs.cli.text import claim as claim_text
from dibs.core.limits import CHECKPOINT_BYTES_MAX, RESULT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]


def release(call: Call) -> Answer:
    document = proof(call)
    document |= done_fields(call, call.text("result", RESULT_BYTES_MAX))
    put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    document |= failure_fields(call)
    return combined([(name, _released(call, name, document)) for name in call.values["job"]])


def _released(call: Call, name: str, document: Document) -> Answer:
    if name.startswith(TRACKED):
        from dibs.cli.tracker.notice import withdraw_before_release

        proven = {key: value for key, value in document.items() if key in ("lease_id", "session_id")}
        withdraw_before_release(call, name, proven)
    reply = call.door().call("release", name, document)
    body: Document = reply.body or {}
    if body.get("status") == "failed":
        after = next_words(call, ("url", "namespace"))
        return yes(body | {"released": True}, claim_text.failed(body, call.paint, after))
    if is_failure(reply):
        return failure(reply)
    text = claim_text.released(name, document.get("done_seconds", 0) * 1000, call.paint)
    return yes({"name": name, "released": True}, text)


COMMANDS = {
    "release": Command(
        "release",
        release,
        about=(
            "Frees the job at once. --done marks it as done: claims in that time are refused, with the result"
            " and who did it. --failed counts as an attempt: the next owner sees the reason, --max-attempts "
            "parks the job after that many in a row, and a release without --failed resets the count. "
            "Repeating a release is not an error. Several jobs are released one by one; an error with one "
            "does not stop the others."
        ),
        arguments=(JOBS,),
        options=(
            LEASE,
            SESSION,
            ACTOR,
            DONE,
            Option(
                "--result",
                "the result, shown while the job is marked as done; - reads it from stdin",
                value="TEXT",
            ),
            CHECKPOINT,
            FAILED,
            REASON,
            RETRY_AFTER,
        ),
        examples=(
            ("free for the next owner", 'dibs release issue-1842 --lease "$LEASE"'),
            ("inside a session", "dibs release issue-1842"),
            ("all jobs of a claim-all", 'dibs release staging database --lease "$LEASE"'),
            ("done, for a day", 'dibs release issue-1842 --lease "$LEASE" --done --result "PR 77"'),
            ("done, for an hour", 'dibs release issue-1842 --lease "$LEASE" --done 1h'),
            (
                "failed; not again for five minutes",
                'dibs release issue-1842 --lease "$LEASE" --failed --reason "registry away" --retry-after 5m',
            ),
        ),
        exits=((0, "let go"), NOT_YOURS),
    ),
}
