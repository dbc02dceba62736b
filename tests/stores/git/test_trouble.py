"""What goes wrong between a clone and its remote, and what is said about it."""

from __future__ import annotations

import shutil
import stat
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput, NotAllowed, StoreCorrupt, StoreFull, StoreUnavailable
from dibs.base.git_program import GitResult
from dibs.base.redact import without_secrets
from dibs.core.holds import path_claims
from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Granted, Held
from dibs.core.records import Tree
from dibs.engine.queries import scan_records
from dibs.stores.git import errors as trouble
from dibs.stores.git import location_of
from dibs.stores.git.entries import tail_of
from dibs.stores.git.refs import Swap
from dibs.stores.git.repository import Git
from dibs.stores.port import Conflict
from dibs.testing.contract_base import lock, put
from tests.stores.git.harness import Machine, acquire, git, granted, owner_of, release, renew, store_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dibs.stores.git.store import GitStore
    from tests.stores.git.harness import GitHttp, Remote

pytestmark = pytest.mark.full

JOB = f"refs/dibs/{tail_of('lock/default/job')}"


def test_a_hook_that_declines_is_told_in_the_servers_words(remote: Remote) -> None:
    remote.hook("pre-receive", "echo 'claims are not welcome here' >&2; exit 1")
    store = store_at(remote.clone("one"))
    with pytest.raises(NotAllowed, match="claims are not welcome here") as caught:
        acquire(store, "job")
    assert "pre-receive hook declined" in caught.value.details
    assert "dibs doctor git:origin" in caught.value.details
    assert remote.refs() == {}


def test_a_hidden_ref_is_refused_and_the_doctor_knows_a_prefix_that_works(remote: Remote) -> None:
    git(remote.path, "config", "receive.hideRefs", "refs/dibs")
    clone = remote.clone("one")
    with pytest.raises(NotAllowed, match="hidden ref"):
        acquire(store_at(clone), "job")
    checks = {each["check"]: each for each in store_at(clone).probe()}
    assert not checks["create"]["ok"]
    assert "refs/heads/dibs works" in checks["create"]["says"]
    assert remote.refs() == {}
    assert isinstance(acquire(store_at(clone, "git:origin?prefix=refs/heads/dibs"), "job"), Granted)
    assert list(remote.refs()) == [JOB.replace("refs/dibs", "refs/heads/dibs")]


