"""Checks of a server: its token, its version, its store, its clock, how fast it answers, and what is in its store."""

from __future__ import annotations

import os

from dibs._version import __version__
from dibs.base.clock import stopwatch_us, wall_ms
from dibs.base.errors import DibsError
from dibs.cli.doctor.work import look_at_jobs, look_at_own_token, look_at_tokens
from dibs.core.durations import format_duration
from dibs.wire.parts import instant_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.doctor.findings import Findings
    from dibs.cli.framework.context import Call
    from dibs.client.http import HttpDoor
    from dibs.client.urls import ServerAddress

    Document = dict[str, Any]

SKEW_MS_MAX = 5_000
ROUND_TRIPS = 5
SLOW_US_MIN = 500_000


def check_server(found: Findings, call: Call, address: ServerAddress) -> str | None:
    """The id of the store behind it, if it is known."""
    source = call.settings.source("url", "DIBS_URL")
    if call.settings.named_url is None:
        source = "this machine's service, for all its users"
    found.good("server", f"{address.url} ({source})")
    _token(found, call, address)
    from dibs.client.http import HttpDoor

    door = call.door_at(address.url)
    if not isinstance(door, HttpDoor):
        return None
    try:
        health = _health(found, door)
    except DibsError as error:
        found.bad("answers", error.details)
        return None
    finally:
        door.close()
    return str(health["store"]) if health.get("store") else None


def _health(found: Findings, door: HttpDoor) -> Document:
    health = door.health()
    if health.get("details"):
        found.bad("answers", str(health["details"]))
    elif "dibs" not in health:
        found.bad("answers", "this is not a dibs server; nothing can be claimed there")
    else:
        schema = f", schema {health['schema']}" if health.get("schema") else ""
        found.good(
            "answers", f"yes: dibs {health['dibs']}, on {health.get('storage', 'an unnamed store')}{schema}"
        )
        _versions(found, str(health["dibs"]))
        now_ms = _clock(found, door) if "now" in health else wall_ms()
        if _allowed(found, door):
            _work(found, door, now_ms)
    return health


def _versions(found: Findings, server: str) -> None:
    if server != __version__:
        found.look(
            "versions",
            f"the server runs dibs {server}, this is {__version__}. They work together; upgrade the older one when you "
            "can, servers first",
        )


def _clock(found: Findings, door: HttpDoor) -> int:
    """Compare the clocks, and tell how long a request takes. Returns the time of the store's clock."""
    trips: list[tuple[int, int]] = []
    for _ in range(ROUND_TRIPS):
        began_us, began_ms = stopwatch_us(), wall_ms()
        told_ms = instant_ms(str(door.health()["now"]))
        took_us = stopwatch_us() - began_us
        trips.append((took_us, told_ms - began_ms - took_us // 2_000))
    trips.sort()
    best_us, skew_ms = trips[0]  # the quickest answer has the smallest error
    error_ms = best_us // 2_000 + 1
    median_us = trips[len(trips) // 2][0]
    if abs(skew_ms) - error_ms > SKEW_MS_MAX:
        ahead = "ahead of" if skew_ms > 0 else "behind"
        found.look(
            "clock",
            f"the store's is {format_duration(abs(skew_ms))} {ahead} this machine's, ±{error_ms} ms: set both by NTP. "
            "Leases are not affected, times that are shown are",
        )
    else:
        found.good("clock", f"{skew_ms:+d} ms, ±{error_ms} ms, from this machine's to the store's")
    took = f"{median_us / 1000:.1f} ms to connect and ask, median of {ROUND_TRIPS}"
    if median_us > SLOW_US_MIN:
        found.look("latency", f"{took}. Use TTLs of a minute or more, or a server that is nearer")
    else:
        found.good("latency", took)
    return wall_ms() + skew_ms


def _work(found: Findings, door: HttpDoor, now_ms: int) -> None:
    caller = door.whoami()
    if caller.status < 300 and caller.body is not None:
        look_at_own_token(found, caller.body, now_ms)
        if caller.body.get("role") == "admin":
            tokens = door.ask_tokens("tokens", "", "", {})
            look_at_tokens(found, (tokens.body or {}).get("tokens", []), now_ms)
    look_at_jobs(found, door, now_ms)


def check_one_store(found: Findings, stores: dict[str, str | None]) -> None:
    """Servers of two stores in one list would give one job to two owners."""
    known = {url: store for url, store in stores.items() if store is not None}
    if len(stores) < 2 or not known:
        return
    first, *others = known
    if strange := [url for url in others if known[url] != known[first]]:
        found.bad("one store", f"{strange[0]} serves another store than {first}: name servers of one store")
    elif len(known) == len(stores):
        found.good("one store", f"all {len(stores)} serve the same")


def _token(found: Findings, call: Call, address: ServerAddress) -> None:
    source = call.settings.token_source(address)
    if source is None and call.settings.is_system(address):
        found.good("token", "none needed: the kernel tells the service who the caller is")
        return
    if source is None:
        where = "" if address.is_local else " (the token of your own server is used on this machine only)"
        found.bad("token", f"none: set DIBS_TOKEN or DIBS_TOKEN_FILE{where}")
        return
    if source != "DIBS_TOKEN":
        try:
            mode = os.stat(source).st_mode & 0o777
        except OSError as error:
            found.bad("token", f"{source}: {error.strerror}")
            return
        if mode & 0o077:
            found.bad("token", f"{source} can be read by others. Run: chmod 600 {source}")
            return
    found.good("token", f"from {source}")
    if address.scheme == "http" and not address.is_local:
        found.good("privacy", "the token and the job names go over the network unencrypted; use https://")


def _allowed(found: Findings, door: HttpDoor) -> bool:
    reply = door.claimed("", "", 1)
    if reply.status < 300:
        found.good("allowed", "the token is accepted")
        return True
    found.bad("allowed", str((reply.body or {}).get("details")))
    return False
