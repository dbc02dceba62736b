"""JSON schemas of the tools. They are short, because they cost tokens in every conversation.

They leave out what a client does not need: titles, null for optional values, and fields that are not in every answer.
The reference page lists all fields of all answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.agents.answers import ToolAnswer
    from dibs.agents.arguments import ToolArguments

    Schema = dict[str, Any]


def input_schema(model: type[ToolArguments]) -> Schema:
    full = model.model_json_schema()
    schema: Schema = {
        "type": "object",
        "properties": {name: _argument(of) for name, of in full["properties"].items()},
        "additionalProperties": False,
    }
    if "required" in full:
        schema["required"] = full["required"]
    return schema


def output_schema(model: type[ToolAnswer]) -> Schema:
    """The fields that every answer has. Additional fields are allowed."""
    full = model.model_json_schema(mode="serialization")
    required = [name for name in full["required"] if "type" in full["properties"][name]]
    return {
        "type": "object",
        "properties": {name: {"type": full["properties"][name]["type"]} for name in required},
        "required": required,
    }


def _argument(schema: Schema) -> Schema:
    """An optional argument is left out, never null, so it has only one type."""
    merged = {key: value for key, value in schema.items() if key not in ("title", "anyOf")}
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            merged |= choice
    if merged.get("default", "") is None:
        del merged["default"]
    return merged
