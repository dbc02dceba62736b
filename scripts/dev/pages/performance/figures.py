"""What was measured, and the names that tables and plots give it. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order of tables and plots, with the number of their colour. Names are those of bench/performance.py.
BUILDS = {
    "dibs": ("dibs, pure Python", 0),
    "dibs, compiled": ("dibs, compiled", 1),
}
PEERS = {
    "etcd": ("etcd (JSON gateway)", 3),
    "etcd-grpc": ("etcd (gRPC)", 2),
    "zookeeper": ("ZooKeeper", 4),
    "postgres-rows": ("PostgreSQL, row lease", 5),
    "postgres-advisory": ("PostgreSQL, advisory lock", 6),
    "redis": ("Redis (fsync always)", 7),
    "octostore": ("OctoStore", 8),
    "noop": ("no-op of the same stack", 9),
}
ALL = {**BUILDS, **PEERS}
SDK_PEERS = {"redis-py `Lock`": 7, "kazoo `Lock`": 4, "etcd3gw `Lock`": 3}
OPERATIONS = ("acquire", "renew", "get", "release")

Measured = dict[str, Any]
Row = dict[str, Any]


class Figures:
    """Rows of one part, and medians and ratios over their rounds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def by_round(self, field: str, **wanted: object) -> dict[int, float]:
        return {
            row["round"]: float(row[field])
            for row in self.rows
            if all(row[key] == value for key, value in wanted.items())
        }

    def middle(self, field: str, **wanted: object) -> float | None:
        found = self.by_round(field, **wanted).values()
        return median(found) if found else None

    def ratio(self, field: str, ours: Row, theirs: Row) -> list[float]:
        """Ours by theirs, round by round."""
        above, below = self.by_round(field, **ours), self.by_round(field, **theirs)
        return [above[number] / below[number] for number in sorted(above.keys() & below.keys()) if below[number]]


def ratio_text(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


RATE, P50 = "requests_per_s", "p50_ms"
LOOP_PARTS = ("parse", "decide", "store read", "store commit", "answer")


def number_text(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def instructions_of(counted: Measured) -> dict[str, dict[str, dict[str, float]]]:
    """By build and operation: the instructions of each part, as `scripts/dev/budget --record` counted them."""
    names = {"python": BUILDS["dibs"][0], "compiled": BUILDS["dibs, compiled"][0]}
    by_build = {names[each["build"]]: each["instructions"] for each in counted.values()}
    return {name: by_build[name] for name in names.values() if name in by_build}


def sdk_names(measured: Measured) -> dict[str, tuple[str, int]]:
    names: dict[str, tuple[str, int]] = {}
    for build, (name, colour) in BUILDS.items():
        names[f"{build}: `with client.claim`"] = (f"{name}: with block", colour)
        names[f"{build}, embedded"] = (f"{name}, embedded", colour)
    names |= {peer: (peer.replace("`", ""), colour) for peer, colour in SDK_PEERS.items()}
    there = {row["service"] for row in measured["sdk"]}
    return {key: value for key, value in names.items() if key in there}


def cold_times(measured: Measured) -> dict[str, tuple[float, float, list[float]]]:
    """By command: median time, median CPU time, and the ratios to `python -c pass`, each in milliseconds."""
    base = [ms for row in measured["cold"] if row["command"] == "python -c pass" for ms in row["ms"]]
    found = {}
    for command in dict.fromkeys(row["command"] for row in measured["cold"]):
        mine = [row for row in measured["cold"] if row["command"] == command]
        times = [ms for row in mine for ms in row["ms"]]
        cpu = [ms for row in mine for ms in row["cpu_ms"]]
        ratios = sorted(a / b for a, b in zip(times, base, strict=False))
        found[command] = (median(times), median(cpu), ratios)
    return found


def cold_name(command: str) -> str:
    for build, (name, _) in sorted(BUILDS.items(), key=lambda item: -len(item[0])):
        if command.startswith(f"{build} "):
            return f"{name}: {command.removeprefix(f'{build} ')}"
    return command


def _size_of(rows: Sequence[Row], size: str) -> dict[str, float]:
    found = {
        "restart_s": median(median(row["restart_s"][size]) for row in rows),
        "start_mb": median(row["memory_mb"][size][0] for row in rows),
        "end_mb": median(row["memory_mb"][size][-1] for row in rows),
        "file_mb": median(row["file_mb"][size] for row in rows),
    }
    for operation in ("renew", "acquire", "get"):
        for field in ("p50_ms", "p99_ms"):
            values = [row["latency"][size][operation][field] for row in rows]
            found[f"{operation} {field}"] = median(values)
    return found


def growth_of(measured: Measured, build: str) -> Row | None:
    """Medians over the rounds of one build."""
    mine = [row for row in measured.get("growth", []) if row["build"] == build]
    if not mine:
        return None

    found: Row = {"leases": mine[0]["leases"], "few": _size_of(mine, "few"), "many": _size_of(mine, "many")}
    found["bytes_each"] = median(row["acquired"]["bytes_each"] for row in mine)
    found["bytes_stored"] = (found["many"]["end_mb"] - found["few"]["end_mb"]) * 1024 * 1024 / mine[0]["leases"]["many"]
    found["renew p99"] = [
        row["latency"]["many"]["renew"]["p99_ms"] / row["latency"]["few"]["renew"]["p99_ms"] for row in mine
    ]
    found["restart"] = [median(row["restart_s"]["many"]) / median(row["restart_s"]["few"]) for row in mine]
    return found
