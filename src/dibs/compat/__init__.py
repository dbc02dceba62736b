"""Code for clients of other systems. The rest of dibs does not need it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.wire.answer_fields import Answer
    from dibs.wire.operations import Schema


class Schemas:
    """Makes the schema of an answer of its fields' names. `fields` says what each means, wherever it is."""

    def __init__(self, fields: Answer) -> None:
        self._fields = fields

    def of(self, *names: str, null: tuple[str, ...] = (), optional: tuple[str, ...] = (), title: str = "") -> Schema:
        """`null`: which of them may be null; `optional`: which may be left out; `title`: of what several answer."""
        from dibs.wire.operations import document_schema

        chosen = {name: self._fields[name] for name in names}
        return document_schema(
            {name: field._replace(null=name in null, optional=name in optional) for name, field in chosen.items()},
            title,
        )


def with_list(name: str, item: Schema) -> Schema:
    return {"type": "object", "properties": {name: {"type": "array", "items": item}}, "required": [name]}
