"""Requests that are sent again because their reply was lost: the second answer is the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.client.requests import is_repeatable
from dibs.client.transport import Ask

if TYPE_CHECKING:
    from tests.server.harness import Server


@pytest.mark.fault("F-111")
@pytest.mark.promise("idem:fresh-id")
def test_a_transfer_that_is_repeated_gives_the_heirs_lease_again(server: Server, name: str) -> None:
    lease = server.ask("POST", f"/locks/{name}/acquire", {}).json["lease_id"]
    asked = {"lease_id": lease, "to_owner": "heir", "fresh_lease_id": new_id()}
    first = server.ask("POST", f"/locks/{name}/transfer", asked)
    again = server.ask("POST", f"/locks/{name}/transfer", asked)
    assert (first.status, again.status) == (200, 200)
    assert again.json["lease_id"] == first.json["lease_id"]
    assert again.json["fencing_token"] == first.json["fencing_token"]
    assert is_repeatable(Ask("transfer", "job", asked))


@pytest.mark.fault("F-111")
def test_a_lease_cannot_be_handed_to_its_own_id(server: Server, name: str) -> None:
    lease = server.ask("POST", f"/locks/{name}/acquire", {}).json["lease_id"]
    asked = {"lease_id": lease, "to_owner": "heir", "fresh_lease_id": lease.upper()}
    handed = server.ask("POST", f"/locks/{name}/transfer", asked)
    assert (handed.status, handed.json["owner"]) == (200, "heir")
    assert handed.json["lease_id"] != lease
    assert server.ask("POST", f"/locks/{name}/release", {"lease_id": lease}).status == 400


@pytest.mark.fault("F-140")
@pytest.mark.promise("proof")
def test_who_sends_a_lease_id_as_a_fresh_one_is_not_told_that_this_lease_was_handed_over(
    server: Server, name: str
) -> None:
    lease = server.ask("POST", f"/locks/{name}/acquire", {}).json["lease_id"]
    asked = {"lease_id": new_id(), "to_owner": "thief", "fresh_lease_id": lease}
    for who in ("agent", "operator"):
        other = server.ask("POST", f"/locks/{name}/transfer", asked, who=who)
        assert other.status == 400
        assert lease not in str(other.body)
    assert server.ask("POST", f"/locks/{name}/renew", {"lease_id": lease}).status == 200


@pytest.mark.fault("F-140")
@pytest.mark.promise("proof")
def test_one_slot_cannot_be_handed_to_the_lease_of_another(server: Server, name: str) -> None:
    one, two = (
        server.ask("POST", f"/locks/{name}/acquire", {"slots": 2, "request_key": key}).json["lease_id"]
        for key in ("one", "two")
    )
    asked = {"lease_id": one, "to_owner": "heir", "fresh_lease_id": two}
    handed = server.ask("POST", f"/locks/{name}/transfer", asked)
    assert (handed.status, handed.json["owner"]) == (200, "heir")
    assert handed.json["lease_id"] not in (one, two)


@pytest.mark.fault("F-112")
@pytest.mark.promise("idem:fresh-id")
def test_a_session_that_is_opened_again_with_its_id_is_the_same(server: Server) -> None:
    asked = {"owner": "w", "fresh_session_id": new_id()}
    first = server.ask("POST", "/sessions", asked)
    again = server.ask("POST", "/sessions", asked)
    assert first.json["session_id"] == again.json["session_id"]
    assert (first.status, again.status) == (201, 201)
    assert is_repeatable(Ask("session-open", "", asked))
    assert not is_repeatable(Ask("session-open", "", {"owner": "w"}))
    assert server.ask("DELETE", f"/sessions/{first.json['session_id']}").status == 204
    assert server.ask("POST", "/sessions", asked).status == 410


@pytest.mark.fault("F-112")
@pytest.mark.fault("F-141")
@pytest.mark.promise("idem:fresh-id")
def test_nobody_opens_a_session_under_an_id_that_is_somebody_elses(server: Server) -> None:
    """Sessions are told to others, who hand jobs over to them. The id of one that is long over must not come back under
    another token: its children would take that for their parent."""
    asked = {"owner": "secret-name", "fresh_session_id": new_id()}
    theirs = server.ask("POST", "/sessions", asked).json["session_id"]
    for sent in (asked["fresh_session_id"], theirs):
        other = server.ask("POST", "/sessions", {"fresh_session_id": sent}, who="operator")
        assert other.status == 201
        assert other.json["session_id"] not in (theirs, sent)
        assert "secret-name" not in str(other.body)


@pytest.mark.fault("F-112")
def test_a_token_of_one_session_is_not_locked_out_by_a_lost_reply(fast: Server, name: str) -> None:
    token = fast.ask("POST", "/tokens", {"name": name, "max_sessions": 1}, who="admin").json["token"]
    asked = {"fresh_session_id": new_id()}
    for _ in range(2):
        assert fast.ask("POST", "/sessions", asked, who=token).status == 201
    assert fast.ask("POST", "/sessions", {"fresh_session_id": new_id()}, who=token).status == 429
