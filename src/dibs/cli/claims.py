"""claim, heartbeat, release: the loop of a worker."""

from __future__ import annotations

from dibs.cli import render
from dibs.cli.answer import failure, is_failure, no, refusal_exit, yes
from dibs.cli.parse import UsageError
from dibs.cli.spec import JOB, NEW_JOB, Command, Option
from dibs.client.door import FATE_UNKNOWN
from dibs.core.durations import format_duration, parse_duration
from dibs.core.limits import (
    CHECKPOINT_BYTES_MAX,
    DONE_MS_MAX,
    LOCK_DELAY_MS_MAX,
    RESULT_BYTES_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from dibs.errors import InvalidInput, InvalidTtl
from dibs.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.answer import Answer
    from dibs.cli.call import Call
    from dibs.wire.documents import Reply

    Document = dict[str, Any]


def claim(call: Call) -> Answer:
    name = call.values["job"]
    request_key = call.values.get("request_key") or new_id()
    document: Document = {"owner": call.settings.owner, "request_key": request_key}
    _put(document, "ttl_seconds", _ttl_seconds(call))
    _put(document, "metadata", call.values.get("metadata"))
    _put(document, "lock_delay_seconds", _seconds(call, "lock_delay", LOCK_DELAY_MS_MAX))
    if call.values.get("again"):
        document["again"] = True
    reply = call.door().call("acquire", name, document)
    if is_failure(reply):
        return _claim_failed(call, failure(reply), request_key)
    if refusal_exit(reply) is not None:
        return _refused(call, reply)
    body: Document = reply.body or {}
    return yes(body, render.acquired(body, call.paint, _global_words(call)), quiet=body["lease_id"])


def _refused(call: Call, reply: Reply) -> Answer:
    body: Document = reply.body or {}
    status: str = body["status"]
    if status == "held":
        message, text = render.held_sentence(body), render.held(body, call.paint)
    elif status == "done":
        message = render.done_sentence(body)
        text = render.done(body, call.paint, message)
    else:
        message, text = render.delayed_sentence(body), render.delayed(body, call.paint)
    return no(refusal_exit(reply) or 0, body, text, code=status, message=message)


def _claim_failed(call: Call, answer: Answer, request_key: str) -> Answer:
    """A claim whose fate is not known can be asked about: the same request key gives the same lease."""
    if FATE_UNKNOWN in answer.text:
        answer.text += f"\nTo find out, repeat the claim with --request-key {request_key}"
        answer.message = answer.text
    return answer


def _global_words(call: Call) -> list[str]:
    """Flags that the next command needs as well. What came from the environment is there next time, too."""
    given = [(flag, call.values.get(flag)) for flag in ("url", "namespace")]
    return [word for flag, value in given if value for word in (f"--{flag}", value)]


def heartbeat(call: Call) -> Answer:
    name = call.values["job"]
    document: Document = {"lease_id": _lease(call)}
    _put(document, "ttl_seconds", _ttl_seconds(call))
    _put(document, "metadata", call.values.get("metadata"))
    _put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    reply = call.door().call("renew", name, document)
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, render.renewed(name, body, call.paint))


def release(call: Call) -> Answer:
    name = call.values["job"]
    document: Document = {"lease_id": _lease(call)}
    done_seconds = _seconds(call, "done", DONE_MS_MAX)
    result = call.text("result", RESULT_BYTES_MAX)
    if result is not None and not done_seconds:
        raise UsageError(
            "--result is shown while the job counts as done: add --done 1h, or how long it shall be.",
            "release",
        )
    _put(document, "done_seconds", done_seconds)
    _put(document, "result", result)
    _put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    reply = call.door().call("release", name, document)
    if is_failure(reply):
        return failure(reply)
    text = render.released(name, (done_seconds or 0) * 1000, call.paint)
    return yes({"name": name, "released": True}, text)


def _put(document: Document, field: str, value: object) -> None:
    if value is not None:
        document[field] = value


def _lease(call: Call) -> str:
    lease = call.settings.pick("lease", "DIBS_LEASE")
    if lease is None:
        raise UsageError(
            f"{call.command} needs --lease ID, or DIBS_LEASE: the lease id that `dibs claim` printed.",
            call.command,
        )
    if not lease.strip():
        raise UsageError("--lease is empty. Did the claim before it succeed?", call.command)
    return lease.strip()


