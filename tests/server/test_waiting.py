"""Fields and connections of claims that wait over HTTP: when each is answered, and what ends a wait."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.harness import AS_JSON, AUTH, Poll, read_response, request, running, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.harness import Server

WAIT = {"wait_seconds": 60}


def wait_for_job(server: Server, name: str, count: int = 1, **fields: Any) -> list[Poll]:
    """Callers in line, in this order."""
    polls = []
    for number in range(count):
        before = server.waiting()
        body = {**WAIT, "owner": f"w-{number}", **fields}
        polls.append(Poll(server, f"/locks/{name}/acquire", body))
        wait_until(lambda before=before: server.waiting() == before + 1, "it does not wait")  # type: ignore[misc]
    return polls


def release(server: Server, name: str, lease: str) -> None:
    assert server.ask("POST", f"/locks/{name}/release", {"lease_id": lease}).status == 200


def test_a_waiter_is_answered_when_the_job_is_released(server: Server, name: str) -> None:
    lease = server.lease(name, owner="first")
    before = server.ask("GET", "/status").json["waiting"]
    (poll,) = wait_for_job(server, name)
    shown = server.ask("GET", f"/locks/{name}").json
    assert (shown["owner"], shown["waiting"]) == ("first", 1)
    assert server.ask("GET", "/status").json["waiting"] == before + 1
    release(server, name, lease)
    body = poll.answer()
    assert (body["status"], body["owner"], body["previous"]["owner"]) == ("acquired", "w-0", "first")
    assert server.ask("GET", "/status").json["waiting"] == before


@pytest.mark.promise("queue:no-dead-grant")
def test_who_hangs_up_leaves_the_line_at_once(server: Server, name: str) -> None:
    lease = server.lease(name)
    first, second = wait_for_job(server, name, 2)
    before = server.waiting()
    first.hang_up()
    wait_until(lambda: server.waiting() == before - 1, "it still waits")
    wait_until(lambda: server.ask("GET", f"/locks/{name}").json["waiting"] == 1, "it is still in line")
    release(server, name, lease)
    assert second.answer()["owner"] == "w-1"


@pytest.mark.promise("queue:no-dead-grant")
def test_a_waiter_that_shuts_its_side_or_resets_leaves_too(server: Server, name: str) -> None:
    server.lease(name)
    half, reset = wait_for_job(server, name, 2)
    half.connection.shutdown(socket.SHUT_WR)
    reset.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    reset.hang_up()
    wait_until(lambda: server.ask("GET", f"/locks/{name}").json["waiting"] == 0, "they are still in line")
    half.hang_up()


def test_a_request_behind_one_that_waits_ends_the_wait(server: Server, name: str) -> None:
    """Otherwise nobody would read on, and see whether the client hung up."""
    server.lease(name)
    (poll,) = wait_for_job(server, name)
    poll.connection.sendall(request("GET", f"/locks/{name}"))
    _, _, first, rest = read_response(poll.connection)
    assert json.loads(first)["status"] == "queued"
    _, _, second, _ = read_response(poll.connection, rest)
    assert json.loads(second)["status"] == "held"
    poll.connection.close()


def test_rubbish_behind_one_that_waits_ends_the_wait_and_the_connection(server: Server, name: str) -> None:
    server.lease(name)
    (poll,) = wait_for_job(server, name)
    poll.connection.sendall(b"\x00\x01\r\n\r\n")
    _, _, first, rest = read_response(poll.connection)
    assert json.loads(first)["status"] == "queued"
    status, _, _, _ = read_response(poll.connection, rest)
    assert status == 400
    poll.connection.close()


def test_a_connection_goes_on_after_a_wait(server: Server, name: str) -> None:
    lease = server.lease(name)
    (poll,) = wait_for_job(server, name)
    release(server, name, lease)
    assert read_response(poll.connection)[0] == 200
    poll.connection.sendall(request("GET", f"/locks/{name}"))
    assert json.loads(read_response(poll.connection)[2])["owner"] == "w-0"
    poll.connection.close()


@pytest.mark.promise("all-or-nothing")
def test_all_of_several_are_waited_for_and_had_together(server: Server, name: str) -> None:
    names = [f"{name}-{letter}" for letter in "ab"]
    leases = {each: server.lease(each) for each in names}
    before = server.waiting()
    poll = Poll(server, "/locks/acquire-all", {**WAIT, "names": names})
    wait_until(lambda: server.waiting() == before + 1, "it does not wait")
    release(server, names[0], leases[names[0]])
    assert not poll.is_answered()
    assert server.acquire(names[0]).json["status"] == "held", "it is kept for the one who waits for both"
    release(server, names[1], leases[names[1]])
    assert [lease["name"] for lease in poll.answer()["leases"]] == names


@pytest.mark.promise("queue:fifo")
def test_a_server_that_ends_gives_its_waiters_their_tickets_and_the_next_one_knows_them(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as first:
        store, clock = first.store, first.clock
        lease = first.lease("job")
        polls = wait_for_job(first, "job", 20)
        first.begin_stop()
        told = [poll.answer() for poll in polls]
    assert [body["status"] for body in told] == ["queued"] * 20
    assert [body["position"] for body in told] == list(range(1, 21))
    clock.advance(10_000)
    with running(tmp_path, store=store, clock=clock) as second:
        newcomer = wait_for_job(second, "job")
        back = [Poll(second, "/locks/job/acquire", {**WAIT, "ticket": body["ticket"]}) for body in told]
        wait_until(lambda: second.waiting() == 21, "they do not wait")
        release(second, "job", lease)
        for poll in [*back, *newcomer]:
            body = poll.answer()
            assert body["status"] == "acquired"
            release(second, "job", body["lease_id"])


def test_waiting_needs_no_task(fast: Server, name: str) -> None:
    lease = fast.lease(name)
    polls = wait_for_job(fast, name, 3)
    assert len(fast._inner.server_state.tasks) == 0
    release(fast, name, lease)
    polls[0].answer()
    for poll in polls[1:]:
        poll.hang_up()


def test_both_ways_answer_a_waiter_the_same(fast: Server, slow: Server, name: str) -> None:
    told = []
    for server in (fast, slow):
        lease = server.lease(name)
        (poll,) = wait_for_job(server, name)
        release(server, name, lease)
        status, headers, body, _ = read_response(poll.connection)
        poll.connection.close()
        document = {key: value for key, value in json.loads(body).items() if key != "lease_id"}
        for key in ("expires_at", "previous"):
            document.pop(key)
        told.append((status, sorted(headers), document))
    assert told[0] == told[1]


def test_the_way_in_is_the_same_as_for_every_claim(server: Server, name: str) -> None:
    with server.raw() as connection:
        connection.sendall(request("POST", f"/locks/{name}/acquire", b'{"wait_seconds":1}', AS_JSON))
        assert read_response(connection)[0] == 401
        connection.sendall(request("POST", f"/locks/{name}/acquire", b'{"wait_seconds":1', AUTH + AS_JSON))
        assert read_response(connection)[0] == 400
