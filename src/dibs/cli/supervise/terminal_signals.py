"""Notes what a terminal sends to its command: Ctrl-C, Ctrl-\\ and a hang-up go to the foreground process group.

The command may catch such a signal and exit with any code, so its exit code does not show that it was interrupted. A
process in its group keeps these signals blocked: they stay pending, and it says which came when it is asked. The system
signals all members of a group at once. So once the command has ended of a signal, the signal is pending here.
"""

from __future__ import annotations

import os
import select

from dibs.base.cheap import Iterable, signal
from dibs.cli.supervise.survivors import NAP_MS, die_with, signalled
from dibs.system.processes import let_go_of_files

_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_CAME = b"y"
_JOINED = b"j"


class TerminalSignals:
    """Notes the terminal's signals to a process group, from when this returns. `heeded` are the signals that the
    command does not ignore from the start. For its parent only; to be closed."""

    def __init__(self, group: int, heeded: Iterable[int]) -> None:
        noted = {number for number in _TERMINAL if number in heeded}
        asked, self._asking = os.pipe()
        self._answers, answering = os.pipe()
        guardian = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with(guardian)
                _note(group, noted, asked, answering)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(asked)
        os.close(answering)
        os.read(self._answers, 1)  # it is in the group; no data: it was killed, and notes nothing

    @property
    def files(self) -> tuple[int, int]:
        return self._asking, self._answers

    def came(self) -> bool:
        """Tell whether a signal came. Says no if the process was killed."""
        signalled(self.pid, signal.SIGCONT)  # it may have been paused with the group
        try:
            os.write(self._asking, b"?")
        except OSError:  # it was killed
            return False
        ready = select.select([self._answers], [], [], NAP_MS / 1000)[0]
        return bool(ready) and os.read(self._answers, 1) == _CAME

    def close(self) -> None:
        """End the process, so that the group has no member but the command's."""
        signalled(self.pid)
        os.waitpid(self.pid, 0)
        for end in self.files:
            os.close(end)


def _note(group: int, noted: Iterable[int], asked: int, answering: int) -> None:
    for number in noted:
        signal.signal(number, signal.SIG_DFL)  # some systems drop an ignored signal although it is blocked
    let_go_of_files(asked, answering)
    os.setpgid(0, group)
    os.write(answering, _JOINED)
    if os.read(asked, 1) and signal.sigpending() & set(noted):
        os.write(answering, _CAME)
