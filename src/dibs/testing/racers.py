"""Clients that race for a few jobs on purpose, for `dibs verify`: each call and its answer is a line for the judge.

They do what real clients do, and what goes wrong for real clients: answers that are thrown away as if they were lost,
requests that are sent twice or again with the same key, owners that fall silent, waits that are given up. A `Racer`
asks through any door, a `CliDoor` runs the dibs command for each question, an `SdkRacer` has claims of the SDK.
`Trouble` pauses and kills servers meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from random import Random  # noqa: TID251 - a seed makes a run that can be repeated
from typing import TYPE_CHECKING, Any

from dibs.base.clock import stopwatch_us
from dibs.base.errors import DibsError, InvalidInput, LeaseLost, Unavailable
from dibs.client.door import Ask
from dibs.testing.judge import KILL, OK, PAUSE, REFUSED, UNKNOWN
from dibs.wire.documents import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol, TextIO

    from dibs.base.jsontext import Document
    from dibs.sdk.client import Client

    class Asking(Protocol):
        """What a racer needs of a door."""

        def ask(self, asked: Ask) -> Reply: ...

        def close(self) -> None: ...


TTL_S = 2
JOBS = 4
LOST, DOUBLED, SLOW = 0.05, 0.03, 0.04
PAUSE_S = 0.1  # after an answer that nobody gave, or that was no help
# Answers that do not say what happened.
_NO_ANSWER = ("upstream_unavailable", "draining", "capacity_exceeded", "internal_error")


class Recorder:
    """Writes calls as lines of JSON, from many threads."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._lock = file, threading.Lock()
        self.calls = 0

    def note(self, **known: Any) -> None:
        with self._lock:
            self.calls += 1
            self._file.write(json.dumps({"number": self.calls} | known) + "\n")


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
    """One client. `doors` makes a new one for a request that is sent twice."""

    def __init__(self, name: str, doors: Callable[[], Asking], *common: Any, may_break: bool) -> None:
        super().__init__(name, *common)
        self._doors, self._door = doors, doors()
        self._jobs = [f"job-{number}" for number in range(JOBS)]
        self._may_break = may_break
        self._beside: list[threading.Thread] = []  # requests that are under way a second time
        self._last: tuple[str, str, Document, Document] = ("", "", {}, {})

    def work(self) -> None:
        ways = [self._claim_one] * 5 + [self._claim_any, self._claim_all, self._in_a_session, self._look]
        if self._may_break:
            ways.append(self._break)
        try:
            while not self._over.is_set():
                self._chance.choice(ways)()
        finally:
            for again in self._beside:
                again.join()
            self._door.close()

    # A claim, and what an owner does with it.

    def _claim_one(self, session: str = "") -> None:
        job = self._chance.choice(self._jobs)
        self._hold(self._claim("claim", "acquire", job, [job], session))

    def _claim_any(self) -> None:
        self._hold(self._claim("claim_any", "acquire-any", "", self._chance.sample(self._jobs, 3), ""))

    def _claim_all(self) -> None:
        self._hold(self._claim("claim_all", "acquire-all", "", sorted(self._chance.sample(self._jobs, 2)), ""))

    def _claim(self, call: str, verb: str, name: str, names: list[str], session: str) -> list[Document]:
        """The leases that it got. It asks again with the same key if no answer came."""
        self._number += 1
        own = f"{self.name}.{self._number}"
        document: Document = {"request_key": own, "owner": own, "ttl_seconds": TTL_S}
        if verb != "acquire":
            document["names"] = names
        if session:
            document["session_id"] = session
        if verb != "acquire-any" and self._chance.random() < 0.5:
            document["wait_seconds"] = self._chance.choice([1, 3])
        known = {"call": call, "key": own, "owner": own, "ttl": TTL_S, "session": session}
        self._last = (verb, name, document, known)
        return self._ask_for(*self._last)

    def _ask_for(self, verb: str, name: str, document: Document, known: Document) -> list[Document]:
        lines = [known | {"job": each} for each in document.get("names", [name])]
        for _ in range(3):
            asked = self._ask(verb, name, document, lines)
            body = asked.body
            if asked.outcome == OK and body.get("status") == "acquired":
                leases: list[Document] = body.get("leases") or [body]
                for lease in leases:
                    told = {"job": lease["name"], "lease": lease["lease_id"], "token": lease["fencing_token"]}
                    self._note(asked, known | told)
                return leases
            if asked.outcome == OK:
                asked.outcome, asked.code = REFUSED, str(body.get("status"))
            for line in lines:
                self._note(asked, line)
            ticket = body.get("ticket")
            if ticket and self._chance.random() < 0.9:
                document = document | {"ticket": ticket}
            elif asked.outcome == REFUSED:
                return []  # or it died in line
        if "ticket" in document:
            line = {"call": "leave", "job": name or document["names"][0], "key": known["key"]}
            self._note(self._ask("leave", line["job"], {"ticket": document["ticket"]}, []), line)
        return []

    def _hold(self, leases: list[Document]) -> None:
        for lease in leases:
            for _ in range(self._chance.randrange(4)):
                self._over.wait(self._chance.random() * 0.03)
                if self._chance.random() < SLOW:
                    self._over.wait(TTL_S * self._chance.random() * 1.2)  # it is slow, or paused
                if self._about("renew", lease).outcome != OK:
                    break
        for lease in leases:
            how = self._chance.random()
            if how < 0.08:
                continue  # it died
            if how < 0.15:
                self._transfer(lease)
            else:
                self._about("release", lease)
                self._come_late(lease)

    def _come_late(self, lease: Document) -> None:
        """Send something again that was for the lease which is over now."""
        late = self._chance.random()
        if late < 0.1:
            self._about("release", lease)
        elif late < 0.2:
            self._about("renew", lease)
        elif late < 0.3:
            for again in self._ask_for(*self._last):
                self._about("release", again)

    def _transfer(self, lease: Document) -> None:
        self._number += 1
        heir = f"{self.name}.{self._number}"
        asked = self._about("transfer", lease, {"to_owner": heir})
        if asked.outcome == OK:
            told = {"job": lease["name"], "lease": asked.body["lease_id"], "token": asked.body["fencing_token"]}
            self._note(asked, told | {"call": "heir", "owner": heir, "ttl": TTL_S})
            self._about("release", asked.body)

    def _about(self, verb: str, lease: Document, more: Document | None = None) -> Asked:
        line = {"call": verb, "job": lease["name"], "lease": lease["lease_id"], "token": lease["fencing_token"]}
        line["ttl"] = TTL_S
        asked = self._ask(verb, lease["name"], {"lease_id": lease["lease_id"]} | (more or {}), [line])
        self._note(asked, line)
        return asked

    def _in_a_session(self) -> None:
        session = self._ask("session-open", "", {"owner": self.name, "ttl_seconds": TTL_S}, []).body.get("session_id")
        if session:
            self._claim_one(str(session))
            line = {"call": "session_end", "job": "", "session": session}
            self._note(self._ask("session-end", str(session), {}, [line]), line)

    def _look(self) -> None:
        job = self._chance.choice(self._jobs)
        asked = self._ask("inspect", job, {}, [])
        held = asked.body.get("status") == "held"
        self._note(asked, {"call": "show", "job": job, "held": held, "token": asked.body.get("fencing_token", 0)})

    def _break(self) -> None:
        line = {"call": "break", "job": self._chance.choice(self._jobs)}
        self._note(self._ask("break", line["job"], {"reason": "verify"}, [line]), line)

    def _ask(self, verb: str, name: str, document: Document, lines: list[Document]) -> Asked:
        """Ask, and sometimes lose the answer. Sometimes it is asked twice at once: that is noted as `lines`."""
        if lines and self._chance.random() < DOUBLED:
            again = threading.Thread(target=self._ask_beside, args=(verb, name, dict(document), lines), daemon=True)
            again.start()
            self._beside = [each for each in self._beside if each.is_alive()] + [again]
        began, reply = now(), self._door.ask(Ask(verb, name, dict(document)))
        if reply.status >= 500:
            self._over.wait(PAUSE_S)
        return Asked(began, reply if self._chance.random() >= LOST else None)

    def _ask_beside(self, verb: str, name: str, document: Document, lines: list[Document]) -> None:
        began, door = now(), self._doors()
        try:
            door.ask(Ask(verb, name, document))
        finally:
            for line in lines:
                self._note(Asked(began, None), line)
            door.close()

    def _note(self, asked: Asked, line: Document) -> None:
        known = {"client": self.name, "began": asked.began, "ended": asked.ended, "outcome": asked.outcome}
        self._recorder.note(**known, code=asked.code, **line)


