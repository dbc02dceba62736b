"""Clients that race for a few jobs on purpose, for `dibs verify`: each call and its answer is a line for the judge.

A `Racer` does what `workload.py` says, through any transport; answers are thrown away, and requests sent twice. A
`CliTransport` runs the dibs command, an `SdkRacer` has claims of the SDK. `Trouble` pauses and kills servers meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random  # noqa: TID251 - a seed makes a run that can be repeated
from typing import Any, Protocol, TextIO

from dibs.base.clock import stopwatch_us
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.generators import run_generator
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.own_program import own_program
from dibs.cli.text.words import plain
from dibs.client.servers import PATIENCE_MS
from dibs.client.transport import Ask, Transport
from dibs.sdk.client import Client
from dibs.testing.features import FEATURES, features_of
from dibs.testing.judge import KILL, OK, PAUSE
from dibs.testing.outside import Outside
from dibs.testing.workload import BY_OPERATORS, RaceTerms, Stage, Steps, Workload, jobs_of, lost
from dibs.wire.codes import NOT_NOW, kind_of_word
from dibs.wire.documents import Reply


class Asking(Protocol):
    """The part of a transport that a racer needs."""

    def ask(self, asked: Ask) -> Reply: ...

    def close(self) -> None: ...


TTL_S = 2
JOBS = 9
LOST, DOUBLED = 0.05, 0.03
SLOW = {"silent": 0.1, "dead": 0.2}  # how much rarer it is than in a simulation, where time costs nothing
# What goes wrong on purpose, as the record counts it. The judge counts lost answers.
FAULTS = {"dead": "deaths", "doubled": "doubled requests", "silent": "silences"}
POLLED, POLL_S = 0.5, 0.2  # so often a claim that waits asks so soon for its place again
PAUSE_S = 0.1  # after an answer that nobody gave, or that was no help
# The judge knows nothing about these, the command has no flags for them, or they are done to every racer.
NOT_RACED = frozenset(
    ("access-lists", "attempts", "delays", "done-marks", "lost-replies", "numbers", "quotas", "slow-moves", "steps")
)
BY_WAY = {"cli": frozenset(("breaks", "claim-all", "claim-any", "transfer")), "sdk": frozenset[str]()}
OPERATED = frozenset(("breaks", "closures", "prefix-closures", "pools", "smaller-pools"))


def race_terms(seed: str, *, operates: bool, way: str = "http") -> RaceTerms:
    """The jobs and features of a race: a random half of those that its clients can have."""
    features = features_of(seed, NOT_RACED if operates else NOT_RACED | OPERATED) & BY_WAY.get(way, frozenset(FEATURES))
    return RaceTerms(
        jobs=jobs_of(Random(f"{seed} jobs"), JOBS, features),
        ttls_s=(1, 1, 1, TTL_S),
        waits_ms=(300, 1_000, 3_000),
        pauses=(0.001, 0.001, 0.005, 0.05),
        rests_ms=(1, 1, 10),
        long_ttl_s=3,
        session_s=3,
        idle_ms=(300,),
        nap_ms_max=100,
        operates=operates,
        features=features,
    )


class Recorder:
    """Writes calls as lines of JSON, from many threads."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._lock = file, threading.Lock()
        self.calls = 0
        self.trouble: InvalidInput | None = None  # nothing is written after it: a record has no holes
        self.features: Counter[str] = Counter()  # how often each had an effect

    def note(self, **known: Any) -> None:
        with self._lock:
            if self.trouble is not None:
                return
            self.calls += 1
            try:
                self._file.write(json.dumps({"number": self.calls} | known) + "\n")
            except OSError as error:
                self.trouble = unwritten(self._file.name, error)

    def bore(self, features: Iterable[str]) -> None:
        with self._lock:
            self.features.update(features)


def unwritten(path: str, error: OSError) -> InvalidInput:
    return InvalidInput(f"{plain(path)} cannot be written ({error.strerror}). What happened since is not in it.")


def now() -> float:
    return stopwatch_us() / 1e6


