"""Turns replies of dibs into answers for a model. A refusal is an answer: who has the job, since when, for how long,
and what to do next. Names, reasons and checkpoints of others stand in quotes in a sentence, and are cut there: a
stranger's text cannot pass for an instruction of ours. In fields they are cut, too, and on one line; only the
checkpoint that a new owner takes over is whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.agents.mcp.tool_fields import CLAIM_ANSWER, HAND_OVER_ANSWER, PARTS, ToolField
from dibs.base.errors import DibsError, InvalidInput, LeaseLost, NotAllowed, NotClaimed, Unavailable
from dibs.base.jsontext import Document
from dibs.base.terminal import QUOTED_CHARS_MAX, plain, quoted
from dibs.core.durations import format_duration
from dibs.core.limits import CHECKPOINT_BYTES_MAX
from dibs.core.names import is_resource
from dibs.sdk.answers import Effect, JobStatus, Lease, Previous
from dibs.wire import sentences

_NOTE_CHARS_MAX = 500  # of a checkpoint, or of why a claim was lost
YOU = "you, on this connection"
SKIP_OR_WAIT = "Do not begin this work. Skip it and claim something else, or wait with claim_job and wait_seconds."
_NEXT = {
    "held": SKIP_OR_WAIT,
    "queued": SKIP_OR_WAIT,
    "done": "Skip it. If it must be done again, claim it with again=true.",
    **dict.fromkeys(("delayed", "closed"), "Skip it, or try again after this time."),
    "parked": "Skip it, and tell a person: `dibs free` frees it.",
    "paused": "Skip it, or wait with claim_job and wait_seconds until an operator gives it slots.",
    "frozen": "Claim nothing here now; try again later, and tell a person if it stays so.",
    "deadlock": "Do not wait. Release one of the jobs you hold, and try again later.",
}


def seconds(ms: int | None) -> int | None:
    """Whole seconds, rounded down like `format_duration`, so that a sentence and a field have the same number."""
    return None if ms is None else max(0, ms // 1000)


def _as_data(document: Document) -> Document:
    """A document for sentences, in which texts of others are quoted."""
    made: Document = {}
    for key, value in document.items():
        if isinstance(value, str) and key in ("owner", "by", "reason", "conflict"):
            made[key] = quoted(value)
        elif isinstance(value, dict):
            made[key] = _as_data(value)
        elif key == "overlapping" and value:
            made[key] = [{"name": quoted(each["name"]), "owner": quoted(each["owner"])} for each in value]
        else:
            made[key] = value
    return made


def _cut(text: Any, chars_max: int = _NOTE_CHARS_MAX) -> Any:
    """A text of another owner for a field: on one line, nothing in it turns or hides words, and not long."""
    if not isinstance(text, str):
        return text
    words = plain(text)
    return words if len(words) <= chars_max else words[:chars_max] + "…"


def before(previous: Previous | None) -> Document | None:
    """The checkpoint is whole: who takes over goes on from there."""
    if previous is None:
        return None
    fields = {field.name: getattr(previous, field.name) for field in PARTS["previous owner"]}
    return {name: _cut(value, CHECKPOINT_BYTES_MAX) for name, value in fields.items()}


def claimed(lease: Lease, *, kept: bool, again: bool = False) -> Document:
    """The answer to a successful claim. `kept`: this connection renews it; otherwise the agent's calls do."""
    left = format_duration(lease.remaining_ms)
    said = [f"{lease.name} is yours{' already' if again else ''}."]
    previous = lease.previous
    if previous is not None and (previous.checkpoint or previous.how != "released"):
        note = previous.checkpoint
        stopped = f" Its last checkpoint: {quoted(note, _NOTE_CHARS_MAX)}." if note else ""
        how = f"{previous.how}: {quoted(previous.reason)}" if previous.reason else previous.how
        said.append(f"You take over from {quoted(previous.owner)} ({how}).{stopped}")
    said += _doubts(lease)
    if kept:
        said.append("It stays yours while this connection lives, without heartbeats.")
    else:
        said.append(f"It stays yours for {left}; call heartbeat_job with this lease_id before that is over.")
    if lease.ends_in_ms is not None:
        said.append(f"It ends in {format_duration(lease.ends_in_ms)} at the latest, whatever you renew.")
    verdict = "" if is_resource(lease.name) else ", with done=true if the work is finished, failed=true if it failed"
    said.append(f"Release it at the end{verdict}.")
    return {
        "message": " ".join(said),
        "claimed": True,
        "status": "claimed",
        # A claim that the connection renews has no deadline for the agent.
        "expires_in_seconds": None if kept else seconds(lease.remaining_ms),
        **_shown(lease, CLAIM_ANSWER),
    }


