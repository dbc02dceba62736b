"""The rules of webhooks, step by step: every answer, event and record of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import events
from dibs.core.decide import decide
from dibs.core.draft import Missing, View
from dibs.core.events import Event
from dibs.core.limits import WEBHOOK_DEAD_MAX, WEBHOOKS_MAX, WEBHOOKS_PER_PRINCIPAL_MAX
from dibs.core.records import (
    WEBHOOK_DUTY_KEY,
    WEBHOOK_REGISTER_KEY,
    dead_letters_key,
    progress_key,
    webhook_key,
)
from dibs.core.service.webhooks import (
    CreateWebhook,
    DeadLetter,
    DeadLetters,
    DeliverySaved,
    DutyState,
    LeaveDuty,
    RemoveWebhook,
    ReplayWebhook,
    SaveDelivery,
    StopWebhook,
    TakeDuty,
    Webhook,
    WebhookDuty,
    WebhookEntry,
    WebhookProgress,
    WebhookRegister,
    WebhookState,
)

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.draft import Decision
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored

HOOK = Webhook(id="w1", ns="default", principal="ann", url="http://target.example/", since_ms=5)
ENTRY = WebhookEntry(id="w1", ns="default", principal="ann")


class Rules:
    """The records, at time 5 unless a test says otherwise."""

    def __init__(self, **records: Stored) -> None:
        self.now_ms = 5
        self.records: dict[str, Stored | None] = {**records}

    def decided(self, command: Command) -> Decision:
        known = dict.fromkeys(self.records) | self.records
        while True:
            try:
                found = decide(View(self.now_ms, dict(known)), command)
            except Missing as missing:
                known |= {key: self.records.get(key) for key in missing.keys}
                continue
            self.records |= found.writes
            return found

    def outcome(self, command: Command) -> Outcome:
        return self.decided(command).outcome


def made(at: int = 7, **changes: Any) -> Rules:
    rules = Rules()
    rules.decided(CreateWebhook(webhook=HOOK.replace(**changes), at=at))
    return rules


def told(kind: str, by: str | None) -> tuple[Event, ...]:
    return (Event(at_ms=5, kind=kind, ns="default", principal="ann", by=by, reason="webhook w1"),)


def test_a_webhook_is_made_once_and_begins_with_the_next_event() -> None:
    rules = Rules()
    asked = CreateWebhook(webhook=HOOK.replace(since_ms=0), at=7)
    first = rules.decided(asked)
    assert first.outcome == WebhookState(now_ms=5, webhook=HOOK)
    assert first.events == told(events.WEBHOOK_CREATED, "ann")
    assert first.writes == {
        webhook_key("w1"): HOOK,
        progress_key("w1"): WebhookProgress(at=7),
        WEBHOOK_REGISTER_KEY: WebhookRegister(changes=1, entries=(ENTRY,)),
    }
    again = rules.decided(asked)
    assert (again.outcome, again.events, again.writes) == (first.outcome, (), {})


@pytest.mark.parametrize(
    ("own", "others", "refused"),
    [
        (WEBHOOKS_PER_PRINCIPAL_MAX - 1, 0, ""),
        (WEBHOOKS_PER_PRINCIPAL_MAX, 0, "A token's holder"),
        (0, WEBHOOKS_MAX - 1, ""),
        (0, WEBHOOKS_MAX, "The store"),
    ],
)
def test_a_holder_of_a_token_and_a_store_have_so_many_webhooks_at_most(own: int, others: int, refused: str) -> None:
    entries = [ENTRY.replace(id=f"own-{at}") for at in range(own)]
    entries += [
        ENTRY.replace(id=f"other-{at}", **{"bound": "x"} if at % 2 else {"principal": "bob"}) for at in range(others)
    ]
    rules = Rules(**{WEBHOOK_REGISTER_KEY: WebhookRegister(changes=3, entries=tuple(entries))})
    found = rules.decided(CreateWebhook(webhook=HOOK, at=7))
    assert isinstance(found.outcome, WebhookState)
    assert found.outcome.full.startswith(refused)
    assert (found.outcome.webhook is None, bool(found.outcome.full), not found.writes) == (bool(refused),) * 3


def test_a_webhook_is_removed_with_all_that_is_its_own() -> None:
    rules = made()
    rules.decided(CreateWebhook(webhook=HOOK.replace(id="w2"), at=7))
    rules.records[dead_letters_key("w1")] = DeadLetters()
    found = rules.decided(RemoveWebhook(webhook_id="w1", by="op"))
    assert found.outcome == WebhookState(now_ms=5, webhook=HOOK)
    assert found.events == told(events.WEBHOOK_REMOVED, "op")
    assert found.writes == {
        webhook_key("w1"): None,
        progress_key("w1"): None,
        dead_letters_key("w1"): None,
        WEBHOOK_REGISTER_KEY: WebhookRegister(changes=3, entries=(ENTRY.replace(id="w2"),)),
    }
    assert rules.outcome(RemoveWebhook(webhook_id="w1", by="op")) == WebhookState(now_ms=5, webhook=None)
    assert dead_letters_key("w2") not in rules.decided(RemoveWebhook(webhook_id="w2", by="op")).writes


@pytest.mark.parametrize(
    ("begun", "before", "asked", "after"),
    [
        (True, -1, 4, 4),
        (True, 2, 4, 4),
        (True, 2, -1, -1),
        (False, 2, 4, 2),
        (False, 4, 2, 2),
        (False, 4, 0, 0),
        (False, 0, 4, 0),
        (False, 0, -1, 0),
        (False, 2, -1, 2),
        (False, -1, 4, 4),
        (False, -1, -1, -1),
    ],
)
def test_a_replay_takes_back_none_that_was_not_begun(begun: bool, before: int, asked: int, after: int) -> None:
    rules = made()
    old = HOOK.replace(replays=3, replay_after=before, stopped="410")
    letter = DeadLetter(seq=3, job="a", kind="acquired", at_ms=1, tries=9)
    rules.records |= {webhook_key("w1"): old, dead_letters_key("w1"): DeadLetters(letters=(letter,))}
    rules.records[progress_key("w1")] = WebhookProgress(at=9, replays=3 if begun else 2)
    found = rules.decided(ReplayWebhook(webhook_id="w1", by="ann", after=asked))
    new = old.replace(replays=4, replay_after=after, stopped="")
    assert found.outcome == WebhookState(now_ms=5, webhook=new)
    assert found.events == told(events.WEBHOOK_REPLAYED, "ann")
    assert found.writes[webhook_key("w1")] == new
    assert found.writes[WEBHOOK_REGISTER_KEY] == WebhookRegister(changes=2, entries=(ENTRY,))
    letters = found.writes.get(dead_letters_key("w1"))
    assert letters == (DeadLetters(letters=(letter.replace(again=True),)) if asked < 0 else None)


def test_a_webhook_is_stopped_once_and_what_is_not_there_is_not_changed() -> None:
    rules = made()
    stop = StopWebhook(webhook_id="w1", reason="410")
    found = rules.decided(stop)
    assert found.outcome == WebhookState(now_ms=5, webhook=HOOK.replace(stopped="410"))
    assert found.events == told(events.WEBHOOK_STOPPED, None)
    assert found.writes[webhook_key("w1")] == HOOK.replace(stopped="410")
    again = rules.decided(stop.replace(reason="500"))
    assert (again.outcome, again.events, again.writes) == (found.outcome, (), {})
    for other in (ReplayWebhook(webhook_id="w9", by="ann"), stop.replace(webhook_id="w9")):
        absent = rules.decided(other)
        assert (absent.outcome, absent.writes) == (WebhookState(now_ms=5, webhook=None), {})


def test_the_duty_goes_to_one_server_at_a_time_and_its_number_rises_with_every_change() -> None:
    rules = Rules()

    def take(server: str, at_ms: int) -> tuple[int, int]:
        rules.now_ms = at_ms
        found = rules.outcome(TakeDuty(server=server, ttl_ms=10))
        assert isinstance(found, DutyState)
        return found.token, found.until_ms

    assert take("one", 5) == (1, 15)
    assert take("two", 14) == (0, 15)
    assert take("one", 14) == (1, 24)
    assert take("two", 24) == (2, 34)
    assert take("two", 34) == (3, 44), "nobody vouches for the time in which it was not kept"
    for server, token in (("one", 3), ("two", 2)):
        assert rules.decided(LeaveDuty(server=server, token=token)).writes == {}
    left = rules.decided(LeaveDuty(server="two", token=3))
    assert left.outcome == DutyState(now_ms=34, token=0, until_ms=0)
    assert left.writes == {WEBHOOK_DUTY_KEY: WebhookDuty(server="two", token=3, until_ms=0)}
    assert take("one", 34) == (4, 44)


def test_only_the_server_on_duty_writes_down_how_far_a_webhook_is() -> None:
    rules = made()
    save = SaveDelivery(webhook_id="w1", token=1, progress=WebhookProgress(at=9))
    assert rules.outcome(save) == DeliverySaved(now_ms=5, is_ours=False)
    rules.decided(TakeDuty(server="one", ttl_ms=10))
    for other in (save.replace(token=2), save.replace(webhook_id="w9")):
        found = rules.decided(other)
        assert (found.outcome, found.writes) == (DeliverySaved(now_ms=5, is_ours=False), {})
    found = rules.decided(save)
    assert (found.outcome, found.writes) == (
        DeliverySaved(now_ms=5, is_ours=True),
        {progress_key("w1"): WebhookProgress(at=9)},
    )


def test_dead_letters_are_in_order_and_the_oldest_are_dropped_and_counted() -> None:
    rules = made()
    rules.decided(TakeDuty(server="one", ttl_ms=10))

    def letters(*numbers: int, tries: int = 9) -> tuple[DeadLetter, ...]:
        return tuple([DeadLetter(seq=seq, job="a", kind="acquired", at_ms=1, tries=tries) for seq in numbers])

    def save(**changes: Any) -> tuple[list[tuple[int, int]], int]:
        rules.decided(SaveDelivery(webhook_id="w1", token=1, progress=WebhookProgress(at=9), **changes))
        dead, progress = rules.records[dead_letters_key("w1")], rules.records[progress_key("w1")]
        assert isinstance(dead, DeadLetters)
        assert isinstance(progress, WebhookProgress)
        return [(each.seq, each.tries) for each in dead.letters], progress.dropped

    assert save(letters=letters(5, 2)) == ([(2, 9), (5, 9)], 0)
    assert save(letters=letters(2, tries=10)) == ([(2, 10), (5, 9)], 0)
    assert save(delivered=(5,)) == ([(2, 10)], 0)
    numbers = range(10, 10 + WEBHOOK_DEAD_MAX)
    assert save(letters=letters(*numbers)) == ([(seq, 9) for seq in numbers], 1)
    assert save(delivered=(10,)) == ([(seq, 9) for seq in numbers[1:]], 1)
    assert save(letters=letters(3)) == ([(3, 9), *[(seq, 9) for seq in numbers[1:]]], 1)
    assert save(letters=letters(4, 6))[1] == 3


# Which events are sent.

EVENT = Event(at_ms=1, kind=events.ACQUIRED, ns="default", job="team.a", principal="ann")


@pytest.mark.parametrize(
    ("hook", "event", "takes"),
    [
        ({}, {}, True),
        ({}, {"ns": "other"}, False),
        ({}, {"job": ""}, False),
        ({}, {"principal": "bob"}, True),
        ({}, {"kind": events.CLOSED}, True),
        ({"own": True}, {}, True),
        ({"own": True}, {"principal": "bob"}, False),
        ({"own": True}, {"kind": events.CLOSED}, False),
        ({"own": True, "bound": "team"}, {}, True),
        ({"own": True, "bound": "tea"}, {}, False),
        ({"bound": "tea"}, {}, True),
        ({"events": ("acquired",)}, {}, True),
        ({"events": ("released",)}, {}, False),
        ({"events": ("released",)}, {"kind": events.BROKEN}, True),
        ({"events": (events.BROKEN,)}, {"kind": events.BROKEN}, True),
        ({"events": (events.BROKEN,)}, {"kind": events.RELEASED}, False),
        ({"events": ("released", "*")}, {}, True),
        ({"pattern": "team.*"}, {}, True),
        ({"pattern": "team.b*"}, {}, False),
        ({"pattern": "team.a"}, {}, True),
        ({"pattern": "team"}, {}, False),
    ],
)
def test_a_webhook_is_sent_what_it_asked_for(hook: dict[str, Any], event: dict[str, Any], takes: bool) -> None:
    assert HOOK.replace(**hook).takes(EVENT.replace(**event)) is takes
