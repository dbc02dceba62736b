"""The tables of the page. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from scripts.dev.pages.performance.figures import (
    ALL,
    BUILDS,
    LOOP_PARTS,
    OPERATIONS,
    Figures,
    Measured,
    cold_name,
    cold_times,
    growth_of,
    instructions_of,
    ratio_text,
    sdk_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def load_rows(load: Figures, workload: str, counts: Sequence[int], unit: str) -> Iterator[str]:
    """CPU time first: it is the same on a busy machine, and what a server costs."""
    heads = " | ".join(f"{count} {unit}: CPU, µs | a second" for count in counts)
    yield f"| CPU of the server a request; requests a second | {heads} |"
    yield "| --- |" + " ---: |" * 2 * len(counts)
    for target, (name, _) in ALL.items():
        cells = [_load_cells(load, target, workload, count) for count in counts]
        if any(cell != ("-", "-") for cell in cells):
            yield f"| {name} | {' | '.join(f'{cpu} | {rate}' for cpu, rate in cells)} |"


def _load_cells(load: Figures, target: str, workload: str, count: int) -> tuple[str, str]:
    one = {"target": target, "workload": workload, "connections": count}
    cpu = load.middle("server_cpu_us", **one)
    rates = load.by_round("requests_per_s", **one).values()
    if not rates or cpu is None:
        return "-", "-"
    spread = f" ({min(rates):,.0f}..{max(rates):,.0f})" if len(rates) > 1 else ""
    return f"{cpu:.0f}", f"{median(rates):,.0f}{spread}"


def detail_rows(load: Figures, workload: str, counts: Sequence[int], unit: str) -> Iterator[str]:
    """Latency and memory of the same turns."""
    heads = " | ".join(f"{count} {unit}" for count in counts)
    yield f"| p50 / p99, ms | {heads} | server, MB |"
    yield "| --- |" + " ---: |" * (len(counts) + 1)
    for target, (name, _) in ALL.items():
        cells = []
        for count in counts:
            one = {"target": target, "workload": workload, "connections": count}
            p50, p99 = (load.middle(field, **one) for field in ("p50_ms", "p99_ms"))
            cells.append("-" if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f}")
        if any(cell != "-" for cell in cells):
            memory = load.middle("server_mb", target=target, workload=workload, connections=counts[-1])
            yield f"| {name} | {' | '.join(cells)} | {memory or 0:.0f} |"


BESIDE = ("dibs, compiled", "etcd-grpc", "zookeeper", "postgres-rows", "redis")


def beside_rows(measured: Measured) -> Iterator[str]:
    """Five rows for the README. None if nobody looked at the disk while they were measured."""
    if "disk" not in measured:
        return
    load = Figures(measured["load"])
    yield "| durable acquires | CPU, µs, 1 conn. | p50, ms | CPU, µs, 32 conn. | a second |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for target in BESIDE:
        one, many = ({"target": target, "workload": "acquire", "connections": count} for count in (1, 32))
        cells = [
            load.middle(field, **which)
            for which, field in (
                (one, "server_cpu_us"),
                (one, "p50_ms"),
                (many, "server_cpu_us"),
                (many, "requests_per_s"),
            )
        ]
        if None not in cells:
            cpu, p50, cpu_many, rate = cells
            yield f"| {ALL[target][0]} | {cpu:.0f} | {p50:.2f} | {cpu_many:.0f} | {rate:,.0f} |"


def sdk_rows(measured: Measured) -> Iterator[str]:
    sdk = Figures(measured["sdk"])
    yield "| one claim and release | CPU, client and server, µs | p50, ms | p99, ms | in times redis-py |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for service, (name, _) in sdk_names(measured).items():
        p50, p99, cpu = (sdk.middle(field, service=service) for field in ("p50_ms", "p99_ms", "cpu_us"))
        times = ratio_text(sdk.ratio("p50_ms", {"service": service}, {"service": "redis-py `Lock`"}))
        yield f"| {name} | {cpu:,.0f} | {p50:.2f} | {p99:.2f} | {times} |"


def handoff_rows(measured: Measured) -> Iterator[str]:
    hand = Figures(measured["handoff"])
    counts = sorted({row["waiters"] for row in hand.rows})
    yield f"| CPU of the server, µs; p50 / p99, ms | {' | '.join(f'{count:,} waiting' for count in counts)} |"
    yield "| --- |" + " ---: |" * len(counts)
    for service, (name, _) in ALL.items():
        cells = []
        for count in counts:
            one = {"service": service, "waiters": count}
            p50, p99, cpu = (hand.middle(field, **one) for field in ("p50_ms", "p99_ms", "server_cpu_us"))
            cells.append("-" if p50 is None else f"{cpu:.0f}; {p50:.2f} / {p99:.2f}")
        if any(cell != "-" for cell in cells):
            yield f"| {name} | {' | '.join(cells)} |"


def cold_rows(measured: Measured) -> Iterator[str]:
    yield "| command | CPU, ms | median, ms | in times `python -c pass`, median (p10..p90) |"
    yield "| --- | ---: | ---: | ---: |"
    for command, (ms, cpu, ratios) in cold_times(measured).items():
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        yield f"| {cold_name(command)} | {cpu:.1f} | {ms:.1f} | {median(ratios):.2f} ({low:.2f}..{high:.2f}) |"


def expiry_rows(measured: Measured) -> Iterator[str]:
    yield "| live leases | expired early | lateness of `expired`, p50 | p99 | max |"
    yield "| ---: | ---: | ---: | ---: | ---: |"
    for row in measured["expiry"]:
        late = " | ".join(f"{row[field]:,.0f} ms" for field in ("p50_ms", "p99_ms", "max_ms"))
        yield f"| {row['leases']:,} | {row['early']} | {late} |"


def growth_rows(measured: Measured) -> Iterator[str]:
    """A column for each build and size."""
    builds = {name: found for build, (name, _) in BUILDS.items() if (found := growth_of(measured, build)) is not None}
    sizes = measured["growth"][0]["leases"]
    heads = [f"{name}, {sizes[size]:,}" for name in builds for size in ("few", "many")]
    yield f"| leases | {' | '.join(heads)} |"
    yield "| --- |" + " ---: |" * len(heads)
    for operation in ("renew", "acquire", "get"):
        fields = (f"{operation} p50_ms", f"{operation} p99_ms")
        cells = [f"{each[fields[0]]:.2f} / {each[fields[1]]:.2f}" for each in _sizes(builds)]
        yield f"| {operation}, p50 / p99, ms | {' | '.join(cells)} |"
    for what, field, digits in (
        ("start to first answer, s", "restart_s", 2),
        ("server memory at first answer, MB", "start_mb", 0),
        ("after the requests", "end_mb", 0),
        ("file, MB", "file_mb", 0),
    ):
        yield f"| {what} | {' | '.join(f'{each[field]:.{digits}f}' for each in _sizes(builds))} |"
    cells = [f"{found[field]:,.0f}" for found in builds.values() for field in ("bytes_each", "bytes_stored")]
    yield f"| server memory a lease, bytes: claimed through it; in the store at its start | {' | '.join(cells)} |"


def _sizes(builds: dict[str, Measured]) -> list[Measured]:
    return [found[size] for found in builds.values() for size in ("few", "many")]


def budget_rows(counted: Measured) -> Iterator[str]:
    """A row for each part; a cell has all builds."""
    builds = instructions_of(counted)
    yield f"| thousand instructions: {', '.join(builds)} | " + " | ".join(OPERATIONS) + " |"
    yield "| --- |" + " ---: |" * len(OPERATIONS)
    for part in LOOP_PARTS:
        cells = [[build[each][part] for build in builds.values() if part in build[each]] for each in OPERATIONS]
        texts = ["; ".join(f"{value / 1e3:.0f}" for value in cell) or "-" for cell in cells]
        yield f"| {part} | {' | '.join(texts)} |"
    whole = [
        "; ".join(f"{sum(build[each].get(part, 0) for part in LOOP_PARTS) / 1e3:.0f}" for build in builds.values())
        for each in OPERATIONS
    ]
    yield f"| **all parts** | {' | '.join(f'**{each}**' for each in whole)} |"


def commits(measured: Measured) -> dict[str, list[str]]:
    """The parts of each commit at which something was measured. A run for the page has one."""
    found: dict[str, list[str]] = {}
    for part, runs in measured["runs"].items():
        for run in runs:
            found.setdefault(run.get("commit", measured["machine"]["commit"]), []).append(part)
    found.setdefault(measured["stores"]["machine"]["commit"], []).append("stores")
    for counted in measured["instructions"].values():
        found.setdefault(counted["commit"], []).append(f"instructions, {counted['build']}")
    return {commit: list(dict.fromkeys(parts)) for commit, parts in found.items()}


def _commits_text(measured: Measured) -> str:
    found = commits(measured)
    main = measured["machine"]["commit"]
    others = [f"{', '.join(parts)} at `{commit}`" for commit, parts in found.items() if commit != main]
    return f"at commit `{main}`" + (f" ({'; '.join(others)})" if others else "")


def _disk_text(measured: Measured) -> str:
    disk = measured.get("disk")
    if disk is None:
        return " The lowest figures are those of a stalled disk."
    return (
        f" Before and after each of {disk['taken']} measurements {disk['appends']} bare appends of 4 KiB were forced to"
        f" disk, which took {disk['calm_ms']:.3f} ms each when it was calm; {len(disk['rejected'])} measurements were"
        f" rejected, because it took more than {disk['stall']:g} times that."
    )


_WITH = {"yes": "with", "no": "without"}


def machine_line(measured: Measured) -> str:
    machine, runs = measured["machine"], measured["runs"]
    rounds = 1 + max(row["round"] for row in measured["load"])
    loads = [run["load"] for part in runs.values() for run in part]
    programs = {
        "etcd": "etcd",
        "PostgreSQL": "postgres",
        "Redis": "redis",
        "wrk": "wrk",
        "uvicorn": "uvicorn",
        "uvloop": "uvloop",
    }
    versions = ", ".join(f"{name} {machine[field]}" for name, field in programs.items())
    cores = f"{machine['cores']} cores"
    where = ": one for the server, one for the load" if "disk" in measured else " for server and load together"
    python = str(machine["python"])
    if "python_optimised" in machine:
        python += f" (configured {_WITH[machine['python_optimised']]} `--enable-optimizations`)"
    return (
        f"Measured {runs['load'][-1]['date']} UTC {_commits_text(measured)}; rounds of the load: {rounds},"
        f" medians with the lowest and the highest. {machine['cpu']}, {cores}{where};"
        f" {machine['filesystem']}, an fsync of 4 KiB takes {machine['fsync_4k_ms']} ms; load average before the runs"
        f" {min(loads):.1f} to {max(loads):.1f}; Python {python}, {versions}."
        f"{_disk_text(measured)}"
    )
