"""Requests that are sent again because their reply was lost: the second answer is the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.client.requests import question

if TYPE_CHECKING:
    from tests.server.harness import Server


@pytest.mark.fault("F-111")
@pytest.mark.promise("idem:fresh-id")
def test_a_transfer_that_is_repeated_tells_the_heirs_lease_again(server: Server, name: str) -> None:
    lease = server.ask("POST", f"/locks/{name}/acquire", {}).json["lease_id"]
    asked = {"lease_id": lease, "to_owner": "heir", "fresh_lease_id": new_id()}
    first = server.ask("POST", f"/locks/{name}/transfer", asked)
    again = server.ask("POST", f"/locks/{name}/transfer", asked)
    assert (first.status, again.status) == (200, 200)
    assert again.json["lease_id"] == first.json["lease_id"] == asked["fresh_lease_id"]
    assert again.json["fencing_token"] == first.json["fencing_token"]
    assert question("transfer", "job", asked).repeatable


@pytest.mark.fault("F-111")
def test_a_lease_cannot_be_handed_to_its_own_id(server: Server, name: str) -> None:
    lease = server.ask("POST", f"/locks/{name}/acquire", {}).json["lease_id"]
    asked = {"lease_id": lease, "to_owner": "heir", "fresh_lease_id": lease.upper()}
    assert server.ask("POST", f"/locks/{name}/transfer", asked).status == 400


@pytest.mark.fault("F-112")
@pytest.mark.promise("idem:fresh-id")
def test_a_session_that_is_opened_again_with_its_id_is_the_same(server: Server) -> None:
    asked = {"owner": "w", "fresh_session_id": new_id()}
    first = server.ask("POST", "/sessions", asked)
    again = server.ask("POST", "/sessions", asked)
    assert first.json["session_id"] == again.json["session_id"] == asked["fresh_session_id"]
    assert (first.status, again.status) == (201, 201)
    assert question("session-open", "", asked).repeatable
    assert not question("session-open", "", {"owner": "w"}).repeatable
    assert server.ask("DELETE", f"/sessions/{asked['fresh_session_id']}").status == 204
    assert server.ask("POST", "/sessions", asked).status == 410


@pytest.mark.fault("F-112")
@pytest.mark.promise("idem:fresh-id")
def test_somebody_elses_session_is_not_told_to_who_opens_one_with_its_id(server: Server) -> None:
    asked = {"owner": "secret-name", "fresh_session_id": new_id()}
    assert server.ask("POST", "/sessions", asked).status == 201
    other = server.ask("POST", "/sessions", {"fresh_session_id": asked["fresh_session_id"]}, who="operator")
    assert other.status == 404
    assert "secret-name" not in str(other.body)


@pytest.mark.fault("F-112")
def test_a_token_of_one_session_is_not_locked_out_by_a_lost_reply(fast: Server, name: str) -> None:
    token = fast.ask("POST", "/tokens", {"name": name, "max_sessions": 1}, who="admin").json["token"]
    asked = {"fresh_session_id": new_id()}
    for _ in range(2):
        assert fast.ask("POST", "/sessions", asked, who=token).status == 201
    assert fast.ask("POST", "/sessions", {"fresh_session_id": new_id()}, who=token).status == 429
