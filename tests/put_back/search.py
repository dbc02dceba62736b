"""Looks for a fault in the code that this process imports, by walks or by the simulation. Exit code: FOUND or 0."""

from __future__ import annotations

import json
import sys
from typing import Any

from dibs.core.decide import CHECKS
from dibs.testing.decisions import check
from dibs.testing.simulated_clients import episodes
from dibs.testing.simulation import EpisodeSettings
from tests.core.test_swarm import judge_all
from tests.put_back.workshop import FOUND, WALKS


def is_found_by_walks() -> bool:
    CHECKS.append(check)
    try:
        judge_all()
    except Exception as error:
        print(repr(error)[:2_000])
        return True
    return False


def is_found_by_worlds(seed: str, operations: str, settings: str) -> bool:
    more: dict[str, Any] = json.loads(settings)
    without = frozenset(more.pop("without", ("older",)))
    for made in episodes(EpisodeSettings(seed, int(operations), without=without, **more)):
        if made.found is not None:
            print(made.found, made.settings.command())
            return True
    return False


if __name__ == "__main__":
    is_found = is_found_by_walks() if sys.argv[1] == WALKS else is_found_by_worlds(*sys.argv[2:])
    sys.exit(FOUND if is_found else 0)
