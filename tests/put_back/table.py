"""All faults that are put back, by layer."""

from __future__ import annotations

from tests.put_back import agents, clients, commands, core, engine, judges, server, stores

LAYERS = (core, engine, stores, server, clients, commands, agents, judges)
FAULTS = {fault.id: fault for layer in LAYERS for fault in layer.FAULTS}
