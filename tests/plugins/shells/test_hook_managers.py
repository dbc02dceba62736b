"""Beside programs that manage hooks: both run, and dibs reports when their hooks replaced ours.

Their layouts are written here, small and by hand: a folder of stubs that go by $0 (as husky's), a script with the
hook's name in it (as lefthook's), one that moves what was there to `.legacy` and runs it (as pre-commit's)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugins.shells.conftest import Clone

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.shells.conftest import Shells

pytestmark = [pytest.mark.e2e, pytest.mark.full]
STASH = {"reference-transaction": "in place"}  # the managers have none of it


@pytest.fixture
def app(shells: Shells) -> Clone:
    made = Clone(shells, shells.home)
    made.must("git init -q")
    return made


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def husky(app: Clone) -> None:
    """What `npx husky` does: stubs that source one script, which finds the team's hook by the name it was run under."""
    app.must("git config core.hooksPath .husky/_")
    inner = app.folder / ".husky" / "_"
    for name in ("pre-commit", "pre-push", "commit-msg"):
        write(inner / name, '#!/usr/bin/env sh\n. "$(dirname "$0")/h"')
    write(
        inner / "h",
        's=$(dirname "$(dirname "$0")")/$(basename "$0")\n[ -f "$s" ] || exit 0\nsh -e "$s" "$@"\nexit\n',
    )


def manager(app: Clone, hook: str = "pre-commit", old: str = ".old") -> None:
    """What `lefthook install` does: its own script, and what was there renamed and not run."""
    path = app.folder / ".git" / "hooks" / hook
    if path.exists() and "manager run" not in path.read_text():
        path.rename(path.with_name(hook + old))
    write(path, f'#!/bin/sh\nmanager run "{hook}" "$@"\n')


def status(app: Clone) -> tuple[int, dict[str, str]]:
    ran = app.sh("dibs hook status --json")
    document = ran.document
    return ran.exit, (document["data"] if document["ok"] else document["error"]["details"])["hooks"]


def test_beside_husky_both_run_and_the_first_no_counts(app: Clone) -> None:
    husky(app)
    write(app.folder / ".husky" / "pre-commit", "echo theirs; [ ! -e stop ]\n")
    write(app.folder / ".husky" / "pre-push", "read line; echo theirs $1 $line\n")
    assert status(app)[0] == 1
    app.must("dibs hook install -q; git config dibs.policy require")
    assert status(app) == (0, {"pre-commit": "chained", "pre-push": "chained", **STASH})
    app.held_by_another("path:src")
    app.stage("src/a")
    ran = app.sh("git commit -qm one")
    assert ran.exit == 1
    assert ran.err.startswith("theirs\n")
    assert "agent-7 has path:src" in ran.err
    app.must("touch stop")
    ran = app.sh("git commit -qm one")
    assert (ran.exit, "agent-7" in ran.err) == (1, False)
    app.must("rm stop; git -c dibs.policy=off commit -qm one; git init -q --bare ../r.git")
    ran = app.sh("git push -q ../r.git HEAD:main")
    assert ran.exit == 1
    assert "theirs ../r.git HEAD" in ran.out + ran.err
    assert "agent-7 has path:src" in ran.err
    app.must("dibs hook uninstall -q")
    assert (app.folder / ".husky" / "_" / "pre-commit").read_text().endswith('/h"')


def test_hooks_that_were_overwritten_are_reported_and_can_be_put_back(app: Clone) -> None:
    app.must("dibs hook install -q")
    assert "BAD" not in app.must("dibs doctor").out
    husky(app)  # git looks elsewhere now
    for again in (False, True):
        if again:
            husky(app)
        stash = STASH if again else {"reference-transaction": "overwritten"}
        assert status(app) == (1, {"pre-commit": "overwritten", "pre-push": "overwritten", **stash})
        doctor = app.sh("dibs doctor")
        assert doctor.exit == 69
        assert "BAD  hooks" in doctor.out
        app.must("dibs hook install -q")
        assert status(app)[0] == 0
    app.must("dibs hook uninstall -q")
    assert "BAD" not in app.must("dibs doctor").out


def test_beside_a_manager_that_renames_what_was_there_both_run(app: Clone) -> None:
    app.shells.program("manager", 'echo "managed $2"')
    app.must("dibs hook install -q")
    manager(app)
    assert status(app) == (1, {"pre-commit": "overwritten", "pre-push": "in place", **STASH})
    app.must("dibs hook install -q; git config dibs.policy require")
    app.held_by_another("path:src")
    app.stage("src/a")
    ran = app.sh("git commit -qm one")
    assert (ran.exit, "managed pre-commit" in ran.err, "agent-7 has path:src" in ran.err) == (1, True, True)
    manager(app)
    app.must("dibs hook install -q")
    assert status(app)[0] == 0


def test_what_pre_commit_runs_as_the_hook_before_it_counts_and_does_not_run_it_again(app: Clone) -> None:
    hooks = app.folder / ".git" / "hooks"
    text = (
        '#!/usr/bin/env bash\nHERE="$(cd "$(dirname "$0")" && pwd)"\necho pre-commit ran\n'
        'PRE_COMMIT_RUNNING_LEGACY=1 "$HERE/pre-commit.legacy" "$@"\n'
    )
    write(hooks / "pre-commit", "#!/bin/sh\necho 'pre-commit ran, an older one'\n")
    app.must("dibs hook install -q; git config dibs.policy require")
    (hooks / "pre-commit").rename(hooks / "pre-commit.legacy")
    write(hooks / "pre-commit", text)
    assert status(app) == (0, {"pre-commit": "legacy", "pre-push": "in place", **STASH})
    app.held_by_another("path:src")
    app.stage("src/a")
    ran = app.sh("git commit -qm one")
    assert ran.exit == 1
    assert ran.err.count("pre-commit ran") == 1
    assert "agent-7 has path:src" in ran.err


@pytest.mark.parametrize("place", [".husky/pre-commit", "lefthook.yml", ".pre-commit-config.yaml"])
def test_a_call_by_hand_counts_as_in_place(app: Clone, place: str) -> None:
    husky(app)
    write(app.folder / place, 'dibs hook run pre-commit "$@"\n')
    assert status(app)[1]["pre-commit"] == "called"


def test_a_hook_that_is_not_executable_is_reported(app: Clone) -> None:
    app.must("dibs hook install -q; chmod -x .git/hooks/pre-commit")
    assert status(app) == (1, {"pre-commit": "not executable", "pre-push": "in place", **STASH})
