"""An operation of the HTTP API as it is declared, for each method at each path, and JSON schemas of its documents.

The router, the list of routes on the page and the OpenAPI document are made from the declarations, which stand in
`server/routes/operations.py` and in plugins. The id of an operation is its verb: its request fields are in
`request_fields.py`, its rights in `core/caller_rights.LEAST_ROLE`. Answers are named as in `answer_fields.ANSWERS`.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dibs.core.caller_rights import ADMIN, LEAST_ROLE, ROLES
from dibs.core.limits import ACL_ENTRY_BYTES_MAX, NAME_BYTES_MAX, REQUEST_KEY_CHARS_MAX
from dibs.wire import answer_fields
from dibs.wire.answer_fields import ANSWERS, PARTS, AnswerField
from dibs.wire.codes import CODES
from dibs.wire.request_fields import ACL_PATTERN, NAME_FORMAT, NAMESPACE_PATTERN, REQUESTS, Field
from dibs.wire.values import OF_OCTOSTORE, PROVEN, U32_MAX

Schema = dict[str, Any]
# A name in `ANSWERS`, one of several such names, or a schema. None: no body.
Answer = str | tuple[str, ...] | Schema | None

NULL = "null"  # among the names of answers: the document `null`
OTHERWISE = 0  # among the statuses of answers: every other one
NO_TOKEN = "no token"
JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"
SOME_ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"  # in examples
_TEXT: Schema = {"type": "string"}
ID_PATTERN = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
NAME_SCHEMA: Schema = {"type": "string", "format": NAME_FORMAT, "minLength": 1, "maxLength": NAME_BYTES_MAX}


class Parameter(NamedTuple):
    """One value outside the body."""

    name: str
    meaning: str
    schema: Schema
    where: str = "query"  # or "path", "header"
    required: bool = False
    example: str = ""


class Link(NamedTuple):
    """An operation that an answer leads to. Values are OpenAPI's runtime expressions."""

    name: str
    to: str  # the id of that operation
    meaning: str
    status: int
    parameters: Mapping[str, str] = {}
    body: Mapping[str, str] = {}


class Operation(NamedTuple):
    method: str
    path: str  # `/locks/{name}/acquire`: each {part} is one segment, and a parameter in the path
    id: str  # unique; the verb, if it has one
    summary: str  # as in a list: "claim a job"
    section: str
    answers: Mapping[int, Answer]  # by status, without errors
    codes: tuple[str, ...] = ()  # errors of its own; `codes_of` adds those that follow from the rest
    parameters: tuple[Parameter, ...] = ()
    is_open: bool = False  # needs no token
    request: Schema | None = None  # its body, if `REQUESTS` does not have its verb
    body_optional: bool = False
    who: str = ""  # who may ask it, if the roles do not say it all
    about: str = ""  # more than the summary, in sentences
    media: tuple[str, ...] = (JSON_TYPE,)  # of its answers
    example: Schema | None = None  # a body
    links: tuple[Link, ...] = ()
    is_foreign: bool = False  # another system's protocol: `answers` has its refusals too, most as OTHERWISE
    is_listed: bool = True  # False: another spelling of an operation that is listed

    @property
    def has_body(self) -> bool:
        return self.request is not None or bool(REQUESTS.get(self.id)) or self.id in _EMPTY_BODIES


_EMPTY_BODIES = ("free", "open")  # fields none, but a body may come


def by_id(*operations: Operation) -> dict[str, Operation]:
    return {operation.id: operation for operation in operations}


def in_path(name: str, meaning: str, example: str, **schema: Any) -> Parameter:
    return Parameter(name, meaning, {**_TEXT, **schema}, "path", required=True, example=example)


def in_header(name: str, meaning: str, **schema: Any) -> Parameter:
    return Parameter(name, meaning, {**_TEXT, **schema}, "header")


def in_query(name: str, meaning: str, **schema: Any) -> Parameter:
    return Parameter(name, meaning, {**_TEXT, **schema})


