"""What one acquire, renew, get and release costs, part by part, and a check that it does not grow.

python bench/budget.py              the whole budget: instructions, CPU time and wall time by part; writes nothing
python bench/budget.py --server     only wall and CPU time by part in a real server at one connection; ten seconds
python bench/budget.py --check      instructions against the baseline; exit code 1 if any part has grown by more than
                                    the margin. About half a minute, and the same figures on a busy machine
python bench/budget.py --record     makes the baseline anew for this build, this Python and this machine's architecture

Instructions are those of user space, counted by callgrind (valgrind). They hardly differ from run to run, so a margin
of 5 % finds what a clock would not. Times are for orientation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import budget_report
import machine
from budget_parts import OPERATIONS, TOKEN, request
from budget_trace import MARK
from procs import BenchError, end_on_sigterm, free_port, http_ready, plain_environment, serving

HERE = Path(__file__).parent
BASELINE = HERE / "measured" / "instructions.json"
COUNT = 100
PARTS_SECONDS_MAX = 600.0  # on a busy machine
CALLGRIND = ("valgrind", "--tool=callgrind", "--dump-before=getsid")

Budget = dict[str, dict[str, float]]
"""By operation, then by part."""


def build() -> str:
    """Which of the two builds is loaded: `python`, or `compiled` if the rules are machine code."""
    import dibs.core.decide as rules

    return "python" if str(rules.__file__).endswith(".py") else "compiled"


def surroundings() -> dict[str, str]:
    """What the counts depend on. A baseline holds for one Python series and one architecture."""
    return {
        "build": build(),
        "python": platform.python_version(),
        "architecture": platform.machine(),
        "sqlite": sqlite3.sqlite_version,
    }


def key(about: dict[str, str]) -> str:
    series = ".".join(about["python"].split(".")[:2])
    return f"{about['build']}, Python {series}, {about['architecture']}"


def _run(argv: list[str]) -> str:
    # Without a seed, the order of sets and with it the counts would differ from run to run.
    env = plain_environment({"PYTHONHASHSEED": "0"})
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PARTS_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(argv[:3])} … did not end within {PARTS_SECONDS_MAX:.0f} s") from error
    if done.returncode != 0:
        raise BenchError(f"{' '.join(argv[:3])} … ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout.splitlines()[-1]


def _totals(file: Path) -> int:
    found = re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE)
    if found is None:
        raise BenchError(f"{file.name} has no totals")
    return int(found[1])


def _data_of(temp: str) -> Path:
    """The folder of the stores. callgrind's files are not in it: a store looks at its files again for as long as its
    folder changes, and how often that is depends on the time."""
    data = Path(temp, "data")
    data.mkdir()
    return data


def need_valgrind() -> None:
    if shutil.which("valgrind") is None:
        raise BenchError("valgrind is not installed: apt-get install --no-install-recommends valgrind")


def parts_measured(folder: Path, *, counting: bool) -> list[dict[str, Any]]:
    """One entry for each part of each operation; with `counting`, `instructions` of one."""
    with tempfile.TemporaryDirectory(prefix="dibs-budget-", dir=folder) as temp:
        place, data = Path(temp), _data_of(temp)
        program = [sys.executable, str(HERE / "budget_parts.py"), str(data), str(COUNT)]
        if not counting:
            return list(json.loads(_run(program)))
        need_valgrind()
        entries = json.loads(_run([*CALLGRIND, f"--callgrind-out-file={place / 'count'}", *program]))
        for number, entry in enumerate(entries):
            # Every part has a mark before and after it, and each mark ends one file.
            entry["instructions"] = _totals(place / f"count.{2 * number + 2}") / entry["count"]
        return list(entries)


def client_counted(folder: Path) -> float:
    """Instructions of one `with client.claim()` block in the client."""
    need_valgrind()
    with tempfile.TemporaryDirectory(prefix="dibs-budget-", dir=folder) as temp:
        out = Path(temp, "count")
        program = [sys.executable, str(HERE / "budget_client.py"), str(COUNT)]
        _run([*CALLGRIND, f"--callgrind-out-file={out}", *program])
        return _totals(out.with_name("count.2")) / COUNT


def table_of(entries: list[dict[str, Any]], field: str) -> Budget:
    found: Budget = {operation: {} for operation in OPERATIONS}
    for entry in entries:
        if entry["operation"] in found:
            found[entry["operation"]][entry["part"]] = entry[field]
    return found


def look_counted(entries: list[dict[str, Any]]) -> float:
    """Instructions of one look at the file below the log, which a server takes at most every BELOW_LOOK_MS."""
    counts = {entry["part"]: entry["instructions"] for entry in entries if entry["operation"] == "store"}
    return float(counts["look at the file"] - counts["no look"])


def _ask(link: socket.socket, raw: bytes) -> bytes:
    link.sendall(raw)
    reply = link.recv(65536)
    head, _, body = reply.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += link.recv(65536)
    return body


@contextlib.contextmanager
def traced_server(folder: Path, wrapper: tuple[str, ...] = ()) -> Iterator[tuple[int, Path]]:
    """A server with clocks in it: its port, and the file that has its trace when it has ended."""
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"bench:{TOKEN}:agent\n")
    port, log = free_port(), folder / "trace.log"
    argv = [*wrapper, sys.executable, str(HERE / "budget_trace.py"), str(folder), str(port)]
    with serving(argv, log, http_ready(f"http://127.0.0.1:{port}/health"), ready_seconds=60.0) as child:
        yield port, log
        child.send_signal(signal.SIGTERM)
        child.wait(60.0)


@contextlib.contextmanager
def cores_awake() -> Iterator[None]:
    """A process of lowest priority for each core keeps it from going idle: nobody waits until it has woken up."""
    code = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() != 1: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def _on_the_way(phase: dict[str, Any], asked: list[tuple[int, int]]) -> None:
    """Add what lies between client and server. `asked`: when the client sent each request, and had its answer."""
    there = [read - sent for (read, _), (sent, _) in zip(phase["edges"], asked, strict=True)]
    back = [had - answered for (_, answered), (_, had) in zip(phase.pop("edges"), asked, strict=True)]
    for part, taken in (("request on its way", there), ("answer on its way", back)):
        phase["parts"][part] = {"wall_us": statistics.median(taken) / 1e3, "cpu_us": 0.0}
    whole = sorted(had - sent for sent, had in asked)
    phase["p50_us"], phase["p99_us"] = (whole[len(whole) * part // 100] / 1e3 for part in (50, 99))


def server_traced(folder: Path, count: int, *, counting: bool = False) -> list[dict[str, Any]]:
    """One entry for each operation, at one connection."""
    with tempfile.TemporaryDirectory(prefix="dibs-trace-", dir=folder) as temp:
        place, data = Path(temp), _data_of(temp)
        wrapper = (*CALLGRIND, f"--callgrind-out-file={place / 'count'}") if counting else ()
        mark = request("get", MARK.decode().removeprefix("/locks/"), "")
        asked: dict[str, list[tuple[int, int]]] = {}
        with (
            traced_server(data, wrapper) as (port, log),
            socket.create_connection(("127.0.0.1", port)) as link,
        ):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for tag, times in (("warm", max(count // 4, 20)), ("job-", count)):
                leases = [""] * times
                for operation in OPERATIONS:
                    _ask(link, mark)
                    asked[operation] = []
                    for number in range(times):
                        raw = request(operation, f"{tag}{number:08}", leases[number])
                        sent = time.perf_counter_ns()
                        body = _ask(link, raw)
                        asked[operation].append((sent, time.perf_counter_ns()))
                        if operation == "acquire":
                            leases[number] = json.loads(body)["lease_id"]
            _ask(link, mark)
        text = log.read_text(errors="replace").splitlines()
        phases = json.loads(next(line for line in text if line.startswith("[{")))
        measured = [dict(phase, operation=name) for phase, name in zip(phases[-4:], OPERATIONS, strict=True)]
        for phase in measured:
            _on_the_way(phase, asked[phase["operation"]])
        if counting:
            # The first mark ends what went before; from then on each mark ends the phase of one operation.
            first = len(OPERATIONS) + 2
            for number, phase in enumerate(measured):
                phase["instructions"] = _totals(place / f"count.{first + number}") / phase["requests"]
        return measured


def record(about: dict[str, str], counts: Budget, file: Path) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    rounded = {op: {part: round(n) for part, n in parts.items()} for op, parts in counts.items()}
    known[key(about)] = {**about, "commit": machine.commit(), "instructions": rounded}
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def check(about: dict[str, str], counts: Budget) -> int:
    known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    baseline = known.get(key(about))
    if baseline is None:
        print(f"!!! no baseline for {key(about)}; --record makes one")
        return 2
    lines, grown = budget_report.compared(about, counts, baseline)
    print("\n".join(lines))
    return 1 if grown else 0


def both_ways(folder: Path, times: int) -> dict[str, Any]:
    """A real server at one connection: as it is, and while no core goes idle."""
    measured = server_traced(folder, times)
    with cores_awake():
        return {"server": measured, "server_awake": server_traced(folder, times)}


def whole_budget(folder: Path, times: int) -> dict[str, Any]:
    counted = parts_measured(folder, counting=True)
    timed = parts_measured(folder, counting=False)
    return {
        "about": surroundings(),
        "instructions": table_of(counted, "instructions"),
        "loop_cpu_us": table_of(timed, "cpu_us"),
        "loop_wall_us": table_of(timed, "wall_us"),
        **both_ways(folder, times),
        "server_instructions": {
            each["operation"]: each["instructions"] for each in server_traced(folder, COUNT, counting=True)
        },
    }


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--server", action="store_true", help="only a real server at one connection")
    made.add_argument("--check", action="store_true", help="compare with the baseline")
    made.add_argument("--record", action="store_true", help="make the baseline")
    made.add_argument("--times", type=int, default=2000, help="requests of each kind to the traced server")
    made.add_argument("--into", type=Path, help="write the whole budget, or the baseline, to this file")
    made.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where servers keep data")
    args = made.parse_args()
    end_on_sigterm()
    os.environ.pop("PYTHONHASHSEED", None)
    about = surroundings()
    try:
        if args.check or args.record:
            entries = parts_measured(args.folder, counting=True)
            counts = table_of(entries, "instructions")
            client = {"client": {"claim block": client_counted(args.folder)}}
            print(f"One look at the file below the log: {look_counted(entries) / 1e3:.1f} thousand instructions.")
            if args.check:
                return check(about, counts | client)
            record(about, counts | client, args.into or BASELINE)
            print("\n".join(budget_report.counts_table(counts)))
            print(f"\nA claim block in the client: {client['client']['claim block'] / 1e3:.1f} thousand instructions.")
            return 0
        if about["build"] == "compiled":
            raise BenchError("Clocks cannot be put into compiled code. --check counts its instructions.")
        if args.server:
            print("\n".join(budget_report.server_tables(both_ways(args.folder, args.times))))
            return 0
        found = whole_budget(args.folder, args.times)
    except BenchError as error:
        print(f"!!! {error}")
        return 1
    if args.into:
        args.into.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(budget_report.tables(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
