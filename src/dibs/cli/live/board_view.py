"""What somebody looks at: which jobs, in which order, from which one on. Keys change it. Pure."""

from __future__ import annotations

from dibs.cli.live import keys
from dibs.cli.text.words import natural_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Document = dict[str, Any]

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
        self._chosen = None


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
    """What the filter looks at."""
    last = lock.get("done") or lock.get("previous") or {}
    found = (
        lock["name"],
        lock.get("owner") or last.get("owner"),
        lock.get("checkpoint"),
        lock.get("metadata"),
    )
    return "\n".join([str(each) for each in found if each]).casefold()