def _shown(lease: Lease, fields: Sequence[ToolField]) -> Document:
    """The fields of a lease that an answer has under the same name."""
    names = {field.name for field in fields}
    found = {field: getattr(lease, field) for field in names & set(lease.__match_args__)} | {"job": lease.name}
    return {**found, "previous": before(lease.previous)} if "previous" in names else found


def all_claimed(leases: Sequence[Lease], *, kept: bool) -> Document:
    names = sentences.few([lease.name for lease in leases])
    stays = "They stay yours while this connection lives, without heartbeats."
    if not kept:
        left = format_duration(min([lease.remaining_ms for lease in leases]))
        stays = f"They stay yours for {left}; call heartbeat_job for each before that is over."
    doubts = [f"Of {lease.name}: {said}" for lease in leases for said in _doubts(lease)]
    return {
        "message": " ".join(
            [f"All are yours: {names}.", *doubts, stays, "Release each when you are finished with it."]
        ),
        "claimed": True,
        "status": "claimed",
        "expires_in_seconds": None if kept else seconds(leases[0].remaining_ms),
        "lease_id": leases[0].lease_id,
        "owner": leases[0].owner,
        "namespace": leases[0].namespace,
        "claims": [_shown(lease, PARTS["claimed job"]) for lease in leases],
    }


def why_not(refused: Sequence[Document]) -> str:
    """The status of a refusal for several jobs: that of the one which may change soonest."""
    kinds = {each["status"] for each in refused}
    return next((kind for kind in ("held", "delayed", "closed", "deadlock", "parked", "done") if kind in kinds), "held")


def not_claimed(error: NotClaimed, job: str | None) -> Document:
    answer = error.answer
    refused = [holder_of(each) for each in answer.get("refused", ())] or [
        holder_of({"name": job, "status": error.code, **answer})
    ]
    if job is None:
        message = _none_of(refused, error) + sentences.still_held(answer, proof=True)
    else:
        text = quoted(error.details, _NOTE_CHARS_MAX)
        if answer.get("status") in sentences.STATES:
            text = sentences.in_full(_as_data(answer))
        message = f"{text}{_since(refused[0])} {_NEXT.get(refused[0]['status'], SKIP_OR_WAIT)}"
    return {
        "message": message,
        "claimed": False,
        "status": why_not(refused),
        "job": job,
        "refused": refused,
        "namespace": answer.get("namespace"),
    }


def _since(holder: Document) -> str:
    return f" Held since {holder['since']}." if holder["since"] else ""


def _none_of(refused: list[Document], error: NotClaimed) -> str:
    """Return why each of several jobs was refused. Only what is held may change soon."""
    kinds = {each["status"] for each in refused}
    if kinds == {"held"} and all(each["owner"] == YOU for each in refused):
        return f"{error.details} Work on one of them, or release it."
    if kinds == {"done"}:
        return f"All of these jobs are done. {_NEXT['done']}"
    shown = []
    for each in refused:
        owner = each["owner"] if each["owner"] in (None, YOU) else quoted(each["owner"])
        shown.append({"name": each["job"], "status": each["status"], "owner": owner})
    names = sentences.several(shown)
    if "held" not in kinds:
        return f"None of these jobs is available: {names}. Nobody works on them now. Take other work."
    return (
        f"None of these jobs is available: {names}. Do not begin any of them. Take other work, stop and say so, "
        "or wait: claim_job a held one with wait_seconds, in line."
    )


def holder_of(document: Document) -> Document:
    """One entry of a refusal, a list or a status."""
    status = str(document.get("status", "held"))
    done = document.get("done") or {}
    return {
        "job": sentences.shown_name(str(document.get("name") or "")),
        "status": "held" if status == "queued" else status,
        "owner": _cut(document.get("owner") or done.get("owner"), QUOTED_CHARS_MAX),
        "since": document.get("since"),
        "held_seconds": seconds(document.get("held_ms")),
        "silent_seconds": seconds(document.get("silent_ms")),
        "free_in_seconds": seconds(document.get("remaining_ms")),
        # For a job that is done, a time to try again would mislead.
        "retry_after_seconds": None if status == "done" else seconds(document.get("retry_after_ms")),
        "metadata": _cut(sentences.said(document.get("metadata"))),
        "checkpoint": _cut(document.get("checkpoint")),
        "result": _cut(document.get("result") or done.get("result")),
        "namespace": document.get("namespace"),
    }


# What to do about a step, by how it stands.
_STEPS = {
    "new": "It is noted that you begin it. Do it, then say done or failed.",
    "done": "Do not do it again.",
    "failed": "If you do it now, say done or failed afterwards.",
    "in_doubt": "Look whether it happened before you do it; if you cannot tell, ask a person.",
}


