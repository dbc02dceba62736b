"""Webhooks move with their store, and are told of the gap that a move leaves."""

from __future__ import annotations

import io

import pytest

from dibs.clock import wall_ms
from dibs.core.delivery import DeliveryPlan
from dibs.core.events import Event
from dibs.core.identity import LOCAL
from dibs.service.archive.export import export
from dibs.service.archive.intake import intake
from dibs.service.event_log import read_page
from dibs.service.webhooks.admin import WebhookAdmin
from dibs.service.webhooks.ledger import WebhookLedger
from dibs.stores.memory import MemoryStore


@pytest.mark.promise("webhook:gap")
def test_an_import_brings_webhooks_along_and_a_position_that_is_not_there_is_told() -> None:
    old, new = MemoryStore(wall_ms), MemoryStore(wall_ms)
    old.commit({}, {}, [Event(at_ms=wall_ms(), kind="acquired", ns="default", job="job") for _ in range(50)])
    made = WebhookAdmin(old, LOCAL, "default").ask("webhook-create", "", {"url": "https://hook.test/"})
    old.prune(keep=5, before_ms=0)
    lines: list[str] = []
    export(old, lines.append)
    intake(new, io.BytesIO("".join(lines).encode()))
    [(webhook, progress, letters)] = WebhookLedger(new, "server").webhooks()
    assert made.body is not None
    assert webhook.id == made.body["id"]
    plan = DeliveryPlan(webhook, progress, letters)
    page = read_page(new, plan.at, 100)
    assert page.oldest is not None
    plan.tell_gap(plan.at, page.oldest)
    plan.take(page.events, page.upto, is_last=page.is_last)
    assert [event.kind for _, event in plan.ready(wall_ms(), 10)] == ["gap"]
    assert plan.at <= page.upto + 1
