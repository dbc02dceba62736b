"""Frames and codes of GET /events and GET /locks/{name}/watch: in order, complete, bounded; gaps are told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from dibs.core.limits import FEED_PAGE_MAX, STREAM_BYTES_MAX
from dibs.server import event_stream
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.server.harness import Server, running, wait_until
from tests.server.sse import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.engine.event_log import EventFilter, EventPage


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as server:
        yield server


def happen(server: Server, name: str, **fields: Any) -> None:
    """One claim and one release: two events."""
    lease = server.lease(quote(name, safe=""), **fields)
    path = f"/locks/{quote(name, safe='')}/release"
    assert server.ask("POST", path, {"lease_id": lease}).status == 200


def told(reader: StreamReader, count: int) -> list[tuple[str, str]]:
    frames = [reader.next() for _ in range(count)]
    assert [frame.id for frame in frames] == [frame.document["seq"] for frame in frames]
    return [(frame.document["event"], frame.document["name"]) for frame in frames]


@pytest.mark.promise("events:ordered")
def test_a_stream_reports_each_event_in_order_with_the_number_of_the_store(server: Server, name: str) -> None:
    with StreamReader(server.port, f"/events?prefix={name}") as reader:
        assert reader.status == 200
        assert reader.headers["content-type"].startswith("text/event-stream")
        reader.settle()
        happen(server, f"{name}-a")
        happen(server, "something-else")
        happen(server, f"{name}-b")
        assert told(reader, 4) == [
            ("acquired", f"{name}-a"),
            ("released", f"{name}-a"),
            ("acquired", f"{name}-b"),
            ("released", f"{name}-b"),
        ]


@pytest.mark.promise("events:ordered")
def test_a_reader_that_comes_back_continues_where_it_was(server: Server, name: str) -> None:
    with StreamReader(server.port, f"/events?prefix={name}") as reader:
        reader.settle()
        happen(server, f"{name}-1")
        last = [reader.next(), reader.next()][-1].id
    for number in range(2, 150):  # more than a page
        happen(server, f"{name}-{number}")
    with StreamReader(server.port, f"/events?prefix={name}&after=0", last_id=last) as again:
        seen = told(again, 2 * 148)
        assert [job for _, job in seen[::2]] == [f"{name}-{number}" for number in range(2, 150)]
        happen(server, f"{name}-live")
        assert told(again, 2)[0] == ("acquired", f"{name}-live")


def test_a_stream_of_one_job_reports_only_that_job(server: Server, name: str) -> None:
    happen(server, name)
    with StreamReader(server.port, f"/events?name={name}&after=0") as reader:
        assert told(reader, 2) == [("acquired", name), ("released", name)]
        happen(server, f"{name}-longer")
        happen(server, name)
        assert told(reader, 2) == [("acquired", name), ("released", name)]


def test_a_position_is_reported_before_anything_happens(own: Server) -> None:
    happen(own, "before")
    with StreamReader(own.port, "/events") as reader:
        reader.settle()
        at = reader.position
    happen(own, "meanwhile")
    with StreamReader(own.port, "/events", last_id=at) as again:
        assert told(again, 2) == [("acquired", "meanwhile"), ("released", "meanwhile")]


@pytest.mark.promise("events:ordered")
def test_what_another_server_commits_is_reported_in_the_same_order(tmp_path: Path) -> None:
    store = MemoryStore(clock := ManualClock())
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        running(tmp_path / "a", store=store, clock=clock) as a,
        running(tmp_path / "b", store=store, clock=clock) as b,
        StreamReader(a.port, "/events") as at_a,
        StreamReader(b.port, "/events") as at_b,
    ):
        at_a.settle()
        at_b.settle()
        for number in range(20):
            happen(a if number % 2 else b, f"job-{number}")
        frames = [[reader.next() for _ in range(40)] for reader in (at_a, at_b)]
        assert [each.document for each in frames[0]] == [each.document for each in frames[1]]
        ids = [each.id for each in frames[0]]
        assert ids == sorted(set(ids))
        middle = frames[0][19].id
        with StreamReader(b.port, "/events", last_id=middle) as moved:
            assert [moved.next().id for _ in range(20)] == ids[20:]


def test_a_token_of_one_namespace_sees_only_that(server: Server, name: str) -> None:
    with StreamReader(server.port, f"/events?prefix={name}", who="scoped") as reader:
        reader.settle()
        happen(server, name)
        team = {"X-Dibs-Namespace": "team-a"}
        assert server.ask("POST", f"/locks/{name}-team/acquire", {}, headers=team).status == 200
        assert reader.next().document["name"] == f"{name}-team"
    refused = server.ask("GET", "/events?namespace=team-b", who="scoped")
    assert refused.status == 403


def test_no_frame_holds_a_lease_or_a_ticket(own: Server) -> None:
    with StreamReader(own.port, "/events") as reader:
        reader.settle()
        lease = own.lease("secret", metadata="m")
        line = own.acquire("secret", {"wait_seconds": 0.01, "request_key": "k"})
        ticket = line.json["ticket"]
        assert own.ask("POST", "/locks/secret/release", {"lease_id": lease}).status == 200
        for _ in range(3):
            reader.next()
        assert lease.encode() not in reader.text
        assert ticket.partition(".")[2].encode() not in reader.text


@pytest.mark.parametrize("hostile", ["data: x", "id: 99", "é%0A", "\U0001f600", "a\\nb", "</script>"])
def test_a_hostile_name_stays_inside_its_frame(own: Server, hostile: str) -> None:
    with StreamReader(own.port, f"/events?prefix={quote(hostile)}") as reader:
        reader.settle()
        happen(own, hostile, metadata="\u2028x\r\n\nid: 7\ndata: {}\n\n")
        frame = reader.next()
        assert frame.document["name"] == hostile
        assert frame.id == frame.document["seq"]
        assert reader.next().document["event"] == "released"


@pytest.mark.promise("events:told")
def test_pruned_history_is_reported(own: Server) -> None:
    for number in range(10):
        happen(own, f"job-{number}")
    own.store.prune(keep=3, before_ms=0)
    oldest = own.store.events(0, 1)[0].seq
    for path in ("/events?after=2", "/events?after=2&name=job-9"):
        with StreamReader(own.port, path) as reader:
            gap = reader.next()
            assert (gap.kind, gap.document) == ("gap", {"event": "gap", "after": 2, "oldest": oldest})
            assert gap.id == oldest - 1
            assert reader.next().id >= oldest
    page = own.ask("GET", "/events?after=2").json
    assert page["gap"] == {"event": "gap", "after": 2, "oldest": oldest}
    assert own.ask("GET", f"/events?after={oldest - 1}").json["gap"] is None


@pytest.mark.promise("events:told")
def test_a_history_that_was_pruned_whole_is_reported(own: Server) -> None:
    happen(own, "job")
    last = own.store.events(0, 1, newest=True)[0].seq
    own.store.prune(keep=0, before_ms=0)
    with StreamReader(own.port, "/events?after=1") as reader:
        assert reader.next().document == {"event": "gap", "after": 1, "oldest": last + 1}
        happen(own, "later")
        assert told(reader, 2) == [("acquired", "later"), ("released", "later")]
    with StreamReader(own.port, "/events") as reader:  # one that asked for nothing old misses nothing
        reader.settle()
        happen(own, "newer")
        assert told(reader, 1) == [("acquired", "newer")]


@pytest.mark.promise("events:told")
def test_a_position_beyond_the_last_event_is_reported_and_not_waited_for(own: Server) -> None:
    happen(own, "job")
    last = own.store.events(0, 1, newest=True)[0].seq
    with StreamReader(own.port, f"/events?after={last + 1000}") as reader:
        assert reader.next().document == {"event": "gap", "after": last + 1000, "oldest": last + 1}
        happen(own, "later")
        assert told(reader, 1) == [("acquired", "later")]


@pytest.mark.full
@pytest.mark.promise("events:told")
def test_a_reader_that_never_reads_is_told_and_cut_while_others_are_served(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STALL_S", 0.3)
    with (
        StreamReader(own.port, "/events?prefix=bulk", receive_bytes=4096) as deaf,
        StreamReader(own.port, "/events?prefix=bulk") as good,
    ):
        deaf.settle()
        good.settle()
        count, seen = 0, []
        # Whoever only left the feed reads on if we do.
        while not any(each.is_dropped for each in [*own.api.streams._streams]) or count < 4 * STREAM_BYTES_MAX // 4096:
            lease = own.lease(f"bulk-{count}")
            done = {"lease_id": lease, "done_seconds": 60, "result": "r" * 4000}
            assert own.ask("POST", f"/locks/bulk-{count}/release", done).status == 200
            count += 1
            assert count < 10_000
            seen += [good.next().id, good.next().id]
        assert seen == sorted(set(seen))
        frames = deaf.rest()
        last = frames.pop()
        assert last.kind == "dropped"
        assert last.document == {"event": "dropped", "after": frames[-1].id}
        assert [frame.id for frame in frames] == seen[: len(frames)]  # nothing is missing before it
        with StreamReader(own.port, "/events?prefix=bulk", last_id=last.id) as again:
            assert again.next().id == seen[len(frames)]
    wait_until(lambda: not len(own.engine.feed), "all streams have ended")


@pytest.mark.promise("events:told")
def test_a_reader_that_takes_nothing_is_told_and_cut_however_little_it_was_sent(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.api.streams.keepalive_s = 0.05
    with (
        StreamReader(own.port, "/events?prefix=some", receive_bytes=4096) as deaf,
        StreamReader(own.port, "/events?prefix=other") as idle,
    ):
        deaf.settle()
        idle.settle()
        for number in range(40):  # far less than what a stream may queue
            happen(own, f"some-{number}", metadata="m" * 1000)
        monkeypatch.setattr(event_stream, "STALL_S", 0.3)  # not before: a slow machine takes longer for one event
        wait_until(lambda: len(own.api.streams) == 1, "it is cut off")
        frames = deaf.rest()
        last = frames.pop()
        assert (last.kind, last.document["after"]) == ("dropped", frames[-1].id)
        ids = [frame.id for frame in frames]
        assert ids == list(range(ids[0], ids[0] + 80))
        happen(own, "other")
        assert told(idle, 2)[0] == ("acquired", "other")


@pytest.mark.promise("events:told")
def test_history_that_is_pruned_while_it_is_read_is_reported(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(FEED_PAGE_MAX):
        happen(own, f"job-{number}")
    replay = own.engine.feed.replay

    async def replay_after_pruning(after: int, wanted: EventFilter) -> EventPage:
        if after:  # between the first page and the second
            own.store.prune(keep=3, before_ms=0)
        return await replay(after, wanted)

    monkeypatch.setattr(own.engine.feed, "replay", replay_after_pruning)
    with StreamReader(own.port, "/events?after=0") as reader:
        read = [reader.next() for _ in range(FEED_PAGE_MAX + 1)]
        gap = read.pop()
        oldest = own.store.events(0, 1)[0].seq
        happen(own, "last")
        rest = [reader.next().id for _ in range(5)]
    assert [frame.id for frame in read] == list(range(1, FEED_PAGE_MAX + 1))
    assert gap.document == {"event": "gap", "after": FEED_PAGE_MAX, "oldest": oldest}
    assert rest == list(range(oldest, oldest + 5))


def test_a_slow_reader_that_reads_gets_everything(own: Server) -> None:
    with StreamReader(own.port, "/events?prefix=bulk", receive_bytes=4096) as slow:
        slow.settle()
        for number in range(300):
            happen(own, f"bulk-{number}", metadata="m" * 1000)
        ids = [slow.next().id for _ in range(600)]
        assert ids == sorted(set(ids))


def test_two_hundred_streams_are_told_of_each_event(own: Server) -> None:
    threads = threading.active_count()
    readers = [StreamReader(own.port, "/events?prefix=many") for _ in range(200)]
    try:
        for reader in readers:
            reader.settle()
        wait_until(lambda: len(own.engine.feed) == 200, "all have joined")
        happen(own, "many")
        assert {tuple(told(reader, 2)) for reader in readers} == {(("acquired", "many"), ("released", "many"))}
        assert threading.active_count() < threads + 50, "a stream has no thread of its own"
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)
    wait_until(lambda: not len(own.engine.feed), "all streams have ended")


def test_streams_that_are_up_to_date_cost_no_query_of_their_own(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = [StreamReader(own.port, "/events") for _ in range(20)]
    try:
        for reader in readers:
            reader.settle()
        wait_until(lambda: len(own.engine.feed) == 20, "all have joined")
        asked: list[int] = []
        events = own.store.events

        def counted(*args: Any, **named: Any) -> Any:
            asked.append(1)
            return events(*args, **named)

        monkeypatch.setattr(own.store, "events", counted)
        happen(own, "one")
        for reader in readers:
            told(reader, 2)
        assert len(asked) < 20
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)


def test_streams_are_bounded_for_one_client_and_in_all(own: Server) -> None:
    registry = own.api.streams
    for most, of_client, whose in ((1, 10, "This server has 1"), (10, 1, "You have 1")):
        registry.most, registry.most_per_client = most, of_client
        with StreamReader(own.port, "/events") as one, StreamReader(own.port, "/events") as second:
            one.settle()
            assert second.status == 429
            assert second.headers["retry-after"] == "1"
            assert whose in second._file.read(int(second.headers["content-length"])).decode()
        wait_until(lambda: not len(registry), "the first has ended")


def test_a_silent_stream_gets_signs_of_life_and_its_position(own: Server) -> None:
    own.api.streams.keepalive_s = 0.05
    with StreamReader(own.port, "/events?prefix=nothing") as reader:
        reader.settle()
        before = reader.position
        happen(own, "something")
        while reader.position == before:
            reader._chunk()
        assert b": keepalive\n" in reader.text


def test_a_stream_ends_when_its_token_is_revoked(own: Server, tmp_path: Path) -> None:
    own.api.streams.keepalive_s = 0.05
    with StreamReader(own.port, "/events") as reader:
        reader.settle()
        tokens = tmp_path / "tokens"
        tokens.write_text(tokens.read_text().replace("agent:tok-agent\n", ""))
        own.guard.reload()
        assert reader.rest() == []
        assert reader.ended


@pytest.mark.fault("F-090")
@pytest.mark.parametrize("path", ["/events", "/locks/x/watch", "/elections/room-1/watch"])
def test_a_stream_ends_when_its_token_is_for_another_namespace(own: Server, tmp_path: Path, path: str) -> None:
    own.api.streams.keepalive_s = 0.05
    with StreamReader(own.port, path) as reader:
        reader.settle()
        tokens = tmp_path / "tokens"
        tokens.write_text(tokens.read_text().replace("agent:tok-agent\n", "agent:tok-agent:agent:team-a\n"))
        own.guard.reload()
        reader.rest()
        assert reader.ended


def test_a_server_that_ends_finishes_its_streams(own: Server) -> None:
    with StreamReader(own.port, "/events") as reader:
        reader.settle()
        happen(own, "last")
        assert told(reader, 2)
        own.begin_stop()
        assert reader.rest() == []
        assert reader.ended
        assert reader.text.endswith(b"retry: 1000\n\n")


def test_a_second_request_on_the_connection_ends_the_stream_and_is_answered(own: Server) -> None:
    with StreamReader(own.port, "/events") as reader:
        reader.settle()
        reader.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reader.rest() == []
        assert b" 200 " in reader._file.readline()


def test_a_reader_that_hangs_up_is_forgotten(own: Server) -> None:
    with StreamReader(own.port, "/events") as reader:
        reader.settle()
        wait_until(lambda: len(own.engine.feed) == 1, "it has joined")
    wait_until(lambda: not len(own.engine.feed) and not len(own.api.streams), "it is gone")


def test_without_a_stream_the_answer_is_a_page(own: Server) -> None:
    for number in range(5):
        happen(own, f"page-{number}")
    newest = own.ask("GET", "/events?limit=3").json
    assert [event["event"] for event in newest["events"]] == ["released", "acquired", "released"]
    page = own.ask("GET", "/events?after=0&prefix=page-&limit=4").json
    assert [event["name"] for event in page["events"]] == ["page-0", "page-0", "page-1", "page-1"]
    more = own.ask("GET", f"/events?after={page['next_after']}&prefix=page-").json
    assert [event["name"] for event in more["events"]] == [f"page-{n}" for n in (2, 2, 3, 3, 4, 4)]
    assert own.ask("GET", f"/events?after={more['next_after']}").json["events"] == []


def test_events_of_a_time_are_found(own: Server) -> None:
    happen(own, "old")
    own.pass_time(10_000)
    happen(own, "young")
    names = {event["name"] for event in own.ask("GET", "/events?since_seconds=5").json["events"]}
    assert names == {"young"}
    names = {event["name"] for event in own.ask("GET", "/events?since_seconds=600").json["events"]}
    assert names == {"old", "young"}


@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "after=x",
        f"after={2**64}",
        "follow=maybe",
        "limit=0",
        "name=a&prefix=b",
        "since_seconds=x",
    ],
)
def test_a_wrong_query_is_refused(server: Server, query: str) -> None:
    assert server.ask("GET", f"/events?{query}").status == 400


@pytest.mark.parametrize("wrong", ["12x", "-1", "1.5", "0x10", "9" * 30, "1 2", "\xb2"])
def test_a_wrong_last_event_id_is_refused(server: Server, wrong: str) -> None:
    reply = server.ask("GET", "/events", headers={"Last-Event-ID": wrong, "Accept": "text/event-stream"})
    assert reply.status == 400
    assert "Last-Event-ID" in reply.json["details"]


def test_a_head_request_is_not_followed(own: Server) -> None:
    reply = own.ask("HEAD", "/events?follow=true")
    assert reply.status == 200
    wait_until(lambda: not len(own.api.streams), "it has ended")


def test_a_watch_says_when_a_claim_ends_also_by_its_session_and_after_a_checkpoint(own: Server) -> None:
    session = own.ask("POST", "/sessions", {"ttl_seconds": 30}).json
    with StreamReader(own.port, "/locks/ends/watch") as reader:
        reader.next()
        own.acquire("ends", {"session_id": session["session_id"]})
        assert reader.next().document["expires_at"] == session["expires_at"]
        own.ask("DELETE", f"/sessions/{session['session_id']}")
        reader.next()
        lease = own.lease("ends", ttl_seconds=30)
        reader.next()
        own.clock.advance(400)
        asked = {"lease_id": lease, "checkpoint": "1"}
        renewed = own.ask("POST", "/locks/ends/renew", asked).json
        told = reader.next().document
        assert (told["event"], told["expires_at"]) == ("renewed", renewed["expires_at"])


def test_a_watch_reports_the_state_first_and_then_the_changes_as_octostore_does(own: Server) -> None:
    with StreamReader(own.port, "/locks/w/watch") as reader:
        first = reader.next()
        assert first.document.keys() == {"event", "lock_name", "observed_at"}
        assert (first.document["event"], first.document["lock_name"]) == ("released", "w")
        lease = own.lease("w", ttl_seconds=30)
        acquired = reader.next().document
        assert acquired.keys() == {"event", "lock_name", "fencing_token", "expires_at", "observed_at"}
        assert acquired["event"] == "acquired"
        state = own.ask("GET", "/locks/w").json
        assert (acquired["fencing_token"], acquired["expires_at"]) == (
            state["fencing_token"],
            state["expires_at"],
        )
        with StreamReader(own.port, "/locks/w/watch") as second:
            again = second.next().document
            assert {**again, "observed_at": ""} == {**acquired, "observed_at": ""}
        assert own.ask("POST", "/locks/w/release", {"lease_id": lease}).status == 200
        released = reader.next().document
        assert released.keys() == {"event", "lock_name", "observed_at"}
        assert released["event"] == "released"
        own.lease("w", ttl_seconds=2)
        assert reader.next().document["event"] == "acquired"
        own.pass_time(4_000)
        assert reader.next().document["event"] == "expired"
    with StreamReader(own.port, "/locks/w/watch", who="wrong") as refused:
        assert refused.status == 401
