"""The section `Tools` of docs/reference/mcp.md, made from the schemas that clients get. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.agents.mcp.tool_fields import HTTP, JOB_OWNER, OF_EVERY, PARTS
from dibs.agents.mcp.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dibs.agents.mcp.tool_fields import ToolField
    from dibs.agents.mcp.tools import Tool

    # The tool or part that has the field, its name, its type and its meaning.
    Described = tuple[str, str, str, str]


def tools_section() -> str:
    """Everything from the heading `Tools` to the end of the page. A field with one meaning is told once."""
    arguments = [each for tool in TOOLS for each in _arguments(tool)]
    answers = [each for tool in TOOLS for each in _fields(f"`{tool.name}`", tool.gives)]
    inner = [each for part, fields in PARTS.items() for each in _fields(f"a {part}", fields)]
    parts = [f"- **{part}**: {_names(field.name for field in fields)}" for part, fields in PARTS.items()]
    told: dict[str, str] = {}
    return "\n".join(
        [_described(tool, told) for tool in TOOLS]
        + [_hints()]
        + ["## Arguments\n\nTexts, where no type is given.\n", *_listed(arguments), ""]
        + [f"## Answers\n\nEvery answer has {_names((field.name for field in OF_EVERY), ' and ')}. Parts of answers:\n"]
        + [*parts, "", *_listed([*answers, *inner]), ""]
    )


def _described(tool: Tool, told: dict[str, str]) -> str:
    """`told` has the sentences and lists of the tools before, by the tool that has them: they are not repeated."""
    parts = [f"### `{tool.name}`", "", tool.about, ""]
    for where, more in (("`dibs mcp`", tool.about_kept), ("`/mcp`", tool.about_loose)):
        sentences = more.removesuffix(".").split(". ") if more else []
        new = [each for each in sentences if told.setdefault(each, tool.name) == tool.name]
        if new:
            parts += [f"Over {where}: {'. '.join(new)}.", ""]
    lists = (f"Takes {', '.join(_taken(tool))}.", f"Answers {_given(tool)}.")
    for text in lists:
        earlier = told.setdefault(text, tool.name)
        parts += [text if earlier == tool.name else f"{text.split()[0]} the same as `{earlier}`.", ""]
    return "\n".join(parts)


def _hints() -> str:
    hints = {
        "only read": [tool.name for tool in TOOLS if tool.reads],
        "end something": [tool.name for tool in TOOLS if tool.destructive],
        "may be repeated": [tool.name for tool in TOOLS if tool.idempotent and not tool.reads],
    }
    said = "; ".join(f"{_names(names)} {hint}" for hint, names in hints.items())
    return f"Clients are told that {said}; what only reads may be, too.\n"


def _given(tool: Tool) -> str:
    own = [field for field in tool.gives if field not in OF_EVERY]
    if set(JOB_OWNER) <= set(own):
        return f"what a job owner has, and {_names(field.name for field in own if field not in JOB_OWNER)}"
    return _names(field.name for field in own)


def _taken(tool: Tool) -> Iterator[str]:
    """Each argument, with where it is required or known, and its default."""
    kept = {field.name: field for field in tool.taken(kept=True)}
    for field in tool.taken(kept=False):
        notes = []
        if field.always:
            notes.append("required over `/mcp`" if field.over == HTTP else "required")
        elif field.name not in kept:
            notes.append("only over `/mcp`")
        if field.default not in (None, False, "", 0):
            notes.append(f"default {field.default}")
        yield f"`{field.name}`" + (f" ({', '.join(notes)})" if notes else "")


def _arguments(tool: Tool) -> Iterator[Described]:
    kept = {field.name: field for field in tool.taken(kept=True)}
    yield from _fields(f"`{tool.name}`", [kept.get(each.name, each) for each in tool.taken(kept=False)])


def _fields(owner: str, fields: Iterable[ToolField]) -> Iterator[Described]:
    for field in fields:
        yield owner, field.name, field.kind, field.meaning


def _listed(fields: Iterable[Described]) -> Iterator[str]:
    """A line for each field; one that has several meanings says whose they are, but for the first."""
    found: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for owner, name, kind, meaning in fields:
        owners = found.setdefault(name, (kind, {}))[1].setdefault(meaning, [])
        if owner not in owners:
            owners.append(owner)
    for name, (kind, meanings) in found.items():
        (_, first), *others = ((owners, meaning) for meaning, owners in meanings.items())
        more = "".join(f" Of {', '.join(owners)}: {_begun_small(meaning)}" for owners, meaning in others)
        yield f"- `{name}`{'' if kind == 'string' else f' ({kind})'}: {first}{more}"


def _begun_small(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _names(names: Iterable[str], last: str = ", ") -> str:
    *before, end = [f"`{name}`" for name in names]
    return f"{', '.join(before)}{last}{end}" if before else end
