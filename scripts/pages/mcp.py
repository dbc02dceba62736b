"""The section `Tools` of docs/reference/mcp.md, made from the schemas that clients get. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dibs.agents.answers import JobOwner, LostClaim, PreviousOwner
from dibs.agents.tools import TOOLS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dibs.agents.tools import Tool

    Schema = dict[str, Any]

PARTS: tuple[type[BaseModel], ...] = (JobOwner, PreviousOwner, LostClaim)


def tools_section() -> str:
    """Everything from the heading `Tools` to the end of the page."""
    rows = [
        "| tool | what it does | reads only | ends something | may be repeated |",
        "| --- | --- | --- | --- | --- |",
    ]
    for tool in TOOLS:
        hints = " | ".join("yes" if hint else "" for hint in (tool.reads, tool.destructive, tool.idempotent))
        rows.append(f"| `{tool.name}` | {tool.title.lower()} | {hints} |")
    return "\n".join(
        [*rows, "", *[_described(tool) for tool in TOOLS], "## Parts of answers\n", *map(_part, PARTS)]
    )


def _part(model: type[BaseModel]) -> str:
    head = [
        f"### {spoken(model.__name__)}",
        "",
        model.__doc__ or "",
        "",
        "| field | type | meaning |",
        "| --- " * 3 + "|",
    ]
    return "\n".join([*head, *_fields(model)]) + "\n"


def _described(tool: Tool) -> str:
    parts = [f"### `{tool.name}`", "", tool.about, ""]
    for where, more in (("`dibs mcp`", tool.about_kept), ("`/mcp`", tool.about_loose)):
        if more:
            parts += [f"Over {where}: {more}", ""]
    parts += ["| argument | type | meaning |", "| --- | --- | --- |", *_arguments(tool), ""]
    parts += ["| answer | type | meaning |", "| --- | --- | --- |", *_fields(tool.gives)]
    return "\n".join(parts) + "\n"


def _arguments(tool: Tool) -> list[str]:
    kept, loose = tool.takes.model_json_schema(), tool.takes_loose.model_json_schema()
    rows = []
    for name, schema in loose["properties"].items():
        needs = [
            where for where, of in (("dibs mcp", kept), ("/mcp", loose)) if name in of.get("required", ())
        ]
        notes = [_type(schema)]
        if len(needs) == 2:
            notes.append("required")
        elif needs:
            notes.append(f"required over `{needs[0]}`")
        elif name not in kept["properties"]:
            notes.append("only over `/mcp`")
        default = schema.get("default")
        if default not in (None, False, ""):
            notes.append(f"default {default}")
        rows.append(f"| `{name}` | {', '.join(notes)} | {_meaning(kept['properties'].get(name, schema))} |")
    return rows


def _fields(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema(mode="serialization")
    return [f"| `{name}` | {_type(of)} | {_meaning(of)} |" for name, of in schema["properties"].items()]


def _meaning(schema: Schema) -> str:
    found = [each["description"] for each in (schema, *schema.get("anyOf", ())) if "description" in each]
    return str(found[0])


_TYPES = {"string": "text", "integer": "whole number", "boolean": "true or false", "array": "list"}


def _type(schema: Schema) -> str:
    for each in schema.get("anyOf", [schema]):
        if "$ref" in each:
            return spoken(str(each["$ref"]).rsplit("/", 1)[1])
        if each.get("type") == "array":
            return f"list of {_type(each['items'])}"
        if each.get("type") in _TYPES:
            return _TYPES[each["type"]]
    raise AssertionError(f"no word for {schema}")


def spoken(class_name: str) -> str:
    """`lost claim` for LostClaim."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", class_name).lower()
