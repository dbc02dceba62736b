"""Parts of Python's library without the rest: where they are missing dibs works all the same."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PATHS = [path for path in sys.path if path]
SOURCE = Path(__file__).parents[2] / "src/dibs"
PRIVATE = ("_json", "_sqlite3", "_signal", "_socket", "_weakref", "_blake2", "_functools")
DOCUMENTED = ("_thread",)  # Python's documentation has it

# The public modules first: they are made of the private ones.
HIDDEN = f"""
import hashlib, json, signal, socket, sqlite3, weakref
for name in {PRIVATE}:
    sys.modules[name] = None
"""
CLAIMS = """
from dibs.cli.main import run
from dibs.base import cheap
print(run(sys.argv[1:], __import__("os").environ, sys.stdout, sys.stderr, sys.stdin.buffer))
assert (cheap.sqlite3, cheap.signal) == (sqlite3, signal), "the public ones"
"""


def ran(script: str, *words: str, **env: str) -> str:
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {PATHS!r}\n{script}", *words]
    env = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.stderr == ""
    return done.stdout


def test_a_python_without_its_private_modules_claims_and_lists(tmp_path: Path) -> None:
    said = ran(HIDDEN + CLAIMS, "claim", "job", "--owner", "ann", "-q", XDG_STATE_HOME=str(tmp_path))
    assert said.endswith("\n0\n")
    assert "ann" in ran(HIDDEN + CLAIMS, "list", XDG_STATE_HOME=str(tmp_path))


def test_a_python_without_its_private_modules_has_all_parts() -> None:
    script = """
from dibs.base import cheap, ids, jsontext
from dibs.client import connection
from dibs.cli.supervise import background_heartbeat, child, guardian, second_guardian
print(cheap.socket is socket, cheap.ref is weakref.ref, cheap.blake2b is hashlib.blake2b)
print(jsontext.decode(jsontext.encode({"a": [1, None]})), len(ids.digest("x")))
"""
    assert ran(HIDDEN + script) == "True True True\n{'a': [1, None]} 32\n"


def test_a_name_for_annotations_cannot_be_taken_for_the_class_by_mistake() -> None:
    script = """
from dibs.base.cheap import Any, Callable, Mapping
print(dict[str, Any] | None, "typing" in sys.modules, "collections" in sys.modules)
Callable[[str], int] | None  # an alias can be made of it
try:
    isinstance({}, Mapping)
except TypeError as error:
    print(error)
"""
    told = "names of base/cheap.py are for annotations; import the real one"
    assert ran(script) == f"dict[str, dibs.base.cheap._Name] | None False False\n{told}\n"


ALONE = """
from dibs.base import cheap
driver = cheap.sqlite3
print("functools" in sys.modules)
import functools, sqlite3
print(functools.partial(int, "7")(), sqlite3.connect is driver.connect)
db = driver.connect(":memory:", cached_statements=2)
print([db.execute(f"SELECT {n}").fetchone()[0] for n in (1, 2, 3, 1, 2, 3)])
"""

WITH_THREADS = """
import threading
import functools as before
from dibs.base.cheap import sqlite3
print(sys.modules["functools"] is before)
"""

ANOTHER_PYTHON = """
import _functools
del _functools._lru_cache_wrapper  # a Python that does not have it
from dibs.base.cheap import sqlite3
print(sqlite3.connect(":memory:").execute("SELECT 1").fetchone())
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (ALONE, "False\n7 True\n[1, 2, 3, 1, 2, 3]\n"),
        (WITH_THREADS, "True\n"),
        (ANOTHER_PYTHON, "(1,)\n"),
    ],
    ids=["alone", "with threads", "another Python"],
)
def test_importing_the_driver_of_sqlite_leaves_functools_as_it_is(script: str, said: str) -> None:
    assert ran(script) == said


def imported(path: Path) -> set[str]:
    """The modules that a file imports when it runs, without what it imports for the type checker."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found}


def test_private_modules_of_python_are_imported_in_one_file() -> None:
    private = sys.stdlib_module_names - set(DOCUMENTED) - {"__future__"}
    users = {  # only a few files are parsed: all of them take seconds
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\b(import|from) _[a-z]", path.read_text(encoding="utf-8"))
        and any(name.startswith("_") and name in private for name in imported(path))
    }
    assert users == {"base/cheap.py"}
