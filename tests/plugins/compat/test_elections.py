"""Elections over HTTP: a leader is the owner of a job, a term is its fencing token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from dibs.compat.octostore.elections import ElectionRoutes, PublicRooms, lease_of, token_of
from dibs.core.limits import PUBLIC_CLIENTS_MAX, PUBLIC_REQUESTS_MS
from dibs.engine.auth import RateLimited
from dibs.server import event_stream
from dibs.server.settings import PublicElections, ServerSettings
from dibs.testing.clock import ManualClock
from tests.server.harness import UNKNOWN_LEASE, running, wait_until
from tests.server.sse import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Response, Server

ROOMS = 20


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that lets anybody take part."""
    settings = PublicElections(rooms=ROOMS, streams=3, streams_per_client=2, requests=10_000)
    with running(tmp_path_factory.mktemp("public"), settings=ServerSettings(public_elections=settings)) as server:
        yield server


def campaign(server: Server, room: str, candidate: str, **more: Any) -> Response:
    who = more.pop("who", None)
    headers = more.pop("headers", None)
    body = {"candidate_id": candidate, **more}
    return server.ask("POST", f"/elections/{room}/campaign", body, who=who, headers=headers)


def new_room(server: Server) -> str:
    reply = server.ask("POST", "/elections", who=None)
    assert reply.status == 201
    return str(reply.json["election_id"])


def resign(server: Server, room: str, token: str, who: str | None = None) -> Response:
    return server.ask("POST", f"/elections/{room}/resign", {"leader_token": token}, who=who)


def test_a_room_is_made_without_a_token(public: Server) -> None:
    reply = public.ask("POST", "/elections", who=None).json
    room = reply["election_id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", room)
    assert reply == {
        "election_id": room,
        "campaign_path": f"/elections/{room}/campaign",
        "status_path": f"/elections/{room}",
        "watch_path": f"/elections/{room}/watch",
    }


@pytest.mark.promise("elect:one-leader")
def test_one_candidate_leads_and_the_others_follow(public: Server) -> None:
    room = new_room(public)
    leader = campaign(public, room, "ann", metadata="eu").json
    follower = campaign(public, room, "bob").json
    assert leader["status"] == "leader"
    assert leader["renew_after_ms"] == 15_000
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", leader["leader_token"])
    assert leader["leader"].keys() == {"candidate_id", "metadata", "term", "expires_at"}
    assert follower == {
        "status": "follower",
        "election_id": room,
        "leader": leader["leader"],
        "retry_after_ms": 30_000,
    }
    assert public.ask("GET", f"/elections/{room}", who=None).json == {
        "election_id": room,
        "status": "leader",
        "leader": leader["leader"],
        "retry_after_ms": 30_000,
    }
    resign(public, room, leader["leader_token"])


def test_a_candidate_with_the_leaders_id_is_not_the_leader(public: Server) -> None:
    room = new_room(public)
    leader = campaign(public, room, "ann").json
    assert campaign(public, room, "ann").json["status"] == "follower"
    resign(public, room, leader["leader_token"])


def test_a_lost_reply_is_asked_for_again_with_its_key(public: Server) -> None:
    room = new_room(public)
    first = campaign(public, room, "ann", request_key="k1").json
    again = campaign(public, room, "ann", headers={"Idempotency-Key": "k1"}).json
    assert (again["leader_token"], again["leader"]["term"]) == (
        first["leader_token"],
        first["leader"]["term"],
    )
    resign(public, room, first["leader_token"])
    late = campaign(public, room, "ann", request_key="k1")
    assert (late.status, late.json["code"]) == (409, "conflict")
    assert public.ask("GET", f"/elections/{room}", who=None).json["status"] == "vacant"


