"""Clients of simulated servers: what they do is in `workload.py`, and what goes wrong on their way is here.

A client asks again what was not answered, at another server, as the real one does (`client/exchange.py`). Each attempt
is a `Request`: the server is given the command that its document means, and the client the document of the outcome.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dibs.base.errors import DibsError, Overloaded
from dibs.client.connection import TimedOut
from dibs.client.exchange import Attempts
from dibs.client.requests import waits_ms
from dibs.client.transport import Ask
from dibs.client.urls import ServerAddress
from dibs.core import commands
from dibs.core.caller_rights import AGENT, OPERATOR, Caller
from dibs.engine.waiters import Waiter
from dibs.testing.checker import LIMITED, LIMITS, Finding
from dibs.testing.features import FEATURES, Pair
from dibs.testing.judge import UNKNOWN, RecordedCall
from dibs.testing.outside import Outside
from dibs.testing.queue_checker import NS
from dibs.testing.simulation import EPISODE, FAULTS, EpisodeSettings, SimulatedServer, World
from dibs.testing.workload import BY_OPERATORS, RaceTerms, Stage, Steps, Workload, lost
from dibs.wire.codes import NOT_NOW, kind_of
from dibs.wire.documents import Reply, reply_for_error, reply_to
from dibs.wire.requests import command_for, shape

CLAIMS = (commands.Acquire, commands.AcquireAny, commands.AcquireAll)
NEVER_REFUSED = (commands.Renew, commands.Release, commands.KeepSession, commands.EndSession)
LATENCIES_MS = (0, 1, 1, 3)
LATE_MS = (300, 3_000, 8_000)
SLOW_MOVES_MS = (2_500, 4_000, 7_000)  # a place lasts longer than that
NOWHERE = ServerAddress("http://simulated", "http", "", 0, "")
ATTEMPTS = 3  # of one question, each at another server


class Request:
    """One request on one connection, which its client closes when it is tired of waiting."""

    def __init__(self, client: SimulatedClient, asked: Ask) -> None:
        self._world = client.world
        self.client, self._asked, self._wait_ms = client, asked, waits_ms(asked)
        self.command = command_for(asked.verb, NS, asked.name, shape(asked.verb, asked.document), client.caller)
        if isinstance(self.command, CLAIMS):  # the server's own, but the same for the same seed
            self.command = self.command.replace(fresh_lease_id=self._world.fresh_id())
        self._sent_ms = self._world.time.now_ms
        self.server: SimulatedServer | None = None
        self._is_open = True
        self._is_closed = self._is_gone = False  # what a look at the socket shows, and what the server's loop knows
        self._moves = client.moves
        self._way_ms = 0  # how long its client needs to another server
        self._waiter: Waiter | None = None

    def send(self) -> None:
        world, chance = self._world, self._world.chance
        self.server = server = self.client.next_server()
        if server is None or not server.is_started:
            world.time.later(20, None, self._heard, None)
            return
        world.checker.sends(self.command, self._sent_ms)
        patience_ms = self._wait_ms + chance.choice((100, 400, 1_000, 1_000))
        if world.strikes("hung-up", 0.04):
            patience_ms = chance.choice((1, 10, patience_ms))
        if self._wait_ms and self._moves and "slow-moves" in world.features and world.strikes("hung-up", 0.2):
            patience_ms = chance.randrange(patience_ms)
            self._way_ms = chance.choice(SLOW_MOVES_MS)
        world.time.later(patience_ms, None, self._tire)
        is_doubled = self._asked.verb not in BY_OPERATORS and world.strikes("doubled", 0.05)
        for copy in range(1 + is_doubled):
            delay_ms = chance.choice(LATENCIES_MS) + (chance.choice(LATE_MS) if world.strikes("late", 0.01) else 0)
            if copy:
                Request(self.client, self._asked).stray(delay_ms + chance.choice((0, 300, 3_000)))
            elif not world.strikes("lost", 0.01):
                world.time.later(delay_ms, server.loop, self._arrive)

    def stray(self, delay_ms: int) -> None:
        """Ask on a connection that nobody reads."""
        world, self._is_open = self._world, False
        self.server = server = self.client.next_server()
        self._note_hang_up()
        if server is not None and server.is_started:
            world.time.later(delay_ms, server.loop, self._arrive)
            world.time.later(delay_ms + world.chance.choice((1, 3, 8, 1_000)), None, self._close)

    def _arrive(self) -> None:
        server, command = self.server, self.command
        assert server is not None
        try:
            if self._wait_ms and isinstance(command, commands.Acquire | commands.AcquireAll):
                has_hung_up = (lambda: self._is_closed) if self._moves else None
                if self._is_open:
                    self._world.waiting[self] = None
                self._waiter = server.waiters.ask(command, self._wait_ms, self._answer, has_hung_up=has_hung_up)
                if self._is_gone:
                    self._waiter.cancel()
            else:
                server.post(command, self._decided, self._is_away)
        except DibsError as error:
            if isinstance(error, Overloaded) and isinstance(command, NEVER_REFUSED):
                says = f"A server refused a heartbeat or release because of claims: {error}"
                self._world.say("lease:never-early", says)
            self._answer(error)

    def _is_away(self) -> bool:
        return isinstance(self.command, CLAIMS) and (self._is_gone or (self._moves and self._is_closed))

    def _decided(self, result: Any) -> None:
        server = self.server
        assert server is not None
        if not self._answer(result):
            server.waiters.on_undelivered(self.command, result)

    def _answer(self, result: Any) -> bool:
        """The server's answer. False: it knows that nobody is there."""
        world = self._world
        world.waiting.pop(self, None)
        if self._is_gone or (self._moves and self._is_closed):
            return False
        if self.server is not None and self.server.is_dead:
            return True
        if self._is_open and self._loses_reply():
            pass
        elif self._is_open and not world.strikes("lost", 0.01):
            late_ms = world.chance.choice(LATE_MS) if world.strikes("late", 0.005) else 0
            world.time.later(world.chance.choice(LATENCIES_MS) + late_ms, None, self._heard, result)
        return True

    def _loses_reply(self) -> bool:
        world = self._world
        if "lost-replies" not in world.features or not world.strikes("lost", 0.05):
            return False
        self._bore("lost-replies")
        return True

    def _bore(self, feature: str) -> None:
        names = self._asked.document.get("names", [self._asked.name])
        session = self._asked.document.get("session_id", "")
        self.client.bore([feature], [*names, *filter(None, [session])])

    def _heard(self, result: Any) -> None:
        if self._is_open:
            self._ends()
            world, reply = self._world, None
            if result is not None:
                world.checker.heard(self.client.name, self.command, result, self._sent_ms, world.time.now_ms)
                is_error = isinstance(result, BaseException)
                reply = reply_for_error(result) if is_error else reply_to(self._asked.verb, result)
            self.client.answered(reply)

    def _tire(self) -> None:
        if self._is_open:
            self._ends()
            self._close()
            self._note_hang_up()
            if self._way_ms and self.place is not None:
                self._bore("slow-moves")
            self.client.answered(None, self._way_ms)

    def _note_hang_up(self) -> None:
        """Tell the judge. A caller that hangs up leaves the queue, so its place is not kept. And what an operator asks,
        or an owner that shares its job, may be done later, also after the answer to the next attempt."""
        if self._asked.verb in BY_OPERATORS or (self._asked.verb == "renew" and "mode" in self._asked.document):
            self.client.workload.note(self._asked, self._sent_ms / 1000, lost())
        elif isinstance(self.command, commands.Acquire) and self._wait_ms:
            at, line = self._sent_ms / 1000, {"job": self.command.name, "key": self.command.request_key or ""}
            self.client.note(**line, client=self.client.name, call="leave", began=at, ended=at, outcome=UNKNOWN)

    @property
    def place(self) -> tuple[str, int] | None:
        return self._waiter.ticket[1:] if self._waiter is not None and self._waiter.ticket is not None else None

    def _ends(self) -> None:
        self._is_open = False
        self._world.waiting.pop(self, None)
        self._world.operations += 1
        self._world.checker.ends(self.command)

    def _close(self) -> None:
        """The connection is closed. The server's loop hears of it a little later."""
        self._is_closed = True
        self._world.waiting.pop(self, None)
        if isinstance(self.command, CLAIMS):
            self._world.checker.waits.hangs_up(self.command, self._world.time.now_ms, moves=self._moves)
        server = self.server
        if server is not None:
            self._world.time.later(self._world.chance.choice((0, 1, 20, 500)), server.loop, self._gone)

    def _gone(self) -> None:
        self._is_gone = True
        if self._waiter is not None:
            self._waiter.cancel()


