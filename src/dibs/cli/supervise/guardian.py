"""The process between `dibs run` and its command: it starts the command, and stops all its processes before the claim
ends.

`dibs run` can be killed, paused, or stuck in a call to a server. The guardian talks only to `dibs run`, over two pipes,
so none of that stops it. Every renewal is reported to it, so it knows the deadline of the claim. It stops everything
below it at the deadline, when it is ordered to, or when `dibs run` is gone.

It is the parent of the command and adopts its orphans (survivors.py), so it finds all processes of the command,
even those that left the process group. It lives until `dibs run` has released the claim: other dibs processes on this
machine take the session for dead when the session's processes, including this one, are gone.

If it is killed or paused together with `dibs run`, there is a second guard (second_guardian.py).

Orders, a line each: `I session`, `G n` and then n bytes of environment (go), `D ms` (the new deadline), `S number` (a
signal for the command), `T` (stop it). Reports: `N pid` (ours), `P pid` (the command runs), `X errno` (it could not be
started), `Z` (it was paused), `C` (its terminal interrupted it, as Ctrl-C does), `E status` (it ended), `L` (it is
being stopped, the deadline has come), `Q` (no process is left) or `U` (only processes of other users are left, which
cannot be stopped).
"""

from __future__ import annotations

import os
import select

from dibs.base.cheap import Callable, signal
from dibs.base.clock import steady_ms
from dibs.cli.supervise.survivors import NAP_MS, adopt_orphans, descendants, die_with, signalled, wake_with_parent
from dibs.cli.supervise.terminal_signals import TerminalSignals
from dibs.system import table
from dibs.system.processes import let_go_of_files

LOOK_MS = 20
# Signals that a terminal or a user may send to all processes; this one ignores them.
IGNORED = tuple(
    getattr(signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGALRM",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGPIPE",
    )
)
_RESTORED = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))