def number_in_query(name: str, meaning: str, least: int, most: int) -> Parameter:
    return in_query(name, meaning, type="integer", minimum=least, maximum=most)


def text_in_query(name: str, meaning: str, bytes_max: int) -> Parameter:
    return in_query(name, meaning, maxLength=bytes_max)


JOB = in_path("name", "The job, percent-encoded", "issue-42", **NAME_SCHEMA)
SESSION = in_path("id", "The session", SOME_ID, format="uuid", pattern=ID_PATTERN)
NAMESPACE = (
    in_query(
        "namespace",
        "The namespace. Without it: the one the token is bound to, else `default`",
        pattern=NAMESPACE_PATTERN,
    ),
    in_header("X-Dibs-Namespace", "The same as the query parameter `namespace`", pattern=NAMESPACE_PATTERN),
)
NAMES = in_header("X-Dibs-Names", "`one`: turn names into their one name", enum=["one"])
STORE = in_header("X-Dibs-Store", "The id of the store that the request is for. Another one refuses it (421)")
KEY = in_header("Idempotency-Key", "The same as the field `request_key`", minLength=1, maxLength=REQUEST_KEY_CHARS_MAX)
OF_A_JOB = (JOB, *NAMESPACE, NAMES, STORE)

_WITH_A_TOKEN = (
    "authentication_required",
    "authentication_failed",
    "forbidden",
    "rate_limited",
    "upstream_unavailable",
)
# What every operation that reads the same may be refused for.
EVERYWHERE = frozenset(("internal_error", "invalid_input", "invalid_lock_name", *_WITH_A_TOKEN))
# Statuses that a code is also sent with.
_OTHER_STATUSES = {"lease_not_current": (400,)}
_BODY_STATUSES = (413, 415, 422)
_MISDIRECTED = 421


def codes_of(operation: Operation) -> dict[int, tuple[str, ...]]:
    """The error codes by status: those of the operation, and those that follow from what it reads."""
    if operation.is_foreign:
        return {}
    found: dict[int, set[str]] = {}

    def add(code: str, *statuses: int) -> None:
        for status in statuses or (CODES[code].http, *_OTHER_STATUSES.get(code, ())):
            found.setdefault(status, set()).add(code)

    for code in operation.codes:
        add(code)
    add("internal_error")
    if not operation.is_open:
        for code in _WITH_A_TOKEN:
            add(code)
    if operation.parameters or operation.has_body:
        add("invalid_input")
    if JOB in operation.parameters or NAMESPACE[0] in operation.parameters:
        add("invalid_lock_name")
    if operation.has_body:
        add("invalid_input", *_BODY_STATUSES)
    if STORE in operation.parameters:
        add("invalid_input", _MISDIRECTED)
    return {status: tuple(sorted(found[status])) for status in sorted(found)}


def allowed(operation: Operation) -> str:
    """Return who may ask it, in words. "" for every token."""
    if operation.who:
        return operation.who
    if operation.is_open:
        return NO_TOKEN
    least = LEAST_ROLE.get(operation.id, ROLES[0])
    at_least = ROLES[ROLES.index(least) :]
    return ", ".join(at_least) if least == ADMIN or len(at_least) == 2 else ""


# The declared fields as JSON schemas. Unknown request fields are ignored, so no schema forbids any.

_TYPES: dict[str, Schema] = {
    "whole": {"type": "integer", "minimum": 0},
    "number": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "seconds": {"type": "number", "minimum": 0},
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "list": {"type": "array", "items": {"type": "string"}},
    "id": {"type": "string", "format": "uuid", "pattern": ID_PATTERN},
}


