"""The public Python names as their reference page writes them: signatures without annotations, members of a class."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any


def shown(name: str, function: Any) -> str:
    """`claim(name, *, ttl=None)`."""
    parts = []
    keyword_only = False
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        parts.append(each.name if each.default is each.empty else f"{each.name}={_value(each.default)}")
    return f"{name}({', '.join(parts)})"


def _value(default: object) -> str:
    """60.0 and 60 are the same number of seconds."""
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return repr(default)


def members(kind: type) -> list[str]:
    """What a class offers, its constructor left out."""
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind)]
        return sorted([*fields, *(name for name, each in vars(kind).items() if isinstance(each, property))])
    found = []
    for name in dir(kind):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(kind, name)
        found.append(shown(name, member) if inspect.isfunction(member) else name)
    return sorted(found)
