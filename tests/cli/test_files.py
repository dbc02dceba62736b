"""Files that are written as a whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.base.files import SHARED, replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_the_new_text_takes_the_place_of_the_old_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("a longer text that was there before")
    replace_file(str(path), "new\n", durable=True)
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["note"]


def test_a_shared_file_has_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(str(tmp_path / "note"), "", mode=SHARED)
    finally:
        os.umask(before)
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("fails", ["replace", "fsync"])
def test_what_cannot_be_put_in_place_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "note"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match="No space"):
        replace_file(str(path), "new", durable=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["note"]
