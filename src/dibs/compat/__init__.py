"""Code for clients of other systems. The rest of dibs does not need it."""

from __future__ import annotations

from dibs.base.cheap import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.wire.answer_fields import Answer
    from dibs.wire.operations import Schema


def schemas_of(meanings: str, known: Answer | None = None) -> Callable[[str], Schema]:
    """Makes the schema of an answer of its fields' names, whose kinds and meanings are told here, or `known`. "?" after
    a name: it may be null; "-": it may be left out."""
    from dibs.wire.operations import document_schema

    told = dict(known or {})
    for line in meanings.strip().splitlines():
        head, _, meaning = line.partition(": ")
        name, _, kind = head.partition(" ")
        told[name] = (kind, meaning)

    def schema(fields: str) -> Schema:
        found = [(field, *told[field.rstrip("?-")]) for field in fields.split()]
        named = {field.rstrip("?-"): (kind + field[len(field.rstrip("?-")) :], said) for field, kind, said in found}
        return document_schema(named)

    return schema


def with_list(name: str, item: Schema) -> Schema:
    return {"type": "object", "properties": {name: {"type": "array", "items": item}}, "required": [name]}
