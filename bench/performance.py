"""Measures dibs side by side with its peers, part by part, into the files of measured/.

scripts/bench load sdk handoff cold expiry     one round each, added to the rounds that the file has
scripts/bench fill growth                      a million leases: the files first (minutes), then the figures
scripts/bench stores                           servers on PostgreSQL and etcd, some twenty databases a round
scripts/bench page                             writes the pages and their plots from the files of measured/

--build NAME=PYTHON[:FOLDER] adds a build of dibs (see builds.py); without it, the one that runs this. Peers that are
not there are skipped with a line. OCTOSTORE_BINARY names OctoStore's program. Each part takes one to three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
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
from load import Sample, watched
from peers import peers
from procs import BenchError, end_on_sigterm
from stats import percentile
from targets import ACQUIRE, CYCLE, WAVE, EtcdTarget, NoopTarget, RedisTarget, Target

HERE = Path(__file__).parent
FILE = HERE / "measured" / "performance.json"
STORES_FILE = HERE / "measured" / "stores.json"
CONNECTIONS = {ACQUIRE: (1, 8, 32, 128), CYCLE: (1,), WAVE: (1, 20, 100)}
WAITERS = (1, 64, 1000)
SDK_PEERS = ("redis-py `Lock`", "kazoo `Lock`", "etcd3gw `Lock`")
SDK_OURS = ("dibs: `with client.claim`", "dibs, embedded")

Rows = list[dict[str, Any]]


def say(text: str) -> None:
    print(text, flush=True)


class Plan:
    """What was asked for, and the number of the round that is measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.builds = [Build.parse(text) for text in args.build] or [Build()]
        self.seconds: int = args.seconds
        self.folder: Path = args.folder
        self.leases: int = args.leases
        self.kept: Path = args.kept
        self.quick: bool = args.quick
        self.only: list[str] = [name for name in args.only.split(",") if name]
        self.round = 0
        self.rows: Rows = []  # of a part that adds to them as it goes, so that an end in between loses little

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
    targets += [NoopTarget(), EtcdTarget(), RedisTarget(), *peers()]
    for target in plan.turns(usable(plan, targets)):
        try:
            plan.rows += _load_rows(plan, target)
        except BenchError as error:  # the others can still be measured
            say(f"!!! {target.name} FAILED and has no figures in this round: {error}")
    return plan.rows


def _load_rows(plan: Plan, target: Target) -> Rows:
    rows: Rows = []
    with (
        tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=plan.folder) as folder,
        target.open(Path(folder)) as server,
    ):
        os.sync()  # what others left to be written would be written by this server's fsync
        server.measure(target.workloads[0], 8, 1)  # does not count
        for workload in target.workloads:
            for connections in CONNECTIONS[workload]:
                sample = watched(server.pids, partial(server.measure, workload, connections, plan.seconds))
                rows.append({"target": target.name, "workload": workload, "connections": connections} | asdict(sample))
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
            figures = json.loads(build.run(words, 120.0))
        except BenchError as error:
            say(f"!!! SKIPPED {name}: {error}")
            continue
        row = {"service": name.replace(OURS, build.name, 1), **figures}
        rows.append(row)
        say(f"{row['service']:32} p50 {row['p50_ms']:.3f}  p99 {row['p99_ms']:.3f} ms  CPU {row['cpu_us']:.0f} us")
    return rows


def handoff_part(plan: Plan) -> Rows:
    services = [handoff.dibs_service(build.name, build.target()) for build in plan.builds]
    services += [each for each in handoff.SERVICES if each.name == "etcd"]
    rows: Rows = []
    for waiters in (1, 16) if plan.quick else WAITERS:
        for service in plan.turns(usable(plan, services)):
            with tempfile.TemporaryDirectory(prefix="dibs-handoff-", dir=plan.folder) as folder:
                turn = service.run(Path(folder), waiters, 20 if plan.quick else 150)
            taken = sorted(turn.taken_ms)
            row = {
                "service": service.name,
                "waiters": waiters,
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
    found = stores.read(None if few else STORES_FILE)
    wanted = stores.StorePlan(
        rounds=1,
        seconds=plan.seconds,
        connections=[1, 32],
        hand_offs=20 if few else 200,
        jobs=20 if few else 100,
        folder=plan.folder,
    )
    for _ in stores.measure(wanted, found, say):
        if not few:
            stores.write(STORES_FILE, found, machine.describe(plan.folder))
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


PARTS: dict[str, Callable[[Plan], Rows]] = {
    "load": load_part,
    "sdk": sdk_part,
    "handoff": handoff_part,
    "cold": cold_part,
    "expiry": expiry_part,
    "stores": stores_part,
    "fill": fill_part,
    "growth": growth_part,
}


def measure(part: str, plan: Plan, document: dict[str, Any]) -> None:
    """One round of one part."""
    rows: Rows = document.setdefault(part, [])
    plan.round = 1 + max((row["round"] for row in rows), default=-1)
    load_before = os.getloadavg()[0]
    os.sync()
    plan.rows = []
    try:
        plan.rows = PARTS[part](plan)
    finally:
        rows += [{"round": plan.round, **row} for row in plan.rows]
    about: dict[str, Any] = document.setdefault("runs", {})
    about.setdefault(part, []).append({"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "load": load_before})


def absolute(text: str) -> Path:
    """A path that means the same in the folders in which commands run."""
    return Path(text).absolute()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("parts", nargs="+", choices=[*PARTS, "page"])
    made.add_argument("--build", action="append", default=[], help="NAME=PYTHON or NAME=PYTHON:FOLDER")
    made.add_argument("--only", default="", help="load, handoff: comma list of targets")
    made.add_argument("--into", type=absolute, default=FILE, help="where the figures are kept")
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
    failed = False
    try:
        if args.install:
            machine.install()
        if machine.filesystem(args.folder) in ("tmpfs", "ramfs"):
            say(f"!!! {args.folder} is in memory: nothing there is durable. Choose a disk with --folder.")
        plan = Plan(args)
        for part in args.parts:
            if part == "page":
                continue
            document = json.loads(args.into.read_text()) if args.into.exists() else {}
            document["machine"] = machine.describe(args.folder)
            say(f"--- {part}")
            try:
                measure(part, plan, document)
            except BenchError as error:
                say(f"!!! {part} FAILED: {error}")
                failed = True
            finally:
                args.into.write_text(json.dumps(document, indent=1) + "\n")
    except BenchError as error:
        say(f"!!! {error}")
        return 1
    if "page" in args.parts:
        sys.path.insert(0, str(HERE.parent))
        from scripts.dev.pages.performance import page

        page.write(HERE.parent)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
