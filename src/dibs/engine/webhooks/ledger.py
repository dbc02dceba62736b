"""The store as the dispatcher reads and writes it, on one thread: the duty, the webhooks, their events and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.core import limits
from dibs.core import webhooks as rules
from dibs.core.credentials import CredentialRegister
from dibs.core.delivery import LaneState
from dibs.core.identity import LOCAL
from dibs.core.records import REGISTER_KEY, dead_letters_key, progress_key, webhook_key
from dibs.engine.coordinator import Coordinator
from dibs.engine.credentials import every_credential
from dibs.engine.event_log import EventFilter, EventPage, read_page
from dibs.engine.webhooks import registered
from dibs.stores.port import Snapshot, Store

Owner = tuple[str, str | None]

NO_TOKEN = "All tokens of its owner have expired or were revoked."


class WebhookLedger:
    """`duty` is the number of the duty to deliver while this server has it, else 0. Times are steady ones of here."""

    def __init__(self, store: Store, server: str, steady: Callable[[], int] = steady_ms) -> None:
        self._store = store
        self._coordinator = Coordinator(store)
        self._server = server
        self._steady = steady
        # Principals with their namespaces: those with a valid token, and those all of whose tokens are over.
        self._valid: set[Owner] = set()
        self._over: set[Owner] = set()
        self._over_at = (-1, 0)  # of which change of the tokens, and when
        self.holders: Callable[[], set[Owner] | None] = lambda: None  # whom a server lets in besides; None: unknown
        self._ahead_ms = 0  # how far the store's clock is ahead of ours
        self.duty = self.renew_at_ms = self.safe_until_ms = 0

    def now_ms(self) -> int:
        """The store's time, about. Deliveries are rare enough to be a little early."""
        return self._steady() + self._ahead_ms

    def take_duty(self) -> int | None:
        """Take the duty, if it is free. Returns for how long another server has it; None if there are no webhooks."""
        if not registered(self._store).entries:
            return None
        state = self._ask_duty()
        self.duty = state.token
        return 0 if state.token else max(state.until_ms - state.now_ms, 0)

    def renew(self) -> None:
        """Keep the duty. A higher number means that another server had it meanwhile, or that it ran out."""
        had, token = self.duty, self._ask_duty().token
        if token != had:
            self.duty = token
            self.leave()

    def leave(self) -> None:
        token, self.duty = self.duty, 0
        if token:
            self._coordinator.one(rules.LeaveDuty(server=self._server, token=token))

    def _ask_duty(self) -> rules.DutyState:
        asked_ms = self._steady()
        state = self._coordinator.one(rules.TakeDuty(server=self._server, ttl_ms=limits.WEBHOOK_DUTY_MS))
        if not isinstance(state, rules.DutyState):  # frozen, to be moved
            raise StoreUnavailable("The store is frozen.")
        self._ahead_ms = state.now_ms - self._steady()
        # It lasts from before it was asked for, so it ends here before it ends in the store.
        self.renew_at_ms = asked_ms + limits.WEBHOOK_DUTY_MS // 3
        self.safe_until_ms = asked_ms + limits.WEBHOOK_DUTY_MS * 2 // 3
        return state

    def webhooks(self) -> list[tuple[rules.Webhook, rules.WebhookProgress, tuple[rules.DeadLetter, ...]]]:
        """All that are to be served. Stops those whose owner has no valid token any more."""
        ids = [each.id for each in registered(self._store).entries]
        keys = [key(each) for each in ids for key in (webhook_key, progress_key, dead_letters_key)]
        snapshot = self._store.read((*keys, REGISTER_KEY))
        found = []
        self._look_at_owners(snapshot)
        in_file = self.holders()
        for each in ids:
            records = [snapshot.records[key(each)].record for key in (webhook_key, progress_key, dead_letters_key)]
            webhook, progress, dead = records
            if not isinstance(webhook, rules.Webhook) or not isinstance(progress, rules.WebhookProgress):
                continue
            if not webhook.stopped and self._is_over((webhook.principal, webhook.bound), in_file):
                self._coordinator.one(rules.StopWebhook(webhook_id=webhook.id, reason=NO_TOKEN))
            elif not webhook.stopped:
                found.append((webhook, progress, dead.letters if isinstance(dead, rules.DeadLetters) else ()))
        return found

    def _is_over(self, owner: Owner, in_file: set[Owner] | None) -> bool:
        """Return whether an owner has no valid token any more. A user of the store itself has none, and needs none."""
        if in_file is None:
            return owner in self._over
        return owner not in in_file and owner not in self._valid and owner[0] != LOCAL.principal

    def _look_at_owners(self, snapshot: Snapshot) -> None:
        """There may be many tokens: they are read after a change, and now and then, because tokens expire."""
        register = snapshot.records[REGISTER_KEY].record
        changes = register.changes if isinstance(register, CredentialRegister) else 0
        known, at_ms = self._over_at
        if changes != known or snapshot.now_ms - at_ms > limits.CREDENTIAL_RELOAD_MS:
            over: set[Owner] = set()
            valid: set[Owner] = set()
            for each in every_credential(self._store):
                (over if each.is_over(snapshot.now_ms) else valid).add((each.name, each.namespace))
            self._valid, self._over = valid, over - valid
            self._over_at = (changes, snapshot.now_ms)

    def pages(self, positions: Iterable[int]) -> dict[int, EventPage]:
        """The events after each position. Webhooks at the same position share a page."""
        return {at: read_page(self._store, at, limits.FEED_PAGE_MAX) for at in positions}

    def lane_pages(self, lanes: Sequence[tuple[str, LaneState]]) -> list[EventPage]:
        most = limits.WEBHOOK_LANE_EVENTS_MAX
        return [read_page(self._store, lane.after, most, EventFilter(ns=ns, name=lane.job)) for ns, lane in lanes]

    def save(self, commands: Sequence[rules.SaveDelivery]) -> list[bool]:
        """Return whether each was written. Not if another server has the duty, or the webhook was removed."""
        saved = []
        for command in commands:  # one commit each: together they may be larger than a store takes
            outcome = self._coordinator.one(command)
            if not isinstance(outcome, rules.DeliverySaved):
                raise StoreUnavailable("The store is frozen.")
            saved.append(outcome.is_ours)
        return saved