class RaceThread(threading.Thread):
    """Works until the race is `over`. What ended it before is its `trouble`."""

    def __init__(self, name: str, recorder: Recorder, seed: str, over: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._chance = Random(f"{seed} {name}")
        self._recorder, self._over = recorder, over
        self._number = 0
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as trouble:
            self.trouble = trouble

    def work(self) -> None:
        raise NotImplementedError


class Racer(RaceThread):
    """The stage of one client. `transports` makes a new one for a request that is sent twice."""

    def __init__(
        self,
        name: str,
        transports: Callable[[], Asking],
        common: tuple[Recorder, str, threading.Event],
        terms: RaceTerms,
        life: Callable[[Stage], Steps] | None = None,
    ) -> None:
        super().__init__(name, *common)
        self._transports, self._transport = transports, transports()
        self._common, self._terms, self._life = common, terms, life
        self.chance, self.now, self.fresh_id, self.is_over = self._chance, now, new_id, self._over.is_set
        self.note = self._recorder.note
        self.outside = Outside(lambda promise, says: None)  # its features have no steps
        self._beside: list[threading.Thread] = []  # requests that are under way a second time
        self._along: list[Racer] = []
        self._client = Workload(name, self, terms)

    def live(self) -> None:
        if self._life is not None:
            run_generator(self._life(self), self._step)
            return
        while not self._over.is_set():
            run_generator(self._client.life(), self._step)  # who died begins anew

    def work(self) -> None:
        try:
            self.live()
        finally:
            for again in (*self._beside, *self._along):
                again.join()
            self._transport.close()
            self.trouble = next((each.trouble for each in self._along if each.trouble), None)

    def _step(self, step: Ask | int) -> Reply | None:
        if isinstance(step, Ask):
            return self.ask_by(self._transport, step)
        self._over.wait(step / 1000)
        return None

    def strikes(self, fault: str, share: float) -> bool:
        struck = self._chance.random() < share * SLOW.get(fault, 1)
        if struck and fault in FAULTS:
            self._recorder.bore([FAULTS[fault]])
        return struck

    def ask_by(self, transport: Asking, asked: Ask) -> Reply:
        """Ask, and sometimes lose the answer. Sometimes it is asked twice at once."""
        if asked.verb not in BY_OPERATORS and self.strikes("doubled", DOUBLED):
            self.beside(asked, 0)
        document, began = dict(asked.document), now()
        if document.get("wait_seconds", 0) > POLL_S and self.strikes("polls", POLLED):
            document["wait_seconds"] = POLL_S
        reply = transport.ask(Ask(asked.verb, asked.name, document))
        if asked.verb in BY_OPERATORS and now() - began >= PATIENCE_MS / 1000:
            self._client.note(asked, began, lost())  # to a server that does not answer, which may do it later
        if reply.status >= 500:
            self._over.wait(PAUSE_S)
        return lost() if self.strikes("lost", LOST) else reply

    def bore(self, features: Iterable[str], places: Iterable[str]) -> None:
        self._recorder.bore(features)

    def along(self, name: str, life: Callable[[Stage], Steps]) -> None:
        second = Racer(name, self._transports, self._common, self._terms, life)
        second.start()
        self._along = [each for each in self._along if each.is_alive() or each.trouble] + [second]

    def beside(self, asked: Ask, delay_ms: int) -> None:
        again = threading.Thread(target=self._ask_beside, args=(asked, delay_ms), daemon=True)
        again.start()
        self._beside = [each for each in self._beside if each.is_alive()] + [again]

    def _ask_beside(self, asked: Ask, delay_ms: int) -> None:
        self._over.wait(delay_ms / 1000)
        began, transport = now(), self._transports()
        try:
            transport.ask(Ask(asked.verb, asked.name, dict(asked.document)))
        finally:
            self._client.note(asked, began, lost())
            transport.close()


class SdkRacer(Racer):
    """A client of the SDK, which sends its own heartbeats. What it sends is noted where it leaves the SDK. `held` is a
    time in which no loss was reported to it."""

    def __init__(
        self, name: str, client: Client, common: tuple[Recorder, str, threading.Event], terms: RaceTerms
    ) -> None:
        pool = client._transports
        open_one = pool._open
        super().__init__(name, partial(open_one, True), common, terms)
        pool._open = lambda keep: NotedTransport(open_one(keep), self)
        self._sdk = client

    def live(self) -> None:
        with self._sdk:
            while not self._over.is_set():
                self._claim(self.chance.choice(self._terms.jobs))

    def _claim(self, job: str) -> None:
        self._number += 1
        owner, wait = f"{self.name}.{self._number}", self.chance.choice([None, 1, 3])
        known: Document = {"client": self.name, "job": job, "owner": owner}
        try:
            with self._sdk.claim(job, ttl=TTL_S, owner=owner, wait=wait) as claim:
                known |= {"lease": claim.lease_id, "token": claim.fencing_token}
                got = now()
                self._over.wait(self.chance.random() * TTL_S * self.chance.choice([0.02] * 9 + [1.5]))
                looked = now()
                if not claim.lost.is_set():
                    self.note(call="held", began=got, ended=looked, outcome=OK, **known)
        except InvalidInput:
            raise
        except DibsError:
            self._over.wait(PAUSE_S / 5)

    def asked(self, asked: Ask, transport: Asking) -> Reply:
        """Ask what the SDK asks. Called on its threads, too."""
        began = now()
        reply = self.ask_by(transport, asked)
        self._client.note(asked, began, reply, asked.document.get("lease_id", ""))
        return reply


class NotedTransport:
    """The transport of an SDK that is raced: its racer asks for it."""

    def __init__(self, transport: Transport, racer: SdkRacer) -> None:
        self._transport, self._racer = transport, racer
        self.await_events, self.news, self.close = transport.await_events, transport.news, transport.close

    @property
    def timeout_ms(self) -> int:
        return self._transport.timeout_ms  # type: ignore[attr-defined,no-any-return]  # an HttpTransport

    @timeout_ms.setter
    def timeout_ms(self, ms: int) -> None:
        self._transport.timeout_ms = ms  # type: ignore[attr-defined]

    def ask(self, asked: Ask) -> Reply:
        return self._racer.asked(asked, self._transport)

    def ask_all(self, asks: Sequence[Ask]) -> list[Reply]:
        return [self.ask(asked) for asked in asks]


class CliTransport:
    """Asks by the dibs command: a process for each question. `words` are its flags for the store."""

    _COMMANDS: Mapping[str, tuple[str, ...]] = {
        "acquire": ("claim",),
        "acquire-any": ("claim-any",),
        "acquire-all": ("claim-all",),
        "renew": ("heartbeat",),
        "inspect": ("owner",),
        **{verb: tuple(verb.split("-")) for verb in ("session-open", "session-keep", "session-end")},
    }
    _FLAGS: Mapping[str, str] = {
        "lease_id": "--lease",
        "owner": "--owner",
        "reason": "--reason",
        "request_key": "--request-key",
        "session_id": "--session",
        "to_owner": "--to",
        "ttl_ms": "--ttl",
        "ttl_seconds": "--ttl",
        "wait_seconds": "--wait",
    }

    def __init__(self, words: list[str], env: Mapping[str, str]) -> None:
        self._words, self._env = words, env

    def ask(self, asked: Ask) -> Reply:
        flags = [
            word
            for key, value in asked.document.items()
            if key in self._FLAGS
            for word in (self._FLAGS[key], f"{value}ms" if key.endswith("_ms") else str(value))
        ]
        jobs = asked.document.get("names") or [asked.name] * bool(asked.name)
        command = [*self._COMMANDS.get(asked.verb, (asked.verb,)), *jobs, *flags, *self._words, "--json"]
        done = subprocess.run([*own_program(), *command], env=self._env, capture_output=True, check=False)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            return Reply(status=500, body={"code": "internal_error", "details": done.stderr.decode(errors="replace")})
        body: Document = document.get("data") or {}
        if body.get("status") == "queued" and "ticket" not in body:  # the command has waited, and left the line
            body["status"] = "held"
        if document["ok"] or body.get("status"):
            return Reply(status=200, body=body)
        code, message = document["error"]["code"], document["error"]["message"]
        return Reply(503 if kind_of_word(code) == NOT_NOW else 409, {"code": code, "details": message})

    def close(self) -> None:
        """Nothing is open."""


class Trouble(RaceThread):
    """Pauses the processes in `paused`, and kills `killed`, which `restart` starts again; now one, now another."""

    def __init__(self, paused: list[int], killed: int, restart: str, log: str, *common: Any) -> None:
        super().__init__("trouble", *common)
        self._paused, self._restart, self._log = paused, restart, log
        self._killed = [killed] if killed else []
        self._has_restarted = False

    def work(self) -> None:
        pid, call = 0, PAUSE
        try:
            while not self._over.wait(self._chance.uniform(1, 4)):
                pid = self._chance.choice(self._paused + self._killed)
                began, call = now(), KILL if pid in self._killed else PAUSE
                (self._kill if call == KILL else self._pause)(pid)
                self._recorder.note(client=f"{pid}", call=call, job="", began=began, ended=now(), outcome=OK)
        except ProcessLookupError:
            raise InvalidInput(f"Process {pid} has ended by itself: nothing is left to {call}.") from None

    def _pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            self._over.wait(self._chance.uniform(0.2, 2 * TTL_S))
        finally:
            os.kill(pid, signal.SIGCONT)

    def _kill(self, pid: int) -> None:
        if self._has_restarted:  # it is a group of its own, because a command line may be several processes
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        else:
            os.kill(pid, signal.SIGKILL)
        self._over.wait(self._chance.uniform(0, TTL_S))
        streams = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        shell = ["sh", "-c", self._restart]
        self._killed = [os.posix_spawn("/bin/sh", shell, os.environ, file_actions=streams, setpgroup=0)]
        self._has_restarted = True
