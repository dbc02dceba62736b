"""top: the board, live."""

from __future__ import annotations

from dibs.base.clock import steady_ms, wall_ms
from dibs.cli.commands.list import CHOICE, listed
from dibs.cli.framework.flag_values import given_ms
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import Command, Option
from dibs.cli.text import board
from dibs.cli.text.words import plain, width_of
from dibs.client.settings import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.live.board import BoardData, BoardView

REFRESH_MS_MIN = 200
REFRESH_MS_MAX = 3600_000


def top(call: Call) -> Answer:
    from dibs.cli.live.board import ORDERS, REFRESH_MS, BoardView, is_live

    order = call.values.get("sort") or "name"
    refresh_ms = given_ms(call, "interval")
    if refresh_ms is not None and not REFRESH_MS_MIN <= refresh_ms <= REFRESH_MS_MAX:
        raise UsageError("--interval is a time from 200ms to 1h.", call.command)
    if order not in ORDERS:
        raise UsageError(f"--sort is one of {', '.join(ORDERS)}.", call.command)
    view = BoardView(order)
    if call.values.get("once") or not is_live(call):
        return _snapshot(call, view)
    return _live(call, view, REFRESH_MS if refresh_ms is None else refresh_ms)


def _live(call: Call, view: BoardView, refresh_ms: int) -> Answer:
    from dibs.cli.live.board import Board, BoardLooks, EventRate

    looks, rate = BoardLooks(lambda: listed(call)), EventRate(call.values.get("prefix", ""))

    def look() -> BoardData:
        data = looks.look()
        if data.failure is None:
            rate.update(call.door(), steady_ms())
            data.rates = rate.rates(steady_ms())
        return data

    return Board(call, "dibs top", view, with_board=True).show(
        look, refresh_ms=refresh_ms, for_ms=given_ms(call, "for")
    )


def _snapshot(call: Call, view: BoardView) -> Answer:
    """One look, as text."""
    found = listed(call)
    if isinstance(found, Answer):
        return found
    view.take(found["locks"])
    held, waiting, parked = board.counted(view.locks)
    document = {**found, "locks": view.locks, "held": held, "waiting": waiting, "parked": parked}
    summary = board.BoardSummary(
        "dibs top", place_of(call.settings), held=held, waiting=waiting, parked=parked, rates=None
    )
    lines = [f"{summary.title}  {plain(summary.where)}", summary.line()]
    width = width_of(call.stdout, call.env)
    lines += board.board_lines(view.locks, call.paint, wall_ms(), width, pretty=False)
    return yes(document, "\n".join(lines), quiet="\n".join([plain(lock["name"]) for lock in view.locks]))


COMMANDS = {
    "top": Command(
        "top",
        top,
        about=(
            "Shows the claimed jobs on a terminal, live: owner, time left as a bar that drains, time since the last "
            "heartbeat, attempt, how many wait, checkpoint or metadata. The header has the counts, and the claims and "
            "expiries a second over the last minute. Columns that have no room are left out. Claims that are about to "
            "end are yellow, then red. Keys: q ends it, / filters by text, n o l a h t w sort, r reverses, arrows and "
            "pages scroll. A look takes at most a twentieth of the time: a board with thousands of jobs is read less "
            "often. In a pipe, and with --once, --quiet or --json, it prints one snapshot and ends."
        ),
        options=(
            *CHOICE,
            Option("--sort", "name (default), owner, left, age, heard, try or wait", value="ORDER"),
            Option("--interval", "how often to look (default 2s)", value="TIME"),
            Option("--once", "print one snapshot and end"),
            Option("--for", "stop after this long", value="TIME"),
        ),
        examples=(
            ("the board", "dibs top"),
            ("what ends next, of one kind", "dibs top --prefix issue- --sort left"),
            ("for a program", "dibs top --json"),
        ),
        exits=((0, "q or Ctrl-C was pressed, --for is over, or the snapshot was printed"),),
    ),
}
