"""The skill: well formed, short, shipped, and every command it shows works."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs._version import __version__
from dibs.agents.shipped_files import FILE, skill_text
from dibs.cli.framework.actor_session import PLACEHOLDER
from dibs.cli.main import run
from dibs.core.names import check_name
from tests.docs.pages import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
SKILL = ROOT / "skills" / "dibs"
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
COMMANDS = [block.text for block in blocks(skill_text()) if block.info == "sh"]


def typed(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    return run(list(words), os.environ, out, err, None), out.getvalue(), err.getvalue()


def test_the_skill_is_valid_by_the_rules_of_the_format() -> None:
    words = [sys.executable, "-m", "skills_ref.cli", "validate", str(SKILL)]  # what `agentskills` runs
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    assert "Valid skill" in done.stdout


def test_it_is_short_enough_to_be_read_whole() -> None:
    assert len(skill_text().splitlines()) < 150


def test_the_folder_that_people_copy_holds_the_file_itself_as_the_package_has_it() -> None:
    file = SKILL / FILE
    if REWRITE:
        file.write_text(skill_text())
    assert not file.is_symlink()
    assert file.read_text() == skill_text()


def test_two_agents_that_copy_an_example_do_not_become_one(tmp_path: Path) -> None:
    assert f"--actor {PLACEHOLDER}" in skill_text()
    code, _, err = typed("claim", "issue-1", "--actor", PLACEHOLDER, "--url", f"sqlite:{tmp_path}/s.db")
    assert code == 64
    assert "no other agent has" in err


@pytest.mark.e2e
@pytest.mark.parametrize("commands", COMMANDS, ids=range(len(COMMANDS)))
def test_every_command_that_it_shows_works(
    commands: str, env: dict[str, str], tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    bash = need_program("bash")
    done = subprocess.run(
        [bash, "-euo", "pipefail", "-c", commands.replace(PLACEHOLDER, "5e0c31a9")],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done


def test_every_command_is_shown_in_a_block_that_is_run() -> None:
    kinds = {block.info for block in blocks(skill_text())}
    assert kinds == {"sh"}
    assert len(COMMANDS) >= 8


def test_the_names_that_it_gives_as_examples_are_names() -> None:
    for name in ("issue-1842", "github://acme/app/issues/42", "path:src/auth.rs", "deploy:production"):
        assert name in skill_text()
        assert check_name(name) == name


def test_it_can_be_shown() -> None:
    code, out, _ = typed("skill", "show")
    assert (code, out.strip()) == (0, skill_text().strip())


def test_it_is_installed_once_and_a_changed_file_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    path = folder / "dibs" / FILE
    code, out, _ = typed("skill", "install", "--to", str(folder))
    assert (code, out) == (0, f"Installed {path}.\n")
    assert path.read_text() == skill_text()
    assert os.listdir(path.parent) == [FILE]
    assert typed("skill", "install", "--to", str(folder))[1] == f"{path} is up to date: nothing was changed.\n"
    path.write_text("mine")
    code, _, err = typed("skill", "install", "--to", str(folder))
    assert code == 64
    assert "--force" in err
    assert path.read_text() == "mine"
    code, out, _ = typed("skill", "install", "--to", str(folder), "--force")
    assert (code, out) == (0, f"Replaced {path}, which was another version.\n")
    assert path.read_text() == skill_text()


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ([], [".claude"]),
        ([".claude"], [".claude"]),
        ([".agents"], [".agents"]),
        ([".agents", ".claude"], [".claude", ".agents"]),
    ],
)
def test_without_a_folder_it_goes_to_the_clients_that_the_project_has(
    there: list[str], wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in there:
        (tmp_path / name).mkdir()
    assert typed("skill", "install")[0] == 0
    found = [name for name in (".claude", ".agents") if (tmp_path / name / "skills" / "dibs" / FILE).is_file()]
    assert found == wanted


def test_where_one_of_two_files_was_changed_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".claude").mkdir()
    changed = tmp_path / ".agents" / "skills" / "dibs" / FILE
    changed.parent.mkdir(parents=True)
    changed.write_text("mine")
    assert typed("skill", "install")[0] == 64
    assert os.listdir(tmp_path / ".claude") == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = typed("skill", "install", "--to", str(tmp_path / "file"))
    assert code == 64
    assert "cannot be read" in err


@pytest.mark.e2e
def test_the_wheel_has_the_skill_in_it(tmp_path: Path) -> None:
    script = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    env = {**os.environ, "DIBS_COMPILE": "0"}
    built = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    with zipfile.ZipFile(tmp_path / built.stdout.split()[-1]) as wheel:
        assert wheel.read(f"dibs/agents/skill/{FILE}").decode() == skill_text()


def test_it_says_which_version_it_is_and_which_dibs_it_fits() -> None:
    found = dict(re.findall(r'^  (\w+): "(.+)"$', skill_text().split("---")[1], re.MULTILINE))
    release = ".".join(__version__.split(".")[:2])
    assert found == {"version": release, "dibs": f">={release},<1"}
    assert f"version {release} or later" in skill_text()


def test_every_text_that_was_shipped_is_known(need_program: Callable[[str], str]) -> None:
    git = need_program("git")
    table = (ROOT / "src/dibs/agents/shipped_files.txt").read_text()
    paths = ("src/dibs/agents/skill/SKILL.md", "src/dibs/agents/harness/opencode.js")
    for path in paths:
        log = subprocess.run(
            [git, "log", "--format=%H", "--", path], cwd=ROOT, capture_output=True, text=True, check=False
        )
        for commit in log.stdout.split()[1:]:
            shown = subprocess.run([git, "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, check=False)
            if shown.returncode == 0:
                assert hashlib.sha256(shown.stdout).hexdigest() in table, (
                    f"{path} of {commit[:8]} is not in shipped_files.txt: add its digest"
                )
