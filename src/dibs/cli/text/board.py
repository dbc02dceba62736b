"""The frame of `dibs top`: a header, the table of jobs, a line of help. Pure: times and sizes are arguments."""

from __future__ import annotations

from dibs.cli.text.listing import cells_of, fitted, heads_of, left_part
from dibs.cli.text.words import columns_of, plain, short, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]
    Row = tuple[str, ...]

HEADS = ("JOB", "STATE", "OWNER", "LEFT", "AGE", "HEARD", "TRY", "WAIT", "NOTE")
# What is left out first on a narrow terminal.
_LEAVES = ("NOTE", "TRY", "MODE", "SINCE", "AGE", "HEARD", "WAIT", "STATE")
_LEAST = {"JOB": 16, "OWNER": 10, "NOTE": 12}
BAR_COLUMNS = 8
BAR_WIDTH_MIN = 72  # narrower terminals get no bar
URGENT, LATE = 0.25, 0.1
HEADER_ROWS, FOOTER_ROWS = 3, 1  # two lines about everything and the heads of the table; the help
GAP = 2


class BoardSummary:
    """What the header says. `rates` are claims and expiries a second, None before they are known. `trouble` is why the
    data is old, and `age_ms` how old it is."""

    def __init__(
        self,
        where: str,
        *,
        held: int,
        waiting: int,
        parked: int,
        rates: tuple[float, float] | None,
    ) -> None:
        self.where = where
        self.held = held
        self.waiting = waiting
        self.parked = parked
        self.rates = rates
        self.order = ""
        self.filter: str | None = None
        self.trouble = ""

    def line(self) -> str:
        parts = [f"{self.held:,} held", f"{self.waiting:,} waiting"]
        parts += [f"{self.parked:,} parked"] if self.parked else []
        if self.rates is not None:
            parts += [f"{self.rates[0]:.1f} claims/s", f"{self.rates[1]:.1f} expiries/s"]
        if self.order:
            parts.append(f"by {self.order}")
        return ", ".join(parts)


def counted(locks: list[Document]) -> tuple[int, int, int]:
    """Return how many are held, wait, and are parked."""
    held = sum(1 for lock in locks if lock["status"] == "held")
    waiting = sum(number for lock in locks if isinstance(number := lock.get("waiting"), int))
    return held, waiting, sum(1 for lock in locks if lock["status"] == "parked")


def aged(lock: Document, ms: int) -> Document:
    """A job's document, so much later."""
    if lock["status"] != "held" or ms <= 0:
        return lock
    changed = dict(lock)
    for field, sign in (("remaining_ms", -1), ("held_ms", 1), ("silent_ms", 1)):
        if isinstance(lock.get(field), int):
            changed[field] = lock[field] + sign * ms
    changed["remaining_ms"] = max(0, changed.get("remaining_ms") or 0)
    return changed


def frame(
    summary: BoardSummary,
    locks: list[Document],
    paint: Paint,
    now_ms: int,
    size: tuple[int, int],
    *,
    footer: str,
    pretty: bool = True,
) -> list[str]:
    """The lines of a screen. `locks` are those that have room."""
    width, rows = size
    first = short("dibs top", width)
    where = short(f"  {plain(summary.where)}", max(0, width - columns_of(first)))
    second = summary.trouble or summary.line()
    if summary.filter is not None and not summary.trouble:
        second = f"filter: {summary.filter}  {second}"
    second = short(plain(second), width)
    lines = [paint.strong(first) + paint.faint(where), paint.bad(second) if summary.trouble else second]
    lines += board_lines(locks, paint, now_ms, width, pretty=pretty)
    lines = lines[: max(0, rows - FOOTER_ROWS)]
    lines += [""] * (rows - FOOTER_ROWS - len(lines))
    return [*lines, paint.faint(short(plain(footer), width))]


def board_lines(
    locks: list[Document],
    paint: Paint,
    now_ms: int,
    width: int | None,
    *,
    pretty: bool = True,
) -> list[str]:
    """The table: its heads, and a line for each job. Claims that are about to end are coloured."""
    if not locks:
        return [paint.faint("No job to show.")]
    heads: Row = HEADS
    cells = [cells_of(lock, now_ms) for lock in locks]
    if all(lock["status"] == "held" for lock in locks):
        heads = tuple(head for head in heads if head != "STATE")
    if "MODE" in heads_of(locks):
        heads = (*heads[:-1], "MODE", heads[-1])
    if width is None or width >= BAR_WIDTH_MIN:
        for lock, each in zip(locks, cells, strict=True):
            each["LEFT"] = f"{bar(left_part(lock), pretty=pretty)} {each['LEFT']}"
    if width is not None:
        heads = _that_fit(heads, cells, width)
    rows = [heads, *[tuple([each[head] for head in heads]) for each in cells]]
    first, *lines = table(rows if width is None else fitted(rows, width))
    if width is not None:
        first, lines = short(first, width), [short(line, width) for line in lines]
    return [paint.faint(first), *[_painted(*each, paint) for each in zip(lines, locks, strict=True)]]


def bar(part: float | None, *, pretty: bool = True) -> str:
    """Time left as a bar that drains."""
    full, empty = ("■", "□") if pretty else ("#", ".")
    if part is None:
        return " " * BAR_COLUMNS
    filled = min(BAR_COLUMNS, -int(-part * BAR_COLUMNS // 1))  # a claim that lives has at least one
    return full * filled + empty * (BAR_COLUMNS - filled)


def _that_fit(heads: Row, cells: list[dict[str, str]], width: int) -> Row:
    """The columns that have room if names and notes are cut."""
    needed = {head: max(columns_of(head), *[columns_of(each[head]) for each in cells]) for head in heads}
    for head, least in _LEAST.items():
        if head in needed:
            needed[head] = min(needed[head], least)
    for head in _LEAVES:
        if sum(needed.values()) + GAP * (len(needed) - 1) <= width:
            break
        needed.pop(head, None)
    return tuple(needed)


def _painted(line: str, lock: Document, paint: Paint) -> str:
    if lock["status"] == "parked":
        return paint.bad(line)
    part = left_part(lock)
    if part is None:
        return paint.faint(line)
    return paint.bad(line) if part < LATE else paint.wait(line) if part < URGENT else line
