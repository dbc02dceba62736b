"""Record classes as `base/record.py` makes them when the program runs. A compiled build has them written out instead,
which tests/core/test_written_records.py compares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dibs.core import records
from dibs.core.records import LockRecord
from tests.build import COMPILED

if COMPILED:
    pytest.skip("compiled records are written out", allow_module_level=True)

from dibs.base.record import Record


class Inner(Record):
    depth: int


class Outer(Record):
    inner: Inner | None
    others: tuple[Inner, ...]
    label: str = "none"


class Base(Record):
    first: int
    label: str = "base"


class Derived(Base):
    second: int
    third: tuple[str, ...] = ()


class Same(Base):
    """Adds nothing."""


@pytest.mark.parametrize("inner", [None, Inner(depth=1)])
def test_a_record_that_may_be_absent_is_written_also_when_the_field_has_no_default(
    inner: Inner | None,
) -> None:
    outer = Outer(inner=inner, others=(Inner(depth=2),))
    assert Outer.load(json.loads(json.dumps(outer.dump()))) == outer


def test_a_record_made_from_another_has_the_fields_of_both_whichever_was_used_first() -> None:
    assert Base.load(Base(first=1).replace(label="x").dump()) == Base(first=1, label="x")
    derived = Derived(first=1, second=2)
    assert (derived.label, derived.third) == ("base", ())
    assert derived.replace(third=("x",)) == Derived(first=1, second=2, third=("x",))
    assert type(derived.replace(first=3)) is Derived
    assert Derived.load(derived.dump()) == derived
    assert derived != Base(first=1)
    assert type(Same(first=1).replace(first=2)) is Same
    assert type(Same.load({"first": 1})) is Same


def test_a_record_inside_a_record_is_found_in_its_module_whatever_else_has_its_name() -> None:
    """A class of a stranger's with the name of one of ours changes nothing."""

    class Holder(Record):
        colour: str

    held = LockRecord.load({"ns": "", "name": "j", "holders": [dump_of_a_holder()]})
    assert type(held.holders[0]) is records.Holder
    assert LockRecord.load(held.dump()) == held
    assert Holder(colour="red").dump() == {"colour": "red"}


def dump_of_a_holder() -> dict[str, Any]:
    times = {"since_ms": 0, "renewed_ms": 0, "ttl_ms": 1, "expires_ms": 1}
    return {"lease_id": "l", "owner": "o", "principal": "p", "token": 1, **times}


class Leaf(Record):
    name: str


class Around(Record):
    one: Leaf | None = None
    many: tuple[Leaf, ...] = ()
    plain: tuple[str, ...] = ()
    needed: int


def test_records_in_a_record_may_be_left_out_changed_and_written() -> None:
    inner = Leaf(name="n")
    made = Around(one=inner, many=(inner,), plain=("p",), needed=1)
    changed = made.replace(one=None, needed=2)
    assert made.dump() == {"needed": 1, "one": {"name": "n"}, "many": [{"name": "n"}], "plain": ("p",)}
    assert changed.dump() == {"needed": 2, "many": [{"name": "n"}], "plain": ("p",)}
    assert changed.astuple() == (2, None, (Leaf(name="n"),), ("p",))
    assert Around(needed=3).dump() == {"needed": 3}


class Strict(Record):
    needed: int
    other: int = 0


@pytest.mark.parametrize("wrong", [{}, {"other": 1}, {"needed": 1, "third": 2}, {"third": 2}])
def test_a_record_refuses_fields_that_are_missing_or_unknown(wrong: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Strict (has no field third|needs needed)"):
        Strict(**wrong)
    with pytest.raises(TypeError, match="Strict has no field third"):
        Strict(needed=1).replace(third=2)


def test_a_field_of_a_record_cannot_be_set() -> None:
    record = Strict(needed=1)
    with pytest.raises(AttributeError, match="immutable"):
        record.needed = 2  # type: ignore[misc]
    assert record == Strict(needed=1)


def test_a_class_whose_annotations_are_made_later_as_in_python_3_14_is_refused_in_words() -> None:
    space = {"__module__": "x", "__annotate_func__": lambda kind: {"field": int}}
    with pytest.raises(TypeError, match="must begin with `from __future__ import annotations`"):
        type(Record).__new__(type(Record), "Late", (Record,), space)
