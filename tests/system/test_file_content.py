"""Reading a file that may be anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.base.files import content

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_read_up_to_a_number_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert content(str(tmp_path / "file")) == b"12345"
    assert content(str(tmp_path / "file"), 3) == b"123"
    assert content(str(tmp_path / "none")) is None


@pytest.mark.fault("F-661")
@pytest.mark.linux("open files are counted in /proc")
def test_what_is_no_ordinary_file_is_not_read_and_not_left_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        assert content(str(tmp_path)) is None
        assert content(str(tmp_path / "pipe")) is None
    assert len(os.listdir("/proc/self/fd")) == len(before)
