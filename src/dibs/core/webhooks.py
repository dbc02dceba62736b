"""Webhooks as a store keeps them, and the commands about them. Values only: `subscriptions.py` has the rules about
webhooks, `delivery.py` those about what is sent when.

Nothing here holds an event. The stored events are the queue, and a webhook is a position in it.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.events import LOCK_CHANGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.events import Event

EVERY = "*"
GAP = "gap"  # the kind of a delivery that tells of pruned history
TEST = "test"


class _Kept(Record):
    """No sweep has to look at these records, and nobody holds anything by them."""

    def due_ms(self) -> int | None:
        return None

    def is_live(self) -> bool:
        return False


class Webhook(_Kept):
    """Where to send which events."""

    id: str
    ns: str
    principal: str
    url: str
    since_ms: int
    secret: str = ""  # in clear, because deliveries are signed with it; never shown
    events: tuple[str, ...] = (EVERY,)
    pattern: str = EVERY
    bound: str | None = None  # the namespace of its owner's token
    # Only changes of who has what, of claims of its owner alone, and of names that begin with `bound`.
    own: bool = False
    stopped: str = ""  # why nothing is sent any more
    replays: int = 0  # how many replays were asked for
    replay_after: int = -1  # the event after which the last one begins; -1: of dead letters only

    def takes(self, event: Event) -> bool:
        """Return whether this event is to be sent."""
        if event.ns != self.ns or not event.job or (self.own and event.principal != self.principal):
            return False
        word = LOCK_CHANGES.get(event.kind)
        if self.own and word is None:
            return False
        # Two users of two beginnings of names may share a name.
        if self.own and self.bound is not None and not event.job.startswith(f"{self.bound}."):
            return False
        if EVERY not in self.events and event.kind not in self.events and word not in self.events:
            return False
        if self.pattern.endswith(EVERY):
            return event.job.startswith(self.pattern[:-1])
        return event.job == self.pattern


class WebhookEntry(Record):
    id: str
    ns: str
    principal: str
    bound: str | None = None


class WebhookRegister(_Kept):
    """All webhooks, in the order in which they were made: for the limits, and for servers, which read this first."""

    changes: int = 0
    entries: tuple[WebhookEntry, ...] = ()


class Lane(Record):
    """A job with something to send: what follows the event `after`, up to the event `last`. One delivery at a time, so
    events of one job stay in order. A lane without a job tells of pruned history between these two numbers."""

    job: str
    after: int
    last: int
    tries: int = 0
    until_ms: int = 0  # not tried before
    error: str = ""


class DeliveryNote(Record):
    """One line of the delivery log."""

    at_ms: int
    seq: int
    job: str
    kind: str
    tries: int
    took_ms: int = 0
    status: int = 0  # 0: no answer came
    error: str = ""


class WebhookProgress(_Kept):
    """How far a webhook is: all wanted events up to `at` were delivered, are dead letters, or are in a lane."""

    at: int
    replays: int = 0  # the replays that were begun
    lanes: tuple[Lane, ...] = ()
    notes: tuple[DeliveryNote, ...] = ()  # newest first
    delivered: int = 0
    failed: int = 0  # tries
    dead: int = 0  # all that ever were
    dropped: int = 0  # dead letters that were too many
    gaps: int = 0
    until_ms: int = 0  # the target asked not to be sent anything before


class DeadLetter(Record):
    """A delivery that was given up. The event itself is in the history."""

    seq: int
    job: str
    kind: str
    at_ms: int
    tries: int
    error: str = ""
    again: bool = False  # it is to be tried again


class DeadLetters(_Kept):
    letters: tuple[DeadLetter, ...] = ()  # oldest first


class WebhookDuty(_Kept):
    """Which server delivers, and until when. Like a lease: `token` rises with every server that takes it over."""

    server: str
    token: int
    until_ms: int


class CreateWebhook(Record):
    """`at` is the number of the last event before it: later ones are sent."""

    webhook: Webhook
    at: int


class RemoveWebhook(Record):
    webhook_id: str
    by: str


class ReplayWebhook(Record):
    """Send again: dead letters, or all events after a number. A webhook that was stopped goes on."""

    webhook_id: str
    by: str
    after: int = -1


class StopWebhook(Record):
    webhook_id: str
    reason: str


class TakeDuty(Record):
    """Take the duty to deliver if no other server has it, or keep it."""

    server: str
    ttl_ms: int


class LeaveDuty(Record):
    server: str
    token: int


class SaveDelivery(Record):
    """Write down how far a webhook is. `letters` are new or changed dead letters, `settled` the numbers of those that
    were delivered after all."""

    webhook_id: str
    token: int  # of the duty
    progress: WebhookProgress
    letters: tuple[DeadLetter, ...] = ()
    settled: tuple[int, ...] = ()


class WebhookState(Record):
    """A webhook, as it is now. None: there is no such webhook, or `full` says why none was made."""

    now_ms: int
    webhook: Webhook | None
    full: str = ""


class DutyState(Record):
    """Whose duty it is. `token` 0: another server's, until `until_ms`."""

    now_ms: int
    token: int
    until_ms: int


class DeliverySaved(Record):
    """`is_ours` false: another server has the duty, or the webhook is gone, and nothing was written."""

    now_ms: int
    is_ours: bool


WebhookCommand = CreateWebhook | RemoveWebhook | ReplayWebhook | StopWebhook | TakeDuty | LeaveDuty | SaveDelivery
WebhookOutcome = WebhookState | DutyState | DeliverySaved

CLASSES: dict[str, type[Webhook | WebhookRegister | WebhookProgress | DeadLetters | WebhookDuty]] = {
    "webhook": Webhook,
    "webhooks": WebhookRegister,
    "webhook-progress": WebhookProgress,
    "webhook-dead": DeadLetters,
    "webhook-duty": WebhookDuty,
}
