"""Deliveries of one and of several servers on a store, with a sender that only notes what it is given."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.base.ids import new_id
from dibs.core.caller_rights import ADMIN, LOCAL, Caller
from dibs.core.commands import Acquire, Release
from dibs.core.events import Event
from dibs.core.limits import WEBHOOK_DOUBTED_IN_FLIGHT_MAX
from dibs.core.records import WEBHOOK_DUTY_KEY, dead_letters_key, progress_key
from dibs.core.service.credentials import CreateToken, RevokeToken
from dibs.core.service.webhooks import DeadLetter, DeadLetters, SaveDelivery, TakeDuty, WebhookDuty, WebhookProgress
from dibs.engine.auth import MachineGuard, TokenGuard
from dibs.engine.coordinator import Coordinator
from dibs.engine.webhooks import WebhookAdmin
from dibs.engine.webhooks.dispatcher import NO_TOKEN, WebhookDispatcher
from dibs.engine.webhooks.sender import DeliveryResult, Sender
from dibs.stores.memory import MemoryStore
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


OPS = Caller(principal="ops", role=ADMIN)


class Notebook(Sender):
    """Takes every delivery, and answers as `answer` says."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], DeliveryResult] = lambda body: DeliveryResult(status=200)
        self.held = asyncio.Event()
        self.holds = False
        self.under_way = 0

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        document = json.loads(body)
        self.under_way += 1
        if self.holds or url.endswith("/hang"):
            await self.held.wait()
        self.bodies.append(document)
        return self.answer(document)

    def close(self) -> None:
        pass

    @property
    def ids(self) -> list[int]:
        return [body["id"] for body in list(self.bodies)]


