"""The thread that delivers to webhooks. It has an event loop of its own: neither a slow target nor a TLS handshake
delays a claim. Without webhooks there is no thread.

All servers of a store know its webhooks, and one has the **duty** to deliver (`core/service/webhooks.py`). It keeps the
duty while there is something to deliver; the others look again when it should have been renewed. The duty has a number
that rises, and progress is written only with the current one: a server that was paused cannot move the position of the
one that took over. What was sent since the last write is sent again after a crash.

It delivers in rounds. A round takes the duty, learns which webhooks there are, reads their events, sends, and writes
down how far each is. What is sent when is decided in `core/service/delivery.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import DibsError, StoreUnavailable, Unavailable
from dibs.base.ids import new_fraction, new_token
from dibs.base.logger import log
from dibs.core import limits
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import Command
from dibs.core.events import Event
from dibs.core.outcomes import Outcome
from dibs.core.records import REGISTER_KEY, dead_letters_key, progress_key, webhook_key
from dibs.core.service import webhooks as rules
from dibs.core.service.credentials import CredentialRegister
from dibs.core.service.delivery import DeliveryPlan, LaneState
from dibs.core.service.webhooks import TEST, DeliveryNote, Webhook
from dibs.engine.coordinator import run_one
from dibs.engine.credentials import every_credential
from dibs.engine.event_log import EventFilter, EventPage, read_page
from dibs.engine.webhooks import registered
from dibs.engine.webhooks.sender import DeliveryResult, Sender, delivery_headers
from dibs.stores.port import Snapshot, Store, read_sound
from dibs.wire.webhooks import payload

# The store as the rounds read and write it, on one thread: the duty, the webhooks, their events and progress.

Owner = tuple[str, str | None]

NO_TOKEN = "All tokens of its owner have expired or were revoked."


class WebhookLedger:
    """`duty` is the number of the duty to deliver while this server has it, else 0. Times are steady ones of here."""

    def __init__(self, store: Store, server: str, steady: Callable[[], int] = steady_ms) -> None:
        self._store = store
        self.run: Callable[[Command], Outcome] = partial(run_one, store)
        self._server = server
        self._steady = steady
        # Principals with their namespaces: those with a valid token, and those all of whose tokens are over.
        self._valid: set[Owner] = set()
        self._over: set[Owner] = set()
        self._over_at = (-1, 0)  # of which change of the tokens, and when
        self.lets_in: Callable[[Owner], bool | None] = lambda owner: None  # without a token of the store; None: unknown
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
            self.run(rules.LeaveDuty(server=self._server, token=token))

    def _ask_duty(self) -> rules.DutyState:
        asked_ms = self._steady()
        state = self.run(rules.TakeDuty(server=self._server, ttl_ms=limits.WEBHOOK_DUTY_MS))
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
        snapshot = read_sound(self._store, (*keys, REGISTER_KEY))  # a damaged webhook waits; the others do not
        found = []
        self._look_at_owners(snapshot)
        for each in ids:
            records = [snapshot.records[key(each)].record for key in (webhook_key, progress_key, dead_letters_key)]
            webhook, progress, dead = records
            if not isinstance(webhook, rules.Webhook) or not isinstance(progress, rules.WebhookProgress):
                continue
            if not webhook.stopped and self._is_over((webhook.principal, webhook.bound)):
                self.run(rules.StopWebhook(webhook_id=webhook.id, reason=NO_TOKEN))
            elif not webhook.stopped:
                found.append((webhook, progress, dead.letters if isinstance(dead, rules.DeadLetters) else ()))
        return found

    def _is_over(self, owner: Owner) -> bool:
        """Return whether an owner has no valid token any more. A user of the store itself has none, and needs none. Who
        may come in by other means is not known of everybody: then only the end of the store's tokens counts."""
        if owner in self._valid or owner[0] == LOCAL.principal:
            return False
        is_let_in = self.lets_in(owner)
        return owner in self._over if is_let_in is None else not is_let_in

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
            outcome = self.run(command)
            if not isinstance(outcome, rules.DeliverySaved):
                raise StoreUnavailable("The store is frozen.")
            saved.append(outcome.is_ours)
        return saved


