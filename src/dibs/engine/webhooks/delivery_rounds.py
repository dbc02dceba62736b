"""Delivers to webhooks in rounds, on an event loop. A round takes the duty, learns which webhooks there are, reads
their events, sends, and writes down how far each is. What is sent when is decided in `core/delivery.py`.
"""

from __future__ import annotations

import asyncio
import hmac
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError, StoreUnavailable
from dibs.base.ids import new_fraction
from dibs.core import limits
from dibs.core.credentials import CredentialRegister
from dibs.core.delivery import DeliveryPlan
from dibs.core.identity import LOCAL
from dibs.core.keys import REGISTER_KEY, dead_letters_key, progress_key, webhook_key
from dibs.core.webhooks import (
    DeadLetters,
    DeliveryNote,
    DeliverySaved,
    DutyState,
    LeaveDuty,
    StopWebhook,
    TakeDuty,
    Webhook,
    WebhookProgress,
)
from dibs.engine.coordinator import Coordinator
from dibs.engine.credentials import credential_pages
from dibs.engine.event_log import EventFilter, read_page
from dibs.engine.webhooks.admin import registered
from dibs.wire.webhooks import payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from dibs.core.delivery import LaneState
    from dibs.core.events import Event
    from dibs.core.webhooks import DeadLetter, SaveDelivery
    from dibs.engine.event_log import EventPage
    from dibs.engine.webhooks.sender import DeliveryResult, Sender
    from dibs.stores.port import Snapshot, Store

    Owner = tuple[str, str | None]
    Found = TypeVar("Found")

# What the dispatcher reads from the store and writes there. Everything here is called on one thread.

NO_TOKEN = "All tokens of its owner have expired or were revoked."


class Duty:
    """The duty to deliver, as this server has it. Times are steady ones of this machine."""

    def __init__(self, token: int, asked_ms: int) -> None:
        self.token = token
        self.is_ours = True
        self.taken(asked_ms)

    def taken(self, asked_ms: int) -> None:
        """It lasts from before it was asked for, so it ends here before it ends in the store."""
        self.is_renewed_at = asked_ms + limits.WEBHOOK_DUTY_MS // 3
        self.safe_until = asked_ms + limits.WEBHOOK_DUTY_MS * 2 // 3


