"""Which files a git command may overwrite: each form is run by the real git in a checkout with uncommitted changes."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest

from dibs.agents.git.git_reach import from_top, git_commands, is_below, overwrites, reach_of, stash_use
from tests.programs import WAIT_S_MAX, clean_env

if TYPE_CHECKING:
    from pathlib import Path

# The files that may be lost: one that git tracks, one that is staged, one that it does not track.
TRACKED, STAGED, UNTRACKED = "src/a", "src/b", "src/new"
# The command, and what of these is in its reach.
REACHES = {
    "git stash": {TRACKED, STAGED},
    "git stash -u": {TRACKED, STAGED, UNTRACKED},
    "git stash --include-untracked -q": {TRACKED, STAGED, UNTRACKED},
    "git stash push": {TRACKED, STAGED},
    "git stash push -m 'a b'": {TRACKED, STAGED},
    "git stash push -um message": {TRACKED, STAGED, UNTRACKED},
    "git stash save words of it": {TRACKED, STAGED},
    "git stash push -- src/a": {TRACKED},
    "git stash push src/a": {TRACKED},
    "git stash -- src/a": {TRACKED},
    "git stash push -- README": set(),
    "git -c core.pager=cat stash": {TRACKED, STAGED},
    "env A=b /usr/bin/git stash": {TRACKED, STAGED},
    "git stash list": set(),
    "git stash show || true": set(),
    "git stash create": set(),
    "git stash >/dev/null 2>&1": {TRACKED, STAGED},
    "git reset --hard": {TRACKED, STAGED},
    "git reset -q --hard HEAD": {TRACKED, STAGED},
    "git reset": set(),
    "git reset --soft HEAD~1": set(),
    "git reset --mixed HEAD~1": set(),
    "git reset HEAD src/b": set(),
    "git checkout .": {TRACKED},
    "git checkout -- .": {TRACKED},
    "git checkout src/a": {TRACKED},
    "git checkout src": {TRACKED},
    "git checkout HEAD -- .": {TRACKED, STAGED},
    "git checkout HEAD src/b": {STAGED},
    "git checkout README": set(),
    "git checkout -b other2": set(),
    "git checkout HEAD": set(),
    "git checkout": set(),
    "git checkout -f": {TRACKED, STAGED},
    "git checkout --force HEAD": {TRACKED, STAGED},
    "git checkout main -qf": {TRACKED, STAGED},
    "git checkout -f src/a": {TRACKED},
    "git checkout -f HEAD -- src/b": {STAGED},
    "git switch -f main": {TRACKED, STAGED},
    "git switch --discard-changes main": {TRACKED, STAGED},
    "git switch -f --detach HEAD": {TRACKED, STAGED},
    "git switch -fc other2 HEAD": {TRACKED, STAGED},
    "git switch -f --detach": set(),
    "git switch -fc other2": set(),
    "git -C src checkout .": {TRACKED},
    "cd src && git checkout .": {TRACKED},
    "cd docs && git checkout .": set(),
    "(cd docs && git status) && git checkout .": {TRACKED},
    "cd docs; cd ..; git checkout .": {TRACKED},
    "git restore .": {TRACKED},
    "git restore src/a": {TRACKED},
    "git restore --staged .": set(),
    "git restore -S src/b": set(),
    "git restore -SW .": {TRACKED, STAGED},
    "git restore --source=HEAD --staged --worktree -- src": {TRACKED, STAGED},
    "git restore -s HEAD src/a": {TRACKED},
    "git restore README": set(),
    "git clean -fd": {UNTRACKED},
    "git clean -f -d -q": {UNTRACKED},
    "git clean --force src": {UNTRACKED},
    "git clean -fd docs": set(),
    "git clean -nfd": set(),
    "git clean -n": set(),
    "git commit -am message": {TRACKED, STAGED},
    "git commit -qa -m message": {TRACKED, STAGED},
    "git commit --all --message=x": {TRACKED, STAGED},
    "git commit -a --dry-run": set(),
    "git commit -m '-a' --dry-run": set(),
    "git commit -m message src/a": {TRACKED},
    "git commit src -m message": {TRACKED, STAGED},
    "git commit -qm message -- src/b": {STAGED},
    "git commit -m message -- README --dry-run || true": set(),
    "git switch -c other2": set(),
    "git status": set(),
    "git diff": set(),
    "git log --all": set(),
    "git branch other2": set(),
    "git tag -a -m x t": set(),
    "git fetch": set(),
    "git add -A": set(),
    "git show HEAD": set(),
    "git worktree list": set(),
    "echo git reset --hard": set(),
    "git stash list; git diff --stat": set(),
}
# Forms that move the checkout: git keeps changes that it would overwrite, but every file else may become another.
MOVES = {
    "git switch other": True,
    "git checkout other": True,
    "git checkout -q --detach other": True,
    "git checkout -b third other": True,
    "git switch -c third other": True,
    "git switch --detach other": True,
    "git merge other": True,
    "git merge --no-edit other": True,
    "git pull --no-rebase . other": True,
    "git rebase other": True,
    "git reset -q --keep other": True,
    "git stash branch third": True,
    "git switch --orphan third": True,
    "git merge --abort": False,
    "git rebase --abort": False,
    "git checkout --orphan third": False,
    "git switch -c third": False,
    "git checkout -B third": False,
    "git checkout -q HEAD": False,
}


@pytest.fixture
def folder(made_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(made_once, tmp_path / "app", symlinks=True)
    run(tmp_path / "app", "git status")  # its index has the times of the files that were copied
    return tmp_path / "app"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reach") / "app"
    for name in ("src/a", "src/b", "README", "docs/x"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("1\n")
    for command in (
        "git init -q -b main",
        "git config user.name n",
        "git config user.email e@example.org",
        "git add -A",
        "git commit -qm one",
        "git checkout -q -b other",
        "echo 2 > docs/x",
        "git commit -qam two",
        "git checkout -q main",
        "echo 3 > README",
        "git commit -qam three",
    ):
        run(made, command)
    return made


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    env = {**clean_env(folder.parent / "state"), "GIT_MERGE_AUTOEDIT": "no", "GIT_EDITOR": "true"}
    return subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
    )


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def exists_in(folder: str, path: str) -> bool:
    return os.path.exists(os.path.join(folder, path))


def reached(folder: Path, command: str, states: dict[str, str]) -> set[str]:
    """The files in the reach of a command, as the guard looks at it."""
    found: set[str] = set()
    for each in git_commands(command, str(folder)):
        reach = reach_of(each.words, partial(exists_in, each.folder))
        if reach is None:
            continue
        paths = [path for given in reach.paths if (path := from_top(str(folder), each.folder, given)) is not None]
        for file, state in states.items():
            if overwrites(reach.files, state) and (not reach.paths or is_below(file, paths)):
                found.add(file)
    return found


@pytest.mark.fault("F-620")
@pytest.mark.fault("F-731")
@pytest.mark.parametrize("command", REACHES)
def test_a_form_reaches_what_the_real_git_overwrites_and_nothing_else(folder: Path, command: str) -> None:
    (folder / TRACKED).write_text("mine\n")
    (folder / STAGED).write_text("staged\n")
    run(folder, f"git add {STAGED}")
    (folder / UNTRACKED).write_text("new\n")
    before = {file: (folder / file).read_text() for file in (TRACKED, STAGED, UNTRACKED)}
    head = run(folder, "git rev-parse HEAD").stdout
    said = reached(folder, command, {TRACKED: " M", STAGED: "M ", UNTRACKED: "??"})
    assert run(folder, command).returncode == 0
    lost = {file for file, text in before.items() if read(folder / file) != text}
    if "commit" in command:
        lost = {file for file in before if file in run(folder, f"git diff --name-only {head.strip()} HEAD").stdout}
    assert lost == REACHES[command]
    assert said == lost


@pytest.mark.parametrize("command", MOVES)
def test_a_form_that_moves_the_checkout_reaches_all_of_it_and_one_that_writes_no_file_nothing(
    folder: Path, command: str
) -> None:
    if "branch third" in command:
        run(folder, "git switch -q other; echo 9 > src/a; git stash; git switch -q main")
    before = {path: read(folder / path) for path in ("src/a", "README", "docs/x")}
    said = reached(folder, command, {"any/file": " M"})
    run(folder, command)
    assert ({path: read(folder / path) for path in before} != before) == MOVES[command]
    assert bool(said) == MOVES[command]


def test_words_that_only_mention_a_form_and_folders_that_are_not_known_reach_nothing() -> None:
    for command in (
        "echo 'git reset --hard'",
        "git commit -m 'git stash pop'",
        "git commit -m \"$(cat <<'EOF'\ngit commit -a\nEOF\n)\"",
        "git commit --amend --no-edit --author 'a <b>' -C HEAD -F notes",
        "git worktree remove ../other",
        "git worktree add -f ../other",
        "cat > notes <<EOF\ngit reset --hard\nEOF",
        'cd "$HOME/other" && git reset --hard',
        "cd ~/other; git stash",
        "git --git-dir=/elsewhere/.git reset --hard",
        "git --work-tree /elsewhere reset --hard",
        "git -C $X reset --hard",
        "git checkout $FILES",
        "git restore *.py",
        "git commit -uall -m x",
        "git commit -Sabc -m x",
        "grep -rn 'git stash' docs",
    ):
        assert all(reach_of(each.words, lambda _: False) is None for each in git_commands(command, "/app")), command


@pytest.mark.fault("F-620")
def test_git_commands_are_found_with_the_folder_in_which_the_shell_runs_them() -> None:
    line = "echo 'git x'; (cd a && git -C . stash pop) && sudo git reset --hard $(git rev-parse HEAD)"
    assert [(os.path.normpath(each.folder), each.words) for each in git_commands(line, "/app")] == [
        ("/app/a", ["stash", "pop"]),
        ("/app", ["rev-parse", "HEAD"]),
        ("/app", ["reset", "--hard", "$"]),
    ]
    (found,) = git_commands("cd src; git worktree remove --force ../../other", "/app")
    assert os.path.normpath(found.folder) == "/other"


def test_the_entry_that_a_command_takes_is_known_in_each_form() -> None:
    forms = {
        "git stash": ("push", None),
        "git stash -q": ("push", None),
        "git stash pop": ("pop", 0),
        "git stash pop -q --index": ("pop", 0),
        "git stash pop stash@{2}": ("pop", 2),
        "git stash apply 1": ("apply", 1),
        "git stash drop refs/stash@{3}": ("drop", 3),
        "git stash drop stash": ("drop", 0),
        "git stash clear": ("clear", None),
        "git stash branch name": ("branch", 0),
        "git stash branch name stash@{1}": ("branch", 1),
        "git -C src stash pop 4": ("pop", 4),
    }
    for command, (verb, entry) in forms.items():
        (found,) = git_commands(command, "/app")
        use = stash_use(found.words)
        assert use is not None, command
        assert (use.verb, use.entry) == (verb, entry), command
    for command in ("git stash list", "git stash show -p", "git stash pop stash@{yesterday}", "git log stash"):
        assert stash_use(git_commands(command, "/app")[0].words) is None, command
