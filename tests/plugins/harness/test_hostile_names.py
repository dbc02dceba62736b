"""Files that no one would name so, and spellings of one file, are claimed like any other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.agents.repository.file_paths import nameable
from dibs.core.limits import NAME_BYTES_MAX
from dibs.core.names import check_name

if TYPE_CHECKING:
    from tests.plugins.harness.conftest import Yard

HOSTILE = [
    "line\nbreak",
    "quote\"'`$(x)",
    "-rf",
    "blank at the end ",
    " blank at the beginning",
    "tab\tand\x1b[2Jescape",
    "\udcff\udcfe",  # bytes that are no text
    "right\u202eleft",
    "~~~",
    "long" + "g" * 250,
]


@pytest.mark.promise("agent:guard")
def test_a_file_with_a_hostile_name_is_refused_to_the_second_agent(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    for name in HOSTILE:
        assert one.edit(f"src/{name}"), ascii(name)
        assert one.edit(f"src/{name}"), ascii(name)
        assert not two.edit(f"src/{name}"), ascii(name)
    assert two.edit("src/a")
    for name in HOSTILE:
        (yard.folder / "src" / name).write_bytes(b"changed\n")
    one.send(one.document("Stop"))
    for name in HOSTILE:
        assert not two.edit(f"src/{name}"), ascii(name)
        (yard.folder / "src" / name).unlink()
    one.send(one.document("Stop"))
    for name in HOSTILE:
        assert two.edit(f"src/{name}"), ascii(name)


def test_a_claimed_folder_covers_what_cannot_be_named(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.shell("rm -rf src")
    assert not two.edit("src/line\nbreak")


def test_any_path_can_be_named_and_stays_below_its_folder() -> None:
    for path in (*HOSTILE, "d" * 200 + "/" + "e" * 200 + "/" + "f" * 200, "\ud800/x", "a/ b/c\n/d"):
        named = nameable(path)
        check_name(f"path:@000000000000/{named}")
        assert len(named.encode()) < NAME_BYTES_MAX
        assert nameable(named) == named
        if not path.startswith(named):
            assert nameable(path + "!") != named
    assert nameable("src/a.py") == "src/a.py"
    assert nameable("src/line\nbreak").startswith("src/~")


def test_an_edit_through_a_link_is_an_edit_of_the_file_behind_it(yard: Yard) -> None:
    (yard.folder / "link").symlink_to("src/a")
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("link")
    assert not two.edit("src/a")
    assert not two.edit("link")
    assert two.edit("src/b")


@pytest.fixture
def folding(yard: Yard) -> Yard:
    """A checkout in which dibs finds both `.git` and `.GIT`, as where the file system folds case. Here the second is a
    link, and two spellings of a file are two files: few kernels have a file system that folds."""
    os.symlink(".git", yard.folder / ".GIT")
    (yard.folder / ".git" / "info" / "exclude").write_text(".GIT\n")
    return yard


def test_spellings_of_a_file_that_does_not_exist_yet_are_one_where_the_file_system_folds(
    folding: Yard,
) -> None:
    one, two = folding.agent("one-1111"), folding.agent("two-2222")
    assert one.edit("src/New.ts")
    assert not two.edit("src/new.ts")
    assert not two.edit("SRC/NEW.TS")
    assert one.edit("src/Caf\u00e9")
    assert not two.edit("src/cafe\u0301")
    assert two.edit("src/other")


def test_spellings_of_a_file_on_disk_are_one_and_it_is_let_go_by_its_own_name(folding: Yard) -> None:
    (folding.folder / "src" / "README").write_text("x\n")
    folding.git("add", "-A")
    folding.git("commit", "-qm", "readme")
    one, two = folding.agent("one-1111"), folding.agent("two-2222")
    assert one.edit("src/readme")
    assert not two.edit("src/README")
    assert "src/README" in one.tell("SessionStart", source="compact")
    (folding.folder / "src" / "README").write_text("changed\n")
    one.send(one.document("Stop"))
    assert not two.edit("src/Readme")
    folding.git("commit", "-qam", "done")
    one.send(one.document("Stop"))
    assert two.edit("src/Readme")


def test_spellings_of_the_checkout_itself_are_one(folding: Yard) -> None:
    os.symlink(folding.folder, folding.folder.parent / "APP")
    one, two = folding.agent("one-1111"), folding.agent("two-2222", folder=folding.folder.parent / "APP")
    assert one.edit("src/a")
    assert not two.edit("src/A")


def test_where_the_file_system_tells_case_apart_so_do_claims(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/New.ts")
    assert two.edit("src/new.ts")
