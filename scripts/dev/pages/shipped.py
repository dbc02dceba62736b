"""Makes src/dibs/base/shipped.py from the entry points in pyproject.toml.

DIBS_REWRITE=1 scripts/test tests/meta/test_rank.py
"""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILE = ROOT / "src" / "dibs" / "base" / "shipped.py"
GROUPS = ("dibs.commands", "dibs.routes", "dibs.parts")
_HEAD = '''\
"""The entry points of the plugins in dibs' own wheel, and what their commands do. Looked up by `base/plugins.py`.

Made from pyproject.toml: DIBS_REWRITE=1 scripts/test tests/meta/test_rank.py
"""

from __future__ import annotations

'''


def declared() -> dict[str, dict[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {group: project["entry-points"][group] for group in GROUPS}


def text() -> str:
    lines = [_HEAD, "ENTRY_POINTS = {\n"]
    for group, words in declared().items():
        lines += [f'    "{group}": {{\n', *(f'        "{word}": "{target}",\n' for word, target in words.items())]
        lines += ["    },\n"]
    lines += ["}\n", "SUMMARIES = {\n"]
    lines += [f'    "{name}": "{summary}",\n' for name, summary in _summaries().items()]
    return "".join([*lines, "}\n"])


def _summaries() -> dict[str, str]:
    found = {}
    for word, target in declared()["dibs.commands"].items():
        module, _, attribute = target.partition(":")
        name = word.replace(".", " ")
        found[name] = getattr(import_module(module), attribute)[name].summary
    return found


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
