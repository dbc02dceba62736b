"""The status line during a wait at a terminal: one line on stderr, redrawn, and removed at the end."""

from __future__ import annotations

from dibs.base.terminal import plain
from dibs.cli.text.words import WIDTH_DEFAULT, width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from dibs.cli.framework.context import Call


class StatusLine:
    """Shows nothing in a pipe, under --json and --quiet, and on a terminal that cannot redraw."""

    def __init__(self, call: Call) -> None:
        stream = call.stderr
        silent = call.values.get("json") or call.values.get("quiet") or call.env.get("TERM") == "dumb"
        self._stream = stream if stream is not None and not silent and stream.isatty() else None
        self._drawn = False

    @property
    def on(self) -> bool:
        return self._stream is not None

    def show(self, line: str) -> None:
        if self._stream is not None:
            self._write(f"\r{plain(line)[: self._width() - 1]}\x1b[K")
            self._drawn = True

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            assert self._stream is not None
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal is gone; the answer still matters
            self._stream = None

    def _width(self) -> int:
        return width_of(self._stream, {}) or WIDTH_DEFAULT
