"""The file that a command notes its progress in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.cli.supervise.process_session import CheckpointFile

if TYPE_CHECKING:
    from pathlib import Path


def test_only_what_is_new_is_news(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    notes = CheckpointFile(str(file))
    assert notes.news() is None
    file.write_text("page 3\n")
    assert notes.news() == "page 3"
    assert notes.news() == "page 3"  # it was not sent yet
    notes.sent("page 3")
    assert notes.news() is None
    file.write_text("page 4")
    assert notes.news() == "page 4"


def test_what_the_last_owner_left_is_no_news(tmp_path: Path) -> None:
    notes = CheckpointFile(str(tmp_path / "notes"))
    notes.fill("page 3")
    assert (tmp_path / "notes").read_text() == "page 3"
    assert notes.news() is None


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    notes = CheckpointFile(str(tmp_path / "notes"))
    notes.fill("theirs")
    assert (tmp_path / "notes").read_text() == "mine"
    assert notes.news() == "mine"


def test_without_anything_left_no_file_is_made(tmp_path: Path) -> None:
    CheckpointFile(str(tmp_path / "notes")).fill(None)
    assert not (tmp_path / "notes").exists()


@pytest.mark.parametrize(("content", "says"), [(b"x" * 4097, "4096 bytes"), (b"\xff", "not UTF-8")])
def test_what_is_no_checkpoint_is_not_sent_and_reported(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "notes"
    notes = CheckpointFile(str(file))
    file.write_bytes(content)
    assert notes.news() is None
    assert says in str(notes.trouble)
    file.write_text("better")
    assert notes.news() == "better"
    assert notes.trouble is None


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        CheckpointFile(str(tmp_path / "no" / "such")).fill("x")
