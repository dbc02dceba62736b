"""Webhooks as a store keeps them, the commands about them, and the rules: making and removing webhooks, and which
server delivers. `delivery.py` has the rules about what is sent when.

Nothing here holds an event. The stored events are the queue, and a webhook is a position in it.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable
from dibs.base.record import Record
from dibs.core import events
from dibs.core.commands import PlainCommand
from dibs.core.draft import Draft
from dibs.core.events import LOCK_CHANGES, Event
from dibs.core.limits import WEBHOOK_DEAD_MAX, WEBHOOKS_MAX, WEBHOOKS_PER_PRINCIPAL_MAX
from dibs.core.outcomes import Outcome
from dibs.core.records import WEBHOOK_DUTY_KEY, WEBHOOK_REGISTER_KEY, Kept, dead_letters_key, progress_key, webhook_key

EVERY = "*"
GAP = "gap"  # the kind of a delivery that reports pruned history
TEST = "test"


class Webhook(Kept):
    """A target, and which events it is sent."""

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


class WebhookRegister(Kept):
    """All webhooks, in the order in which they were made: for the limits, and for servers, which read this first."""

    changes: int = 0
    entries: tuple[WebhookEntry, ...] = ()


class Lane(Record):
    """A job with something to send: what follows the event `after`, up to the event `last`. One delivery at a time, so
    events of one job stay in order. A lane without a job reports pruned history between these two numbers."""

    job: str
    after: int
    last: int
    tries: int = 0
    until_ms: int = 0  # not tried before
    error: str = ""


class DeliveryNote(Record):
    at_ms: int
    seq: int
    job: str
    kind: str
    tries: int
    took_ms: int = 0
    status: int = 0  # 0: no answer came
    error: str = ""


class WebhookProgress(Kept):
    """The progress of a webhook: all wanted events up to `at` were delivered, are dead letters, or are in a lane."""

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


class DeadLetters(Kept):
    letters: tuple[DeadLetter, ...] = ()  # oldest first


class WebhookDuty(Kept):
    """The server that delivers, and until when. Like a lease: `token` rises with every server that takes it over."""

    server: str
    token: int
    until_ms: int


class CreateWebhook(PlainCommand):
    """`at` is the number of the last event before it: later ones are sent."""

    webhook: Webhook
    at: int


class RemoveWebhook(PlainCommand):
    webhook_id: str
    by: str


class ReplayWebhook(PlainCommand):
    """Send again: dead letters, or all events after a number. A webhook that was stopped goes on."""

    webhook_id: str
    by: str
    after: int = -1


class StopWebhook(PlainCommand):
    webhook_id: str
    reason: str


class TakeDuty(PlainCommand):
    """Take the duty to deliver if no other server has it, or keep it."""

    server: str
    ttl_ms: int


class LeaveDuty(PlainCommand):
    server: str
    token: int


class SaveDelivery(PlainCommand):
    """Write down how far a webhook is. `letters`: dead letters to add or change; `delivered`: those to remove."""

    webhook_id: str
    token: int  # of the duty
    progress: WebhookProgress
    letters: tuple[DeadLetter, ...] = ()
    delivered: tuple[int, ...] = ()


class WebhookState(Outcome):
    """A webhook, as it is now. None: there is no such webhook, or `full` says why none was made."""

    webhook: Webhook | None
    full: str = ""


class DutyState(Outcome):
    """Whose duty it is. `token` 0: another server's, until `until_ms`."""

    token: int
    until_ms: int


class DeliverySaved(Outcome):
    """`is_ours` false: another server has the duty, or the webhook is gone, and nothing was written."""

    is_ours: bool


CLASSES: dict[str, type[Kept]] = {
    "webhook": Webhook,
    "webhooks": WebhookRegister,
    "webhook-progress": WebhookProgress,
    "webhook-dead": DeadLetters,
    "webhook-duty": WebhookDuty,
}


def create_webhook(draft: Draft, command: CreateWebhook) -> WebhookState:
    made = command.webhook
    found = draft.find(webhook_key(made.id), Webhook)
    draft.get(progress_key(made.id))  # what is written is looked at first
    if found is not None:  # this command was committed before, and its reply was lost
        return WebhookState(now_ms=draft.now_ms, webhook=found)
    register = _register(draft)
    own = [each for each in register.entries if (each.principal, each.bound) == (made.principal, made.bound)]
    full = ""
    if len(own) >= WEBHOOKS_PER_PRINCIPAL_MAX:
        full = f"A token's holder may have {WEBHOOKS_PER_PRINCIPAL_MAX} webhooks. Remove one first."
    elif len(register.entries) >= WEBHOOKS_MAX:
        full = f"The store may have {WEBHOOKS_MAX} webhooks. Remove one first."
    if full:
        return WebhookState(now_ms=draft.now_ms, webhook=None, full=full)
    made = made.replace(since_ms=draft.now_ms)
    entry = WebhookEntry(id=made.id, ns=made.ns, principal=made.principal, bound=made.bound)
    draft.write(webhook_key(made.id), made)
    draft.write(progress_key(made.id), WebhookProgress(at=command.at))
    return _changed(draft, made, events.WEBHOOK_CREATED, made.principal, (*register.entries, entry))


def remove_webhook(draft: Draft, command: RemoveWebhook) -> WebhookState:
    found = draft.find(webhook_key(command.webhook_id), Webhook)
    if found is None:
        return WebhookState(now_ms=draft.now_ms, webhook=None)
    for key in (webhook_key(found.id), progress_key(found.id), dead_letters_key(found.id)):
        if draft.get(key) is not None:
            draft.write(key, None)
    left = tuple([each for each in _register(draft).entries if each.id != found.id])
    return _changed(draft, found, events.WEBHOOK_REMOVED, command.by, left)


