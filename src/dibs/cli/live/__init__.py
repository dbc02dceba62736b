"""Shows jobs on a terminal until somebody has seen enough."""

from __future__ import annotations

import threading
from collections import deque

from dibs.base.clock import steady_ms, wall_ms
from dibs.cli.framework.flags import given_ms
from dibs.cli.framework.result import Answer
from dibs.cli.live.screen import LiveScreen
from dibs.cli.text import listing as board
from dibs.cli.text.words import natural_key
from dibs.client.event_reader import EventCursor, why_away
from dibs.client.settings import place_of
from dibs.core.events import ACQUIRED, EXPIRED
from dibs.wire.codes import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.cli.framework.context import Call, Document
    from dibs.client.door import Door


# Looks at the store again and again, for the board.


class BoardData:
    """One look. `failure` is set if it failed: then `locks` are those of the last one that did not."""

    def __init__(self, locks: list[Document], locks_ms: int, failure: Answer | None) -> None:
        self.locks = locks
        self.locks_ms = locks_ms  # when they were read
        self.failure = failure
        self.rates: tuple[float, float] | None = None


class BoardLooks:
    def __init__(self, fetch: Callable[[], Document | Answer]) -> None:
        self._fetch = fetch
        self._locks: list[Document] = []
        self._locks_ms = 0

    def look(self) -> BoardData:
        found = self._fetch()
        if isinstance(found, Answer):
            return BoardData(self._locks, self._locks_ms, found)
        self._locks, self._locks_ms = found["locks"], steady_ms()
        return BoardData(self._locks, self._locks_ms, None)


# Keys, from the bytes that a terminal sends. Pure.

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, ERASE, CLEAR = "enter", "escape", "erase", "clear"
_SEQUENCES = {
    **{"A": UP, "B": DOWN, "H": HOME, "F": END},
    **{"5~": PAGE_UP, "6~": PAGE_DOWN, "1~": HOME, "4~": END, "7~": HOME, "8~": END},
}
_CONTROLS = {"\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": ERASE, "\x08": ERASE, "\x15": CLEAR}


def keys_of(data: bytes) -> list[str]:
    """Names of keys, and characters as they are. Sequences that are not known, and other controls, are left out."""
    text = data.decode("utf-8", "ignore")
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            end = at + 2
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            name = _SEQUENCES.get(text[at + 2 : end + 1])
            found += [name] if name else []
            at = end + 1
            continue
        key = _CONTROLS.get(text[at], text[at])
        if len(key) > 1 or key.isprintable():
            found.append(key)
        at += 1
    return found


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
        self._locks: list[Document] = []
        self._names: dict[str, Any] = {}
        self._chosen: list[Document] | None = []

    def take(self, locks: list[Document]) -> None:
        """New data."""
        self._locks = locks
        known = self._names
        names = [lock["name"] for lock in locks]
        self._names = {name: known[name] if name in known else natural_key(name) for name in names}
        self._chosen = None

    @property
    def locks(self) -> list[Document]:
        """The jobs that match the filter, in order."""
        if self._chosen is None:
            order, names = ORDERS[self.order], self._names
            wanted = self.filter.casefold()
            found = [lock for lock in self._locks if not wanted or wanted in _text(lock)]
            found.sort(key=lambda lock: (order(lock), names[lock["name"]]), reverse=self.is_reversed)
            self._chosen = found
        return self._chosen

    def window(self, rows: int) -> list[Document]:
        """The jobs that are shown in so many rows."""
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
        elif key == ESCAPE:
            self._choose(filter_text="")
        elif key == "r":
            self.is_reversed = not self.is_reversed
            self._choose()
        elif key in ORDER_KEYS:
            self.order, self.is_reversed = ORDER_KEYS[key], False
            self._choose()

    def _type(self, key: str) -> None:
        if key == ENTER:
            self.is_typing = False
        elif key == ESCAPE:
            self.is_typing = False
            self._choose(filter_text="")
        elif key in (ERASE, CLEAR):
            self._choose(filter_text=self.filter[:-1] if key == ERASE else "")
        elif len(key) == 1 and len(self.filter) < FILTER_CHARS_MAX:
            self._choose(filter_text=self.filter + key)

    def _choose(self, filter_text: str | None = None) -> None:
        self.filter = self.filter if filter_text is None else filter_text
        self.first = 0
        self._chosen = None


_MOVES: dict[str, Callable[[int, int, int], int]] = {
    UP: lambda first, rows, count: first - 1,
    DOWN: lambda first, rows, count: first + 1,
    PAGE_UP: lambda first, rows, count: first - rows,
    PAGE_DOWN: lambda first, rows, count: first + rows,
    " ": lambda first, rows, count: first + rows,
    HOME: lambda first, rows, count: 0,
    END: lambda first, rows, count: count,
}
_MOVES |= {"k": _MOVES[UP], "j": _MOVES[DOWN], "g": _MOVES[HOME], "G": _MOVES[END]}


