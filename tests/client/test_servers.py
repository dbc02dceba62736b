"""Which of several servers is asked, and what comes after one that failed. No I/O: a script in place of the network."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import FATE_UNKNOWN, DibsError, InvalidInput
from dibs.base.generators import run_generator
from dibs.base.http1 import ConnectionLost
from dibs.client import exchange
from dibs.client.connection import DO_NOT_BEGIN, NotConnected, TimedOut
from dibs.client.exchange import Attempts, ask_servers
from dibs.client.pending import PendingClaim
from dibs.client.requests import RequestBuilder
from dibs.client.servers import AWAY_MS, PATIENCE_MS, SLICE_MS, STAYS_MS, STORE_MS, Servers
from dibs.client.transport import ANYWHERE, Ask
from dibs.client.urls import server_addresses
from dibs.wire.documents import Reply, reply_for_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.urls import ServerAddress

A, B, C = "http://a:1", "http://b:2", "http://c:3"
LIST = ",".join((A, B, C))
GRANTED = {
    "status": "acquired",
    "name": "job",
    "lease_id": "00000000-0000-4000-8000-000000000000",
    "fencing_token": 1,
    "owner": "o",
    "expires_at": "2025-11-15T02:16:05.123Z",
    "remaining_ms": 60_000,
    "renew_after_ms": 30_000,
    "metadata": None,
}
DRAINING = {"error": "Draining", "code": "draining", "details": "This server is about to end."}
NO_STORE = {"error": "x", "code": "upstream_unavailable", "details": "The store is gone."}
LOST_WRITE = {**NO_STORE, "details": f"The store is gone. {FATE_UNKNOWN}"}
CLAIM = {"request_key": "k"}


def raw(status: int, body: dict[str, Any], **headers: str) -> Reply:
    return Reply(status, headers=headers, content=json.dumps(body).encode())


def refused() -> NotConnected:
    return NotConnected("No server answers there.")


def silent() -> TimedOut:
    return TimedOut("It did not answer.", sent=True)


def servers(url: str = LIST, chance: float = 0.0) -> Servers:
    return Servers(server_addresses(url), chance)


class Network:
    """What each server does with the next attempt; its last entry repeats for ever. Time passes in attempts that are
    not answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **does: list[Callable[[], Any]]) -> None:
        self.now_ms = 1_000_000
        self.attempts: list[SimpleNamespace] = []
        self._does = does
        monkeypatch.setattr(exchange, "steady_ms", lambda: self.now_ms)
        monkeypatch.setattr("dibs.client.requests.steady_ms", lambda: self.now_ms)

    def __call__(self, attempt: Attempts) -> Any:
        made = SimpleNamespace(address=attempt.address, request=attempt.request, timeout_ms=attempt.timeout_ms)
        self.attempts.append(made)
        steps = self._does[attempt.address.host]
        got = (steps.pop(0) if len(steps) > 1 else steps[0])()
        if isinstance(got, TimedOut):
            self.now_ms += attempt.timeout_ms
        return got

    @property
    def asked(self) -> str:
        return "".join(attempt.address.host for attempt in self.attempts)

    def ask(
        self,
        several: Servers,
        verb: str = "acquire",
        document: dict[str, Any] = CLAIM,
        timeout_ms: int = 10_000,
    ) -> Reply:
        builder = RequestBuilder(several, naming=ANYWHERE, keep=False)
        asked = Ask(verb, "job", document)
        try:
            return run_generator(ask_servers(several, builder, asked, timeout_ms), self)
        except DibsError as error:
            return reply_for_error(error, sent=not isinstance(error, NotConnected))


def granted() -> Reply:
    return raw(200, GRANTED)


def details(reply: Reply) -> str:
    return str((reply.body or {})["details"])


# Who comes first


@pytest.mark.parametrize(("chance", "first"), [(0.0, A), (0.34, B), (0.99, C)])
def test_chance_says_who_is_asked_first(chance: float, first: str) -> None:
    assert servers(chance=chance).order(0)[0].url == first


def test_a_client_stays_with_the_one_that_answered_and_picks_again_after_a_while() -> None:
    several = servers(chance=0.0)
    several.order(0)
    several.answered(several.addresses[1], 10)
    assert [each.url for each in several.order(20)] == [B, C, A]
    assert several.order(10 + STAYS_MS - 1)[0].url == B
    assert several.order(10 + STAYS_MS)[0].url == A


def test_one_that_failed_is_asked_last_for_a_while_and_never_left_out() -> None:
    several = servers()
    several.order(0)
    several.failed(several.addresses[0], 0)
    assert [each.url for each in several.order(1)] == [B, C, A]
    several.failed(several.addresses[1], 1)
    several.failed(several.addresses[2], 2)
    assert [each.url for each in several.order(3)] == [A, B, C], "the one that failed first may be back first"
    assert [each.url for each in several.order(AWAY_MS)] == [A, B, C]


def test_many_clients_spread_over_all_servers() -> None:
    firsts = [servers(chance=number / 30).order(0)[0].url for number in range(30)]
    assert {url: firsts.count(url) for url in (A, B, C)} == {A: 10, B: 10, C: 10}


