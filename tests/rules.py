"""Another rule for a command, while a test runs. Compiled code calls `decide` directly, so a test cannot put another
function in its place; the table of rules is looked up at each decision."""

from __future__ import annotations

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
