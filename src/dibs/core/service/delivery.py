"""Deliveries to webhooks: what is sent, in which order, and when again. The promises `webhook:ordered` and
`webhook:at-least-once` are kept here.

Events are read in the order of their numbers. Each goes into the **lane** of its job. A lane has one delivery under
way at most, so no event overtakes an earlier one of its job; lanes do not wait for each other. A delivery that failed
rests, and its lane with it, for longer each time; after WEBHOOK_TRIES_MAX tries it becomes a dead letter and the lane
goes on. If there are WEBHOOK_LANES_MAX lanes, no more events are read: they wait in the history.

`TargetBackoff` says how long a delivery or a target rests, and whether a target is trusted: one that is not has one
delivery at a time under way. When a target answers again, all lanes go on at once.

Time and random fractions are arguments. Nothing here reads or sends.
"""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.core import limits
from dibs.core.events import Event
from dibs.core.service.webhooks import GAP, DeadLetter, DeliveryNote, Lane, SaveDelivery, Webhook, WebhookProgress

# When a delivery that failed is tried again, and when its target as a whole is.
#
# A delivery that failed rests for longer each time. A target is trusted once a delivery succeeded. Before that, and
# after WEBHOOK_FAILURES_MAX failures in a row, one delivery at a time is tried, and the target rests as a whole, too. A
# rest that the target asked for, of WEBHOOK_REST_MS_MAX at most, ends early only for a replay.


def pause_ms(tries: int, fraction: float) -> int:
    """Return how long a delivery rests: twice as long after each try, less a random part of the last half."""
    longest_ms = min(limits.WEBHOOK_PAUSE_MS_MIN * 2 ** min(tries - 1, 30), limits.WEBHOOK_PAUSE_MS_MAX)
    return int(longest_ms * (1 + fraction) / 2)


def rest_ms(tries: int, fraction: float, asked_ms: int) -> int:
    """The same of a target that asked for a rest: never shorter."""
    return max(pause_ms(tries, fraction), min(asked_ms, limits.WEBHOOK_REST_MS_MAX))


class TargetBackoff:
    """The state of one target. `asked_until_ms` is stored with the progress of its webhook."""

    __slots__ = ("_until_ms", "asked_until_ms", "has_succeeded", "row")

    def __init__(self, asked_until_ms: int) -> None:
        self.row = 0  # failures since the last success
        self.has_succeeded = False
        # The target asked to be sent nothing before this time. A success does not end that.
        self.asked_until_ms = asked_until_ms
        self._until_ms = 0  # nothing is sent before this time, because of failures

    @property
    def is_trusted(self) -> bool:
        return self.has_succeeded and not self.is_down

    @property
    def is_down(self) -> bool:
        return self.row >= limits.WEBHOOK_FAILURES_MAX

    @property
    def until_ms(self) -> int:
        return max(self._until_ms, self.asked_until_ms)

    def succeeded(self) -> None:
        self.row, self._until_ms, self.has_succeeded = 0, 0, True

    def failed(self, at_ms: int, fraction: float, asked_ms: int) -> None:
        self.row += 1
        if self.is_down:
            self._until_ms = at_ms + pause_ms(self.row - limits.WEBHOOK_FAILURES_MAX + 1, fraction)
        if asked_ms > 0:
            asked_until_ms = at_ms + min(asked_ms, limits.WEBHOOK_REST_MS_MAX)
            self.asked_until_ms = max(self.asked_until_ms, asked_until_ms)

    def end_rest(self) -> None:
        self._until_ms = self.asked_until_ms = 0


# A lane of a webhook at work: a job with something to send, and its next events in memory.


