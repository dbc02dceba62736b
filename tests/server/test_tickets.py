"""Tickets over HTTP: going on from where one stood, giving a place up, and what is no ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.harness import Poll, wait_until
from tests.server.test_contract import assert_error
from tests.server.test_waiting import WAIT, release, wait_for_job

if TYPE_CHECKING:
    from tests.server.harness import Server


def test_when_the_time_is_over_a_waiter_is_told_its_place_and_can_go_on_with_its_ticket(
    server: Server, name: str
) -> None:
    lease = server.lease(name, owner="first")
    body = server.acquire(name, {"wait_seconds": 1}).json
    assert (body["status"], body["position"], body["owner"]) == ("queued", 1, "first")
    assert 0 < body["retry_after_ms"] <= 5_000
    (behind,) = wait_for_job(server, name)
    again = server.acquire(name, {"ticket": body["ticket"]}).json
    assert (again["status"], again["position"]) == ("queued", 1)
    assert again["ticket"].startswith(body["ticket"]), "the same place"
    before = server.waiting()
    poll = Poll(server, f"/locks/{name}/acquire", {**WAIT, "ticket": body["ticket"]})
    wait_until(lambda: server.waiting() == before + 1, "it does not wait")
    release(server, name, lease)
    assert poll.answer()["status"] == "acquired"
    behind.hang_up()


def test_a_ticket_that_became_the_job_gets_it_when_asked_again(server: Server, name: str) -> None:
    lease = server.lease(name)
    ticket = server.acquire(name, {"wait_seconds": 1}).json["ticket"]
    release(server, name, lease)
    assert server.ask("GET", f"/locks/{name}").json["status"] == "held"
    assert server.acquire(name, {"ticket": ticket}).json["status"] == "acquired"


def test_leaving_the_line_with_a_ticket(server: Server, name: str) -> None:
    lease = server.lease(name)
    ticket = server.acquire(name, {"wait_seconds": 1}).json["ticket"]
    path = f"/locks/{name}/leave"
    assert server.ask("POST", path, {"ticket": ticket}, who="other").json == {"name": name, "left": False}
    assert server.ask("POST", path, {"ticket": ticket}).json == {"name": name, "left": True}
    assert server.ask("POST", path, {"ticket": ticket}).json == {"name": name, "left": False}
    release(server, name, lease)
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"wait_seconds": -1}, 422, "invalid_input"),
        ({"wait_seconds": "1"}, 422, "invalid_input"),
        ({"wait_seconds": 3_601}, 400, "invalid_input"),
        ({"wait_seconds": 1, "ticket": 5}, 422, "invalid_input"),
        ({"wait_seconds": 1, "ticket": ""}, 400, "invalid_input"),
        ({"wait_seconds": 1, "ticket": "1"}, 400, "invalid_input"),
        ({"wait_seconds": 1, "ticket": "x.y.z"}, 400, "invalid_input"),
    ],
)
def test_a_wait_or_ticket_that_cannot_be_is_refused_and_nothing_changes(
    server: Server, name: str, fields: dict[str, Any], status: int, code: str
) -> None:
    server.lease(name)
    assert_error(server.acquire(name, fields), status, code)
    assert server.ask("GET", f"/locks/{name}").json["waiting"] == 0


def test_a_ticket_of_another_job_is_refused(server: Server, name: str) -> None:
    server.lease(name)
    server.lease(f"{name}-2")
    ticket = server.acquire(name, {"wait_seconds": 1}).json["ticket"]
    body = assert_error(server.acquire(f"{name}-2", {**WAIT, "ticket": ticket}), 400, "invalid_input")
    assert "another job" in body["details"]
    assert server.ask("GET", f"/locks/{name}-2").json["waiting"] == 0
    reply = server.ask("POST", f"/locks/{name}-2/leave", {"ticket": ticket})
    assert_error(reply, 400, "invalid_input")


@pytest.mark.promise("proof")
def test_a_ticket_of_somebody_else_is_no_place(server: Server, name: str) -> None:
    server.lease(name)
    ticket = server.acquire(name, {"wait_seconds": 1}).json["ticket"]
    theirs = server.acquire(name, {"wait_seconds": 1, "ticket": ticket}, who="other").json
    assert (theirs["status"], theirs["position"]) == ("queued", 2)
    assert theirs["ticket"] != ticket
