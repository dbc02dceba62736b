"""A command that dibs runs: in a process group of its own, with signals passed on to it.

The guardian (guardian.py) starts, signals and stops the command; this module starts the guardian and talks to it. At a
terminal the command's group is put in the foreground, as a shell does, so the command gets the keyboard and Ctrl-C.
"""

from __future__ import annotations

import os
import select

from dibs.base.cheap import Any, Callable, FrameType, Mapping, signal
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.ids import new_token
from dibs.cli.commands.wait import OUTER, sessions_around
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import is_number
from dibs.cli.framework.parse import UsageError
from dibs.cli.supervise.guardian import Guardian
from dibs.cli.supervise.process_session import ProcessSession
from dibs.cli.supervise.second_guardian import LATE_MS, SecondGuardian
from dibs.cli.supervise.survivors import NAP_MS, Survivors, adopt_orphans, leave_orphans, signalled, wait_for_end
from dibs.client.embedded import default_store_url
from dibs.client.naming import RUN_JOB, RUN_NAMESPACE
from dibs.client.settings import CONTEXT, RUN_OWNER
from dibs.core.names import ELECTION_PREFIX
from dibs.system.session_mark import guarded_env, guarded_mark, process_mark
from dibs.wire.sentences import slot_text

# The environment of a command that dibs runs.

# Variables of an outer claim: the command gets its own, or none.
_NOT_INHERITED = (
    CONTEXT,
    RUN_OWNER,
    *("DIBS_LEASE", RUN_JOB, RUN_NAMESPACE, "DIBS_FENCING_TOKEN", "DIBS_ATTEMPT", "DIBS_DEADLINE_MS", "DIBS_SLOT"),
    *("DIBS_ELECTION", "DIBS_TERM"),
    *("DIBS_CHECKPOINT", "DIBS_CHECKPOINT_FILE", "DIBS_PREVIOUS_OWNER", "DIBS_PREVIOUS_END"),
)


def environment(call: Call, session: ProcessSession) -> dict[str, str]:
    """The command's own dibs calls use the same store or server, this session and the same owner. The environment also
    has the last owner's checkpoint, and the checkpoint file is filled with it."""
    settings = call.settings
    given: dict[str, str | None] = {
        "DIBS_URL": settings.url or default_store_url(),
        CONTEXT: settings.passed_context,
        "DIBS_NAMESPACE": call.stated_namespace,
        "DIBS_OWNER": settings.owner,
        RUN_OWNER: None if call.values.get("owner") is None and settings.stated_owner else settings.owner,
        "DIBS_SESSION": session.id,
        OUTER: " ".join(sessions_around(call.env)) or None,
    }
    if session.grant is not None:
        given |= _of_job(session, session.grant) | _numbered_slot(call, session.grant)
        given[RUN_NAMESPACE] = call.repository_namespace
        if session.notes is not None:
            session.notes.fill((session.grant.get("previous") or {}).get("checkpoint"))
            given["DIBS_CHECKPOINT_FILE"] = session.notes.path
    env = {key: value for key, value in call.env.items() if key not in _NOT_INHERITED}
    # An environment cannot contain a zero byte. A checkpoint with one can be read from the file.
    return env | {key: value for key, value in given.items() if value is not None and "\0" not in value}


def slot_variable(call: Call) -> tuple[str, int] | None:
    """The variable that `--slot-as` names, and the number of the first slot. Raises UsageError."""
    text: str | None = call.values.get("slot_as")
    if text is None:
        return None
    name, _, first = text.partition("=")
    if (
        not (name.isascii() and name.isidentifier())
        or name.startswith("DIBS_")
        or not is_number(first or "0", 0, 10**9)
    ):
        raise UsageError(
            f"--slot-as takes a variable and the number of the first slot, such as PORT=4000, not {text!a}."
        )
    return name, int(first or "0")


def _numbered_slot(call: Call, grant: Document) -> dict[str, str | None]:
    found = slot_variable(call)
    if found is None:
        return {}
    name, first = found
    return {name: ",".join([str(first + int(each)) for each in (slot_text(grant) or "0").split(",")])}


