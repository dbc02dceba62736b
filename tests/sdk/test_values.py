"""Values are frozen dataclasses to whoever uses them, although a `with` block never imports `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

import dibs
from dibs.sdk.values import Value, hidden

LEASE: dict[str, Any] = {
    "name": "job",
    "lease_id": "secret",
    "fencing_token": 7,
    "owner": "me",
    "expires_at": "2026-01-01T00:00:00Z",
    "remaining_ms": 60_000,
}
EVENT: dict[str, Any] = {"seq": 1, "at": "2026-01-01T00:00:00Z", "event": "acquired"}
VALUES = (dibs.Lease, dibs.Previous, dibs.JobStatus, dibs.JobEvent, dibs.Overdue)


def twin_of(kind: type[Value]) -> Any:
    """A dataclass as one would write it, with the same fields."""
    made = [(each.name, each.type, copy.copy(each)) for each in dataclasses.fields(kind)]
    return dataclasses.make_dataclass(kind.__name__, made, frozen=True)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_looks_like_a_dataclass_with_its_fields(kind: type[Value]) -> None:
    twin = twin_of(kind)
    values = {name: f"of {name}" for name in inspect.signature(kind).parameters}
    ours, theirs = kind(**values), twin(**values)
    assert inspect.signature(kind) == inspect.signature(twin)
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs) == values
    assert ours == kind(*values.values()) == pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours)
    assert hash(ours) == hash(copy.copy(ours))
    assert kind.__match_args__ == twin.__match_args__  # type: ignore[attr-defined]
    for name in values:
        is_compared = kind.__dataclass_fields__[name].compare
        assert (dataclasses.replace(ours, **{name: "another"}) != ours) is is_compared
        assert ours.__replace__(**{name: "another"}) == dataclasses.replace(ours, **{name: "another"})


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ((), {}),
        (("job",), {}),
        (("job",), LEASE),
        ((), {**LEASE, "colour": "red"}),
        (tuple(range(20)), {}),
        ((), {"name": "job"}),
    ],
)
def test_a_wrong_call_is_refused_as_python_refuses_it(args: tuple[Any, ...], fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as theirs:
        twin_of(dibs.Lease)(*args, **fields)
    with pytest.raises(TypeError) as ours:
        dibs.Lease(*args, **fields)
    assert str(ours.value) == str(theirs.value)


def test_a_value_cannot_be_changed() -> None:
    lease = dibs.Lease(**LEASE)
    with pytest.raises(AttributeError) as error:
        lease.owner = "you"  # type: ignore[misc]
    assert isinstance(error.value, dataclasses.FrozenInstanceError)
    with pytest.raises(AttributeError):
        del lease.attempt
    with pytest.raises(AttributeError):
        lease.colour = "red"
    assert lease == dibs.Lease(**LEASE)
    assert "secret" not in repr(lease)


def test_each_value_has_a_document_of_its_own() -> None:
    first, second = dibs.JobEvent(**EVENT), dibs.JobEvent(**EVENT)
    first.document["seen"] = True
    assert second.document == {}
    assert first == second


def test_a_value_is_of_its_class_alone_and_may_be_matched_and_extended() -> None:
    class Noted(dibs.Lease):
        note: str = ""

    noted = Noted(**LEASE, note="mine")
    assert noted != dibs.Lease(**LEASE)
    assert [each.name for each in dataclasses.fields(Noted)][-1] == "note"
    assert repr(noted).endswith("note='mine')")
    match noted:
        case dibs.Lease(name=name, fencing_token=token):
            assert (name, token) == ("job", 7)

    @dataclasses.dataclass(frozen=True)
    class Wider(dibs.Previous):
        more: int = 3

    assert Wider("o", "released", "t", 1).more == 3


def test_a_secret_can_be_compared_although_it_is_not_shown() -> None:
    class Card(Value):
        name: str
        code: str = hidden()

    assert Card("a", "1") != Card("a", "2")
    assert repr(Card("a", "1")).endswith("Card(name='a')")


def test_python_does_not_take_the_base_for_a_dataclass() -> None:
    assert not dataclasses.is_dataclass(Value)
