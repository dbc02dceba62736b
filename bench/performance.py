"""Measures dibs side by side with its peers, part by part.

scripts/bench page                             all of it, at one commit, and writes the pages; goes on where it ended
scripts/bench load sdk handoff cold expiry     one round each, into the file that --into names
scripts/bench fill growth                      many leases: the files first (minutes), then the figures
scripts/bench stores                           servers on PostgreSQL and etcd, some twenty databases a round
scripts/bench tables                           writes the pages and their plots from the files of measured/

--build NAME=PYTHON[:FOLDER] adds a build of dibs (see builds.py); without it, the one that runs this. Peers that are
not there are skipped with a line. OCTOSTORE_BINARY names OctoStore's program. Each part takes one to three minutes.
What was measured while the disk stalled is rejected, counted, and measured again (disk.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import cold_start
import expiry
import growth
import handoff
import machine
import stores
from builds import OURS, Build
from disk import Disk
from load import Sample, watched
from peers import peers
from procs import LOAD_CORE, SERVER_CORE, BenchError, end_on_sigterm, on_core
from stats import percentile
from targets import ACQUIRE, CYCLE, ETCD_GRPC, WAVE, EtcdTarget, NoopTarget, RedisTarget, Target

HERE = Path(__file__).parent
ROOT = HERE.parent
MEASURED = HERE / "measured"
# What makes the page, in this order, with the number of rounds.
PAGE = {"load": 3, "sdk": 3, "handoff": 2, "cold": 1, "expiry": 1, "stores": 2, "fill": 1, "growth": 1, "count": 1}
PAGE_LEASES = 300_000
STATE = ROOT / "build" / "bench"
"""What is measured here and not published: a run for the page until it is whole, tries, single parts."""
CONNECTIONS = {ACQUIRE: (1, 8, 32, 128), CYCLE: (1,), WAVE: (1, 20, 100)}
WAITERS = (1, 64, 1000)
SDK_PEERS = ("redis-py `Lock`", "kazoo `Lock`", "etcd3gw `Lock`")
SDK_OURS = ("dibs: `with client.claim`", "dibs, embedded")

Rows = list[dict[str, Any]]


def say(text: str) -> None:
    print(text, flush=True)


class Plan:
    """What was asked for, and the number of the round that is measured."""

    def __init__(self, args: argparse.Namespace, disk: Disk) -> None:
        self.disk = disk
        self.into: Path = args.into
        self.builds = [Build.parse(text) for text in args.build] or [Build()]
        self.seconds: int = args.seconds
        self.folder: Path = args.folder
        self.leases: int = args.leases
        self.kept: Path = args.kept
        self.quick: bool = args.quick
        self.only: list[str] = [name for name in args.only.split(",") if name]
        self.round = 0

    def turns(self, things: Sequence[Any]) -> list[Any]:
        """Another goes first in each round."""
        shift = self.round % max(1, len(things))
        return [*things[shift:], *things[:shift]]


def usable(plan: Plan, things: Sequence[Any]) -> list[Any]:
    found = []
    for thing in things:
        if plan.only and thing.name not in plan.only:
            continue
        if why := thing.missing():
            say(f"!!! SKIPPED {thing.name}: {why}")
        else:
            found.append(thing)
    return found


def load_part(plan: Plan) -> Rows:
    targets: list[Target] = [build.target() for build in plan.builds]
    targets += [NoopTarget(), EtcdTarget(), ETCD_GRPC, RedisTarget(), *peers()]
    rows: Rows = []
    for target in plan.turns(usable(plan, targets)):
        try:
            rows += _load_rows(plan, target)
        except BenchError as error:  # the others can still be measured
            say(f"!!! {target.name} FAILED and has no figures in this round: {error}")
    return rows


def _load_rows(plan: Plan, target: Target) -> Rows:
    """The server has a core of its own, and so has the load generator."""
    rows: Rows = []
    with (
        tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=plan.folder) as folder,
        contextlib.ExitStack() as stack,
    ):
        with on_core(SERVER_CORE):
            server = stack.enter_context(target.open(Path(folder)))
        stack.enter_context(on_core(LOAD_CORE))
        os.sync()  # what others left to be written would be written by this server's fsync
        server.measure(target.workloads[0], 8, 1)  # does not count
        for workload in target.workloads:
            for connections in CONNECTIONS[workload]:
                take = partial(watched, server.pids, partial(server.measure, workload, connections, plan.seconds))
                what = f"{target.name} {workload} {connections}"
                try:
                    found = plan.disk.calm(what, take)
                except BenchError as error:  # a server that has ended says so in each of the others
                    say(f"!!! {what} FAILED and has no figure in this round: {error}")
                    continue
                if found is None:
                    continue
                sample, disk_ms = found
                row = {"target": target.name, "workload": workload, "connections": connections, "disk_ms": disk_ms}
                rows.append(row | asdict(sample))
                say(_load_line(target.name, workload, connections, sample))
    return rows


def _load_line(name: str, workload: str, connections: int, sample: Sample) -> str:
    return (
        f"{name:18} {workload:8} {connections:4}  {sample.requests_per_s:9,.0f}/s  p50 {sample.p50_ms:7.3f}  "
        f"p99 {sample.p99_ms:7.3f} ms  CPU {sample.server_cpu_us:5.0f} us  load {sample.generator_cores:.2f}, others "
        f"{sample.others_cores:.2f} cores  {sample.server_mb:.0f} MB"
        + (f"  !!! {sample.bad} bad: {sample.first_bad}" if sample.bad else "")
    )


def sdk_part(plan: Plan) -> Rows:
    count = "50" if plan.quick else "400"
    own = Build()
    contenders = [(build, name) for build in plan.builds for name in SDK_OURS]
    contenders += [(own, name) for name in SDK_PEERS]
    rows: Rows = []
    for build, name in plan.turns(contenders):
        try:
            words = [
                str(HERE / "sdk_cycle.py"),
                "--turn",
                name,
                "--count",
                count,
                "--folder",
                str(plan.folder),
            ]
            found = plan.disk.calm(f"{build.name} {name}", partial(build.run, words, 120.0))
        except BenchError as error:
            say(f"!!! SKIPPED {name}: {error}")
            continue
        if found is None:
            continue
        row = {"service": name.replace(OURS, build.name, 1), "disk_ms": found[1], **json.loads(found[0])}
        rows.append(row)
        say(f"{row['service']:32} p50 {row['p50_ms']:.3f}  p99 {row['p99_ms']:.3f} ms  CPU {row['cpu_us']:.0f} us")
    return rows


def _handed_off(plan: Plan, service: handoff.Service, waiters: int) -> handoff.Turn:
    with tempfile.TemporaryDirectory(prefix="dibs-handoff-", dir=plan.folder) as folder:
        return service.run(Path(folder), waiters, 20 if plan.quick else 150)


def handoff_part(plan: Plan) -> Rows:
    services = [handoff.dibs_service(build.name, build.target()) for build in plan.builds]
    services += [each for each in handoff.SERVICES if each.name == "etcd"]
    rows: Rows = []
    for waiters in (1, 16) if plan.quick else WAITERS:
        for service in plan.turns(usable(plan, services)):
            found = plan.disk.calm(f"{service.name} hand-off", partial(_handed_off, plan, service, waiters))
            if found is None:
                continue
            turn, disk_ms = found
            taken = sorted(turn.taken_ms)
            row = {
                "service": service.name,
                "waiters": waiters,
                "disk_ms": disk_ms,
                "p50_ms": percentile(taken, 50),
                "p99_ms": percentile(taken, 99),
                "server_cpu_us": turn.server_cpu_us,
                "server_mb": turn.server_mb,
            }
            rows.append(row)
            say(f"{service.name:18} {waiters:5} waiters  p50 {row['p50_ms']:.3f}  p99 {row['p99_ms']:.3f} ms")
    return rows


def cold_part(plan: Plan) -> Rows:
    spent = cold_start.by_build(5 if plan.quick else 30, plan.folder, plan.builds)
    return [{"command": name, "ms": ms, "cpu_ms": cpu} for name, pairs in spent.items() for ms, cpu in [pairs]]


def expiry_part(plan: Plan) -> Rows:
    wanted = expiry.Plan(leases=1000, ttl_min=3, ttl_max=6, grace=8) if plan.quick else expiry.Plan()
    late = expiry.measure(wanted, plan.folder, plan.builds[-1].target(), say)
    say(f"{late.expired:,} of {late.leases:,} expired, {late.early} early; p99 {late.p99_ms:.0f} ms late")
    if late.flagged():
        raise BenchError(f"not a fair run, or a broken promise: {late}")
    return [{"build": plan.builds[-1].name, **asdict(late)}]


def stores_part(plan: Plan) -> Rows:
    """One round, into a file of its own, because another page is computed from it."""
    few = plan.quick
    file = plan.into.with_name("stores.json")
    found = stores.read(file)
    wanted = stores.StorePlan(
        rounds=1,
        seconds=plan.seconds,
        connections=[1, 32],
        hand_offs=20 if few else 200,
        jobs=20 if few else 100,
        folder=plan.folder,
        disk=plan.disk,
    )
    for _ in stores.measure(wanted, found, say):
        stores.write(file, found, machine.describe(plan.folder))
    if found.flagged():
        raise BenchError("some answers were wrong: see the lines above")
    return []


def _kept(plan: Plan, build: Build) -> tuple[dict[str, Path], dict[str, int]]:
    place = plan.kept / build.name.replace(" ", "-").replace(",", "")
    counts = {"few": growth.FEW, "many": plan.leases}
    return {name: place / f"{name}.db" for name in counts}, counts


def fill_part(plan: Plan) -> Rows:
    """The files of `growth`, kept in a folder: they take minutes, and several rounds can use them."""
    rows: Rows = []
    for build in plan.builds:
        files, counts = _kept(plan, build)
        for name, file in files.items():
            if file.exists():
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            half = file.with_suffix(".half")
            for left in half.parent.glob(f"{half.name}*"):
                left.unlink()  # of a run that was ended
            seconds = growth.filled(build, half, counts[name])
            half.rename(file)
            rows.append({"build": build.name, "leases": counts[name], "seconds": seconds})
            say(f"{build.name}: {counts[name]:,} leases in {seconds:.0f} s")
    return rows


def growth_part(plan: Plan) -> Rows:
    rows: Rows = []
    for build in plan.turns(plan.builds):
        files, counts = _kept(plan, build)
        with tempfile.TemporaryDirectory(prefix="dibs-growth-", dir=plan.folder) as folder:
            found = growth.measure(build, Path(folder), files, counts, quick=plan.quick)
        rows.append(found)
        say(json.dumps(found))
    return rows


def count_part(plan: Plan) -> Rows:
    """Instructions of a request, which `scripts/dev/budget --check` compares with later ones."""
    file = plan.into.with_name("instructions.json")
    for build in plan.builds:
        say(build.run([str(HERE / "budget.py"), "--record", "--into", str(file)], 600.0))
    return []


PARTS: dict[str, Callable[[Plan], Rows]] = {
    "load": load_part,
    "sdk": sdk_part,
    "handoff": handoff_part,
    "cold": cold_part,
    "expiry": expiry_part,
    "stores": stores_part,
    "fill": fill_part,
    "growth": growth_part,
    "count": count_part,
}


def measure(part: str, plan: Plan, document: dict[str, Any]) -> None:
    """One round of one part. It is in the document when it is whole."""
    rounds = document.setdefault("runs", {}).setdefault(part, [])
    plan.round = len(rounds)
    load_before = os.getloadavg()[0]
    os.sync()
    rows = PARTS[part](plan)
    document.setdefault(part, []).extend({"round": plan.round, **row} for row in rows)
    rounds.append({"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "load": load_before, "commit": machine.commit()})
    document["disk"] = plan.disk.document()


def run_parts(parts: Sequence[str], plan: Plan, document: dict[str, Any]) -> bool:
    """Measures one part after another, and keeps the file after each. Returns whether all could be."""
    is_whole = True
    for part in parts:
        document["machine"] = machine.describe(plan.folder)
        say(f"--- {part}")
        began = time.monotonic()
        try:
            measure(part, plan, document)
        except (BenchError, OSError, subprocess.SubprocessError) as error:  # the other parts can still be measured
            say(f"!!! {part} FAILED: {error}")
            is_whole = False
        say(f"--- {part} took {time.monotonic() - began:.0f} s")
        keep(plan.into, document)
    return is_whole


def keep(file: Path, document: dict[str, Any]) -> None:
    """At once, or not at all: a run that is killed can go on."""
    half = file.with_suffix(".half")
    half.write_text(json.dumps(document, indent=1) + "\n")
    half.replace(file)


def opened(file: Path, disk: Disk) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if "disk" in document:
        disk.go_on_from(document["disk"])
    return document


def left_to_do(document: dict[str, Any]) -> list[str]:
    """The rounds that a page still needs."""
    runs = document.get("runs", {})
    return [part for part, rounds in PAGE.items() for _ in range(rounds - len(runs.get(part, [])))]


def is_of_now(document: dict[str, Any], commit: str, builds: Sequence[Build]) -> bool:
    """Whether an earlier run for the page may go on: of this commit, with these builds."""
    runs = [run for part in document.get("runs", {}).values() for run in part]
    return document.get("builds") == [build.name for build in builds] and all(run["commit"] == commit for run in runs)


def whole_page(args: argparse.Namespace, disk: Disk) -> int:
    """All parts at one commit, then the pages. A run that was ended goes on: what is whole is not measured again."""
    commit = machine.commit()
    if commit.endswith("-dirty") and not args.quick:
        raise BenchError("Some files differ from their commit, and the page names one. Commit them first.")
    place = STATE / ("try" if args.quick else "page")
    args.into = place / "performance.json"
    args.kept = place / "leases"
    args.leases = 2_000 if args.quick else PAGE_LEASES
    plan = Plan(args, disk)
    document = opened(args.into, disk)
    if not is_of_now(document, commit, plan.builds) or args.quick:
        shutil.rmtree(place, ignore_errors=True)
        document = {"builds": [build.name for build in plan.builds]}
        disk.go_on_from(Disk(args.folder, say).document())
    place.mkdir(parents=True, exist_ok=True)
    left = list(dict.fromkeys(left_to_do(document))) if args.quick else left_to_do(document)
    say(f"at {commit}: {', '.join(left) or 'nothing is left to measure'}")
    if not run_parts(left, plan, document):
        say("!!! The page is as it was. The same command measures what is missing.")
        return 1
    for part in ("load", "sdk", "handoff"):
        document[part] = disk.settle(document[part])
    document["disk"] = disk.document()
    keep(args.into, document)
    if args.quick:
        say(f"A try: its figures are in {place}, and the pages are as they were.")
        return 0
    for name in ("performance.json", "stores.json", "instructions.json"):
        shutil.copy(place / name, MEASURED / name)
    write_pages()
    return 0


def write_pages() -> None:
    sys.path.insert(0, str(ROOT))
    from scripts.dev.pages.performance import page

    page.write(ROOT)


def absolute(text: str) -> Path:
    """A path that means the same in the folders in which commands run."""
    return Path(text).absolute()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("parts", nargs="+", choices=[*PARTS, "page", "tables"])
    made.add_argument("--build", action="append", default=[], help="NAME=PYTHON or NAME=PYTHON:FOLDER")
    made.add_argument("--only", default="", help="load, handoff: comma list of targets")
    made.add_argument(
        "--into", type=absolute, default=STATE / "parts.json", help="where the figures of single parts are kept"
    )
    made.add_argument("--seconds", type=int, default=2, help="load: length of one measurement")
    made.add_argument("--leases", type=int, default=1_000_000, help="growth: how many the large store has")
    made.add_argument("--install", action="store_true", help="first install wrk, redis-server, etcd-server (apt, root)")
    made.add_argument("--quick", action="store_true", help="a try: little of everything")
    temporary = Path(tempfile.gettempdir())
    made.add_argument("--folder", type=absolute, default=temporary, help="where servers keep data")
    made.add_argument("--kept", type=absolute, default=temporary / "dibs-growth", help="growth: where its files stay")
    return made


def main() -> int:
    args = parser().parse_args()
    end_on_sigterm()
    parts = [part for part in args.parts if part not in ("page", "tables")]
    try:
        if args.install:
            machine.install()
        if machine.filesystem(args.folder) in ("tmpfs", "ramfs"):
            say(f"!!! {args.folder} is in memory: nothing there is durable. Choose a disk with --folder.")
        disk = Disk(args.folder, say, is_try=args.quick)
        if "page" in args.parts:
            return whole_page(args, disk)
        args.into.parent.mkdir(parents=True, exist_ok=True)
        is_whole = run_parts(parts, Plan(args, disk), opened(args.into, disk)) if parts else True
    except BenchError as error:
        say(f"!!! {error}")
        return 1
    except KeyboardInterrupt:
        say("!!! Interrupted. What is whole is kept, and the same command goes on.")
        return 130
    if "tables" in args.parts:
        write_pages()
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
