"""Commits that are new to the remote, checked against claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugins.shells.conftest import Clone

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture
def remote(clone: Clone) -> Clone:
    """A clone whose remote has one commit with `src/a` and `docs/b`."""
    clone.stage("src/a", "docs/b")
    clone.must(
        "git commit -qm one\ngit init -q --bare ../remote.git\n"
        "git remote add origin ../remote.git\ngit push -q origin main"
    )
    return clone


def commit(clone: Clone, *paths: str, text: str = "new\n") -> None:
    clone.stage(*paths, text=text)
    clone.must("git commit -q --no-verify -m more")


def refused(clone: Clone, script: str = "git push -q origin HEAD", **env: str) -> str:
    ran = clone.sh(script, **env)
    assert ran.exit != 0, ran
    assert "dibs: this push is refused." in ran.err
    return ran.err


def test_a_push_that_touches_a_claim_is_refused(remote: Clone) -> None:
    commit(remote, "src/a")
    commit(remote, "other")
    remote.held_by_another("path:src")
    said = refused(remote)
    assert "agent-7 has path:src" in said
    assert "the push changes src/a\n" in said
    remote.must("dibs break path:src --reason next\ngit push -q origin main")


def test_what_the_remote_has_already_does_not_count(remote: Clone) -> None:
    remote.held_by_another("path:src")
    commit(remote, "docs/b")
    remote.must("git push -q origin main")
    remote.must("git push -q origin main:copy\ngit tag v1\ngit push -q origin v1\ngit push -q origin :copy")


def test_a_change_that_was_taken_back_counts_because_it_is_pushed(remote: Clone) -> None:
    commit(remote, "src/a")
    remote.must("git revert -n HEAD\ngit commit -q --no-verify -m back")
    remote.held_by_another("path:src/a")
    refused(remote)


def test_a_new_branch_counts_from_where_the_remote_ends(remote: Clone) -> None:
    remote.must("git checkout -qb work")
    commit(remote, "new/file")
    remote.held_by_another("path:src", "path:docs")
    remote.must("git push -q origin work")
    commit(remote, "docs/c")
    assert "changes docs/c" in refused(remote)
    assert "changes docs/c" in refused(remote, "git push -q ../remote.git work")


def test_a_first_push_counts_from_the_first_commit(clone: Clone) -> None:
    clone.stage("src/a")
    clone.must("git commit -qm one\ngit init -q --bare ../remote.git")
    clone.held_by_another("path:src")
    refused(clone, "git push -q ../remote.git main")


def test_deleting_a_branch_asks_nobody(remote: Clone) -> None:
    remote.must("git push -q origin main:old")
    remote.must("git push -q origin --delete old", DIBS_URL="http://127.0.0.1:1")


def test_both_sides_of_a_rename_and_a_deletion_count(remote: Clone) -> None:
    remote.must("git mv src/a moved\ngit rm -q docs/b\ngit commit -q --no-verify -m away")
    remote.held_by_another("path:src", "path:moved", "path:docs/b")
    assert refused(remote).count("agent-7 has") == 3


def test_odd_names_are_seen_in_a_push_too(remote: Clone) -> None:
    commit(remote, "d/new\nline", "d/with space", "d/日本", "e")
    remote.held_by_another("path:d")
    said = refused(remote)
    assert "changes d/new\\nline, d/with space, d/日本\n" in said


def test_somebody_elses_merged_work_is_not_this_pushes_doing(remote: Clone) -> None:
    remote.must("git checkout -qb side")
    commit(remote, "src/a", text="side\n")
    remote.must("git push -q origin side\ngit checkout -q main")
    commit(remote, "docs/b", text="main\n")
    remote.must("git merge -q -m merged side")
    remote.held_by_another("path:src")
    remote.must("git push -q origin main")


def test_a_push_over_commits_that_this_clone_never_saw(remote: Clone) -> None:
    remote.must("git clone -q ../remote.git ../second")
    remote.must("cd ../second\necho x > elsewhere\ngit add -A\ngit commit -qm theirs\ngit push -q origin HEAD")
    commit(remote, "docs/b")
    remote.held_by_another("path:docs")
    refused(remote, "git push -q --force origin main")
    remote.must("dibs break path:docs --reason next\ngit push -q --force origin main")


def test_several_refs_in_one_push(remote: Clone) -> None:
    remote.must("git checkout -qb one")
    commit(remote, "x/1")
    remote.must("git checkout -qb two main")
    commit(remote, "src/a")
    remote.must("git tag -a -m tag v2")
    remote.held_by_another("path:src")
    assert "changes src/a\n" in refused(remote, "git push -q origin one two v2 main")
    remote.must("git push -q origin one")


def test_own_counts_in_a_push_as_in_a_commit(remote: Clone) -> None:
    remote.must("git config dibs.own true")
    commit(remote, "src/a")
    assert "You have not claimed src/a" in refused(remote)
    remote.must("dibs lock acquire path:src -q\ngit push -q origin main\ndibs lock release path:src")
