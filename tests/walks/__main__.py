"""`python -m tests.walks rules engine` prints these walks, a step a line as JSON: for `scripts/dev/compare`."""

from __future__ import annotations

import json
import logging
import sys
from importlib import import_module

KINDS = ("rules", "swarm", "engine", "statements", "references")


def main(kinds: list[str]) -> None:
    logging.disable()
    for kind in kinds or KINDS:
        module = import_module(f"tests.walks.{kind}")
        for name in module.WALKS:
            for step in module.walked(name):
                print(json.dumps([kind, name, *step]))


if __name__ == "__main__":
    main(sys.argv[1:])
