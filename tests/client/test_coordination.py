"""Lines, sessions and several jobs over HTTP, against a server that says what a test wrote down."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import FATE_UNKNOWN
from dibs.base.generators import run_generator
from dibs.client.embedded import EmbeddedTransport
from dibs.client.flow import all_pages, drive
from dibs.client.http import HttpTransport
from dibs.client.pending import PendingClaim
from dibs.client.servers import Servers
from dibs.client.transport import Ask
from dibs.client.urls import server_address
from dibs.core.commands import Acquire
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.wire.documents import Reply
from dibs.wire.sentences import sentence
from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    import socket

ID = "0000AAAA-0000-4000-8000-000000000000"
SESSION = {"session_id": ID, "owner": "o", "remaining_ms": 1, "ttl_seconds": 60, "active": True}
QUEUED = {
    "status": "queued",
    "name": "a",
    "ticket": "1.x.y",
    "position": 1,
    "owner": "o",
    "remaining_ms": 5,
    "retry_after_ms": 5,
}
HELD = {"status": "held", "name": "a", "owner": "o", "remaining_ms": 5}
CLOSED = {"status": "closed", "name": "a", "closed": {"by": "o", "reason": "r"}, "retry_after_ms": 5}
LEASE = {"lease_id": "x", "fencing_token": 1, "owner": "o", "remaining_ms": 5}


def transport_to(server: ScriptedServer, timeout_ms: int = 10_000) -> HttpTransport:
    return HttpTransport(Servers((server_address(server.url),)), timeout_ms=timeout_ms)


@pytest.mark.parametrize(
    ("verb", "name", "line", "status", "body"),
    [
        ("acquire-any", "", "POST /locks/acquire-any", 200, {"status": "held", "refused": []}),
        ("acquire-all", "", "POST /locks/acquire-all", 200, QUEUED),
        ("leave", "a/b", "POST /locks/a%2Fb/leave", 200, {"name": "a/b", "left": True}),
        ("withdraw", "", "POST /locks/withdraw", 200, {"left": True, "released": [], "kept": []}),
        ("transfer", "a", "POST /locks/a/transfer", 200, LEASE),
        ("free", "a", "POST /locks/a/free", 200, {"name": "a", "freed": True}),
        ("break", "a", "POST /locks/a/break", 200, {"name": "a", "broken": []}),
        ("session-open", "", "POST /sessions", 201, SESSION),
        ("session-keep", ID, f"POST /sessions/{ID.lower()}/keepalive", 200, SESSION),
        ("session-show", ID, f"GET /sessions/{ID.lower()}", 200, SESSION),
        ("session-end", ID, f"DELETE /sessions/{ID.lower()}", 204, None),
        ("acquire", "a", "POST /locks/a/acquire", 409, {"status": "parked", "name": "a", "failures": 3}),
        pytest.param("next", "a", "POST /locks/a/next", 409, CLOSED, marks=pytest.mark.fault("F-771")),
        pytest.param("transfer", "a", "POST /locks/a/transfer", 200, HELD, marks=pytest.mark.fault("F-772")),
    ],
)
def test_each_verb_has_its_address(verb: str, name: str, line: str, status: int, body: Any) -> None:
    answer = reply_of(status, b"" if body is None else body)
    with ScriptedServer([answer]) as server:
        reply = transport_to(server).ask(Ask(verb, name, {"names": ["a", "b"]} if "acquire-" in verb else {}))
    assert (reply.status, reply.body) == (status, body)
    assert server.requests[0].decode().splitlines()[0] == f"{line} HTTP/1.1"


def test_the_sessions_are_asked_for() -> None:
    with ScriptedServer([reply_of(200, {"sessions": [SESSION]})]) as server:
        assert transport_to(server).ask(Ask("sessions")).body == {"sessions": [SESSION]}
    assert server.requests[0].startswith(b"GET /sessions HTTP/1.1")


def test_a_deadlock_comes_with_its_circle() -> None:
    body = {"error": "x", "code": "deadlock", "details": "Never.", "cycle": ["a", "x", "b", "y"]}
    with ScriptedServer([reply_of(409, body)]) as server:
        assert transport_to(server).ask(Ask("acquire", "x", {"wait_seconds": 1})).body == body


@pytest.mark.parametrize("session", ["", "nonsense", "../locks", ID + "/x"])
def test_what_is_no_session_id_is_not_sent(session: str) -> None:
    with ScriptedServer([reply_of(200, SESSION)]) as server:
        for verb in ("session-keep", "session-show", "session-end"):
            assert transport_to(server).ask(Ask(verb, session)).status == 400
    assert server.requests == []


def test_names_that_are_not_text_are_not_sent() -> None:
    with ScriptedServer([reply_of(200, QUEUED)]) as server:
        reply = transport_to(server).ask(Ask("acquire-all", "", {"names": ["a", "\udcff"]}))
    assert (reply.status, server.requests) == (400, [])
    assert (reply.body or {})["code"] == "invalid_lock_name"


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("acquire", {"status": "queued", "name": "a"}),
        ("acquire", {"status": "held", "refused": []}),
        ("acquire-any", {"status": "held", "name": "a"}),
        ("acquire-all", {"status": "acquired", "name": "a", **LEASE}),
        ("leave", {"name": "a"}),
        ("transfer", {"name": "a"}),
        ("transfer", {"status": "held", "name": "a"}),
        ("next", {"status": "closed", "name": "a"}),
        ("free", {"name": "a"}),
        ("session-open", {"session_id": ID}),
    ],
)
def test_an_answer_that_lacks_what_it_must_have_is_not_from_dibs(verb: str, body: dict[str, Any]) -> None:
    with ScriptedServer([reply_of(200, body)]) as server:
        reply = transport_to(server).ask(Ask(verb, "" if "-" in verb else "a", {"names": ["a"]}))
    assert "not from dibs" in (reply.body or {})["details"]


def test_a_claim_that_waits_may_take_that_long_and_the_timeout_more() -> None:
    def answer_late(connection: socket.socket) -> None:
        threading.Event().wait(0.4)  # longer than the time-out, shorter than the wait
        connection.sendall(reply_of(200, QUEUED))

    over = threading.Event()

    def never_answer(_: socket.socket) -> None:
        over.wait(60)

    with ScriptedServer([answer_late, never_answer]) as server:
        patient = transport_to(server, timeout_ms=200).ask(
            Ask("acquire", "a", {"wait_seconds": 50, "request_key": "k"})
        )
        hasty = transport_to(server, timeout_ms=200).ask(Ask("acquire", "a", {"request_key": "k"}))
        over.set()
    assert patient.body == QUEUED
    assert "did not answer within 0.2 s" in (hasty.body or {})["details"]


@pytest.mark.parametrize(
    ("verb", "key", "asked"),
    [
        ("leave", None, 3),
        ("free", None, 3),
        ("session-keep", None, 3),
        ("session-end", None, 3),
        ("transfer", None, 1),
        ("transfer", "fresh_lease_id", 3),
        ("session-open", None, 1),
        ("session-open", "fresh_session_id", 3),
    ],
)
def test_what_may_be_repeated_is(verb: str, key: str | None, asked: int) -> None:
    with ScriptedServer([None] * 5) as server:
        document = {} if key is None else {key: ID}
        reply = transport_to(server).ask(Ask(verb, ID if verb.startswith("session-") else "a", document))
    assert len(server.requests) == asked
    assert FATE_UNKNOWN in (reply.body or {})["details"]


@pytest.mark.promise("queue:no-dead-grant")
def test_an_interrupt_hangs_up_so_that_the_server_gives_the_place_up() -> None:
    hung_up = threading.Event()

    def interrupt(connection: socket.socket) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if connection.recv(1) == b"":
            hung_up.set()

    with ScriptedServer([interrupt]) as server:
        with pytest.raises(KeyboardInterrupt):
            transport_to(server).ask(Ask("acquire", "a", {"wait_seconds": 20, "request_key": "k"}))
        assert hung_up.wait(20)


def waiting_claim(lease_id: str, owner: str) -> Acquire:
    return Acquire(
        ns="default",
        name="a",
        principal="local",
        owner=owner,
        ttl_ms=60_000,
        fresh_lease_id=lease_id,
        wait=True,
    )


@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("got_it", [False, True])
def test_giving_up_a_place_in_a_store_gives_up_the_job_that_it_became(got_it: bool) -> None:
    store = MemoryStore(lambda: 1_000_000)
    transport = EmbeddedTransport(lambda: Coordinator(store))
    lease = (transport.ask(Ask("acquire", "a", {"owner": "first"})).body or {})["lease_id"]
    pending = PendingClaim("acquire", "a", {"owner": "bob", "request_key": "k"}, own_key=True)
    drive(transport, pending.ask_once(1))
    if got_it:
        transport.ask(Ask("release", "a", {"lease_id": lease}))
        assert (transport.ask(Ask("inspect", "a")).body or {})["owner"] == "bob"
    assert drive(transport, pending.withdraw())
    found = transport.ask(Ask("inspect", "a")).body or {}
    assert (found["owner"], found["waiting"]) == (None if got_it else "first", 0)


def test_a_claim_in_a_session_that_names_no_owner_is_the_sessions_owners() -> None:
    store = MemoryStore(lambda: 1_000_000)
    transport = EmbeddedTransport(lambda: Coordinator(store))
    first, second = (
        {"session_id": (transport.ask(Ask("session-open", "", {"owner": owner})).body or {})["session_id"]}
        for owner in ("first", "second")
    )
    assert (transport.ask(Ask("acquire", "a", first)).body or {})["owner"] == "first"
    queued = transport.ask(Ask("acquire-all", "", {**second, "names": ["a", "b"], "wait_seconds": 0.001}))
    assert (queued.body or {})["status"] == "queued"
    events = (transport.ask(Ask("history", "a", {"limit": 10})).body or {})["events"]
    assert [(event["event"], event["owner"]) for event in events] == [
        ("acquired", "first"),
        ("queued", "second"),
    ]
    named = transport.ask(Ask("acquire", "named", {**second, "owner": "somebody else"}))
    assert (named.body or {})["owner"] == "somebody else"


@pytest.mark.parametrize(
    ("most", "keep", "found", "goes_on"),
    [
        (None, None, [0, 1, 2, 3, 4], None),
        (None, (1, 4), [1, 4], None),
        (2, None, [0, 1], "job-1"),
        (2, (0, 3, 4), [0, 3], "job-3"),
        (5, None, [0, 1, 2, 3, 4], None),
    ],
)
def test_a_list_follows_its_pages(
    most: int | None, keep: tuple[int, ...] | None, found: list[int], goes_on: str | None
) -> None:
    jobs = [{"name": f"job-{number}", "number": number} for number in range(5)]

    def answer(asked: Any) -> Reply:
        left = [job for job in jobs if str(job["name"]) > asked.document["after"]]
        return Reply(status=200, body={"locks": left[:2], "next": left[1]["name"] if left[2:] else None})

    flow = all_pages("job-", most=most, keep=None if keep is None else lambda job: job["number"] in keep)
    body = run_generator(flow, answer).body or {}
    assert [job["number"] for job in body["locks"]] == found
    assert body["next"] == goes_on


def test_a_list_of_which_a_page_fails_has_failed() -> None:
    replies = iter([Reply(status=200, body={"locks": [], "next": "x"}), Reply(status=503, body={})])
    assert run_generator(all_pages(""), lambda _: next(replies)).status == 503


def test_news_are_heard_of_at_once_and_waited_for_not_for_ever() -> None:
    store = MemoryStore(lambda: 1_000_000)
    transport = EmbeddedTransport(lambda: Coordinator(store))
    transport.news(0)
    transport.news(1)  # nothing happened: the time passes
    transport.ask(Ask("acquire", "a"))
    transport.news(60_000)
    with ScriptedServer([]) as server:
        transport_to(server).news(1)


SEVERAL = {"names": ["a", "b", "c"], "owner": "o", "ttl_seconds": 60, "request_key": "k"}


def transport_with_a_lost_answer() -> EmbeddedTransport:
    """To a store in which the answer to a claim of three jobs was never read, and one of them was broken since."""
    store = MemoryStore(lambda: 1_000)
    transport = EmbeddedTransport(lambda: Coordinator(store))
    transport.ask(Ask("acquire-all", "", SEVERAL))
    transport.ask(Ask("break", "a", {"reason": "stuck"}))
    return transport


@pytest.mark.fault("F-259")
@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize("is_ours", [True, False], ids=["a key of its own", "the user's key"])
def test_a_claim_gives_back_what_an_answer_that_it_never_read_had_given_unless_its_user_knows(is_ours: bool) -> None:
    transport = transport_with_a_lost_answer()
    reply = drive(transport, PendingClaim("acquire-all", "", dict(SEVERAL), own_key=is_ours).claim())
    body = reply.body or {}
    assert [each["name"] for each in body["refused"]] == ["a"]
    assert [each["name"] for each in body.get("rest", [])] == ([] if is_ours else ["b", "c"])
    assert ("still has b, c" in sentence(body)) is not is_ours
    assert "lease id" not in sentence(body), "it is a secret, and sentences are logged"
    for name in ("b", "c"):
        assert (transport.ask(Ask("inspect", name)).body or {})["status"] == ("free" if is_ours else "held")


@pytest.mark.promise("lease:never-early")
def test_who_gives_up_a_claim_with_the_user_s_key_leaves_what_a_refusal_names_to_who_may_have_read_of_it() -> None:
    transport = transport_with_a_lost_answer()
    pending = PendingClaim("acquire-all", "", dict(SEVERAL))
    drive(transport, pending.claim())
    assert drive(transport, pending.withdraw())
    assert (transport.ask(Ask("inspect", "b")).body or {})["status"] == "held"


@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize(
    "why",
    [
        {"code": "upstream_unavailable", "details": FATE_UNKNOWN},
        {"code": "capacity_exceeded", "details": "Try again later.", "retry_after_ms": 1},
    ],
    ids=lambda why: why["code"],
)
def test_a_claim_that_cannot_give_back_the_rest_says_that_it_may_have_it_and_does_so_later(why: dict[str, Any]) -> None:
    transport = transport_with_a_lost_answer()
    away = Reply(status=503, body=why)
    pending = PendingClaim("acquire-all", "", dict(SEVERAL), own_key=True)

    def answer(asked: Any) -> Reply:
        return away if asked.verb == "withdraw" else transport.ask(asked)

    assert run_generator(pending.claim(), answer) is away
    assert drive(transport, pending.withdraw())
    assert (transport.ask(Ask("inspect", "c")).body or {})["status"] == "free"


@pytest.mark.fault("F-464")
@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("for_good", [False, True], ids=["for a moment", "for good"])
def test_who_has_waited_long_enough_leaves_no_place_though_the_server_is_busy_then(for_good: bool) -> None:
    store = MemoryStore(lambda: 1_000_000)
    transport = EmbeddedTransport(lambda: Coordinator(store))
    lease = (transport.ask(Ask("acquire", "a", {"owner": "first"})).body or {})["lease_id"]
    busy = Reply(status=503, body={"code": "capacity_exceeded", "details": "Try again later.", "retry_after_ms": 1})
    steady = iter(range(0, 10**7, 300))
    pending = PendingClaim(
        *("acquire", "a", {"owner": "bob", "request_key": "k"}), own_key=True, wait_ms=1, steady=lambda: next(steady)
    )
    refused: list[Ask] = []

    def answer(asked: Any) -> Reply | None:
        if not isinstance(asked, Ask):
            return None
        if asked.verb == "withdraw" and (for_good or not refused):
            refused.append(asked)
            return busy
        return transport.ask(asked)

    reply = run_generator(pending.claim(), answer)
    if for_good:
        assert reply is busy  # it is not known that nothing is left
        assert drive(transport, pending.withdraw())
    assert len(refused) < 20
    transport.ask(Ask("release", "a", {"lease_id": lease}))
    assert (transport.ask(Ask("inspect", "a")).body or {})["status"] == "free"


@pytest.mark.fault("F-259")
@pytest.mark.promise("same-answer")
def test_a_refusal_that_names_what_is_left_is_read_from_a_server_as_from_a_store() -> None:
    refusal = transport_with_a_lost_answer().ask(Ask("acquire-all", "", SEVERAL))
    undone = {"status": "withdrawn", "left": False, "released": ["b", "c"], "kept": []}
    with ScriptedServer([reply_of(refusal.status, refusal.body), reply_of(200, undone)]) as server:
        pending = PendingClaim("acquire-all", "", dict(SEVERAL), own_key=True)
        reply = drive(transport_to(server), pending.claim())
        assert [each["name"] for each in (reply.body or {}).get("refused", [])] == ["a"]
        assert [request.split()[1] for request in server.requests[1:]] == [b"/locks/withdraw"]


def transport_with_a_session() -> tuple[EmbeddedTransport, str]:
    store = MemoryStore(lambda: 1_000)
    transport = EmbeddedTransport(lambda: Coordinator(store))
    return transport, (transport.ask(Ask("session-open", "", {"owner": "o"})).body or {})["session_id"]


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
@pytest.mark.parametrize("lost", ["some", "all", "the place"])
@pytest.mark.parametrize("told", [True, False], ids=["another is told", "nobody is told"])
def test_a_claim_gives_back_nothing_that_another_process_of_its_session_was_told_of(lost: str, told: bool) -> None:
    """It repeats a claim whose answer was lost, or gives it up, or its place in line, after it had got the jobs."""
    transport, session = transport_with_a_session()
    pending = PendingClaim("acquire-all", "", {**SEVERAL, "session_id": session}, own_key=True)
    if lost == "the place":
        other = (transport.ask(Ask("acquire", "a")).body or {})["lease_id"]
        drive(transport, pending.ask_once(1))
        transport.ask(Ask("release", "a", {"lease_id": other}))
    else:
        drive(transport, pending.ask_once())
    if lost == "some":
        transport.ask(Ask("break", "a", {"reason": "stuck"}))

    def answer(asked: Any) -> Reply:
        if told and asked.verb == "withdraw":  # it comes late
            claimed = transport.ask(Ask("acquire", "b", {"session_id": session, "request_key": "other"}))
            assert (claimed.body or {})["held_before"] is True
        return transport.ask(asked)

    if lost == "some":
        reply = run_generator(pending.claim(), answer)
        assert "rest" not in (reply.body or {})
    else:
        assert run_generator(pending.withdraw(), answer)
    states = [(transport.ask(Ask("inspect", name)).body or {})["status"] for name in ("a", "b", "c")]
    assert states == ["free", "held" if told else "free", "free"]


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
def test_a_claim_takes_a_new_key_when_what_it_was_given_is_withdrawn() -> None:
    """A withdrawal that is still under way cannot take what the next answer gives: that is another ask's."""
    refusal = transport_with_a_lost_answer().ask(Ask("acquire-all", "", SEVERAL))
    away = Reply(status=503, body={"code": "upstream_unavailable", "details": FATE_UNKNOWN})
    undone = Reply(200, {"status": "withdrawn", "left": False, "released": [], "kept": []})
    replies = [away, refusal, away, refusal, undone, Reply(200, {"status": "held", "refused": []})]
    asked: list[tuple[str, str]] = []

    def answer(step: Any) -> Reply | None:
        if not isinstance(step, Ask):
            return None
        asked.append((step.verb, step.document["request_key"]))
        return replies.pop(0)

    document = dict(SEVERAL)
    run_generator(PendingClaim("acquire-all", "", document, own_key=True, wait_ms=60_000).claim(), answer)
    claim, undo = ("acquire-all", SEVERAL["request_key"]), ("withdraw", SEVERAL["request_key"])
    assert asked == [claim, claim, undo, claim, undo, ("acquire-all", document["request_key"])]
    assert document["request_key"] != SEVERAL["request_key"]
