"""Two repositories never meet by accident: `path:` and `repo:` names are each repository's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.agents.repository.work_tree import normalised
from dibs.core.names import check_namespace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.shells.conftest import Shells

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SAME = [
    "git@github.com:acme/app.git",
    "git@GitHub.com:/acme/app",
    "github.com:acme/app.git/",
    "ssh://git@github.com/acme/app.git",
    "ssh://git@github.com:22/acme/app.git",
    "git+ssh://git@github.com/acme/app",
    "https://github.com/acme/app",
    "https://GITHUB.com:443/acme/app.git/",
    "https://ann:hunter2@github.com/acme/app.git",
    "git://github.com/acme/app.git",
]
OTHERS = [
    "https://github.com/acme/App",
    "https://gitlab.com/acme/app",
    "https://github.com/acme/app2",
    "https://github.com/acme/app/sub",
    "/srv/git/acme/app.git",
    "file:///srv/git/acme/app2.git",
    "git@[::1]:acme/app",
    "../app",
    "C:/acme/app",
]


def test_all_forms_of_an_address_are_one_and_different_repositories_are_not() -> None:
    assert {normalised(address, "/srv/x") for address in SAME} == {"github.com/acme/app"}
    found = [normalised(address, "/srv/x") for address in OTHERS]
    assert len({*found, "github.com/acme/app"}) == len(OTHERS) + 1
    assert normalised("ssh://git@[::1]:22/x.git", "/") == normalised("git@[::1]:x", "/") == "[::1]/x"
    assert normalised("../app.git", "/srv/git") == normalised("file:///srv/app.git", "/") == "/srv/app"


def must(shells: Shells, script: str, cwd: Path | None = None, **env: str) -> None:
    ran = shells(script, cwd=cwd, **env)
    assert ran.exit == 0, ran


def repository(shells: Shells, name: str, origin: str | None) -> Path:
    folder = shells.home / name
    must(shells, f"git init -q {name}")
    if origin is not None:
        must(shells, f"git remote add origin '{origin}'", cwd=folder)
    return folder


def namespace(shells: Shells, folder: Path, **env: str) -> str:
    document = shells("dibs owner path:src --json", cwd=folder, **env).document
    carried = document["data"] if document["ok"] else document["error"]["details"]
    return str(carried.get("namespace", "default"))


def test_a_path_in_one_repository_does_not_block_another(shells: Shells) -> None:
    one, two = repository(shells, "one", SAME[0]), repository(shells, "two", "https://github.com/acme/web")
    claimed = shells("dibs claim path:src --owner ann", cwd=one)
    assert claimed.exit == 0
    assert f"namespace      {namespace(shells, one)}" in claimed.out
    assert shells("dibs claim path:src --owner bob", cwd=two).exit == 0
    assert shells("dibs claim repo:release --owner bob", cwd=shells.home).exit == 0
    held = shells("dibs claim path:src/a --owner bob", cwd=one)
    assert (held.exit, "ann has path:src" in held.out) == (1, True)
    for folder in (one, two):
        must(shells, "git config dibs.policy require; dibs hook install -q", cwd=folder)
        (folder / "src").mkdir()
        (folder / "src" / "x").touch()
        must(shells, "git add src", cwd=folder)
    assert shells("git commit -qm m", cwd=one).exit == 1
    assert "ann has path:src" in shells("git commit -qm m", cwd=one).err
    assert "bob has path:src" in shells("git commit -qm m", cwd=two).err
    # All that is claimed here: outside of every repository, and in this one.
    assert shells("dibs list -q", cwd=one).out == "path:src\nrepo:release\n"
    locks = shells("dibs lock status --json", cwd=two).document["data"]["locks"]
    assert sorted(lock["resource"] for lock in locks) == ["path:src", "repo:release"]


def test_clones_work_trees_and_all_forms_of_an_address_share_one(shells: Shells) -> None:
    found = set()
    for number, address in enumerate(SAME[:4]):
        found.add(namespace(shells, repository(shells, f"clone-{number}", address)))
    folder = shells.home / "clone-0"
    must(shells, "git commit -q --allow-empty -m m && git worktree add -q ../tree", cwd=folder)
    (folder / "deep").mkdir()
    found |= {namespace(shells, shells.home / "tree"), namespace(shells, folder / "deep")}
    assert len(found) == 1
    assert found.pop().startswith("acme-app.")


def test_without_an_origin_it_is_the_git_folder_that_counts(shells: Shells) -> None:
    one, two = repository(shells, "one", None), repository(shells, "two", None)
    must(shells, "git commit -q --allow-empty -m m && git worktree add -q ../tree", cwd=one)
    assert namespace(shells, one) == namespace(shells, shells.home / "tree") != namespace(shells, two)
    assert check_namespace(namespace(shells, one))
    long = repository(shells, "x" * 100 + "é", None)
    assert check_namespace(namespace(shells, long))


def test_a_flag_a_variable_and_a_setting_name_another(shells: Shells) -> None:
    folder = repository(shells, "one", SAME[0])
    must(shells, "dibs claim path:src --namespace flag --owner ann", cwd=folder)
    must(shells, "dibs claim path:src --owner bob", cwd=folder, DIBS_NAMESPACE="variable")
    (folder / ".dibs.toml").write_text('namespace = "team"\n')
    must(shells, "dibs trust", cwd=folder)
    assert namespace(shells, folder) == "team"
    assert shells("dibs claim path:src --owner eve --json", cwd=folder).document["data"]["namespace"] == "team"
    for name, owner in (("flag", "ann"), ("variable", "bob"), ("team", "eve")):
        assert shells(f"dibs owner -q path:src --namespace {name}", cwd=shells.home).out == f"{owner}\n"


def test_other_names_stay_where_they_are(shells: Shells) -> None:
    folder = repository(shells, "one", SAME[0])
    must(shells, "dibs claim issue-42 --owner ann", cwd=folder)
    assert shells("dibs owner -q issue-42", cwd=shells.home).out == "ann\n"
    mixed = shells("dibs claim-all issue-43 path:src", cwd=folder)
    assert mixed.exit == 64
    assert "Claim them apart" in mixed.err
    mixed = shells("printf 'issue-43\\npath:src\\n' | dibs claim-all", cwd=folder)
    assert mixed.exit == 64
    inside = shells("dibs run path:src -- sh -c 'echo ${DIBS_NAMESPACE-none}; dibs owner -q path:src'", cwd=folder)
    assert inside.out == f"none\nann@{os.uname().nodename}\n"


def test_claims_without_a_repository_are_mentioned_and_refuse_nothing(shells: Shells) -> None:
    """Those of HTTP clients, which know of no work tree, may be meant for this one."""
    folder = repository(shells, "one", SAME[0])
    must(shells, "git config dibs.policy require; dibs hook install -q; touch a b; git add a", cwd=folder)
    must(shells, "dibs claim path:a --owner agent-7", cwd=shells.home)
    ran = shells("git commit -qm m", cwd=folder)
    assert ran.exit == 0
    assert "agent-7 has path:a, which would touch a" in ran.err
    must(shells, "git add b; git config dibs.namespace team; dibs trust -q", cwd=folder)
    assert shells("git commit -qm m", cwd=folder).err == ""


def test_a_token_of_another_namespace_is_told_what_to_set(shells: Shells, served: str) -> None:
    folder = repository(shells, "one", SAME[0])
    refused = shells("dibs claim path:src", cwd=folder, DIBS_URL=served, DIBS_TOKEN=TOKEN)
    assert refused.exit == 77
    assert "This token is for the namespace team" in refused.err
    assert "git config dibs.namespace NAME" in refused.err
    must(shells, "git config dibs.namespace team; dibs trust -q", cwd=folder)
    assert shells("dibs claim path:src", cwd=folder, DIBS_URL=served, DIBS_TOKEN=TOKEN).exit == 0


TOKEN = "dibs_" + "7" * 64


@pytest.fixture
def served(shells: Shells) -> str:
    """A server whose token is bound to a namespace."""
    return shells.serve(f"ann:{TOKEN}:agent:team\n")