@pytest.mark.promise("elect:one-leader")
def test_terms_rise_and_a_paused_leader_is_refused(public: Server) -> None:
    room = new_room(public)
    old = campaign(public, room, "ann", ttl_seconds=5).json
    public.pass_time(5_500)
    assert public.ask("GET", f"/elections/{room}", who=None).json == {
        "election_id": room,
        "status": "vacant",
        "retry_after_ms": 0,
    }
    body = {"leader_token": old["leader_token"]}
    alone = public.ask("POST", f"/elections/{room}/renew", body, who=None)
    assert (alone.status, alone.json["code"]) == (404, "lease_not_current")
    new = campaign(public, room, "bob").json
    assert new["leader"]["term"] > old["leader"]["term"]
    for verb in ("renew", "resign"):
        reply = public.ask("POST", f"/elections/{room}/{verb}", body, who=None)
        assert (reply.status, reply.json["code"]) == (400, "lease_not_current")
    resign(public, room, new["leader_token"])


def test_a_renewal_keeps_term_and_token(public: Server) -> None:
    room = new_room(public)
    leader = campaign(public, room, "ann", ttl_seconds=10).json
    public.pass_time(4_000)
    body = {"leader_token": leader["leader_token"], "ttl_seconds": 20}
    renewed = public.ask("POST", f"/elections/{room}/renew", body, who=None).json
    assert renewed["leader_token"] == leader["leader_token"]
    assert renewed["leader"]["term"] == leader["leader"]["term"]
    assert renewed["renew_after_ms"] == 10_000
    resign(public, room, leader["leader_token"])


def test_resigning_frees_the_room_and_again_is_no_error(public: Server) -> None:
    room = new_room(public)
    leader = campaign(public, room, "ann").json
    said = {"election_id": room, "status": "vacant", "previous_term": leader["leader"]["term"]}
    assert resign(public, room, leader["leader_token"]).json == said
    assert resign(public, room, leader["leader_token"]).json == said
    assert campaign(public, room, "bob").json["status"] == "leader"


@pytest.mark.parametrize("token", ["", "x", "A" * 42, "A" * 44, "é" * 43, "A" * 42 + "B", "A" * 42 + "="])
def test_a_token_that_no_server_made_is_invalid(public: Server, token: str) -> None:
    reply = resign(public, "some-room", token)
    assert (reply.status, reply.json["code"]) == (400, "invalid_input")


def test_a_token_is_good_for_its_own_room_only(public: Server) -> None:
    room, other = new_room(public), new_room(public)
    leader = campaign(public, room, "ann").json
    reply = resign(public, other, leader["leader_token"])
    assert (reply.status, reply.json["code"]) == (404, "lease_not_current")
    assert lease_of(room, token_of(room, UNKNOWN_LEASE)) == UNKNOWN_LEASE
    resign(public, room, leader["leader_token"])


@pytest.mark.parametrize(
    "body",
    [
        {"candidate_id": ""},
        {"candidate_id": "a" * 65},
        {"candidate_id": "two words"},
        {"candidate_id": "ü"},
        {"candidate_id": "a\n"},
        {"candidate_id": "<b>"},
        {"candidate_id": "a", "ttl_seconds": 4},
        {"candidate_id": "a", "ttl_seconds": 301},
        {"candidate_id": "a", "metadata": "m" * 1025},
    ],
    ids=str,
)
def test_a_hostile_campaign_is_refused(public: Server, body: dict[str, Any]) -> None:
    assert public.ask("POST", "/elections/some-room/campaign", body, who=None).status == 400


@pytest.mark.parametrize("room", ["short", "a" * 65, "dotted.room", "a%2Fb-long-enough", "%00" * 8])
def test_a_public_room_has_a_plain_long_id(public: Server, room: str) -> None:
    assert campaign(public, room, "ann").status == 400
    assert public.ask("GET", f"/elections/{room}", who=None).status == 400


