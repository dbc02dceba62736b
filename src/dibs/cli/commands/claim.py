"""claim, heartbeat, release: the loop of a worker."""

from __future__ import annotations

from dibs.cli.framework.flags import (
    ACTOR,
    AGAIN,
    CHECKPOINT,
    CLAIM_EXITS,
    EXCLUSIVE,
    FAILED,
    KEEP,
    KEEP_FOR,
    KEEP_PLACE,
    LEASE,
    LOCK_DELAY,
    MAX_ATTEMPTS,
    METADATA,
    NO_WAIT,
    OWNER,
    REASON,
    REQUEST_KEY,
    RETRY_AFTER,
    SESSION,
    SHARED,
    SLOTS,
    TICKET,
    TTL,
    WAIT,
    asking,
    is_actor,
    next_words,
    proof,
    put,
    seconds,
    ttl_seconds,
)
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import failure, is_failure, no, refusal_exit, yes
from dibs.cli.framework.spec import JOBS, NEW_JOB, Command, Option
from dibs.cli.text import claim as claim_text
from dibs.core.limits import CHECKPOINT_BYTES_MAX, DONE_MS_MAX, RESULT_BYTES_MAX
from dibs.errors import FATE_UNKNOWN, StoreUnavailable
from dibs.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.cli.supervise.keeper import Watched
    from dibs.wire.documents import Reply

    Document = dict[str, Any]


def claim(call: Call) -> Answer:
    name = call.values.get("job")
    if call.values.get("staged"):
        if name is not None:
            raise UsageError("JOB or --staged, not both.", "claim")
        from dibs.cli.git.staged import claim_staged

        return claim_staged(call)
    if name is None:
        raise UsageError(f"claim needs JOB: {NEW_JOB.help}.", "claim")
    document = asking(call)
    watched = watched_for(call)
    reply = ask(call, "acquire", name, document)
    if refusal_exit(reply) is not None or is_failure(reply):
        return refused(call, reply, document["request_key"])
    body: Document = reply.body or {}
    return yes(body, granted(call, body, document, watched), quiet=plain(body["lease_id"]))


def watched_for(call: Call) -> Watched | None:
    """The process for whose life the claim shall be kept; None: nobody asked for that."""
    if not call.values.get("keep") and call.values.get("keep_for") is None:
        return None
    from dibs.cli.supervise.keeper import watched_process

    return watched_process(call)


def granted(
    call: Call, body: Document, asked: Document, watched: Watched | None, more: Sequence[str] = ()
) -> str:
    """The text about a claim that succeeded, with `more` lines. Leaves the keeper behind, if one was asked for."""
    if watched is not None:
        from dibs.cli.supervise.keeper import leave_keeper

        trouble = leave_keeper(call, body, asked, watched)
        if trouble is not None:
            _give_back(call, body)
            why = f"{plain(body['name'])} is not claimed, because nothing can keep it: {trouble.rstrip('.')}."
            raise StoreUnavailable(f"{why} Claim it without --keep, and heartbeat.")
        body["kept_for"] = watched.pid
    return claim_text.acquired(
        body,
        call.paint,
        next_words(call),
        timed="ttl_seconds" in asked,
        in_session="session_id" in asked,
        by_actor=is_actor(call),
        kept_for=body.get("kept_for"),
        more=more,
    )


def _give_back(call: Call, grant: Document) -> None:
    """A claim that would run out unnoticed is none."""
    if call.unconfirmed:
        call.unconfirmed.give_back()
    else:
        call.door().call("release", grant["name"], {"lease_id": grant["lease_id"]})


def ask(call: Call, verb: str, name: str, document: Document) -> Reply:
    """Ask for it, in line if that is wanted."""
    if any(call.values.get(key) is not None for key in ("wait", "ticket", "keep_place")):
        from dibs.cli.commands.claim_wait import wait_in_line

        return wait_in_line(call, verb, name, document)
    return call.claim(verb, name, document)


