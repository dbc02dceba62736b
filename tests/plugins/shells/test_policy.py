"""Which setting applies, and what happens when the claims cannot be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugins.shells.conftest import Clone

pytestmark = pytest.mark.e2e

RUN = "dibs hook run pre-commit --json"
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def plain(clone: Clone) -> Clone:
    """Nothing set."""
    clone.must("git config --unset dibs.policy\nmkdir -p .git/dibs")
    clone.stage("src/a")
    return clone


def policy(clone: Clone, flags: str = "") -> str:
    document = clone.sh(f"git {flags} -c alias.run='!{RUN}' run").document
    carried = document["data"] if document["ok"] else document["error"]["details"]
    return str(carried["policy"])


def test_the_nearest_setting_wins(plain: Clone) -> None:
    assert policy(plain) == "warn"
    plain.write(".dibs.toml", 'policy = "require"\nown = true\n')
    assert policy(plain) == "require"
    assert "You have not claimed src/a" in plain.sh("git commit -qm one").err
    plain.write(".git/dibs/config.toml", 'lock_policy = "OFF"\n')
    assert policy(plain) == "off"
    plain.must("git config dibs.policy warn")
    assert policy(plain) == "warn"
    assert policy(plain, "-c dibs.policy=require") == "require"


SLIPS = [
    (".dibs.toml", 'policy = "requier"\n', "policy is one of off, warn, require"),
    (".dibs.toml", 'polcy = "require"\n', "Did you mean policy?"),
    (".dibs.toml", "policy = \n", "is not TOML"),
    (".dibs.toml", 'url = "http://evil.example"\n', "may not name a url"),
    (".dibs.toml", "policy = true\n", "policy is a text"),
    (".dibs.toml", 'namespace = "a/b"\n', "A namespace is 1 to 64"),
    (".dibs.toml", f"# {'x' * 70_000}\n", "has more than the 65536 bytes"),
    (".dibs.toml", f"x = {'[' * 20_000}\n", "is not TOML"),
    (".git/dibs/config.toml", 'own = "perhaps"\n', "own is true or false"),
    (".git/dibs/config.toml", 'unreachable = "shrug"\n', "unreachable is one of block, warn"),
]


@pytest.mark.parametrize("make", ["ln -s /dev/zero", "mkfifo", "mkdir"], ids=["device", "pipe", "folder"])
def test_settings_that_are_no_ordinary_file_stop_the_commit_at_once(plain: Clone, make: str) -> None:
    plain.must(f"{make} .dibs.toml")
    ran = plain.sh("timeout 20 dibs hook run pre-commit")
    assert ran.exit == 64
    assert ".dibs.toml is no ordinary file" in ran.err


def test_a_setting_that_cannot_be_meant_stops_the_commit_and_names_the_file(plain: Clone) -> None:
    for file, text, told in SLIPS:
        plain.write(file, text)
        ran = plain.sh("dibs hook run pre-commit")
        assert ran.exit == 64
        assert told in ran.err
        assert file in ran.err
        (plain.folder / file).unlink()
    plain.write(".dibs.toml", 'policy = "requier"\n')
    assert plain.sh("git commit -qm one").exit == 1
    assert plain.sh("dibs hook install").exit == 64


def test_settings_of_other_parts_are_left_alone(plain: Clone) -> None:
    plain.write(".git/dibs/config.toml", 'prefix = "refs/x"\n[git]\nremote = "origin"\n')
    plain.must("git config dibs.prefix refs/y\ngit commit -qm one")


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ("git config dibs.policy warn", True),
        ("git config dibs.policy require", False),
        ("git config dibs.policy require; git config dibs.unreachable warn", True),
        ("git config dibs.policy warn; git config dibs.unreachable block", False),
    ],
)
def test_a_store_that_cannot_be_reached_follows_the_setting_and_is_said(
    plain: Clone, settings: str, passes: bool
) -> None:
    plain.must(settings)
    ran = plain.sh("git commit -qm one", DIBS_URL=NOWHERE)
    assert (ran.exit == 0) is passes
    assert ("so this commit was not checked" if passes else "this commit is refused") in ran.err
    assert NOWHERE in ran.err
    assert plain.sh(RUN, DIBS_URL=NOWHERE).exit == (0 if passes else 69)


def test_the_place_and_namespace_can_be_a_setting_and_the_environment_wins(plain: Clone) -> None:
    plain.must("git config dibs.policy require")
    plain.write(".dibs.toml", 'namespace = "acme"\n')
    plain.must("dibs trust")
    plain.must("dibs lock acquire path:src --actor agent-7 --namespace acme")
    assert plain.sh("git commit -qm one").exit == 1
    assert plain.sh(RUN, DIBS_NAMESPACE="other").exit == 0
    plain.must(f"git config dibs.url {NOWHERE}")
    assert plain.sh(RUN).exit == 69
    assert plain.sh(RUN, DIBS_URL=f"sqlite://{plain.folder}/other.db").exit == 0


def test_what_is_staged_is_claimed_where_the_hook_looks(plain: Clone) -> None:
    plain.write(".dibs.toml", 'namespace = "acme"\npolicy = "require"\nown = true\n')
    plain.must("dibs trust; git add -A\ndibs claim --staged -q >/dev/null\ngit commit -qm one")
    assert plain.must("dibs list -q --namespace acme").out == "path:.dibs.toml\npath:src/a\n"


def test_the_policy_of_grite_s_own_file_counts_between_the_team_s_and_the_clone_s(plain: Clone) -> None:
    plain.write(".dibs.toml", 'policy = "off"\n')
    plain.must("mkdir -p .git/grite")
    plain.write(".git/grite/config.toml", 'default_actor = "64d15a2c"\nlock_policy = "require"\n[context]\na = 1\n')
    assert policy(plain) == "require"
    plain.write(".git/dibs/config.toml", 'policy = "warn"\n')
    assert policy(plain) == "warn"
    plain.write(".git/dibs/config.toml", "")
    plain.write(".git/grite/config.toml", 'lock_policy = "perhaps"\n')
    ran = plain.sh("git commit -qm one")
    assert ran.exit != 0
    assert "grite/config.toml: policy is one of" in ran.err
