"""Staged paths checked against claims, in every way that git commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.cli.text.words import plain

if TYPE_CHECKING:
    from tests.plugins.shells.conftest import Clone

pytestmark = [pytest.mark.e2e, pytest.mark.full]

REFUSED = "dibs: this commit is refused."
ODD = [
    "with space.txt",
    "ünïcødé-日本.txt",
    "-dash",
    "quo'te\".txt",
    "tab\there",
    "new\nline",
    "end ",
    "\u202erlo",
]


def refused(clone: Clone, script: str = "git commit -qm more", **env: str) -> str:
    """What is said when it is."""
    ran = clone.sh(script, **env)
    assert ran.exit != 0, ran
    assert REFUSED in ran.err
    return ran.err


@pytest.mark.promise("tree")
@pytest.mark.parametrize("name", ["path:src/a.rs", "path:src", "repo:deploy"])
def test_a_path_that_another_claimed_is_refused(clone: Clone, name: str) -> None:
    clone.held_by_another(name)
    clone.stage("src/a.rs", "docs/b")
    said = refused(clone)
    assert f"agent-7 has {name} for another" in said
    assert ("docs/b" in said) is (name == "repo:deploy")


@pytest.mark.promise("tree")
def test_what_only_looks_alike_is_not_in_the_way(clone: Clone) -> None:
    clone.held_by_another("path:sr", "path:src/a", "path:src/a.rs.bak")
    clone.held_by_another("issue:src/a.rs", "src/a.rs")
    clone.stage("src/a.rs")
    assert clone.must("git commit -qm one").err == ""


def test_warn_says_whose_claim_is_touched_and_lets_it_pass(clone: Clone) -> None:
    clone.must("git config dibs.policy warn")
    clone.held_by_another("path:src")
    clone.stage(*(f"src/{number}" for number in range(8)))
    ran = clone.must("git commit -qm one")
    assert ran.err.splitlines()[0] == "dibs: this commit touches claims."
    assert "changes src/0, src/1, src/2, src/3, src/4 and 3 more" in ran.err


def test_off_asks_nobody(clone: Clone) -> None:
    clone.held_by_another("path:src")
    clone.stage("src/a")
    clone.must("git -c dibs.policy=off commit -qm one", DIBS_URL="http://127.0.0.1:1")


def test_odd_names_are_neither_missed_nor_mistaken(clone: Clone) -> None:
    clone.stage(*(f"d/{name}" for name in ODD), "d2/not", "e")
    clone.held_by_another("path:d")
    [touched] = clone.sh("dibs hook run pre-commit --json").error["details"]["touched"]
    assert sorted(touched["paths"]) == sorted(plain(f"d/{name}") for name in ODD)
    assert len(refused(clone).splitlines()) == 3  # no name breaks out of its line
    clone.must("dibs break path:d --reason next\ngit commit -qm one")


def test_a_name_that_is_no_text_is_guarded_by_its_folder(clone: Clone) -> None:
    clone.must("mkdir d && touch \"$(printf 'd/\\377')\" && git add -A")
    clone.held_by_another("path:d")
    assert "changes d/\\xff" in refused(clone)
    said = clone.sh("dibs claim --staged --json").error
    assert "Claim path:d." in said["message"]


def test_a_path_too_long_for_a_name_is_guarded_by_its_folders(clone: Clone) -> None:
    long = "/".join(["d" * 100] * 6)
    clone.stage(long)
    clone.held_by_another(f"path:{long[:302]}")
    refused(clone)
    ran = clone.sh("dibs claim --staged")
    assert ran.exit == 64
    assert "512 bytes" in ran.err
    assert "Claim path:" in ran.err


def test_an_odd_name_is_claimed_exactly(clone: Clone) -> None:
    clone.stage("with space.txt", "日本")
    ran = clone.must("dibs claim --staged --owner other --json | field data.leases.name", DIBS_ACTOR="other")
    assert ran.out.splitlines() == ["path:with space.txt", "path:日本"]
    assert refused(clone).count("other has path:") == 2
    clone.must("git commit -qm one", DIBS_ACTOR="other")


def test_both_sides_of_a_rename_count(clone: Clone) -> None:
    clone.stage("old/a", text="a long enough text to be seen as moved\n" * 9)
    clone.must("git commit -qm one\nmkdir new\ngit mv old/a new/a")
    clone.held_by_another("path:old")
    assert "changes old/a" in refused(clone)
    clone.must("dibs break path:old --reason next")
    clone.held_by_another("path:new")
    assert "changes new/a" in refused(clone)


def test_a_deletion_counts(clone: Clone) -> None:
    clone.stage("a", "b")
    clone.must("git commit -qm one\ngit rm -q a")
    clone.held_by_another("path:a")
    refused(clone)


def test_a_file_that_takes_the_place_of_a_folder_touches_what_was_in_it(clone: Clone) -> None:
    clone.stage("d/a")
    clone.must("git commit -qm one\ngit rm -rq d\necho > d\ngit add d")
    clone.held_by_another("path:d/b")
    assert "agent-7 has path:d/b" in refused(clone)


@pytest.mark.parametrize("how", ["git commit -qm two -o mine", "git commit -qm two mine", "git commit -qm two -i mine"])
def test_a_partial_commit_is_judged_by_what_it_commits(clone: Clone, how: str) -> None:
    clone.stage("mine", "theirs")
    clone.must("git commit -qm one\necho 2 > mine\necho 2 > theirs\ngit add theirs")
    clone.held_by_another("path:theirs")
    if "-i" in how:
        refused(clone, how)
    else:
        clone.must(how)
        refused(clone, "git commit -qm three -o theirs")
    refused(clone, "git commit -qam all")


def test_a_work_tree_of_its_own_shares_hooks_settings_and_claims(clone: Clone) -> None:
    clone.stage("a")
    clone.must("git commit -qm one\ngit config --unset dibs.policy\nmkdir -p .git/dibs")
    clone.write(".git/dibs/config.toml", 'lock_policy = "require"\n')
    clone.must("git worktree add -q ../tree")
    clone.held_by_another("path:a")
    refused(clone, "cd ../tree\necho 2 > a\nmkdir d\ncd d\ngit add -A :/\ngit commit -qm two")
    refused(clone, "cd ../tree\ngit commit -qm two -o a")


def test_what_a_merge_brings_in_is_not_this_commits_doing(clone: Clone) -> None:
    clone.stage("a", "both")
    clone.must("git commit -qm one\ngit checkout -qb side\necho side > a\necho side > both\ngit commit -qam side")
    clone.must(
        "git checkout -q main\necho main > both\ngit commit -qam main\n"
        "git merge -q side || :\necho x > both\ngit add both"
    )
    clone.held_by_another("path:a")
    clone.must("git commit -qm merged")
    clone.must("git reset -q --hard HEAD^\ngit merge -q side || :\necho x > both\ngit add both")
    clone.held_by_another("path:both")
    refused(clone)


def test_an_empty_commit_asks_nobody(clone: Clone) -> None:
    clone.must("git commit -q --allow-empty -m empty", DIBS_URL="http://127.0.0.1:1")


# Whose claims are yours.


def own(clone: Clone) -> None:
    clone.must("git config dibs.own true")
    clone.stage("src/a", "src/b")


def test_own_refuses_what_was_not_claimed(clone: Clone) -> None:
    own(clone)
    said = refused(clone)
    assert "You have not claimed src/a, src/b" in said
    assert "dibs claim --staged" in said
    assert "You have not claimed src/b" in refused(clone, "dibs lock acquire path:src/a -q\ngit commit -qm one")


@pytest.mark.fault("F-306")
@pytest.mark.parametrize(
    "claim",
    [
        "dibs claim --staged -q >/dev/null",
        "dibs lock acquire path:src -q",
        "dibs lock acquire repo:all -q",
        "dibs lock acquire path:src -q; dibs hook run pre-commit",
        "export DIBS_ACTOR=agent-1; dibs claim --staged -q >/dev/null",
        "export DIBS_ACTOR=agent-1; sh -c 'dibs lock acquire path:src -q; :'",
        "export DIBS_ACTOR=agent-1; dibs claim path:src -q >/dev/null",
        "export DIBS_LEASE=$(dibs claim path:src -q)",
        "export DIBS_SESSION=$(dibs session open -q); dibs claim path:src -q >/dev/null",
        "git config alias.ci '!git commit'; dibs claim --staged -q >/dev/null; git ci -qm one; exit",
    ],
)
def test_what_proves_that_a_claim_is_yours(clone: Clone, claim: str) -> None:
    own(clone)
    clone.must(f"{claim}\ngit commit -qm one")
    assert clone.sh("git log --oneline").out.count("\n") == 1


@pytest.mark.promise("excl:same-token")
@pytest.mark.parametrize(
    "claim",
    [
        "dibs claim path:src -q >/dev/null",  # nobody showed its lease
        "sh -c 'dibs lock acquire path:src -q; :'",  # another shell's
        "DIBS_ACTOR=agent-1 dibs lock acquire path:src -q",
        "dibs claim path:src -q >/dev/null; export DIBS_LEASE=00000000-0000-4000-8000-000000000000",
        "dibs claim path:src -q >/dev/null; export DIBS_SESSION=$(dibs session open -q)",
    ],
)
def test_what_proves_nothing(clone: Clone, claim: str) -> None:
    own(clone)
    said = refused(clone, f"{claim}\ngit commit -qm one")
    assert "has path:src for another" in said
    assert "You have not claimed src/a" in said


@pytest.mark.fault("F-306")
def test_the_same_path_in_another_repository_proves_nothing(clone: Clone) -> None:
    elsewhere = clone.shells.folder / "elsewhere"
    clone.must(f"git init -q {elsewhere} && cd {elsewhere} && dibs claim path:src -q --actor agent-1 >/dev/null")
    clone.held_by_another("path:src")
    clone.stage("src/a")
    assert "agent-7 has path:src for another" in refused(clone, DIBS_ACTOR="agent-1")


def test_a_shared_claim_of_yours_does_not_cover_a_change(clone: Clone) -> None:
    own(clone)
    assert "not claimed src/a" in refused(
        clone, "export DIBS_LEASE=$(dibs claim path:src -q --shared)\ngit commit -qm one"
    )


def test_a_lock_that_ran_out_and_went_to_another_is_not_yours(clone: Clone) -> None:
    own(clone)
    script = "dibs lock acquire path:src -q\ndibs break path:src -q --reason test\n"
    said = refused(clone, f"{script}dibs lock acquire path:src -q --actor agent-7\ngit commit -qm one")
    assert "agent-7 has path:src" in said


# claim --staged


@pytest.mark.promise("all-or-nothing")
def test_all_that_is_staged_or_nothing(clone: Clone) -> None:
    clone.stage("a", "b", "c")
    clone.held_by_another("path:b")
    ran = clone.sh("dibs claim --staged")
    assert ran.exit == 1
    assert "path:b  agent-7 has it" in ran.out
    assert clone.sh("dibs list -q").out == "path:b\n"


def test_claims_of_what_is_staged_are_let_go_by_name(clone: Clone) -> None:
    clone.stage("a")
    ran = clone.must("dibs claim --staged -q >/dev/null\ndibs lock renew path:a --ttl 1h -q\ndibs lock release path:a")
    assert ran.out.startswith("Lock released")


def test_nothing_staged_is_said(clone: Clone) -> None:
    ran = clone.sh("dibs claim --staged")
    assert ran.exit == 64
    assert "Nothing is staged" in ran.err


def test_a_job_and_what_is_staged_are_one_too_many(clone: Clone) -> None:
    assert "not both" in clone.sh("dibs claim job --staged").err


def test_too_much_for_one_step_is_said_with_the_folders_to_claim(clone: Clone) -> None:
    clone.stage(*(f"{'src' if number % 2 else 'docs'}/deep/{number}" for number in range(120)))
    ran = clone.sh("dibs claim --staged")
    assert ran.exit == 64
    assert "120 paths are staged, but at most 100 can be claimed in one step" in ran.err
    assert "dibs claim-all path:docs path:src" in ran.err


def test_a_folder_that_became_a_file_is_claimed_once(clone: Clone) -> None:
    clone.stage("d/a", "d/b")
    clone.must("git commit -qm one\ngit rm -rq d\necho > d\ngit add d")
    assert clone.must("dibs claim --staged -q | cut -f1").out == "path:d\n"
