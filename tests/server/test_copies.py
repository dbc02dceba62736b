"""A copy is added to a store whose server runs: the server hears of it, without a restart."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import wall_ms
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import OpenSession
from dibs.core.outcomes import Granted
from dibs.engine.archive_import import import_archive
from dibs.engine.webhooks import WebhookAdmin
from dibs.stores.memory import MemoryStore
from tests.server.harness import Server, running, wait_until
from tests.server.test_metrics import scrape
from tests.stores.test_copies import NS, Receiver, archive_of, ask, claim, token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.stores.port import Store

HELD, WAITING = 4, 2


def source() -> bytes:
    """A store with a webhook, whose numbers go beyond those of a fresh store, and something of each that is counted."""
    store = MemoryStore(wall_ms)
    WebhookAdmin(store, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    token(store, "0" * 64, name="carol")
    ask(store, OpenSession(fresh_id="s1", principal="team", owner="a1", ttl_ms=3_600_000, ns=NS))
    for number in range(HELD):
        claim(store, f"held-{number}")
    for number in range(WAITING):
        claim(store, "held-0", fresh_lease_id=f"waits-{number}", owner=f"w{number}", wait=True)
    for number in range(30):
        store.commit({}, {}, [store.events(0, 1)[0].replace(seq=0, job=f"past-{number}")])
    return archive_of(store)


def gauge(server: Server, name: str) -> float:
    found: float = scrape(server)[name][()]
    return found


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.fault("F-417")
@pytest.mark.parametrize("has_webhook", [False, pytest.param(True, marks=pytest.mark.full)])
def test_what_is_added_is_counted_and_its_webhooks_are_served_without_a_restart(
    open_it: Callable[[], Store], tmp_path: Path, has_webhook: bool
) -> None:
    receiver, store, other = Receiver(), open_it(), open_it()
    with running(tmp_path, store=store, real_time=True, webhook_sender=lambda: receiver) as server:
        assert isinstance(claim(other, "mine", ns="own"), Granted)
        if has_webhook:
            WebhookAdmin(other, LOCAL, "own").ask("webhook-create", "", {"url": "https://own.test/"})
        import_archive(other, io.BytesIO(source()), adds=True)
        expected = {"dibs_held": HELD + 1, "dibs_sessions": 1, "dibs_waiting": WAITING}
        wait_until(lambda: {name: gauge(server, name) for name in expected} == expected, "the gauges are wrong")
        wait_until(lambda: "carol" in server.guard.principals(), "the tokens of the copy are not known")
        for number in range(9):
            server.lease(f"new-{number}")
        wanted = {f"new-{number}" for number in range(9)}
        wait_until(lambda: wanted <= receiver.jobs, "the webhook of the copy is not served")
        assert not receiver.repeats
        assert receiver.gaps
        wait_until(lambda: gauge(server, "dibs_held") == HELD + 10, "what came since is not counted, or twice")
    store.close()
    other.close()
