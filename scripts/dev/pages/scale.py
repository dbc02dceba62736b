"""The tables of docs/explanation/scale.md, computed from what the benchmark measured (bench/measured/). Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from scripts.dev.pages.places import filled

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = {"postgres": "PostgreSQL", "etcd": "etcd"}
OPERATIONS = {"acquire": "claim", "renew": "heartbeat", "get": "look", "release": "release"}
COSTS = ("server_cpu_us", "database_cpu_us", "written_bytes")
BUSY = 0.7  # of a core; the rest is for bursts
# Seconds between heartbeats, and between claims.
AGENTS = ((20, 600), (20, 60), (5, 600), (60, 3600))
DAY_S = 86_400

Measured = dict[str, Any]


def cost(measured: Measured, kind: str, operation: str) -> dict[str, float]:
    mine = [each for each in measured["costs"] if (each["database"], each["operation"]) == (kind, operation)]
    return {key: median(each[key] for each in mine) for key in COSTS}


def agent(measured: Measured, kind: str, heartbeat_s: int, claim_s: int) -> dict[str, float]:
    """The cost of one agent in a second: it sends heartbeats, and claims and releases a job now and then."""
    rates = {"renew": 1 / heartbeat_s, "acquire": 1 / claim_s, "release": 1 / claim_s}
    costs = {operation: cost(measured, kind, operation) for operation in rates}
    total = {key: sum(rates[each] * costs[each][key] for each in rates) for key in COSTS}
    return total | {"requests": sum(rates.values())}


def rate(measured: Measured, kind: str, servers: int) -> float:
    """Requests a second at 32 connections: everything on one machine, the load generator included."""
    name = f"dibs, {servers} server{'s' if servers > 1 else ''}"
    mine = [
        turn["measured"]["sample"]["requests_per_s"]
        for turn in measured["turns"]
        if (turn["database"], turn["contender"], turn["connections"]) == (kind, name, 32)
    ]
    return float(median(mine))


def cost_rows(measured: Measured) -> Iterator[str]:
    yield "| store | operation | CPU of dibs, µs | CPU of the database, µs | bytes written |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for kind, name in NAMES.items():
        for operation, called in OPERATIONS.items():
            server, database, written = cost(measured, kind, operation).values()
            yield f"| {name} | {called} | {server:.0f} | {database:.0f} | {written:,.0f} |"


def agent_rows(measured: Measured) -> Iterator[str]:
    yield (
        "| store | heartbeat every | claim every | measured rate | one dibs process | one core of the database"
        " | written a day |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for kind, name in NAMES.items():
        for heartbeat_s, claim_s in AGENTS:
            one = agent(measured, kind, heartbeat_s, claim_s)
            limits = (
                BUSY * rate(measured, kind, 1) / one["requests"],
                BUSY * 1e6 / one["server_cpu_us"],
                BUSY * 1e6 / one["database_cpu_us"],
            )
            cells = " | ".join(f"{_rounded(limit):,}" for limit in limits)
            written = one["written_bytes"] * DAY_S * min(limits) / 1e9
            yield f"| {name} | {_time(heartbeat_s)} | {_time(claim_s)} | {cells} | {written:,.0f} GB |"


def machine_line(measured: Measured) -> str:
    machine, rounds = measured["machine"], 1 + max(turn["round"] for turn in measured["turns"])
    return (
        f"Measured {measured['date']}, medians of {rounds} rounds: {machine['cpu']}, {machine['cores']} cores for "
        f"database, servers and load generator together, an fsync of {machine['fsync_4k_ms']} ms, PostgreSQL "
        f"{machine['postgres']}, etcd {machine['etcd']}, Python {machine['python']}."
    )


def _time(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def _rounded(value: float) -> int:
    """Rounded to two digits: the measurements are no more exact."""
    return int(float(f"{value:.1e}"))


def with_tables(page: str, measured: Measured) -> str:
    """The page with its tables made anew, between their markers."""
    made = {
        "machine": [machine_line(measured)],
        "costs": list(cost_rows(measured)),
        "agents": list(agent_rows(measured)),
    }
    return filled(page, made)
