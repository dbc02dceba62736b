"""Files that dibs writes in a work tree, where a tracked link leads out of it: the file behind it stays as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dibs.agents.git import hook_files
from dibs.agents.git.hook_check import note_installed
from dibs.agents.repository.work_tree import Repository
from tests.cli.conftest import Ran, Terminal

pytestmark = [pytest.mark.fault("F-106"), pytest.mark.promise("repo:runs-nothing")]
KEYS = "ssh-ed25519 AAAA ann\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of the user that no repository may touch."""
    path = tmp_path / "home" / "authorized_keys"
    path.parent.mkdir()
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=60)
    subprocess.run(["git", "config", "core.hooksPath", ".githooks"], cwd=folder, check=True, timeout=60)
    monkeypatch.chdir(folder)
    return folder


def dibs(*words: str) -> Ran:
    terminal = Terminal()
    terminal.env = {**os.environ, "USER": "ann"}
    return terminal(*words)


def linked(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def is_untouched(outside: Path) -> bool:
    return (outside.read_text(), outside.stat().st_mode & 0o777) == (KEYS, 0o600)


@pytest.mark.parametrize("name", ["pre-commit.dibs-new", "pre-commit", "pre-push", "pre-commit.before-dibs"])
def test_hooks_are_not_written_through_a_tracked_link(top: Path, outside: Path, name: str) -> None:
    linked(top / ".githooks" / name, outside)
    dibs("hook", "install")
    assert is_untouched(outside)
    dibs("hook", "uninstall")
    assert is_untouched(outside)


def test_a_hooks_folder_that_leads_out_is_refused(top: Path, outside: Path) -> None:
    linked(top / ".githooks", outside.parent)
    assert dibs("hook", "install").exit == 64
    assert os.listdir(outside.parent) == [outside.name]


def test_a_hook_that_cannot_be_written_leaves_the_earlier_one_in_place(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = top / ".githooks"
    folder.mkdir()
    (folder / "pre-commit").write_text("#!/bin/sh\nexit 3\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(hook_files, "replace_file", full)
    assert dibs("hook", "install").exit == 64
    assert os.listdir(folder) == ["pre-commit"]


def test_the_note_of_installed_hooks_is_not_written_through_a_link(top: Path, outside: Path) -> None:
    linked(top / ".git" / "dibs" / "hooks-installed", outside)
    note_installed(Repository.at(dict(os.environ), str(top)), "/x")
    assert is_untouched(outside)


@pytest.mark.parametrize("name", [".claude/settings.json", ".mcp.json", ".claude"])
def test_the_files_of_agents_are_not_written_through_a_link_that_leads_out(top: Path, outside: Path, name: str) -> None:
    new = outside.parent / "new.json"
    linked(top / name, outside.parent if name == ".claude" else new)
    done = dibs("agent", "install", "--client", "claude")
    assert done.exit == 64
    assert "leads out" in done.err
    assert os.listdir(outside.parent) == [outside.name]


def test_uninstalling_deletes_no_file_behind_a_link_that_leads_out(top: Path, outside: Path) -> None:
    assert dibs("agent", "install", "--client", "claude").exit == 0
    path = top / ".mcp.json"
    away = outside.parent / "mcp.json"
    path.rename(away)
    path.symlink_to(away)
    text = away.read_text()
    assert dibs("agent", "uninstall", "--client", "claude").exit == 64
    assert away.read_text() == text


def test_the_users_own_files_may_be_links(top: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(outside.parent))
    linked(outside.parent / ".claude" / "settings.json", outside.parent.parent / "kept.json")
    assert dibs("agent", "install", "--client", "claude", "--user").exit == 0
    assert (outside.parent.parent / "kept.json").exists()


@pytest.mark.parametrize("name", [".claude/skills", ".claude/skills/dibs", ".claude"])
def test_the_skill_is_not_written_through_a_link_that_leads_out(top: Path, outside: Path, name: str) -> None:
    linked(top / name, outside.parent)
    done = dibs("skill", "install")
    assert done.exit == 64
    assert "leads out" in done.err
    assert os.listdir(outside.parent) == [outside.name]


def test_a_link_within_the_work_tree_is_followed(top: Path) -> None:
    (top / "shared").mkdir()
    linked(top / ".claude", top / "shared")
    assert dibs("skill", "install").exit == 0
    assert (top / "shared" / "skills" / "dibs" / "SKILL.md").exists()
