"""A server whose store is moved, or that another store is moved into: it answers to the names that the store had."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from dibs.client.store_admin import thaw
from dibs.core.commands import Freeze, Identify, Thaw
from dibs.core.service.webhooks import CreateWebhook, Webhook
from dibs.engine.archive import export
from dibs.engine.archive_import import import_archive
from dibs.engine.coordinator import Coordinator, run_one
from dibs.server.settings import PublicElections, ServerSettings
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.programs import wait_until
from tests.server.harness import running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.harness import Server

pytestmark = pytest.mark.promise("move:live")


def copy_of(store: MemoryStore) -> io.BytesIO:
    lines: list[str] = []
    export(store, lines.append, freeze=True)
    return io.BytesIO("".join(lines).encode())


def old_store() -> MemoryStore:
    store = MemoryStore(ManualClock())
    Coordinator(store).one(Identify(fresh_id="old"))
    return store


def names(server: Server) -> tuple[str, str | None]:
    headers = server.ask("GET", "/locks/job").headers
    return headers["x-dibs-store"], headers.get("x-dibs-moved-from")


def test_a_server_that_starts_on_a_moved_store_says_so_and_takes_requests_for_the_old_one(tmp_path: Path) -> None:
    new = MemoryStore(ManualClock())
    import_archive(new, copy_of(old_store()))
    with running(tmp_path, store=new) as server:
        assert names(server) == (server.engine.store_id, "old")
        for number, name in enumerate(("old", server.engine.store_id)):
            assert server.acquire(f"job-{number}", headers={"X-Dibs-Store": name}).json["status"] == "acquired"
        assert server.acquire("job", headers={"X-Dibs-Store": "another"}).status == 421


@pytest.mark.fault("F-405")
def test_a_server_that_was_up_before_the_import_takes_the_first_request_for_the_old_one(tmp_path: Path) -> None:
    """It has not heard of the import yet: nobody lets its chores run here."""
    with running(tmp_path) as server:
        own = server.engine.store_id
        assert server.acquire("job", headers={"X-Dibs-Store": "old"}).status == 421
        assert isinstance(server.store, MemoryStore)
        import_archive(server.store, copy_of(old_store()))
        answer = server.acquire("job", headers={"X-Dibs-Store": "old"})
        assert answer.json["status"] == "acquired"
        assert (answer.headers["x-dibs-store"], answer.headers["x-dibs-moved-from"]) == (own, "old")


def test_a_server_hears_of_an_import_into_its_store_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, real_time=True) as server:
        assert isinstance(server.store, MemoryStore)
        import_archive(server.store, copy_of(old_store()))
        wait_until(lambda: names(server) == (server.engine.store_id, "old"), "it knows what it goes on from")


@pytest.mark.promise("servers:one-store")
def test_a_server_whose_store_is_thawed_has_the_new_name_and_answers_to_the_old_one(tmp_path: Path) -> None:
    with running(tmp_path, real_time=True) as server:
        own = server.engine.store_id
        assert isinstance(server.store, MemoryStore)
        copy = copy_of(server.store)
        refused = server.acquire("job", headers={"X-Dibs-Store": own})
        assert (refused.status, refused.json["code"]) == (503, "upstream_unavailable")
        thaw(server.store)
        wait_until(lambda: names(server)[1] == own, "it knows its new name")
        assert names(server)[0] != own
        assert server.acquire("job", headers={"X-Dibs-Store": own}).json["status"] == "acquired"
        other = MemoryStore(ManualClock())
        import_archive(other, copy)
        (tmp_path / "other").mkdir()
        with running(tmp_path / "other", store=other) as second:
            assert second.acquire("job", headers={"X-Dibs-Store": names(server)[0]}).status == 421
            assert server.acquire("job", headers={"X-Dibs-Store": names(second)[0]}).status == 421


def test_a_stranger_does_not_make_the_server_ask_its_store_for_its_name(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        asked: list[object] = []
        server.engine.learn_name = lambda: asked.append(1)  # type: ignore[method-assign]
        headers = {"X-Dibs-Store": "another"}
        assert server.ask("POST", "/locks/job/acquire", {}, who=None, headers=headers).status == 401
        assert asked == []


NOT_THERE = "00000000-0000-4000-8000-000000000001"
HOOK = Webhook(id=NOT_THERE, ns="default", principal="agent", url="https://hooks.example.com/x", since_ms=0)


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-766")
@pytest.mark.parametrize("incomplete", [False, True])
def test_a_webhook_that_was_not_removed_is_not_said_to_be(tmp_path: Path, incomplete: bool) -> None:
    with running(tmp_path) as server:
        run_one(server.store, CreateWebhook(webhook=HOOK, at=0))
        run_one(server.store, Freeze(id="move", incomplete=incomplete))
        assert server.ask("DELETE", f"/webhooks/{HOOK.id}").status == 503
        run_one(server.store, Thaw(id="move"))
        assert [each["id"] for each in server.ask("GET", "/webhooks").json] == [HOOK.id]
        assert server.ask("DELETE", f"/webhooks/{HOOK.id}").status == 204


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-768")
def test_nothing_that_an_import_may_still_bring_is_missing(tmp_path: Path) -> None:
    settings = ServerSettings(public_elections=PublicElections(rooms=9, streams=3, streams_per_client=2, requests=99))
    with running(tmp_path, settings=settings) as server:
        run_one(server.store, Freeze(id="import", incomplete=True))
        for method, path, body in (
            ("GET", "/sessions", None),
            ("POST", f"/sessions/{NOT_THERE[:8]}/break", {"reason": "left"}),
            ("GET", "/tokens", None),
            ("POST", "/tokens/ghost/rotate", {}),
            ("POST", "/tokens/ghost/limits", {"max_held": 3}),
            ("DELETE", "/tokens/ghost", None),
            ("GET", "/rights?after=12", None),
            ("GET", "/webhooks", None),
            ("GET", f"/webhooks/{NOT_THERE}", None),
            ("POST", f"/webhooks/{NOT_THERE}/test", None),
            ("GET", "/events?after=12", None),
            ("GET", "/events?follow=true&after=12", None),
            ("GET", "/locks/job/watch", None),
            ("GET", "/elections/room-1/watch", None),
        ):
            reply = server.ask(method, path, body, who="admin")
            assert (path, reply.status, reply.json["code"]) == (path, 503, "upstream_unavailable")
            assert "import" in reply.json["details"]
        run_one(server.store, Thaw(id="import"))
        assert server.ask("DELETE", "/tokens/ghost", who="admin").status == 404
