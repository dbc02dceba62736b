"""Shows the demo: a log that grows and, on a terminal, the board below it, which is redrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import TextIO

_HIDE, _SHOW, _WIPE = "\x1b[?25l", "\x1b[?25h", "\x1b[J"


class Show:
    """`stream` is None if nothing is shown. `live`: the stream is a terminal that can be redrawn. `shown` makes a
    line safe to print. Leaving the block clears the board. A stream without a reader is no error: the answer
    counts."""

    def __init__(
        self, stream: TextIO | None, *, live: bool, shown: Callable[[str], str] = lambda line: line
    ) -> None:
        self._stream = stream
        self._shown = shown
        self._live = live and stream is not None
        self._board: list[str] = []

    @property
    def live(self) -> bool:
        return self._live

    def __enter__(self) -> Show:
        if self._live:
            self._write(_HIDE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._write(self._wiping() + _SHOW)
            self._board = []

    def put(self, lines: Sequence[str], board: Sequence[str] = ()) -> None:
        """Prints lines that stay, and below them the present board."""
        wiping = self._wiping()
        self._board = list(board) if self._live else []
        self._write(wiping + "".join(f"{self._shown(line)}\n" for line in (*lines, *self._board)))

    def _wiping(self) -> str:
        """Moves from below the board to its first line."""
        return f"\r\x1b[{len(self._board)}A{_WIPE}" if self._board else ""

    def _write(self, text: str) -> None:
        if self._stream is None or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._stream = None
