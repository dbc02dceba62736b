"""A terminal that is drawn again and again, and given back as it was.

Each frame is one write, of the lines that changed. The terminal is restored on every way out that a process can notice:
the end of the command, an exception, Ctrl-C, SIGTERM, SIGHUP, SIGQUIT. Ctrl-Z gives the terminal back and stops; `fg`
takes it again. `curses` needs a description of the terminal, changes more of it, and is not interrupted by our events.
"""

from __future__ import annotations

import os
import re
import select
import signal
import termios
from contextlib import suppress
from types import FrameType
from typing import Any

from dibs.cli.signals import stop

# The other screen, no cursor, no wrapping of lines; and back.
_TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_GIVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_LOOP = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SIZE_DEFAULT = (80, 24)
KEYS_BYTES_MAX = 1024


class LiveScreen:
    """`keyboard` is None if keys are not read. `close`, in a `finally`, may be called at any time, also again."""

    def __init__(self, output: int, keyboard: int | None) -> None:
        self._output = output
        self._keyboard = keyboard
        self._modes: list[Any] | None = None
        self._before: dict[int, Any] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._wakeup_before = -1
        self._is_open = False
        self._is_taken = False
        self._drawn: list[str] = []
        self._noticed: set[int] = set()

    def open(self) -> None:
        self._is_open = True
        self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in _ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, stop)
        for number in _LOOP:
            self._before[number] = signal.signal(number, self._notice)
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
        self._take()

    def close(self) -> None:
        if not self._is_open:
            return
        held = signal.pthread_sigmask(signal.SIG_BLOCK, (*_LOOP, *_ENDS, signal.SIGINT))
        try:
            self._is_open = False
            self._give()
            signal.set_wakeup_fd(self._wakeup_before)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            os.close(self._wake_read)
            os.close(self._wake_write)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def wake(self) -> None:
        """End a wait. May be called by another thread."""
        with suppress(OSError):  # full: it is awake anyway; closed: nobody waits
            os.write(self._wake_write, b"\0")

    def wait(self, seconds: float) -> bytes | None:
        """Wait for keys, a signal or `wake`, for at most `seconds`. None: the terminal is gone."""
        ends = [self._wake_read] if self._keyboard is None else [self._wake_read, self._keyboard]
        ready = select.select(ends, [], [], max(0.0, seconds))[0]
        if self._wake_read in ready:
            with suppress(BlockingIOError):
                os.read(self._wake_read, KEYS_BYTES_MAX)
        self._heed()
        if self._keyboard not in ready or self._keyboard is None:
            return b""
        try:
            return os.read(self._keyboard, KEYS_BYTES_MAX) or None
        except OSError:  # it was hung up, or another process has it
            return None

    def size(self) -> tuple[int, int]:
        try:
            found = os.get_terminal_size(self._output)
        except OSError:
            return SIZE_DEFAULT
        return found.columns or SIZE_DEFAULT[0], found.lines or SIZE_DEFAULT[1]

    def draw(self, lines: list[str]) -> bool:
        """Show these lines, from the top. False: the terminal is gone."""
        before, self._drawn = self._drawn, list(lines)
        parts = [
            f"\x1b[{row + 1};1H{line}\x1b[K"
            for row, line in enumerate(lines)
            if row >= len(before) or line != before[row]
        ]
        if len(before) > len(lines):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        return self._write("".join(parts))

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed.add(number)

    def _heed(self) -> None:
        noticed, self._noticed = self._noticed, set()
        if signal.SIGTSTP in noticed:
            self._give()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # returns when it is continued
            signal.signal(signal.SIGTSTP, self._notice)
            self._noticed.clear()
            self._take()
        elif signal.SIGCONT in noticed:  # it was stopped without being asked
            self._take()
        elif signal.SIGWINCH in noticed:
            self._drawn = []  # the next frame draws everything, also what did not change
            self._write("\x1b[2J")

    def _take(self) -> None:
        self._is_taken = True
        if self._modes is not None and self._keyboard is not None:
            modes = list(self._modes)
            modes[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, modes)
        self._drawn = []
        self._write(_TAKE)

    def _give(self) -> None:
        if not self._is_taken:
            return
        self._is_taken = False
        self._write(_GIVE)
        if self._modes is not None and self._keyboard is not None:
            with suppress(termios.error):  # it is gone
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _write(self, text: str) -> bool:
        rest = text.encode("utf-8", "replace")
        try:
            while rest:
                rest = rest[os.write(self._output, rest) :]
        except OSError:
            return False
        return True


# Keys, from the bytes that a terminal sends. Pure.

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, ERASE, CLEAR = "enter", "escape", "erase", "clear"
_SEQUENCES = {
    **{"A": UP, "B": DOWN, "H": HOME, "F": END},
    **{"5~": PAGE_UP, "6~": PAGE_DOWN, "1~": HOME, "4~": END, "7~": HOME, "8~": END},
}
_KEYS = re.compile("\x1b[\\[O][^@-~]*[@-~]?|.", re.DOTALL)
_CONTROLS = {"\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": ERASE, "\x08": ERASE, "\x15": CLEAR}


def keys_of(data: bytes) -> list[str]:
    """Names of keys, and characters as they are. Sequences that are not known, and other controls, are left out."""
    found = []
    for part in _KEYS.findall(data.decode("utf-8", "ignore")):
        key = _SEQUENCES.get(part[2:]) if len(part) > 1 else _CONTROLS.get(part, part)
        if key and (len(key) > 1 or key.isprintable()):
            found.append(key)
    return found
