"""The tables of docs/reference/http.md that are made from the declared fields. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

from dibs.core.limits import ACL_ENTRY_BYTES_MAX
from dibs.server.app import served_table
from dibs.wire.fields import BYTES, CHARACTERS, REQUESTS
from dibs.wire.meanings import (
    ACL_LENGTHS,
    CHOICES,
    CLAIM_FIELDS,
    LIST_LENGTHS,
    NOT_EMPTY,
    REQUEST_MEANINGS,
    SEEN_BY,
)
from dibs.wire.operations import allowed
from dibs.wire.reply_fields import ANSWERS
from dibs.wire.schemas import bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = [operation for operation, _ in served_table(cast("Any", MagicMock())) if operation.is_listed]
TITLES = {each.id: f"{each.method} {each.path}" for each in OPERATIONS}
KINDS = {
    "whole": "whole number",
    "number": "whole number",
    "seconds": "number",
    "text": "text",
    "flag": "true or false",
    "object": "object",
    "list": "list",
    "id": "UUID",
}
CLAIMS = ("acquire", "acquire-any", "acquire-all")
EVERY_CLAIM = "Fields of every claim"
# Which answers a section shows, in order.
SHOWN = {
    **{
        f"Answer: {answer}": (answer,)
        for answer in ("acquired", "held", "queued", "done", "delayed", "parked")
    },
    "Previous": ("previous",),
    **{TITLES[verb]: (verb,) for verb in ("leave", "renew", "break", "free", "acl")},
    TITLES["release"]: ("failed",),
    TITLES["transfer"]: ("transferred",),
    TITLES["inspect"]: ("job",),
    "GET /locks": ("list",),
    "GET /locks/{name}/history": ("history", "event"),
    "GET /events": ("events",),
    TITLES["session-open"]: ("session",),
    "GET /sessions": ("sessions",),
    "GET /waiters": ("waiters",),
    "Waiter": ("waiter",),
    "GET /activity": ("activity",),
    TITLES["token-create"]: ("token",),
    "GET /tokens": ("tokens",),
    "DELETE /tokens/{name}": ("token-revoke",),
    TITLES["token-rotate"]: ("token-rotate",),
    TITLES["token-limit"]: ("token-limit",),
    "POST /elections": ("election-room",),
    TITLES["campaign"]: ("election-leader", "leader", "election-follower"),
    TITLES["resign"]: ("election-resigned",),
    "GET /elections/{id}": ("election",),
    "GET /elections/{id}/watch": ("election-state",),
    "GET /whoami": ("whoami",),
    "Errors": ("error",),
}
# Answers that are declared with their operation.
SCHEMAS = {
    TITLES[each.id]: answer
    for each in OPERATIONS
    for answer in [each.answers.get(200) or each.answers.get(201)]
    if isinstance(answer, dict)
}
_REQUEST_HEAD = "| field | type | limits and default | meaning |\n| --- | --- | --- | --- |\n"
_REPLY_HEAD = "| reply field | meaning |\n| --- | --- |\n"
_ROUTES_HEAD = "| route | what it does | who |\n| --- | --- | --- |\n"
_SEEN_HEAD = "| what was given as | who is shown it |\n| --- | --- |\n"
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def with_tables(page: str) -> str:
    """`page` with its tables of fields made from the declarations. Other text stays as it is."""
    starts = [*_HEADING.finditer(page)]
    ends = [*[found.start() for found in starts[1:]], len(page)]
    head = page[: starts[0].start()]
    return head + "".join(
        _section(found[1], page[found.start() : end]) for found, end in zip(starts, ends, strict=True)
    )


def _section(title: str, text: str) -> str:
    replies = iter([*[_replies(answer) for answer in SHOWN.get(title, ())], *_schema_replies(title)])
    requests = iter(_requests(title))

    def replaced(found: re.Match[str]) -> str:
        if found[0].startswith("| field |"):
            return next(requests)
        if found[0].startswith("| reply field |"):
            return next(replies, found[0])
        if found[0].startswith("| route |"):
            return _ROUTES_HEAD + _rows(_routes())
        return _SEEN_HEAD + _rows(_seen()) if found[0].startswith("| what was given as |") else found[0]

    made = _TABLE.sub(replaced, text)
    left = [*replies, *requests]
    assert not left, f"{title} lacks a table of {left[0].splitlines()[2]}"
    return made


def _requests(title: str) -> Iterator[str]:
    if title == EVERY_CLAIM:
        yield _REQUEST_HEAD + _rows(_request_row("acquire", field) for field in CLAIM_FIELDS)
    for verb in REQUESTS:
        own = [field for field in REQUEST_MEANINGS[verb] if verb not in CLAIMS or field not in CLAIM_FIELDS]
        if TITLES[verb] == title and own:
            yield _REQUEST_HEAD + _rows(_request_row(verb, field) for field in own)


def _request_row(verb: str, field: str) -> tuple[str, ...]:
    kind = REQUESTS[verb][field]
    needed = {"!": ", required", "?": " or null, required"}.get(kind[-1], "")
    default, meaning = REQUEST_MEANINGS[verb][field]
    bounds = "; ".join(each for each in (_bounds(verb, field), default) if each)
    return f"`{field}`", KINDS[kind.rstrip("!?")] + needed, bounds, meaning


def _bounds(verb: str, field: str) -> str:
    numbers = bounds_of(verb, field)
    if numbers is not None:
        return "0" if numbers == (0, 0) else f"{numbers[0]:,} to {numbers[1]:,}"
    if field in CHOICES:
        first, *others = (f"`{choice}`" for choice in CHOICES[field])
        return f"{first} (default) or {' or '.join(others)}"
    if field == "names":
        apart = ", no two that overlap in a tree" if verb == "acquire-all" else ""
        least, most = LIST_LENGTHS[verb]
        return f"{least} to {most:,} names, each once{apart}"
    if field == "acl":
        least, most = ACL_LENGTHS[verb]
        many = f"{least} to {most}" if least else f"up to {most}"
        return f'`{{"acquire": [...]}}`, {many} entries of {ACL_ENTRY_BYTES_MAX} bytes'
    least_text = "1 to " if (verb, field) in NOT_EMPTY else ""
    if field in CHARACTERS:
        return f"{least_text}{CHARACTERS[field]:,} characters"
    return f"{BYTES[field]:,} bytes" if field in BYTES else ""


def _replies(answer: str) -> str:
    return _REPLY_HEAD + _rows((f"`{field}`", meaning) for field, (_, meaning) in ANSWERS[answer].items())


def _schema_replies(title: str) -> Iterator[str]:
    schema: Any = SCHEMAS.get(title, {})
    if "properties" in schema:
        rows = [(f"`{field}`", each["description"][:-1]) for field, each in schema["properties"].items()]
        yield _REPLY_HEAD + _rows(rows)


def _routes() -> Iterator[tuple[str, str, str]]:
    for each in OPERATIONS:
        yield f"`{each.method} {each.path}`", each.summary, allowed(each)


def _seen() -> Iterator[tuple[str, str]]:
    for who in dict.fromkeys(SEEN_BY.values()):
        yield ", ".join(f"`{field}`" for field, each in SEEN_BY.items() if each == who), who


def _rows(rows: object) -> str:
    return "".join("| " + " | ".join(row).replace("|  |", "| |").rstrip() + " |\n" for row in rows)  # type: ignore[attr-defined]
