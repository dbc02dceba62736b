"""`dibs list --watch`: the board on a terminal; in a pipe a line for each change."""

from __future__ import annotations

from dibs.base.clock import steady_ms, wall_ms
from dibs.cli.framework.flag_values import given_ms
from dibs.cli.framework.result import Answer
from dibs.cli.live.board import SHARE
from dibs.cli.supervise.signals import StopSignals
from dibs.cli.text.listing import heads_of, rows_of
from dibs.cli.text.words import plain, table
from dibs.client.event_reader import PASSING, why_away
from dibs.wire.codes import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]
    Fetch = Callable[[], Document | Answer]

LOOK_MS = 1_000
_SEEN = ("status", "owner", "fencing_token", "checkpoint", "metadata", "holders", "slots")


def watch_list(call: Call, fetch: Fetch) -> Answer:
    from dibs.cli.live.board import REFRESH_MS, BoardView, is_live, show_board

    if is_live(call):
        return show_board(call, BoardView(), fetch, REFRESH_MS)
    return _print_changes(call, fetch, given_ms(call, "for"))


def _print_changes(call: Call, fetch: Fetch, for_ms: int | None) -> Answer:
    until_ms = None if for_ms is None else steady_ms() + for_ms
    before: dict[tuple[str, str], Document] | None = None
    is_away = False
    with StopSignals():
        while True:
            began_ms = steady_ms()
            found = fetch()
            if isinstance(found, Answer):
                if before is None or found.code not in PASSING:
                    return found
                if not is_away:
                    call.complain(f"{why_away(found.text)} Watching goes on as soon as a server answers.")
                is_away = True
            else:
                is_away = False
                now = {(lock.get("namespace", ""), lock["name"]): lock for lock in found["locks"]}
                if not _print(call, _changes(before or {}, now)):
                    break
                before = now
            pause_ms = max(LOOK_MS, SHARE * (steady_ms() - began_ms))
            left_ms = pause_ms if until_ms is None else min(pause_ms, until_ms - steady_ms())
            if left_ms <= 0:
                break
            call.door().news(left_ms)
            _pause(began_ms + LOOK_MS // 4 - steady_ms())  # a busy store has news all the time
    return Answer(YES, {}, "", is_said=True)


def _changes(before: dict[Any, Document], now: dict[Any, Document]) -> list[Document]:
    """Jobs that are new or have changed, and those that are gone, as free."""
    found = [lock for key, lock in now.items() if key not in before or _seen(before[key]) != _seen(lock)]
    for key, lock in before.items():
        if key not in now:
            gone: Document = {field: lock[field] for field in ("name", "namespace") if field in lock}
            found.append(gone | {"status": "free"})
    return found


def _seen(lock: Document) -> list[Any]:
    """Return what counts as a change. Heartbeats alone do not."""
    return [
        [each["owner"] for each in lock["holders"]] if field == "holders" and "holders" in lock else lock.get(field)
        for field in _SEEN
    ]


def _print(call: Call, locks: list[Document]) -> bool:
    """False if nobody reads it."""
    if not locks:
        return True
    if call.values.get("json"):
        from json import JSONEncoder

        lines = [JSONEncoder().encode(lock) for lock in locks]
    elif call.values.get("quiet"):
        lines = [plain(lock["name"]) for lock in locks]
    else:
        heads = ("JOB", "STATE", *[head for head in heads_of(locks) if head not in ("JOB", "STATE")])
        _, *lines = table(rows_of(locks, heads, wall_ms()))
        lines = [call.paint.shown(line) for line in lines]
    return call.say(lines)


def _pause(ms: int) -> None:
    from time import sleep

    sleep(max(0, ms) / 1000)
