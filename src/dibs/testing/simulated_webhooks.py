"""Deliveries of simulated servers to one webhook, which wants every event: the real rounds, and a target that is slow,
fails, and whose answers are lost. The target knows `webhook:ordered` and `webhook:at-least-once`, and checks them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from random import Random  # noqa: TID251 - of the world's seed
from types import SimpleNamespace, coroutine
from typing import Any

from dibs.core.events import Event
from dibs.core.service.delivery import DeliveryPlan, LaneState
from dibs.core.service.webhooks import CreateWebhook, Webhook
from dibs.engine.coordinator import Coordinator, run_one
from dibs.engine.webhooks.dispatcher import FAILED_MS, DeliveryRounds, WebhookLedger
from dibs.engine.webhooks.sender import DeliveryResult
from dibs.stores.port import Store
from dibs.testing.timeline import Rounds, Stoppable, Thread, Timeline, Timer

LATENCIES_MS = (0, 1, 3, 20)
HOOK = Webhook(id="hook", ns="default", principal="local", url="http://simulated", since_ms=0)


class HookTarget:
    """A target that checks the order: no event of a job comes before an earlier one that it has not answered."""

    def __init__(
        self, store: Store, chance: Random, strikes: Callable[[str, float], bool], say: Callable[[str, str], None]
    ) -> None:
        self.chance, self.strikes, self._say = chance, strikes, say
        self._wanted: defaultdict[str, deque[int]] = defaultdict(deque)
        run_one(store, CreateWebhook(webhook=HOOK, at=0))

    def happened(self, events: Sequence[Event]) -> None:
        for event in events:
            if HOOK.takes(event):
                self._wanted[event.job].append(event.seq)

    def left(self) -> list[str]:
        return [f"{len(wanted)} events of {job} to deliver" for job, wanted in self._wanted.items() if wanted]

    def takes(self, event: Event) -> bool:
        """A delivery came. False: it is refused."""
        wanted = self._wanted[event.job]
        if wanted and event.seq > wanted[0]:
            self._say("webhook:ordered", f"Event {event.seq} of {event.job} was sent before {wanted[0]}.")
        if self.strikes("lost", 0.02):
            return False
        if wanted and event.seq == wanted[0]:
            wanted.popleft()
        return True


@coroutine
def _pass(ms: int) -> Generator[int, None, None]:
    yield ms


class Delivery:
    """One under way. It goes on when its time has come, unless its server is dead."""

    def __init__(self, steps: Coroutine[int, None, None], deliveries: SimulatedDeliveries) -> None:
        self._steps, self._deliveries = steps, deliveries
        self._next: Timer | None = None
        self._go_on()

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()
        deliveries = self._deliveries
        deliveries.time.later(0, deliveries.loop, deliveries.over, self)

    def _go_on(self) -> None:
        deliveries = self._deliveries
        try:
            self._next = deliveries.time.later(self._steps.send(None), deliveries.loop, self._go_on)
        except StopIteration:
            self._deliveries.over(self)


class SimulatedDeliveries(DeliveryRounds):
    """The rounds of one server. While one waits for the store, deliveries go on."""

    def __init__(
        self,
        server: Stoppable,
        name: str,
        store: Store,
        time: Timeline,
        steady: Callable[[], int],
        target: HookTarget,
    ) -> None:
        self.time, self.loop, self._target = time, Thread(server), target
        ledger = WebhookLedger(store, name, steady)
        # A coordinator of its own: a pause of it takes the simulation's time.
        ledger.run = Coordinator(store, pause=lambda seconds: time.pass_ms(1)).one
        super().__init__(ledger, steady, None)
        self.fraction = target.chance.random
        self.hurry = Rounds(time, Thread(server), self._do_round, FAILED_MS).hurry
        self.begin(SimpleNamespace(tidy=lambda: None), self.hurry)  # type: ignore[arg-type]  # it sends nothing

    def wake(self) -> None:
        self.has_news = True
        self.hurry(10)

    def _do_round(self) -> int:
        try:
            self.round().send(None)
        except StopIteration as end:
            return int(end.value)
        raise AssertionError("a round waits for something else than the store")

    async def _in_store(self, call: Callable[..., Any], *args: object) -> Any:
        return call(*args)

    def _start(self, plan: DeliveryPlan, lane: LaneState, event: Event) -> None:
        started: Any = Delivery(self._try(plan, lane, event), self)
        self._tasks.add(started)
        if not plan.target.is_trusted:
            self._doubted.add(started)

    def over(self, delivery: Any) -> None:
        self._tasks.discard(delivery)
        self._doubted.discard(delivery)

    async def send(self, webhook: Webhook, event: Event, tries: int) -> DeliveryResult:
        target = self._target
        await _pass(target.chance.choice(LATENCIES_MS))
        is_taken = target.takes(event)
        await _pass(target.chance.choice(LATENCIES_MS))
        if not is_taken or target.strikes("lost", 0.02):
            return DeliveryResult(error="It was lost.")
        return DeliveryResult(status=200)
