"""claim --keep: a background process that sends heartbeats for the caller.

It belongs to one process, by default the one that called dibs. When that process ends, it releases the job and ends.
Nobody has said how the work went, so the release counts as neither a success nor a failure. It also ends when the claim
is not current any more, because it was released or lost. It has no file open except the handle of the watched process,
and prints nothing.
"""

from __future__ import annotations

import os
import select

from dibs.base.cheap import signal
from dibs.base.clock import steady_ms
from dibs.base.reply import Reply
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import process_number
from dibs.cli.framework.parse import UsageError
from dibs.client.renewal_plan import RenewalPlan
from dibs.client.transport import Ask, Transport, is_over
from dibs.system.processes import let_go_of_files, process_handle
from dibs.system.session_mark import is_gone, process_mark, takes_signals

_KEPT = b"kept"
_SAME_EVERYWHERE = ("http:", "https:", "unix:/", "sqlite:/", "sqlite:~")
NAP_MS = 1_000  # select does not count suspend, the clock does: look at it this often


class WatchedProcess:
    """A process of this machine, and whether it still lives. A reused pid is recognised as another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._mark = process_mark(pid)
        self._handle: int | None = None

    @property
    def lives(self) -> bool:
        # Some systems do not report when a process began.
        return takes_signals(self.pid) if self._mark is None else not is_gone(self._mark)

    def open(self) -> None:
        """Open a handle that reports the end of the process; where there is none, it is polled every second."""
        self._handle = process_handle(self.pid)

    def wait(self, ms: int) -> bool:
        """Wait for its end for at most `ms`. Returns whether it lives."""
        select.select([] if self._handle is None else [self._handle], [], [], ms / 1000)
        return self.lives


def watched_process(call: Call) -> WatchedProcess:
    """The process that the claim belongs to, as --keep-for says: the calling one, unless another is named."""
    if call.values.get("keep_for") is None:
        return WatchedProcess(os.getppid())
    watched = WatchedProcess(process_number(call, "keep_for"))
    if not watched.lives:
        raise UsageError(f"--keep-for {watched.pid}: there is no such process here.")
    return watched


def leave_keeper(
    call: Call, grant: Document, names: list[str], request: Document, watched: WatchedProcess
) -> str | None:
    """Start the keeper as a daemon, without our files. Returns None after its first renewal, else why that failed."""
    session = request.get("session_id")
    proof = {"lease_id": grant["lease_id"]} if session is None else {"session_id": session}
    ttl_ms: int = grant["remaining_ms"]
    call.close()  # a connection to a store does not survive a fork
    hearing, reporting = os.pipe()
    first = os.fork()
    if first:
        os.close(reporting)
        os.waitpid(first, 0)
        return _heard(hearing)
    try:
        os.setsid()
        if os.fork() == 0:
            timeout_ms = min(max(1_000, ttl_ms // 6), call.settings.timeout_ms)
            transport = call.another_transport(timeout=f"{timeout_ms}ms")  # reads the token before the folder changes
            _detach(reporting, call.settings.url)
            Keeper(transport, names, proof, RenewalPlan(ttl_ms, steady_ms(), 0), watched).run(reporting)
    finally:
        os._exit(0)


def _heard(hearing: int) -> str | None:
    """The keeper's first report. No report means that it has ended."""
    said = b""
    while some := os.read(hearing, 4096):
        said += some
    os.close(hearing)
    if said == _KEPT:
        return None
    return said.decode(errors="replace") or "The background process ended at once."


def _detach(reporting: int, url: str | None) -> None:
    """Detach from the caller's terminal and files, and from its folder unless the store's path is relative to it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    let_go_of_files(reporting)
    if url is None or url.startswith(_SAME_EVERYWHERE):
        os.chdir("/")


class Keeper:
    """Renews jobs. `proof` is a lease id, or the session of the jobs, which is then renewed as well. A job whose claim
    has ended is dropped; the keeper ends when none is left."""

    def __init__(
        self, transport: Transport, jobs: list[str], proof: Document, plan: RenewalPlan, watched: WatchedProcess
    ) -> None:
        self._transport = transport
        self._jobs = jobs
        self._proof = proof
        self._plan = plan
        self._watched = watched
        self._trouble = ""  # the error of the last request, if it failed

    def run(self, reporting: int) -> None:
        is_kept = self._renew()
        os.write(reporting, self._trouble.encode() or _KEPT)
        os.close(reporting)
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
        """Renew. False if there is nothing left to renew."""
        sent_ms = steady_ms()
        lengths_ms: list[int] = []
        asked = [("renew", job, self._proof) for job in self._jobs]
        if "session_id" in self._proof:
            asked.insert(0, ("session-keep", self._proof["session_id"], {}))
        for verb, name, document in asked:
            reply = self._ask(verb, name, document)
            if is_over(reply):
                if verb != "renew" or self._jobs == [name]:
                    return False
                self._jobs = [job for job in self._jobs if job != name]
                self._trouble = ""
                continue
            if reply.status >= 300:
                self._plan.failed(steady_ms())
                return True
            lengths_ms.append((reply.body or {}).get("remaining_ms") or self._plan.ttl_ms)
        self._plan.ttl_ms = min(lengths_ms)  # it may have been changed
        self._plan.kept(sent_ms)
        return True

    def _let_go(self) -> None:
        while steady_ms() < self._plan.lost_ms:
            for job in list(self._jobs):
                reply = self._ask("release", job, {**self._proof, "uncounted": True})
                if reply.status < 300 or is_over(reply):
                    self._jobs.remove(job)
            if not self._jobs:
                return
            self._plan.failed(steady_ms())
            select.select([], [], [], self._plan.left_ms(steady_ms()) / 1000)

    def _ask(self, verb: str, name: str, document: Document) -> Reply:
        """Open the store for each request, so that the keeper does not hold it open all its life."""
        try:
            reply = self._transport.ask(Ask(verb, name, document))
            self._transport.close()
        except Exception as error:  # after an unexpected error, the next attempt may succeed
            self._trouble = f"{type(error).__name__}: {error}"
            return Reply(500)
        details = (reply.body or {}).get("details")
        self._trouble = "" if reply.status < 300 else str(details or f"status {reply.status}")
        return reply
