"""verify: race clients on a store or server of yours, record every answer, and judge whether the promises were kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.ids import new_id
from dibs.cli.commands.wait import StatusLine
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count, milliseconds
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import STORE, Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text.words import plain
from dibs.testing.judge import Violation
from dibs.testing.racers import Asking, RaceThread
from dibs.wire.codes import NO, UNPROVED

TIME_MS_DEFAULT, TIME_MS_MAX = 120_000, 24 * 3_600_000
CLIENTS_DEFAULT, CLIENTS_MAX = 16, 256
OPERATOR_EACH = 4  # of so many clients one is an operator
LOOKED_AT_MAX = 50  # violations, for the one whose window is the shortest
WAYS = ("http", "sdk", "cli")


def verify(call: Call) -> Answer:
    from textwrap import wrap

    from dibs.testing.judge import KILL, PAUSE, RACE, exercised, judge, other_noes, read_calls

    path = call.values.get("judge")
    if path is None:
        path = race(call)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            run = read_calls(file)
    except OSError as error:
        raise InvalidInput(f"{plain(path)} cannot be read ({error.strerror}).") from None
    wrong = judge(run)
    faults = [each for each in run if each.call in (PAUSE, KILL)]
    operations = sum(each.call not in (PAUSE, KILL, RACE) for each in run)
    between = f", {len(faults):,} servers paused or killed" if faults else ""
    counted = f"{operations:,} operations{between}, {len(wrong):,} violations"
    did = exercised(run)
    document: Document = {"operations": operations, "faults": len(faults), "record": path, "exercised": did}
    document["violations"] = [violation_document(each) for each in wrong]
    raced = ", ".join(f"{kind} {count:,}" for kind, count in did.items())
    lines = [counted, *wrap(raced, 100, initial_indent="  ", subsequent_indent="  ")]
    if wrong:
        few = wrong[:LOOKED_AT_MAX]
        shortest = min(few, key=lambda each: (len(each.window(run)), each.calls[-1].ended))
        lines += [f"{shortest.promise}: {shortest.says}", *shortest.lines(run), f"The record is {plain(path)}."]
        return no(NO, document, "\n".join(lines), quiet=counted, code="violation", message=shortest.says)
    lines.append(f"  The record is {plain(path)}.")
    missing = [kind for kind, count in did.items() if not count]
    if missing:
        says = f"It proves nothing about what never happened: {', '.join(missing)}. Race for longer (--for)."
        for sentence, times in other_noes(run).most_common(1):
            often = "once" if times == 1 else f"{times:,} times"
            says += f" Clients were told {often}: {plain(sentence)}"
        return no(UNPROVED, document, "\n".join([*lines, says]), quiet=counted, code="unproved", message=says)
    return yes(document, "\n".join(lines), quiet=counted)


def violation_document(wrong: Violation) -> Document:
    return {"promise": wrong.promise, "says": wrong.says, "calls": [each.number for each in wrong.calls]}


def race(call: Call) -> str:
    """Let clients race for as long as was asked. Returns the file with the record."""
    import logging
    import threading
    from functools import partial

    from dibs.core.caller_rights import OPERATOR, may
    from dibs.core.names import check_namespace
    from dibs.testing.judge import OK, RACE
    from dibs.testing.racers import FAULTS, CliTransport, Racer, Recorder, SdkRacer, Trouble, now, race_terms

    time_ms = milliseconds(call, "for", TIME_MS_DEFAULT, TIME_MS_MAX)
    clients = count(call, "clients", CLIENTS_MAX) or CLIENTS_DEFAULT
    seed = call.values.get("seed") or new_id()[:8]
    namespace = check_namespace(call.settings.namespace or f"verify-{seed}")
    path = call.values.get("record") or f"dibs-verify-{seed}.jsonl"
    way = call.values.get("through") or "http"
    if way not in WAYS:
        raise InvalidInput(f"--through {plain(way)}: the ways are {', '.join(WAYS)}.")
    paused = [process(text) for text in filter(None, (call.values.get("pause") or "").split(","))]
    killed = process(call.values["kill"]) if call.values.get("kill") else 0
    restart = call.values.get("restart") or ""
    if bool(killed) is not bool(restart):
        raise InvalidInput("--kill PID and --restart COMMAND go together: a server that stays dead answers nobody.")
    call.body("inspect", "job-0")  # nobody races on what cannot be asked
    # Who uses a store without a server is its admin, and no server says so.
    role = str((call.ask("whoami").body or {}).get("role") or OPERATOR)
    try:
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115 - it is open for as long as the race
    except OSError as error:
        raise InvalidInput(f"{plain(path)} cannot be made ({error.strerror}). Name another with --record.") from None
    over = threading.Event()
    logging.getLogger("dibs").addHandler(logging.NullHandler())  # heartbeats of the SDK fail on purpose
    racers: list[RaceThread] = []
    with written(file, path, call), StopSignals(), StatusLine(call) as status:
        recorder = Recorder(file)
        context = None if call.settings.context is None else call.settings.context.name
        url = call.settings.url if context is None else None
        words = ["--namespace", namespace, *(("--url", url) if url else ("--context", context) if context else ())]
        transports: Callable[[], Asking] = partial(CliTransport, words, call.env)
        if way == "http":
            transports = partial(call.another_transport, namespace=namespace)
        common = (recorder, seed, over)
        terms = race_terms(seed, operates=may(role, "break"), way=way)
        for name in (f"c{number}" for number in range(clients)):
            if way == "sdk":
                from dibs.sdk.client import Client

                racers.append(SdkRacer(name, Client(url, namespace=namespace, context=context), common, terms))
            else:
                operates = terms.operates and len(racers) % OPERATOR_EACH == 0
                racers.append(Racer(name, transports, common, terms._replace(operates=operates)))
        faults = [word for fault, word in FAULTS.items() if way != "sdk" or fault == "doubled"]
        faults += ["pauses"] * bool(paused) + ["kills"] * bool(killed)
        if paused or killed:
            racers.append(Trouble(paused, killed, restart, f"{path}.log", *common))
        until_ms = steady_ms() + time_ms
        for racer in racers:
            racer.start()
        try:
            while steady_ms() < until_ms and not recorder.trouble and all(racer.is_alive() for racer in racers):
                status.show(f"{recorder.calls:,} operations by {clients} clients, seed {seed}")
                over.wait(0.2)
        finally:
            over.set()
            for racer in racers:
                racer.join(timeout=30)
            wanted = dict.fromkeys([*faults, *sorted(terms.features)], 0)
            known = {"features": wanted | recorder.features, "began": now(), "ended": now(), "outcome": OK}
            recorder.note(client="", call=RACE, job="", **known)
    for trouble in (recorder.trouble, *[racer.trouble for racer in racers]):
        if trouble is not None:
            raise trouble
    return path


@contextmanager
def written(file: TextIO, path: str, call: Call) -> Iterator[None]:
    """The file is written while the block runs. A full disk, and an interrupt, leave a record that can be judged."""
    from dibs.testing.racers import unwritten

    try:
        with file:
            yield
    except OSError as error:
        raise unwritten(path, error) from None
    except KeyboardInterrupt:
        call.complain(f"The race was interrupted. Judge what happened until then: dibs verify --judge {plain(path)}")
        raise


def process(text: str) -> int:
    """The id of a process that may be paused or killed."""
    if not text.isdecimal() or int(text) in (0, 1, os.getpid(), os.getppid()):
        raise InvalidInput(f"{plain(text)} is not the id of a process that can be paused or killed.")
    try:
        os.kill(int(text), 0)
    except OSError as error:
        raise InvalidInput(f"Process {text} cannot be paused or killed ({error.strerror}).") from None
    return int(text)


COMMANDS = {
    "verify": Command(
        verify,
        STORE,
        Option("--for TIME", "how long they race (default 2m)"),
        Option("--clients N", f"how many clients race (default {CLIENTS_DEFAULT})"),
        Option("--through WAY", "http: requests (the default); sdk: claims of the SDK; cli: the dibs command"),
        Option("--pause PIDS", "now and then pause one of these servers for up to 4 s, such as 812,813"),
        Option("--kill PID", "now and then kill this server, and start it again by --restart"),
        Option("--restart COMMAND", "a command line of the shell that starts the server which --kill killed"),
        Option("--seed SEED", "repeat the choices of an earlier run"),
        Option("--record FILE", "where to write the record (default: a new file here)"),
        Option("--judge FILE", "race nobody; judge the record of an earlier run"),
        summary="race clients on a store or server, and judge what they were answered",
        about=(
            "Clients race for a few jobs in a namespace of their own, lose answers on purpose and send "
            "requests twice. The seed switches on a random half of the features, such as pools, closures, "
            "ceilings, groups and nested sessions. Each call with its answer is a line of JSON. Then a judge "
            "looks for what cannot be if the promises were kept, and says how often each thing happened. It "
            "changes nothing outside of its namespace. Stop, pause or kill servers meanwhile: that is what it "
            "is for."
        ),
        examples=(
            ("dibs verify http://127.0.0.1:3427 --for 30s", "your own server"),
            ("dibs verify http://a:3427,http://b:3427,http://c:3427", "three servers, while you kill them in turns"),
            ("dibs verify --judge dibs-verify-1f2e3d4c.jsonl", "look at a record again"),
        ),
        exits=(
            (0, "no violation was found"),
            (1, "a promise was broken"),
            (UNPROVED, "no violation was found, and something that was to be raced never happened"),
        ),
    ),
}