class WebhookLedger:
    def __init__(self, store: Store, server: str) -> None:
        self._store = store
        self._coordinator = Coordinator(store)
        self._server = server
        self._steady: Callable[[], int] = lambda: 0
        # Principals with their namespaces: those with a valid token, and those all of whose tokens are over.
        self._valid: set[Owner] = set()
        self._over: set[Owner] = set()
        self._over_at = (-1, 0)  # of which change of the tokens, and when
        self.holders: Callable[[], set[Owner] | None] = lambda: None  # whom a server lets in besides; None: unknown
        self._ahead_ms = 0  # how far the store's clock is ahead of ours

    def now_ms(self, steady_now_ms: int) -> int:
        """The store's time, about. Deliveries are rare enough to be a little early."""
        return steady_now_ms + self._ahead_ms

    def take_duty(self, steady: Callable[[], int]) -> tuple[bool, Duty | None, int]:
        """Return whether there are webhooks; the duty; if another server has it, for how long."""
        self._steady = steady
        if not registered(self._store).entries:
            return False, None, 0
        asked_ms = steady()
        state = self._ask_duty()
        if not state.token:
            return True, None, max(state.until_ms - state.now_ms, 0)
        return True, Duty(state.token, asked_ms), 0

    def renew(self, duty: Duty) -> bool:
        """Keep the duty. A higher number means that another server had it meanwhile, or that it ran out."""
        asked_ms = self._steady()
        state = self._ask_duty()
        duty.is_ours = state.token == duty.token
        if duty.is_ours:
            duty.taken(asked_ms)
        elif state.token:
            self.leave(Duty(state.token, asked_ms))
        return duty.is_ours

    def leave(self, duty: Duty) -> None:
        self._coordinator.one(LeaveDuty(server=self._server, token=duty.token))

    def _ask_duty(self) -> DutyState:
        state = self._coordinator.one(TakeDuty(server=self._server, ttl_ms=limits.WEBHOOK_DUTY_MS))
        if not isinstance(state, DutyState):  # frozen, to be moved
            raise StoreUnavailable("The store is frozen.")
        self._ahead_ms = state.now_ms - self._steady()
        return state

    def webhooks(self) -> list[tuple[Webhook, WebhookProgress, tuple[DeadLetter, ...]]]:
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
            if not isinstance(webhook, Webhook) or not isinstance(progress, WebhookProgress):
                continue
            if not webhook.stopped and self._is_over((webhook.principal, webhook.bound), in_file):
                self._coordinator.one(StopWebhook(webhook_id=webhook.id, reason=NO_TOKEN))
            elif not webhook.stopped:
                found.append((webhook, progress, dead.letters if isinstance(dead, DeadLetters) else ()))
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
            self._read_owners(snapshot.now_ms)
            self._over_at = (changes, snapshot.now_ms)

    def _read_owners(self, now_ms: int) -> None:
        over: set[Owner] = set()
        valid: set[Owner] = set()
        for page in credential_pages(self._store):
            for each in page:
                (over if each.is_over(now_ms) else valid).add((each.name, each.namespace))
        self._valid, self._over = valid, over - valid

    def pages(self, positions: Iterable[int]) -> dict[int, EventPage]:
        """The events after each position. Webhooks at the same position share a page."""
        return {at: read_page(self._store, at, limits.FEED_PAGE_MAX) for at in positions}

    def lane_pages(self, lanes: Sequence[tuple[str, LaneState]]) -> list[EventPage]:
        """The next events of each lane's job. Each lane is given with its namespace."""
        most = limits.WEBHOOK_LANE_EVENTS_MAX
        return [read_page(self._store, lane.after, most, EventFilter(ns=ns, name=lane.job)) for ns, lane in lanes]

    def save(self, commands: Sequence[SaveDelivery]) -> list[bool]:
        """Return whether each was written. Not if another server has the duty, or the webhook was removed."""
        saved = []
        for command in commands:  # one commit each: together they may be larger than a store takes
            outcome = self._coordinator.one(command)
            if not isinstance(outcome, DeliverySaved):
                raise StoreUnavailable("The store is frozen.")
            saved.append(outcome.is_ours)
        return saved


# Signs deliveries. A receiver checks one of the two headers with the webhook's secret.

OCTOSTORE_HEADER = "X-OctoStore-Signature"
HEADER = "X-Dibs-Signature"


def signatures(secret: str, body: bytes, at_s: int) -> dict[str, str]:
    """OctoStore's signature is over the body alone, so a copied delivery stays valid for ever. Ours is over the time,
    too: a receiver refuses one that is old."""
    if not secret:
        return {}
    key = secret.encode()
    return {
        OCTOSTORE_HEADER: f"sha256={hmac.new(key, body, 'sha256').hexdigest()}",
        HEADER: f"t={at_s},v1={hmac.new(key, b'%d.' % at_s + body, 'sha256').hexdigest()}",
    }


FAILED_MS = 1_000  # after a round that failed


