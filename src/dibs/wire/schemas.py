"""The declared fields as JSON schemas, for a description of the API. Pure.

Unknown request fields are ignored, so no schema forbids any."""

from __future__ import annotations

from dibs.core.limits import ACL_ENTRY_BYTES_MAX, NAME_BYTES_MAX
from dibs.wire.answer_fields import ANSWERS, PARTS
from dibs.wire.request_fields import ACL_PATTERN, NAME_FORMAT, REQUESTS
from dibs.wire.shapes import PROVEN, U32_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.wire.answer_fields import Answer
    from dibs.wire.request_fields import Field

    Schema = dict[str, Any]

ID_PATTERN = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
NAME_SCHEMA: Schema = {"type": "string", "format": NAME_FORMAT, "minLength": 1, "maxLength": NAME_BYTES_MAX}
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
    required = [name for name, field in fields.items() if field.is_required]
    found: Schema = {
        "type": "object",
        "properties": {name: request_field_schema(verb, name) for name in fields},
    }
    if required:
        found["required"] = required
    if verb in PROVEN:
        found["anyOf"] = [
            {"required": [proof], "properties": {proof: {"type": "string"}}}
            for proof in ("lease_id", "session_id")
        ]
    return found


def request_field_schema(verb: str, name: str) -> Schema:
    """`null` is the same as leaving a field out, so a field that may be left out may be null."""
    field = REQUESTS[verb][name]
    schema = {**_TYPES[field.kind.rstrip("!?")], **_bounds(name, field)}
    if field.kind.endswith("?") or not field.is_required:
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    said = [
        field.meaning,
        f"Default: {field.default}" if field.default else "",
        f"At most {field.bytes} bytes of UTF-8" if field.bytes else "",
        f"Seen by {field.seen_by}" if field.seen_by else "",
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
    # A text of so many bytes has at most as many characters; the description says which of both is checked.
    most_chars = field.chars or field.bytes
    if not most_chars:
        return {}
    return {"maxLength": most_chars} | ({"minLength": 1} if field.not_empty else {})


def answer_schema(answer: str) -> Schema:
    """The body of an answer, by its name in `ANSWERS`."""
    schema = document_schema(ANSWERS[answer])
    for name, (kind, meaning) in ANSWERS[answer].items():
        if name in PARTS:
            part = {"$ref": f"#/components/schemas/{PARTS[name]}"}
            schema["properties"][name] = _answer_field(kind, meaning, part)
    if ANSWERS[answer].get("status") == ("text", f"`{answer}`"):  # tells the answers of a claim apart
        schema["properties"]["status"]["const"] = answer
    return schema


def document_schema(fields: Answer) -> Schema:
    """The body of an answer that only HTTP has, declared as in `ANSWERS`."""
    return {
        "type": "object",
        "properties": {
            name: _answer_field(kind, meaning, {"type": "object"}) for name, (kind, meaning) in fields.items()
        },
        "required": [name for name, (kind, _) in fields.items() if not kind.endswith("-")],
    }


def _answer_field(kind: str, meaning: str, part: Schema) -> Schema:
    """`part` is what a list or an object holds."""
    schemas: dict[str, Schema] = {
        "text": {"type": "string"},
        "number": {"type": "integer", "minimum": 0},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": part},
        "object": part,
        "texts": {"type": "array", "items": {"type": "string"}},
    }
    schema = schemas[kind.rstrip("?-")]
    if "?" in kind:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": f"{meaning}."}