def refused(call: Call, reply: Reply, request_key: str) -> Answer:
    """The answer to a claim that got nothing."""
    body: Document = reply.body or {}
    if is_failure(reply):
        return _failed(call, failure(reply), request_key)
    status: str = body["status"]
    if status == "queued":
        from dibs.cli.commands.claim_wait import time_is_over

        return time_is_over(call, body)
    if status == "held":
        asked_as = call.settings.owner
        message, text = claim_text.held_sentence(body), claim_text.held(body, call.paint, asked_as)
        if claim_text.is_namesake(body, asked_as):
            message = f"{message} {claim_text.NAMESAKE}"
    elif status == "done":
        message = claim_text.done_sentence(body)
        text = claim_text.done(body, call.paint, message)
    elif status == "parked":
        message = claim_text.parked_sentence(body)
        text = claim_text.parked(body, call.paint, next_words(call, ("url", "namespace")))
    else:
        message, text = claim_text.delayed_sentence(body), claim_text.delayed(body, call.paint)
    return no(refusal_exit(reply) or 0, body, text, code=status, message=message)


def _failed(call: Call, answer: Answer, request_key: str) -> Answer:
    """A claim whose fate is not known can be asked about: the same request key gives the same lease."""
    if FATE_UNKNOWN in answer.text:
        answer.text += f"\nTo find out, repeat the claim with --request-key {request_key}"
        answer.message = answer.text
    elif answer.document.get("cycle"):
        answer.text = claim_text.deadlock(answer.document["cycle"])
    return answer


def heartbeat(call: Call) -> Answer:
    from dibs.cli.framework.batch import combined

    document = proof(call)
    put(document, "ttl_seconds", ttl_seconds(call))
    put(document, "metadata", call.values.get("metadata"))
    put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    return combined([(name, _renewed(call, name, document)) for name in call.values["job"]])


def _renewed(call: Call, name: str, document: Document) -> Answer:
    reply = call.door().call("renew", name, document)
    if is_failure(reply):
        return failure(reply)
    body: Document = {"name": name, **(reply.body or {})}  # a server that is older names none
    return yes(body, claim_text.renewed(name, body, call.paint))


def release(call: Call) -> Answer:
    from dibs.cli.framework.batch import combined
    from dibs.cli.supervise.verdict import failure_fields

    document = proof(call)
    done_seconds = seconds(call, "done", DONE_MS_MAX)
    result = call.text("result", RESULT_BYTES_MAX)
    if result is not None and not done_seconds:
        raise UsageError(
            "--result is shown while the job counts as done: add --done 1h, or how long it shall be.",
            "release",
        )
    put(document, "done_seconds", done_seconds)
    put(document, "result", result)
    put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    document |= failure_fields(call)
    return combined([(name, _released(call, name, document)) for name in call.values["job"]])


def _released(call: Call, name: str, document: Document) -> Answer:
    reply = call.door().call("release", name, document)
    body: Document = reply.body or {}
    if body.get("status") == "failed":
        after = next_words(call, ("url", "namespace"))
        return yes(body | {"released": True}, claim_text.failed(body, call.paint, after))
    if is_failure(reply):
        return failure(reply)
    text = claim_text.released(name, document.get("done_seconds", 0) * 1000, call.paint)
    return yes({"name": name, "released": True}, text)


_NOT_YOURS = (2, "the lease is not current: it ran out, was released, or was taken away. Stop the work")