class Asked:
    """A call that is over: when it began and ended, and what the answer says. `reply` None: there was none."""

    def __init__(self, began: float, reply: Reply | None) -> None:
        self.began, self.ended = began, now()
        self.outcome, self.code = UNKNOWN, ""
        self.body: Document = {}
        if reply is not None:
            self.body = reply.body or {}
            self.code = str(self.body.get("code") or "")
            if reply.status < 500 and self.code not in _NO_ANSWER:
                self.outcome = OK if reply.status < 300 else REFUSED


class SdkRacer(RaceThread):
    """A client of the SDK, which sends its own heartbeats. `held` is a time in which it was told of no loss."""

    def __init__(self, name: str, client: Client, *common: Any) -> None:
        super().__init__(name, *common)
        self._client = client

    def work(self) -> None:
        with self._client:
            while not self._over.is_set():
                self._claim(f"job-{self._chance.randrange(JOBS)}")

    def _claim(self, job: str) -> None:
        self._number += 1
        owner, wait = f"{self.name}.{self._number}", self._chance.choice([None, 1, 3])
        known: Document = {"client": self.name, "job": job, "owner": owner}
        call, began = "claim", now()
        try:
            with self._client.claim(job, ttl=TTL_S, owner=owner, wait=wait) as claim:
                known |= {"lease": claim.lease_id, "token": claim.fencing_token}
                got = now()
                self._recorder.note(call=call, began=began, ended=got, outcome=OK, **known)
                self._over.wait(self._chance.random() * TTL_S * self._chance.choice([0.02, 0.02, 0.02, 1.5]))
                looked = now()
                if not claim.lost.is_set():
                    self._recorder.note(call="held", began=got, ended=looked, outcome=OK, **known)
                call, began = "release", now()
            self._recorder.note(call=call, began=began, ended=now(), outcome=OK, **known)
        except InvalidInput:
            raise
        except DibsError as error:
            outcome = UNKNOWN if isinstance(error, Unavailable | LeaseLost) else REFUSED
            self._recorder.note(call=call, began=began, ended=now(), outcome=outcome, code=error.code, **known)
            self._over.wait(PAUSE_S)


