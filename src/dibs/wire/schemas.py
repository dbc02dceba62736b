"""The declared fields as JSON schemas, for a description of the API. Pure.

Unknown request fields are ignored, so no schema forbids any."""

from __future__ import annotations

from dibs.core.limits import ACL_ENTRY_BYTES_MAX, NAME_BYTES_MAX
from dibs.wire.fields import BYTES, CHARACTERS, FLAG, LIST, NUMBER, NUMBERS, OBJECT, REQUESTS, TEXT
from dibs.wire.meanings import (
    ACL_LENGTHS,
    ACL_PATTERN,
    CHOICES,
    CLAMPED,
    LIST_LENGTHS,
    NAME_FORMAT,
    NEEDED,
    NOT_EMPTY,
    PATTERNS,
    REQUEST_MEANINGS,
    SEEN_BY,
    VERB_NUMBERS,
)
from dibs.wire.reply_fields import ANSWERS, PARTS, TEXT_LISTS, kind_of
from dibs.wire.shapes import PROVEN, U32_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Schema = dict[str, Any]

ID_PATTERN = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
NAME_SCHEMA: Schema = {"type": "string", "format": NAME_FORMAT, "minLength": 1, "maxLength": NAME_BYTES_MAX}
TEXTS = "texts"  # a list of texts
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


def request_schema(verb: str) -> Schema:
    """The body of a request."""
    fields = REQUESTS[verb]
    properties = {field: request_field_schema(verb, field) for field in fields}
    required = [field for field in fields if _is_required(verb, field)]
    found: Schema = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    if verb in PROVEN:
        found["anyOf"] = [
            {"required": [proof], "properties": {proof: {"type": "string"}}}
            for proof in ("lease_id", "session_id")
        ]
    return found


def _is_required(verb: str, field: str) -> bool:
    return REQUESTS[verb][field].endswith(("!", "?")) or REQUEST_MEANINGS[verb][field][0] == NEEDED


def request_field_schema(verb: str, field: str) -> Schema:
    """`null` is the same as leaving a field out, so a field that may be left out may be null."""
    kind = REQUESTS[verb][field]
    schema = {**_TYPES[kind.rstrip("!?")], **_bounds(verb, field)}
    if kind.endswith("?") or not _is_required(verb, field):
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    default, meaning = REQUEST_MEANINGS[verb][field]
    said = [meaning, f"Default: {default}" if default else "", _seen(field)]
    return {**schema, "description": ". ".join(part for part in said if part) + "."}


def answer_schema(answer: str) -> Schema:
    """The body of an answer, by its name in `ANSWERS`."""
    properties = {}
    for field, (marks, meaning) in ANSWERS[answer].items():
        schema = _answer_field(answer, field)
        if (field, meaning) == ("status", f"`{answer}`"):  # tells the answers of a claim apart
            schema = {**schema, "const": answer}
        if "?" in marks:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[field] = {**schema, "description": f"{meaning}."}
    required = [field for field, (marks, _) in ANSWERS[answer].items() if "-" not in marks]
    return {"type": "object", "properties": properties, "required": required}


def document_schema(fields: dict[str, tuple[str, str]]) -> Schema:
    """The body of an answer that only HTTP has: of each field its kind (`fields.TEXT` ...) and its meaning. A "?" after
    the kind: it may be null. A "-": it may be left out."""
    properties = {}
    for field, (kind, meaning) in fields.items():
        schema: Schema = _kinds({"type": "object"})[kind.rstrip("?-")]
        if "?" in kind:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[field] = {**schema, "description": f"{meaning}."}
    required = [field for field, (kind, _) in fields.items() if not kind.endswith("-")]
    return {"type": "object", "properties": properties, "required": required}


def _answer_field(answer: str, field: str) -> Schema:
    part: Schema = {"type": "object"}
    if field in PARTS:
        part = {"$ref": f"#/components/schemas/{PARTS[field]}"}
    return _kinds({"type": "string"} if field in TEXT_LISTS else part)[kind_of(answer, field)]


def _kinds(part: Schema) -> dict[str, Schema]:
    """The schema of each kind. `part` is what a list or an object holds."""
    return {
        TEXT: {"type": "string"},
        NUMBER: {"type": "integer", "minimum": 0},
        FLAG: {"type": "boolean"},
        LIST: {"type": "array", "items": part},
        OBJECT: part,
        TEXTS: {"type": "array", "items": {"type": "string"}},
    }


def bounds_of(verb: str, field: str) -> tuple[int, int] | None:
    """The bounds of a number, both included."""
    return VERB_NUMBERS.get((verb, field)) or NUMBERS.get(field)


def _bounds(verb: str, field: str) -> Schema:
    numbers = bounds_of(verb, field)
    if (verb, field) in CLAMPED:
        return {"maximum": U32_MAX}
    if (verb, field) in PATTERNS:
        return {"pattern": PATTERNS[verb, field]}
    if numbers is not None:
        return {"minimum": numbers[0], "maximum": numbers[1]}
    if field in CHOICES:
        return {"enum": list(CHOICES[field]), "default": CHOICES[field][0]}
    if field == "names":
        least, most = LIST_LENGTHS[verb]
        return {"items": NAME_SCHEMA, "minItems": least, "maxItems": most, "uniqueItems": True}
    if field == "acl":
        least, most = ACL_LENGTHS[verb]
        entry = {"type": "string", "pattern": ACL_PATTERN, "maxLength": ACL_ENTRY_BYTES_MAX}
        entries = {"type": "array", "items": entry, "minItems": least, "maxItems": most}
        return {"properties": {"acquire": entries}, "required": ["acquire"]}
    # A text of so many bytes has at most as many characters; the description says which of both is checked.
    most_chars = CHARACTERS.get(field) or BYTES.get(field)
    if most_chars is None:
        return {}
    return {"maxLength": most_chars} | ({"minLength": 1} if (verb, field) in NOT_EMPTY else {})


def _seen(field: str) -> str:
    size = f"At most {BYTES[field]} bytes of UTF-8. " if field in BYTES else ""
    return f"{size}Seen by {SEEN_BY[field]}" if field in SEEN_BY else size.rstrip(". ")