COMMANDS = {
    "claim": Command(
        "claim",
        "claim a job, or learn who has it",
        claim,
        about=(
            "Prints the lease id, the proof that the claim is yours: heartbeat and release need it. The claim "
            "lasts for its TTL from the last heartbeat. When the job is somebody else's, says whose, and exits with 1. "
            "With --wait it gets in line, first come first served; when the time is over it leaves the line, or keeps "
            "its place with --keep-place. Inside a session (DIBS_SESSION) the claim lasts as long as the session does, "
            "and the name is enough for everything that follows. With --staged it claims the path: of everything that "
            "is staged in git, all or nothing, and remembers it for this shell, so that the hooks know it as yours. "
            "With --keep no heartbeats are needed: a small process sends them, lets the job go when the process that "
            "it belongs to ends, and ends after a release."
        ),
        arguments=(NEW_JOB,),
        options=(
            *(TTL, OWNER, METADATA, WAIT, NO_WAIT, KEEP_PLACE, TICKET, EXCLUSIVE, SHARED, SLOTS),
            *(SESSION, ACTOR),
            *(MAX_ATTEMPTS, LOCK_DELAY, REQUEST_KEY, AGAIN),
            Option("--staged", "claim the path: of every file staged in git, instead of a JOB"),
            *(KEEP, KEEP_FOR),
        ),
        examples=(
            (
                "claim a job for two minutes",
                'dibs claim issue-1842 --ttl 2m --owner agent-7 --metadata "repo=acme/app"',
            ),
            ("in a script", "LEASE=$(dibs claim -q issue-1842) || exit 0"),
            ("wait for it, first come first served", "dibs claim issue-1842 --wait 5m"),
            ("one of three at once", "dibs claim gpu --slots 3 --wait 10m"),
            ("read together, write alone", "dibs claim path:docs --shared"),
            ("what is about to be committed", "dibs claim --staged --ttl 15m"),
            ("for an agent that thinks for long", 'dibs claim issue-1842 --keep-for "$AGENT_PID"'),
            ("a name that begins with a dash", "dibs claim -- -odd-name"),
        ),
        exits=((0, "it is yours"), (1, "somebody else has it, or still has it after the wait"), *CLAIM_EXITS),
        several=(("claim-all", "all or none"), ("claim-any", "the first free one")),
    ),
    "heartbeat": Command(
        "heartbeat",
        "say that you are still at it, and how far you got",
        heartbeat,
        about=(
            "Starts the claim's TTL anew. A checkpoint is kept, and shown to whoever takes over. Of several jobs, each "
            "is renewed by itself."
        ),
        arguments=(JOBS,),
        options=(
            LEASE,
            SESSION,
            ACTOR,
            Option("--ttl", "a new TTL (default: the one it has)", value="TIME"),
            CHECKPOINT,
            METADATA,
        ),
        examples=(
            ("still here", 'dibs heartbeat issue-1842 --lease "$LEASE"'),
            ("with progress", 'dibs heartbeat issue-1842 --lease "$LEASE" --checkpoint "tests pass"'),
            ("inside a session", "dibs heartbeat issue-1842 --checkpoint 'half way'"),
            ("progress from a file", 'dibs heartbeat issue-1842 --lease "$LEASE" --checkpoint - < notes.txt'),
        ),
        exits=((0, "still yours"), _NOT_YOURS),
    ),
    "release": Command(
        "release",
        "let a job go, perhaps as done or failed",
        release,
        about=(
            "Frees the job at once. With --done, whoever claims it in that time is told that it is done, by "
            "whom and with what result. With --failed it counts as an attempt: the next owner is told, --max-attempts "
            "parks the job after so many in a row, and a release without --failed begins the count anew. "
            "Releasing your own released lease again is fine. Of several jobs, each is "
            "released by itself, and one that cannot be does not stop the others."
        ),
        arguments=(JOBS,),
        options=(
            LEASE,
            SESSION,
            ACTOR,
            Option("--done", "the job counts as done for this long", value="TIME"),
            Option(
                "--result",
                "what came of it, shown while it counts as done; - reads it from stdin",
                value="TEXT",
            ),
            CHECKPOINT,
            FAILED,
            REASON,
            RETRY_AFTER,
        ),
        examples=(
            ("free for the next", 'dibs release issue-1842 --lease "$LEASE"'),
            ("inside a session", "dibs release issue-1842"),
            ("all that a claim-all gave", 'dibs release staging database --lease "$LEASE"'),
            ("done for an hour", 'dibs release issue-1842 --lease "$LEASE" --done 1h --result "PR 77"'),
            (
                "failed; not again for five minutes",
                'dibs release issue-1842 --lease "$LEASE" --failed --reason "registry away" --retry-after 5m',
            ),
        ),
        exits=((0, "let go"), _NOT_YOURS),
    ),
}
