"""watch: what happens to jobs, as it happens. `history --follow` is the same for one job, from its past on."""

from __future__ import annotations

from dibs.cli.framework.flag_values import given_ms
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure
from dibs.cli.framework.spec import Argument, Command, Option
from dibs.cli.supervise.signals import StopSignals
from dibs.cli.text.inspect import event_line
from dibs.client.event_reader import PASSING, EventCursor, follow, why_away
from dibs.wire.codes import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]


def watch(call: Call) -> Answer:
    name, prefix = call.values.get("job"), call.values.get("prefix", "")
    if name is not None and prefix:
        raise UsageError("Give a job or --prefix, not both.", call.command)
    return follow_events(call, name, prefix, given_ms(call, "since") or 0)


def follow_events(call: Call, name: str | None, prefix: str, since_ms: int) -> Answer:
    """Print a line for each event until the command is stopped, or --for is over."""
    is_begun = is_away = False
    cursor = EventCursor(prefix, name, None, since_ms)
    found = follow(call.door(), cursor, for_ms=given_ms(call, "for"))
    with StopSignals():
        for event in found:
            if not isinstance(event, dict):
                if event.status == 200:
                    is_begun, is_away = True, False
                    continue
                answer = failure(event)
                if not is_begun or answer.code not in PASSING:
                    return answer
                if not is_away:
                    call.complain(f"{why_away(answer.text)} Following goes on as soon as a server answers.")
                is_away = True
                continue
            if not _print(call, event):
                break
    return Answer(YES, {}, "", is_said=True)


def _print(call: Call, event: Document) -> bool:
    """False if nobody reads it."""
    if call.values.get("json"):
        from json import JSONEncoder

        line = JSONEncoder().encode(event)
    else:
        line = call.paint.shown(event_line(event, call.paint))
    return call.say([line])


FOR = Option("--for", "stop after this long", value="TIME")

COMMANDS = {
    "watch": Command(
        "watch",
        watch,
        about=(
            "Prints one line for each event until it is stopped; with --json one JSON document in each line, as `GET "
            "/events` has it. From a server the events come at once. If the server is away, watch goes on where it "
            "was, at another server or when it is back, and misses nothing. History that was pruned meanwhile is told "
            "as a gap."
        ),
        arguments=(Argument("JOB", "only this job", completes="job", takes="maybe"),),
        options=(
            Option("--prefix", "only jobs whose name begins with this", value="TEXT"),
            Option("--since", "begin with the events of the last 30m, 2d, ...", value="TIME"),
            FOR,
        ),
        examples=(
            ("everything", "dibs watch"),
            ("of one kind, for a program", "dibs watch --prefix issue- --json"),
            ("one job, with its last hour", "dibs watch issue-1842 --since 1h"),
        ),
        exits=((0, "--for is over, or nobody reads the output any more"),),
    ),
}
