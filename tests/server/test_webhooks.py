"""Fields and codes of webhooks: of the routes, and of deliveries to a real target on this machine."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.core.limits import WEBHOOKS_PER_PRINCIPAL_MAX
from dibs.engine.webhooks import TargetPolicy
from dibs.engine.webhooks.sender import Resolver, Sender
from dibs.stores.memory import MemoryStore
from tests.server.harness import Server, running, wait_until
from tests.server.webhook_target import HOST, OK, HookTarget, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ANSWER_MS = 1_500


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HookTarget, Callable[..., Sender]]]:
    with listening(tmp_path_factory.mktemp("hook")) as (target, trusted):

        def sender(**limits: int) -> Sender:
            resolver = Resolver(lambda host, port: ["127.0.0.1"] if host == HOST else ["10.0.0.1"])
            return Sender(TargetPolicy(private=True, ca=str(trusted)), resolver, **limits)

        yield target, sender


@pytest.fixture(scope="module")
def target(hook: tuple[HookTarget, Callable[..., Sender]]) -> HookTarget:
    return hook[0]


@pytest.fixture(scope="module")
def server(
    hook: tuple[HookTarget, Callable[..., Sender]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with running(folder, store=MemoryStore(wall_ms), real_time=True, webhook_sender=hook[1]) as found:
        yield found


@pytest.fixture
def hasty(hook: tuple[HookTarget, Callable[..., Sender]], tmp_path: Path) -> Iterator[Server]:
    """A server that waits for no answer for long."""
    sender = partial(hook[1], answer_ms=ANSWER_MS)
    with running(tmp_path, store=MemoryStore(wall_ms), real_time=True, webhook_sender=sender) as found:
        yield found


@pytest.fixture
def path(name: str) -> str:
    return f"/{name}"


class Hook:
    """A webhook that is removed at the end of its test."""

    def __init__(self, server: Server, url: str, who: str = "agent", **fields: Any) -> None:
        reply = server.ask("POST", "/webhooks", {"url": url, **fields}, who=who)
        assert reply.status == 201, reply.json
        self.id: str = reply.json["id"]
        self.document = reply.json
        self._server, self._who = server, who

    def ask(self, method: str, tail: str = "", body: Any = None, who: str | None = None) -> Any:
        return self._server.ask(method, f"/webhooks/{self.id}{tail}", body, who=who or self._who)

    def shown(self, tail: str = "") -> Any:
        return self.ask("GET", tail).json

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("DELETE")


@pytest.mark.promise("webhook:at-least-once")
def test_a_claim_and_its_release_are_delivered_with_octostores_fields_and_both_signatures(
    server: Server, target: HookTarget, name: str, path: str
) -> None:
    with Hook(server, target.url(path), secret="s3cret", lock_pattern=name) as hook:
        assert hook.document["secret"] == "****"
        lease = server.lease(name, owner="worker-1")
        server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
        server.lease(f"{name}-other")
        target.wait(lambda: len(target.to(path)) >= 2)
    taken, released = target.to(path)
    held = {"event": "acquired", "lock": name, "fencing_token": 1, "owner": "worker-1", "kind": "acquired"}
    assert taken.json.items() >= held.items()
    assert taken.json["holder_id"]
    assert taken.json["timestamp"].endswith("Z")
    assert taken.json["id"] == taken.id
    assert released.id > taken.id
    assert released.json["event"] == "released"
    assert taken.headers["user-agent"].startswith("dibs-webhook/")
    assert taken.headers["host"] == f"{HOST}:{target.port}"
    signed = hmac.new(b"s3cret", taken.body, hashlib.sha256).hexdigest()
    assert taken.headers["x-octostore-signature"] == f"sha256={signed}"
    at, _, ours = taken.headers["x-dibs-signature"].partition(",v1=")
    assert abs(int(at.removeprefix("t=")) - time.time()) < 60
    text = at.removeprefix("t=").encode() + b"." + taken.body
    assert ours == hmac.new(b"s3cret", text, hashlib.sha256).hexdigest()
    assert "lease_id" not in taken.json


def test_one_connection_serves_many_deliveries(server: Server, target: HookTarget, name: str, path: str) -> None:
    with Hook(server, target.url(path), lock_pattern=name):
        before = target.connections
        for _ in range(20):
            server.ask("POST", f"/locks/{name}/release", {"lease_id": server.lease(name)})
        target.wait(lambda: len(target.to(path)) >= 40)
        assert target.connections - before < 5
    assert [each.id for each in target.to(path)] == sorted(each.id for each in target.to(path))


def test_what_a_target_says_without_being_asked_is_no_answer_to_the_next_delivery(
    server: Server, target: HookTarget, name: str, path: str
) -> None:
    target.answers[path] = OK + b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
    with Hook(server, target.url(path), lock_pattern=name):
        for _ in range(5):
            server.ask("POST", f"/locks/{name}/release", {"lease_id": server.lease(name)})
        target.wait(lambda: len(target.to(path)) >= 10)
        assert {each.headers["x-dibs-try"] for each in target.to(path)} == {"1"}


@pytest.mark.promise("webhook:ordered")
def test_a_job_whose_delivery_fails_keeps_its_order_and_holds_up_no_other_job(
    server: Server, target: HookTarget, name: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = f"{name}-good", f"{name}-bad"
    target.refused.add(bad)
    counted = server.engine.metrics.deliveries
    before = dict(counted)
    with Hook(server, target.url(path), lock_pattern=f"{name}*") as hook:
        lease = server.lease(bad)
        target.wait(lambda: len(target.to(path)) >= 1)
        server.ask("POST", f"/locks/{bad}/release", {"lease_id": lease})
        server.lease(good)
        target.wait(lambda: good in [each.json["lock"] for each in target.to(path)], "the other job")
        target.refused.discard(bad)
        target.wait(lambda: target.to(path)[-1].json["event"] == "released", "the job that was refused")
        wait_until(lambda: hook.shown()["waiting"] == 0, "all is delivered")
        log = hook.shown("/deliveries")
    # Other webhooks of this server may have been served meanwhile.
    assert counted["delivered"] - before["delivered"] >= 3
    assert counted["failed"] - before["failed"] >= 1
    wait_until(lambda: server.engine.dispatcher.rounds.jobs_waiting == 0, "nothing waits")
    assert f"webhook {hook.id}: a delivery failed, and is tried again: answered 500" in caplog.text
    told = [each for each in target.to(path) if each.json["lock"] == bad]
    tries = len(told) - 1  # of the first event
    assert len(target.to(path)) == len(told) + 1
    assert [each.json["event"] for each in told] == ["acquired"] * tries + ["released"]
    assert [int(each.headers["x-dibs-try"]) for each in told] == [*range(1, tries + 1), 1]
    failed = [(number, 500, "answered 500") for number in range(1, tries)]
    logged = Counter((each["try"], each["status"], each["error"]) for each in log["deliveries"])
    assert logged == Counter([(1, 200, None), (1, 200, None), (tries, 200, None), *failed])


@pytest.mark.promise("webhook:bounded")
def test_a_target_that_hangs_drips_redirects_or_closes_holds_up_no_other_webhook(
    hasty: Server, target: HookTarget, name: str, path: str
) -> None:
    moved = f"HTTP/1.1 302 Found\r\nLocation: {target.url('/elsewhere')}\r\nContent-Length: 0\r\n\r\n"
    endless = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000
    target.answers |= {
        f"{path}-hang": target.hang,
        f"{path}-drip": target.drip,
        f"{path}-move": moved.encode(),
        f"{path}-shut": lambda connection: None,
        f"{path}-long": endless,
        f"{path}-junk": b"SSH-2.0-hello\r\n\r\n",
    }
    said = {
        "hang": "no answer within 1 s",
        "drip": "no answer within 1 s",
        "move": "answered 302; redirects are not followed",
        "shut": "the target closed the connection without an answer",
        "long": "the head of the answer is too large",
        "junk": "the answer is not HTTP",
    }
    hooks = {each: Hook(hasty, target.url(f"{path}-{each}"), lock_pattern=name) for each in said}
    with Hook(hasty, target.url(path), lock_pattern=name):
        hasty.lease(name)
        target.wait(lambda: bool(target.to(path)), "the one that answers, while the others hang")
        for each, error in said.items():
            hook = hooks[each]

            def has_said(hook: Hook = hook, error: str = error) -> bool:
                """At any try: a machine that stands still lets the time of the first one pass."""
                return error in [tried["error"] for tried in hook.shown("/deliveries")["deliveries"]]

            wait_until(has_said, each)
            log = hook.shown("/deliveries")
            assert log["waiting"][0]["name"] == name
            assert log["waiting"][0]["tries"] >= 1
    for hook in hooks.values():
        assert hook.ask("DELETE").status == 204
    assert not target.to("/elsewhere")


def test_an_answer_counts_by_its_status_even_if_its_body_never_ends(
    server: Server, target: HookTarget, name: str, path: str
) -> None:
    target.answers[path] = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\nabc"
    with Hook(server, target.url(path), lock_pattern=name) as hook:
        server.lease(name)
        wait_until(lambda: hook.shown()["delivered"] == 1, "delivered")


def test_a_target_that_asks_for_a_rest_gets_it_and_the_log_says_so(
    server: Server, target: HookTarget, name: str, path: str
) -> None:
    target.answers[path] = b"HTTP/1.1 429 Slow down\r\nRetry-After: 1200\r\nContent-Length: 0\r\n\r\n"
    with Hook(server, target.url(path), lock_pattern=f"{name}*") as hook:
        server.lease(name)
        wait_until(lambda: hook.shown("/deliveries")["deliveries"], "the log of the first try")
        server.lease(f"{name}-2")
        wait_until(lambda: len(hook.shown("/deliveries")["waiting"]) == 2, "the second job")
        shown = hook.shown("/deliveries")
        assert [each["error"] for each in shown["deliveries"]] == ["answered 429; it asks to wait 20m"]
        waiting = {each["name"]: each for each in shown["waiting"]}
        assert (waiting[name]["tries"], waiting[f"{name}-2"]["tries"]) == (1, 0)
        assert len(target.to(path)) == 1
        target.answers.pop(path)
        hook.ask("POST", "/replay", {})
        wait_until(lambda: len(target.to(path)) >= 3, "both, after a replay")


def test_what_is_sent_again_after_a_replay_begins_after_the_event_that_is_named(
    server: Server, target: HookTarget, name: str, path: str
) -> None:
    with Hook(server, target.url(path), lock_pattern=name) as hook:
        for _ in range(2):
            server.ask("POST", f"/locks/{name}/release", {"lease_id": server.lease(name)})
        target.wait(lambda: len(target.to(path)) == 4)
        ids = [each.id for each in target.to(path)]
        assert hook.ask("POST", "/replay", {"after": ids[1]}).status == 200
        target.wait(lambda: len(target.to(path)) >= 6, "the last two, once more")
        assert [each.id for each in target.to(path)] == [*ids, *ids[2:]]
        assert hook.ask("POST", "/replay", {"after": -1}).status == 422


def test_a_test_says_what_the_target_answered(server: Server, target: HookTarget, path: str) -> None:
    with Hook(server, target.url(path)) as hook:
        said = hook.ask("POST", "/test").json
        assert said["delivered"]
        assert said["status"] == 200
        assert said["error"] is None
        assert target.to(path)[0].json["event"] == "test"
        target.answers[path] = b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n"
        assert hook.ask("POST", "/test").json["error"] == "answered 404"


@pytest.mark.promise("webhook:scope")
def test_a_webhook_gets_events_of_its_own_namespace_only_and_others_do_not_see_it(
    server: Server, target: HookTarget, name: str, path: str
) -> None:
    with Hook(server, target.url(path), who="scoped") as scoped:
        server.lease(name)
        server.acquire(name, who="bob-b")
        server.acquire(name, who="bob-a")
        target.wait(lambda: bool(target.to(path)))
        assert [each.json["namespace"] for each in target.to(path)] == ["team-a"]
        assert scoped.ask("GET", who="agent").status == 404
        assert scoped.ask("DELETE", who="bob-a").status == 404
        assert scoped.ask("GET", who="operator").status == 200
        assert scoped.ask("GET", who="operator-a").status == 200
        assert scoped.id not in str(server.ask("GET", "/webhooks").json)
        assert scoped.id in str(server.ask("GET", "/webhooks", who="operator-a").json)
        assert server.ask("GET", "/webhooks", who="viewer").status == 403
    foreign = server.ask("POST", "/webhooks?namespace=team-b", {"url": target.url(path)}, who="scoped")
    assert foreign.status == 403


def test_a_secret_is_shown_by_no_answer_and_no_event(server: Server, target: HookTarget, path: str) -> None:
    with Hook(server, target.url(path), secret="tell-nobody-this") as hook:
        answers = [
            hook.document,
            hook.shown(),
            hook.shown("/deliveries"),
            server.ask("GET", "/webhooks").json,
        ]
        events = [event.dump() for event in server.store.events(0, 10_000)]
        assert "tell-nobody-this" not in str(answers) + str(events)


def test_nobody_has_more_webhooks_than_the_limit(server: Server, target: HookTarget, path: str) -> None:
    hooks = [Hook(server, target.url(path), who="other") for _ in range(WEBHOOKS_PER_PRINCIPAL_MAX)]
    reply = server.ask("POST", "/webhooks", {"url": target.url(path)}, who="other")
    assert reply.status == 400
    assert "webhooks" in reply.json["details"]
    for hook in hooks:
        assert hook.ask("DELETE").status == 204
        assert hook.ask("DELETE").status == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 422),
        ({"url": 5}, 422),
        ({"url": "http://hook.test/"}, 400),
        ({"url": "ftp://hook.test/"}, 400),
        ({"url": "https://u:p@hook.test/"}, 400),
        ({"url": "https:///x"}, 400),
        ({"url": "https://hook.test:0/"}, 400),
        ({"url": "https://hook.test:99999/"}, 400),
        ({"url": "https://hook.test/ x"}, 400),
        ({"url": "https://hook.test/\r\nX: y"}, 400),
        ({"url": "https://hook.test/é"}, 400),
        ({"url": "https://[::1/"}, 400),
        ({"url": "https://hook.test/" + "x" * 3000}, 400),
        ({"url": "https://hook.test/", "events": ["acquired", "nonsense"]}, 400),
        ({"url": "https://hook.test/", "events": []}, 400),
        ({"url": "https://hook.test/", "events": [1]}, 400),
        ({"url": "https://hook.test/", "lock_pattern": "a*b"}, 400),
        ({"url": "https://hook.test/", "lock_pattern": ""}, 400),
        ({"url": "https://hook.test/", "secret": "s" * 300}, 400),
    ],
)
def test_a_webhook_that_cannot_be_is_refused(server: Server, fields: dict[str, Any], status: int) -> None:
    reply = server.ask("POST", "/webhooks", fields)
    assert reply.status == status, reply.json
    assert not server.ask("GET", "/webhooks").json
