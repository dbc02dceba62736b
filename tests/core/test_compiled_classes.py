"""Which classes are machine code in the compiled build, which may be referred to weakly, and how records end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native.classes import mark_classes, module_of, python_classes

RULES = """
from abc import ABC
from pack.plain import Thing
from typing import Protocol

class Alone: ...
class Below(Alone): ...
class Failed(Exception): ...
class OfAnother(Thing): ...
class Port(ABC): ...
class Extra: ...
class Both(Port, Extra): ...
class Shape(Protocol): ...
"""
OTHERS = """
from pack.rules import Alone, Extra, Port as Door

class Further(Alone): ...
class Open(Door): ...
class Batcher: ...
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.chdir(tmp_path)
    package = Path("pack")
    package.mkdir()
    (package / "rules.py").write_text(RULES)
    (package / "others.py").write_text(OTHERS)
    found = python_classes(package, {"pack/rules.py", "pack/others.py"})
    return {".".join(name) for name in found}


def test_a_class_whose_bases_are_compiled_is_machine_code(python: set[str]) -> None:
    assert python.isdisjoint({"pack.rules.Alone", "pack.rules.Below", "pack.rules.Shape", "pack.others.Further"})


@pytest.mark.fault("F-595")
def test_a_class_with_a_base_that_is_not_compiled_stays_one_of_python_and_so_do_its_other_bases(
    python: set[str],
) -> None:
    assert python == {
        "pack.rules.Failed",
        "pack.rules.OfAnother",
        "pack.rules.Port",
        "pack.rules.Both",
        "pack.rules.Extra",
        "pack.others.Open",
    }


def test_a_class_is_marked_for_the_compiler() -> None:
    source = "class A: ...\nclass Batcher: ...\nclass C: ...\n"
    open_mark, python_mark = "@mypyc_attr(allow_interpreted_subclasses=True)\n", "@(lambda made: made)\n"
    assert mark_classes("m", source, {("m", "C")}) == (
        f"class A: ...\n{open_mark}class Batcher: ...\n{python_mark}class C: ...\n"
    )


def test_a_module_has_the_name_of_its_path() -> None:
    assert module_of(Path("a/dibs"), Path("a/dibs/core/names.py")) == "dibs.core.names"


# In a process of its own, because it died.
WEAKLY = """
import gc, weakref
from dibs.engine.coordinator import Contended
from dibs.engine.metrics import RequestsByVerb
from dibs.server.http.response import HttpError
from dibs.stores.port import Busy, Conflict, RecordCorrupt
from dibs.stores.sqlite import SqliteStore

def made():
    return [Conflict(), Busy("busy"), RecordCorrupt("bad", "key"), Contended("busy"), HttpError("no", 400),
        RequestsByVerb(), SqliteStore(PATH)]

told, refs = [], []
for _ in range(20):
    for each in made():
        refs.append(weakref.ref(each, told.append))
        if isinstance(each, SqliteStore):
            each.close()
    del each
gc.collect()
print(len(refs), len(told))
"""


@pytest.mark.fault("F-595")
def test_what_is_referred_to_weakly_may_end(tmp_path: Path) -> None:
    code = WEAKLY.replace("PATH", repr(str(tmp_path / "dibs.db")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "140 140\n"), done.stderr


# CPython defers what nests deeper than fifty deallocations, and this allocator looks at what lies around each object.
ENDS_DEEP = """
from dibs.core.records import Outage

for depth in range(120):
    nest = Outage(began_ms=1, ended_ms=2)
    for _ in range(depth):
        nest = (nest,)
    del nest
"""


@pytest.mark.fault("F-797")
def test_a_record_that_ends_deep_in_others_leaves_the_memory_around_it_alone() -> None:
    env = {**os.environ, "PYTHONMALLOC": "debug"}
    done = subprocess.run(
        [sys.executable, "-c", ENDS_DEEP], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
