"""The driver is imported with a stand-in for functools. What comes after it must not notice."""

from __future__ import annotations

import subprocess
import sys

import pytest

PATHS = [path for path in sys.path if path]

ALONE = """
import dibs.stores.sqlite.driver as driver
print("functools" in sys.modules)
import functools, sqlite3
print(functools.partial(int, "7")(), sqlite3.connect is driver.sqlite3.connect)
db = driver.sqlite3.connect(":memory:", cached_statements=2)
print([db.execute(f"SELECT {n}").fetchone()[0] for n in (1, 2, 3, 1, 2, 3)])
"""

WITH_THREADS = """
import threading
import functools as before
import dibs.stores.sqlite.driver
print(sys.modules["functools"] is before)
"""

ANOTHER_PYTHON = """
import _functools
del _functools._lru_cache_wrapper  # a Python that does not have it
import dibs.stores.sqlite.driver as driver
print(driver.sqlite3.connect(":memory:").execute("SELECT 1").fetchone())
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
def test_importing_the_driver_leaves_functools_as_it_is(script: str, said: str) -> None:
    words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {PATHS!r}\n{script}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == (said, "")
