"""An actor is one worker in real programs: inside runs, with tokens for one namespace, at a git remote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.shells.conftest import Shells
    from tests.programs import Ran

pytestmark = [pytest.mark.e2e, pytest.mark.full]
ONE, TWO, ALL = "dibs_" + "1" * 64, "dibs_" + "2" * 64, "dibs_" + "3" * 64


def must(shells: Shells, script: str, cwd: Path | None = None, /, **env: str) -> Ran:
    ran = shells(f"set -e\n{script}", cwd=cwd, **env)
    assert ran.exit == 0, ran
    return ran


@pytest.fixture
def app(shells: Shells) -> Path:
    for name in ("app", "other"):
        must(shells, f"git init -q {name}; git -C {name} remote add origin https://example.org/acme/{name}.git")
    return shells.home / "app"


@pytest.mark.fault("F-303")
@pytest.mark.parametrize("folder", ["/", "../other"])
def test_a_run_that_changes_its_folder_still_has_its_job(shells: Shells, app: Path, folder: str) -> None:
    shells.program(
        "work",
        f"""
        set -e
        cd {folder}
        dibs heartbeat -q "$DIBS_JOB"
        dibs claim -q "$DIBS_JOB" >/dev/null
        dibs owner -q "$DIBS_JOB" >/dev/null
        dibs session show --json | field data.holds.name
        dibs run plain -- sh -c 'echo "[$DIBS_JOB_NAMESPACE]"'
        dibs release "$DIBS_JOB"
        """,
    )
    ran = must(shells, "dibs run path:src/a.py -- work", app)
    assert ran.out.splitlines()[:3] == ["path:src/a.py", "[]", "Released path:src/a.py. It can be claimed."]
    assert shells("dibs owner path:src/a.py", cwd=app).exit == 1


@pytest.mark.fault("F-304")
def test_actors_in_a_session_run_show_their_names_and_its_own_commands_its_owner(shells: Shells, app: Path) -> None:
    inside = "dibs claim -q a --actor ann; dibs claim -q b; dibs run c -- sh -c 'dibs claim -q d --actor ann'"
    listed = "dibs list --json | field data.locks.owner"
    ran = must(shells, f'dibs session run --owner agent-7 -- sh -ec "{inside} >/dev/null; {listed}"', app)
    assert sorted(ran.out.split()[-3:]) == ["agent-7", "ann", "ann"]
    own = must(shells, f'DIBS_OWNER=me dibs session run -- sh -ec "dibs claim -q e --actor bob >/dev/null; {listed}"')
    assert "me" in own.out.split()
    assert "bob" not in own.out.split()


@pytest.mark.fault("F-302")
@pytest.mark.promise("same-answer")
def test_an_actor_with_a_token_for_each_of_two_namespaces_keeps_both_claims(shells: Shells, app: Path) -> None:
    url = shells.serve(f"ann:{ONE}:agent:one\nann:{TWO}:agent:two\nbea:{ALL}:agent\n")
    env = {"DIBS_URL": url, "DIBS_ACTOR": "hal"}
    for _ in range(2):
        for token in (ONE, TWO):
            must(shells, "dibs claim job; dibs heartbeat job", DIBS_TOKEN=token, **env)
    for token in (ONE, TWO):
        assert must(shells, "dibs release --mine", DIBS_TOKEN=token, **env).out.startswith("Released job.")
    # A token for all namespaces has one session, also in a work tree.
    must(shells, "dibs claim path:src; dibs claim job; dibs claim other --namespace two", app, DIBS_TOKEN=ALL, **env)
    listed = must(shells, "dibs session list --json | field data.sessions.holds.name", app, DIBS_TOKEN=ALL, **env)
    assert sorted(listed.out.split()) == ["job", "other", "path:src"]
    assert must(shells, "dibs release --mine", app, DIBS_TOKEN=ALL, **env).out.count("Released") == 3


@pytest.mark.fault("F-302")
def test_an_actor_at_the_remotes_of_two_clones_keeps_both_claims(shells: Shells) -> None:
    for name in ("one", "two"):
        must(shells, f"git init -q --bare {name}.git; git clone -q {name}.git {name} 2>/dev/null")
    env = {"DIBS_URL": "git:origin", "DIBS_ACTOR": "hal"}
    for _ in range(2):
        for name in ("one", "two"):
            must(shells, "dibs claim job; dibs claim path:src; dibs heartbeat path:src", shells.home / name, **env)
    for name in ("one", "two"):
        assert must(shells, "dibs release --mine", shells.home / name, **env).out.count("Released") == 2