class LaneState:
    """`letter`: it is a dead letter that is tried again."""

    __slots__ = ("after", "error", "is_busy", "job", "last", "letter", "queue", "tries", "until_ms")

    def __init__(self, lane: Lane, letter: DeadLetter | None = None) -> None:
        self.job = lane.job
        self.after = lane.after
        self.last = lane.last
        self.tries = lane.tries
        self.until_ms = lane.until_ms
        self.error = lane.error
        self.letter = letter
        self.queue: list[Event] = []
        self.is_busy = False

    def saved(self) -> Lane:
        return Lane(
            job=self.job, after=self.after, last=self.last, tries=self.tries, until_ms=self.until_ms, error=self.error
        )

    def is_gap(self) -> bool:
        return not self.job

    def head(self, now_ms: int) -> Event:
        """The next event. Of a gap, an event that says so: `ticket` is the number before it."""
        if self.is_gap():
            return Event(at_ms=now_ms, kind=GAP, seq=self.last, ticket=self.after)
        return self.queue[0]


# Counted for a webhook, and for all of a server: tries by how they ended, deliveries given up, losses of history.
COUNTED = ("delivered", "failed", "dead", "gaps")


class DeliveryPlan:
    """The deliveries of one webhook that are left to do. `progress` is as it was stored last."""

    def __init__(
        self,
        webhook: Webhook,
        progress: WebhookProgress,
        letters: Sequence[DeadLetter],
        counts: dict[str, int] | None = None,
    ) -> None:
        self.webhook = webhook
        self._counts = dict.fromkeys(COUNTED, 0) if counts is None else counts
        self.at = progress.at
        self.is_dirty = False
        self.is_behind = True  # there may be events that were not read
        self._ahead: list[Event] = []  # read, and without a lane: all lanes are taken
        self._upto = progress.at  # the number up to which events were read
        self._letters: dict[int, DeadLetter] = {}  # to be written: new and changed ones
        self._delivered: list[int] = []  # dead letters to be removed
        self._progress = progress
        self._notes: list[DeliveryNote] = list(progress.notes)
        self.target = TargetBackoff(progress.until_ms)
        self._in_flight = 0
        self._lanes: dict[str, LaneState] = {lane.job: LaneState(lane) for lane in progress.lanes}
        self._again: dict[str, LaneState] = {}  # lanes of dead letters
        self._waiting: list[DeadLetter] = []  # dead letters without a lane
        self.renew(webhook, letters)

    def renew(self, webhook: Webhook, letters: Sequence[DeadLetter]) -> None:
        """The webhook was changed: perhaps somebody asked for a replay."""
        self.webhook = webhook
        if webhook.replays != self._progress.replays:
            if webhook.replay_after >= 0:
                self._go_back(min(webhook.replay_after, self.at))  # what was not looked at yet is sent anyway
            self.target.end_rest()
            for lane in (*self._lanes.values(), *self._again.values()):
                lane.until_ms = 0
            self._progress = self._progress.replace(replays=webhook.replays)
            self.is_dirty = True
        under_way = {lane.last for lane in self._again.values()}
        changed = self._letters.keys() | under_way | set(self._delivered)
        self._waiting = [each for each in letters if each.again and each.seq not in changed]
        self._open_letters()

    def _go_back(self, after: int) -> None:
        """Read the events after the number `after` again. What waits up to there still waits."""
        self.at = self._upto = after
        self._ahead, self.is_behind = [], True
        for lane in list(self._lanes.values()):
            first = lane.queue[0].seq if lane.queue else lane.after + 1
            if first > after:
                del self._lanes[lane.job]  # a delivery under way changes nothing any more
            elif not lane.is_gap():
                lane.last = min(lane.last, after)
                lane.queue = [event for event in lane.queue if event.seq <= after]

    @property
    def jobs_waiting(self) -> int:
        """Return how many jobs have something to be sent, as far as was read."""
        return len(self._lanes) + len(self._again)

    def _open_letters(self) -> None:
        """One dead letter of a job at a time, the oldest first."""
        rest = []
        for letter in self._waiting:
            if letter.job in self._again or len(self._again) >= limits.WEBHOOK_LANES_MAX:
                rest.append(letter)
            else:
                lane = Lane(job=letter.job, after=letter.seq - 1, last=letter.seq)
                self._again[letter.job] = LaneState(lane, letter)
        self._waiting = rest

    # Reading.

    def wants_events(self) -> bool:
        return not self._ahead and len(self._lanes) < limits.WEBHOOK_LANES_MAX

    def has_work(self) -> bool:
        return bool(self._lanes or self._again or self._ahead or self.is_dirty or self.is_behind)

    def take(self, events: Sequence[Event], upto: int, *, is_last: bool) -> None:
        self._ahead = [event for event in events if event.seq > self.at]
        self._upto = max(upto, self.at)
        self.is_behind = not is_last
        self._advance()

    def _advance(self) -> None:
        for index, event in enumerate(self._ahead):
            if self.webhook.takes(event) and not self._put(event):
                self._ahead = self._ahead[index:]
                return
            self.at = event.seq
        self._ahead = []
        self.at = max(self.at, self._upto)

    def _put(self, event: Event) -> bool:
        lane = self._lanes.get(event.job)
        if lane is None:
            if len(self._lanes) >= limits.WEBHOOK_LANES_MAX:
                return False
            lane = LaneState(Lane(job=event.job, after=event.seq - 1, last=event.seq))
            self._lanes[event.job] = lane
            self.is_dirty = True
        # Those in memory are the next ones, without a hole; what does not fit is read from the store later.
        is_next = bool(lane.queue and lane.queue[-1].seq == lane.last) or lane.last <= lane.after
        if event.seq == lane.last or (is_next and len(lane.queue) < limits.WEBHOOK_LANE_EVENTS_MAX):
            lane.queue.append(event)
        lane.last = event.seq
        return True

    def report_gap(self, after: int, oldest: int) -> None:
        """Events after the number `after` were pruned before they were sent; `oldest` is the first that is there."""
        if oldest <= self.at:  # the store was replaced by an older copy
            self._lanes = {}
            after = min(after, oldest - 1)
        self.at = self._upto = oldest - 1
        self._add_gap(after, oldest - 1)

    def _add_gap(self, after: int, last: int) -> None:
        lane = self._lanes.get("")
        if lane is None or lane.is_busy:
            self._lanes[""] = lane = LaneState(Lane(job="", after=after, last=last))
        lane.after, lane.last = min(lane.after, after), max(lane.last, last)
        self._count("gaps")
        self.is_dirty = True

    def empty_lanes(self) -> list[LaneState]:
        """Lanes whose next events have to be read from the store, with `fill`."""
        lanes = [*self._lanes.values(), *self._again.values()]
        return [lane for lane in lanes if not lane.queue and not lane.is_busy and not lane.is_gap()]

    def fill(self, lane: LaneState, events: Sequence[Event], oldest: int | None, now_ms: int) -> None:
        """The next events of a lane's job. Those before `oldest` were pruned."""
        if lane.letter is None and oldest is not None and oldest > lane.after + 1:
            gone = min(oldest - 1, lane.last)
            self._add_gap(lane.after, gone)
            lane.after = gone
        wanted = [event for event in events if event.seq <= lane.last]
        if lane.letter is None:
            wanted = [event for event in wanted if self.webhook.takes(event)]
        lane.queue = wanted[: limits.WEBHOOK_LANE_EVENTS_MAX]
        if lane.queue:
            return
        if events and events[-1].seq < lane.last:  # none of these is wanted; read on after them
            lane.after = events[-1].seq
            return
        if lane.letter is not None:
            self._give_up(lane, "its event was pruned", now_ms, 0)
            return
        self._close(lane)

    # Sending.

    def ready(self, now_ms: int, most: int) -> list[tuple[LaneState, Event]]:
        """Return what is to be sent now, `most` at most. Each counts as under way until `done` or `failed`."""
        room = (limits.WEBHOOK_IN_FLIGHT_MAX if self.target.is_trusted else 1) - self._in_flight
        if room <= 0 or most <= 0 or self.target.until_ms > now_ms:
            return []
        lanes = [
            lane
            for lane in (*self._lanes.values(), *self._again.values())
            if not lane.is_busy and lane.until_ms <= now_ms and (lane.queue or lane.is_gap())
        ]
        lanes.sort(key=lambda lane: (lane.until_ms, lane.after))
        chosen = lanes[: min(room, most)]
        for lane in chosen:
            lane.is_busy = True
        self._in_flight += len(chosen)
        return [(lane, lane.head(now_ms)) for lane in chosen]

    def next_ms(self) -> int | None:
        lanes = [*self._lanes.values(), *self._again.values()]
        due_ms = min([lane.until_ms for lane in lanes if not lane.is_busy], default=None)
        return None if due_ms is None else max(due_ms, self.target.until_ms)

    def done(self, lane: LaneState, event: Event, note: DeliveryNote, fraction: float) -> None:
        was_down = self.target.is_down
        self.target.succeeded()
        self._finish_delivery(lane, note, "delivered")
        lane.tries, lane.until_ms, lane.error = 0, 0, ""
        if lane.letter is not None:
            self._letters.pop(event.seq, None)
            self._delivered.append(event.seq)
            self._close(lane)
        else:
            self._pass(lane, event)
        if was_down:
            for each in (*self._lanes.values(), *self._again.values()):
                each.until_ms = min(each.until_ms, note.at_ms + int(limits.WEBHOOK_PAUSE_MS_MIN * fraction))

    def failed(self, lane: LaneState, event: Event, note: DeliveryNote, fraction: float, asked_ms: int = 0) -> None:
        """It was not delivered, or nobody knows. `asked_ms`: the rest that the target asked for."""
        self.target.failed(note.at_ms, fraction, asked_ms)
        lane.tries += 1
        lane.error = note.error[: limits.WEBHOOK_ERROR_CHARS_MAX]
        self._finish_delivery(lane, note, "failed")
        if lane.tries < limits.WEBHOOK_TRIES_MAX:
            lane.until_ms = note.at_ms + rest_ms(lane.tries, fraction, asked_ms)
        else:
            self._give_up(lane, lane.error, note.at_ms, lane.tries, event)

    def _finish_delivery(self, lane: LaneState, note: DeliveryNote, counter: str) -> None:
        lane.is_busy = False
        self._in_flight -= 1
        self._notes.insert(0, note)
        del self._notes[limits.WEBHOOK_NOTES_MAX :]
        self._count(counter)
        self.is_dirty = True

    def _count(self, what: str) -> None:
        self._progress = self._progress.replace(**{what: getattr(self._progress, what) + 1})
        self._counts[what] += 1

    def _give_up(self, lane: LaneState, error: str, now_ms: int, tries: int, event: Event | None = None) -> None:
        if lane.letter is not None:
            self._letters[lane.letter.seq] = lane.letter.replace(
                at_ms=now_ms, tries=lane.letter.tries + tries, error=error, again=False
            )
            self._close(lane)
        elif event is not None:
            self._letters[event.seq] = DeadLetter(
                seq=event.seq, job=event.job, kind=event.kind, at_ms=now_ms, tries=tries, error=error
            )
            self._count("dead")
            lane.tries, lane.until_ms, lane.error = 0, 0, ""
            self._pass(lane, event)
        self.is_dirty = True

    def _pass(self, lane: LaneState, event: Event) -> None:
        lane.after = event.seq
        lane.queue = [each for each in lane.queue if each.seq > event.seq]
        if lane.after >= lane.last:
            self._close(lane)

    def _close(self, lane: LaneState) -> None:
        lanes = self._lanes if lane.letter is None else self._again
        if lanes.get(lane.job) is lane:
            del lanes[lane.job]
        self.is_dirty = True
        self._open_letters()
        self._advance()

    # Saving.

    def save(self, token: int) -> SaveDelivery:
        """Return how far it is, to be stored; `noted` when it was."""
        self.is_dirty = False
        lanes = tuple([lane.saved() for lane in self._lanes.values()])
        self._progress = self._progress.replace(
            at=self.at, lanes=lanes, notes=tuple(self._notes), until_ms=self.target.asked_until_ms
        )
        return SaveDelivery(
            webhook_id=self.webhook.id,
            token=token,
            progress=self._progress,
            letters=tuple(self._letters.values()),
            delivered=tuple(self._delivered),
        )

    def noted(self, command: SaveDelivery) -> None:
        for letter in command.letters:
            if self._letters.get(letter.seq) is letter:
                del self._letters[letter.seq]
        self._delivered = [seq for seq in self._delivered if seq not in command.delivered]
