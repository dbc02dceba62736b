"""Checks of a store that this machine opens itself."""

from __future__ import annotations

import os

from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError
from dibs.base.redact import without_secrets
from dibs.cli.doctor.work import look_at_jobs, look_at_tokens
from dibs.core.durations import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.doctor.findings import Findings
    from dibs.cli.framework.context import Call
    from dibs.client.embedded import EmbeddedDoor

    Document = dict[str, Any]

FREE_BYTES_MIN = 64 * 1024 * 1024
SKEW_MS_MAX = 5_000


def check_store(found: Findings, call: Call) -> None:
    from dibs.client import store_admin
    from dibs.client.embedded import EmbeddedDoor

    source = call.settings.source("url", "DIBS_URL")
    source = "your own store" if source == "the default" else source
    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        return
    url = call.settings.url or _default_url()
    found.good("store", f"{without_secrets(url)} ({source})")
    try:
        facts = store_admin.facts(door.store())
    except DibsError as error:
        found.bad("open", error.details)
        return
    schema = f", schema {facts['format']}" if facts["format"] else ""
    found.good("open", f"{facts['kind']}{schema}, {_size(facts['size_bytes'])}")
    _clock(found, facts)
    _disk(found, facts["path"])
    _counts(found, door)
    look_at_jobs(found, door, facts["now_ms"])
    tokens = door.ask_tokens("tokens", "", "", {})
    look_at_tokens(found, (tokens.body or {}).get("tokens", []), facts["now_ms"])
    if why := store_admin.frozen(door.store()):
        found.bad("frozen", why)
    try:
        probed = store_admin.probe(door.store())
    except DibsError as error:
        found.bad("write", error.details)
        return
    if probed:
        found.checks += probed
    else:
        _writable(found, door)


def _default_url() -> str:
    from dibs.client.embedded import default_store_url

    return default_store_url()


def _clock(found: Findings, facts: Document) -> None:
    skew_ms = facts["now_ms"] - wall_ms()
    direction = "ahead of" if skew_ms > 0 else "behind"
    apart = f"{format_duration(abs(skew_ms))} {direction}" if abs(skew_ms) >= 1000 else "in step with"
    says = f"{facts['clock']}; {apart} the wall clock"
    # Not a fault: leases are measured on the store's clock. But the times shown will look odd.
    if abs(skew_ms) > SKEW_MS_MAX:
        says += " (the wall clock was changed since the boot; leases are not affected)"
    found.good("clock", says)


def _writable(found: Findings, door: EmbeddedDoor) -> None:
    from dibs.client.store_admin import try_write

    try:
        try_write(door.store())
    except DibsError as error:
        found.bad("write", error.details)
    else:
        found.good("write", "can be written")


def _counts(found: Findings, door: EmbeddedDoor) -> None:
    """Whether what principals with a limit have is counted right."""
    from dibs.client import store_admin

    wrong = store_admin.miscounted(door.store())
    if wrong:
        found.bad("limits", f"what {', '.join(wrong[:5])} may have is counted wrong. Run: dibs gc")


def _disk(found: Findings, path: str | None) -> None:
    if path is None:
        return
    status = os.statvfs(os.path.dirname(path))
    free = status.f_bavail * status.f_frsize
    if free < FREE_BYTES_MIN:
        found.bad("disk", f"only {_size(free)} free in {os.path.dirname(path)}: make room")
    else:
        found.good("disk", f"{_size(free)} free")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