class Deployment:
    """A store in memory, and servers on it."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.store = MemoryStore(lambda: wall_ms() + self.ahead_ms)
        self.coordinator = Coordinator(self.store)
        self.servers: list[WebhookDispatcher] = []

    def server(self, notebook: Notebook) -> WebhookDispatcher:
        made = WebhookDispatcher(self.store, lambda: notebook)
        self.servers.append(made)
        made.start()
        return made

    def hook(self, caller: Caller = OPS, **fields: Any) -> str:
        admin = WebhookAdmin(self.store, caller, "default")
        reply = admin.ask("webhook-create", "", {"url": "https://hook.test/", **fields})
        assert reply.status == 201
        assert reply.body is not None
        for server in self.servers:
            server.changed()
        return str(reply.body["id"])

    def ask(self, verb: str, hook: str, document: object = None) -> Any:
        reply = WebhookAdmin(self.store, OPS, "default").ask(verb, hook, document or {})
        for server in self.servers:
            server.changed()
        return reply.body

    def tell(self, count: int, jobs: int = 1) -> None:
        """That many events."""
        at = wall_ms()
        events = [
            Event(at_ms=at, kind="acquired", ns="default", job=f"job-{number % jobs}", owner="w", token=1)
            for number in range(count)
        ]
        self.store.commit({}, {}, events)
        for server in self.servers:
            server.wake()

    def record(self, key: str) -> Any:
        return self.store.read((key,)).records[key].record


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    made = Deployment()
    yield made
    for server in made.servers:
        server.stop()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def test_without_webhooks_there_is_no_thread_and_nothing_is_written(deployment: Deployment) -> None:
    before = {*threading.enumerate()}  # some may be about to end
    server = WebhookDispatcher(deployment.store, Notebook)
    server.wake()
    assert not server.is_started
    assert {*threading.enumerate()} <= before
    assert deployment.store.scan("webhook") == []
    server.stop()


@pytest.mark.promise("webhook:at-least-once")
def test_ten_thousand_events_that_wait_are_delivered_in_order(deployment: Deployment) -> None:
    deployment.hook()
    deployment.tell(10_000, jobs=200)
    notebook = Notebook()
    deployment.server(notebook)
    wait_until(lambda: len(notebook.bodies) >= 10_000, "all are delivered")
    by_job: dict[str, list[int]] = {}
    for body in notebook.bodies:
        by_job.setdefault(body["lock"], []).append(body["id"])
    assert len(notebook.bodies) == 10_000
    assert all(ids == sorted(ids) for ids in by_job.values())


@pytest.mark.promise("webhook:bounded")
def test_a_hundred_targets_that_hang_leave_places_for_one_that_answers(deployment: Deployment) -> None:
    deployment.hook()
    notebook = Notebook()
    deployment.server(notebook)
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 1, "it answers")
    for number in range(100):
        deployment.hook(Caller(principal=f"p{number // 10}"), url="https://hook.test/hang")
    deployment.tell(50, jobs=50)
    wait_until(lambda: notebook.under_way > WEBHOOK_DOUBTED_IN_FLIGHT_MAX, "the others hang")
    deployment.tell(50, jobs=50)
    wait_until(lambda: len(notebook.bodies) == 101, "it gets everything")
    assert notebook.under_way - len(notebook.bodies) == WEBHOOK_DOUBTED_IN_FLIGHT_MAX


@pytest.mark.promise("webhook:one-deliverer")
def test_of_two_servers_one_delivers_and_when_it_is_gone_the_other_goes_on(deployment: Deployment) -> None:
    deployment.hook()
    first, second = Notebook(), Notebook()
    one = deployment.server(first)
    deployment.tell(5)
    wait_until(lambda: len(first.bodies) == 5, "the first delivers")
    deployment.server(second)
    deployment.tell(5)
    wait_until(lambda: len(first.bodies) == 10, "the first still delivers")
    assert second.bodies == []
    one.stop()
    deployment.servers.remove(one)
    deployment.tell(5)
    deployment.ahead_ms = 60_000  # a duty that was not given up would have run out
    deployment.servers[0].changed()
    wait_until(lambda: len(second.bodies) == 5, "the second goes on")
    assert set(first.ids).isdisjoint(second.ids)


@pytest.mark.promise("webhook:one-deliverer")
def test_a_server_that_was_paused_does_not_move_the_position_of_the_one_that_took_over(
    deployment: Deployment,
) -> None:
    hook = deployment.hook()
    duty = deployment.coordinator.one(TakeDuty(server="paused", ttl_ms=1_000))
    deployment.ahead_ms = 2_000
    other = deployment.coordinator.one(TakeDuty(server="other", ttl_ms=1_000))
    assert (duty.token, other.token) == (1, 2)  # type: ignore[attr-defined]
    late = SaveDelivery(webhook_id=hook, token=1, progress=WebhookProgress(at=99))
    assert not deployment.coordinator.one(late).is_ours  # type: ignore[attr-defined]
    assert deployment.record(progress_key(hook)).at == 0
    assert deployment.coordinator.one(late.replace(token=2)).is_ours  # type: ignore[attr-defined]
    assert deployment.coordinator.one(TakeDuty(server="paused", ttl_ms=1_000)).token == 0  # type: ignore[attr-defined]


@pytest.mark.promise("webhook:one-deliverer")
def test_a_server_that_lost_its_duty_while_it_waited_for_an_answer_starts_nothing_more(
    deployment: Deployment,
) -> None:
    deployment.hook()
    slow, quick = Notebook(), Notebook()
    slow.holds = True
    deployment.server(slow)
    deployment.tell(3)
    wait_until(lambda: isinstance(deployment.record(WEBHOOK_DUTY_KEY), WebhookDuty), "the duty is taken")
    first = deployment.record(WEBHOOK_DUTY_KEY).server
    other = deployment.server(quick)

    def is_taken_over() -> bool:
        """The first may renew its duty before the other looks: then it runs out once more."""
        if deployment.record(WEBHOOK_DUTY_KEY).server != first:
            return True
        deployment.ahead_ms += 60_000
        other.changed()
        return False

    wait_until(is_taken_over, "the other takes over")
    wait_until(lambda: len(quick.bodies) == 3, "the other delivers all")
    wait_until(lambda: not deployment.servers[0].ledger.duty, "the first notices")
    assert slow.bodies == []


def test_a_duty_that_nobody_needs_is_given_up_and_nothing_is_written_any_more(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.core.limits.WEBHOOK_IDLE_MS", 50)
    monkeypatch.setattr("dibs.core.limits.WEBHOOK_LOOK_MS", 50)
    hook = deployment.hook()
    notebook = Notebook()
    deployment.server(notebook)
    deployment.tell(3)
    wait_until(lambda: len(notebook.bodies) == 3, "delivered")
    wait_until(lambda: deployment.record(WEBHOOK_DUTY_KEY).until_ms == 0, "given up")
    assert deployment.record(progress_key(hook)).at == 4  # of the webhook's own event, and three
    written = deployment.store._revision
    time.sleep(0.3)  # it has nothing to do, and does nothing
    assert deployment.store._revision == written
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 4, "taken up again")


@pytest.mark.promise("webhook:dead-letters")
def test_dead_letters_are_sent_again_on_request(deployment: Deployment) -> None:
    hook = deployment.hook()
    deployment.tell(3)
    ids = [event.seq for event in deployment.store.events(0, 10) if event.job]
    letters = [DeadLetter(seq=seq, job="job-0", kind="acquired", at_ms=1, tries=25) for seq in ids[:2]]
    token = deployment.coordinator.one(TakeDuty(server="gone", ttl_ms=1)).token  # type: ignore[attr-defined]
    done = SaveDelivery(
        webhook_id=hook, token=token, progress=WebhookProgress(at=ids[-1], dead=2), letters=tuple(letters)
    )
    deployment.coordinator.one(done)
    notebook = Notebook()
    deployment.server(notebook)
    assert [each["id"] for each in deployment.ask("webhook-deliveries", hook)["dead"]] == ids[:2]
    deployment.ask("webhook-replay", hook)
    wait_until(lambda: len(notebook.bodies) == 2, "both are sent")
    assert notebook.ids == ids[:2]
    wait_until(lambda: deployment.record(dead_letters_key(hook)) == DeadLetters(), "they are settled")


@pytest.mark.promise("webhook:gap")
def test_history_that_was_pruned_is_reported_to_the_target(deployment: Deployment) -> None:
    deployment.hook()
    deployment.tell(20)
    deployment.store.prune(keep=5, before_ms=0)
    notebook = Notebook()
    deployment.server(notebook)
    wait_until(lambda: len(notebook.bodies) == 6, "a gap, and what is left")
    [gap] = [body for body in notebook.bodies if body["event"] == "gap"]
    assert gap["oldest"] == min(set(notebook.ids) - {gap["id"]})
    assert gap["after"] < gap["oldest"] - 1


@pytest.mark.promise("webhook:scope")
def test_a_webhook_of_somebody_whose_tokens_are_all_over_is_stopped(deployment: Deployment) -> None:
    for digest in ("a" * 64, "b" * 64):
        deployment.coordinator.one(CreateToken(digest=digest, name="leaver", by="ops"))
    hook = deployment.hook(Caller(principal="leaver"))
    notebook = Notebook()
    deployment.server(notebook)
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 1, "the first event")
    deployment.coordinator.one(RevokeToken(digest="a" * 64, by="ops"))
    deployment.servers[0].changed()
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 2, "one token is left")
    deployment.coordinator.one(RevokeToken(digest="b" * 64, by="ops"))
    deployment.servers[0].changed()
    wait_until(lambda: not deployment.ask("webhook-show", hook)["active"], "stopped")
    deployment.tell(1)
    assert deployment.ask("webhook-show", hook)["stopped"] == NO_TOKEN
    assert len(notebook.bodies) == 2


@pytest.mark.promise("webhook:scope")
@pytest.mark.fault("F-089")
def test_a_webhook_of_somebody_whose_line_left_the_tokens_file_is_stopped(
    deployment: Deployment, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("leaver:tok-l\nleaver:tok-m:agent:team-a\nstays:tok-s\n")
    guard = TokenGuard(str(tokens))
    deployment.coordinator.one(CreateToken(digest="a" * 64, name="stored", by="ops"))
    gone = deployment.hook(Caller(principal="leaver"))
    kept = [deployment.hook(Caller(principal=name)) for name in ("stays", "stored", LOCAL.principal)]
    notebook = Notebook()
    server = deployment.server(notebook)
    server.ledger.lets_in = guard.lets_in
    server.changed()
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 4, "all are told")
    tokens.write_text("leaver:tok-m:agent:team-a\nstays:tok-s\n")
    assert guard.reload()
    server.changed()
    wait_until(lambda: not deployment.ask("webhook-show", gone)["active"], "stopped")
    assert deployment.ask("webhook-show", gone)["stopped"] == NO_TOKEN
    assert all(deployment.ask("webhook-show", each)["active"] for each in kept)


def test_a_server_that_does_not_know_all_owners_stops_no_webhook_of_others(tmp_path: Path) -> None:
    own = tmp_path / "token"
    own.touch(mode=0o600)
    own.write_text("me:tok-me:admin\nold:tok-old:agent::20200101T000000Z\n")
    for guard in (TokenGuard(None), TokenGuard(str(own), own=True), MachineGuard()):
        assert guard.lets_in(("nobody-here", None)) is None
        assert guard.lets_in(("me", "team-a")) is None
    assert [TokenGuard(str(own)).lets_in((name, None)) for name in ("me", "old", "nobody-here")] == [True, False, False]


@pytest.mark.fault("F-773")
@pytest.mark.parametrize("way_in", ["own token", "socket"])
def test_who_comes_in_without_the_store_keeps_webhooks_when_a_token_of_the_same_name_ends(
    deployment: Deployment, tmp_path: Path, way_in: str
) -> None:
    own, user = tmp_path / "token", pwd.getpwuid(os.geteuid()).pw_name
    own.touch(mode=0o600)
    own.write_text(f"{user}:tok-me:admin\n")
    for name in (user, "leaver"):
        deployment.coordinator.one(CreateToken(digest=name.encode().hex().ljust(64, "0"), name=name, by="ops"))
        deployment.coordinator.one(RevokeToken(digest=name.encode().hex().ljust(64, "0"), by="ops"))
    server = deployment.server(Notebook())  # before there is a webhook: it stops none by what it does not know yet
    server.ledger.lets_in = (TokenGuard(str(own), own=True) if way_in == "own token" else MachineGuard()).lets_in
    kept, gone = [deployment.hook(Caller(principal=name)) for name in (user, "leaver")]
    server.changed()
    wait_until(lambda: not deployment.ask("webhook-show", gone)["active"], "stopped")
    assert deployment.ask("webhook-show", kept)["active"]


@pytest.mark.parametrize("uid", [os.geteuid(), 54_321])
def test_users_of_the_socket_are_known_by_the_names_that_they_come_with(uid: int) -> None:
    guard = MachineGuard()
    caller = guard.known(None, str(uid).encode())
    assert guard.lets_in((caller.principal, None))
    assert guard.lets_in((caller.principal, "team-a")) is None
    assert guard.lets_in((f"uid-{os.geteuid()}", None)) is None, "that one has a name"


def test_a_store_that_fails_for_a_while_delays_deliveries_and_loses_none(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.base.errors import StoreUnavailable

    deployment.hook()
    notebook = Notebook()
    deployment.server(notebook)
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 1, "the first")

    def fails(*_: object, **__: object) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(deployment.store, "events", fails)
        deployment.servers[0].wake()
        time.sleep(0.1)
    deployment.tell(1)
    wait_until(lambda: len(notebook.bodies) == 2, "the second")


def test_claims_are_delivered_as_the_rules_write_them(deployment: Deployment) -> None:
    deployment.hook(events=["released"])
    notebook = Notebook()
    deployment.server(notebook)
    lease = new_id()
    claim = Acquire(ns="default", principal="p", owner="w", ttl_ms=60_000, fresh_lease_id=lease, name="job")
    deployment.coordinator.one(claim)
    deployment.coordinator.one(Release(ns="default", name="job", principal="p", lease_id=lease))
    deployment.servers[0].wake()
    wait_until(lambda: len(notebook.bodies) == 1, "the release")
    assert notebook.bodies[0]["event"] == "released"
    assert lease not in json.dumps(notebook.bodies)
