"""What a store on PostgreSQL can do. Declared here, where nothing of PostgreSQL is imported."""

from __future__ import annotations

from dibs.stores.port import Capabilities

CAPABILITIES = Capabilities(
    name="postgresql",
    clock="the database's wall clock, corrected when it is stepped forward, and never running backwards",
    reach="network",
    watch="native",
    durable=True,
    cannot=(
        "wake waiters at once behind pgbouncer without a direct address to listen at: they look every 100 ms then",
    ),
)
