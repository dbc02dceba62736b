"""wait: wait until nobody has a job, without claiming it."""

from __future__ import annotations

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.terminal import plain
from dibs.cli.framework.flag_values import exit_code, seconds
from dibs.cli.framework.result import failure, is_failure, no, yes
from dibs.cli.framework.spec import JOBS, Command, Option
from dibs.cli.supervise.signals import StopSignals
from dibs.cli.text import inspect as inspect_text
from dibs.cli.text import queue as queue_text
from dibs.cli.text.colour import Paint
from dibs.cli.text.status_line import StatusLine
from dibs.cli.text.words import span
from dibs.client.door import Ask
from dibs.core.limits import DONE_MS_MAX
from dibs.wire.codes import NO, YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]

PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 2_000


def wait(call: Call) -> Answer:
    names, door = list(dict.fromkeys(call.values["job"])), call.door()
    length = seconds(call, "for", DONE_MS_MAX)
    done_exit = exit_code(call, "done_exit_code", YES)
    until_ms = None if length is None else steady_ms() + length * 1000
    pause_ms = PAUSE_MS_MIN
    with StopSignals(), StatusLine(call) as status:
        while True:
            found: list[Document] = []
            for name in names:
                reply = door.ask(Ask("inspect", name))
                if is_failure(reply):
                    return failure(reply)
                found.append(reply.body or {})
            taken = [body for body in found if is_taken(body)]
            if not taken:
                return _over(call, found, done_exit)
            left_ms = None if until_ms is None else until_ms - steady_ms()
            if left_ms is not None and left_ms <= 0:
                return _not_yet(call, found, taken, (length or 0) * 1000)
            status.show(queue_text.watching(taken))
            door.news(_pause(taken, pause_ms, left_ms))
            pause_ms = min(PAUSE_MS_MAX, pause_ms * 2)


def is_taken(document: Document) -> bool:
    """Whether somebody has the job, or a path that overlaps it."""
    return document["status"] == "held" or bool(document.get("overlapping"))


def _pause(taken: list[Document], pause_ms: int, left_ms: int | None) -> int:
    """The pause before the next look: not longer than the shortest hold, the time left, or a fixed limit."""
    hints = [pause_ms, *[each.get("remaining_ms") or pause_ms for each in taken]]
    if left_ms is not None:
        hints.append(left_ms)
    return max(1, min(hints))


def _over(call: Call, found: list[Document], done_exit: int) -> Answer:
    """The answer when nobody has any of the jobs."""
    text = "\n".join([inspect_text.status(body, call.paint, wall_ms()) for body in found])
    quiet = "\n".join([f"{plain(body['name'])}\t{plain(body['status'])}" for body in found])
    document: Document = found[0] if len(found) == 1 else {"jobs": found}
    if len(found) == 1:
        quiet = plain(found[0]["status"])
    if done_exit != YES and all(body["status"] == "done" for body in found):
        message = text.partition("\n")[0]
        return no(done_exit, document, text, code="done", message=message, quiet=quiet)
    return yes(document, text, quiet=quiet)


def _not_yet(call: Call, found: list[Document], taken: list[Document], waited_ms: int) -> Answer:
    head, *more = "\n".join([inspect_text.status(body, Paint(), wall_ms()) for body in taken]).split("\n")
    text = "\n".join([f"{call.paint.wait('Not yet:')} {head}", *more])
    document: Document = found[0] if len(found) == 1 else {"jobs": found}
    return no(NO, document, text, code="held", message=f"After {span(waited_ms)}: {head}")


COMMANDS = {
    "wait": Command(
        "wait",
        wait,
        about=(
            "Claims nothing and takes no place in line; to get the job yourself, use `dibs claim --wait`. "
            "Prints the state of the job at the end: free, done, delayed or parked; with --quiet only that "
            "word. With several jobs it waits until nobody has any of them, and --quiet prints the name, a "
            "tab, and the word of each."
        ),
        arguments=(JOBS,),
        options=(
            Option("--for", "wait for at most this long (default: no limit)", value="TIME"),
            Option("--done-exit-code", "the exit code if all of the jobs are done (default 0)", value="N"),
        ),
        examples=(
            ("until the migration is over", "dibs wait migrate-db --for 10m && ./deploy"),
            ("both of them", "dibs wait migrate-db build-image && ./deploy"),
            ("was the job done, or only released", 'test "$(dibs wait -q issue-1842)" = done'),
            ("the same by exit code", "dibs wait issue-1842 --done-exit-code 4; test $? = 4 && echo done"),
        ),
        exits=(
            (0, "nobody has it"),
            (1, "somebody still has it at the end of --for"),
            (4, "with --done-exit-code 4: it is done"),
        ),
    ),
}
