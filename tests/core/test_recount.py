"""Counting anew what a principal with a limit has."""

from __future__ import annotations

import pytest

from dibs.core.commands import CountUsage
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.records import META_KEY, USAGE_PREFIX, Ticket, ticket_key
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
