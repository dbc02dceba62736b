"""wait: until nobody has a job, without claiming it."""

from __future__ import annotations

from dibs.cli import linerender, lookrender
from dibs.cli.answer import failure, is_failure, no, yes
from dibs.cli.live import Live
from dibs.cli.paint import Paint
from dibs.cli.spec import JOB, Command, Option
from dibs.cli.stopping import Stops
from dibs.cli.values import seconds
from dibs.cli.words import plain, span
from dibs.clock import steady_ms, wall_ms
from dibs.core.limits import DONE_MS_MAX
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.answer import Answer
    from dibs.cli.call import Call

    Document = dict[str, Any]

PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 2_000


def wait(call: Call) -> Answer:
    name, door = call.values["job"], call.door()
    length = seconds(call, "for", DONE_MS_MAX)
    until_ms = None if length is None else steady_ms() + length * 1000
    pause_ms = PAUSE_MS_MIN
    with Stops(), Live(call) as live:
        while True:
            reply = door.call("inspect", name, {})
            if is_failure(reply):
                return failure(reply)
            body: Document = reply.body or {}
            if not is_taken(body):
                return yes(body, lookrender.status(body, call.paint, wall_ms()), quiet=body["status"])
            left_ms = None if until_ms is None else until_ms - steady_ms()
            if left_ms is not None and left_ms <= 0:
                return _over(call, body, (length or 0) * 1000)
            live.show(linerender.watching(body, plain(name)))
            door.news(_pause(body, pause_ms, left_ms))
            pause_ms = min(PAUSE_MS_MAX, pause_ms * 2)


def is_taken(document: Document) -> bool:
    """Somebody has the job, or in a tree something that overlaps it."""
    return document["status"] == "held" or bool(document.get("overlapping"))


def _pause(document: Document, pause_ms: int, left_ms: int | None) -> int:
    """Not longer than the hold lasts at most, than there is time left, or than is modest."""
    hints = [pause_ms, document.get("remaining_ms") or pause_ms]
    if left_ms is not None:
        hints.append(left_ms)
    return max(1, min(hints))


def _over(call: Call, body: Document, waited_ms: int) -> Answer:
    head, *more = lookrender.status(body, Paint(), wall_ms()).split("\n")
    text = "\n".join([f"{call.paint.wait('Not yet:')} {head}", *more])
    return no(NO, body, text, code="held", message=f"After {span(waited_ms)}: {head}")


COMMANDS = {
    "wait": Command(
        "wait",
        "wait until nobody has a job",
        wait,
        about=(
            "Does not claim it and stands in no line: whoever wants the job itself says dibs claim --wait. Says how "
            "the job stands then: free, done, resting after a loss, or parked; with --quiet in that one word."
        ),
        arguments=(JOB,),
        options=(Option("--for", "this long at most (default: as long as it takes)", value="TIME"),),
        examples=(
            ("until the migration is over", "dibs wait migrate-db --for 10m && ./deploy"),
            ("was it done, or only let go", 'test "$(dibs wait -q issue-1842)" = done'),
        ),
        exits=((0, "nobody has it"), (1, "the time is over and somebody still has it")),
    ),
}