# What comes after one that failed


@pytest.mark.promise("servers:failover")
@pytest.mark.parametrize(
    "fails",
    [
        refused,
        silent,
        ConnectionLost,
        lambda: raw(503, DRAINING),
        lambda: raw(503, NO_STORE),
        lambda: raw(503, LOST_WRITE),
        lambda: Reply(502, content=b"<html>"),
    ],
)
def test_a_claim_goes_to_the_next_server_unchanged(monkeypatch: pytest.MonkeyPatch, fails: Callable[[], Any]) -> None:
    network = Network(monkeypatch, a=[fails], b=[granted], c=[granted])
    several = servers()
    assert network.ask(several).body == GRANTED
    assert network.asked == "ab"
    bodies = {attempt.request.partition(b"\r\n\r\n")[2] for attempt in network.attempts}
    assert bodies == {b'{"request_key":"k"}'}
    network.ask(several)
    assert network.asked == "abb", "it stays there"


def test_an_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"error": "x", "code": "forbidden", "details": "x"}
    network = Network(monkeypatch, a=[lambda: raw(403, body)], b=[granted], c=[granted])
    assert network.ask(servers()).status == 403
    assert network.asked == "a"


@pytest.mark.parametrize("verb", ["break", "transfer", "acl", "acquire"])
@pytest.mark.parametrize(
    ("fails", "asked"),
    [
        (refused, "ab"),
        (lambda: raw(503, DRAINING), "ab"),
        (lambda: raw(503, NO_STORE), "ab"),
        (silent, "a"),
        (ConnectionLost, "a"),
        (lambda: raw(503, LOST_WRITE), "a"),
        (lambda: Reply(502), "a"),
    ],
)
def test_what_may_not_happen_twice_goes_on_only_if_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch, verb: str, fails: Callable[[], Any], asked: str
) -> None:
    no = raw(403, {"error": "x", "code": "forbidden", "details": "x"})
    network = Network(monkeypatch, a=[fails], b=[lambda: no], c=[lambda: no])
    reply = network.ask(servers(), verb, {})
    assert network.asked == asked
    if asked == "a" and not isinstance(fails(), Reply):
        assert FATE_UNKNOWN in details(reply)


def test_a_connection_that_broke_is_tried_again_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=[ConnectionLost, granted], b=[refused], c=[refused])
    assert network.ask(servers()).status == 200
    assert network.asked == "abca"


def test_when_nobody_answers_all_of_them_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {
        host: NotConnected(f"No server answers at {host}. Do not begin the work; try again later.") for host in "abc"
    }
    network = Network(monkeypatch, a=[lambda: errors["a"]], b=[lambda: errors["b"]], c=[lambda: errors["c"]])
    reply = network.ask(servers())
    assert details(reply) == (f"No server answers at a. No server answers at b. No server answers at c. {DO_NOT_BEGIN}")
    assert not reply.sent


def test_a_claim_that_may_have_been_made_somewhere_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for last in (refused, lambda: raw(503, DRAINING)):
        network = Network(monkeypatch, a=[silent], b=[refused], c=[last])
        reply = network.ask(servers())
        assert FATE_UNKNOWN in details(reply)
        assert reply.sent


# How long one is waited for


def test_one_that_hangs_is_left_while_there_is_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=[silent], b=[silent], c=[granted])
    assert network.ask(servers(), timeout_ms=900).status == 200
    assert [attempt.timeout_ms for attempt in network.attempts] == [300, 300, 300]
    network = Network(monkeypatch, a=[silent], b=[silent], c=[granted])
    network.ask(servers(), timeout_ms=30_000)
    assert [attempt.timeout_ms for attempt in network.attempts] == [PATIENCE_MS, PATIENCE_MS, 26_000]


def test_one_server_alone_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=[silent])
    reply = network.ask(servers(A))
    assert [attempt.timeout_ms for attempt in network.attempts] == [10_000]
    assert FATE_UNKNOWN in details(reply)


def test_one_of_several_is_asked_to_wait_only_so_long_that_a_hung_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = {**CLAIM, "wait_seconds": 20}
    network = Network(monkeypatch, a=[silent], b=[silent], c=[granted])
    network.ask(servers(), document=waits)
    asked = [json.loads(attempt.request.partition(b"\r\n\r\n")[2])["wait_seconds"] for attempt in network.attempts]
    assert asked == [SLICE_MS / 1000, 1, 1]
    assert network.attempts[0].timeout_ms == SLICE_MS + PATIENCE_MS
    network = Network(monkeypatch, a=[granted])
    network.ask(servers(A), document=waits)
    assert json.loads(network.attempts[0].request.partition(b"\r\n\r\n")[2])["wait_seconds"] == 20


