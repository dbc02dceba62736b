"""Counting anew what a principal with a limit has."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import CountUsage
from dibs.core.decide import decide
from dibs.core.draft import Draft, View
from dibs.core.holds.quota import retake_quota
from dibs.core.records import META_KEY, USAGE_PREFIX, SessionRecord, Ticket, session_key, ticket_key
from dibs.core.service.credentials import Usage


@pytest.mark.promise("quota")
@pytest.mark.parametrize(("principal", "counted"), [("p", 1), ("q", 0)])
def test_a_place_in_line_is_counted_for_its_own_principal(principal: str, counted: int) -> None:
    key, usage = ticket_key("default", "job", 1), USAGE_PREFIX + "/p"
    terms = {"ns": "default", "owner": "o", "ttl_ms": 1_000, "lease_id": "l"}
    ticket = Ticket(
        name="job",
        number=1,
        principal=principal,
        since_ms=0,
        renewed_ms=0,
        expires_ms=10,
        **terms,  # type: ignore[arg-type]  # texts and one number
    )
    decision = decide(View(5, {META_KEY: None, key: ticket, usage: Usage(count=3)}), CountUsage(key=key, payer="/p"))
    assert (usage in decision.writes) == bool(counted)
    assert (key in decision.writes) == bool(counted)


@pytest.mark.promise("quota")
@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, True),
        ({"ended_ms": 4}, False),
        ({"principal": "q"}, False),
        ({"ns": "other"}, False),
        ({"charge": "3/default/p"}, False),  # it is counted
        ({"charge": "2/default/p"}, True),  # in an earlier count
        ({"charge": "3//p"}, False),  # by another credential
    ],
)
def test_a_session_is_counted_once_while_it_is_open_for_its_own_principal(
    changes: dict[str, Any], counted: bool
) -> None:
    key, usage = session_key("s"), USAGE_PREFIX + "default/p"
    session = SessionRecord(
        id="s", ns="default", principal="p", owner="o", ttl_ms=9, since_ms=0, renewed_ms=0, expires_ms=9
    ).replace(**changes)
    view = View(5, {META_KEY: None, key: session, usage: Usage(count=3)})
    writes = decide(view, CountUsage(key=key, payer="default/p")).writes
    expected = {usage: Usage(count=3, sessions=1), key: session.replace(charge="3/default/p")}
    assert writes == (expected if counted else {})


@pytest.mark.promise("quota")
def test_what_is_counted_for_another_credential_is_counted_there_no_more() -> None:
    old, new = USAGE_PREFIX + "default/p", USAGE_PREFIX + "/p"
    draft = Draft(View(5, {META_KEY: None, old: Usage(count=3, held=2), new: Usage(count=4, held=1)}))
    assert retake_quota(draft, "3/default/p", "/p", "held") == "4//p"
    assert draft.writes == {old: Usage(count=3, held=1), new: Usage(count=4, held=2)}