def replay_webhook(draft: Draft, command: ReplayWebhook) -> WebhookState:
    """Ask the server that delivers to send again. It begins when it reads the webhook next."""
    found = draft.find(webhook_key(command.webhook_id), Webhook)
    if found is None:
        return WebhookState(now_ms=draft.now_ms, webhook=None)
    if command.after < 0:
        key = dead_letters_key(found.id)
        dead = draft.get(key)
        if isinstance(dead, DeadLetters):
            draft.write(key, DeadLetters(letters=tuple([each.replace(again=True) for each in dead.letters])))
    # A replay of dead letters must not take back one from an event that was not begun yet.
    progress = draft.get(progress_key(found.id))
    is_begun = not isinstance(progress, WebhookProgress) or progress.replays == found.replays
    after = command.after
    if not is_begun and found.replay_after >= 0:
        after = found.replay_after if after < 0 else min(after, found.replay_after)
    found = found.replace(replays=found.replays + 1, replay_after=after, stopped="")
    draft.write(webhook_key(found.id), found)
    return _changed(draft, found, events.WEBHOOK_REPLAYED, command.by)


def stop_webhook(draft: Draft, command: StopWebhook) -> WebhookState:
    found = draft.find(webhook_key(command.webhook_id), Webhook)
    if found is None or found.stopped:
        return WebhookState(now_ms=draft.now_ms, webhook=found)
    found = found.replace(stopped=command.reason)
    draft.write(webhook_key(found.id), found)
    return _changed(draft, found, events.WEBHOOK_STOPPED, "")


def take_duty(draft: Draft, command: TakeDuty) -> DutyState:
    """The duty to deliver goes to one server at a time, as a job goes to one owner."""
    duty = draft.find(WEBHOOK_DUTY_KEY, WebhookDuty)
    if duty is not None and duty.server != command.server and duty.until_ms > draft.now_ms:
        return DutyState(now_ms=draft.now_ms, token=0, until_ms=duty.until_ms)
    until_ms = draft.now_ms + command.ttl_ms
    token = duty.token if duty is not None else 0
    if duty is None or duty.server != command.server or duty.until_ms <= draft.now_ms:
        token += 1
    draft.write(WEBHOOK_DUTY_KEY, WebhookDuty(server=command.server, token=token, until_ms=until_ms))
    return DutyState(now_ms=draft.now_ms, token=token, until_ms=until_ms)


def leave_duty(draft: Draft, command: LeaveDuty) -> DutyState:
    """Give the duty up. Its number stays on record, so that the next one is higher."""
    duty = draft.find(WEBHOOK_DUTY_KEY, WebhookDuty)
    if duty is not None and (duty.server, duty.token) == (command.server, command.token):
        draft.write(WEBHOOK_DUTY_KEY, duty.replace(until_ms=0))
    return DutyState(now_ms=draft.now_ms, token=0, until_ms=0)


def save_delivery(draft: Draft, command: SaveDelivery) -> DeliverySaved:
    """Write down how far a webhook is, unless another server has taken over the duty."""
    duty = draft.find(WEBHOOK_DUTY_KEY, WebhookDuty)
    if duty is None or duty.token != command.token or draft.find(webhook_key(command.webhook_id), Webhook) is None:
        return DeliverySaved(now_ms=draft.now_ms, is_ours=False)
    known_progress = draft.get(progress_key(command.webhook_id))
    dropped = known_progress.dropped if isinstance(known_progress, WebhookProgress) else 0
    if command.letters or command.delivered:
        changed = {each.seq: each for each in command.letters}
        known = draft.get(dead_letters_key(command.webhook_id))
        letters = known.letters if isinstance(known, DeadLetters) else ()
        kept = [each for each in letters if each.seq not in changed and each.seq not in command.delivered]
        kept = sorted([*kept, *changed.values()], key=lambda each: each.seq)
        dropped += max(len(kept) - WEBHOOK_DEAD_MAX, 0)
        letters = tuple(kept[-WEBHOOK_DEAD_MAX:])
        draft.write(dead_letters_key(command.webhook_id), DeadLetters(letters=letters))
    draft.write(progress_key(command.webhook_id), command.progress.replace(dropped=dropped))
    return DeliverySaved(now_ms=draft.now_ms, is_ours=True)


def _register(draft: Draft) -> WebhookRegister:
    return draft.find(WEBHOOK_REGISTER_KEY, WebhookRegister) or WebhookRegister()


def _changed(
    draft: Draft, webhook: Webhook, kind: str, by: str, entries: tuple[WebhookEntry, ...] | None = None
) -> WebhookState:
    """Note a change in the register, and its entries, and as an event, which names no URL: that may hold a secret."""
    register = _register(draft)
    kept = register.entries if entries is None else entries
    draft.write(WEBHOOK_REGISTER_KEY, WebhookRegister(changes=register.changes + 1, entries=kept))
    about = f"webhook {webhook.id}"
    draft.emit(kind, webhook.ns, principal=webhook.principal, by=by or None, reason=about)
    return WebhookState(now_ms=draft.now_ms, webhook=webhook)


RULES: dict[type[Any], Callable[[Draft, Any], Outcome]] = {
    CreateWebhook: create_webhook,
    RemoveWebhook: remove_webhook,
    ReplayWebhook: replay_webhook,
    StopWebhook: stop_webhook,
    TakeDuty: take_duty,
    LeaveDuty: leave_duty,
    SaveDelivery: save_delivery,
}