def _of_job(session: ProcessSession, grant: Document) -> dict[str, str | None]:
    previous: Document = grant.get("previous") or {}
    until_ms = wall_ms() + session.lost_ms - steady_ms()
    is_election = grant["name"].startswith(ELECTION_PREFIX)
    return {
        "DIBS_ELECTION": grant["name"].removeprefix(ELECTION_PREFIX) if is_election else None,
        "DIBS_TERM": str(grant["fencing_token"]) if is_election else None,
        RUN_JOB: grant["name"],
        "DIBS_FENCING_TOKEN": str(grant["fencing_token"]),
        "DIBS_ATTEMPT": str(grant.get("attempt", 1)),
        "DIBS_DEADLINE_MS": str(until_ms),
        "DIBS_SLOT": slot_text(grant) or None,
        "DIBS_PREVIOUS_OWNER": previous.get("owner"),
        "DIBS_PREVIOUS_END": previous.get("how"),
        "DIBS_CHECKPOINT": previous.get("checkpoint"),
    }


PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")
)
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Child:
    """Starts the guards at once, and the command when `start` is called. Not for a process with threads. A guard that
    is the last one left calls `end_dead_session` with the session to end."""

    def __init__(
        self,
        words: list[str],
        *,
        kill_after_ms: int,
        leaves_children: bool = False,
        end_dead_session: Callable[[str], None] = lambda session: None,
    ) -> None:
        self._terminal = 0 if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp() else None
        self._pid = 0
        self._trouble: int | None = None  # why the command could not be started
        self._handlers: dict[int, Any] = {}
        self._buffer = b""
        self.code: int | None = None  # of the command, 128+n for a signal
        self.was_stopped = False  # because the claim was no longer certain
        self._interrupted = False  # by a signal to us, or from its terminal
        self.all_gone = False
        self.some_left = False  # processes of other users, which cannot be stopped
        self._token = new_token()
        self._end_dead_session = end_dead_session
        self._kill_after_ms = kill_after_ms
        self._late_ms: int | None = None  # the time by which the guards should have stopped it
        self.guardian_pid = 0
        self._adopts = adopt_orphans()  # if both guards are killed, the command's processes become our children
        self.second_pid = self._fork_guards(words, leaves_children)
        while not self.guardian_pid:
            self._hear()

    @property
    def mark(self) -> str | None:
        """The mark of all processes that must be gone before others may take the session for dead."""
        return guarded_mark(self._token, (os.getpid(), self.guardian_pid, self.second_pid))

    def _fork_guards(self, words: list[str], leaves_children: bool) -> int:
        """Fork the second guardian, which forks the guardian. The guardian reports its own pid."""
        # If stdin, stdout or stderr is closed, open something in its place, so that none of our files gets that number.
        # The command finds it closed, because these files are not inherited.
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
        hearing, self._orders = os.pipe()
        self._reports, reporting = os.pipe()
        watched, self._second = os.pipe()
        os.set_blocking(self._second, False)  # a paused guard must not block the others

        def guardian() -> None:
            for end in (self._orders, self._reports, watched):
                os.close(end)
            Guardian(
                hearing,
                reporting,
                words,
                kill_after_ms=self._kill_after_ms,
                leaves_children=leaves_children,
                terminal=self._terminal,
                second=self._second,
                end_dead_session=self._end_dead_session,
            ).run()

        def second_guardian() -> None:
            pid = _forked(guardian)
            SecondGuardian(watched, self._token, pid, self._kill_after_ms, self._end_dead_session).run()

        pid = _forked(second_guardian)
        for end in (hearing, reporting, watched):
            os.close(end)
        return pid

    def belongs_to(self, session: str) -> None:
        """Tell the guards which session to end if they are left alone."""
        self._order(b"I %b\n" % session.encode(), to_second=True)

    def start(self, env: Mapping[str, str], deadline_ms: int) -> None:
        """Run the command. Raises FileNotFoundError, PermissionError or OSError if it cannot be started. If the
        guardian is killed before it reports, the command may have been started and stopped: `wait` returns at once."""
        marked = {**env, **guarded_env(env, self._token)}
        environment = b"\0".join([os.fsencode(f"{key}={value}") for key, value in marked.items()])
        # A signal that arrives now must be passed on after this write, neither before nor in the middle of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._pass_on)
        self.certain_until(deadline_ms)
        self._order(b"G %d\n%b" % (len(environment), environment))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        while not self._pid and self._trouble is None and not self.all_gone:
            self._hear()
        if self._trouble is not None:
            raise OSError(self._trouble, os.strerror(self._trouble))

    def certain_until(self, deadline_ms: int) -> None:
        """The claim was renewed: the steady time at which the command must be stopped without another renewal."""
        self._order(b"D %d\n" % deadline_ms, to_second=True)

    def wait(self, tend: Callable[[], int | None]) -> None:
        """Wait until no process of the command is left. `tend` is called when it is due; it returns in how many ms to
        call it again, or None to stop the command."""
        nap_ms: int | None = 0
        while not self.all_gone:
            if nap_ms is not None:
                nap_ms = tend()
                if nap_ms is None:
                    self.was_stopped = self.was_stopped or self.code is None
                    self._order(b"T\n")
                    self._late_ms = steady_ms() + self._kill_after_ms + 2 * LATE_MS
            sleep_ms = self._patience_ms() if nap_ms is None else min(NAP_MS, nap_ms)
            if select.select([self._reports], [], [], max(0, sleep_ms) / 1000)[0]:
                self._hear()

    def _patience_ms(self) -> int:
        """Return how long the guards still have to stop everything. After that, both must be paused: the guardian is
        killed, and its processes become our children."""
        if self._late_ms is None:
            return NAP_MS
        left_ms = self._late_ms - steady_ms()
        if left_ms <= 0:
            self._late_ms = None
            signalled(self.guardian_pid)
        return max(0, min(NAP_MS, left_ms))

    def close(self) -> None:
        """Restore signals and terminal, and adopt nobody any more. The guards end by themselves."""
        self._hand_terminal(self._pid, os.getpgrp())
        if self._adopts:
            leave_orphans()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._send_second(b"Q\n")
        for end in (self._orders, self._reports, self._second):
            os.close(end)
        try:
            os.waitpid(self.second_pid, os.WNOHANG)
        except ChildProcessError:  # it was reaped already
            pass

    @property
    def was_interrupted(self) -> bool:
        """Tell whether somebody stopped the command: by a signal to us before we heard of its end, or by one from its
        terminal. A command that gave the terminal to a group of its own shows that by its exit code alone."""
        from_terminal = self._terminal is not None and self.code in [128 + number for number in INTERRUPTS]
        return from_terminal or self._interrupted

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        # Whoever stops a service may signal all its processes: the command may have ended because of that already.
        if number in INTERRUPTS and self.code is None:
            self._interrupted = True
        self._order(b"S %d\n" % number)

    def _order(self, order: bytes, *, to_second: bool = False) -> None:
        if to_second:
            self._send_second(order)
        try:
            while order:
                order = order[os.write(self._orders, order) :]
        except OSError:  # the guardian was killed; the other pipe reports that
            pass

    def _send_second(self, order: bytes) -> None:
        try:
            os.write(self._second, order)
        except OSError:  # it was killed, or is paused with a full pipe; the guardian is still there
            pass

    def _hear(self) -> None:
        some = os.read(self._reports, 4096)
        if not some:
            self._guardian_was_killed()
            return
        *lines, self._buffer = (self._buffer + some).split(b"\n")
        for line in lines:
            report, _, text = line.decode().partition(" ")
            number = int(text or 0)
            if report == "N":
                self.guardian_pid = number
            elif report == "P":
                self._pid = number
            elif report == "X":
                self._trouble = number
            elif report == "C":
                self._interrupted = True
            elif report == "E":
                self.code = number if number >= 0 else 128 - number
            elif report == "L":
                self.was_stopped = True
            elif report == "Z":
                self._paused()
            elif report in ("Q", "U"):
                self.all_gone = True
                self.some_left = report == "U"

    def _guardian_was_killed(self) -> None:
        """The command died with the guardian, on systems that support that. All its other processes became our
        children, or the second guardian's, which is below us."""
        if not self.guardian_pid:
            raise ChildProcessError("the processes that guard the command could not be started")
        self.was_stopped = True
        wait_for_end(lambda: process_mark(self.guardian_pid) is None)
        survivors = Survivors(self._token, (self.guardian_pid, self.second_pid))
        if self._pid and not self._adopts:
            survivors.has_group(self._pid)
        survivors.end(lambda: [os.getpid()])
        self.all_gone = True
        self.some_left = bool(survivors.untouchable)

    def _paused(self) -> None:
        """Ctrl-Z at a terminal: pause with the command, so that the shell gets its prompt, and continue with it."""
        if self._terminal is None:
            return
        self._hand_terminal(self._pid, os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        self._hand_terminal(os.getpgrp(), self._pid)
        self._pass_on(signal.SIGCONT, None)

    def _hand_terminal(self, giver: int, taker: int) -> None:
        """Give the terminal from one group to the other. If neither has it, a shell has it and decides."""
        if self._terminal is None:
            return
        # A background process that does this gets SIGTTOU.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            if os.tcgetpgrp(self._terminal) == giver:
                os.tcsetpgrp(self._terminal, taker)
        except OSError:  # the terminal is gone, or the group
            pass
        finally:
            signal.signal(signal.SIGTTOU, before)


def _forked(guard: Callable[[], None]) -> int:
    """Fork a process for a guard. Signals are blocked until it has set its handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            guard()
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid
