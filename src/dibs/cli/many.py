"""claim-any, claim-all: several jobs in one step."""

from __future__ import annotations

from dibs.cli import manyrender
from dibs.cli.answer import is_failure, no, refusal_exit, yes
from dibs.cli.claims import ask, refused
from dibs.cli.parse import UsageError
from dibs.cli.render import acquired
from dibs.cli.spec import ANY, Argument, Command
from dibs.cli.values import (
    ACTOR,
    AGAIN,
    CLAIM_EXITS,
    KEEP_PLACE,
    LOCK_DELAY,
    METADATA,
    OWNER,
    REQUEST_KEY,
    SESSION,
    SHARED,
    SLOTS,
    TICKET,
    TTL,
    WAIT,
    asking,
    is_actor,
    next_words,
)
from dibs.core.limits import ALL_NAMES_MAX, NAME_BYTES_MAX, NAMES_MAX
from dibs.errors import InvalidInput
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.answer import Answer
    from dibs.cli.call import Call
    from dibs.wire.documents import Reply

    Document = dict[str, Any]


def claim_any(call: Call) -> Answer:
    document = {"names": _names(call, NAMES_MAX), **asking(call)}
    reply = call.door().call("acquire-any", "", document)
    if _got_nothing(reply):
        return _refused(call, reply, document["request_key"], "free")
    body: Document = reply.body or {}
    timed, in_session = "ttl_seconds" in document, "session_id" in document
    text = acquired(
        body, call.paint, next_words(call), timed=timed, in_session=in_session, by_actor=is_actor(call)
    )
    return yes(body, text, quiet=manyrender.pair(body))


def claim_all(call: Call) -> Answer:
    return claim_names(call, _names(call, ALL_NAMES_MAX))[0]


def claim_names(call: Call, names: list[str]) -> tuple[Answer, Document]:
    """Claim all of `names` or none. The answer, and what was asked for."""
    document = {"names": names, **asking(call)}
    reply = ask(call, "acquire-all", "", document)
    if _got_nothing(reply):
        return _refused(call, reply, document["request_key"], "all"), document
    body: Document = reply.body or {}
    timed, in_session = "ttl_seconds" in document, "session_id" in document
    text = manyrender.acquired_all(body, call.paint, timed=timed, in_session=in_session)
    return yes(body, text, quiet="\n".join(manyrender.pair(lease) for lease in body["leases"])), document


def _got_nothing(reply: Reply) -> bool:
    return refusal_exit(reply) is not None or is_failure(reply)


def _refused(call: Call, reply: Reply, request_key: str, wanted: str) -> Answer:
    body: Document = reply.body or {}
    if "refused" not in body:
        return refused(call, reply, request_key)
    message = manyrender.refused_sentence(body, wanted)
    text = manyrender.refused(body, call.paint, wanted)
    return no(NO, body, text, code="held", message=message)


def _names(call: Call, most: int) -> list[str]:
    """The names given, or those on standard input, one a line."""
    given: list[str] = call.values["name"]
    if given and given != ["-"]:
        return given
    stdin = call.stdin
    if stdin is None or (not given and stdin.isatty()):
        raise UsageError(
            f"{call.command} needs names: as words, or on standard input, one a line.", call.command
        )
    bytes_max = (most + 1) * (NAME_BYTES_MAX + 2)
    content = stdin.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise InvalidInput(
            f"names is a list of 1 to {most} jobs; standard input holds more than they can have."
        )
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidInput("Standard input is not UTF-8 text.") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InvalidInput("Standard input holds no names: it was empty.")
    return names


_ASK = (TTL, OWNER, METADATA, SHARED, SLOTS, SESSION, ACTOR, LOCK_DELAY, REQUEST_KEY, AGAIN)
COMMANDS = {
    "claim-any": Command(
        "claim-any",
        "claim the first free one of several jobs",
        claim_any,
        about=(
            "In one step: nobody else can get in between. In the order given; with --quiet prints the name, a tab, and "
            "the lease id. When none is free, says of each who has it. What the session holds already is passed over, "
            "so that asking again gives the next one."
        ),
        arguments=(
            Argument("NAME", "jobs; with none, or with -, they are read from stdin, one a line", takes=ANY),
        ),
        options=_ASK,
        examples=(
            ("one of three", "dibs claim-any issue-1 issue-2 issue-3"),
            (
                "the oldest issue that nobody is at",
                "gh issue list --json number -q .[].number | dibs claim-any",
            ),
            ("in a script", "IFS=$'\\t' read -r JOB LEASE < <(dibs claim-any -q issue-1 issue-2) || exit 0"),
        ),
        exits=(
            (0, "one of them is yours"),
            (1, "none is to be had now"),
            (2, "the request key or the session is over"),
            (64, f"no names, one of them twice, or more than {NAMES_MAX}"),
        ),
    ),
    "claim-all": Command(
        "claim-all",
        "claim several jobs, all or none",
        claim_all,
        about=(
            "In one step. With --wait it stands in all their lines with nothing in hand until all are free at once, so "
            "two that want the same jobs cannot block each other. With --quiet prints for each the name, a tab, "
            "and the lease id."
        ),
        arguments=(Argument("NAME", "jobs; with none, or with -, they are read from stdin", takes=ANY),),
        options=(*_ASK, WAIT, KEEP_PLACE, TICKET),
        examples=(
            ("two files at once", "dibs claim-all path:src/a.py path:src/b.py"),
            ("when all are free", "dibs claim-all staging database --wait 10m"),
        ),
        exits=(
            (0, "all of them are yours"),
            (1, "not all are to be had; nothing was claimed"),
            *CLAIM_EXITS[:2],
            (64, f"no names, one of them twice, two that overlap, or more than {ALL_NAMES_MAX}"),
        ),
    ),
}