def request_schema(verb: str, *, brief: bool = False) -> Schema:
    """The body of a request. `brief`: leaves out who sees which field."""
    fields = REQUESTS[verb]
    required = [name for name, field in fields.items() if field.is_required]
    properties = {name: request_field_schema(verb, name, brief=brief) for name in fields}
    found: Schema = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    if verb not in OF_OCTOSTORE:
        found["additionalProperties"] = {"type": "null"}  # a field that is null was left out
    if verb in PROVEN:
        found["anyOf"] = [_given("lease_id", "string"), _given("session_id", "string")]
    if verb == "close":
        found["oneOf"] = [_given("until", "string"), _given("for_seconds", "integer")]
    return found


def _given(name: str, kind: str) -> Schema:
    """The field is there, and not null."""
    return {"required": [name], "properties": {name: {"type": kind}}}


def request_field_schema(verb: str, name: str, *, brief: bool = False) -> Schema:
    """`null` is the same as leaving a field out, so a field that may be left out may be null."""
    field = REQUESTS[verb][name]
    schema = {**_TYPES[field.kind], **_bounds(name, field)}
    if field.nullable or not field.is_required:
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    said = [
        field.meaning,
        f"Default: {field.default}" if field.default else "",
        f"At most {field.bytes} bytes of UTF-8" if field.bytes else "",
        f"Seen by {field.seen_by}" if field.seen_by and not brief else "",
    ]
    return {**schema, "description": ". ".join(part for part in said if part) + "."}


def _bounds(name: str, field: Field) -> Schema:
    least, most = field.lengths
    if field.is_clamped:
        return {"maximum": U32_MAX}
    if field.pattern:
        return {"pattern": field.pattern}
    if field.numbers is not None:
        return {"minimum": field.numbers[0], "maximum": field.numbers[1]}
    if field.choices:
        return {"enum": list(field.choices), "default": field.choices[0]}
    if name == "names":
        return {"items": NAME_SCHEMA, "minItems": least, "maxItems": most, "uniqueItems": True}
    if name == "acl":
        entry = {"type": "string", "pattern": ACL_PATTERN, "maxLength": ACL_ENTRY_BYTES_MAX}
        entries = {"type": "array", "items": entry, "minItems": least, "maxItems": most}
        return {"properties": {"acquire": entries}, "required": ["acquire"]}
    # A text of n bytes has at most n characters; the description says which of the two is checked.
    most_chars = field.chars or field.bytes
    if not most_chars:
        return {}
    return {"maxLength": most_chars} | ({"minLength": 1} if field.not_empty else {})


def answer_schema(answer: str) -> Schema:
    """The body of an answer, by its name in `ANSWERS`."""
    schema = document_schema(ANSWERS[answer])
    for name, field in ANSWERS[answer].items():
        if name in PARTS:
            part = {"$ref": f"#/components/schemas/{PARTS[name]}"}
            schema["properties"][name] = _answer_field(field, part)
    status = ANSWERS[answer].get("status")
    if status is not None and status.meaning == f"`{answer}`":  # tells the answers of a claim apart
        schema["properties"]["status"]["const"] = answer
    return schema


def document_schema(fields: answer_fields.Answer, title: str = "") -> Schema:
    """The body of an answer that only HTTP has, declared as in `ANSWERS`. With a title it is in a document once."""
    return {
        **({"title": title} if title else {}),
        "type": "object",
        "properties": {name: _answer_field(field, {"type": "object"}) for name, field in fields.items()},
        "required": [name for name, field in fields.items() if not field.optional],
    }


def _answer_field(field: AnswerField, part: Schema) -> Schema:
    """`part` is what a list or an object holds."""
    schemas: dict[str, Schema] = {
        "text": {"type": "string"},
        "number": {"type": "integer", "minimum": 0},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": part},
        "object": part,
        "texts": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    }
    schema = schemas[field.kind]
    if field.null:
        is_ref = "$ref" in schema
        schema = {"anyOf": [schema, {"type": "null"}]} if is_ref else {**schema, "type": [schema["type"], "null"]}
    return {**schema, "description": f"{field.meaning}."}
