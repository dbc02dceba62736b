"""The budget as tables, and the comparison with the baseline. Pure."""

from __future__ import annotations

from typing import Any

Budget = dict[str, dict[str, float]]

MARGIN = 0.05
SLACK = 1_000  # instructions: a part this small may change by more than the margin
INSIDE = {"encode": "store commit"}  # counted once more in the part it belongs to
LOOP_PARTS = ("parse", "decide", "store read", "encode", "store commit", "answer")
SERVER_PARTS = (
    "request on its way",
    "parse",
    "hand-over to the writer",
    "decide",
    "store read",
    "store commit",
    "encode",
    "statements",
    "COMMIT",
    "hand-over back",
    "answer",
    "answer on its way",
)
SERVER_INSIDE = ("encode", "statements", "COMMIT")  # of the commit


def total(parts: dict[str, float]) -> float:
    return sum(value for part, value in parts.items() if part not in INSIDE)


def counts_table(counts: Budget) -> list[str]:
    """Thousands of instructions, one row a part."""
    lines = ["| thousand instructions | " + " | ".join(counts) + " |", "| --- |" + " ---: |" * len(counts)]
    for part in LOOP_PARTS:
        name = f"*of the commit: {part}*" if part in INSIDE else part
        cells = [f"{parts[part] / 1e3:.1f}" if part in parts else "-" for parts in counts.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sums = [f"{total(parts) / 1e3:.1f}" for parts in counts.values()]
    return [*lines, "| **all of these** | " + " | ".join(sums) + " |"]


def loop_table(found: dict[str, Any]) -> list[str]:
    """CPU time in a loop; of the commit the wall time as well, because it waits for the disk."""
    cpu, wall = found["loop_cpu_us"], found["loop_wall_us"]
    lines = ["| µs of CPU (wall) | " + " | ".join(cpu) + " |", "| --- |" + " ---: |" * len(cpu)]
    for part in LOOP_PARTS:
        name = f"*of the commit: {part}*" if part in INSIDE else part
        cells = [f"{cpu[op][part]:.1f} ({wall[op][part]:.1f})" if part in cpu[op] else "-" for op in cpu]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sums = [f"{total(cpu[op]):.1f} ({total(wall[op]):.1f})" for op in cpu]
    return [*lines, "| **all of these** | " + " | ".join(sums) + " |"]


def server_table(measured: list[dict[str, Any]]) -> list[str]:
    """Medians in a real server at one connection: wall time, and CPU time where one thread does the part."""
    phases = {each["operation"]: each for each in measured}
    lines = ["| µs of wall (CPU) | " + " | ".join(phases) + " |", "| --- |" + " ---: |" * len(phases)]
    for part in SERVER_PARTS:
        cells = []
        for phase in phases.values():
            each = phase["parts"].get(part)
            spent = "-" if each is None or not each["wall_us"] else f"{each['wall_us']:.0f}"
            used = f" ({each['cpu_us']:.0f})" if each is not None and each["cpu_us"] >= 0.5 else ""
            cells.append(spent + used)
        name = f"*of the commit: {part}*" if part in SERVER_INSIDE else part
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    walls = [f"{phase['wall_us']:.0f} ({phase['cpu_us']:.0f})" for phase in phases.values()]
    lines.append("| **a request, mean, all threads** | " + " | ".join(walls) + " |")
    whole = [f"{phase['p50_us']:.0f} / {phase['p99_us']:.0f}" for phase in phases.values()]
    return [*lines, "| **p50 / p99 at the client** | " + " | ".join(whole) + " |"]


def _process_lines(found: dict[str, Any]) -> list[str]:
    counts, parts = found["server_instructions"], found["instructions"]
    whole = ", ".join(f"{op} {counts[op] / 1e3:.0f}" for op in counts)
    rest = ", ".join(f"{op} {(counts[op] - total(parts[op])) / 1e3:.0f}" for op in counts)
    return [
        f"Thousand instructions of the process: {whole}.",
        f"Of these in none of the parts (I/O, hand-over, chores, clocks): {rest}.",
    ]


def server_tables(found: dict[str, Any]) -> list[str]:
    awake = server_table(found["server_awake"])
    return [*server_table(found["server"]), "", "The same, no core goes idle:", "", *awake]


def tables(found: dict[str, Any]) -> list[str]:
    about = found["about"]
    return [
        f"Build: {about['build']}; Python {about['python']}; SQLite {about['sqlite']}; {about['architecture']}.",
        "",
        *counts_table(found["instructions"]),
        "",
        *loop_table(found),
        "",
        *server_tables(found),
        "",
        *_process_lines(found),
    ]


def compared(about: dict[str, str], counts: Budget, baseline: dict[str, Any]) -> tuple[list[str], bool]:
    """A line for each part and each sum, and whether any has grown by more than the margin."""
    lines = [
        f"{field}: {about[field]}, the baseline's is {baseline[field]}"
        for field in ("python", "sqlite")
        if about[field] != baseline[field]
    ]
    grown = False
    for operation, parts in counts.items():
        before: dict[str, float] = baseline["instructions"].get(operation, {})
        rows = [(part, parts.get(part, 0.0), before.get(part, 0.0)) for part in {**before, **parts}]
        for part, now, then in [*rows, ("all", total(parts), total(before))]:
            limit = then * (1 + MARGIN) + (0 if part == "all" else SLACK)
            verdict = "!!! GROWN" if now > limit else "less" if now < then * (1 - MARGIN) else ""
            grown |= now > limit
            change = f"{now / then - 1:+.1%}" if then else "new"
            lines.append(f"{operation:8} {part:13} {now:10,.0f}  was {then:10,.0f}  {change:>7}  {verdict}")
    if grown:
        lines.append(f"!!! more than {MARGIN:.0%} above the baseline. If that is wanted, --record makes a new one.")
    return lines, grown
