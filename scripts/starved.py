"""Prints the tests that failed beside others, and whether `tests/starved.txt` excuses each. 1 if it does not.

python scripts/starved.py FILE, a file of pytest's cache with the tests that failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LIST = Path(__file__).parents[1] / "tests" / "starved.txt"


def excuses() -> dict[str, str]:
    """Return the reasons, by how the ids of their tests begin."""
    lines = [
        line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    ]
    return dict(line.split(maxsplit=1) for line in lines)


def main(path: str) -> int:
    known, strict = excuses(), 0
    for name in json.loads(Path(path).read_text(encoding="utf-8")):
        reason = next((known[begin] for begin in known if name.startswith(begin)), None)
        strict += reason is None
        print(
            f"  {name}\n      {reason or 'NOT EXCUSED: look for a race, or give it a line in tests/starved.txt'}"
        )
    return 1 if strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
