"""Clients that race for a few jobs on purpose, for `dibs verify`: each call and its answer is a line for the judge.

They do what real clients do, and what goes wrong for real clients: answers that are thrown away as if they were lost,
requests that are sent twice or again with the same key, owners that fall silent, waits that are given up.
"""

from __future__ import annotations

import json
import threading
from random import Random  # noqa: TID251 - a seed makes a run that can be repeated
from typing import TYPE_CHECKING, Any

from dibs.base.clock import stopwatch_us
from dibs.client.door import Ask
from dibs.testing.judge import OK, REFUSED, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from dibs.client.door import Door
    from dibs.wire.documents import Document, Reply

TTL_S = 2
JOBS = 4
LOST, DOUBLED = 0.05, 0.03
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


class Racer(threading.Thread):
    """One client. `doors` makes a new one for a request that is sent twice."""

    def __init__(
        self,
        name: str,
        doors: Callable[[], Door],
        recorder: Recorder,
        *,
        seed: str,
        prefix: str,
        may_break: bool,
        over: threading.Event,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._chance = Random(f"{seed} {name}")
        self._doors, self._door = doors, doors()
        self._recorder = recorder
        self._jobs = [f"{prefix}job-{number}" for number in range(JOBS)]
        self._may_break = may_break
        self._over = over
        self._number = 0
        self._last: tuple[str, str, Document, Document] = ("", "", {}, {})
        self.trouble: BaseException | None = None

    def run(self) -> None:
        ways = [self._claim_one] * 5 + [self._claim_any, self._claim_all, self._in_a_session, self._look]
        if self._may_break:
            ways.append(self._break)
        try:
            while not self._over.is_set():
                self._chance.choice(ways)()
        except BaseException as trouble:
            self.trouble = trouble
        finally:
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
            document["session"] = session
        if verb != "acquire-any" and self._chance.random() < 0.5:
            document["wait_seconds"] = self._chance.choice([1, 3])
        known = {"call": call, "key": own, "owner": own, "ttl": TTL_S, "session": session}
        self._last = (verb, name, document, known)
        return self._ask_for(*self._last)

    def _ask_for(self, verb: str, name: str, document: Document, known: Document) -> list[Document]:
        for _ in range(3):
            began, reply = now(), self._ask(verb, name, document)
            ended = now()
            outcome, code, body = _read(reply)
            if outcome == OK and body.get("status") != "acquired":
                outcome, code = REFUSED, str(body.get("status"))
            leases: list[Document] = (body.get("leases") or [body]) if outcome == OK else []
            for lease in leases:
                told = {"job": lease["name"], "lease": lease["lease_id"], "token": lease["fencing_token"]}
                self._recorder.note(client=self.name, began=began, ended=ended, outcome=OK, **known, **told)
            if not leases:
                told = {"job": name or ",".join(document["names"]), "outcome": outcome, "code": code}
                self._recorder.note(client=self.name, began=began, ended=ended, **known, **told)
            if outcome != UNKNOWN:
                return leases
        return []

    def _hold(self, leases: list[Document]) -> None:
        for lease in leases:
            for _ in range(self._chance.randrange(3)):
                self._over.wait(self._chance.random() * 0.03)
                if self._chance.random() < 0.1:
                    self._over.wait(TTL_S * self._chance.random() * 1.5)  # it is slow, or paused
                if not self._about("renew", "renew", lease, {}):
                    break
        for lease in leases:
            how = self._chance.random()
            if how < 0.08:
                continue  # it died
            if how < 0.15:
                self._transfer(lease)
            else:
                self._about("release", "release", lease, {})
                self._come_late(lease)

    def _come_late(self, lease: Document) -> None:
        """Send something again that was for the lease which is over now."""
        late = self._chance.random()
        if late < 0.1:
            self._about("release", "release", lease, {})
        elif late < 0.2:
            self._about("renew", "renew", lease, {})
        elif late < 0.3:
            for again in self._ask_for(*self._last):
                self._about("release", "release", again, {})

    def _transfer(self, lease: Document) -> None:
        self._number += 1
        heir = f"{self.name}.{self._number}"
        began = now()
        body = self._about("transfer", "transfer", lease, {"to_owner": heir})
        if body:
            told = {"job": body["name"], "lease": body["lease_id"], "token": body["fencing_token"], "ttl": TTL_S}
            ended = now()
            self._recorder.note(client=self.name, call="heir", began=began, ended=ended, outcome=OK, owner=heir, **told)
            self._about("release", "release", body, {})

    def _about(self, call: str, verb: str, lease: Document, more: Document) -> Document | None:
        """A call about a lease. The answer, if it succeeded."""
        began = now()
        reply = self._ask(verb, lease["name"], {"lease_id": lease["lease_id"]} | more)
        outcome, code, body = _read(reply)
        self._recorder.note(
            client=self.name,
            call=call,
            job=lease["name"],
            began=began,
            ended=now(),
            outcome=outcome,
            code=code,
            lease=lease["lease_id"],
            token=lease["fencing_token"],
            ttl=TTL_S,
        )
        return body if outcome == OK else None

    def _in_a_session(self) -> None:
        opened = self._ask("session-open", "", {"owner": self.name, "ttl_seconds": TTL_S}, whole=True)
        session = (opened.body or {}).get("session_id") if opened is not None else None
        if not session:
            return
        self._claim_one(str(session))
        began = now()
        reply = self._ask("session-end", str(session), {}, whole=True)
        outcome, code, _ = _read(reply)
        known = {"client": self.name, "call": "session_end", "job": "", "session": session}
        self._recorder.note(began=began, ended=now(), outcome=outcome, code=code, **known)

    def _look(self) -> None:
        job, began = self._chance.choice(self._jobs), now()
        outcome, code, body = _read(self._ask("inspect", job, {}))
        held = body.get("status") == "held"
        token = body.get("fencing_token", 0) if held else 0
        known = {"client": self.name, "call": "show", "job": job, "held": held, "token": token}
        self._recorder.note(began=began, ended=now(), outcome=outcome, code=code, **known)

    def _break(self) -> None:
        job, began = self._chance.choice(self._jobs), now()
        outcome, code, _ = _read(self._ask("break", job, {"reason": "verify"}))
        known = {"client": self.name, "call": "break", "job": job}
        self._recorder.note(began=began, ended=now(), outcome=outcome, code=code, **known)

    def _ask(self, verb: str, name: str, document: Document, *, whole: bool = False) -> Reply | None:
        """The answer. None: it is lost, or as good as lost. Sometimes the same request is under way twice."""
        if not whole and self._chance.random() < DOUBLED:
            threading.Thread(target=self._ask_beside, args=(verb, name, dict(document)), daemon=True).start()
        reply = self._door.ask(Ask(verb, name, dict(document)))
        if reply.status >= 500:
            self._over.wait(PAUSE_S)
        return None if not whole and self._chance.random() < LOST else reply

    def _ask_beside(self, verb: str, name: str, document: Document) -> None:
        door = self._doors()
        try:
            door.ask(Ask(verb, name, document))
        finally:
            door.close()


def _read(reply: Reply | None) -> tuple[str, str, Document]:
    """Outcome, code and document of an answer."""
    if reply is None:
        return UNKNOWN, "", {}
    body = reply.body or {}
    code = str(body.get("code") or "")
    if reply.status >= 500 or code in _NO_ANSWER:
        return UNKNOWN, code, body
    return (OK if reply.status < 300 else REFUSED), code, body
