"""Measure dibs side by side with its peers, on this machine, in one run.

python bench/run.py --quick         a smoke run of about a minute, nothing is written
python bench/run.py                 the full run; writes bench/results/<date>.json and .md
python bench/run.py --readme        the same, and puts the tables into bench/README.md
python bench/run.py --parts stores --rounds 2 --into FILE
                                    servers on PostgreSQL and etcd; adds its rounds to those in FILE
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import cold_start
import expiry
import machine
import report
import store_report
import stores
from interleave import Cell, Plan, measure_all
from procs import BenchError, end_on_sigterm
from targets import DibsTarget, Target, all_targets

PARTS = ("http", "cold", "expiry", "stores")


@dataclass(slots=True)
class Results:
    lines: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    document: dict[str, object] = field(default_factory=dict)
    failed: bool = False


def say(text: str) -> None:
    print(text, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--parts",
        default="http,cold,expiry",
        help=f"comma list of {', '.join(PARTS)} (default: all but stores)",
    )
    made.add_argument("--only", default="", help="comma list of targets: dibs, noop-asgi, noop-lane, etcd, redis")
    made.add_argument("--connections", default="1,8,32,128", help="comma list (default: 1,8,32,128)")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--seconds", type=int, default=3, help="length of one measurement")
    made.add_argument("--warmup", type=int, default=1, help="seconds of load before each cell, not counted")
    made.add_argument("--runs", type=int, default=40, help="cold start: runs of each command")
    made.add_argument("--leases", type=int, default=100_000, help="expiry: how many are live at once")
    made.add_argument("--quick", action="store_true", help="one round of one second, few runs, nothing written")
    made.add_argument("--into", type=Path, help="stores: keep its rounds in this file, beside those it has")
    made.add_argument("--readme", action="store_true", help="put the tables into README.md too")
    made.add_argument("--install", action="store_true", help="install wrk, redis-server, etcd-server (apt, root)")
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where servers keep data")
    made.add_argument("--dibs-command", default="", help="what stands before `serve` (default: this Python -m dibs)")
    return made


def options(argv: list[str] | None = None) -> argparse.Namespace:
    made = parser()
    chosen = made.parse_args(argv)
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.warmup, chosen.runs = 1, 1, 0, 5
        chosen.leases = min(chosen.leases, 2_000)
    unknown = set(chosen.parts.split(",")) - set(PARTS)
    if unknown:
        made.error(f"unknown parts: {', '.join(sorted(unknown))}")
    return chosen


def chosen_targets(args: argparse.Namespace) -> list[Target]:
    """The targets asked for that can run here. Each one that cannot is named, so that no gap goes unseen."""
    wanted = [name for name in args.only.split(",") if name]
    known = all_targets(shlex.split(args.dibs_command))
    unknown = set(wanted) - {target.name for target in known}
    if unknown:
        raise BenchError(f"unknown targets: {', '.join(sorted(unknown))}")
    usable = []
    for target in known:
        if wanted and target.name not in wanted:
            continue
        why = target.missing()
        if why is None:
            usable.append(target)
        else:
            say(f"!!! SKIPPED {target.name}: {why}")
    if packages := machine.missing_packages():
        say(f"!!! to install what is missing: {machine.apt_line(packages)}   (or run with --install as root)")
    if not usable:
        raise BenchError("nothing to measure")
    return usable


def http_part(args: argparse.Namespace, results: Results) -> None:
    targets = chosen_targets(args)
    counts = [int(count) for count in args.connections.split(",")]
    plan = Plan(counts, args.rounds, args.seconds, args.warmup, args.folder)
    results.cells = measure_all(targets, plan, say)
    results.lines += report.http_tables(results.cells)
    measured = {cell.target for cell in results.cells if cell.round == args.rounds - 1}
    results.failed |= any(cell.sample.bad for cell in results.cells) or len(measured) < len(targets)


def dibs_target(args: argparse.Namespace) -> DibsTarget | None:
    command = shlex.split(args.dibs_command)
    target = DibsTarget(command=command) if command else DibsTarget()
    if why := target.missing():
        say(f"!!! SKIPPED: {why}")
        return None
    return target


def cold_part(args: argparse.Namespace, results: Results) -> None:
    dibs = dibs_target(args)
    if dibs is None:
        return
    spent = cold_start.measure(args.runs, args.folder, dibs, cold_start.dibs_script())
    results.lines += cold_start.table(spent)
    results.document["cold_start_seconds"] = spent


def expiry_part(args: argparse.Namespace, results: Results) -> None:
    dibs = dibs_target(args)
    if dibs is None:
        return
    plan = expiry.Plan(leases=args.leases)
    if args.quick:
        plan = expiry.Plan(leases=args.leases, ttl_min=3, ttl_max=6, grace=8)
    late = expiry.measure(plan, args.folder, dibs, say)
    results.lines += expiry.table(late)
    results.document["expiry"] = asdict(late)
    results.failed |= late.flagged()


def stores_part(args: argparse.Namespace, results: Results) -> None:
    counts = [1, 32] if args.connections == parser().get_default("connections") else args.connections.split(",")
    few = args.quick
    plan = stores.StorePlan(
        rounds=args.rounds,
        seconds=args.seconds,
        connections=[int(count) for count in counts],
        hand_offs=20 if few else 200,
        jobs=20 if few else 100,
        folder=args.folder,
    )
    found = stores.read(args.into)
    for _ in stores.measure(plan, found, say):
        if args.into:  # after each round: a run that is ended loses no more than one
            stores.write(args.into, found, results.document["machine"])
    how = f"{found.rounds()} rounds in all, {args.seconds} seconds a turn, {datetime.now(UTC):%Y-%m-%d}."
    results.lines += [how, "", *store_report.tables(found)]
    results.document["stores"] = asdict(found)
    results.failed |= found.flagged()


def run_parts(args: argparse.Namespace, results: Results) -> None:
    """A part that fails is told and does not take the figures of the others with it."""
    runners = {"http": http_part, "cold": cold_part, "expiry": expiry_part, "stores": stores_part}
    for part in args.parts.split(","):
        say(f"--- {part}")
        try:
            runners[part](args, results)
        except BenchError as error:
            say(f"!!! {part} FAILED: {error}")
            results.failed = True


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    end_on_sigterm()
    try:
        if args.install:
            machine.install()
        about = machine.describe(args.folder)
    except BenchError as error:
        say(f"!!! {error}")
        return 1
    if about["filesystem"] in ("tmpfs", "ramfs"):
        say(f"!!! {args.folder} is in memory: nothing there is durable. Choose a disk with --folder.")
    settings: dict[str, object] = {
        key: getattr(args, key) for key in ("parts", "connections", "rounds", "seconds", "warmup", "runs", "leases")
    }
    results = Results(document={"machine": about, "settings": settings})
    run_parts(args, results)
    markdown = "\n".join([*results.lines, *report.machine_line(about, settings)])
    say("\n" + markdown)
    # Figures of a stand-in are never kept: a file would call them dibs.
    publish = bool(results.lines) and not args.dibs_command
    if publish and not args.quick:
        say(f"written: {report.save(results.document, results.cells, markdown).name}")
    if publish and args.readme:
        # Servers on databases have a place of their own: they are measured apart from the rest.
        report.write_readme(report.STORES if args.parts == "stores" else report.RESULTS, markdown)
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