class SimulatedClient:
    """The stage of one client."""

    def __init__(self, world: World, name: str, of: SimulatedClient | None = None) -> None:
        self.world, self.name, self.chance = world, name, world.chance
        self.is_home = False
        # It says that it has others to ask, also while they are down.
        self.moves = world.chance.random() < 0.5 or world.settings.servers > 1
        self.strikes, self.fresh_id = world.strikes, world.fresh_id
        self._turn = world.chance.randrange(10)
        self._attempts: Attempts | None = None
        self.caller: Caller
        self.workload: Workload
        if of is not None:
            self.caller, self.workload = of.caller, of.workload
            return
        number = int(name[1:])
        role = OPERATOR if number % 4 == 0 else AGENT
        self.caller = Caller(principal="team", role=role, badges=("user:team",))
        if number % 6 == 1 and "quotas" in world.features:
            self.caller = Caller(principal=LIMITED, limits=LIMITS, badges=(f"user:{LIMITED}",))
        terms = RaceTerms(
            jobs=world.jobs,
            ttls_s=(2, 2, 4, 8, 20),
            waits_ms=(500, 1_000, 3_000, 12_000),
            pauses=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.4),
            rests_ms=(1, 10, 100),
            long_ttl_s=25,
            session_s=10,
            idle_ms=(3_000, 3_000, 3_000),
            nap_ms_max=1_000,
            operates=role == OPERATOR,
            features=world.features,
        )
        self.workload = Workload(name, self, terms)
        self._begin(self.workload.life(), world.chance.randrange(200))

    def _begin(self, steps: Steps, after_ms: int) -> None:
        self._steps = steps
        self.world.time.later(after_ms, None, self._go_on, None)

    def along(self, name: str, life: Callable[[Stage], Steps]) -> None:
        thread = SimulatedClient(self.world, name, of=self)
        thread._begin(life(thread), 0)
        self.world.clients.append(thread)

    def bore(self, features: Iterable[str], places: Iterable[str]) -> None:
        of_few = ["quotas"] * (self.caller.principal == LIMITED)
        self.world.meetings.bore([*features, *of_few], places, self.world.time.now_ms)

    @property
    def outside(self) -> Outside:
        return self.world.checker.outside

    def now(self) -> float:
        return self.world.time.now_ms / 1000

    def is_over(self) -> bool:
        return self.world.is_calm

    def beside(self, asked: Ask, delay_ms: int) -> None:
        Request(self, asked).stray(delay_ms)

    def note(self, **line: Any) -> None:
        calls = self.world.calls
        calls.append(RecordedCall(number=len(calls) + 1, **line))

    def next_server(self) -> SimulatedServer | None:
        servers = self.world.servers
        self._turn += 1
        return servers[self._turn % len(servers)] if servers else None

    def _go_on(self, answer: Reply | None) -> None:
        try:
            step = self._steps.send(answer)
        except StopIteration as end:
            self.is_home = True
            if end.value:
                self.world.start_client()
            return
        if isinstance(step, int):
            self.world.time.later(step, None, self._go_on, None)
        else:
            self._asked, self._left = step, ATTEMPTS
            self._attempts = Attempts(step, NOWHERE, alone=True)
            self._send()

    def _send(self) -> None:
        Request(self, self._asked).send()

    def answered(self, reply: Reply | None, way_ms: int = 0) -> None:
        """An attempt is over. None: there was no answer, and the next server is so far away."""
        attempts, self._left = self._attempts, self._left - 1
        assert attempts is not None
        if reply is None:
            attempts.failed(TimedOut("No answer.", sent=True))
        elif kind_of(reply) == NOT_NOW:
            attempts.refused(reply)
        else:
            self._go_on(reply)
            return
        if self._left and attempts.may_go_on():
            if way_ms:
                self.world.time.later(way_ms, None, self._send)
            else:
                self._send()
            return
        try:
            reply = attempts.end()
        except DibsError as error:
            reply = reply_for_error(error)
        self.world.time.later(self.chance.choice((1, 100, 500)), None, self._go_on, reply)


