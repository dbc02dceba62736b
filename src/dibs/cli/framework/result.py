"""The result of a command, before it becomes text or JSON. Exit code 0 and `ok: true` always go together."""

from __future__ import annotations

from dibs.base.errors import RequestFailed
from dibs.base.jsontext import Document
from dibs.base.terminal import plain
from dibs.core.durations import format_duration
from dibs.wire.codes import CODES, OUTCOMES, OVERDUE, YES, exit_of_code, says_no
from dibs.wire.documents import Reply
from dibs.wire.fields import REQUESTS

SCHEMA_VERSION = 1
# Statuses of a reply that mean "no" and are not errors.
_NO = [row for row in OUTCOMES.values() if row.kind is not None and row.word not in CODES]
_REFUSALS = {row.word: row.exit for row in _NO} | {"overdue": OVERDUE}


# What to do next. The server cannot say it, because it does not know the caller's settings.
_HINTS = {
    "authentication_required": "Set DIBS_TOKEN, or DIBS_TOKEN_FILE to a file that holds the token.",
    "authentication_failed": "`dibs doctor` says where the token comes from.",
}


# Here sentences name flags, not fields. Most flags are called as their fields, without the unit; these are not.
_FLAGS = {
    "the field ": "",
    "The field ": "",
    "expires_seconds is": "--expires in seconds is",
    "replaces may": "--replaces may",
    "ttl_ms or --ttl": "--ttl",
    "ttl_ms": "--ttl",
    "to_session": "--to-session",
    "to_owner": "--to",
    "lock_pattern is": "--jobs is",
    "after is higher": "--after is higher",
    "events is a list of": "--events is",
    **{f"url {verb} ": f"TARGET {verb} " for verb in ("has", "is", "leads", "must", "names")},
}

# Fields of an error document that the envelope repeats as `code` and `message`.
_IN_ENVELOPE = ("error", "code", "details")


class Answer:
    """`text` is for people; `quiet` replaces it under --quiet. `is_error`: the text goes to stderr, after `lead`.
    `is_said`: the command has printed everything itself."""

    def __init__(
        self,
        exit_code: int,
        document: Document,
        text: str,
        *,
        quiet: str = "",
        code: str = "",
        message: str = "",
        is_error: bool = False,
        lead: str = "dibs: ",
        is_said: bool = False,
    ) -> None:
        self.exit = exit_code
        self.document = document
        self.text = text
        self.quiet = quiet
        self.code = code
        self.message = message or text
        self.is_error = is_error
        self.lead = lead
        self.is_said = is_said

    def envelope(self) -> Document:
        """The document that --json prints. A "no" has `data` like a "yes": the owner is always in one place."""
        if self.exit == YES:
            return {"schema_version": SCHEMA_VERSION, "ok": True, "data": self.document}
        error = {"code": self.code, "message": self.message, "details": self.document}
        envelope: Document = {"schema_version": SCHEMA_VERSION, "ok": False, "error": error}
        return envelope if self.is_error else {**envelope, "data": self.document}


def yes(document: Document, text: str, *, quiet: str = "") -> Answer:
    return Answer(YES, document, text, quiet=quiet)


def no(exit_code: int, document: Document, text: str, *, code: str, message: str, quiet: str = "") -> Answer:
    """The request was answered with "no": held, done, or not held."""
    return Answer(exit_code, document, text, quiet=quiet, code=code, message=message)


def refusal_exit(reply: Reply) -> int | None:
    """The exit code of a reply that says no (held, queued, done, delayed, parked, superseded); None for any other."""
    status = reply.body.get("status") if reply.body else None
    return _REFUSALS.get(status) if isinstance(status, str) else None


def is_failure(reply: Reply) -> bool:
    return reply.status >= 400 and refusal_exit(reply) is None


def is_granted(reply: Reply) -> bool:
    """Tell whether a claim succeeded: it was neither refused nor an error."""
    return reply.status < 400 and refusal_exit(reply) is None


def body_of(reply: Reply, verb: str = "") -> Document:
    """The document of a reply to `verb`. Raises RequestFailed if it is an error or another no."""
    if is_failure(reply) or says_no(verb, reply.body and reply.body.get("status")):
        raise RequestFailed(reply)
    return reply.body or {}


def in_flags(sentence: str) -> str:
    """A sentence about a request, with flags in place of fields."""
    fields = [field for field in {**REQUESTS["acquire"], **REQUESTS["release"]} if "_" in field and field not in _FLAGS]
    named = {field: f"--{field.removesuffix('_seconds').removesuffix('_id').replace('_', '-')}" for field in fields}
    for field, flag in {**named, **_FLAGS}.items():
        sentence = sentence.replace(field, flag)
    return sentence


def failure(reply: Reply) -> Answer:
    """A refusal or an error as an answer. The sentence of an error's `details` says what happened and what to do."""
    body = reply.body or {}
    if "code" not in body and (exit_code := refusal_exit(reply)) is not None:
        from dibs.cli.text.claim import sentence as refused

        return Answer(exit_code, body, refused(body), code=body["status"], is_error=True)
    code = str(body.get("code", "internal_error"))
    sentence = str(body.get("details") or body.get("error") or code)
    if code in ("invalid_input", "invalid_ttl"):
        sentence = in_flags(sentence)
    after_ms = body.get("retry_after_ms")
    if isinstance(after_ms, int) and after_ms > 0:
        sentence += f" Try again in {format_duration(after_ms)}."
    if code in _HINTS:
        sentence = f"{sentence.rstrip('.')}. {_HINTS[code]}"
    more = {field: value for field, value in body.items() if field not in _IN_ENVELOPE}
    # The sentence may contain a stranger's text. A second line is indented, so that it cannot look like another answer.
    text = "\n  ".join(plain(line) for line in sentence.split("\n", 1))
    if more.get("cycle"):
        from dibs.cli.text.claim import deadlock

        text = deadlock(more["cycle"])
    return Answer(exit_of_code(code), more, text, code=code, message=sentence, is_error=True)


# One command for several jobs: each job is a request of its own, and their answers become one. Pure.


def combined(answers: list[tuple[str, Answer]]) -> Answer:
    """For one job, its answer. For several, one document with an entry for each job, in the order given. The exit code
    is that of the first job that did not succeed."""
    if len(answers) == 1:
        return answers[0][1]
    document: Document = {"jobs": [_entry(name, answer) for name, answer in answers]}
    text = "\n".join([f"{plain(name)}: {answer.text}" if answer.is_error else answer.text for name, answer in answers])
    quiet = "\n".join([answer.quiet for _, answer in answers if answer.quiet])
    bad = [(name, answer) for name, answer in answers if answer.exit != YES]
    if not bad:
        return Answer(YES, document, text, quiet=quiet)
    name, first = bad[0]
    more = f" ({len(bad)} of {len(answers)} did not succeed.)" if len(bad) > 1 else ""
    return Answer(
        first.exit,
        document,
        text,
        quiet=quiet,
        code=first.code,
        message=f"{name}: {first.message}{more}",
        is_error=first.is_error,
    )


def _entry(name: str, answer: Answer) -> Document:
    if answer.exit == YES:
        return {**answer.document, "name": name, "ok": True}
    return {**answer.document, "name": name, "ok": False, "code": answer.code, "message": answer.message}
