from __future__ import annotations

import copy
import json
import pickle
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.base.record import Record
from dibs.core import commands, events, lease_outcomes, outcomes, records
from dibs.core.records import Done, Ending, Holder, LockRecord, Meta, Outage, Pulse
from tests.build import COMPILED, tries
from tests.core.make import acquire, ending, holder, lock
from tests.models import replay

MODULES = (records, events, commands, outcomes, lease_outcomes, replay)


def record_classes() -> dict[str, Any]:
    """Every record that has a form outside this process or may be given one."""
    found = {}
    for module in MODULES:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Record) and kind.__module__ == module.__name__:
                found[f"{module.__name__.rpartition('.')[2]}.{kind.__name__}"] = kind
    return found


CLASSES = record_classes()
CLASSES_BY_NAME = {kind.__name__: kind for kind in CLASSES.values()}
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(max_size=20),
    "int": st.integers(),
    "bool": st.booleans(),
    # Not read back from JSON as they were, and never stored.
    "tuple[tuple[str, str, int], ...]": st.just(()),
    "tuple[Outcome, ...]": st.just(()),
    "tuple[tuple[str, Stored], ...]": st.just(()),
}


@cache
def values_of(annotation: str) -> st.SearchStrategy[Any]:
    """Values for a field, from how its type is written."""
    if annotation.endswith(" | None"):
        return st.none() | values_of(annotation.removesuffix(" | None"))
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation.endswith(", ...]"):
        return st.lists(values_of(annotation[6:-6]), max_size=3).map(tuple)
    return st.deferred(lambda: records_of(CLASSES_BY_NAME[annotation]))


@cache
def records_of(kind: Any) -> st.SearchStrategy[Record]:
    """Records with some of their optional fields given, and the others left at their defaults."""
    fields = {field: values_of(kind._types[field]) for field in kind._fields}
    needed = {field: values for field, values in fields.items() if field not in kind._defaults}
    optional = {field: values for field, values in fields.items() if field in kind._defaults}
    return st.fixed_dictionaries(needed, optional=optional).map(lambda values: kind(**values))


@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=tries(12))
@given(data=st.data())
def test_what_was_written_out_is_read_back_as_the_same_record(name: str, data: st.DataObject) -> None:
    kind = CLASSES[name]
    record = data.draw(records_of(kind))
    text = json.dumps(record.dump())
    again = kind.load(json.loads(text))
    assert again == record
    assert repr(again) == repr(record)
    assert json.dumps(again.dump()) == text


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=tries(6))
@given(data=st.data())
def test_a_record_can_be_copied_changed_compared_and_hashed(name: str, data: st.DataObject) -> None:
    kind = CLASSES[name]
    record, other = data.draw(records_of(kind)), data.draw(records_of(kind))
    same = record.replace()
    assert same == record
    assert same is not record
    assert hash(same) == hash(record)
    assert copy.copy(record) == copy.deepcopy(record) == pickle.loads(pickle.dumps(record)) == record
    assert record.replace(**{field: getattr(other, field) for field in kind._fields}) == other
    assert (record == other) == (record.astuple() == other.astuple())


def test_an_optional_field_may_be_null_where_it_is_read() -> None:
    written = {**holder().dump(), "checkpoint": None}
    assert Holder.load(written) == holder()


def test_a_field_at_its_default_is_not_written() -> None:
    assert LockRecord(ns="n", name="j").dump() == {"ns": "n", "name": "j"}
    assert Meta().dump() == {}
    assert Pulse(server="s", at_ms=0).dump() == {"at_ms": 0, "server": "s"}, (
        "a field without a default is always written"
    )
    assert "attempt" not in holder().dump()
    assert holder(attempt=2).dump()["attempt"] == 2


def test_records_inside_records_are_written_and_read_as_themselves() -> None:
    job = lock(holder(), endings=(ending(),), done=Done(owner="a", token=1, at_ms=2, until_ms=3), acl=("x",))
    written = json.loads(json.dumps(job.dump()))
    assert written["holders"] == [holder().dump()]
    assert written["done"] == {"owner": "a", "token": 1, "at_ms": 2, "until_ms": 3}
    again = LockRecord.load(written)
    assert isinstance(again.holders, tuple)
    assert isinstance(again.holders[0], Holder)
    assert isinstance(again.endings[0], Ending)
    assert isinstance(again.done, Done)
    assert again.acl == ("x",)


def test_a_key_that_a_newer_version_added_is_ignored_where_it_is_read() -> None:
    written = {**lock(holder()).dump(), "colour": "red"}
    written["holders"][0]["taste"] = "sweet"
    assert LockRecord.load(written) == lock(holder())


def test_a_field_that_must_be_there_is_missed_where_it_is_read() -> None:
    with pytest.raises(KeyError, match="name"):
        LockRecord.load({"ns": "n"})


@pytest.mark.parametrize("item", [1, "x", None, []])
def test_an_item_that_is_no_object_is_of_another_type_where_it_is_read(item: object) -> None:
    with pytest.raises(TypeError):
        LockRecord.load({"ns": "n", "name": "j", "holders": [item]})


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        LockRecord(ns="n", name="j", colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        lock().replace(colour="red")
    with pytest.raises(TypeError, match="name"):
        LockRecord(ns="n")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        LockRecord("n", "j")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        lock().colour = "red"  # type: ignore[attr-defined]


def test_a_refused_change_leaves_the_record_as_it_was() -> None:
    job = lock(holder())
    with pytest.raises(TypeError):
        job.replace(token=7, colour="red")
    assert job == lock(holder())


def test_records_of_different_classes_are_never_equal() -> None:
    assert outcomes.Forbidden(now_ms=0, name="j") != outcomes.AclDiffers(now_ms=0, name="j")
    assert Outage(began_ms=0, ended_ms=1) != (0, 1)
    assert len({outcomes.Forbidden(now_ms=0, name="j"), lease_outcomes.NotFound(now_ms=0, name="j")}) == 2


def test_a_record_shows_its_fields_that_are_not_at_their_default() -> None:
    assert repr(Outage(began_ms=0, ended_ms=1)) == "Outage(began_ms=0, ended_ms=1)"
    assert repr(Meta()) == "Meta()"
    assert repr(Meta(token_floor=3)) == "Meta(token_floor=3)"
    assert repr(acquire(again=True)).endswith("again=True)")


@pytest.mark.skipif(COMPILED, reason="a record of a test is not written out, so it has no methods there")
@pytest.mark.parametrize("base_first", [True, False])
def test_a_class_has_its_own_fields_whichever_class_was_used_first(base_first: bool) -> None:
    class Seat(Record):
        row: int
        place: str = "aisle"

    class Booked(Seat):
        by: str
        row: int = 1

    if base_first:
        assert Seat(row=2).dump() == {"row": 2}
    assert Booked(by="ann").dump() == {"by": "ann"}
    assert Booked.load({"by": "ann", "row": 3}) == Booked(by="ann", row=3)
    assert Seat(row=1).astuple() == (1, "aisle")
    assert Booked(by="ann").astuple() == ("ann", 1, "aisle")
    with pytest.raises(TypeError, match="row"):
        Seat()  # type: ignore[call-arg]
