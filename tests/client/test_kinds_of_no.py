"""What a client does after a no follows from its kind: go on waiting, ask another server, or tell the caller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dibs.base.errors import ServerUnreachable
from dibs.base.reply import Reply
from dibs.client.exchange import ask_servers
from dibs.client.flow import POLL_MS_MAX, Pause, StillWaiting, patiently
from dibs.client.pending import PendingClaim
from dibs.client.requests import RequestBuilder
from dibs.client.servers import Servers
from dibs.client.transport import ANYWHERE, Ask
from dibs.client.urls import server_address
from dibs.core.limits import TICKET_MS
from dibs.wire.codes import CODES, NOT_NOW, OUTCOMES, kind_of_word
from dibs.wire.documents import reply_for_error

TICKET = "1.00000000.00000000-0000-4000-8000-000000000000"
QUEUED = Reply(200, {"status": "queued", "name": "a", "ticket": TICKET, "position": 1, "owner": "bob"})
GRANTED = Reply(200, {"status": "acquired", "name": "a", "lease_id": "x"})
AWAY = reply_for_error(ServerUnreachable("No server answers."), sent=False)
LOST = reply_for_error(ServerUnreachable("It hung up. Whether it was carried out is not known."))
VERBS = ("acquire", "acquire-all", "acquire-any")


def refused(code: str) -> Reply:
    return Reply(CODES[code].http, {"code": code, "error": CODES[code].title, "details": "why"})


def waited(verb: str, replies: list[Reply], last: Reply = GRANTED, *, wait_ms: int = 60_000) -> tuple[Reply, int, int]:
    """The reply to a claim that waits, after how many questions and milliseconds. Each question takes 10 ms."""
    now_ms = asked = 0
    document: dict[str, Any] = {"request_key": "k", "names": ["a", "b"]} if verb != "acquire" else {"request_key": "k"}
    claim = PendingClaim(verb, "a", document, own_key=True, wait_ms=wait_ms, steady=lambda: now_ms)
    flow = claim.wait()
    answer: Any = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as end:
            return end.value, asked, now_ms
        answer = None
        if isinstance(step, Ask):
            asked, now_ms = asked + 1, now_ms + 10
            answer = replies.pop(0) if replies else last
        elif isinstance(step, Pause):
            assert 0 < step.ms <= POLL_MS_MAX or step.ms == 7_000
            now_ms += step.ms
        else:
            assert isinstance(step, StillWaiting)


@pytest.mark.fault("F-282")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("code", [code for code, row in CODES.items() if row.kind == NOT_NOW])
def test_who_waits_goes_on_at_not_now_until_the_wait_is_over(verb: str, code: str) -> None:
    reply, asked, _ = waited(verb, [refused(code)] * 5)
    assert (reply, asked) == (GRANTED, 6)
    reply, asked, took_ms = waited(verb, [], refused(code))
    assert reply.body == refused(code).body
    assert 60_000 <= took_ms < 61_000
    assert asked < 50  # politely
    later = Reply(503, {"code": code, "retry_after_ms": 7_000})
    if verb != "acquire-any":
        assert waited(verb, [later, later])[2] == 14_030  # as the server says


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("code", [code for code, row in CODES.items() if row.kind != NOT_NOW])
def test_who_waits_ends_at_any_other_error(verb: str, code: str) -> None:
    reply, asked, _ = waited(verb, [] if verb == "acquire-any" else [QUEUED], refused(code))
    assert (reply.body, asked) == (refused(code).body, 1 if verb == "acquire-any" else 2)


@pytest.mark.parametrize("verb", VERBS)
def test_where_nobody_ever_answered_the_address_may_be_wrong(verb: str) -> None:
    assert waited(verb, [], AWAY)[:2] == (AWAY, 1)


@pytest.mark.fault("F-282")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("first", [refused("draining"), LOST], ids=["answered", "answer lost"])
def test_a_server_that_was_there_is_waited_for_longer_than_a_place_lasts(verb: str, first: Reply) -> None:
    reply, _, took_ms = waited(verb, [first, *[AWAY] * 30])
    assert reply is GRANTED
    assert took_ms > TICKET_MS


def test_the_jobs_of_several_are_waited_for_while_their_kind_may_pass() -> None:
    def held(*words: str) -> Reply:
        entries = [{"name": word, "code" if word in CODES else "status": word} for word in words]
        return Reply(200, {"status": "held", "refused": entries})

    words = [*{row.word: None for row in OUTCOMES.values() if row.kind is not None}, "invented_tomorrow"]
    for word in words:
        may_come = kind_of_word(word) in ("not_yet", "not_now")
        assert (waited("acquire-any", [held(word)])[0] is GRANTED) == may_come, word
        assert waited("acquire-any", [held(word, "held")])[0] is GRANTED, word
        assert (waited("acquire-all", [QUEUED, held(word, "held")])[0] is GRANTED) == may_come, word


SERVERS = tuple(server_address(f"http://127.0.0.1:{port}") for port in (1, 2, 3))


def exchanged(asked: Ask, replies: dict[int, Reply]) -> tuple[Reply, list[int]]:
    """The reply from several servers, and which of them were asked in turn."""
    flow = ask_servers(Servers(SERVERS), RequestBuilder(Servers(SERVERS), naming=ANYWHERE, keep=False), asked, 10_000)
    tried: list[int] = []
    attempts = next(flow)
    while True:
        port = SERVERS.index(attempts.address) + 1
        tried.append(port)
        try:
            attempts = flow.send(replies[port])
        except StopIteration as end:
            return end.value, tried


def sent(http: int, **body: Any) -> Reply:
    return Reply(http, content=json.dumps(body).encode(), headers={"x-dibs-store": "s"})


CLAIM = Ask("acquire", "a", {"request_key": "k"})
HELD = {"status": "held", "name": "a", "owner": "bob", "remaining_ms": 5}


@pytest.mark.fault("F-283")
@pytest.mark.parametrize("code", CODES)
def test_trouble_of_one_server_s_own_is_no_answer_of_the_job_s(code: str) -> None:
    troubled = sent(CODES[code].http, code=code, details="why")
    reply, tried = exchanged(CLAIM, {1: troubled, 2: sent(200, **HELD), 3: sent(200, **HELD)})
    if CODES[code].kind == NOT_NOW:
        assert ((reply.body or {}).get("status"), tried) == ("held", [1, 2])
        again = {port: sent(CODES[code].http, code=code, details="why") for port in (1, 2, 3)}
        reply, tried = exchanged(CLAIM, again)
        assert ((reply.body or {})["code"], tried) == (code, [1, 2, 3])
    else:
        assert ((reply.body or {})["code"], tried) == (code, [1])


def test_what_may_not_be_done_twice_is_not_asked_again_of_a_server_that_may_have_done_it() -> None:
    replies = {port: sent(500, code="internal_error", details="why") for port in (1, 2, 3)}
    reply, tried = exchanged(Ask("break", "a", {"reason": "r"}), replies)
    assert tried == [1]
    assert "not known" in (reply.body or {})["details"]
    replies = {port: sent(503, code="draining", details="why") for port in (1, 2, 3)}
    assert exchanged(Ask("break", "a", {"reason": "r"}), replies)[1] == [1, 2, 3]


def test_what_is_asked_patiently_is_asked_again_at_not_now_and_only_then() -> None:
    def replied(replies: list[Reply], *, until_ms: int | None, heard: bool = False) -> tuple[Reply, int]:
        flow, answer, asked = patiently(CLAIM, until_ms, heard=heard), None, 0
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return end.value, asked
            answer = None
            if isinstance(step, Ask):
                answer, asked = replies[asked], asked + 1

    busy = refused("draining")
    assert replied([busy, AWAY, busy, GRANTED], until_ms=None) == (GRANTED, 4)
    assert replied([AWAY, GRANTED], until_ms=None) == (AWAY, 1)
    assert replied([AWAY, GRANTED], until_ms=None, heard=True) == (GRANTED, 2)
    assert replied([busy, GRANTED], until_ms=0) == (busy, 1)
    assert replied([refused("forbidden"), GRANTED], until_ms=None, heard=True)[1] == 1
