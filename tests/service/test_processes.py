"""Processes as neighbours see them: marks, and who descends from whom."""

from __future__ import annotations

import os
import subprocess

from dibs.service.processes import is_gone, lineage, process_mark


def test_a_lineage_begins_with_the_process_and_goes_on_with_its_parent() -> None:
    found = lineage(os.getpid())
    assert found[0] == process_mark(os.getpid())
    if os.getppid() > 1:
        assert found[1] == process_mark(os.getppid())
    assert len(set(found)) == len(found)


def test_the_first_process_of_all_is_nobodys_ancestor() -> None:
    assert lineage(1) == [process_mark(1)]
    assert process_mark(1) not in lineage(os.getpid())[1:]
    assert lineage(0) == []


def test_a_process_that_has_ended_has_no_lineage_and_its_mark_is_gone() -> None:
    child = subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE)
    [mark, parent, *_] = lineage(child.pid)
    assert parent == process_mark(os.getpid())
    assert not is_gone(mark)
    child.communicate()
    assert is_gone(mark)
    assert lineage(child.pid) == []
