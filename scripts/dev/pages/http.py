"""The parts of docs/reference/http.md that are made from the declarations. Pure.

Below a heading that is a route: what it does and who may. Below `Request:` and `Reply:`: the fields. What an earlier
document explains in the same words is only named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

from dibs.core.limits import ACL_ENTRY_BYTES_MAX, ALL_NAMES_MAX
from dibs.server.http_server import served_table
from dibs.server.settings import ServerSettings
from dibs.wire.answer_fields import ANSWERS
from dibs.wire.operations import allowed
from dibs.wire.request_fields import CLAIM, REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dibs.wire.operations import Operation
    from dibs.wire.request_fields import Field

    # Of each field its form (type, bounds, default) and its meaning.
    Document = dict[str, tuple[str, str]]

OPERATIONS = [
    operation for operation, _ in served_table(cast("Any", MagicMock(settings=ServerSettings()))) if operation.is_listed
]
TITLES = {each.id: f"{each.method} {each.path}" for each in OPERATIONS}
KINDS = {
    "whole": "number",
    "number": "number",
    "seconds": "number or fraction",
    "text": "",
    "flag": "flag",
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
        for answer in ("acquired", "held", "refused", "queued", "done", "delayed", "parked", "closed")
    },
    "Previous": ("previous",),
    "Effect": ("effect",),
    "Closure": ("closure",),
    **{TITLES[verb]: (verb,) for verb in ("leave", "withdraw", "renew", "break", "free", "open", "acl", "pool")},
    **{TITLES[verb]: (verb,) for verb in ("next", "give-back")},
    TITLES["release"]: ("failed",),
    TITLES["transfer"]: ("transferred",),
    TITLES["inspect"]: ("job",),
    "GET /locks": ("list",),
    TITLES["overdue"]: ("overdue",),
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
SCHEMAS: dict[str, dict[str, Any]] = {
    TITLES[each.id]: answer
    for each in OPERATIONS
    for answer in [each.answers.get(200) or each.answers.get(201)]
    if isinstance(answer, dict)
}
OTHERS = "Other routes"
# Of `name`, and of the `status` that an answer is called by.
EVIDENT = ("the job", *(f"`{answer}`" for answer in ANSWERS))
# How many fields two documents must share for the second to name the first.
SAME_MIN = 2
_SEEN_HEAD = "| what was given as | who is shown it |\n| --- | --- |\n"
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_LIST = re.compile(r"^(Request|Reply|Routes)(.*):\n\n(?:- .*\n(?:  .*\n)*)+", re.MULTILINE)
_SUMMARY = re.compile(r"^\*[^*\n]+\*\n", re.MULTILINE)


def with_lists(page: str) -> str:
    """`page` with its lists of fields and routes made from the declarations. Other text stays as it is."""
    starts = [*_HEADING.finditer(page)]
    ends = [*[found.start() for found in starts[1:]], len(page)]
    head = page[: starts[0].start()]
    known = {found[1] for found in starts}
    return head + "".join(
        _section(found[1], page[found.start() : end], known) for found, end in zip(starts, ends, strict=True)
    )


def _section(title: str, text: str, known: set[str]) -> str:
    made = {
        "Request": iter(_requests(title)),
        "Reply": iter(_replies(title)),
        "Routes": iter(_routes(title, known)),
    }
    summary = [_summary(each) for each in OPERATIONS if TITLES[each.id] == title]

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}:\n\n" + "".join(f"- {line}\n" for line in next(made[found[1]]))

    if summary:
        assert _SUMMARY.search(text), f"{title} lacks its summary"
        text = _SUMMARY.sub(f"*{summary[0]}*\n", text, count=1)
    text = _LIST.sub(replaced, text)
    if title == "Who sees what":
        text = _TABLE.sub(_SEEN_HEAD + _rows(_seen()), text)
    left = [line for lists in made.values() for lines in lists for line in lines]
    assert not left, f"{title} lacks a list of {left[0]}"
    return text


def _summary(operation: Operation) -> str:
    who = allowed(operation)
    return operation.summary + (f" ({who})" if who else "")


def _routes(title: str, known: set[str]) -> list[list[str]]:
    """Those that have no section of their own."""
    if title != OTHERS:
        return []
    lines = []
    for before, each in pairwise(OPERATIONS):
        if TITLES[each.id] not in known:
            summary = _summary(each).replace("the same", f"the same as `{before.path}`")
            lines.append(f"`{TITLES[each.id]}`: {summary}")
    return [lines]


def _requests(title: str) -> list[list[str]]:
    documents = [(EVERY_CLAIM, {name: _request_field(name, field) for name, field in CLAIM.items()})]
    for verb, fields in REQUESTS.items():
        own = {name: field for name, field in fields.items() if verb not in CLAIMS or name not in CLAIM}
        documents.append((TITLES[verb], {name: _request_field(name, field) for name, field in own.items()}))
    return _told(documents)[title]


def _request_field(name: str, field: Field) -> tuple[str, str]:
    needed = "required, may be null" if field.nullable else "required" if field.required else ""
    parts = (KINDS[field.kind], needed, _bounds(name, field))
    form = ", ".join(each for each in parts if each)
    return "; ".join(each for each in (form, field.default) if each), field.meaning


def _replies(title: str) -> list[list[str]]:
    documents = [
        (shown, {name: ("", field.meaning) for name, field in ANSWERS[each].items() if field.meaning not in EVIDENT})
        for shown, answers in SHOWN.items()
        for each in answers
    ]
    for shown, schema in SCHEMAS.items():
        if "properties" in schema:
            said = {field: ("", each["description"][:-1]) for field, each in schema["properties"].items()}
            documents.append((shown, said))
    return _told(documents)[title]


def _told(documents: list[tuple[str, Document]]) -> defaultdict[str, list[list[str]]]:
    """By section: the fields of each document. What an earlier one explains in the same words is only named."""
    explained: list[tuple[str, Document]] = []
    told: defaultdict[str, list[list[str]]] = defaultdict(list)
    for title, document in documents:
        place, each = max(explained, key=lambda found: len(_same(found[1], document)), default=("", {}))
        same = _same(each, document)
        own = {field: said for field, said in document.items() if len(same) < SAME_MIN or (field, said) not in same}
        explained.append((title, own))
        lines = _lines(own)
        if len(own) < len(document):
            taken = [f"`{field}`" for field in document if field not in own]
            left = [f"`{field}`" for field, said in each.items() if (field, said) not in same]
            rest = f"all but {', '.join(left)}" if left else "all"
            names = ", ".join(taken) if left and len(taken) < len(left) + SAME_MIN else rest
            lines.append(f"as in [{place}](#{_anchor(place)}): {names}")
        if lines:
            told[title].append(lines)
    return told


def _same(one: Document, other: Document) -> set[tuple[str, tuple[str, str]]]:
    return {*one.items()} & {*other.items()}


def _lines(document: Document) -> list[str]:
    """A line for each field. Neighbours with the same meaning share one."""
    groups: list[tuple[list[str], tuple[str, str]]] = []
    for field, said in document.items():
        if groups and (said == groups[-1][1] or said in (("", "the same"), ("", "the same, from now"))):
            groups[-1][0].append(f"`{field}`")
        else:
            groups.append(([f"`{field}`"], said))
    return [f"{', '.join(fields)}{f' ({form})' if form else ''}: {meaning}" for fields, (form, meaning) in groups]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _bounds(name: str, field: Field) -> str:
    if field.numbers is not None:
        return "0" if field.numbers == (0, 0) else f"{field.numbers[0]:,} to {field.numbers[1]:,}"
    if field.choices:
        first, *others = (f"`{choice}`" for choice in field.choices)
        return f"{first} by default, {' or '.join(others)}"
    least, most = field.lengths
    if name == "names":
        apart = ", no two that overlap in a tree" if most == ALL_NAMES_MAX else ""
        return f"{least} to {most:,} names, each once{apart}"
    if name == "acl":
        many = f"{least} to {most}" if least else f"up to {most}"
        return f'`{{"acquire": [...]}}`, {many} entries of {ACL_ENTRY_BYTES_MAX} bytes'
    if field.chars:
        return f"{'1 to ' if field.not_empty else ''}{field.chars:,} characters"
    return f"{field.bytes:,} bytes" if field.bytes else ""


def _seen() -> Iterator[tuple[str, str]]:
    """Fields by who sees them."""
    seen: dict[str, dict[str, None]] = {}
    for fields in REQUESTS.values():
        for name, field in fields.items():
            if field.seen_by:
                seen.setdefault(field.seen_by, {})[name] = None
    for who, names in seen.items():
        yield ", ".join(f"`{name}`" for name in names), who


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(row).replace("|  |", "| |").rstrip() + " |\n" for row in rows)