def test_a_remote_that_vanished_gives_nothing(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    lease = granted(store, "job").lease
    shutil.move(remote.path, f"{remote.path}.gone")
    with pytest.raises(StoreUnavailable) as caught:
        acquire(store, "job")
    assert not caught.value.unknown
    with pytest.raises(StoreUnavailable):
        renew(store, "job", lease.lease_id)
    shutil.move(f"{remote.path}.gone", remote.path)
    assert isinstance(renew(store, "job", lease.lease_id), Renewed)


def test_a_remote_that_vanishes_before_the_push_is_not_in_doubt(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    store.read(["lock/default/job"])
    shutil.rmtree(remote.path)
    swap = Swap("lock/x", "", store.refs.tree())
    with pytest.raises(StoreUnavailable) as caught:
        store.refs.swap([swap])
    assert not caught.value.unknown


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("midway", [True, False], ids=["breaks off", "never comes"])
def test_a_push_whose_reply_was_lost_is_found_by_reading(remote: Remote, http: GitHttp, midway: bool) -> None:
    store = store_at(remote.clone("one"))
    http.lose_replies, http.midway = 1, midway
    mine = granted(store, "job", "one")
    assert http.lose_replies == 0
    if midway:
        assert http.pushes == 1  # without a byte of an answer, the transport itself sends it again
    assert isinstance(renew(store, "job", mine.lease.lease_id), Renewed)
    assert [event.kind for event in store.events(0, 10)] == ["acquired"]
    assert isinstance(acquire(store_at(remote.clone("two")), "job", "two"), Held)


@pytest.mark.promise("idem:acquire")
def test_a_push_that_took_too_long_and_is_not_there_yet_is_in_doubt(remote: Remote) -> None:
    """The server may still be at it: asking again settles it, and there is never a second owner."""
    remote.hook("pre-receive", f"test -e {remote.folder}/go || sleep 5")
    store = store_at(remote.clone("one"), "git:origin?timeout=2500ms")
    with pytest.raises(StoreUnavailable) as caught:
        acquire(store, "job", "one")
    assert caught.value.unknown
    (remote.folder / "go").touch()
    assert isinstance(acquire(store_at(remote.clone("two")), "job", "two"), Granted | Held)
    assert len(remote.refs()) == 1


def test_up_to_date_is_not_success(remote: Remote) -> None:
    """Two clones that push the same object: the second one's push succeeds without having done anything."""
    one, two = store_at(remote.clone("one")), store_at(remote.clone("two"))
    granted(one, "job", "one")
    oid = remote.refs()[JOB]
    two.read(["lock/default/job"])
    assert not two.refs.swap([Swap(tail_of("lock/default/job"), "", oid)])


def test_a_record_that_somebody_broke_concerns_its_job_alone(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    granted(store, "job")
    granted(store, "other")
    empty = git(remote.path, "hash-object", "-t", "tree", "/dev/null")
    for broken in (
        git(remote.path, *"-c user.name=n -c user.email=e commit-tree -m".split(), "by hand", empty),
        git(remote.path, "hash-object", "-w", "--stdin", given=b"a blob"),
        git(remote.path, "rev-parse", f"refs/dibs/{tail_of('lock/default/other')}"),
    ):
        git(remote.path, "update-ref", JOB, broken)
        for each in (store, store_at(remote.clone(f"clone-{broken[:8]}"))):
            with pytest.raises(StoreCorrupt, match=JOB):
                acquire(each, "job")
            assert isinstance(acquire(each, "other", "two"), Held)
            assert [key for key, _ in each.scan("lock/")] == ["lock/default/other"]
            assert list(each.tidy()["broken"]) == [JOB]
    kept: list[str] = []
    assert store.damaged() == [JOB]
    assert store.set_aside(JOB, kept.append)
    assert len(kept) == 1
    assert (store.damaged(), git(remote.path, "for-each-ref", JOB)) == ([], "")
    assert isinstance(acquire(store, "job"), Granted)


def test_a_record_of_a_newer_dibs_is_not_read_as_something_else(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    granted(store, "job")
    text = git(remote.path, "cat-file", "commit", JOB).replace('{"dibs":10,', '{"dibs":11,')
    oid = git(remote.path, *"hash-object -t commit -w --stdin".split(), given=text.encode())
    git(remote.path, "update-ref", JOB, oid)
    with pytest.raises(StoreCorrupt, match="newer dibs") as caught:
        acquire(store, "job")
    assert "--set-aside" not in caught.value.details
    assert not store.set_aside(JOB, lambda text: None)
    assert (store.damaged(), git(remote.path, "rev-parse", JOB)) == ([], oid)


def test_credentials_are_never_asked_for_and_never_shown(remote: Remote, http: GitHttp) -> None:
    clone = remote.clone("one")
    secret = remote.address.replace("http://", "http://ann:hunter2@").replace("remote.git", "nothing.git")
    git(clone, "remote", "set-url", "origin", secret)
    with pytest.raises(StoreUnavailable) as caught:
        acquire(store_at(clone), "job")
    assert "hunter2" not in caught.value.details
    assert without_secrets(f"at {secret}: no") == f"at {secret.replace('ann:hunter2@', '')}: no"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("git:upstream", "It has: origin"),
        ("git:-x", "has no remote"),
        ("git:origin?prefx=refs/x", "is no option"),
        ("git:origin?prefix=refs/heads", "cannot be a prefix"),
        ("git:origin?prefix=heads/dibs", "cannot be a prefix"),
        ("git:origin?prefix=refs/a..b", "cannot be a prefix"),
        ("git:origin?skew=soon", "skew"),
        ("git+ftp://host/x", "names no git store"),
        ("git+ssh://", "names no repository"),
    ],
)
def test_an_address_that_is_none_is_reported_with_what_to_do(remote: Remote, url: str, words: str) -> None:
    clone = remote.clone("one")
    with pytest.raises(InvalidInput, match=words):
        location_of(url, str(clone))


def test_outside_of_a_clone_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is not in a git clone"):
        location_of("git:", str(tmp_path))


@pytest.mark.parametrize(("said", "words"), [("git version 2.30.1", "too old"), ("nonsense", "too old")])
def test_a_git_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    fake = tmp_path / "git"
    fake.write_text(f"#!/bin/sh\necho {said}\n", encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match=words):
        location_of("git:", str(tmp_path))


def test_a_machine_without_git_is_told_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="not installed"):
        location_of("git:", str(tmp_path))


def test_a_clone_whose_remote_has_two_push_addresses_must_name_one(remote: Remote) -> None:
    clone = remote.clone("one")
    git(clone, "remote", "set-url", "--add", "--push", "origin", remote.address)
    git(clone, "remote", "set-url", "--add", "--push", "origin", f"{remote.address}2")
    with pytest.raises(InvalidInput, match="2 push addresses"):
        location_of("git:origin", str(clone))


def test_claims_are_read_from_where_they_are_pushed(remote: Remote) -> None:
    clone = remote.clone("one")
    git(clone, "remote", "set-url", "origin", f"file://{remote.folder}/mirror-that-lags.git")
    git(clone, "remote", "set-url", "--push", "origin", remote.address)
    granted(store_at(clone), "job", "one")
    assert isinstance(acquire(store_at(remote.clone("two")), "job", "two"), Held)


def test_a_message_of_git_is_one_line(remote: Remote) -> None:
    result = GitResult(1, b"", b"remote: no\nhint: try\n\nerror: failed\n")
    assert result.words == "remote: no; error: failed"
    padding = b"\nPlease make sure you have the correct access rights\nand the repository exists.\n"
    refused = GitResult(128, b"", b"ssh: Permission denied (publickey)." + padding)
    assert refused.words == "ssh: Permission denied (publickey)"


def test_a_touched_record_is_no_conflict(remote: Remote) -> None:
    """Somebody else only looked at a record, which moves its ref: the change goes through on the second try."""
    machine = Machine()
    one, two = (store_at(remote.clone(name), machine=machine) for name in ("one", "two"))
    lease = granted(one, "job", "one").lease
    key = "lock/default/job"
    version = two.read([key, "lock/default/x"]).records[key].version
    before = remote.refs()[JOB]
    other = granted(one, "another", "one").lease  # a record to write beside it
    found = two.read(["lock/default/another"]).records["lock/default/another"]
    two.commit({key: version, "lock/default/another": found.version}, {"lock/default/another": found.record}, [])
    assert remote.refs()[JOB] != before
    assert two.read([key]).records[key].version == version
    assert isinstance(renew(one, "job", lease.lease_id), Renewed)
    assert isinstance(renew(one, "another", other.lease_id), Renewed)


def test_lock_files_of_a_killed_fetch_are_not_in_the_way(remote: Remote) -> None:
    clone = remote.clone("one")
    granted(store_at(clone), "job", "one")
    store_at(clone).read(["lock/default/job"])
    (found,) = (clone / ".git" / "dibs" / "remotes").glob(f"*/repo.git/refs/mirror/{tail_of('lock/default/job')}")
    lease = granted(store_at(remote.clone("two")), "another", "two").lease
    found.with_name(found.name + ".lock").touch()
    owner = store_at(remote.clone("three"))
    assert isinstance(acquire(owner, "job", "three"), Held)
    git(remote.path, "update-ref", "-d", JOB)  # so that the fetch has something to change there
    assert isinstance(acquire(store_at(clone), "job", "four"), Granted)
    assert isinstance(renew(owner, "another", lease.lease_id), Renewed)


def test_lock_files_that_stay_at_the_server_end_in_an_error_not_in_trying_for_ever(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.stores.git.store.GIT_TRIES_MAX", 3)
    store = store_at(remote.clone("one"))
    lease = granted(store, "job").lease
    (remote.path / f"{JOB}.lock").touch()
    with pytest.raises(StoreUnavailable, match="lock files"):
        renew(store, "job", lease.lease_id)
    (remote.path / f"{JOB}.lock").unlink()
    assert isinstance(renew(store, "job", lease.lease_id), Renewed)


def test_a_commit_that_writes_nothing_still_compares(remote: Remote) -> None:
    one, two = store_at(remote.clone("one")), store_at(remote.clone("two"))
    one.read(["lock/default/job"])
    granted(two, "job", "two")
    with pytest.raises(Conflict):
        one.commit({"lock/default/job": 0}, {}, ())


def test_the_cache_is_thrown_away_when_it_has_grown(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = remote.clone("one")
    store = store_at(clone)
    lease = granted(store, "job", "one").lease
    (private,) = (clone / ".git" / "dibs" / "remotes").glob("*/repo.git")
    monkeypatch.setattr("dibs.stores.git.refs.CACHE_FILES_MAX", 1)
    store.tidy()
    assert not private.exists()
    assert isinstance(renew(store, "job", lease.lease_id), Renewed)
    store.tidy()
    assert isinstance(renew(store_at(clone), "job", lease.lease_id), Renewed)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("error: cannot lock ref 'x': Unable to create 'x.lock': File exists.", "passing"),
        ("error: cannot lock ref 'x': Unable to create 'x.lock': Permission denied", NotAllowed),
        ("error: unable to create temporary file: No space left on device", StoreFull),
        ("fatal: the receiving end does not support --atomic push", StoreUnavailable),
    ],
)
def test_what_a_server_says_is_told_apart(remote: Remote, said: str, kind: Any) -> None:
    result = GitResult(1, b"!\tx:refs/dibs/x\t[remote rejected] (failed)\n", said.encode())
    assert trouble.is_passing(result) == (kind == "passing")
    if kind != "passing":
        assert type(trouble.refused(location_of("git:origin", str(remote.clone("one"))), result)) is kind


@pytest.mark.fault("F-081")
def test_no_program_that_asks_for_a_password_is_started(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = remote.clone("one")
    asker, asked = tmp_path / "asker", tmp_path / "asked"
    asker.write_text(f"#!/bin/sh\necho asked > '{asked}'\necho secret\n")
    asker.chmod(0o755)
    git(clone, "config", "core.askPass", str(asker))
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.setenv(name, str(asker))
    for given in ("GIT_ASKPASS", "core.askPass"):
        result = Git(f"{clone}/.git", str(clone)).run("credential", "fill", given=b"protocol=https\nhost=git.test\n\n")
        assert result.code
        assert not asked.exists(), given
        monkeypatch.delenv("GIT_ASKPASS", raising=False)


@pytest.mark.promise("all-or-nothing")
@pytest.mark.fault("F-082")
def test_a_step_in_a_clone_that_git_wrote_in_part_is_in_doubt(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(remote.clone("one"), "git:")
    run = store.refs.git.run

    def killed(*words: str, given: bytes = b"", **more: Any) -> GitResult:
        if words[0] != "update-ref":
            return run(*words, given=given, **more)
        first = next(line for line in given.splitlines(keepends=True) if line.startswith(b"update"))
        run(*words, given=first, **more)
        return GitResult(-9, b"", b"")

    monkeypatch.setattr(store.refs.git, "run", killed)
    with pytest.raises(StoreUnavailable) as told:
        put(store, lock("a"), lock("b"))
    assert told.value.unknown


def tear(store: GitStore, monkeypatch: pytest.MonkeyPatch, at: int = 0) -> None:
    """Of its next step with several refs, or the one after `at` others, the first ref is moved. Then git is killed, and
    those that come after find no lock files: somebody has removed them."""
    run, left = store.refs.git.run, [at + 1]

    def killed(*words: str, given: bytes = b"", **more: Any) -> GitResult:
        lines = given.splitlines(keepends=True)
        if (words[0] == "update-ref" and len(lines) > 1) or "--atomic" in words:
            left[0] -= 1
            if not left[0]:
                refs = sorted([word for word in words if ":refs/" in word], key=lambda each: each.partition(":")[2])
                words = tuple([word for word in words if word != "--atomic" and word not in refs[1:]])
                moved = [line for line in lines if line.startswith(b"update")]
                assert not run(*words, given=b"".join(moved[:1]), **more).code
                return GitResult(128, b"", b"fatal: the remote end hung up unexpectedly")
        return run(*words, given=given, **more)

    monkeypatch.setattr(store.refs.git, "run", killed)


@pytest.mark.fault("F-213")
@pytest.mark.promise("excl")
@pytest.mark.promise("tree")
@pytest.mark.parametrize("url", ["git:", "git:origin"])
def test_a_path_of_which_half_was_written_is_not_granted_before_the_tree_has_it(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    clone = remote.clone("one")
    store = store_at(clone, url)
    release(store, "path:a/x", granted(store, "path:a/x").lease.lease_id)
    tear(store, monkeypatch)
    assert granted(store, "path:a/x", "torn").lease.token == 2
    assert owner_of(acquire(store_at(clone, url), "path:a")) == "torn"


@pytest.mark.fault("F-213")
@pytest.mark.promise("tree")
@pytest.mark.parametrize("torn", [0, 1], ids=["the pages", "the tree"])
@pytest.mark.parametrize("url", ["git:", "git:origin"])
def test_pages_of_a_tree_are_there_before_the_tree_names_them(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, url: str, torn: int
) -> None:
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", 2)
    clone = remote.clone("one")
    store, other = store_at(clone, url), store_at(clone, url)
    names = ["path:1", "path:2", "path:3"]
    for name in names[:2]:
        granted(store, name, name)
    tear(store, monkeypatch, at=torn)
    granted(store, names[2], names[2])
    assert [owner_of(acquire(other, f"{name}/below")) for name in names] == names


def test_pages_that_no_tree_names_are_removed(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", 2)
    clone = remote.clone("one")
    store, other = store_at(clone), store_at(clone)
    granted(store, "path:1")
    granted(store, "path:2")
    swap, overtaken = store.refs.swap, list[Granted]()

    def late(swaps: Sequence[Swap], *more: Any) -> bool:
        if len(swaps) > 2 and not overtaken:
            overtaken.append(granted(other, "path:0"))
        return swap(swaps, *more)

    monkeypatch.setattr(store.refs, "swap", late)
    granted(store, "path:3")
    assert overtaken
    found = [record for _, record in scan_records(store, "tree/")]
    (tree,) = [each for each in found if isinstance(each, Tree) and not each.page]
    assert sorted(tree.pages) == sorted([each.page for each in found if isinstance(each, Tree) and each.page])
