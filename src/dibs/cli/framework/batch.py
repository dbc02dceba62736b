"""One command for several jobs: each job is a request of its own, and their answers become one. Pure."""

from __future__ import annotations

from dibs.cli.framework.result import Answer
from dibs.wire.codes import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]


def combined(answers: list[tuple[str, Answer]]) -> Answer:
    """For one job, its answer. For several, one document with an entry for each job, in the order given. The exit code
    is that of the first job that did not succeed."""
    if len(answers) == 1:
        return answers[0][1]
    document: Document = {"jobs": [_entry(name, answer) for name, answer in answers]}
    text = "\n".join([answer.text for _, answer in answers])
    quiet = "\n".join([answer.quiet for _, answer in answers if answer.quiet])
    bad = [(name, answer) for name, answer in answers if answer.exit != YES]
    if not bad:
        return Answer(YES, document, text, quiet=quiet)
    name, first = bad[0]
    more = f" ({len(bad)} of {len(answers)} did not succeed.)" if len(bad) > 1 else ""
    told = "\n".join([_told(each, answer) for each, answer in answers])
    return Answer(
        first.exit,
        document,
        told,
        quiet=quiet,
        code=first.code,
        message=f"{name}: {first.message}{more}",
        is_error=first.is_error,
    )


def _entry(name: str, answer: Answer) -> Document:
    if answer.exit == YES:
        return {**answer.document, "name": name, "ok": True}
    return {**answer.document, "name": name, "ok": False, "code": answer.code, "message": answer.message}


def _told(name: str, answer: Answer) -> str:
    from dibs.cli.text.words import plain

    return f"{plain(name)}: {answer.text}" if answer.is_error else answer.text