class Guardian:
    """Runs in a process of its own. The command gets the foreground of `terminal`. `end_dead_session` ends the session
    when `dibs run` is gone. `second` is the pipe to the second guard, which is notified when no process is left."""

    def __init__(
        self,
        orders: int,
        reports: int,
        words: list[str],
        *,
        kill_after_ms: int,
        leaves_children: bool,
        terminal: int | None,
        second: int | None = None,
        end_dead_session: Callable[[str], None] | None = None,
    ) -> None:
        self._second = second
        self._end_dead_session = end_dead_session
        self._session = ""
        self._orders = orders
        self._reports = reports
        self._words = words
        self._kill_after_ms = kill_after_ms
        self._leaves_children = leaves_children
        self._terminal = terminal
        self._terminal_signals: TerminalSignals | None = None  # while the command runs at a terminal
        self._buffer = b""
        self._pid = 0
        self._ended = False
        self._orphaned = False  # dibs run is gone
        self._deadline_ms: int | None = None
        self._kill_ms: int | None = None  # set once all processes were sent SIGTERM
        self._is_done = False
        self._untouchable: set[int] = set()
        self._defaults: set[int] = set()
        self._adopts = False
        self._waking, self._waker = os.pipe()

    def run(self) -> None:
        """Run until the command has ended and `dibs run` is done."""
        self._prepare()
        while not (self._orphaned and (not self._pid or self._is_done)):
            watched = [self._waking] if self._orphaned else [self._waking, self._orders]
            ready = select.select(watched, [], [], self._nap_ms() / 1000)[0]
            if self._waking in ready:
                os.read(self._waking, 4096)
            if self._orders in ready:
                self._hear()
            if self._pid and not self._is_done:
                self._look_after()
        # `dibs run` and the command are gone: end the session, which frees the job.
        if self._untouchable:
            return  # processes of another user may still be at work, so only the TTL frees the job
        if self._end_dead_session is not None and self._session:
            self._end_dead_session(self._session)
        if self._second is not None:
            os.write(self._second, b"Q\n")

    def _prepare(self) -> None:
        for number in IGNORED:
            if signal.signal(number, signal.SIG_IGN) is not signal.SIG_IGN:
                self._defaults.add(number)
        self._defaults.update(_RESTORED)  # which Python itself ignores
        for end in (self._waking, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler is enough for the wake-up pipe to be written
        os.setpgid(0, 0)
        wake_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._adopts = adopt_orphans()
        self._report(f"N {os.getpid()}")

    def _nap_ms(self) -> int:
        if not self._pid or self._is_done:
            return NAP_MS
        if self._kill_ms is not None:
            return LOOK_MS
        left_ms = NAP_MS if self._deadline_ms is None else self._deadline_ms - steady_ms()
        return max(0, min(NAP_MS, left_ms))

    # Orders

    def _hear(self) -> None:
        some = os.read(self._orders, 65536)
        if not some:
            self._orphaned = True
            return
        self._buffer += some
        while b"\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\n")
            order, _, word = line.decode().partition(" ")
            if order == "G":
                if len(rest) < int(word):
                    return  # the rest has not arrived yet
                environment, rest = rest[: int(word)], rest[int(word) :]
                self._start(environment)
            self._buffer = rest
            if order == "I":
                self._session = word
            elif order == "D":
                self._deadline_ms = int(word)
            elif order == "S":
                self._to_group(int(word))
            elif order == "T":
                self._stop()

    def _report(self, report: str) -> None:
        try:
            os.write(self._reports, f"{report}\n".encode())
        except OSError:  # dibs run is gone; the other pipe reports that
            pass

    # The command

    def _start(self, environment: bytes) -> None:
        """Start the command, unless the claim has ended: `dibs run` may have been paused after the grant."""
        if self._is_late():
            self._is_done = True
            for report in ("L", "Q"):
                self._report(report)
            return
        env = dict(pair.split(b"=", 1) for pair in environment.split(b"\0") if pair)
        reading, writing = os.pipe()
        waiting, go = os.pipe()
        guardian = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            try:
                self._become_command(guardian, env, waiting)
            except OSError as error:
                os.write(writing, str(error.errno or 0).encode())
            finally:
                os._exit(127)
        os.close(writing)
        os.close(waiting)
        if self._terminal is not None:
            os.setpgid(pid, pid)  # whoever of the two is first
            self._terminal_signals = TerminalSignals(pid, self._defaults)
        os.close(go)
        trouble = os.read(reading, 16)  # no data: the process became the command, which closed the other end
        os.close(reading)
        if trouble:
            os.waitpid(pid, 0)
            self._forget_terminal()
            self._report(f"X {trouble.decode()}")
            return
        self._pid = pid
        # Its readers see the end of its output when it ends.
        asks = () if self._terminal_signals is None else self._terminal_signals.files
        let_go_of_files(self._orders, self._reports, self._waking, self._waker, self._second, *asks)
        self._report(f"P {pid}")
        if self._second is not None and not self._adopts:
            os.write(self._second, b"P %d\n" % pid)  # it cannot find the command by itself

    def _become_command(self, guardian: int, env: dict[bytes, bytes], waiting: int) -> None:
        die_with(guardian)
        os.setpgid(0, 0)
        os.read(waiting, 1)  # until the terminal's signals to this group are noted
        if self._terminal is not None:
            os.tcsetpgrp(self._terminal, os.getpid())  # SIGTTOU is still ignored
        for number in self._defaults:
            signal.signal(number, signal.SIG_DFL)
        execute(self._words, env)

    # Supervision

    def _look_after(self) -> None:
        if not self._ended:
            self._ended = self._has_ended()
        for pid in table().children(os.getpid()) if self._adopts else ():
            if pid not in (self._pid, self._terminal_signals and self._terminal_signals.pid):
                os.waitpid(pid, os.WNOHANG)
        if self._is_over():
            self._is_done = True
            self._report("U" if self._untouchable else "Q")
        elif self._kill_ms is None:
            late = self._is_late()
            if late and not self._ended:
                self._report("L")
            if late or self._orphaned or self._ended:
                self._stop()
        elif steady_ms() >= self._kill_ms:
            self._to_everybody(signal.SIGKILL)

    def _is_over(self) -> bool:
        if not self._ended and self._pid not in self._untouchable:
            return False
        if not (self._leaves_children and self._kill_ms is None) and self._survivors():
            return False
        if self._ended and self._adopts:
            os.waitpid(self._pid, 0)
        return True

    def _is_late(self) -> bool:
        return self._deadline_ms is not None and steady_ms() >= self._deadline_ms

    def _stop(self) -> None:
        if self._pid and self._kill_ms is None:
            self._forget_terminal()
            self._kill_ms = steady_ms() + self._kill_after_ms
            self._to_everybody(signal.SIGTERM)
            self._to_everybody(signal.SIGCONT)  # a paused process must be continued to get the signal

    def _has_ended(self) -> bool:
        """Tell whether the command itself has ended. It is reaped last: until then its group's number stays."""
        if not self._adopts:
            return self._is_reaped()
        found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            if self._was_paused():
                self._report("Z")
            return False
        killed = found.si_code != os.CLD_EXITED
        self._report_end(-found.si_status if killed else found.si_status)
        return True

    def _is_reaped(self) -> bool:
        """The same without `waitid`, which Python has on macOS only since 3.13."""
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            self._report("Z")
            return False
        if pid:
            self._report_end(os.waitstatus_to_exitcode(status))
        return bool(pid)

    def _report_end(self, status: int) -> None:
        if self._terminal_signals is not None and self._terminal_signals.came():
            self._report("C")
        self._forget_terminal()
        self._report(f"E {status}")

    def _forget_terminal(self) -> None:
        """Its process counts as one of the command's, so it ends before the others are looked for."""
        if self._terminal_signals is not None:
            self._terminal_signals.close()
            self._terminal_signals = None

    def _was_paused(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:  # it ended at this moment: waiting for paused processes only then fails
            return False

    def _survivors(self) -> set[int]:
        """The other processes of the command that are left, as far as they can be seen and stopped."""
        if not self._adopts:
            if signalled(-self._pid, 0):
                return {self._pid}
            # Refused, or none is left. macOS refuses also for a group in which all have ended.
            self._untouchable.update(table().group(self._pid))
            return set()
        for _ in range(2):  # the list may miss processes if others end while it is read
            found = {*descendants(os.getpid())} - {self._pid} - self._untouchable
            if found:
                return found
        return set()

    def _to_group(self, number: int) -> None:
        if self._pid and not self._is_done:
            signalled(-self._pid, number)

    def _to_everybody(self, number: int) -> None:
        self._to_group(number)
        if self._adopts:
            for pid in descendants(os.getpid()):
                if not signalled(pid, number):
                    self._untouchable.add(pid)


def execute(words: list[str], env: dict[bytes, bytes]) -> None:
    """Replace this process by the command, found on PATH as a shell does. Raises OSError if that fails."""
    name = os.fsencode(words[0])
    if not name:
        raise FileNotFoundError(2, "no command")
    if b"/" in name:
        os.execve(name, words, env)
    refused: OSError | None = None
    for folder in env.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(folder, name), words, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = error
    raise refused or FileNotFoundError(2, "no command")
