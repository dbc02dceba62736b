"""The one table is total: every outcome and every error has its row, and the codes are a closed set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base import errors
from dibs.base.reply import Reply
from dibs.core import lease_outcomes, outcomes, session_outcomes
from dibs.wire import codes
from dibs.wire.documents import expected, reply_for_error, reply_to

if TYPE_CHECKING:
    from collections.abc import Iterator

OCTOSTORE = {
    "authentication_required": (401, "Authorization header required"),
    "authentication_failed": (401, "Authentication failed"),
    "forbidden": (403, "Forbidden"),
    "lock_limit_exceeded": (403, "Lock limit exceeded"),
    "invalid_input": (400, "Invalid input"),
    "invalid_ttl": (400, "Invalid TTL"),
    "invalid_lock_name": (400, "Invalid lock name"),
    "not_found": (404, "Resource not found"),
    "session_expired": (410, "Session expired"),
    "lease_not_current": (404, "Lease is not current"),
    "conflict": (409, "Conflict"),
    "capacity_exceeded": (503, "Capacity exceeded"),
    "rate_limited": (429, "Rate limit exceeded"),
    "internal_error": (500, "Internal server error"),
}
EXITS = {0, 1, 2, 3, 4, 5, 20, 64, 69, 70, 75, 77}


def tree(root: type[errors.DibsError]) -> Iterator[type[errors.DibsError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_every_outcome_has_a_row_and_every_row_an_outcome() -> None:
    defined = {
        value.__name__
        for module in (outcomes, lease_outcomes, session_outcomes)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, outcomes.Outcome)
    }
    assert set(codes.OUTCOMES) == defined - {"Outcome", "JobOutcome"}


REFUSALS = set(tree(errors.NotClaimed))
WITH_WORDS = set(tree(errors.DibsError)) - {errors.RequestFailed}  # that one has its reply


@pytest.mark.parametrize("error", sorted(REFUSALS, key=str))
def test_what_the_sdk_raises_for_a_refusal_is_the_outcome_by_its_word(error: type[errors.NotClaimed]) -> None:
    row = codes.row_of_error(error("why"))
    assert (row.word, row.exit) in {(each.word, each.exit) for each in codes.OUTCOMES.values()}
    assert row.word == error.code


@pytest.mark.parametrize("error", sorted(WITH_WORDS - REFUSALS, key=str))
def test_every_error_has_a_code_of_the_closed_set(error: type[errors.DibsError]) -> None:
    assert error.code in codes.CODES
    made = error.__new__(error)
    errors.DibsError.__init__(made, "why")
    row = codes.row_of_error(made)
    assert row.http >= 400
    assert row.exit in EXITS - {0, 1}
    assert reply_for_error(made).body == {"error": row.title, "code": error.code, "details": "why"}


def test_an_outcome_that_nobody_expected_is_raised_as_its_own_reply() -> None:
    held, parked = outcomes.Held(now_ms=0, name="a"), outcomes.Parked(now_ms=0, name="a", failures=3)
    assert expected(held, outcomes.Granted, outcomes.Held) is held
    with pytest.raises(errors.RequestFailed) as raised:
        expected(parked, outcomes.Granted, outcomes.Held)
    assert raised.value.code == "parked"
    assert reply_for_error(raised.value).body == reply_to("", parked).body


def test_the_codes_of_the_contract_have_its_status_and_words() -> None:
    for code, (status, title) in OCTOSTORE.items():
        assert (codes.CODES[code].http, codes.CODES[code].title) == (status, title)
    assert set(codes.CODES) - set(OCTOSTORE) == {"deadlock", "number_taken", "upstream_unavailable", "draining"}


def test_every_row_has_a_known_exit_code() -> None:
    rows = [*codes.OUTCOMES.values(), *codes.CODES.values()]
    assert {row.exit for row in rows} <= EXITS
    for row in codes.OUTCOMES.values():
        if row.http >= 400 and row.word not in (
            "delayed",
            "parked",
            "superseded",
            "closed",
        ):  # told as what they are, not as errors
            assert codes.CODES[row.word].http == row.http
            assert row.exit != 0


def test_every_no_has_one_of_the_five_kinds_and_no_yes_has_one() -> None:
    rows = [*codes.OUTCOMES.values(), *codes.CODES.values()]
    for row in rows:
        assert (row.kind is None) == (row.exit == codes.YES), row.word
        assert row.kind is None or row.kind in codes.KINDS
    assert {row.kind for row in rows} == {None, *codes.KINDS}


def test_a_word_has_one_kind_so_that_a_client_needs_nothing_else() -> None:
    kinds: dict[str, set[str | None]] = {}
    for row in (*codes.OUTCOMES.values(), *codes.CODES.values()):
        kinds.setdefault(row.word, set()).add(row.kind)
    assert {word: found for word, found in kinds.items() if len(found) > 1} == {}
    for word, (kind,) in kinds.items():
        assert codes.kind_of_word(word) == kind


@pytest.mark.parametrize("error", sorted(WITH_WORDS, key=str))
def test_every_error_has_a_kind_and_its_reply_the_same(error: type[errors.DibsError]) -> None:
    made = error.__new__(error)
    errors.DibsError.__init__(made, "why")
    kind = codes.row_of_error(made).kind
    assert kind in codes.KINDS
    assert codes.kind_of(reply_for_error(made)) == kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, None),
        (400, codes.NEVER_LIKE_THIS),
        (401, codes.NOT_YOU),
        (403, codes.NOT_YOU),
        (404, codes.NOT_ANY_MORE),
        (409, codes.NEVER_LIKE_THIS),
        (410, codes.NOT_ANY_MORE),
        (429, codes.NOT_NOW),
        (500, codes.NOT_NOW),
        (599, codes.NOT_NOW),
    ],
)
def test_a_code_from_a_newer_server_has_the_kind_of_its_status(status: int, kind: str | None) -> None:
    assert codes.kind_of(Reply(status, {"code": "invented_tomorrow"})) == kind
    assert codes.kind_of(Reply(status)) == kind
    assert codes.kind_of(Reply(status, {"status": "invented_tomorrow"})) == kind
    assert codes.kind_of(Reply(status, {"status": ["held"], "code": {}})) == kind


def test_a_missing_or_mistyped_field_is_422_with_the_code_of_bad_input() -> None:
    row = codes.row_of_error(errors.Unprocessable("x"))
    assert (row.word, row.http) == ("invalid_input", 422)


def test_what_is_not_ours_is_our_fault_and_keeps_its_insides() -> None:
    reply = reply_for_error(KeyError("secret"))
    assert reply.status == 500
    assert reply.body is not None
    assert reply.body["code"] == "internal_error"
    assert "secret" not in str(reply.body)


def test_a_code_from_a_newer_server_has_an_exit_code() -> None:
    assert codes.exit_of_code("invented_tomorrow") == codes.INTERNAL
    assert codes.exit_of_code("forbidden") == codes.NOT_ALLOWED
