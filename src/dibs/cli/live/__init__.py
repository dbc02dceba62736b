"""The board of `dibs top` and `dibs list --watch`: jobs on a terminal, until somebody has seen enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import RequestFailed
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import given_ms
from dibs.cli.framework.result import Answer, failure
from dibs.cli.live import screen as keys
from dibs.cli.live.screen import LiveScreen, keys_of
from dibs.cli.text import listing as board
from dibs.cli.text.words import natural_key
from dibs.client.event_reader import why_away
from dibs.client.settings import place_of
from dibs.wire.codes import YES

# What somebody looks at: which jobs, in which order, from which one on. Keys change it. Pure.

FILTER_CHARS_MAX = 200
_LAST = float("inf")


def _number(lock: Document, field: str, otherwise: float) -> float:
    value = lock.get(field)
    return value if isinstance(value, int) else otherwise


# Sort orders by name. The most urgent jobs come first: the least time left, the longest silence, the most waiters.
ORDERS: dict[str, Callable[[Document], Any]] = {
    "name": lambda lock: 0,
    "owner": lambda lock: natural_key(str(lock.get("owner") or "")),
    "left": lambda lock: _number(lock, "remaining_ms", _LAST),
    "age": lambda lock: -_number(lock, "held_ms", -1),
    "heard": lambda lock: -_number(lock, "silent_ms", -1),
    "try": lambda lock: -_number(lock, "attempt", -1),
    "wait": lambda lock: -_number(lock, "waiting", -1),
}
ORDER_KEYS = {order[0]: order for order in ORDERS}
HELP = "q quit  / filter  r reverse  sort: n name  o owner  l left  a age  h heard  t try  w wait"


class BoardView:
    def __init__(self, order: str = "name") -> None:
        self.order = order
        self.is_reversed = False
        self.filter = ""
        self.is_typing = False
        self.first = 0  # the number of the first row that is shown
        self.is_over = False
        self.locks: list[Document] = []  # those that match the filter, in order
        self._all: list[Document] = []

    def take(self, locks: list[Document]) -> None:
        self._all = locks
        order, text = ORDERS[self.order], self.filter.casefold()
        self.locks = [lock for lock in locks if not text or text in _text(lock)]
        self.locks.sort(key=lambda lock: (order(lock), natural_key(lock["name"])), reverse=self.is_reversed)

    def window(self, rows: int) -> list[Document]:
        self.first = max(0, min(self.first, len(self.locks) - rows))
        return self.locks[self.first : self.first + rows]

    def press(self, key: str, rows: int) -> None:
        """`rows` is how many jobs a page has."""
        if self.is_typing:
            self._type(key)
        elif key in ("q", "Q"):
            self.is_over = True
        elif key in _MOVES:
            self.first = _MOVES[key](self.first, rows, len(self.locks))
        elif key == "/":
            self.is_typing = True
        elif key == keys.ESCAPE:
            self._choose(filter_text="")
        elif key == "r":
            self.is_reversed = not self.is_reversed
            self._choose()
        elif key in ORDER_KEYS:
            self.order, self.is_reversed = ORDER_KEYS[key], False
            self._choose()

    def _type(self, key: str) -> None:
        if key == keys.ENTER:
            self.is_typing = False
        elif key == keys.ESCAPE:
            self.is_typing = False
            self._choose(filter_text="")
        elif key in (keys.ERASE, keys.CLEAR):
            self._choose(filter_text=self.filter[:-1] if key == keys.ERASE else "")
        elif len(key) == 1 and len(self.filter) < FILTER_CHARS_MAX:
            self._choose(filter_text=self.filter + key)

    def _choose(self, filter_text: str | None = None) -> None:
        self.filter = self.filter if filter_text is None else filter_text
        self.first = 0
        self.take(self._all)


_MOVES: dict[str, Callable[[int, int, int], int]] = {
    keys.UP: lambda first, rows, count: first - 1,
    keys.DOWN: lambda first, rows, count: first + 1,
    keys.PAGE_UP: lambda first, rows, count: first - rows,
    keys.PAGE_DOWN: lambda first, rows, count: first + rows,
    " ": lambda first, rows, count: first + rows,
    keys.HOME: lambda first, rows, count: 0,
    keys.END: lambda first, rows, count: count,
}
_MOVES |= {"k": _MOVES[keys.UP], "j": _MOVES[keys.DOWN], "g": _MOVES[keys.HOME], "G": _MOVES[keys.END]}


def _text(lock: Document) -> str:
    last = lock.get("done") or lock.get("previous") or {}
    owner = lock.get("owner") or last.get("owner")
    found = (lock["name"], owner, lock.get("checkpoint"), lock.get("metadata"))
    return "\n".join([str(each) for each in found if each]).casefold()


# The jobs that are shown, read again and again on a thread of its own: keys do not wait for a server.

SHARE = 20  # reading the store takes at most a twentieth of the time
END_S = 0.2


class BoardFeed:
    """`locks` are those of the last look that succeeded; `failure` says why the last one did not. `wake` is called
    after each look, on `thread`, which is not started yet."""

    def __init__(self, fetch: Callable[[], Document], interval_ms: int, wake: Callable[[], None]) -> None:
        self._fetch = fetch
        self._interval_ms = interval_ms
        self._wake = wake
        self._is_over = threading.Event()
        self.thread = threading.Thread(target=self._work, name="dibs-refresh", daemon=True)
        self.looks = 0  # how many there were
        self.locks: list[Document] = []
        self.locks_ms = 0  # when they were read
        self.failure: Answer | None = None
        self.error: BaseException | None = None  # an unexpected one, which ended the thread

    def stop(self) -> bool:
        """Tell whether it has ended. If a server keeps it waiting, nobody waits for it."""
        self._is_over.set()
        self.thread.join(END_S)
        return not self.thread.is_alive()

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                began_ms = steady_ms()
                self._look()
                self.looks += 1
                self._wake()
                self._is_over.wait(max(self._interval_ms, SHARE * (steady_ms() - began_ms)) / 1000)
        except BaseException as error:  # for the main thread, which reports it
            self.error = error
            self._wake()

    def _look(self) -> None:
        try:
            self.locks = board.one_row_each(self._fetch()["locks"])
        except RequestFailed as error:
            self.failure = failure(error.reply)
            return
        self.locks_ms, self.failure = steady_ms(), None


FRAME_S = 1.0  # times on the board move once a second
REFRESH_MS = 2_000


def is_live(call: Call) -> bool:
    """Tell whether standard output is a terminal that can be redrawn."""
    stream = call.stdout
    if stream is None or call.values.get("json") or call.values.get("quiet"):
        return False
    return stream.isatty() and call.env.get("TERM", "") not in ("", "dumb")


class Board:
    """The jobs that `fetch` finds on a terminal, drawn again and again."""

    def __init__(self, call: Call, view: BoardView, fetch: Callable[[], Document], refresh_ms: int) -> None:
        assert call.stdout is not None
        self._call = call
        self._view = view
        self._where = place_of(call.settings)
        self._pretty = "utf" in (getattr(call.stdout, "encoding", None) or "").lower()
        keyboard = call.stdin.fileno() if call.stdin is not None and call.stdin.isatty() else None
        self._screen = LiveScreen(call.stdout.fileno(), keyboard)
        self._feed = BoardFeed(fetch, refresh_ms, self._screen.wake)
        self._looks = 0  # how many were taken into the view

    def show(self) -> Answer:
        """Until q, Ctrl-C, the end of --for, or of the terminal."""
        for_ms = given_ms(self._call, "for")
        until_ms = None if for_ms is None else steady_ms() + for_ms
        failed: Answer | None = None
        try:
            self._feed.thread.start()
            while failed is None and not self._view.is_over:
                left_s = FRAME_S if until_ms is None else min(FRAME_S, (until_ms - steady_ms()) / 1000)
                if left_s <= 0 or not self._turn(left_s):
                    break
                failed = self._take_look()
        except KeyboardInterrupt as interrupt:
            if getattr(interrupt, "exit_code", None) is not None:  # SIGTERM and its like
                raise
        finally:
            self._screen.close()
            if not self._feed.stop():
                self._call.abandon_transport()
        return failed or Answer(YES, {}, "", is_said=True)

    def _take_look(self) -> Answer | None:
        """Show what was read. If the first look fails, that is the answer of the command."""
        feed = self._feed
        if feed.error is not None:
            raise feed.error
        if feed.looks == self._looks:
            return None
        if not self._looks:
            if feed.failure is not None:
                return feed.failure
            self._screen.open()
        self._looks = feed.looks
        self._view.take(feed.locks)
        return None

    def _turn(self, seconds: float) -> bool:
        """Draw, wait, and follow what was pressed. False: the terminal is gone."""
        if self._looks and not self._screen.draw(self._frame()):
            return False
        pressed = self._screen.wait(seconds)
        if pressed is None:
            return False
        for key in keys_of(pressed) if self._looks else ():
            self._view.press(key, self._rows())
        return True

    def _rows(self) -> int:
        return max(1, self._screen.size()[1] - board.HEADER_ROWS - board.FOOTER_ROWS)

    def _frame(self) -> list[str]:
        view, paint, feed = self._view, self._call.paint, self._feed
        age_ms, failed = steady_ms() - feed.locks_ms, feed.failure
        if failed is not None:
            about = f"{age_ms // 1000} s old. {why_away(failed.text)}"
        else:
            cursor = "_" if view.is_typing else ""
            filtered = f"filter: {view.filter}{cursor}  " if view.filter or view.is_typing else ""
            order = view.order + (", reversed" if view.is_reversed else "")
            about = f"{filtered}{board.summary(feed.locks)}, by {order}"
        shown = [board.aged(lock, age_ms) for lock in view.window(self._rows())]
        last = view.first + len(shown)
        where = f"{view.first + 1}-{last} of {len(view.locks)}  " if len(shown) < len(view.locks) else ""
        footer = "Enter: keep the filter  Escape: no filter" if view.is_typing else where + HELP
        lines = board.frame(
            self._where,
            about,
            shown,
            paint,
            wall_ms(),
            self._screen.size(),
            footer=footer,
            is_old=failed is not None,
            pretty=self._pretty,
        )
        return [paint.shown(line) for line in lines]
