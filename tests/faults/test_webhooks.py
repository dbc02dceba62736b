"""Webhooks of real servers that are killed and paused in the middle of a delivery."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import ServerProcess, dibs, wait_until
from tests.server.webhook_target import HookTarget, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e
JOBS = 8


@pytest.fixture
def target(tmp_path: Path, need_program: Callable[[str], str]) -> Iterator[HookTarget]:
    need_program("openssl")
    with listening(tmp_path) as (found, _):
        yield found


def served(folder: Path, trusted: Path, store: str | None = None) -> ServerProcess:
    folder.mkdir(exist_ok=True)
    server = ServerProcess(folder, store=store, flags=["--webhook-allow-private"])
    server.env["SSL_CERT_FILE"] = str(trusted)
    return server


def add(server: ServerProcess, target: HookTarget, path: str) -> str:
    url = f"https://localhost:{target.port}{path}"
    made = dibs(server.env, "webhook", "add", url, "--json", "--url", server.url)
    assert made.exit == 0, made
    return str(made.data["id"])


def claim_and_release(server: ServerProcess) -> None:
    for number in range(JOBS):
        ran = dibs(server.env, "claim", f"job-{number}", "--json", "--url", server.url)
        assert ran.exit == 0, ran
    for number in range(0, JOBS, 4):
        done = dibs(server.env, "break", f"job-{number}", "--reason", "test", "--url", server.url)
        assert done.exit == 0, done


def wanted(target: HookTarget, path: str) -> Callable[[], bool]:
    """Whether every change was delivered by now."""
    return lambda: len({each.id for each in target.to(path)}) == JOBS + JOBS // 4


def assert_in_order(target: HookTarget, path: str) -> None:
    by_job: dict[str, list[int]] = {}
    for each in target.to(path):
        ids = by_job.setdefault(each.json["lock"], [])
        if each.id not in ids:  # a repeat
            assert not ids or each.id > max(ids)
            ids.append(each.id)


@pytest.mark.promise("webhook:at-least-once")
def test_a_server_that_is_killed_during_deliveries_repeats_and_loses_nothing(
    tmp_path: Path, target: HookTarget
) -> None:
    go_on = threading.Event()
    held: list[Any] = []

    def hold(connection: Any) -> None:
        held.append(connection)
        go_on.wait(60)

    target.answers["/hook"] = hold
    with served(tmp_path / "server", tmp_path / "hook.pem") as server:
        add(server, target, "/hook")
        claim_and_release(server)
        target.wait(lambda: bool(held), "a delivery under way")
        server.kill()
        go_on.set()
        before = {each.id for each in target.to("/hook")}
        target.answers.clear()
        server.start()
        target.wait(wanted(target, "/hook"), "all that happened")
        again = [each.id for each in target.to("/hook")]
        assert any(again.count(each) > 1 for each in before)
        assert_in_order(target, "/hook")


@pytest.mark.promise("webhook:one-deliverer")
@pytest.mark.slow
def test_when_the_server_that_delivers_is_paused_another_one_goes_on(tmp_path: Path, target: HookTarget) -> None:
    with served(tmp_path / "one", tmp_path / "hook.pem") as one:
        add(one, target, "/hook")
        claim_and_release(one)
        target.wait(lambda: bool(target.to("/hook")), "the first delivers")
        one.pause()
        count = len(target.to("/hook"))
        with served(tmp_path / "two", tmp_path / "hook.pem", one.store_url) as two:
            for number in range(100, 103):
                assert dibs(two.env, "claim", f"job-{number}", "--url", two.url).exit == 0
            wait_until(lambda: len(target.to("/hook")) >= count + 3, "the second delivers", 30)
            one.resume()
            assert dibs(two.env, "claim", "job-200", "--url", two.url).exit == 0
            target.wait(lambda: any(each.json["lock"] == "job-200" for each in target.to("/hook")))
            assert_in_order(target, "/hook")
