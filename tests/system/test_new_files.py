"""New files: each is whole or not there, and what a killed process left of one is removed by the next."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.base.ids import new_id
from dibs.base.new_files import draft_beside, new_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_in_place_when_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    with new_file(str(path)) as draft:
        (tmp_path / draft).write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"
    assert os.listdir(tmp_path) == ["copy"]


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_file(str(tmp_path / "copy")):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("there", "says"), [("file", "is there already"), ("folder", "Name a file in it")])
def test_what_is_there_stays(there: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    path.touch() if there == "file" else path.mkdir()
    with pytest.raises(InvalidInput, match=says), new_file(str(path)):
        pass
    assert os.listdir(tmp_path) == ["copy"]


@pytest.mark.fault("F-742")
def test_what_a_killed_process_left_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    left = [f".copy.{new_id()}", f".other.{new_id()}", ".copy.original"]
    for name in left:
        (tmp_path / name).touch()
    (tmp_path / f"{left[0]}-wal").touch()
    with new_file(str(tmp_path / "copy")) as first, draft_beside(str(tmp_path / "copy")) as second:
        assert os.path.exists(first)
        assert os.path.exists(second)
    assert sorted(os.listdir(tmp_path)) == sorted([*left[1:], "copy"])
