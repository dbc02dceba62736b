"""simulate: servers, clients and a store with everything that goes wrong between them, from one seed, on one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.cli.commands.wait import StatusLine
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.cli.signals import StopSignals
from dibs.wire.codes import NO

if TYPE_CHECKING:
    from dibs.testing.simulated_clients import Episode
    from dibs.testing.simulation import EpisodeSettings

OPERATIONS_DEFAULT = 100_000
COUNTS_MAX = {"operations": 10**12, "servers": 16, "clients": 256, "jobs": 256}
SEED_CHARS_MAX = 64
SHRINK_MS = 60_000  # how long it looks for a smaller run that breaks the same promise


def simulate(call: Call) -> Answer:
    with StopSignals():  # before the imports, which take longest on a busy machine
        return _simulated(call)


def _simulated(call: Call) -> Answer:
    from collections import Counter

    from dibs.testing.features import PAIRS, table
    from dibs.testing.simulated_clients import episodes, shrunk

    settings = settings_of(call)
    met: Counter[tuple[str, str]] = Counter()
    operations = faults = 0
    failed: Episode | None = None
    with StatusLine(call) as status:
        for each in episodes(settings):
            operations += each.operations
            faults += each.faults
            met.update(each.met)
            status.show(f"{operations:,} operations, {faults:,} faults, seed {settings.seed}")
            if each.found is not None:
                failed = each
                break
        counted = f"{operations:,} operations, {settings.servers} servers, {faults:,} faults"
        document: Document = {
            "operations": operations,
            "servers": settings.servers,
            "faults": faults,
            "seed": settings.seed,
        }
        if failed is None or failed.found is None:
            said = f"{counted}, 0 violations (seed {settings.seed})"
            text = said
            if call.values.get("pairs"):
                document["pairs"] = [{"features": list(pair), "met": met[pair]} for pair in PAIRS]
                text = f"{said}\nHow often each two features met:\n{table(met)}"
            return yes({**document, "violations": []}, text, quiet=said)
        until_ms = steady_ms() + SHRINK_MS

        def is_tried(best: Episode) -> bool:
            left_s = max(0, until_ms - steady_ms()) // 1000
            size = f"{best.settings.operations:,} operations, {best.settings.clients} clients"
            status.show(f"a promise was broken; looking for a smaller run for {left_s} s more (now {size})")
            return steady_ms() < until_ms

        least = failed if call.values.get("no_shrink") else shrunk(failed, is_tried=is_tried)
    found = least.found or failed.found
    replay = least.settings.command()
    said = f"{counted}, 1 violation (seed {settings.seed})"
    where = f"It shows at operation {found.operation:,} of the world {least.settings.seed}. Repeat it with"
    broken: Document = {"promise": found.promise, "says": found.says, "operation": found.operation, "step": found.step}
    document["violations"] = [{**broken, "replay": replay}]
    text = "\n".join([said, f"{found.promise}: {found.says}", *found.calls, where, f"  {replay}"])
    return no(NO, document, text, quiet=said, code="violation", message=found.says)


def settings_of(call: Call) -> EpisodeSettings:
    from dibs.testing.features import FEATURES
    from dibs.testing.simulation import FAULTS, EpisodeSettings

    seed = call.values.get("seed") or new_id()[:8]
    if len(seed) > SEED_CHARS_MAX or not all(each.isascii() and (each.isalnum() or each in "-.") for each in seed):
        raise UsageError(f"--seed takes up to {SEED_CHARS_MAX} letters, digits, dots and hyphens.", call.command)
    without = frozenset(filter(None, (call.values.get("without") or "").split(",")))
    if not without.issubset((*FAULTS, *FEATURES)):
        raise UsageError(f"--without takes a list of {', '.join((*FAULTS, *FEATURES))}.", call.command)
    counts: dict[str, Any] = {field: count(call, field, most) for field, most in COUNTS_MAX.items()}
    given = {field: value for field, value in counts.items() if value}
    return EpisodeSettings(seed, without=without, **{"operations": OPERATIONS_DEFAULT, **given})


COMMANDS = {
    "simulate": Command(
        simulate,
        Option("--seed SEED", "repeat an earlier run (default: a new seed)"),
        Option("--operations N", f"how many requests of clients (default {OPERATIONS_DEFAULT})"),
        Option("--servers N", "how many servers (default 3)"),
        Option("--clients N", "how many clients (default 12)"),
        Option("--jobs N", "how many jobs (default 5)"),
        Option("--without FAULTS", "leave out kinds of faults, or features, with commas between"),
        Option("--pairs", "print how often each two features met, the rarest first"),
        Option("--no-shrink", "report the run as it is"),
        summary="run servers, clients and faults from one seed, and check every promise",
        about=(
            "Servers, their clients and a store in memory run on one thread in virtual time, and one seed "
            "decides what goes wrong, and which half of the features is used. Every commit and answer is "
            "checked. A run that breaks a promise is made smaller, and printed as the command that repeats "
            "it."
        ),
        examples=(("dibs simulate --seed 7 --operations 1000000", "a million operations, always the same"),),
        exits=(
            (0, "no violation was found"),
            (1, "a promise was broken"),
        ),
    ),
}