Found = TypeVar("Found")

_STOP_S = 3.0
_GATHER_S = 0.01
FAILED_MS = 1_000  # after a round that failed


class DeliveryRounds:
    """For one event loop, between `begin` and `end`. Other threads may set `has_news` and `has_changes`."""

    def __init__(self, ledger: WebhookLedger, steady: Callable[[], int], counts: dict[str, int] | None) -> None:
        self.has_news = True  # there may be events that nobody has delivered
        self.has_changes = True  # there may be other webhooks
        self._ledger = ledger
        self._steady = steady
        self._counts = counts  # of all webhooks, since the start
        self._plans: dict[str, DeliveryPlan] = {}  # the duty's, while this server has it
        self.fraction = new_fraction

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
    def jobs_waiting(self) -> int:
        """Return how many jobs have something to be sent by this server. For any thread."""
        return sum([plan.jobs_waiting for plan in list(self._plans.values())])

    async def round(self) -> int:
        """One look at everything. Returns after how many milliseconds the next is due, if nothing happens before."""
        now_ms = self._steady()
        is_due = now_ms - self._looked_ms >= limits.WEBHOOK_LOOK_MS
        if not self._ledger.duty:
            if not self.has_news and not self.has_changes:
                return limits.WEBHOOK_LOOK_MS * 30
            wait_ms = await self._take_duty()
            if wait_ms:
                return wait_ms
        elif self._ledger.renew_at_ms <= now_ms:
            await self._in_store(self._ledger.renew)
        if not self._ledger.duty:
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
        wait_ms = await self._in_store(self._ledger.take_duty)
        if wait_ms is None:
            self.has_news = self.has_changes = False
            return limits.WEBHOOK_LOOK_MS * 30
        if not self._ledger.duty:
            return int(wait_ms + limits.WEBHOOK_PAUSE_MS_MIN * self.fraction())
        self._plans, self.has_changes = {}, True
        self._busy_ms = self._steady()
        return 0

    def _abandon(self) -> None:
        """Another server has the duty, or may have it. What is under way there may come twice."""
        for task in self._tasks:
            task.cancel()
        self._plans, self.has_news = {}, True

    async def _look(self) -> None:
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
                plan.fill(lane, page.events, page.oldest, self._ledger.now_ms())
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
                plan.report_gap(plan.at, after.oldest)
            plan.take(after.events, after.upto, is_last=after.is_last)

    def _deliver(self) -> None:
        """Start what is ready, first to targets that answer. Others leave half of the places free: they may hang."""
        if self._steady() >= self._ledger.safe_until_ms:
            return
        plans = list(self._plans.values())
        self._turn += 1
        start = self._turn % max(len(plans), 1)  # beginning with another webhook each time
        plans = sorted(plans[start:] + plans[:start], key=lambda plan: (not plan.target.is_trusted, plan.target.row))
        now_ms = self._ledger.now_ms()
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
            at_ms=self._ledger.now_ms(),
            seq=event.seq,
            job=event.job,
            kind=event.kind,
            tries=tries,
            took_ms=result.took_ms,
            status=result.status,
            error=result.error[: limits.WEBHOOK_ERROR_CHARS_MAX],
        )
        if result.error:
            plan.failed(lane, event, note, self.fraction(), result.rest_ms)
            if plan.target.row == 1:  # later ones are in the delivery log
                log.warning("webhook %s: a delivery failed, and is tried again: %s", plan.webhook.id, note.error)
        else:
            plan.done(lane, event, note, self.fraction())
        self._rouse()

    async def send(self, webhook: Webhook, event: Event, tries: int) -> DeliveryResult:
        body = payload(webhook, event)
        headers = delivery_headers(webhook, event, tries, body, wall_ms() // 1000)
        return await self.sender.send(webhook.url, headers, body)

    async def _save(self, *, positions: bool = False) -> None:
        """Write down how far each webhook is. With `positions`, also if only events came that it does not want."""
        self._saved_ms = self._steady()
        plans = [plan for plan in self._plans.values() if plan.is_dirty or positions]
        if not plans:
            return
        commands = [plan.save(self._ledger.duty) for plan in plans]
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
            await self._in_store(self._ledger.renew)
            if not self._ledger.duty:
                self._abandon()

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
        store_ms = self._ledger.now_ms()
        if any(plan.is_behind and plan.wants_events() for plan in self._plans.values()):
            return 0
        for plan in self._plans.values():
            due_ms = plan.next_ms()
            if due_ms is not None and due_ms > store_ms:
                at_ms.append(now_ms + due_ms - store_ms)
        return 0 if self.has_news else max(min(at_ms) - now_ms, 1)

    async def _resign(self) -> None:
        if self._ledger.duty:
            await self._save(positions=True)
            await self._in_store(self._ledger.leave)
        self._plans = {}

    async def _in_store(self, call: Callable[..., Found], *args: object) -> Found:
        """The store may take long to answer."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, call, *args)


class WebhookDispatcher:
    """One per server. `wake`, `changed`, `start` and `stop` are for any thread."""

    def __init__(
        self,
        store: Store,
        make_sender: Callable[[], Sender] = Sender,
        server: str = "",
        steady: Callable[[], int] = steady_ms,
        counts: dict[str, int] | None = None,
    ) -> None:
        self.ledger = WebhookLedger(store, server or new_token(), steady)
        self.rounds = DeliveryRounds(self.ledger, steady, counts)
        self._make_sender = make_sender
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._has_failed = False
        self._is_rousing = False
        self.is_started = False

    def start(self) -> None:
        """Begin to deliver. Calling it again does nothing."""
        with self._starting:
            if self._thread is None and not self._is_stopping:
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._main()), name="dibs-webhooks", daemon=True
                )
                self._thread.start()
                self.is_started = True

    def end(self) -> None:
        """Send nothing more, write down how far it is, and give up the duty. Does not wait for that."""
        self._is_stopping = True
        self._is_rousing = False
        self._rouse()

    def stop(self) -> None:
        """The same. The store may be closed after this."""
        self.end()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def wake(self) -> None:
        self.rounds.has_news = True
        self._rouse()

    def changed(self) -> None:
        self.rounds.has_changes = True
        self.start()
        self.wake()

    async def check(self, url: str) -> None:
        """Raise TargetRefused if a webhook may not lead there. For any event loop."""
        await self._elsewhere(lambda: self.rounds.sender.check(url))

    async def test(self, webhook: Webhook) -> DeliveryResult:
        """Send a test delivery now. For any event loop."""
        event = Event(at_ms=wall_ms(), kind=TEST)
        return await self._elsewhere(lambda: self.rounds.send(webhook, event, 1))

    async def _elsewhere(self, make: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        self.start()
        if not await asyncio.to_thread(self._up.wait, _STOP_S) or self._loop is None or self._is_stopping:
            raise Unavailable("The server is shutting down. Try again in a moment.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    def _rouse(self) -> None:
        loop = self._loop
        if loop is not None and not self._is_rousing:
            self._is_rousing = True
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._roused.set)

    # All that follows runs on the dispatcher's own thread.

    async def _main(self) -> None:
        self._roused = asyncio.Event()
        self._loop = asyncio.get_running_loop()  # from here on, other threads rouse it
        self.rounds.begin(self._make_sender(), self._roused.set)
        self._up.set()
        try:
            while not self._is_stopping:
                await self._pause(await self._guarded_round())
        finally:
            self._up.clear()
            await self.rounds.end()

    async def _pause(self, pause_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._roused.wait()
        self._is_rousing = False
        self._roused.clear()
        if self.rounds.has_news and not self._is_stopping:
            await asyncio.sleep(_GATHER_S)  # events come in crowds, and one page has many

    async def _guarded_round(self) -> int:
        try:
            pause_ms = await self.rounds.round()
        except Exception as error:
            if not self._has_failed:
                ours = None if isinstance(error, DibsError) else error
                log.error("webhooks wait, and are tried again: %s", error, exc_info=ours)
            self._has_failed = True
            return FAILED_MS
        self._has_failed = False
        return pause_ms