class CliDoor:
    """Asks by the dibs command: a process for each question. `words` are its flags for the store."""

    _COMMANDS: Mapping[str, tuple[str, ...]] = {
        "acquire": ("claim",),
        "acquire-any": ("claim-any",),
        "acquire-all": ("claim-all",),
        "renew": ("heartbeat",),
        "inspect": ("owner",),
        "session-open": ("session", "open"),
        "session-end": ("session", "end"),
    }
    _FLAGS: Mapping[str, str] = {
        "lease_id": "--lease",
        "owner": "--owner",
        "reason": "--reason",
        "request_key": "--request-key",
        "session_id": "--session",
        "to_owner": "--to",
        "ttl_seconds": "--ttl",
        "wait_seconds": "--wait",
    }

    def __init__(self, words: list[str], env: Mapping[str, str]) -> None:
        self._words, self._env = words, env

    def ask(self, asked: Ask) -> Reply:
        flags = [
            word for key, value in asked.document.items() if key != "names" for word in (self._FLAGS[key], str(value))
        ]
        jobs = asked.document.get("names") or [asked.name] * bool(asked.name)
        command = [*self._COMMANDS.get(asked.verb, (asked.verb,)), *jobs, *flags, *self._words, "--json"]
        done = subprocess.run([sys.executable, "-m", "dibs", *command], env=self._env, capture_output=True, check=False)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            return Reply(status=500, body={"code": "internal_error", "message": done.stderr.decode(errors="replace")})
        body: Document = document.get("data") or {}
        if document["ok"] or body.get("status"):
            return Reply(status=200, body=body)
        return Reply(status=503 if document["error"]["code"] in _NO_ANSWER else 409, body=document["error"])

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
