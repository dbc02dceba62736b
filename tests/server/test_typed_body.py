"""Bodies that msgspec parses and checks in one step (`server/http/parse.py`). That way accepts only what the long
way accepts, and with the same result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dibs.base.errors import DibsError
from dibs.core.caller_rights import Caller, Limits
from dibs.core.commands import AcquireTerms
from dibs.server.http.parse import VERBS, parse_json, typed_document
from dibs.wire.fields import REQUESTS
from dibs.wire.requests import command_for, shape, wait_ms
from tests.build import tries

ID = "01234567-89ab-4def-8123-456789abcdef"
# Values as they stand in JSON, good and bad for each type of field.
_VALUES = [
    *("0", "1", "30", "-1", "-0", "30.0", "3e1", "1e400", "0.5", "-0.0", "NaN", "Infinity", "01", "+1"),
    *("4294967295", "4294967296", "18446744073709551616", "9" * 30, "86400", "86401000"),
    *(
        "true",
        "false",
        "null",
        "True",
        '"true"',
        '""',
        '"x"',
        '"a:b"',
        '"\\u003a"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
    ),
    *('"a\\":b"', '":"', '"\\\\"', '"\u00e9"', '"shared"', '"exclusive"', '"x\\u0000"', f'"{"x" * 600}"'),
    *(f'"{ID}"', f'"{ID.upper()}"', f'"{ID}\\n"', f'"{ID[:-1]}"', f'"{ID.replace("-", "")}"', f'"{{{ID}}}"'),
    *(
        "[]",
        '["a"]',
        '["a","a"]',
        '["path:src","b"]',
        '["a",1]',
        '[["a"]]',
        '["a":1]',
        "{}",
        '{"acquire":["user:x"]}',
    ),
    "[" * 40 + "]" * 40,
]
_FIELDS = sorted({field for verb in VERBS for field in REQUESTS[verb]} | {"unknown", "a:b", "", "ttl\\u005fseconds"})
_BLANK = st.sampled_from(["", "", "", " ", "\n\t"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Objects with fields that are known, unknown and given twice."""
    text = st.text(max_size=6).map(lambda each: json.dumps(each, ensure_ascii=False))
    pairs = draw(st.lists(st.tuples(st.sampled_from(_FIELDS), st.sampled_from(_VALUES) | text), max_size=4))
    blank = draw(_BLANK)
    inner = f"{blank},".join(f'{blank}"{field}"{blank}:{blank}{value}' for field, value in pairs)
    return (blank + "{" + inner + "}" + blank).encode("utf-8", "surrogatepass")


def _long_way(verb: str, body: bytes) -> dict[str, Any] | None:
    try:
        return shape(verb, parse_json(body))
    except DibsError:
        return None


@settings(max_examples=tries(400, 800))
@given(verb=st.sampled_from(VERBS), body=bodies() | st.binary(max_size=20))
@example(verb="acquire", body=b'{"owner":"\\u003a","owner":"\\u003a"}')
@example(verb="acquire", body=b'{"owner":":","owner":"x"}')
@example(verb="acquire", body=b'{"owner":"x","x":1}')
@example(verb="acquire", body=b'{"wait_seconds":1,"wait_seconds":1}')
@example(verb="renew", body=b'{"ttl_seconds":60}')
@example(verb="acquire-any", body=b"{}")
@example(verb="acquire", body=b"[]")
def test_what_the_typed_way_accepts_the_long_way_accepts_with_the_same_result(verb: str, body: bytes) -> None:
    typed = typed_document(verb, body)
    if typed is not None:
        # repr, because 1 == 1.0 == True
        assert repr(typed) == repr(_long_way(verb, body))


@settings(max_examples=tries(200, 400))
@given(
    verb=st.sampled_from(VERBS),
    limits=st.sampled_from([Limits(), Limits(held=3, rate=7)]),
    body=st.dictionaries(st.sampled_from(_FIELDS[:-1]), st.sampled_from(_VALUES), max_size=3),
)
def test_both_ways_lead_to_the_same_command_or_the_same_refusal(
    verb: str, limits: Limits, body: dict[str, str]
) -> None:
    if "names" in REQUESTS[verb]:
        body = {"names": '["path:src","b"]'} | body
    raw = ("{" + ",".join(f'"{field}":{value}' for field, value in body.items()) + "}").encode()
    typed, long = typed_document(verb, raw), _long_way(verb, raw)
    if typed is None or long is None:
        return
    caller = Caller(principal="agent-1", limits=limits, namespace="team")
    assert _outcome(verb, typed, caller) == _outcome(verb, long, caller)


def _outcome(verb: str, document: dict[str, Any], caller: Caller) -> object:
    try:
        command = command_for(verb, "team", "job-1", document, caller)
        if isinstance(command, AcquireTerms):
            command = command.replace(fresh_lease_id=ID)
        return command, wait_ms(document)
    except DibsError as error:
        return type(error), error.details


@pytest.mark.parametrize(
    ("verb", "document"),
    [
        ("acquire", {}),
        ("acquire", {"ttl_seconds": 60}),
        ("acquire", {"request_key": ID, "owner": "me@host:17", "ttl_ms": 120_000, "wait_seconds": 0.5}),
        ("acquire", {"session_id": ID, "metadata": "https://example.org/", "mode": "shared"}),
        ("acquire-any", {"names": ["path:src/a", "b"], "owner": "me"}),
        ("acquire-all", {"names": ["a", "b"], "wait_seconds": 10}),
        ("renew", {"lease_id": ID, "checkpoint": "page:3"}),
        ("release", {"lease_id": ID}),
        ("release", {"session_id": ID, "done": True, "result": "ok"}),
    ],
)
def test_usual_bodies_take_the_typed_way(verb: str, document: dict[str, Any]) -> None:
    assert typed_document(verb, json.dumps(document, separators=(",", ":")).encode()) == document
    assert typed_document(verb, json.dumps(document).encode()) == document


def test_verbs_without_a_typed_way_take_the_long_one() -> None:
    assert typed_document("transfer", b"{}") is None
