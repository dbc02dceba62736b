"""verify: race clients on a store or server of yours, record every answer, and judge whether the promises were kept."""

from __future__ import annotations

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.ids import new_id
from dibs.cli.commands.wait import StatusLine
from dibs.cli.framework.flags import count, milliseconds
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import STORE, Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text.words import plain
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.cli.framework.context import Call, Document
    from dibs.testing.judge import RecordedCall, Violation

TIME_MS_DEFAULT, TIME_MS_MAX = 120_000, 24 * 3_600_000
CLIENTS_DEFAULT, CLIENTS_MAX = 8, 256
SHOWN_MAX = 40  # lines of one window


def verify(call: Call) -> Answer:
    from dibs.testing.judge import judge, read_calls

    path = call.values.get("judge")
    if path is None:
        path = race(call)
    try:
        with open(path, encoding="utf-8") as file:
            run = read_calls(file)
    except OSError as error:
        raise InvalidInput(f"{plain(path)} cannot be read ({error.strerror}).") from None
    wrong = judge(run)
    counted = f"{len(run):,} operations, {len(wrong):,} violations"
    document: Document = {"operations": len(run), "record": path, "violations": [told(each) for each in wrong]}
    if not wrong:
        return yes(document, f"{counted}\n  The record is {plain(path)}.", quiet=counted)
    shortest = min(wrong, key=lambda each: (len(each.window(run)), each.calls[-1].ended))
    lines = [counted, f"{shortest.promise}: {shortest.says}", *shown(shortest, run), f"The record is {plain(path)}."]
    return no(NO, document, "\n".join(lines), quiet=counted, code="violation", message=shortest.says)


def told(wrong: Violation) -> Document:
    return {"promise": wrong.promise, "says": wrong.says, "calls": [each.number for each in wrong.calls]}


def shown(wrong: Violation, run: Sequence[RecordedCall]) -> list[str]:
    """The calls about the same job at the time of a violation; those that it consists of have a mark."""
    window = wrong.window(run)
    start = min(each.began for each in window)
    lines = []
    for each in window[:SHOWN_MAX]:
        mark = ">" if each in wrong.calls else " "
        span = f"{each.began - start:8.3f} to {each.ended - start:8.3f}"
        said = " ".join(filter(None, (each.outcome, each.code, f"token {each.token}" if each.token else "")))
        lines.append(f"{mark} {span}  {each.client:<6} {each.call:<11} {said}  {each.lease[:8]}")
    if len(window) > SHOWN_MAX:
        lines.append(f"  and {len(window) - SHOWN_MAX} more")
    return lines


def race(call: Call) -> str:
    """Let clients race for as long as was asked. Returns the file with the record."""
    import threading

    from dibs.core.identity import OPERATOR, may
    from dibs.testing.racers import Racer, Recorder

    time_ms = milliseconds(call, "for", TIME_MS_DEFAULT, TIME_MS_MAX)
    clients = count(call, "clients", CLIENTS_MAX) or CLIENTS_DEFAULT
    seed = call.values.get("seed") or new_id()[:8]
    namespace = call.settings.namespace or f"verify-{seed}"
    path = call.values.get("record") or f"dibs-verify-{seed}.jsonl"
    over = threading.Event()
    call.body("inspect", "job-0")  # nobody races on what cannot be asked
    # Who uses a store without a server is its admin, and no server says so.
    role = str((call.ask("whoami").body or {}).get("role") or OPERATOR)
    try:
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115 - it is open for as long as the race
    except OSError as error:
        raise InvalidInput(f"{plain(path)} cannot be made ({error.strerror}). Name another with --record.") from None
    with file, StopSignals(), StatusLine(call) as status:
        recorder = Recorder(file)
        racers = [
            Racer(
                f"c{number}",
                lambda: call.another_door(namespace=namespace),
                recorder,
                seed=seed,
                prefix="",
                may_break=not number and may(role, "break"),
                over=over,
            )
            for number in range(clients)
        ]
        until_ms = steady_ms() + time_ms
        for racer in racers:
            racer.start()
        try:
            while steady_ms() < until_ms and any(racer.is_alive() for racer in racers):
                status.show(f"{recorder.calls:,} operations by {clients} clients, seed {seed}")
                over.wait(0.2)
        finally:
            over.set()
            for racer in racers:
                racer.join(timeout=30)
    for racer in racers:
        if racer.trouble is not None:
            raise racer.trouble
    return path


COMMANDS = {
    "verify": Command(
        verify,
        about=(
            "Clients race for a few jobs in a namespace of their own: they claim one, any and all, renew, wait, "
            "release, hand over and break, lose answers on purpose and send requests twice. Each call with its answer "
            "is a line of JSON. Then a judge looks for what cannot be if the promises were kept: two owners at once, "
            "a token that does not rise, a lease that was lost too early. It changes nothing outside of its "
            "namespace. Stop, pause or kill servers meanwhile: that is what it is for."
        ),
        arguments=(STORE,),
        options=(
            Option("--for TIME", "how long they race (default 2m)"),
            Option("--clients N", f"how many clients race (default {CLIENTS_DEFAULT})"),
            Option("--seed SEED", "repeat the choices of an earlier run"),
            Option("--record FILE", "where to write the record (default: a new file here)"),
            Option("--judge FILE", "race nobody; judge the record of an earlier run"),
        ),
        examples=(
            ("your own server", "dibs verify http://127.0.0.1:3427 --for 30s"),
            ("three servers, while you kill them in turns", "dibs verify http://a:3427,b:3427,c:3427"),
            ("look at a record again", "dibs verify --judge dibs-verify-1f2e3d4c.jsonl"),
        ),
        exits=((0, "no violation was found"), (1, "a promise was broken")),
    )
}
