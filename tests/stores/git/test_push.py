"""The branch and the claim in one push: a worker that lost the job cannot publish its work."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.cli.main import run
from dibs.client.store_admin import push_with_claim
from dibs.core.commands import Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Granted, NotCurrent
from tests.stores.git.harness import TTL_MS, Machine, acquire, git, granted, pass_time, release, store_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.git.harness import Remote

ID = "b87b39fb-d43b-45cc-bbb5-f06f1c5ddde6"
HERE = "-c user.name=n -c user.email=e".split()


def work(clone: Path, text: str = "work") -> str:
    """Something to publish, on the branch `main`."""
    git(clone, "checkout", "-q", "-B", "main")
    git(clone, *HERE, "commit", "-q", "--allow-empty", "-m", text)
    return git(clone, "rev-parse", "main")


def push(store: Any, clone: Path, lease_id: str) -> object:
    command = Renew(ns="default", name="job", principal="p", lease_id=lease_id)
    return push_with_claim(store, command, "main", str(clone))[0]


def at_remote(remote: Remote) -> str | None:
    return remote.refs().get("refs/heads/main")


def test_the_owner_publishes_and_stays_the_owner(remote: Remote) -> None:
    clone = remote.clone("one")
    store = store_at(clone)
    lease = granted(store, "job", "one").lease
    for text in ("first", "second"):
        done = work(clone, text)
        assert isinstance(push(store, clone, lease.lease_id), Renewed)
        assert at_remote(remote) == done
    assert isinstance(push(store, clone, lease.lease_id), Renewed)  # nothing new to push


def test_a_clone_in_which_no_other_command_ran_before_publishes_too(remote: Remote) -> None:
    lease = granted(store_at(remote.clone("one")), "job", "one").lease
    fresh = remote.clone("two")
    done = work(fresh)
    assert isinstance(push(store_at(fresh), fresh, lease.lease_id), Renewed)
    assert at_remote(remote) == done


@pytest.mark.promise("excl")
def test_an_owner_that_was_paused_and_lost_the_job_publishes_nothing(remote: Remote) -> None:
    machine = Machine()
    clone = remote.clone("one")
    store = store_at(clone, machine=machine)
    lease = granted(store, "job", "one").lease
    work(clone)
    pass_time([machine], TTL_MS + 1)
    assert isinstance(acquire(store_at(remote.clone("two"), machine=machine), "job", "two"), Granted)
    assert isinstance(push(store, clone, lease.lease_id), NotCurrent)
    assert at_remote(remote) is None


def test_an_owner_whose_time_is_over_publishes_nothing_though_nobody_took_over(remote: Remote) -> None:
    """What is written then is that it was lost: the branch does not go with that."""
    machine = Machine()
    clone = remote.clone("one")
    store = store_at(clone, machine=machine)
    lease = granted(store, "job", "one").lease
    work(clone)
    pass_time([machine], TTL_MS + 1)
    assert isinstance(push(store, clone, lease.lease_id), NotCurrent)
    assert at_remote(remote) is None


@pytest.mark.promise("excl")
def test_an_owner_paused_right_before_the_push_is_refused_by_the_server(remote: Remote) -> None:
    machine = Machine()
    clone = remote.clone("one")
    store, other = store_at(clone, machine=machine), store_at(remote.clone("two"), machine=machine)
    lease = granted(store, "job", "one").lease
    work(clone)
    sent: list[bool] = []
    send = store.refs.swap

    def pause_and_send(swaps: Any, branch_update: Any = None) -> bool:
        if not sent:  # everything is checked and ready: now it is stopped for long
            release(other, "job", lease.lease_id)
            assert isinstance(acquire(other, "job", "two"), Granted)
        sent.append(send(swaps, branch_update))
        return sent[-1]

    store.refs.swap = pause_and_send  # type: ignore[method-assign]
    assert isinstance(push(store, clone, lease.lease_id), NotCurrent)
    assert sent == [False]  # the push was sent, with the branch in it, and refused
    assert at_remote(remote) is None


def test_a_branch_that_somebody_pushed_to_is_not_overwritten(remote: Remote) -> None:
    clone, other = remote.clone("one"), remote.clone("two")
    store = store_at(clone)
    lease = granted(store, "job", "one").lease
    theirs = work(other, "theirs")
    git(other, "push", "-q", "origin", "main")
    work(clone, "mine")
    with pytest.raises(InvalidInput, match="git pull --rebase origin main"):
        push(store, clone, lease.lease_id)
    assert at_remote(remote) == theirs


def test_a_branch_that_somebody_pushes_to_at_the_same_moment_is_not_overwritten(remote: Remote) -> None:
    clone, other = remote.clone("one"), remote.clone("two")
    store = store_at(clone)
    lease = granted(store, "job", "one").lease
    work(clone, "mine")
    send = store.refs.swap

    def be_overtaken(swaps: Any, branch_update: Any = None) -> bool:
        work(other, "theirs")
        git(other, "push", "-q", "origin", "main")
        return send(swaps, branch_update)

    store.refs.swap = be_overtaken  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="at the same moment"):
        push(store, clone, lease.lease_id)
    assert at_remote(remote) == git(other, "rev-parse", "main")


class TestCommand:
    @pytest.fixture
    def clone(self, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> Path:
        clone = remote.clone("one")
        work(clone)
        monkeypatch.chdir(clone)
        return clone

    def dibs(self, *words: str) -> tuple[int, Any]:
        out = io.StringIO()
        code = run([*words, "--json"], {**os.environ, "USER": "ann"}, out, io.StringIO(), None)
        return code, json.loads(out.getvalue())

    def test_a_branch_is_pushed_with_its_claim(self, remote: Remote, clone: Path) -> None:
        _, claimed = self.dibs("claim", "job", "--url", "git:origin")
        lease = claimed["data"]["lease_id"]
        code, said = self.dibs("git", "push", "--job", "job", "--lease", lease)
        assert code == 0
        assert said["data"]["pushed"]["branch"] == "main"
        assert at_remote(remote) == said["data"]["pushed"]["after"]
        assert self.dibs("release", "job", "--lease", lease, "--url", "git:origin")[0] == 0
        work(clone, "too late")
        code, said = self.dibs("git", "push", "origin", "main", "--job", "job", "--lease", lease)
        assert code == 2
        assert "Nothing was pushed" in said["error"]["message"] or said["error"]["code"]
        assert at_remote(remote) != git(clone, "rev-parse", "main")

    def test_inside_a_session_the_name_is_enough(self, remote: Remote, clone: Path) -> None:
        _, opened = self.dibs("session", "open", "--url", "git:origin")
        session = opened["data"]["session_id"]
        assert self.dibs("claim", "job", "--session", session, "--url", "git:origin")[0] == 0
        code, _ = self.dibs("git", "push", "--job", "job", "--session", session)
        assert code == 0
        assert at_remote(remote) == git(clone, "rev-parse", "main")
        assert self.dibs("session", "end", session, "--url", "git:origin")[0] == 0

    def test_the_clones_pre_push_hook_is_asked_and_its_no_has_an_exit_of_its_own(
        self, remote: Remote, clone: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        _, claimed = self.dibs("claim", "job", "--url", "git:origin")
        hook = clone / ".git" / "hooks" / "pre-push"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text('#!/bin/sh\nread line; echo "not $1 $line" >&2; exit 1\n', encoding="utf-8")
        hook.chmod(0o755)
        code, said = self.dibs("git", "push", "--job", "job", "--lease", claimed["data"]["lease_id"])
        assert (code, said["error"]["code"]) == (1, "hook_refused")
        assert said["error"]["message"].count("Nothing was pushed") == 1
        assert f"not origin refs/heads/main {git(clone, 'rev-parse', 'main')}" in capfd.readouterr().err
        assert at_remote(remote) is None

    def test_what_the_pre_push_hook_says_is_seen_also_when_it_says_yes(
        self, remote: Remote, clone: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        _, claimed = self.dibs("claim", "job", "--url", "git:origin")
        hook = clone / ".git" / "hooks" / "pre-push"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text('#!/bin/sh\necho "42 tests passed"\n', encoding="utf-8")
        hook.chmod(0o755)
        assert self.dibs("git", "push", "--job", "job", "--lease", claimed["data"]["lease_id"])[0] == 0
        assert capfd.readouterr().err == "42 tests passed\n"

    def test_a_branch_that_moved_is_reported_once_and_nothing_is_pushed(self, remote: Remote, clone: Path) -> None:
        _, claimed = self.dibs("claim", "job", "--url", "git:origin")
        other = remote.clone("two")
        work(other, "theirs")
        git(other, "push", "-q", "origin", "main")
        code, said = self.dibs("git", "push", "--job", "job", "--lease", claimed["data"]["lease_id"])
        assert code == 64
        assert said["error"]["message"].count("othing was pushed") == 1

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("git", "push", "--lease", "x"), "needs --job"),
            (("git", "push", "origin", "no-such", "--job", "j", "--lease", ID), "no branch 'no-such'"),
            (("git", "push", "other", "--job", "j", "--lease", "x", "--url", "git:origin"), "one remote"),
            (("git", "push", "a", "b", "c", "--job", "j", "--lease", "x"), "a remote and a branch"),
        ],
    )
    def test_what_cannot_be_pushed_is_reported(self, clone: Path, words: tuple[str, ...], says: str) -> None:
        code, said = self.dibs(*words)
        assert code == 64
        assert says in said["error"]["message"]
