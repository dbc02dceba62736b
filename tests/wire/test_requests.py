"""Requests: shapes first, meanings after, and what each field may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import DibsError, InvalidInput, InvalidName, InvalidTtl, NotAllowed, Unprocessable
from dibs.core import limits
from dibs.core.caller_rights import LOCAL, Caller
from dibs.core.commands import (
    Acquire,
    Break,
    EndSession,
    Free,
    Inspect,
    InspectSession,
    KeepSession,
    Leave,
    Release,
    Renew,
    SetAcl,
    Transfer,
)
from dibs.wire.requests import command_for, namespace_for, shape, token_badge, wait_ms
from dibs.wire.values import ticket_text

if TYPE_CHECKING:
    from dibs.core.commands import Command

LEASE = "0f8fad5b-d9cb-469f-a165-70867728950e"
TICKET = ticket_text("ns", "job", 5, LEASE)
AGENT = Caller(principal="team", badges=("user:team", "token:sha256:x"))
OPERATOR = AGENT.replace(role="operator")
ADMIN = AGENT.replace(role="admin")

SHAPES: list[tuple[str, str, list[Any], list[Any]]] = [
    ("acquire", "ttl_seconds", [0, 1, 2**32 - 1], [-1, 1.0, 1.5, "1", True, 2**32, [], {}]),
    ("acquire", "metadata", ["", "x", "é\n"], [1, [], {}, True, "\ud800"]),
    ("acquire", "owner", ["x"], [1, None.__class__]),
    ("acquire", "request_key", ["x"], [1]),
    ("acquire", "lease_id", [LEASE], ["x", "", LEASE[:-1], LEASE.replace("-", ""), LEASE + "0", 1]),
    ("acquire", "ephemeral", [True, False], [1, "true"]),
    ("acquire", "again", [True, False], [0]),
    ("acquire", "lock_delay_seconds", [0, 30], [-1, 0.5]),
    ("acquire", "acl", [{}], [[], "x"]),
    ("acquire", "session_id", [LEASE], ["x", 1]),
    ("acquire", "mode", ["shared"], [1]),
    ("acquire", "slots", [0, 1], [-1, "1", 1.5]),
    ("acquire", "max_attempts", [0, 5], [-1, "1"]),
    ("acquire", "wait_seconds", [0, 30, 0.5], [-1, -0.5, "1", True]),
    ("acquire", "ticket", ["x"], [1]),
    ("acquire-any", "names", [["a"], []], ["a", {}, 1]),
    ("acquire-all", "names", [["a"], []], ["a", {}, 1]),
    ("leave", "ticket", ["x"], [1]),
    ("transfer", "to_session", [LEASE], ["x", 1]),
    ("transfer", "to_owner", ["x"], [1]),
    ("session-open", "ttl_seconds", [0, 600], [-1, "1"]),
    ("session-open", "ttl_ms", [0, 1500], [-1, "1", 1.5]),
    ("session-open", "owner", ["x"], [1]),
    ("session-open", "process", ["x"], [1]),
    ("renew", "ttl_seconds", [1], ["1"]),
    ("renew", "checkpoint", ["x"], [1]),
    ("release", "done_seconds", [0, 1], [-1, "1"]),
    ("release", "result", ["x"], [1]),
    ("break", "reason", ["x"], [1]),
    ("acl", "acl", [{}], [[]]),
]


def required(verb: str) -> dict[str, Any]:
    fields: dict[str, dict[str, Any]] = {
        "renew": {"lease_id": LEASE},
        "release": {"lease_id": LEASE},
        "transfer": {"lease_id": LEASE},
        "leave": {"ticket": TICKET},
        "acquire-any": {"names": ["a"]},
        "acquire-all": {"names": ["a"]},
        "acl": {"acl": {}},
    }
    return fields.get(verb, {})


@pytest.mark.parametrize(("verb", "field", "good", "bad"), SHAPES, ids=[f"{row[0]}-{row[1]}" for row in SHAPES])
def test_a_field_has_its_type(verb: str, field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert shape(verb, {**required(verb), field: value})[field] == value
    for value in bad:
        with pytest.raises(Unprocessable, match=field):
            shape(verb, {**required(verb), field: value})


@pytest.mark.parametrize(("verb", "field"), [("renew", "lease_id"), ("release", "lease_id")])
def test_a_required_field_may_not_be_missing_or_null(verb: str, field: str) -> None:
    for document in ({}, {field: None}):
        with pytest.raises(Unprocessable, match=f"{field} is required"):
            shape(verb, document)


def test_an_access_list_must_be_named_and_null_or_an_empty_one_removes_it() -> None:
    with pytest.raises(Unprocessable, match="acl is required"):
        shape("acl", {})
    documents: tuple[dict[str, Any], ...] = ({"acl": None}, {"acl": {"acquire": []}})
    for document in documents:
        command = command_for("acl", "default", "job", shape("acl", document), LOCAL)
        assert isinstance(command, SetAcl)
        assert command.acl == ()
    with pytest.raises(InvalidInput, match="1 to 100"):
        command_for("acquire", "default", "job", shape("acquire", {"acl": {"acquire": []}}), LOCAL)


def test_a_failure_has_a_reason_and_a_retry_time_and_is_not_done() -> None:
    def release(**fields: object) -> Command:
        document = {"lease_id": "00000000-0000-4000-8000-000000000000", **fields}
        return command_for("release", "default", "job", shape("release", document), LOCAL)

    command = release(failed=True, reason="no disk", retry_after_seconds=300)
    assert isinstance(command, Release)
    assert (command.failed, command.reason, command.retry_ms) == (True, "no disk", 300_000)
    for wrong in (
        {"reason": "x"},
        {"retry_after_seconds": 5},
        {"failed": True, "done_seconds": 5},
        {"failed": True, "retry_after_seconds": 7 * 86_400 + 1},
        {"failed": True, "reason": "x" * 1_025},
    ):
        with pytest.raises(InvalidInput):
            release(**wrong)


@pytest.mark.parametrize("document", [None, [], "x", 1, True])
def test_a_body_is_an_object(document: object) -> None:
    with pytest.raises(Unprocessable, match="JSON object"):
        shape("acquire", document)


def test_unknown_fields_and_nulls_are_left_out_and_ids_are_in_lower_case() -> None:
    shaped = shape("acquire", {"surprise": 1, "owner": None, "lease_id": LEASE.upper()})
    assert shaped == {"lease_id": LEASE}


COMMANDS: list[tuple[str, dict[str, Any], type[DibsError], str]] = [
    ("acquire", {"ttl_seconds": 0}, InvalidTtl, "invalid_ttl"),
    ("acquire", {"ttl_seconds": 86_401}, InvalidTtl, "invalid_ttl"),
    ("acquire", {"metadata": "x" * 1_025}, InvalidInput, "invalid_input"),
    ("acquire", {"owner": "x" * 257}, InvalidInput, "invalid_input"),
    ("acquire", {"request_key": ""}, InvalidInput, "invalid_input"),
    ("acquire", {"request_key": "x" * 257}, InvalidInput, "invalid_input"),
    ("acquire", {"ephemeral": True}, InvalidInput, "invalid_input"),
    ("acquire", {"lock_delay_seconds": 61}, InvalidInput, "invalid_input"),
    ("acquire", {"acl": {}}, InvalidInput, "invalid_input"),
    ("acquire", {"acl": {"acquire": []}}, InvalidInput, "invalid_input"),
    ("acquire", {"acl": {"acquire": ["user:"]}}, InvalidInput, "invalid_input"),
    ("acquire", {"acl": {"acquire": [1]}}, InvalidInput, "invalid_input"),
    ("acquire", {"acl": {"acquire": ["user:" + "x" * 256]}}, InvalidInput, "invalid_input"),
    ("acquire", {"acl": {"acquire": ["user:x"] * 101}}, InvalidInput, "invalid_input"),
    ("renew", {"ttl_seconds": 0}, InvalidTtl, "invalid_ttl"),
    ("renew", {"checkpoint": "é" * 2_049}, InvalidInput, "invalid_input"),
    ("release", {"done_seconds": 366 * 24 * 3600}, InvalidInput, "invalid_input"),
    ("release", {"result": "x"}, InvalidInput, "invalid_input"),
    ("release", {"done_seconds": 1, "result": "x" * 4_097}, InvalidInput, "invalid_input"),
    ("break", {"reason": "x"}, NotAllowed, "forbidden"),
    ("free", {}, NotAllowed, "forbidden"),
    ("acquire", {"mode": "both"}, InvalidInput, "invalid_input"),
    ("acquire", {"slots": 0}, InvalidInput, "invalid_input"),
    ("acquire", {"slots": 10_001}, InvalidInput, "invalid_input"),
    ("acquire", {"slots": 2, "mode": "shared"}, InvalidInput, "invalid_input"),
    ("acquire", {"max_attempts": 1_000_001}, InvalidInput, "invalid_input"),
    ("acquire", {"wait_seconds": 3_601}, InvalidInput, "invalid_input"),
    ("acquire", {"ticket": TICKET}, InvalidInput, "invalid_input"),  # of the same name in another namespace
    ("acquire", {"ticket": "5"}, InvalidInput, "invalid_input"),
    ("acquire-any", {"names": []}, InvalidInput, "invalid_input"),
    ("acquire-any", {"names": [f"n-{number}" for number in range(1_001)]}, InvalidInput, "invalid_input"),
    ("acquire-any", {"names": ["a", "b", "a"]}, InvalidInput, "invalid_input"),
    ("acquire-any", {"names": ["a", 1]}, InvalidName, "invalid_lock_name"),
    ("acquire-any", {"names": ["a"], "wait_seconds": 1}, InvalidInput, "invalid_input"),
    ("acquire-all", {"names": [f"n-{number}" for number in range(101)]}, InvalidInput, "invalid_input"),
    ("acquire-all", {"names": ["path:a", "path:a/b"]}, InvalidInput, "invalid_input"),
    ("transfer", {}, InvalidInput, "invalid_input"),
    ("transfer", {"to_owner": ""}, InvalidInput, "invalid_input"),
    ("leave", {"ticket": "5"}, InvalidInput, "invalid_input"),
]


@pytest.mark.parametrize(("verb", "fields", "error", "code"), COMMANDS)
def test_a_value_that_cannot_be_is_refused_with_its_own_code(
    verb: str, fields: dict[str, Any], error: type[DibsError], code: str
) -> None:
    document = shape(verb, {**required(verb), **fields})
    with pytest.raises(error) as refused:
        command_for(verb, "default", "job", document, AGENT)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "verb", ["acquire", "renew", "release", "transfer", "leave", "break", "free", "acl", "inspect"]
)
def test_every_verb_checks_the_name_first(verb: str) -> None:
    with pytest.raises(InvalidName):
        command_for(verb, "default", "", {}, AGENT)


def build(verb: str, document: dict[str, Any], caller: Caller = AGENT) -> Any:
    return command_for(verb, "ns", "job", shape(verb, {**required(verb), **document}), caller)


def test_an_acquire_says_everything_its_request_said() -> None:
    made = build(
        "acquire",
        {
            "ttl_seconds": 90,
            "metadata": "m",
            "owner": "agent-7",
            "request_key": "k",
            "lock_delay_seconds": 3,
            "again": True,
            "acl": {"acquire": ["user:a", "token:t", "user:a"]},
        },
        ADMIN.replace(over_quota=True),
    )
    assert made == Acquire(
        ns="ns",
        name="job",
        principal="team",
        owner="agent-7",
        ttl_ms=90_000,
        fresh_lease_id=made.fresh_lease_id,
        metadata="m",
        request_key="k",
        delay_ms=3_000,
        again=True,
        acl=("user:a", token_badge("t")),
        badges=AGENT.badges,
        admin=True,
        over_quota=True,
    )


def test_an_acquire_without_fields_has_the_defaults_and_a_fresh_id_each_time() -> None:
    first, second = build("acquire", {}), build("acquire", {})
    assert (first.owner, first.ttl_ms, first.acl, first.request_key) == (
        "team",
        limits.TTL_MS_DEFAULT,
        None,
        None,
    )
    assert first.fresh_lease_id != second.fresh_lease_id


def test_the_other_verbs_say_what_their_requests_said() -> None:
    base: dict[str, Any] = {"ns": "ns", "name": "job", "principal": "team"}
    assert build("renew", {"checkpoint": "c", "metadata": "m"}) == Renew(
        **base, lease_id=LEASE, checkpoint="c", metadata="m"
    )
    assert build("renew", {"ttl_seconds": 5}).ttl_ms == 5_000
    assert build("release", {"done_seconds": 5, "result": "r", "checkpoint": "c"}) == Release(
        **base, lease_id=LEASE, done_ms=5_000, result="r", checkpoint="c"
    )
    assert build("break", {"reason": "stuck"}, OPERATOR) == Break(**base, reason="stuck")
    assert build("break", {"reason": "stuck"}, ADMIN) == Break(**base, reason="stuck")
    assert build("acl", {"acl": {"acquire": ["user:a"]}}, ADMIN) == SetAcl(**base, acl=("user:a",), admin=True)
    assert build("inspect", {}) == Inspect(ns="ns", name="job")
    assert build("free", {}, OPERATOR) == Free(**base)
    assert build("leave", {"ticket": TICKET}) == Leave(**base, ticket=5, ticket_id=LEASE)
    made = build("transfer", {"to_session": LEASE, "ttl_seconds": 9})
    assert made == Transfer(**base, fresh_lease_id=made.fresh_lease_id, lease_id=LEASE, to_session=LEASE, ttl_ms=9_000)


def test_a_claim_waits_if_it_is_given_time_and_has_a_place_if_it_has_a_ticket() -> None:
    assert not build("acquire", {"wait_seconds": 0}).wait
    assert build("acquire", {"wait_seconds": 1}).wait
    again = build("acquire", {"ticket": TICKET})
    assert (again.wait, again.ticket, again.ticket_id) == (False, 5, LEASE)
    assert (wait_ms({}), wait_ms({"wait_seconds": 3_600})) == (0, 3_600_000)
    assert wait_ms({"wait_seconds": 1.5}) == 1_500


def test_several_names_are_claimed_in_one_order_by_everybody() -> None:
    assert build("acquire-any", {"names": ["b", "a"]}).names == ("b", "a")
    assert build("acquire-all", {"names": ["b", "a"]}).names == ("a", "b")


def test_inside_a_session_a_lease_needs_no_time_of_its_own() -> None:
    assert build("acquire", {"session_id": LEASE}).ttl_ms == 0
    assert build("acquire", {"session_id": LEASE, "ephemeral": False}).ttl_ms == limits.TTL_MS_DEFAULT
    assert build("acquire", {"session_id": LEASE, "ttl_seconds": 5}).ttl_ms == 5_000


def test_the_verbs_of_sessions_take_an_id_where_others_take_a_name() -> None:
    def of(verb: str, session: str) -> object:
        return command_for(verb, "ns", session, {}, AGENT)

    assert of("session-keep", LEASE.upper()) == KeepSession(session=LEASE, principal="team")
    assert of("session-end", LEASE) == EndSession(session=LEASE, principal="team")
    assert of("session-show", LEASE) == InspectSession(session=LEASE, principal="team")
    for verb in ("session-keep", "session-end", "session-show"):
        with pytest.raises(InvalidInput, match="UUID"):
            of(verb, "job")


@pytest.mark.parametrize(("asked", "ttl_ms"), [(None, 60_000), (0, 10_000), (45, 45_000), (900, 300_000)])
def test_the_time_of_a_session_is_clamped(asked: int | None, ttl_ms: int) -> None:
    made = command_for("session-open", "ns", "", shape("session-open", {"ttl_seconds": asked}), AGENT)
    assert getattr(made, "ttl_ms", None) == ttl_ms


def test_the_time_of_a_session_in_milliseconds_is_taken_as_it_is_or_refused() -> None:
    made = command_for("session-open", "ns", "", {"ttl_ms": 1500}, AGENT)
    assert made.ttl_ms == 1500  # type: ignore[union-attr]  # an OpenSession
    for document in ({"ttl_ms": 999}, {"ttl_ms": limits.SESSION_OWN_TTL_MS_MAX + 1}):
        with pytest.raises(InvalidTtl, match="ttl_ms is from 1000 to"):
            command_for("session-open", "ns", "", document, AGENT)
    with pytest.raises(InvalidInput, match="not both"):
        command_for("session-open", "ns", "", {"ttl_ms": 1500, "ttl_seconds": 60}, AGENT)


def test_keeping_a_session_may_change_how_long_it_lives() -> None:
    made = command_for("session-keep", "ns", LEASE, {"ttl_ms": 900_000}, AGENT)
    assert made == KeepSession(session=LEASE, principal="team", ttl_ms=900_000)
    with pytest.raises(InvalidTtl):
        command_for("session-keep", "ns", LEASE, {"ttl_ms": 5}, AGENT)


def test_breaking_needs_a_reason() -> None:
    with pytest.raises(InvalidInput, match="reason"):
        build("break", {}, OPERATOR)


@pytest.mark.parametrize(
    ("own", "asked", "found"),
    [(None, None, "default"), (None, "a", "a"), ("a", None, "a"), ("a", "a", "a")],
)
def test_a_namespace_is_what_was_asked_for_within_what_the_token_allows(
    own: str | None, asked: str | None, found: str
) -> None:
    assert namespace_for(AGENT.replace(namespace=own), asked) == found


def test_another_namespace_than_the_tokens_is_not_allowed() -> None:
    with pytest.raises(NotAllowed):
        namespace_for(AGENT.replace(namespace="a"), "b")
    with pytest.raises(InvalidName):
        namespace_for(AGENT, "a/b")


def test_a_token_in_an_access_list_is_kept_as_its_hash() -> None:
    made = build("acquire", {"acl": {"acquire": ["token:secret"]}})
    assert "secret" not in repr(made)
    assert made.acl == (token_badge("secret"),)


@pytest.mark.parametrize("caller", [AGENT, ADMIN, AGENT.replace(over_quota=True, audited=True, namespace="ns")])
@pytest.mark.parametrize("last", ["ttl_seconds", "owner", "metadata", "request_key", "wait_seconds"])
def test_a_claim_with_usual_fields_is_that_which_any_other_field_would_make_of_them(caller: Caller, last: str) -> None:
    fields = {"ttl_seconds": 7, "owner": "me", "metadata": "m", "request_key": "k", "wait_seconds": 3}
    document = {field: fields[field] for field in list(fields)[: list(fields).index(last) + 1]}
    usual = command_for("acquire", "ns", "job", document, caller)
    other = command_for("acquire", "ns", "job", {**document, "again": False}, caller)
    assert isinstance(usual, Acquire)
    assert isinstance(other, Acquire)
    assert usual == other.replace(fresh_lease_id=usual.fresh_lease_id)