@pytest.mark.promise("queue:fifo")
def test_a_waiter_takes_its_ticket_to_the_next_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = "default/1/00000000-0000-4000-8000-000000000000/job"
    queued = {"status": "queued", "name": "job", "ticket": ticket, "position": 1}
    queued |= {"owner": "other", "remaining_ms": 1_000, "retry_after_ms": 1_000}
    network = Network(monkeypatch, a=[lambda: raw(200, queued), silent], b=[granted], c=[refused])
    monkeypatch.setattr("dibs.client.pending.steady_ms", lambda: network.now_ms)
    several = servers()
    flow = PendingClaim("acquire", "job", {"request_key": "k"}, wait_ms=60_000).wait()
    reply = run_generator(
        flow, lambda step: network.ask(several, "acquire", step.document) if isinstance(step, Ask) else None
    )
    assert (reply.body or {})["status"] == "acquired"
    assert network.asked == "aab"
    assert [ticket.encode() in attempt.request for attempt in network.attempts] == [False, True, True]


# Tokens, headers, stores


def test_each_server_is_sent_its_own_token_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    several = servers()
    several.addresses[0].token = "for-a"
    network = Network(monkeypatch, a=[refused], b=[granted])
    network.ask(several)
    assert [b"for-a" in attempt.request for attempt in network.attempts] == [True, False]


def test_only_a_client_of_several_says_that_it_has_others_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=[granted])
    network.ask(servers())
    network.ask(servers(A))
    assert [b"\r\nX-Dibs-Servers: 3\r\n" in attempt.request for attempt in network.attempts] == [True, False]


@pytest.mark.promise("servers:one-store")
def test_a_server_of_another_store_is_told_which_store_is_meant_and_its_answer_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = servers()
    misdirected = raw(421, {"error": "x", "code": "invalid_input", "details": "x"}, **{"x-dibs-store": "two"})
    ours = raw(200, GRANTED, **{"x-dibs-store": "one"})
    network = Network(monkeypatch, a=[lambda: ours, refused], b=[lambda: misdirected])
    assert network.ask(several).status == 200
    reply = network.ask(several)
    assert b"\r\nX-Dibs-Store: one\r\n" in network.attempts[-1].request
    assert (reply.status, network.asked) == (400, "aab")
    assert details(reply).startswith(f"{B} serves another store than {A}, so nothing was done there.")


def test_an_answer_from_another_store_is_refused_also_if_the_server_did_not_look() -> None:
    several = servers()
    several.heard(several.addresses[0], 200, {"x-dibs-store": "one"}, 0)
    with pytest.raises(InvalidInput, match="another store"):
        several.heard(several.addresses[1], 200, {"x-dibs-store": "two"}, 1)


def test_a_store_that_was_replaced_is_accepted_after_a_while() -> None:
    several = servers()
    several.heard(several.addresses[0], 200, {"x-dibs-store": "one"}, 0)
    several.heard(several.addresses[1], 200, {"x-dibs-store": "one"}, STORE_MS - 1)
    with pytest.raises(InvalidInput):
        several.heard(several.addresses[1], 200, {"x-dibs-store": "two"}, 2 * STORE_MS - 2)
    several.heard(several.addresses[1], 200, {"x-dibs-store": "two"}, 2 * STORE_MS)


def test_a_server_that_says_nothing_of_its_store_is_believed() -> None:
    several = servers()
    several.heard(several.addresses[0], 200, {"x-dibs-store": "one"}, 0)
    several.heard(several.addresses[1], 200, {}, 1)


def test_one_server_alone_may_serve_what_it_likes() -> None:
    alone = servers(A)
    for store in ("one", "two"):
        alone.heard(alone.addresses[0], 200, {"x-dibs-store": store}, 0)
    assert alone.store_id(0) is None


# Lists


def urls(found: tuple[ServerAddress, ...]) -> list[str]:
    return [each.url for each in found]


def test_a_list_may_mix_sockets_and_hosts_and_have_blanks() -> None:
    assert urls(server_addresses(f"{A} , unix:///run/dibs.sock,{B}")) == [A, "unix:///run/dibs.sock", B]


@pytest.mark.parametrize("url", ["sqlite:///a,b.db", "etcd://h1:2379,h2:2379/p", "postgresql://h1,h2/db", "git:origin"])
def test_the_url_of_a_store_may_have_commas(url: str) -> None:
    assert server_addresses(url) == ()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"{A},", "has an empty part"),
        (f",{A}", "has an empty part"),
        (f"{A},,{B}", "has an empty part"),
        (f"{A},{A}", "is in the list twice"),
        ("http://a:80,http://A", "is in the list twice"),
        (f"{A},http://a:1/", "is in the list twice"),
        (f"{A},sqlite:///x.db", "is not a server, and a list names servers only"),
        (f"sqlite:///x.db,{A}", "is not a server, and a list names servers only"),
        (f"{A},b:3427", "Did you mean http://b:3427"),
        (f"{A},nonsense", "is not a server"),
        (f"{A},http://:99999", "port"),
        (f"{A},http://user:secret@b", "carries no user or password"),
        (f"https://a,{B}", "Use https:// for all of them"),
    ],
)
def test_a_list_with_something_wrong_in_it_is_refused_as_a_whole(url: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        server_addresses(url)
    assert says in caught.value.details
    assert "secret" not in caught.value.details


def test_a_socket_or_this_machine_may_stand_beside_https() -> None:
    assert len(server_addresses("https://a,http://127.0.0.1:3427,unix:///run/dibs.sock")) == 3