class DeliveryRounds:
    """For one event loop, between `begin` and `end`. Other threads may set `has_news` and `has_changes`, and read
    `jobs_waiting`."""

    def __init__(self, ledger: WebhookLedger, steady: Callable[[], int], counts: dict[str, int] | None) -> None:
        self.has_news = True  # there may be events that nobody has delivered
        self.has_changes = True  # there may be other webhooks
        self._ledger = ledger
        self._steady = steady
        self._counts = counts  # of all webhooks, since the start
        self._plans: dict[str, DeliveryPlan] = {}  # the duty's, while this server has it
        self._duty: Duty | None = None

    def begin(self, sender: Sender, rouse: Callable[[], None]) -> None:
        """`rouse` asks for the next round."""
        self.sender = sender
        self._rouse = rouse
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubted: set[asyncio.Task[None]] = set()  # of them, those to targets that have not answered yet
        self._looked_ms = self._saved_ms = self._busy_ms = self._steady()
        self._turn = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="dibs-webhook-store")

    async def end(self) -> None:
        """Send nothing more, write down how far it is, and give up the duty."""
        for task in self._tasks:
            task.cancel()
        with suppress(DibsError):
            await self._resign()
        self.sender.close()
        self._reader.shutdown(wait=False, cancel_futures=True)

    @property
    def has_duty(self) -> bool:
        return self._duty is not None

    @property
    def jobs_waiting(self) -> int:
        """Return how many jobs have something to be sent by this server."""
        return sum([plan.jobs_waiting for plan in list(self._plans.values())])

    async def round(self) -> int:
        """One look at everything. Returns after how many milliseconds the next is due, if nothing happens before."""
        now_ms = self._steady()
        is_due = now_ms - self._looked_ms >= limits.WEBHOOK_LOOK_MS
        if self._duty is None:
            if not self.has_news and not self.has_changes:
                return limits.WEBHOOK_LOOK_MS * 30
            wait_ms = await self._take_duty()
            if wait_ms:
                return wait_ms
        elif self._duty.is_renewed_at <= now_ms:
            await self._in_store(self._ledger.renew, self._duty)
        if self._duty is None or not self._duty.is_ours:
            self._abandon()
            return FAILED_MS
        if self.has_changes or is_due:
            await self._look()
        await self._read()
        self._deliver()
        if self._steady() - self._saved_ms >= limits.WEBHOOK_SAVE_MS:
            await self._save()
        return await self._rest()

    async def _take_duty(self) -> int:
        """0 if it is ours now; else how long to wait before the next try."""
        has_any, duty, wait_ms = await self._in_store(self._ledger.take_duty, self._steady)
        if not has_any:
            self.has_news = self.has_changes = False
            return limits.WEBHOOK_LOOK_MS * 30
        if duty is None:
            return int(wait_ms + limits.WEBHOOK_PAUSE_MS_MIN * new_fraction())
        self._duty, self._plans = duty, {}
        self.has_changes = True
        self._busy_ms = self._steady()
        return 0

    def _abandon(self) -> None:
        """Another server has the duty, or may have it. What is under way there may come twice."""
        for task in self._tasks:
            task.cancel()
        self._duty, self._plans, self.has_news = None, {}, True

    async def _look(self) -> None:
        """Learn which webhooks there are."""
        self._looked_ms, self.has_changes = self._steady(), False
        found = await self._in_store(self._ledger.webhooks)
        plans = {}
        for webhook, progress, letters in found:
            plan = self._plans.get(webhook.id)
            if plan is None:
                plan = DeliveryPlan(webhook, progress, letters, self._counts)
            elif plan.webhook != webhook:
                plan.renew(webhook, letters)
            plans[webhook.id] = plan
        self._plans = plans
        self.sender.tidy()

    async def _read(self) -> None:
        """Plans are changed on this thread only, so what was read is given to them afterwards."""
        has_news, self.has_news = self.has_news, False
        lanes = [(plan, lane) for plan in self._plans.values() for lane in plan.empty_lanes()]
        if lanes:
            wanted = [(plan.webhook.ns, lane) for plan, lane in lanes]
            pages = await self._in_store(self._ledger.lane_pages, wanted)
            for (plan, lane), page in zip(lanes, pages, strict=True):
                plan.fill(lane, page.events, page.oldest, self._store_ms())
        plans = [each for each in self._plans.values() if (has_news or each.is_behind) and each.wants_events()]
        if has_news:
            for plan in self._plans.values():
                plan.is_behind = True
        if not plans:
            return
        found = await self._in_store(self._ledger.pages, {plan.at for plan in plans})
        for plan in plans:
            after = found[plan.at]  # only this coroutine moves a position
            if after.oldest is not None:
                plan.tell_gap(plan.at, after.oldest)
            plan.take(after.events, after.upto, is_last=after.is_last)

    def _deliver(self) -> None:
        """Start what is ready. Targets that answer come first, and those that do not leave half of the places free:
        many that hang must not keep the others waiting."""
        if self._duty is None or self._steady() >= self._duty.safe_until:
            return
        plans = list(self._plans.values())
        self._turn += 1
        start = self._turn % max(len(plans), 1)  # beginning with another webhook each time
        plans = sorted(plans[start:] + plans[:start], key=lambda plan: (not plan.target.is_trusted, plan.target.row))
        now_ms = self._store_ms()
        for plan in plans:
            room = limits.WEBHOOK_ALL_IN_FLIGHT_MAX - len(self._tasks)
            if not plan.target.is_trusted:
                room = min(room, limits.WEBHOOK_DOUBTED_IN_FLIGHT_MAX - len(self._doubted))
            for lane, event in plan.ready(now_ms, room):
                self._start(plan, lane, event)

    def _start(self, plan: DeliveryPlan, lane: LaneState, event: Event) -> None:
        task = asyncio.ensure_future(self._try(plan, lane, event))
        for tasks in (self._tasks,) if plan.target.is_trusted else (self._tasks, self._doubted):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _try(self, plan: DeliveryPlan, lane: LaneState, event: Event) -> None:
        tries = lane.tries + 1
        result = await self.send(plan.webhook, event, tries)
        note = DeliveryNote(
            at_ms=self._store_ms(),
            seq=event.seq,
            job=event.job,
            kind=event.kind,
            tries=tries,
            took_ms=result.took_ms,
            status=result.status,
            error=result.error[: limits.WEBHOOK_ERROR_CHARS_MAX],
        )
        if result.error:
            plan.failed(lane, event, note, new_fraction(), result.rest_ms)
        else:
            plan.done(lane, event, note, new_fraction())
        self._rouse()

    async def send(self, webhook: Webhook, event: Event, tries: int) -> DeliveryResult:
        body = payload(webhook, event)
        headers = {
            "X-Dibs-Event-Id": str(event.seq),
            "X-Dibs-Webhook-Id": webhook.id,
            "X-Dibs-Try": str(tries),
            **signatures(webhook.secret, body, wall_ms() // 1000),
        }
        return await self.sender.send(webhook.url, headers, body)

    async def _save(self, *, positions: bool = False) -> None:
        """Write down how far each webhook is. With `positions`, also if only events came that it does not want."""
        self._saved_ms = self._steady()
        assert self._duty is not None
        plans = [plan for plan in self._plans.values() if plan.is_dirty or positions]
        if not plans:
            return
        commands = [plan.save(self._duty.token) for plan in plans]
        try:
            saved = await self._in_store(self._ledger.save, commands)
        except BaseException:
            for plan in plans:
                plan.is_dirty = True
            raise
        for plan, command, is_ours in zip(plans, commands, saved, strict=True):
            if is_ours:
                plan.noted(command)
        if not all(saved):
            self.has_changes = True  # it was removed; if the duty is another server's, renewing it says so
            await self._in_store(self._ledger.renew, self._duty)

    async def _rest(self) -> int:
        """Return how long nothing is to be done. Gives up the duty if that has lasted for long."""
        now_ms = self._steady()
        if self._tasks or self.has_news or any(plan.has_work() for plan in self._plans.values()):
            self._busy_ms = now_ms
        elif now_ms - self._busy_ms >= limits.WEBHOOK_IDLE_MS:
            await self._resign()
            return limits.WEBHOOK_LOOK_MS * 30
        at_ms = [now_ms + limits.WEBHOOK_LOOK_MS]
        if any(plan.is_dirty for plan in self._plans.values()):
            at_ms.append(self._saved_ms + limits.WEBHOOK_SAVE_MS)
        store_ms = self._store_ms()
        if any(plan.is_behind and plan.wants_events() for plan in self._plans.values()):
            return 0
        for plan in self._plans.values():
            due_ms = plan.next_ms()
            if due_ms is not None and due_ms > store_ms:
                at_ms.append(now_ms + due_ms - store_ms)
        return 0 if self.has_news else max(min(at_ms) - now_ms, 1)

    async def _resign(self) -> None:
        if self._duty is not None and self._duty.is_ours:
            await self._save(positions=True)
            await self._in_store(self._ledger.leave, self._duty)
        self._duty, self._plans = None, {}

    def _store_ms(self) -> int:
        return self._ledger.now_ms(self._steady())

    async def _in_store(self, call: Callable[..., Found], *args: object) -> Found:
        """The store may take long to answer."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, call, *args)
