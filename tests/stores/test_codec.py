"""Records as text: one text, whoever writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec  # codec picks it because it is loaded
import pytest

from dibs.base import jsontext
from dibs.base.errors import InvalidInput, StoreCorrupt, StoreTooNew
from dibs.core.records import META_KEY, Meta
from dibs.stores import codec
from dibs.stores.port import RecordCorrupt
from dibs.testing.contract_base import event, key_of, lock
from tests.core.make import holder

SOURCE = Path(__file__).parents[2] / "src"
VALUES = [{}, {"a": [1, -2, None, True, {"b": 'é "😀" \\ \n \x01 \x7f \u2028 /'}]}, [2**62, "", []]]


@pytest.mark.parametrize("value", VALUES)
def test_all_writers_write_the_same_text_and_read_each_others(value: object) -> None:
    assert msgspec.__name__ in sys.modules
    writers = [jsontext._bare(), jsontext._standard(), codec._pick()]
    texts = {to_text(value) for to_text, _ in writers}
    assert len(texts) == 1
    assert all(from_text(texts.copy().pop()) == value for _, from_text in writers)
    assert json.loads(texts.pop()) == value


@pytest.mark.parametrize("text", ["", "{", '{"a":}', "[1", "1 2", "nul", '"\x01"', "{'a': 1}"])
def test_no_writer_reads_what_is_not_json(text: str) -> None:
    for _, from_text in (jsontext._bare(), jsontext._standard(), codec._pick()):
        with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
            from_text(text)


def test_without_msgspec_the_parts_of_json_are_used_alone() -> None:
    script = """
import sys
from dibs.core.records import Meta
from dibs.stores import codec
assert codec.decode("meta", codec.encode(Meta(token_floor=3))) == Meta(token_floor=3)
print(sorted({"json", "re", "msgspec"} & set(sys.modules)))
"""
    answer = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout == "[]\n"


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_quick_encoder_is_taken_only_where_somebody_loaded_it(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "msgspec")
    assert (codec._pick() == (jsontext.encode, jsontext.decode)) is not is_loaded


def test_a_server_encodes_by_msgspec_though_it_loads_it_after_its_stores() -> None:
    script = """
import sys
from dibs.base import jsontext
from dibs.stores import codec
assert codec._to_text is jsontext.encode
from dibs.server.run import _open
_open("memory://").close()
assert codec._to_text is not jsontext.encode
"""
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        timeout=60,
        check=True,
    )


def test_records_and_events_come_back() -> None:
    assert codec.decode(key_of("x"), codec.encode(lock("x"))) == lock("x")
    assert codec.decode(META_KEY, codec.encode(Meta())) == Meta()
    assert codec.decode_event(7, codec.encode(event("x"))) == event("x").replace(seq=7)


def test_fields_of_a_newer_version_are_passed_over_and_missing_ones_refused() -> None:
    assert codec.decode(META_KEY, '{"token_floor":2,"new":[1]}') == Meta(token_floor=2)
    with pytest.raises(StoreCorrupt, match="lock/default/x"):
        codec.decode(key_of("x"), '{"ns":"default"}')
    with pytest.raises(StoreCorrupt, match="Event 5"):
        codec.decode_event(5, "{}")


WRONG_TYPES = [
    {"token": "5"},
    {"token": True},
    {"token": 1.5},
    {"pooled": 1},
    {"name": 7},
    {"name": None},
    {"holders": "abc"},
    {"holders": {"owner": "a"}},
    {"holders": None},
    {"holders": [3]},
    {"holders": [{**holder().dump(), "expires_ms": "soon"}]},
    {"holders": [{**holder().dump(), "session": 4}]},
    {"line": ["1"]},
    {"acl": [1]},
    {"done": []},
    {"done": {"owner": "a", "token": 1, "at_ms": None, "until_ms": 2}},
]


@pytest.mark.fault("F-520")
@pytest.mark.parametrize("wrong", WRONG_TYPES, ids=repr)
def test_a_field_of_another_type_makes_a_damaged_record_that_is_named_by_its_key(wrong: dict[str, object]) -> None:
    """The rules trust the types of what they read: one of them would fail, and nobody would know by which record."""
    key = key_of("a")
    with pytest.raises(RecordCorrupt, match="cannot be read") as caught:
        codec.decode(key, json.dumps({**lock("a").dump(), **wrong}))
    assert caught.value.key == key


def test_a_record_of_a_kind_that_only_a_newer_version_knows_is_not_called_corrupt() -> None:
    with pytest.raises(StoreTooNew, match=r"unheard/of.*Upgrade dibs"):
        codec.decode("unheard/of", "{}")


def test_text_that_is_not_utf8_is_refused_with_what_to_do() -> None:
    assert codec.utf8("é") == b"\xc3\xa9"
    with pytest.raises(InvalidInput, match="Write it in UTF-8"):
        codec.utf8("\ud800")


def test_bytes_that_are_not_utf_8_give_a_text_that_no_record_has() -> None:
    assert codec.text_of('{"né"}'.encode()) == '{"né"}'
    text = codec.text_of(b'{"name": "\xff"}')
    assert text == 'not UTF-8: {"name": "\\xff"}'
    assert not codec.is_readable(META_KEY, text)