def test_a_public_election_is_in_nobodys_way(public: Server) -> None:
    room = new_room(public)
    leader = campaign(public, room, "ann").json
    mine = campaign(public, room, "ann", who="agent").json
    assert mine["status"] == "leader"
    assert public.ask("GET", f"/locks/election:{room}").json["owner"] == "ann"
    assert public.ask("GET", f"/locks/election:{room}", who=None).status == 401
    resign(public, room, leader["leader_token"])
    assert public.ask("GET", f"/elections/{room}").json["status"] == "leader"


def test_with_a_token_any_name_is_an_election_of_the_namespace(public: Server) -> None:
    first = campaign(public, "cron", "ann", who="scoped", ttl_seconds=3_600).json
    assert first["status"] == "leader"
    assert campaign(public, "cron", "bob", who="scoped").json["leader"] == first["leader"]
    assert campaign(public, "cron", "bob", who="agent").json["status"] == "leader"
    stranger = resign(public, "cron", first["leader_token"], who="bob-a")
    assert (stranger.status, stranger.json["code"]) == (400, "lease_not_current")


def test_without_the_setting_an_election_needs_a_token(fast: Server) -> None:
    for method, path in (("POST", "/elections"), ("GET", "/elections/some-room")):
        refused = fast.ask(method, path, who=None)
        assert (refused.status, "--public-elections" in refused.json["details"]) == (401, True)
    assert campaign(fast, "some-room", "ann").status == 401
    assert fast.ask("POST", "/elections").status == 201


def test_a_wrong_token_is_refused_even_where_none_is_needed(public: Server) -> None:
    assert campaign(public, "some-room", "ann", who="nonsense").status == 401


def test_the_number_of_public_leaders_is_bounded_and_exact(public: Server) -> None:
    public.pass_time(301_000)
    tokens = {}
    for number in range(ROOMS):
        room = f"room-{number:06}"
        tokens[room] = campaign(public, room, "ann").json["leader_token"]
    full = campaign(public, "room-more", "ann")
    assert (full.status, full.json["code"], full.headers["retry-after"]) == (409, "capacity_exceeded", "30")
    assert full.json["retry_after_ms"] == 30_000
    assert campaign(public, "room-000003", "bob").json["status"] == "follower"
    resign(public, "room-000003", tokens.pop("room-000003"))
    again = campaign(public, "room-more", "ann").json
    assert again["status"] == "leader"
    tokens["room-more"] = again["leader_token"]
    for room, token in tokens.items():
        assert resign(public, room, token).status == 200


def test_a_stream_reports_the_state_and_every_change(public: Server) -> None:
    room = new_room(public)
    with StreamReader(public.port, f"/elections/{room}/watch", who=None) as stream:
        first = stream.next()
        assert first.kind == "state"
        assert first.document.pop("observed_at")
        assert first.document == {
            "schema_version": 1,
            "election_id": room,
            "status": "vacant",
            "leader": None,
            "retry_after_ms": 0,
        }
        leader = campaign(public, room, "ann", metadata="m", ttl_seconds=10).json
        assert stream.next().document["leader"] == leader["leader"]
        public.clock.advance(400)
        body = {"leader_token": leader["leader_token"], "ttl_seconds": 20}
        renewed = public.ask("POST", f"/elections/{room}/renew", body, who=None).json
        seen = stream.next().document
        assert (seen["leader"], seen["retry_after_ms"]) == (renewed["leader"], 20_000)
        resign(public, room, leader["leader_token"])
        assert stream.next().document["status"] == "vacant"
        assert leader["leader_token"].encode() not in stream.text


