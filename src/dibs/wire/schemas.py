"""The declared fields as JSON schemas, for a description of the API. Pure.

Unknown request fields are ignored, so no schema forbids any."""

from __future__ import annotations

from dibs.wire.fields import BYTES, CHARACTERS, FLAG, LIST, NUMBER, NUMBERS, OBJECT, REQUESTS, TEXT
from dibs.wire.meanings import (
    ACL_LENGTHS,
    CHOICES,
    LIST_LENGTHS,
    NOT_EMPTY,
    REQUEST_MEANINGS,
    SEEN_BY,
    VERB_NUMBERS,
)
from dibs.wire.reply_fields import ANSWERS, PARTS, TEXT_LISTS, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Schema = dict[str, Any]

TEXTS = "texts"  # a list of texts
_TYPES: dict[str, Schema] = {
    "whole": {"type": "integer", "minimum": 0},
    "number": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "seconds": {"type": "number", "minimum": 0},
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "list": {"type": "array", "items": {"type": "string"}},
    "id": {"type": "string", "format": "uuid"},
}


def request_schema(verb: str) -> Schema:
    """The body of a request."""
    fields = REQUESTS[verb]
    properties = {field: request_field_schema(verb, field) for field in fields}
    required = [field for field, kind in fields.items() if kind.endswith(("!", "?"))]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def request_field_schema(verb: str, field: str) -> Schema:
    kind = REQUESTS[verb][field]
    schema = {**_TYPES[kind.rstrip("!?")], **_bounds(verb, field)}
    if kind.endswith("?"):
        schema["type"] = [schema["type"], "null"]
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
    if numbers is not None:
        return {"minimum": numbers[0], "maximum": numbers[1]}
    if field in CHOICES:
        return {"enum": list(CHOICES[field]), "default": CHOICES[field][0]}
    if field == "names":
        least, most = LIST_LENGTHS[verb]
        return {"minItems": least, "maxItems": most, "uniqueItems": True}
    if field == "acl":
        least, most = ACL_LENGTHS[verb]
        entries = {"type": "array", "items": {"type": "string"}, "minItems": least, "maxItems": most}
        return {"properties": {"acquire": entries}, "required": ["acquire"]}
    # A text of so many bytes has at most as many characters; the description says which of both is checked.
    most_chars = CHARACTERS.get(field) or BYTES.get(field)
    if most_chars is None:
        return {}
    return {"maxLength": most_chars} | ({"minLength": 1} if (verb, field) in NOT_EMPTY else {})


def _seen(field: str) -> str:
    size = f"At most {BYTES[field]} bytes of UTF-8. " if field in BYTES else ""
    return f"{size}Seen by {SEEN_BY[field]}" if field in SEEN_BY else size.rstrip(". ")
