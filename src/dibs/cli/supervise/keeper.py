"""claim --keep: a small process that stays behind and heartbeats, while whoever claimed is thinking.

It belongs to one process, by default the one that called dibs, and ends with it: then it lets the job go. It ends, too,
when it is told that the claim is not current any more, because somebody released it or it was lost. It has nothing open
but what it watches that process with, says nothing, and keeps no claim alive whose process is gone.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C part of `signal`, whose import costs more than a claim
import gc
import os
import select

from dibs.cli.framework.parse import UsageError
from dibs.client.door import OVER_CODES
from dibs.client.embedded import is_gone, process_mark
from dibs.client.plan import RenewalPlan
from dibs.clock import steady_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.client.door import Door

    Document = dict[str, Any]

_KEPT = b"kept"
_SAME_EVERYWHERE = ("http:", "https:", "unix:/", "sqlite:/", "sqlite:~")
NAP_MS = 1_000  # select does not count suspend, the clock does: look at it this often


class WatchedProcess:
    """A process of this machine, and whether it still lives. A number that came again is not taken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._mark = process_mark(pid)
        self._handle: int | None = None

    @property
    def lives(self) -> bool:
        if self._mark is not None:
            return not is_gone(self._mark)
        try:  # a system that does not tell when a process began
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def open(self) -> None:
        """Be woken by its end, where the system can do that; else it is looked at every second."""
        try:
            self._handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            self._handle = None

    def wait(self, ms: int) -> bool:
        """Until it has ended, `ms` at most. Whether it lives."""
        select.select([] if self._handle is None else [self._handle], [], [], ms / 1000)
        return self.lives


def watched_process(call: Call) -> WatchedProcess | None:
    """Whose life the claim shall be tied to. None: --keep was not asked for."""
    text = call.values.get("keep_for")
    if text is None:
        return WatchedProcess(os.getppid()) if call.values.get("keep") else None
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and int(text) > 0):
        raise UsageError(f"--keep-for is the number of a process, not {text!a}.", call.command)
    watched = WatchedProcess(int(text))
    if not watched.lives:
        raise UsageError(f"--keep-for {text}: there is no such process here.", call.command)
    return watched


def leave_keeper(
    call: Call, grant: Document, names: list[str], request: Document, watched: WatchedProcess
) -> str | None:
    """Start the keeper, which is nobody's child and holds none of our files. Returns when it has kept the claim for the
    first time; else why it could not. `names` are the jobs that `grant` gave, under one lease id."""
    session = request.get("session_id")
    proof = {"lease_id": grant["lease_id"]} if session is None else {"session_id": session}
    ttl_ms: int = grant["remaining_ms"]
    call.close()  # a connection to a store does not survive a fork
    hearing, telling = os.pipe()
    first = os.fork()
    if first:
        os.close(telling)
        os.waitpid(first, 0)
        return _heard(hearing)
    try:
        os.setsid()
        if os.fork() == 0:
            door = call.another_door(max(1_000, ttl_ms // 6))  # reads a token while paths still mean the same
            _detach(telling, call.settings.url)
            plan = RenewalPlan(ttl_ms, steady_ms(), 0)
            Keeper(door, names, proof, plan, watched).run(telling)
    finally:
        os._exit(0)


def _heard(hearing: int) -> str | None:
    """What the keeper says before it goes on alone: nothing at all means that it is no more."""
    said = b""
    while some := os.read(hearing, 4096):
        said += some
    os.close(hearing)
    if said == _KEPT:
        return None
    return said.decode(errors="replace") or "The process that should keep it ended at once."


def _detach(telling: int, url: str | None) -> None:
    """Away from terminal and files of whoever claimed, and from the folder unless the store is named from there."""
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, telling)
    os.closerange(telling + 1, 65536)
    if url is None or url.startswith(_SAME_EVERYWHERE):
        os.chdir("/")
    gc.enable()


class Keeper:
    """`proof` is a lease id, or the session in which the jobs are held; the session is then kept alive as well. A job
    that is over is kept no more; the keeper ends when none is left."""

    def __init__(
        self, door: Door, jobs: list[str], proof: Document, plan: RenewalPlan, watched: WatchedProcess
    ) -> None:
        self._door = door
        self._jobs = jobs
        self._proof = proof
        self._plan = plan
        self._watched = watched
        self._trouble = ""  # what came of the last question, if it was no yes

    def run(self, telling: int) -> None:
        is_kept = self._renew()
        os.write(telling, self._trouble.encode() or _KEPT)
        os.close(telling)
        if not is_kept or self._trouble:
            return
        self._watched.open()
        while steady_ms() < self._plan.lost_ms:
            if not self._watched.wait(min(NAP_MS, self._plan.left_ms(steady_ms()))):
                self._let_go()
                return
            if steady_ms() >= self._plan.next_ms and not self._renew():
                return

    def _renew(self) -> bool:
        """False when there is nothing to keep any more."""
        sent_ms = steady_ms()
        lengths_ms: list[int] = []
        asked = [("renew", job, self._proof) for job in self._jobs]
        if "session_id" in self._proof:
            asked.insert(0, ("session-keep", self._proof["session_id"], {}))
        for verb, name, document in asked:
            status, body = self._ask(verb, name, document)
            if body.get("code") in OVER_CODES:
                if verb != "renew" or self._jobs == [name]:
                    return False
                self._jobs = [job for job in self._jobs if job != name]
                self._trouble = ""
                continue
            if status >= 300:
                self._plan.failed(steady_ms())
                return True
            lengths_ms.append(body.get("remaining_ms") or self._plan.ttl_ms)
        self._plan.ttl_ms = min(lengths_ms)  # somebody may have changed it
        self._plan.kept(sent_ms)
        return True

    def _let_go(self) -> None:
        while steady_ms() < self._plan.lost_ms:
            self._jobs = [job for job in self._jobs if not self._is_let_go(job)]
            if not self._jobs:
                return
            self._plan.failed(steady_ms())
            select.select([], [], [], self._plan.left_ms(steady_ms()) / 1000)

    def _is_let_go(self, job: str) -> bool:
        status, body = self._ask("release", job, self._proof)
        return status < 300 or body.get("code") in OVER_CODES

    def _ask(self, verb: str, name: str, document: Document) -> tuple[int, Document]:
        """A store is opened for each question, so that nothing is in its way for as long as the keeper lives."""
        try:
            reply = self._door.call(verb, name, document)
            self._door.close()
        except Exception as error:  # a fault is no reason to go silent: the next attempt may do
            self._trouble = f"{type(error).__name__}: {error}"
            return 500, {}
        body: Document = reply.body or {}
        self._trouble = "" if reply.status < 300 else str(body.get("details") or f"status {reply.status}")
        return reply.status, body
