"""Shows jobs on a terminal until somebody has seen enough."""

from __future__ import annotations

from dibs.base.clock import steady_ms, wall_ms
from dibs.cli.framework.result import Answer
from dibs.cli.live.board_view import HELP, BoardView
from dibs.cli.live.keys import keys_of
from dibs.cli.live.refresher import Refresher
from dibs.cli.live.screen import LiveScreen
from dibs.cli.text import board
from dibs.cli.text.listing import heads_of
from dibs.client.event_reader import why_away
from dibs.client.settings import place_of
from dibs.wire.codes import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.cli.framework.context import Call
    from dibs.cli.live.board_data import BoardData

FRAME_S = 1.0  # times on the board move once a second
REFRESH_MS = 2_000


def is_live(call: Call) -> bool:
    """Whether standard output is a terminal that can be redrawn."""
    stream = call.stdout
    if stream is None or call.values.get("json") or call.values.get("quiet"):
        return False
    return stream.isatty() and call.env.get("TERM", "") not in ("", "dumb")


class Board:
    """`title` is the first word of the header. `with_board`: all columns of the board, else those of `dibs list`."""

    def __init__(self, call: Call, title: str, view: BoardView, *, with_board: bool) -> None:
        assert call.stdout is not None
        self._call = call
        self._title = title
        self._view = view
        self._with_board = with_board
        self._where = place_of(call.settings)
        self._pretty = "utf" in (getattr(call.stdout, "encoding", None) or "").lower()
        keyboard = call.stdin.fileno() if call.stdin is not None and call.stdin.isatty() else None
        self._screen = LiveScreen(call.stdout.fileno(), keyboard)
        self._data: BoardData | None = None

    def show(self, fetch: Callable[[], BoardData], *, refresh_ms: int, for_ms: int | None) -> Answer:
        """Until q, Ctrl-C, the end of --for, or of the terminal."""
        refresher = Refresher(fetch, refresh_ms, self._screen.wake)
        until_ms = None if for_ms is None else steady_ms() + for_ms
        failed: Answer | None = None
        try:
            refresher.start()
            while failed is None and not self._view.is_over:
                left_s = FRAME_S if until_ms is None else min(FRAME_S, (until_ms - steady_ms()) / 1000)
                if left_s <= 0 or not self._turn(left_s):
                    break
                failed = self._heed(refresher)
        except KeyboardInterrupt as interrupt:
            if getattr(interrupt, "exit_code", None) is not None:  # SIGTERM and its like
                raise
        finally:
            self._screen.close()
            if not refresher.stop():
                self._call.abandon_door()
        return failed or Answer(YES, {}, "", is_said=True)

    def _heed(self, refresher: Refresher) -> Answer | None:
        """Take what was fetched. If the first look fails, that is the answer of the command."""
        if refresher.error is not None:
            raise refresher.error
        found: BoardData | None = refresher.latest
        if found is None or found is self._data:
            return None
        if self._data is None and found.failure is not None:
            return found.failure
        if self._data is None:
            self._screen.open()
        self._data = found
        self._view.take(found.locks)
        return None

    def _turn(self, seconds: float) -> bool:
        """Draw, wait, and follow what was pressed. False: the terminal is gone."""
        if self._data is not None and not self._screen.draw(self._frame(self._data)):
            return False
        pressed = self._screen.wait(seconds)
        if pressed is None:
            return False
        for key in keys_of(pressed) if self._data is not None else ():
            self._view.press(key, self._rows())
        return True

    def _rows(self) -> int:
        return max(1, self._screen.size()[1] - board.HEADER_ROWS - board.FOOTER_ROWS)

    def _frame(self, data: BoardData) -> list[str]:
        view, paint = self._view, self._call.paint
        held, waiting, parked = board.counted(data.locks)
        summary = board.BoardSummary(
            self._title, self._where, held=held, waiting=waiting, parked=parked, rates=data.rates
        )
        summary.order = view.order + (", reversed" if view.is_reversed else "")
        summary.filter = (
            view.filter + ("_" if view.is_typing else "") if view.filter or view.is_typing else None
        )
        age_ms = steady_ms() - data.locks_ms
        if data.failure is not None:
            summary.trouble = f"{age_ms // 1000} s old. {why_away(data.failure.text)}"
        shown = [board.aged(lock, age_ms) for lock in view.window(self._rows())]
        last = view.first + len(shown)
        where = f"{view.first + 1}-{last} of {len(view.locks)}  " if len(shown) < len(view.locks) else ""
        footer = "Enter: keep the filter  Escape: no filter" if view.is_typing else where + HELP
        lines = board.frame(
            summary,
            shown,
            paint,
            wall_ms(),
            self._screen.size(),
            footer=footer,
            pretty=self._pretty,
            heads=board.HEADS if self._with_board else heads_of(shown),
        )
        return [paint.shown(line) for line in lines]