class Episode(NamedTuple):
    settings: EpisodeSettings
    operations: int
    faults: int
    steps: int
    found: Finding | None
    met: Counter[Pair]


def episode(settings: EpisodeSettings) -> Episode:
    log = logging.getLogger("dibs")
    before, log.disabled = log.disabled, True  # a server logs every fault
    try:
        world = World(settings, SimulatedClient)
        found = world.run()
    finally:
        log.disabled = before
    return Episode(
        settings, world.operations, world.faults, world.time.steps, found[0] if found else None, world.meetings.counts
    )


def episodes(settings: EpisodeSettings) -> Iterator[Episode]:
    """As many episodes as the operations take. Each has a seed of its own, by which it is repeated alone."""
    if "." in settings.seed:
        yield episode(settings)
        return
    left, number = settings.operations, 0
    while left > 0:
        each = episode(settings._replace(seed=f"{settings.seed}.{number}", operations=min(EPISODE, left)))
        left -= max(each.operations, 1)
        number += 1
        yield each


def shrunk(failed: Episode, tries: int = 8, is_tried: Callable[[Episode], bool] = lambda best: True) -> Episode:
    """A smaller episode that breaks the same promise: with fewer kinds of faults and features, fewer servers, clients,
    jobs and operations. What is left out changes all that follows, so a few seeds are tried each time. `is_tried` is
    asked before each try with the best so far; once it says no, that is the answer."""
    assert failed.found is not None
    promise, root = failed.found.promise, failed.settings.seed.partition(".")[0]

    def smaller(settings: EpisodeSettings) -> Episode | None:
        for seed in (settings.seed, *[f"{root}.{number}" for number in range(tries)]):
            if not is_tried(best):
                return None
            each = episode(settings._replace(seed=seed))
            if each.found is not None and each.found.promise == promise:
                return each._replace(settings=each.settings._replace(operations=max(1, each.found.operation)))
        return None

    best = failed._replace(settings=failed.settings._replace(operations=max(1, failed.found.operation)))
    for left_out in (*FAULTS, *FEATURES):
        best = smaller(best.settings._replace(without=best.settings.without | {left_out})) or best
    for field, least in (("servers", 1), ("clients", 2), ("jobs", 1)):
        while getattr(best.settings, field) > least:
            found = smaller(best.settings._replace(**{field: getattr(best.settings, field) - 1}))
            if found is None:
                break
            best = found
    return best
