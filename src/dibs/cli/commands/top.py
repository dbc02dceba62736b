"""top: the board, live."""

from __future__ import annotations

from dibs.cli.commands.list import CHOICE, listed, shown
from dibs.cli.framework.flag_values import given_ms
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer
from dibs.cli.framework.spec import Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.live.board import BoardView

REFRESH_MS_MIN = 200
REFRESH_MS_MAX = 3600_000


def top(call: Call) -> Answer:
    from dibs.cli.live.board import ORDERS, REFRESH_MS, BoardView, is_live, show_board

    order = call.values.get("sort") or "name"
    refresh_ms = given_ms(call, "interval")
    if refresh_ms is not None and not REFRESH_MS_MIN <= refresh_ms <= REFRESH_MS_MAX:
        raise UsageError("--interval is a time from 200ms to 1h.", call.command)
    if order not in ORDERS:
        raise UsageError(f"--sort is one of {', '.join(ORDERS)}.", call.command)
    view = BoardView(order)
    if call.values.get("once") or not is_live(call):
        return _snapshot(call, view)
    return show_board(call, view, lambda: listed(call), REFRESH_MS if refresh_ms is None else refresh_ms)


def _snapshot(call: Call, view: BoardView) -> Answer:
    """Look once, and answer as `dibs list` does, in the order that was asked for."""
    found = listed(call)
    if isinstance(found, Answer):
        return found
    view.take(found["locks"])
    return shown(call, {**found, "locks": view.locks})


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
            "often. `dibs list --watch` is the same board. In a pipe, and with --once, --quiet or --json, it prints "
            "what `dibs list` prints, and ends."
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
