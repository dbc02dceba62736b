"""A command run for somebody else: in a process group of its own, with its signals passed on and its end noticed.

The group is what is stopped, not only the process that was started: a shell may die and leave its work running. At a
terminal the group is put in the foreground, as a shell would, so that it reads the keyboard and Ctrl-C is its own.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess

from dibs.clock import steady_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType
    from typing import Any

GRACE_MS = 5_000
LOOK_MS = 50
NAP_MS = 1_000  # select does not count suspend: whoever measures time looks at least this often
PASSED_ON = tuple(
    getattr(signal, name) for name in "SIGINT SIGTERM SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM".split()
)
_PR_SET_PDEATHSIG = 1


class Child:
    """Starts at once. Raises what starting it raises: FileNotFoundError, PermissionError, OSError."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._early: list[int] = []
        self._pid = 0
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._handlers: dict[int, Any] = {}
        self._terminal = 0 if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp() else None
        self._woken = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _noted)
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._pass_on)
        try:
            prepare = _in_child(self._terminal, os.getpid())
            # Unsafe with threads, and none has been started yet: whoever keeps the session alive comes after this.
            self._popen = subprocess.Popen(words, env=env, process_group=0, preexec_fn=prepare)  # noqa: PLW1509
        except BaseException:
            self.close()
            raise
        self._pid = self._popen.pid
        for number in self._early:
            self._signal(number)

    def wake(self) -> None:
        """Make `wait` look up. For other threads."""
        try:
            os.write(self._writing, b"\0")
        except OSError:  # full: it will wake anyway; closed: nobody waits
            pass

    def wait(self, gives_up: Callable[[], bool], left_ms: Callable[[], int]) -> int | None:
        """Its exit code, 128+n for a signal; None when `gives_up` said so first. `left_ms` is when to ask that next."""
        while True:
            code = self._poll()
            if code is not None:
                return code
            if gives_up():
                return None
            self._sleep(min(NAP_MS, left_ms() + 1))

    def stop(self) -> None:
        """End the whole group: asked first, made to after GRACE_MS."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that was paused must hear it too
        until_ms = steady_ms() + GRACE_MS
        while self._is_there() and steady_ms() < until_ms:
            self._sleep(LOOK_MS)
        self._signal(signal.SIGKILL)
        while self._poll() is None:
            self._sleep(LOOK_MS)

    def close(self) -> None:
        """Signals, terminal and pipe as they were before."""
        self._to_foreground(os.getpgrp())
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken)
        os.close(self._reading)
        os.close(self._writing)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._pid:
            self._signal(number)
        else:
            self._early.append(number)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or no longer ours
            pass

    def _is_there(self) -> bool:
        """Whether anybody of the group is left."""
        self._poll()
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return self._popen.returncode is None
        return True

    def _poll(self) -> int | None:
        if self._popen.returncode is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                self._stopped()
            elif pid:
                self._popen.returncode = os.waitstatus_to_exitcode(status)
        code = self._popen.returncode
        return code if code is None or code >= 0 else 128 - code

    def _stopped(self) -> None:
        """Ctrl-Z at a terminal: stop with it, so that the shell gets its prompt, and go on with it later."""
        if self._terminal is None:
            return
        self._to_foreground(os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        self._to_foreground(self._pid)
        self._signal(signal.SIGCONT)

    def _to_foreground(self, group: int) -> None:
        if self._terminal is None:
            return
        before = signal.signal(
            signal.SIGTTOU, signal.SIG_IGN
        )  # sent to whoever does this from the background
        try:
            os.tcsetpgrp(self._terminal, group)
        except OSError:  # the terminal is gone, or the group
            pass
        finally:
            signal.signal(signal.SIGTTOU, before)

    def _sleep(self, ms: int) -> None:
        if select.select([self._reading], [], [], ms / 1000)[0]:
            os.read(self._reading, 4096)


def _noted(number: int, frame: FrameType | None) -> None:
    """A handler makes the wake-up pipe be written; there is no more to do."""


def _in_child(terminal: int | None, parent: int) -> Callable[[], None]:
    """What the child does before it becomes the command: take the terminal, and never outlive us unseen.

    When we are killed with -9, nobody is left to stop the work, and others on the machine see at once that the session
    is over. So the child goes down with us, where the system can do that (Linux)."""
    try:
        from ctypes import CDLL

        prctl: Callable[..., int] | None = CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        prctl = None

    def prepare() -> None:
        if terminal is not None:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(terminal, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)

    return prepare