def _step_sentence(effect: Effect, lease: Lease) -> str:
    """A sentence about a step, and what to do."""
    texts = {"key": effect.key, "owner": effect.owner, "result": effect.result, "reason": effect.reason}
    quotes = {name: None if text is None else quoted(text) for name, text in texts.items()}
    fields = {"status": effect.status, "at": effect.at, "fencing_token": effect.fencing_token}
    now_ms = sentences.now_ms_of({"expires_at": lease.expires_at, "remaining_ms": lease.remaining_ms})
    said = sentences.effect(quotes | fields, now_ms)
    return f"{said[:1].upper()}{said[1:]}. {_STEPS[effect.status]}"


def _doubts(lease: Lease) -> list[str]:
    previous = lease.previous
    return [_step_sentence(each, lease) for each in previous.effects if each.in_doubt] if previous is not None else []


def renewed(lease: Lease, checkpoint: str | None, effect: Effect | None = None, *, kept: bool) -> Document:
    noted = " The checkpoint is stored for the next owner." if checkpoint is not None else ""
    if effect is not None:
        noted += f" {_step_sentence(effect, lease)}"
    left = "" if kept else f", for {format_duration(lease.remaining_ms)} more"
    if lease.ends_in_ms is not None:
        left += f". It ends in {format_duration(lease.ends_in_ms)} at the latest, whatever you renew"
    return {
        "message": f"{lease.name} is still yours{left}.{noted}",
        "yours": True,
        "job": lease.name,
        "expires_in_seconds": None if kept else seconds(lease.remaining_ms),
        "checkpoint": checkpoint,
        "effect_status": None if effect is None else effect.status,
        "effect_result": None if effect is None else _cut(effect.result),
    }


def lost(error: LeaseLost, job: str, what: str) -> Document:
    """The answer about a claim that is no more. `what` is the field that says so."""
    text = f"{job} is not yours: {quoted(error.why, _NOTE_CHARS_MAX)} Stop any work on it, undo nothing, and"
    return {"message": f"{text} claim it again if you need it.", what: False, "job": job}


def released(job: str, *, done: bool, failed: bool = False, retry_after: int | None = None) -> Document:
    how = "released as failed" if failed else "released"
    more = "Others may claim it now."
    if done:
        more = "It is marked as done."
    elif retry_after:
        more = f"Nobody gets it for {format_duration(retry_after * 1000)}: take another job meanwhile."
    return {"message": f"{job} is {how}. {more}", "released": True, "job": job}


def handed_over(lease: Lease) -> Document:
    return {
        "message": (
            f"{lease.name} belongs to {lease.owner} now: stop working on it. Give {lease.owner} this lease_id. "
            f"It must call heartbeat_job with it within {format_duration(lease.remaining_ms)}, and again before each "
            "deadline, until it calls release_job."
        ),
        "handed_over": True,
        "expires_in_seconds": seconds(lease.remaining_ms),
        **_shown(lease, HAND_OVER_ANSWER),
    }


def hand_over_refused(error: NotClaimed, job: str) -> Document:
    message = f"{quoted(error.details, _NOTE_CHARS_MAX)} It is still yours."
    return {"message": message, "handed_over": False, "job": job}


def status_answer(status: JobStatus, *, yours: bool = False) -> Document:
    shown = holder_of(status.document)
    step = SKIP_OR_WAIT if is_taken(status) else _NEXT.get(status.status, "Claim it before you begin.")
    message = f"{sentences.in_full(_as_data(status.document))}{_since(shown)} {step}"
    return dict(
        message=f"{status.name} is yours." if yours else message,
        **shown,
        yours=yours,
        fencing_token=status.fencing_token,
        waiting=status.document.get("waiting", 0),
        previous=before(status.previous),
    )


def is_taken(status: JobStatus) -> bool:
    """Tell whether somebody has the job, or a path that overlaps it."""
    return status.held or bool(status.document.get("overlapping"))


def listed(found: list[JobStatus], prefix: str, limit: int) -> Document:
    jobs = [holder_of(each.document) for each in found[:limit]]
    which = f" whose name begins with {prefix}" if prefix else ""
    count = f"{len(found)} job{'s are' if len(found) != 1 else ' is'} claimed{which}."
    more = len(found) > limit
    return {
        "message": f"{count} The first {limit} are shown; ask with a longer prefix." if more else count,
        "jobs": jobs,
        "more": more,
    }


def trouble(error: DibsError) -> str:
    """A tool error: what went wrong, and what to do next."""
    said = error.details.rstrip(".") + "."
    if isinstance(error, Unavailable):
        return (
            f"{said} It is unknown whether you have the job: do not begin new work, and try again in a few "
            f"seconds. If this continues, tell a person; `dibs doctor` says what is wrong."
        )
    if isinstance(error, NotAllowed):
        return f"{said} Trying again will not help. Tell the person who set up this server."
    if isinstance(error, InvalidInput):
        return f"{said} Nothing was changed. Correct the call and try again."
    return said