def _text(lock: Document) -> str:
    """Return what the filter looks at."""
    last = lock.get("done") or lock.get("previous") or {}
    found = (
        lock["name"],
        lock.get("owner") or last.get("owner"),
        lock.get("checkpoint"),
        lock.get("metadata"),
    )
    return "\n".join([str(each) for each in found if each]).casefold()


# Fetches again and again on a thread of its own, so that keys are answered while a server is slow or away.

SHARE = 20  # a fetch takes at most one part in so many of the time
END_S = 0.2


class Refresher:
    """`latest` is what was fetched last, and `latest_ms` when. `tell` is called after each fetch, on the thread."""

    def __init__(self, fetch: Callable[[], Any], interval_ms: int, tell: Callable[[], None]) -> None:
        self._fetch = fetch
        self._interval_ms = interval_ms
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dibs-refresh", daemon=True)
        self.latest: Any = None
        self.latest_ms = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Tell whether it has ended. If a server keeps it waiting, nobody waits for it."""
        self._is_over.set()
        self._thread.join(END_S)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                began_ms = steady_ms()
                found = self._fetch()
                self.latest_ms = steady_ms()
                self.latest = found
                self._tell()
                took_ms = self.latest_ms - began_ms
                self._is_over.wait(max(self._interval_ms, SHARE * took_ms) / 1000)
        except BaseException as error:  # for the main thread, which reports it
            self.error = error
            self._tell()


# How many claims and expiries there are a second, from the stored events.

WINDOW_MS = 60_000
PAGES_MAX = 5  # of one look; on a very busy store the rest is skipped, and the rate is that of what was seen


class EventRate:
    """`update` reads what is new. Times are arguments."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._cursor = EventCursor(prefix, None, None)
        self._seen: deque[tuple[int, int, int]] = deque()  # until when, and how many claims and expiries
        self._since_ms: int | None = None

    def update(self, door: Door, now_ms: int) -> None:
        claims = expiries = 0
        for _ in range(PAGES_MAX):
            reply = door.ask(self._cursor.question())
            if reply.status != 200:
                return
            self._cursor.take_page(reply.body or {})
            for event in iter(self._cursor.pop, None):
                claims += event["event"] == ACQUIRED
                expiries += event["event"] == EXPIRED
            if self._cursor.is_current:
                break
        else:
            self._cursor = EventCursor(self._prefix, None, None)
        if self._since_ms is None:
            self._since_ms = now_ms
            return
        self._seen.append((now_ms, claims, expiries))
        while self._seen[0][0] < now_ms - WINDOW_MS:
            self._since_ms = self._seen.popleft()[0]

    def rates(self, now_ms: int) -> tuple[float, float] | None:
        """Claims and expiries a second, over the last minute. None before there are two looks."""
        if self._since_ms is None or now_ms <= self._since_ms or not self._seen:
            return None
        seconds = (now_ms - self._since_ms) / 1000
        return sum(each[1] for each in self._seen) / seconds, sum(each[2] for each in self._seen) / seconds


FRAME_S = 1.0  # times on the board move once a second
REFRESH_MS = 2_000


def is_live(call: Call) -> bool:
    """Tell whether standard output is a terminal that can be redrawn."""
    stream = call.stdout
    if stream is None or call.values.get("json") or call.values.get("quiet"):
        return False
    return stream.isatty() and call.env.get("TERM", "") not in ("", "dumb")


def show_board(call: Call, view: BoardView, fetch: Callable[[], Document | Answer], refresh_ms: int) -> Answer:
    """Show the jobs that `fetch` finds, with how many claims and expiries there are a second."""
    looks, rate = BoardLooks(fetch), EventRate(call.values.get("prefix", ""))

    def look() -> BoardData:
        data = looks.look()
        if data.failure is None:
            rate.update(call.door(), steady_ms())
            data.rates = rate.rates(steady_ms())
        return data

    return Board(call, view).show(look, refresh_ms=refresh_ms, for_ms=given_ms(call, "for"))


class Board:
    """The jobs on a terminal, drawn again and again."""

    def __init__(self, call: Call, view: BoardView) -> None:
        assert call.stdout is not None
        self._call = call
        self._view = view
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
        summary = board.BoardSummary(self._where, held=held, waiting=waiting, parked=parked, rates=data.rates)
        summary.order = view.order + (", reversed" if view.is_reversed else "")
        summary.filter = view.filter + ("_" if view.is_typing else "") if view.filter or view.is_typing else None
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
        )
        return [paint.shown(line) for line in lines]
