"""Finding everything that a process started."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from dibs.cli.supervise import survivors as lineage
from dibs.system import table
from dibs.system.processes import LinuxProcesses, ProcessTable
from dibs.system.ps_processes import PsProcesses

pytestmark = pytest.mark.full

TREE = "sh -c 'sleep 600 & echo $!; wait' & sleep 600 & echo $!; wait"


@pytest.mark.parametrize("seen", [table(), PsProcesses()], ids=["this system", "ps"])
def test_descendants_are_children_and_theirs(seen: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "table", lambda: seen)
    with subprocess.Popen(["/bin/sh", "-c", TREE], stdout=subprocess.PIPE, process_group=0) as child:
        assert child.stdout is not None
        said = {int(child.stdout.readline()) for _ in range(2)}
        found = lineage.descendants(child.pid)
        assert len(found) == 3
        assert said <= set(found)
        assert sorted(LinuxProcesses()._children_by_parent(child.pid)) == sorted(seen.children(child.pid))
        os.killpg(child.pid, 9)
    assert lineage.descendants(child.pid) == []


@pytest.mark.linux("only Linux lets a process adopt orphans")
def test_orphans_fall_to_who_adopts_them() -> None:
    program = (
        "import os, subprocess\n"
        "from dibs.cli.supervise.survivors import adopt_orphans, descendants\n"
        "assert adopt_orphans()\n"
        "script = 'setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $!'\n"
        "orphan = int(subprocess.run(['/bin/sh', '-c', script], stdout=subprocess.PIPE).stdout)\n"
        "print(descendants(os.getpid()) == [orphan])\n"
        "os.kill(orphan, 9)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, timeout=50, check=False)
    assert done.stdout == b"True\n", done.stderr


@pytest.mark.linux("prctl is of Linux")
def test_the_whole_of_ctypes_is_taken_where_its_inside_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_ctypes", object())  # as if it had none of what is needed
    monkeypatch.setattr(ctypes, "CDLL", lambda name: type("Library", (), {"prctl": lambda *words: words[1:]}))
    assert lineage._prctl(36, 1) is False  # it was asked, and what it gave is not 0
