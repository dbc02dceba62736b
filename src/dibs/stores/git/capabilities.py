"""What a store on git can do, and what it cannot."""

from __future__ import annotations

from dibs.stores.port import Capabilities

_NO_ORDER = "number the events of different jobs in one order: every claim would have to wait for every other"
_NO_CREDIT = "give credit for an outage: there is no server to notice one"
_CLOCK = (
    "each machine's own; a record's age counts from its first sight, or by the remote's clock less 15 minutes"
)

LOCAL = Capabilities(
    name="git",
    clock=_CLOCK,
    reach="host",
    watch="polling",
    durable=True,
    one_log=False,
    gapless=False,
    serves=False,
    poll_ms=200,
    cannot=(_NO_ORDER, _NO_CREDIT, "be used by a server: SQLite is far faster"),
)
REMOTE = LOCAL.replace(
    name="git remote",
    reach="network",
    poll_ms=5_000,
    cannot=(
        _NO_ORDER,
        _NO_CREDIT,
        "hand a job over within a second: waiters look every 5 seconds (every second on a `file://` remote)",
        "be used by a server: its beats would be several pushes a second",
        "be more durable than the remote's own git",
    ),
)
