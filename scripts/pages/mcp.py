"""The section `Tools` of docs/reference/mcp.md, made from the schemas that clients get. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dibs.agents.answers import ClaimedJob, JobOwner, LostClaim, PreviousOwner, ToolAnswer
from dibs.agents.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel

    from dibs.agents.tools import Tool

    Schema = dict[str, Any]
    # The tool or part that has the field, its name, its type and its meaning.
    Described = tuple[str, str, str, str]

PARTS: tuple[type[BaseModel], ...] = (JobOwner, ClaimedJob, PreviousOwner, LostClaim)


def tools_section() -> str:
    """Everything from the heading `Tools` to the end of the page. A field with one meaning is told once."""
    arguments = [each for tool in TOOLS for each in _arguments(tool)]
    answers = [each for tool in TOOLS for each in _fields(f"`{tool.name}`", tool.gives)]
    inner = [each for part in PARTS for each in _fields(f"a {spoken(part.__name__)}", part)]
    parts = [f"- **{spoken(part.__name__)}**: {_names(_properties(part))}" for part in PARTS]
    told: dict[str, str] = {}
    return "\n".join(
        [_described(tool, told) for tool in TOOLS]
        + ["## Arguments\n", *_table(arguments), ""]
        + [f"## Answers\n\nEvery answer has {_names(ToolAnswer.model_fields, ' and ')}. Parts of answers:\n"]
        + [*parts, "", *_table([*answers, *inner]), ""]
    )


def _described(tool: Tool, told: dict[str, str]) -> str:
    """`told` has the lists of the tools before, by the tool that has them: they are not repeated."""
    parts = [f"### `{tool.name}`", "", tool.about, ""]
    for where, more in (("`dibs mcp`", tool.about_kept), ("`/mcp`", tool.about_loose)):
        if more:
            parts += [f"Over {where}: {more}", ""]
    lists = (f"Takes {', '.join(_taken(tool))}.", f"Answers {_given(tool)}.")
    for text in lists:
        earlier = told.setdefault(text, tool.name)
        parts += [text if earlier == tool.name else f"{text.split()[0]} the same as `{earlier}`.", ""]
    hints = {"reads only": tool.reads, "ends something": tool.destructive, "may be repeated": tool.idempotent}
    said = ", ".join(hint for hint, is_so in hints.items() if is_so)
    return "\n".join([*parts, *([f"Hints to clients: {said}.", ""] if said else [])])


def _given(tool: Tool) -> str:
    own = [name for name in _properties(tool.gives) if name not in ToolAnswer.model_fields]
    of_owner = _properties(JobOwner)
    if set(of_owner) <= set(own):
        return f"what a job owner has, and {_names(name for name in own if name not in of_owner)}"
    return _names(own)


def _taken(tool: Tool) -> Iterator[str]:
    """Each argument, with where it is required or known, and its default."""
    kept, loose = tool.takes.model_json_schema(), tool.takes_loose.model_json_schema()
    for name, schema in loose["properties"].items():
        needs = [
            where for where, of in (("dibs mcp", kept), ("/mcp", loose)) if name in of.get("required", ())
        ]
        notes = []
        if needs:
            notes.append("required" if len(needs) == 2 else f"required over `{needs[0]}`")
        elif name not in kept["properties"]:
            notes.append("only over `/mcp`")
        if schema.get("default") not in (None, False, "", 0):
            notes.append(f"default {schema['default']}")
        yield f"`{name}`" + (f" ({', '.join(notes)})" if notes else "")


def _arguments(tool: Tool) -> Iterator[Described]:
    kept = tool.takes.model_json_schema()["properties"]
    for name, schema in tool.takes_loose.model_json_schema()["properties"].items():
        yield f"`{tool.name}`", name, _type(schema), _meaning(kept.get(name, schema))


def _fields(owner: str, model: type[BaseModel]) -> Iterator[Described]:
    for name, schema in _properties(model).items():
        yield owner, name, _type(schema), _meaning(schema)


def _table(fields: Iterable[Described]) -> Iterator[str]:
    """A row for each field; one that has several meanings says whose they are, but for the first."""
    found: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for owner, name, kind, meaning in fields:
        owners = found.setdefault(name, (kind, {}))[1].setdefault(meaning, [])
        if owner not in owners:
            owners.append(owner)
    yield "| field | type | meaning |"
    yield "| --- | --- | --- |"
    for name, (kind, meanings) in found.items():
        (_, first), *others = ((owners, meaning) for meaning, owners in meanings.items())
        more = "".join(f" Of {', '.join(owners)}: {_begun_small(meaning)}" for owners, meaning in others)
        yield f"| `{name}` | {kind} | {first}{more} |"


def _begun_small(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _names(names: Iterable[str], last: str = ", ") -> str:
    *before, end = [f"`{name}`" for name in names]
    return f"{', '.join(before)}{last}{end}" if before else end


def _properties(model: type[BaseModel]) -> dict[str, Schema]:
    found: dict[str, Schema] = model.model_json_schema(mode="serialization")["properties"]
    return found


def _meaning(schema: Schema) -> str:
    found = [each["description"] for each in (schema, *schema.get("anyOf", ())) if "description" in each]
    return str(found[0])


_TYPES = ("string", "integer", "boolean")


def _type(schema: Schema) -> str:
    for each in schema.get("anyOf", [schema]):
        if "$ref" in each:
            return spoken(str(each["$ref"]).rsplit("/", 1)[1])
        if each.get("type") == "array":
            return f"list of {_type(each['items'])}"
        if each.get("type") in _TYPES:
            return str(each["type"])
    raise AssertionError(f"no word for {schema}")


def spoken(class_name: str) -> str:
    """`lost claim` for LostClaim."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", class_name).lower()