def test_a_stream_shows_when_the_session_of_a_leader_ends(public: Server) -> None:
    session = public.ask("POST", "/sessions", {"ttl_seconds": 30}).json
    by_session = {"session_id": session["session_id"]}
    with StreamReader(public.port, "/elections/by-session/watch") as stream:
        stream.next()
        lease = public.acquire("election:by-session", by_session).json
        led = stream.next().document
        assert led["leader"]["expires_at"] == session["expires_at"] == lease["expires_at"]
        assert led["retry_after_ms"] == 30_000
        public.clock.advance(400)
        body = {**by_session, "metadata": "halfway", "lease_id": lease["lease_id"]}
        assert public.ask("POST", "/locks/election:by-session/renew", body).status == 200
        told = stream.next().document
        assert told["leader"] == {**led["leader"], "metadata": "halfway"}
        assert told["retry_after_ms"] == 29_600
        public.ask("DELETE", f"/sessions/{session['session_id']}")
        assert stream.next().document["leader"] is None


def rooms_of(server: Server) -> PublicRooms:
    """The public rooms of a server, which its election routes count."""
    route, _ = server._inner.server_state.router.find(b"GET", b"/elections/x/watch")
    assert route is not None
    elections: ElectionRoutes = route.handler.__self__  # type: ignore[attr-defined]  # of a bound method
    return elections._rooms


def test_streams_are_bounded_per_client_and_in_all(public: Server) -> None:
    room = new_room(public)
    with StreamReader(public.port, f"/elections/{room}/watch", who=None) as one:
        one.next()
        with StreamReader(public.port, f"/elections/{room}/watch", who=None) as two:
            two.next()
            with StreamReader(public.port, f"/elections/{room}/watch", who=None) as three:
                assert (three.status, three.headers["retry-after"]) == (429, "30")
    wait_until(lambda: not rooms_of(public)._streams, "a stream that ended is still counted")


@pytest.mark.promise("events:told")
def test_a_reader_that_takes_nothing_is_told_and_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings(public_elections=PublicElections(requests=10_000))
    with running(tmp_path, settings=settings) as server:
        server.api.streams.keepalive_s = 0.05
        room = new_room(server)
        watch = f"/elections/{room}/watch"
        with StreamReader(server.port, watch, who=None, receive_bytes=4096) as deaf:
            deaf.settle()
            for _ in range(40):
                token = campaign(server, room, "ann", metadata="m" * 1000).json["leader_token"]
                assert resign(server, room, token).status == 200
            monkeypatch.setattr(event_stream, "STALL_S", 0.3)
            wait_until(lambda: not len(server.api.streams), "it is cut off")
            wait_until(lambda: not rooms_of(server)._streams, "its place among the public streams is free")
            frames = deaf.rest()
            last = frames.pop()
            assert (last.kind, last.document["after"]) == ("dropped", frames[-1].id)


def test_a_public_stream_ends_after_its_time(tmp_path: Any) -> None:
    settings = PublicElections(stream_ms=50)
    with (
        running(tmp_path, settings=ServerSettings(public_elections=settings)) as server,
        StreamReader(server.port, "/elections/some-room/watch", who=None) as stream,
    ):
        assert [each.kind for each in stream.rest()] == ["state"]


def test_requests_of_a_client_are_counted_by_the_minute() -> None:
    clock = ManualClock()
    rooms = PublicRooms(PublicElections(requests=2), clock.steady_ms)
    rooms.requests.count("a")
    rooms.requests.count("a")
    with pytest.raises(RateLimited) as refused:
        rooms.requests.count("a")
    assert refused.value.retry_after_ms == PUBLIC_REQUESTS_MS
    rooms.requests.count("b")
    clock.advance(PUBLIC_REQUESTS_MS)
    rooms.requests.count("a")


def test_many_clients_do_not_fill_the_memory_and_share_one_count() -> None:
    rooms = PublicRooms(PublicElections(requests=2), ManualClock().steady_ms)
    for number in range(PUBLIC_CLIENTS_MAX):
        rooms.requests.count(f"client {number}")
    rooms.requests.count("late")
    rooms.requests.count("later")
    with pytest.raises(RateLimited):
        rooms.requests.count("latest")
    assert len(rooms.requests) == PUBLIC_CLIENTS_MAX + 1
