"""Another rule for a command, or another text of a function, while a test runs. Compiled code calls `decide` directly,
so a test cannot put another function in its place; the table of rules is looked up at each decision."""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING, Any

from dibs.core import decide as decide_module

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Ticket

    Rule = Callable[[Draft, Any], Outcome | Ticket]


def put_rule(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], make: Callable[[Rule], Rule], *, checked: bool = False
) -> None:
    """`make` gets the rule of the command and returns the one to use instead. It may be wrong: nobody looks at what is
    decided, unless `checked`."""
    if not checked:
        monkeypatch.setattr(decide_module, "CHECKS", [])
    rules = decide_module._RULES
    if kind not in rules:  # rules are loaded when they are needed, and would come over this one
        decide_module._load(kind)
    monkeypatch.setitem(rules, kind, make(rules[kind]))


def rewrite(patch: pytest.MonkeyPatch, owner: Any, name: str, *changes: tuple[str, str]) -> None:
    """Replace parts of a function's text, for a test that is on no record of faults (those are in `tests/put_back`)."""
    function = getattr(owner, name)
    text = "from __future__ import annotations\n" + textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert old in text, f"{name} has changed: break it in another way"
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(text, name, "exec"), vars(inspect.getmodule(function)), made)
    patch.setattr(owner, name, made[name])
