"""What a webhook is sent and when, on a clock that the test moves."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from dibs.core.events import Event
from dibs.core.limits import (
    WEBHOOK_FAILURES_MAX,
    WEBHOOK_IN_FLIGHT_MAX,
    WEBHOOK_LANES_MAX,
    WEBHOOK_NOTES_MAX,
    WEBHOOK_PAUSE_MS_MAX,
    WEBHOOK_PAUSE_MS_MIN,
    WEBHOOK_REST_MS_MAX,
    WEBHOOK_TRIES_MAX,
)
from dibs.core.service.delivery import DeliveryPlan, LaneState, pause_ms
from dibs.core.service.webhooks import GAP, DeadLetter, DeliveryNote, Lane, Webhook, WebhookProgress

HOOK = Webhook(id="hook", ns="default", principal="ops", url="https://hook.test/", since_ms=0)


def event(seq: int, job: str = "job", kind: str = "acquired", principal: str = "") -> Event:
    return Event(at_ms=seq, kind=kind, ns="default", job=job, seq=seq, principal=principal)


class Courier:
    """Delivers what a plan says, from a list of events. `fails` says which tries fail."""

    def __init__(self, events: list[Event], hook: Webhook = HOOK, progress: WebhookProgress | None = None) -> None:
        self.events = events
        self.now_ms = 1_000_000
        self.sent: list[int] = []
        self.failing: set[str] = set()
        self.asked_ms = 0  # the rest that a failing target asks for
        self.page = 100
        self.letters: dict[int, DeadLetter] = {}
        self.stored = progress or WebhookProgress(at=0)
        self.hook = hook
        self.restart()

    def restart(self) -> None:
        self.plan = DeliveryPlan(self.hook, self.stored, list(self.letters.values()))

    def save(self) -> None:
        command = self.plan.save(1)
        self.stored = command.progress
        for letter in command.letters:
            self.letters[letter.seq] = letter
        for seq in command.delivered:
            self.letters.pop(seq, None)
        self.plan.noted(command)
        again = self.plan.save(1)
        assert (again.letters, again.delivered) == ((), ()), "what was stored is stored again"

    def read(self) -> None:
        for lane in self.plan.empty_lanes():
            found = [each for each in self.events if each.job == lane.job and each.seq > lane.after]
            oldest = self.events[0].seq if self.events and self.events[0].seq > lane.after + 1 else None
            self.plan.fill(lane, found[:4], oldest, self.now_ms)
        while self.plan.is_behind and self.plan.wants_events():
            found = [each for each in self.events if each.seq > self.plan.at][: self.page]
            upto = found[-1].seq if found else self.plan.at
            self.plan.take(found, upto, is_last=len(found) < self.page)

    def start(self) -> list[tuple[LaneState, Event]]:
        self.read()
        return self.plan.ready(self.now_ms, 1_000)

    def finish(self, lane: LaneState, sent: Event) -> None:
        self.sent.append(sent.seq)
        fails = sent.job in self.failing
        note = DeliveryNote(
            at_ms=self.now_ms,
            seq=sent.seq,
            job=sent.job,
            kind=sent.kind,
            tries=lane.tries + 1,
            status=500 if fails else 200,
            error="answered 500" if fails else "",
        )
        if fails:
            self.plan.failed(lane, sent, note, 0.5, self.asked_ms)
        else:
            self.plan.done(lane, sent, note, 0.5)

    def run(self, ms: int = 0) -> None:
        """Deliver everything that can be, until this much later."""
        until_ms = self.now_ms + ms
        while True:
            while begun := self.start():
                for lane, sent in begun:
                    self.finish(lane, sent)
            due_ms = self.plan.next_ms()
            if due_ms is None or due_ms > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = max(due_ms, self.now_ms)


def test_a_pause_doubles_up_to_its_bound_and_is_random_in_its_last_half() -> None:
    assert pause_ms(1, 0.0) == WEBHOOK_PAUSE_MS_MIN // 2
    assert [pause_ms(tries, 0.999999) // 1000 for tries in (1, 2, 3, 4)] == [0, 1, 3, 7]
    assert WEBHOOK_PAUSE_MS_MAX // 2 <= pause_ms(1_000, 0.0) <= pause_ms(1_000, 0.99) < WEBHOOK_PAUSE_MS_MAX


@pytest.mark.promise("webhook:ordered")
def test_what_has_nothing_for_the_webhook_is_not_read_again() -> None:
    plan = DeliveryPlan(HOOK, WebhookProgress(at=3), [])
    plan.take([event(5, kind="of nobody")], 9, is_last=True)
    plan.take([], 8, is_last=True)
    assert plan.at == 9


def test_one_delivery_of_a_job_at_a_time_and_several_of_different_jobs() -> None:
    courier = Courier([event(seq, f"job-{seq % 3}") for seq in range(1, 10)])
    courier.plan.target.has_succeeded = True
    begun = courier.start()
    assert [sent.seq for _, sent in begun] == [1, 2, 3]
    assert courier.start() == []
    courier.finish(*begun[1])
    assert [sent.seq for _, sent in courier.start()] == [5]


@pytest.mark.promise("webhook:ordered")
def test_a_failing_job_waits_with_all_its_later_events_and_the_others_go_on() -> None:
    courier = Courier([event(1, "bad"), event(2, "good"), event(3, "bad"), event(4, "good"), event(5, "bad")])
    courier.failing = {"bad"}
    courier.run(WEBHOOK_PAUSE_MS_MIN * 5)
    assert [seq for seq in courier.sent if seq % 2 == 0] == [2, 4]
    assert {seq for seq in courier.sent if seq % 2} == {1}
    courier.failing = set()
    courier.run(WEBHOOK_PAUSE_MS_MAX)
    assert courier.sent[-3:] == [1, 3, 5]
    assert not courier.plan.has_work() or courier.plan.is_dirty


@pytest.mark.promise("webhook:dead-letters")
def test_a_delivery_that_fails_too_often_is_a_dead_letter_and_the_job_goes_on() -> None:
    courier = Courier([event(1, "bad"), event(2, "bad")])
    courier.failing = {"bad"}
    began_ms = courier.now_ms
    while courier.sent.count(2) == 0:
        courier.run(WEBHOOK_PAUSE_MS_MIN)
    assert courier.sent.count(1) == WEBHOOK_TRIES_MAX
    assert 2 * 3_600_000 < courier.now_ms - began_ms < 4 * 3_600_000
    courier.failing = set()
    courier.run(WEBHOOK_PAUSE_MS_MAX)
    courier.save()
    [letter] = courier.letters.values()
    assert (letter.seq, letter.tries, letter.error) == (1, WEBHOOK_TRIES_MAX, "answered 500")
    assert courier.stored.dead == 1


@pytest.mark.promise("webhook:dead-letters")
def test_a_replay_sends_the_dead_letters_of_a_job_in_order_and_settles_them() -> None:
    courier = Courier([event(seq, "bad") for seq in range(1, 8)])
    courier.letters = {
        seq: DeadLetter(seq=seq, job="bad", kind="acquired", at_ms=1, tries=25, again=True) for seq in (2, 4)
    }
    courier.stored = WebhookProgress(at=7)
    courier.restart()
    courier.run()
    assert courier.sent == [2, 4]
    courier.save()
    assert courier.letters == {}


@pytest.mark.promise("webhook:dead-letters")
def test_a_dead_letter_whose_event_was_pruned_says_so() -> None:
    courier = Courier([event(9)])
    courier.letters = {2: DeadLetter(seq=2, job="job", kind="acquired", at_ms=1, tries=25, again=True)}
    courier.stored = WebhookProgress(at=9)
    courier.restart()
    courier.run()
    courier.save()
    assert courier.sent == []
    assert (courier.letters[2].error, courier.letters[2].again) == ("its event was pruned", False)


def test_a_target_that_is_down_is_tried_by_one_delivery_at_a_time_until_it_answers() -> None:
    courier = Courier([event(seq, f"job-{seq}") for seq in range(1, 31)])
    courier.failing = {f"job-{seq}" for seq in range(1, 31)}
    assert not courier.plan.target.is_trusted
    courier.plan.target.has_succeeded = True
    begun = courier.start()
    assert len(begun) == WEBHOOK_IN_FLIGHT_MAX >= WEBHOOK_FAILURES_MAX
    for lane, sent in begun:
        courier.finish(lane, sent)
    assert courier.start() == []
    courier.now_ms += WEBHOOK_PAUSE_MS_MAX
    assert len(courier.start()) == 1


def test_when_a_target_answers_again_nothing_waits_for_its_long_pause() -> None:
    courier = Courier([event(seq, f"job-{seq}") for seq in range(1, 31)])
    courier.failing = {f"job-{seq}" for seq in range(1, 31)}
    courier.run(2 * 3_600_000)
    courier.failing = set()
    courier.sent.clear()
    courier.run(WEBHOOK_PAUSE_MS_MAX)
    assert sorted(courier.sent) == list(range(1, 31))
    assert courier.plan.next_ms() is None


def test_when_a_target_answers_again_a_job_that_failed_for_long_before_follows_at_once() -> None:
    courier = Courier([event(1, "bad")])
    courier.failing = {"bad", "good"}
    courier.run(5 * 60_000)
    courier.events.append(event(2, "good"))
    courier.plan.is_behind = True
    courier.run(60_000)
    bad, good = courier.plan._lanes["bad"], courier.plan._lanes["good"]
    assert courier.plan.target.is_down
    courier.failing = set()
    courier.sent.clear()
    good.until_ms, bad.until_ms = courier.now_ms, courier.now_ms + WEBHOOK_PAUSE_MS_MAX
    courier.now_ms = courier.plan.target.until_ms
    courier.run(WEBHOOK_PAUSE_MS_MIN)
    assert courier.sent == [2, 1]


def asking(asked_ms: int) -> Courier:
    """A target that was sent its first delivery, and asked for a rest. A second job waits."""
    courier = Courier([event(1, "bad"), event(2, "good")])
    courier.failing, courier.asked_ms = {"bad"}, asked_ms
    courier.run()
    assert courier.sent == [1]
    return courier


def test_a_target_that_asks_for_a_rest_is_sent_nothing_before_not_even_for_another_job() -> None:
    courier = asking(60_000)
    courier.failing = set()
    courier.run(59_999)
    assert courier.sent == [1]
    courier.run(1)
    assert sorted(courier.sent) == [1, 1, 2]


@pytest.mark.parametrize(
    ("asked_ms", "rests_ms"),
    [(0, pause_ms(1, 0.5)), (1, pause_ms(1, 0.5)), (10**33, WEBHOOK_REST_MS_MAX), (-5, pause_ms(1, 0.5))],
)
def test_a_rest_is_not_shorter_than_the_usual_pause_and_has_a_bound(asked_ms: int, rests_ms: int) -> None:
    courier = Courier([event(1, "bad")])
    courier.failing, courier.asked_ms = {"bad"}, asked_ms
    courier.run()
    assert courier.plan.next_ms() == courier.now_ms + rests_ms


def test_a_delivery_that_was_under_way_and_succeeds_does_not_end_the_rest() -> None:
    courier = Courier([event(1, "bad"), event(2, "good"), event(3, "good")])
    courier.plan.target.has_succeeded = True
    bad, good = courier.start()
    courier.failing, courier.asked_ms = {"bad"}, 60_000
    courier.finish(*bad)
    courier.finish(*good)
    assert courier.start() == []
    assert courier.plan.next_ms() == courier.now_ms + 60_000


def test_the_next_server_keeps_the_rest_and_a_replay_ends_it() -> None:
    courier = asking(60_000)
    courier.save()
    courier.restart()
    courier.run(59_999)
    assert courier.sent == [1]
    courier.failing = set()
    courier.plan.renew(HOOK.replace(replays=1), ())
    courier.run()
    assert sorted(courier.sent) == [1, 1, 2]


@pytest.mark.promise("webhook:bounded")
def test_the_number_of_lanes_is_bounded_and_events_wait_in_the_store() -> None:
    courier = Courier([event(seq, f"job-{seq}") for seq in range(1, 1_001)])
    courier.failing = {f"job-{seq}" for seq in range(1, 1_001)}
    courier.run(60_000)
    courier.save()
    assert len(courier.stored.lanes) == WEBHOOK_LANES_MAX
    assert courier.stored.at == WEBHOOK_LANES_MAX
    courier.failing = set()
    courier.run(WEBHOOK_PAUSE_MS_MAX)
    courier.save()
    assert len(courier.stored.notes) == WEBHOOK_NOTES_MAX
    assert set(courier.sent) == set(range(1, 1_001))


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.promise("webhook:ordered")
@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_and_whenever_it_dies_every_event_arrives_and_no_job_is_out_of_order(
    seed: int,
) -> None:
    """After a crash, deliveries begin again at the last save. Until the next crash each job's numbers rise."""
    dice = random.Random(seed)
    jobs = [f"job-{number}" for number in range(dice.randint(1, 50))]
    courier = Courier([event(seq, dice.choice(jobs)) for seq in range(1, 301)])
    courier.page = dice.randint(1, 40)
    under_way: list[tuple[LaneState, Event]] = []
    newest: dict[str, int] = {}
    arrived: set[int] = set()
    for _ in range(1_200):
        under_way += courier.start()
        courier.failing = set(dice.sample(jobs, dice.randint(0, len(jobs) // 2)))
        if under_way:
            lane, sent = under_way.pop(dice.randrange(len(under_way)))
            if sent.job not in courier.failing:
                expected = [each.seq for each in courier.events if each.job == sent.job]
                assert sent.seq == min(seq for seq in expected if seq > newest.get(sent.job, 0))
                newest[sent.job] = sent.seq
                arrived.add(sent.seq)
            courier.finish(lane, sent)
        if dice.random() < 0.1:
            courier.save()
        if dice.random() < 0.02:  # killed: what was sent since the last save is sent again
            courier.restart()
            newest = dict.fromkeys(jobs, courier.stored.at) | {lane.job: lane.after for lane in courier.stored.lanes}
            under_way = []
        courier.now_ms += dice.randint(0, 100_000)
    courier.failing = set()
    for lane, sent in under_way:
        arrived.add(sent.seq)
        courier.finish(lane, sent)
    courier.sent.clear()
    courier.run(WEBHOOK_PAUSE_MS_MAX)
    letters = set(courier.letters) | {letter.seq for letter in courier.plan.save(1).letters}
    assert arrived | set(courier.sent) | letters == set(range(1, 301))


@pytest.mark.promise("webhook:gap")
def test_history_that_was_pruned_before_it_was_sent_is_reported_once() -> None:
    courier = Courier([event(seq) for seq in range(50, 53)])
    courier.plan.report_gap(0, 50)
    begun = courier.start()
    assert (begun[0][1].kind, begun[0][1].seq, begun[0][1].ticket) == (GAP, 49, 0)
    for lane, sent in begun:
        courier.finish(lane, sent)
    courier.run()
    assert courier.sent == [49, 50, 51, 52]
    courier.save()
    assert (courier.stored.gaps, courier.stored.lanes) == (1, ())


@pytest.mark.promise("webhook:gap")
def test_a_job_whose_waiting_events_were_pruned_is_reported_too() -> None:
    courier = Courier([event(1, "bad"), event(2, "good")])
    courier.failing = {"bad"}
    courier.run(10_000)
    courier.save()
    courier.restart()
    courier.events, courier.failing = [event(9, "good")], set()
    courier.run(WEBHOOK_PAUSE_MS_MAX)
    courier.save()
    assert courier.sent[-2:] in ([1, 9], [9, 1])  # the gap has the number of the last event in it
    assert courier.stored.gaps == 1


@pytest.mark.promise("webhook:at-least-once")
def test_a_replay_from_an_event_drops_nothing_that_waits_before_it_or_was_not_read() -> None:
    courier = Courier([event(1, "bad"), event(2), event(3, "bad"), event(4), event(5, "bad")])
    courier.failing = {"bad"}
    courier.run(2)
    courier.failing = set()
    courier.sent.clear()
    courier.plan.renew(HOOK.replace(replays=1, replay_after=3), ())
    courier.run(8)
    assert sorted(courier.sent) == [1, 3, 4, 5]
    assert [each for each in courier.sent if each != 4] == [1, 3, 5]
    courier.events += [event(seq, "new") for seq in (6, 7)]
    courier.plan.is_behind = True
    courier.sent.clear()
    courier.plan.renew(HOOK.replace(replays=2, replay_after=1_000), ())
    courier.run(4)
    assert courier.sent == [6, 7]


def test_a_replay_from_an_event_begins_there_again() -> None:
    courier = Courier([event(seq) for seq in range(1, 6)])
    courier.run()
    courier.plan.renew(HOOK.replace(replays=1, replay_after=2), ())
    courier.run()
    assert courier.sent == [1, 2, 3, 4, 5, 3, 4, 5]
    courier.save()
    assert courier.stored.replays == 1


@pytest.mark.parametrize(
    ("fields", "found", "is_taken"),
    [
        ({}, event(1), True),
        ({}, event(1, "job", "queued"), True),
        ({}, event(1).replace(ns="other"), False),
        ({}, event(1, "", "session-opened"), False),
        ({"pattern": "job"}, event(1, "job-2"), False),
        ({"pattern": "job*"}, event(1, "job-2"), True),
        ({"pattern": "k*"}, event(1), False),
        ({"events": ("released",)}, event(1, "job", "broken"), True),
        ({"events": ("broken",)}, event(1, "job", "released"), False),
        ({"events": ("queued",)}, event(1, "job", "queued"), True),
        ({"own": True}, event(1, principal="ops"), True),
        ({"own": True}, event(1, principal="other"), False),
        ({"own": True}, event(1, "job", "queued", principal="ops"), False),
    ],
)
def test_a_webhook_takes_what_it_asked_for(fields: dict[str, object], found: Event, is_taken: bool) -> None:
    assert HOOK.replace(**fields).takes(found) is is_taken


@pytest.mark.promise("webhook:gap")
@pytest.mark.fault("F-075")
def test_a_job_whose_waiting_events_are_pruned_in_part_is_told_of_the_gap() -> None:
    courier = Courier([event(seq) for seq in range(1, 101)])
    courier.failing = {"job"}
    courier.run(1_000)
    courier.save()
    courier.restart()
    courier.failing = set()
    del courier.events[:80]
    courier.sent.clear()
    courier.run(WEBHOOK_REST_MS_MAX)
    assert courier.sent[0] == 80  # the gap is told with its last number
    assert courier.sent[1:] == list(range(81, 101))
    assert courier.plan.save(1).progress.gaps == 1


# Walks: all that a plan says and stores, as it was when it was recorded. Who changes what is meant writes them anew.

WALKS = {
    0: "82 sent 184339ab",
    1: "63 sent b69d684e",
    2: "50 sent 98db90e7",
    3: "31 sent cdf4b7e0",
    4: "19 sent 943f560d",
    5: "70 sent bdb6f1bf",
    6: "96 sent 2d052ab7",
    7: "56 sent 7388edaf",
    8: "45 sent 884992bd",
    9: "85 sent 8dfa85ad",
    10: "123 sent d88b0234",
    11: "59 sent 63b35bb6",
    12: "38 sent a0d57eb4",
    13: "61 sent 3ca377bb",
    14: "28 sent a8f3a491",
    15: "58 sent 5d33067d",
    16: "27 sent fefd3eed",
    17: "90 sent 6749c778",
    18: "70 sent 44b0983d",
    19: "79 sent 7d51cc0f",
    20: "70 sent 5c0369e8",
    21: "37 sent 49ba4707",
    22: "45 sent 48353147",
    23: "29 sent a29c1277",
}


def walked(seed: int) -> str:
    chance = random.Random(seed)
    jobs = [f"job-{number}" for number in range(4)]
    courier = Courier([event(seq, chance.choice(jobs)) for seq in range(1, 20)], HOOK.replace(pattern="job-*"))
    courier.page = chance.choice((2, 5, 100))
    said: list[object] = []
    for _ in range(40):
        plan, step = courier.plan, chance.randrange(9)
        if step == 0:
            last = courier.events[-1].seq if courier.events else plan.at
            courier.events += [
                event(last + 1 + at, chance.choice((*jobs, "other"))) for at in range(chance.randrange(6))
            ]
            plan.is_behind = True
        elif step == 1:
            courier.failing = set(chance.sample(jobs, chance.randrange(3)))
            courier.asked_ms = chance.choice((0, 0, 500, 90_000))
        elif step == 2 and courier.events:
            after, oldest = plan.at, courier.events[0].seq
            courier.events = courier.events[chance.randrange(4) :]
            if chance.random() < 0.3:
                plan.report_gap(after, oldest - chance.randrange(3))
        elif step == 3:
            courier.save()
            courier.restart()
        elif step == 4:
            letters = [each.replace(again=chance.random() < 0.6) for each in courier.letters.values()]
            courier.letters = {each.seq: each for each in letters}
            after = chance.choice((-1, -1, 0, plan.at, plan.at + 3, plan.at - 5))
            courier.hook = plan.webhook.replace(replays=plan.webhook.replays + 1, replay_after=max(-1, after))
            plan.renew(courier.hook, letters)
        elif step == 5:
            begun = courier.start()
            chance.shuffle(begun)
            for each in begun:
                courier.finish(*each)
        else:
            courier.run(chance.choice((0, 300, 5_000, 100_000, 9_000_000)))
        said.append((plan.jobs_waiting, plan.next_ms(), plan.has_work(), plan.wants_events(), plan.at, plan.is_dirty))
        if chance.random() < 0.3:
            courier.save()
        said.append((courier.stored, courier.letters))
    return f"{len(courier.sent)} sent {crc32(repr((courier.sent, said)).encode()):08x}"


@pytest.mark.parametrize("seed", range(24))
def test_a_plan_says_and_stores_what_it_did(seed: int) -> None:
    assert walked(seed) == WALKS[seed]


def test_what_a_webhook_does_not_want_of_a_lane_is_read_past() -> None:
    progress = WebhookProgress(at=6, lanes=(Lane(job="job", after=0, last=6),))
    events = [event(seq, kind="acquired" if seq < 6 else "released") for seq in range(1, 7)]
    courier = Courier(events, HOOK.replace(events=("released",)), progress)
    (lane,) = courier.plan.empty_lanes()
    courier.plan.fill(lane, events[:4], None, courier.now_ms)
    assert (lane.after, lane.queue) == (4, [])
    courier.run()
    assert courier.sent == [6]


@pytest.mark.parametrize(("oldest", "gap"), [(None, None), (3, None), (4, None), (5, None), (6, (4, 5)), (9, (4, 6))])
def test_a_lane_has_a_gap_where_the_next_of_its_events_is_gone(oldest: int | None, gap: tuple[int, int] | None) -> None:
    courier = Courier([], HOOK, WebhookProgress(at=6, lanes=(Lane(job="job", after=4, last=6),)))
    (lane,) = courier.plan.empty_lanes()
    courier.plan.fill(lane, [event(seq) for seq in (5, 6) if seq >= (oldest or 0)], oldest, courier.now_ms)
    found = [(each.after, each.last) for each in courier.plan.save(1).progress.lanes if not each.job]
    assert found == ([gap] if gap is not None else [])
