"""JSON that somebody wrote is edited in place: what is put in can be read, and taking it out restores every byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.agents.harness import json_edit

SPACES = st.sampled_from(["", " ", "\n", "\n  ", "\t", " // a, {b}\n", "/* ] } , */", "\n\t// \"'\n"])
KEYS = st.text(st.characters(codec="utf-8"), max_size=4).filter(lambda key: key not in ("hooks", "Event"))
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4) | st.just("// no comment, [")


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """A value as somebody may have written it, with comments, blanks and commas anywhere."""
    if not isinstance(value, dict | list):
        return json.dumps(value)
    parts: list[str] = []
    items = value.items() if isinstance(value, dict) else [(None, item) for item in value]
    for key, item in items:
        label = "" if key is None else f"{json.dumps(key)}{draw(SPACES)}:{draw(SPACES)}"
        parts.append(f"{draw(SPACES)}{label}{draw(written(item))}{draw(SPACES)}")
    last = draw(SPACES)
    if parts:
        last = draw(st.sampled_from(["", ","])) + last
    brackets = "{}" if isinstance(value, dict) else "[]"
    return brackets[0] + ",".join(parts) + last + brackets[1]


VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)


@given(st.data())
def test_what_is_appended_is_last_and_taking_it_out_restores_every_byte(data: st.DataObject) -> None:
    document: dict[str, Any] = {**data.draw(DOCUMENTS)}
    if data.draw(st.booleans()):
        document["hooks"] = {"other": [1], **data.draw(DOCUMENTS)}
    if "hooks" in document and data.draw(st.booleans()):
        document["hooks"]["Event"] = data.draw(st.lists(VALUES, min_size=1, max_size=3))
    text = data.draw(SPACES) + data.draw(written(document)) + data.draw(SPACES)
    assert json_edit.value_of(text) == document
    item = data.draw(VALUES)
    made = json_edit.append(text, ("hooks", "Event"), item)
    events = json_edit.value_of(made)["hooks"]["Event"]
    assert events == [*document.get("hooks", {}).get("Event", []), item]
    assert json_edit.remove(made, ("hooks", "Event", len(events) - 1)) == text


@pytest.mark.parametrize(
    ("text", "path", "left"),
    [
        ('{"a": [1, 2, 3]}', ("a", 0), '{"a": [ 2, 3]}'),
        ('{"a": [1, /* two */ 2, 3]}', ("a", 1), '{"a": [1, /* two */ 3]}'),
        ('{"a": {"b": [1]}, "c": 2}', ("a", "b", 0), '{ "c": 2}'),
        ('{"a": 1}', ("a",), "{}"),
        ('{"a": 1, "a": 2}', ("a",), '{"a": 1}'),
    ],
)
def test_an_entry_is_taken_out_with_what_it_leaves_empty(text: str, path: json_edit.Path, left: str) -> None:
    assert json_edit.remove(text, path) == left


@pytest.mark.parametrize("text", ["", "{", '{"a": }', '{"a": 1 /* }', '{"a" 1}'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        json_edit.value_of(text)