def _ttl_seconds(call: Call) -> int | None:
    text = call.values.get("ttl")
    if text is None:
        return None
    try:
        ttl_ms = parse_duration(text, "lease time")
    except InvalidInput as error:
        raise InvalidTtl(f"--ttl: {error.details}") from None
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        least, most = format_duration(TTL_MS_MIN), format_duration(TTL_MS_MAX)
        raise InvalidTtl(f"--ttl {text}: a lease lasts from {least} to {most}.")
    if ttl_ms % 1000:
        raise InvalidTtl(f"--ttl {text}: a lease lasts whole seconds.")
    return ttl_ms // 1000


def _seconds(call: Call, key: str, most_ms: int) -> int | None:
    text = call.values.get(key)
    if text is None:
        return None
    flag = f"--{key.replace('_', '-')}"
    try:
        length_ms = parse_duration(text)
    except InvalidInput as error:
        raise InvalidInput(f"{flag}: {error.details}") from None
    if length_ms > most_ms or length_ms % 1000:
        raise InvalidInput(f"{flag} {text}: whole seconds, {format_duration(most_ms)} at most.")
    return length_ms // 1000


TTL = Option(
    "--ttl", "how long the claim lasts without a heartbeat: 90, 30s, 15m, 2h (default 60s)", value="TIME"
)
LEASE = Option("--lease", "the lease id that the claim printed", value="ID", env="DIBS_LEASE")
METADATA = Option("--metadata", "a short text that everybody sees, such as repo=acme/app", value="TEXT")
CHECKPOINT = Option(
    "--checkpoint", "how far the work has come, for whoever takes over; - reads it from stdin", value="TEXT"
)
_NOT_YOURS = (2, "the lease is not current: it ran out, was released, or was taken away. Stop the work")

COMMANDS = {
    "claim": Command(
        "claim",
        "claim a job, or learn who has it",
        claim,
        about=(
            "Prints the lease id, the proof that the claim is yours: heartbeat and release need it. The claim "
            "lasts for its TTL from the last heartbeat. When the job is somebody else's, says whose, and exits with 1."
        ),
        arguments=(NEW_JOB,),
        options=(
            TTL,
            Option(
                "--owner",
                "who you are, as shown to others (default user@host)",
                value="NAME",
                env="DIBS_OWNER",
            ),
            METADATA,
            Option(
                "--request-key",
                "repeating a claim with the same key gives the same lease (default: a new key every time)",
                value="KEY",
            ),
            Option(
                "--lock-delay",
                "if the claim is lost, not released, the job rests this long (at most 60s)",
                value="TIME",
            ),
            Option("--again", "claim it even though it is marked as done"),
        ),
        examples=(
            (
                "claim a job for two minutes",
                'dibs claim issue-1842 --ttl 2m --owner agent-7 --metadata "repo=acme/app"',
            ),
            ("in a script", "LEASE=$(dibs claim -q issue-1842) || exit 0"),
            ("a name that begins with a dash", "dibs claim -- -odd-name"),
        ),
        exits=(
            (0, "it is yours"),
            (1, "somebody else has it"),
            (2, "the request key belongs to a claim that has ended"),
            (4, "it was done already"),
            (75, "it rests after a loss; try again later"),
        ),
    ),
    "heartbeat": Command(
        "heartbeat",
        "say that you are still at it, and how far you got",
        heartbeat,
        about="Starts the claim's TTL anew. A checkpoint is kept, and shown to whoever takes over.",
        arguments=(JOB,),
        options=(
            LEASE,
            Option("--ttl", "a new TTL (default: the one it has)", value="TIME"),
            CHECKPOINT,
            METADATA,
        ),
        examples=(
            ("still here", 'dibs heartbeat issue-1842 --lease "$LEASE"'),
            ("with progress", 'dibs heartbeat issue-1842 --lease "$LEASE" --checkpoint "tests pass"'),
            ("progress from a file", 'dibs heartbeat issue-1842 --lease "$LEASE" --checkpoint - < notes.txt'),
        ),
        exits=((0, "still yours"), _NOT_YOURS),
    ),
    "release": Command(
        "release",
        "let a job go, perhaps as done",
        release,
        about=(
            "Frees the job at once. With --done, whoever claims it in that time is told that it is done, by "
            "whom and with what result. Releasing your own released lease again is fine."
        ),
        arguments=(JOB,),
        options=(
            LEASE,
            Option("--done", "the job counts as done for this long", value="TIME"),
            Option(
                "--result",
                "what came of it, shown while it counts as done; - reads it from stdin",
                value="TEXT",
            ),
            CHECKPOINT,
        ),
        examples=(
            ("free for the next", 'dibs release issue-1842 --lease "$LEASE"'),
            ("done for an hour", 'dibs release issue-1842 --lease "$LEASE" --done 1h --result "PR 77"'),
        ),
        exits=((0, "let go"), _NOT_YOURS),
    ),
}
