"""All faults that are put back, by layer."""

from __future__ import annotations

from tests.put_back import clients, commands, core, engine, server, stores

FAULTS = {fault.id: fault for layer in (core, engine, stores, server, clients, commands) for fault in layer.FAULTS}
