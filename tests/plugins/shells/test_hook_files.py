"""Hooks beside those that are there: nothing is lost, nothing is overwritten, and all is put back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dibs.agents.git.hook_files import STASH, script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.shells.conftest import Clone, Shells

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture
def bare_clone(shells: Shells) -> Clone:
    """Without hooks."""
    from tests.plugins.shells.conftest import Clone

    made = Clone(shells, shells.home)
    made.must("git init -q")
    return made


def hook(clone: Clone, name: str, script: str, mode: int = 0o755) -> Path:
    path = clone.folder / ".git" / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


def files(clone: Clone) -> set[str]:
    folder = clone.folder / ".git" / "hooks"
    return {file.name for file in folder.iterdir() if file.suffix != ".sample"}


def test_both_hooks_are_put_in_place_and_taken_away(bare_clone: Clone) -> None:
    ran = bare_clone.must("dibs hook install --json")
    assert ran.data["hooks"] == {"pre-commit": "made", "pre-push": "made", STASH: "made"}
    assert ran.data["policy"] == "warn"
    assert all(file.stat().st_mode & 0o111 for file in (bare_clone.folder / ".git" / "hooks").glob("pre-[cp]*[ht]"))
    assert bare_clone.must("dibs hook install --json").data["hooks"]["pre-push"] == "renewed"
    assert files(bare_clone) == {"pre-commit", "pre-push", STASH}
    assert bare_clone.must("dibs hook uninstall --json").data["hooks"]["pre-commit"] == "removed"
    assert files(bare_clone) == set()
    assert bare_clone.must("dibs hook uninstall --json").data["hooks"]["pre-commit"] == "none"


def test_a_hook_that_is_there_runs_first_and_comes_back_as_it_was(bare_clone: Clone) -> None:
    old = hook(bare_clone, "pre-commit", "echo old >&2; echo x > made; git add made", 0o750)
    before = old.read_text()
    assert bare_clone.must("dibs hook install --json").data["hooks"]["pre-commit"] == "chained"
    bare_clone.must("git config dibs.policy require")
    bare_clone.held_by_another("path:made")
    bare_clone.stage("a")
    ran = bare_clone.sh("git commit -qm one")
    assert ran.exit == 1
    assert ran.err.startswith("old\n")
    assert "agent-7 has path:made" in ran.err  # what the first hook staged is seen
    assert bare_clone.must("dibs hook uninstall --json").data["hooks"]["pre-commit"] == "restored"
    assert files(bare_clone) == {"pre-commit"}
    assert (old.read_text(), old.stat().st_mode & 0o777) == (before, 0o750)


def test_a_hook_that_fails_stops_the_commit_with_its_own_code(bare_clone: Clone) -> None:
    hook(bare_clone, "pre-commit", "exit 3")
    bare_clone.must("dibs hook install")
    assert bare_clone.sh(".git/hooks/pre-commit").exit == 3


def test_a_hook_that_was_switched_off_stays_so(bare_clone: Clone) -> None:
    old = hook(bare_clone, "pre-commit", "echo never >&2", 0o644)
    bare_clone.must("dibs hook install")
    bare_clone.stage("a")
    assert "never" not in bare_clone.must("git commit -qm one").err
    bare_clone.must("dibs hook uninstall")
    assert old.stat().st_mode & 0o777 == 0o644


def test_both_pre_push_hooks_read_what_git_writes(bare_clone: Clone) -> None:
    hook(bare_clone, "pre-push", 'cat > lines; echo "$@" > words')
    bare_clone.must("dibs hook install\ngit config dibs.policy require\ngit init -q --bare ../remote.git")
    bare_clone.stage("src/a")
    bare_clone.must("git commit -qm one\ngit remote add origin ../remote.git")
    bare_clone.held_by_another("path:src")
    ran = bare_clone.sh("git push -q origin main")
    assert ran.exit != 0
    assert "agent-7 has path:src" in ran.err
    assert (bare_clone.folder / "lines").read_text().startswith("refs/heads/main ")
    assert (bare_clone.folder / "words").read_text() == "origin ../remote.git\n"


def test_a_hooks_path_inside_the_repository_is_honoured(bare_clone: Clone) -> None:
    bare_clone.must("mkdir -p sub .githooks && git config core.hooksPath .githooks && cd sub && dibs hook install")
    made = (bare_clone.folder / ".githooks" / "pre-commit").read_text()
    assert "\ndibs_program=dibs\n" in made  # it may be tracked: no path of this machine
    assert files(bare_clone) == set()
    bare_clone.must("git config dibs.policy require")
    bare_clone.held_by_another("path:a")
    bare_clone.stage("a")
    assert bare_clone.sh("git commit -qm one").exit == 1


@pytest.mark.fault("F-753")
def test_a_hook_of_a_dibs_that_is_no_program_of_the_path_imports_nothing_from_the_work_tree(bare_clone: Clone) -> None:
    (bare_clone.shells.bin / "dibs").unlink()
    bare_clone.must(f"{sys.executable} -m dibs hook install && git config dibs.policy require")
    bare_clone.write("dibs/__init__.py", "raise SystemExit('not dibs')\n")
    bare_clone.stage("a")
    ran = bare_clone.sh("git commit -qm one")
    assert (ran.exit, "not dibs" in ran.err, "does not run here" in ran.err) == (0, False, False)


def test_a_hooks_path_outside_the_repository_is_refused(bare_clone: Clone) -> None:
    bare_clone.must("mkdir ../everybodys && git config core.hooksPath ../everybodys")
    ran = bare_clone.sh("dibs hook install")
    assert ran.exit == 64
    assert "outside of this repository" in ran.err
    assert 'dibs hook run pre-commit "$@"' in ran.err
    assert bare_clone.sh("ls ../everybodys").out == ""


def test_a_place_that_cannot_be_written_is_refused(bare_clone: Clone) -> None:
    bare_clone.write("file")
    bare_clone.must("git config core.hooksPath file")
    ran = bare_clone.sh("dibs hook install")
    assert ran.exit == 64
    assert "cannot be written" in ran.err


def test_a_program_that_goes_by_its_own_name_is_left_alone(bare_clone: Clone) -> None:
    old = hook(bare_clone, "pre-push", "")
    old.write_text("#!/usr/bin/env python3\nimport os, sys\nprint(os.path.basename(sys.argv[0]))\n")
    ran = bare_clone.sh("dibs hook install")
    assert ran.exit == 64
    assert 'Add `dibs hook run pre-push "$@"`' in ran.err
    assert files(bare_clone) == {old.name}


def test_what_somebody_wrote_into_our_hook_is_not_thrown_away(bare_clone: Clone) -> None:
    bare_clone.must("dibs hook install && echo 'echo more' >> .git/hooks/pre-commit")
    for word in ("install", "uninstall"):
        ran = bare_clone.sh(f"dibs hook {word}")
        assert ran.exit == 64
        assert "changed since" in ran.err
    assert files(bare_clone) == {"pre-commit", "pre-push", STASH}


def test_a_hook_put_over_ours_is_not_guessed_about(bare_clone: Clone) -> None:
    hook(bare_clone, "pre-commit", "echo first")
    bare_clone.must("dibs hook install")
    hook(bare_clone, "pre-commit", "echo third")
    ran = bare_clone.sh("dibs hook install")
    assert ran.exit == 64
    assert "another program" in ran.err
    bare_clone.must("dibs hook uninstall")
    assert files(bare_clone) == {"pre-commit", "pre-commit.before-dibs"}


def test_without_the_program_the_hook_says_so_and_follows_the_setting(bare_clone: Clone) -> None:
    bare_clone.must("dibs hook install")
    path = bare_clone.folder / ".git" / "hooks" / "pre-commit"
    path.write_text(script("pre-commit", "/nowhere/dibs"))
    (bare_clone.shells.bin / "dibs").unlink()
    bare_clone.stage("a")
    ran = bare_clone.sh("git commit -qm one")
    assert ran.exit == 0
    assert "does not run here" in ran.err
    bare_clone.stage("b")
    assert bare_clone.sh("git config dibs.unreachable block && git commit -qm two").exit == 1
    bare_clone.shells.program("dibs", "exit 1")  # there, and broken
    assert "does not run here" in bare_clone.sh("git commit -qm two").err


@pytest.mark.parametrize("words", ["hook install", "hook run pre-commit", "claim --staged"])
def test_outside_of_a_repository_that_is_said(shells: Shells, words: str) -> None:
    ran = shells(f"dibs {words}")
    assert ran.exit == 64
    assert "not inside the work tree of a git repository" in ran.err
