"""Webhooks move with their store, with their places among its events."""

from __future__ import annotations

import io

import pytest

from dibs.base.clock import wall_ms
from dibs.core.caller_rights import LOCAL
from dibs.core.events import Event
from dibs.core.service.delivery import DeliveryPlan
from dibs.engine.archive import export
from dibs.engine.archive_import import import_archive
from dibs.engine.event_log import read_page
from dibs.engine.webhooks import WebhookAdmin
from dibs.engine.webhooks.dispatcher import WebhookLedger
from dibs.stores.memory import MemoryStore


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.promise("webhook:gap")
@pytest.mark.fault("F-073")
@pytest.mark.parametrize(("kept", "oldest"), [(40, None), (5, 61)])
def test_an_import_brings_webhooks_along_and_what_was_pruned_before_it_was_sent_is_reported(
    kept: int, oldest: int | None
) -> None:
    old, new = MemoryStore(wall_ms), MemoryStore(wall_ms)
    events = [Event(at_ms=wall_ms(), kind="acquired", ns="default", job="job") for _ in range(50)]
    old.commit({}, {}, events)
    made = WebhookAdmin(old, LOCAL, "default").ask("webhook-create", "", {"url": "https://hook.test/"})
    old.commit({}, {}, events[:14])
    old.prune(keep=kept, before_ms=0)
    lines: list[str] = []
    export(old, lines.append)
    import_archive(new, io.BytesIO("".join(lines).encode()))
    [(webhook, progress, letters)] = WebhookLedger(new, "server").webhooks()
    assert made.body is not None
    assert webhook.id == made.body["id"]
    plan = DeliveryPlan(webhook, progress, letters)
    page = read_page(new, plan.at, 100)
    assert page.oldest == oldest
    assert page.events[0].seq == (oldest or 51)
    if page.oldest is not None:
        plan.report_gap(plan.at, page.oldest)
    plan.take(page.events, page.upto, is_last=page.is_last)
    kinds = [event.kind for _, event in plan.ready(wall_ms(), 10)]
    assert kinds == (["acquired"] if oldest is None else ["gap"])
