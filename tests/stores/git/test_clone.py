"""Claims leave no trace in a clone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.core.lease_outcomes import Released
from dibs.core.limits import GIT_CHAIN_MAX, GIT_PAST_MAX, GIT_TOMBSTONE_MS, IDLE_RECORD_MS
from dibs.core.outcomes import Granted, Held
from dibs.engine.coordinator import Coordinator
from dibs.stores.git.entries import tail_of
from dibs.testing.contract_base import drop, event, key_of, lock, put
from tests.stores.git.harness import (
    Machine,
    Remote,
    acquire,
    git,
    granted,
    pass_time,
    release,
    renew,
    store_at,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.full

HERE = "-c user.name=n -c user.email=e".split()


def everything(folder: Path) -> dict[str, bytes]:
    """All files of a clone but dibs' own."""
    found = {}
    for parent, folders, files in os.walk(folder):
        if parent.endswith("/.git") and "dibs" in folders:
            folders.remove("dibs")
        for name in files:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[path] = file.read()
    return found


def test_a_remote_store_changes_nothing_in_the_clone(remote: Remote) -> None:
    clone = remote.clone("one")
    (clone / "file").write_text("x", encoding="utf-8")
    git(clone, "add", "file")
    git(clone, *HERE, "commit", "-q", "-m", "begin")
    git(clone, "push", "-q", "origin", "HEAD:refs/heads/main")
    git(clone, "fetch", "-q")
    (clone / "file").write_text("y", encoding="utf-8")
    git(clone, "add", "file")
    before = everything(clone)
    store = store_at(clone)
    lease = granted(store, "job").lease
    assert isinstance(acquire(store, "job", "two"), Held)
    renew(store, "job", lease.lease_id)
    assert isinstance(release(store, "job", lease.lease_id), Released)
    store.events(0, 10)
    store.tidy()
    store.probe()
    assert everything(clone) == before
    assert set(remote.refs()) == {"refs/heads/main", f"refs/dibs/{tail_of(key_of('job'))}"}
    # Nothing of the user's history came into dibs' own repository.
    (private,) = (clone / ".git" / "dibs" / "remotes").glob("*/repo.git")
    objects = git(private, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert "blob" not in objects


def test_a_local_store_adds_refs_and_objects_and_nothing_else(remote: Remote) -> None:
    clone = remote.clone("one")
    git(clone, *HERE, "commit", "-q", "--allow-empty", "-m", "begin")
    before = everything(clone)
    granted(store_at(clone, "git:"), "job")
    after = everything(clone)
    assert {path: after[path] for path in before} == before
    new = [os.path.relpath(path, clone / ".git") for path in after.keys() - before.keys()]
    assert {path.split(os.sep)[0] for path in new} == {"objects", "refs"}
    assert [path for path in new if path.startswith("refs")] == [f"refs/dibs/{tail_of(key_of('job'))}"]
    git(clone, "gc", "-q", "--prune=now")
    git(clone, "fsck", "--strict")
    assert isinstance(acquire(store_at(clone, "git:"), "job", "two"), Held)


def test_dibs_can_be_called_from_a_hook_that_has_an_index_and_a_quarantine(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = remote.clone("one")
    for name, value in (
        ("GIT_DIR", ".git"),
        ("GIT_INDEX_FILE", str(clone / "index-of-a-partial-commit")),
        ("GIT_OBJECT_DIRECTORY", str(clone / "quarantine")),
        ("GIT_QUARANTINE_PATH", str(clone / "quarantine")),
        ("GIT_PREFIX", "sub/"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(clone)
    for url in ("git:", "git:origin"):
        granted(store_at(clone, url), "job")
    assert not (clone / "quarantine").exists()
    assert list(remote.refs()) == [f"refs/dibs/{tail_of(key_of('job'))}"]


def test_the_users_settings_for_pushing_do_not_get_in_the_way(remote: Remote) -> None:
    clone = remote.clone("one")
    hooks = clone / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-push", "reference-transaction"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        (hooks / name).chmod(0o755)
    for setting, value in (
        ("remote.origin.mirror", "true"),
        ("push.followTags", "true"),
        ("push.gpgSign", "if-asked"),
        ("push.pushOption", "ci.skip"),
        ("push.useForceIfIncludes", "true"),
        ("fetch.prune", "true"),
        ("fetch.fsckObjects", "true"),
        ("core.logAllRefUpdates", "always"),
        ("log.showSignature", "true"),
        ("remote.origin.promisor", "true"),
        ("submodule.recurse", "true"),
    ):
        git(clone, "config", setting, value)
    for url in ("git:", "git:origin"):
        store = store_at(clone, url)
        lease = granted(store, "job").lease
        assert isinstance(release(store, "job", lease.lease_id), Released)
        assert [each.kind for each in store.events(0, 10)] == ["acquired", "released"]


def test_the_clones_own_way_to_the_remote_is_taken(remote: Remote) -> None:
    clone = remote.clone("one")
    git(clone, "remote", "set-url", "origin", "team:remote.git")
    git(clone, "config", f"url.file://{remote.folder}/.insteadOf", "team:")
    granted(store_at(clone), "job")
    assert len(remote.refs()) == 1


def test_a_relative_address_starts_at_the_clone(remote: Remote) -> None:
    clone = remote.clone("one")
    git(clone, "remote", "set-url", "origin", "../remote.git")
    (clone / "sub").mkdir()
    granted(store_at(clone / "sub"), "job")
    assert len(remote.refs()) == 1


def test_a_remote_by_its_address_needs_no_clone(remote: Remote, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    granted(store_at(nowhere, f"git+file://{remote.path}"), "job", "one")
    assert isinstance(acquire(store_at(remote.clone("one")), "job", "two"), Held)
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize("url", ["git:", "git:origin"])
def test_repositories_with_long_object_names_work(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(tmp_path, "--object-format=sha256")
    clone = remote.path if url == "git:" else tmp_path / "clone"
    if url == "git:":
        monkeypatch.setenv("GIT_DIR", str(remote.path))  # a bare repository is used only where it is named
    else:
        git(tmp_path, "init", "-q", "--object-format=sha256", str(clone))
        git(clone, "remote", "add", "origin", remote.address)
    granted(store_at(clone, url), "job", "one")
    assert isinstance(acquire(store_at(clone, url), "job", "two"), Held)
    assert {len(oid) for oid in remote.refs().values()} == {64}
    by_address = store_at(tmp_path, f"git+file://{remote.path}")
    assert isinstance(acquire(by_address, "job", "three"), Held)


def test_records_pass_the_strictest_check_of_a_server(remote: Remote) -> None:
    git(remote.path, "config", "transfer.fsckObjects", "true")
    git(remote.path, "config", "receive.denyNonFastForwards", "true")
    store = store_at(remote.clone("one"))
    put(store, lock('a "name" \\ 😀/é'), events=(event("x"),))
    git(remote.path, "fsck", "--strict")


def test_the_prefix_can_be_configured_for_a_clone(remote: Remote) -> None:
    clone = remote.clone("one")
    git(clone, "config", "dibs.prefix", "refs/heads/claims/of-agents")
    granted(store_at(clone), "job")
    assert list(remote.refs()) == [f"refs/heads/claims/of-agents/{tail_of(key_of('job'))}"]


@pytest.mark.promise("audit")
def test_history_is_the_log_of_the_jobs_ref(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    lease = granted(store, "job", "agent-7").lease
    release(store, "job", lease.lease_id)
    log = git(remote.path, "log", "--format=%s %an", f"refs/dibs/{tail_of(key_of('job'))}").splitlines()
    assert log == [
        "dibs: lock default/job released by agent-7 dibs",
        "dibs: lock default/job acquired by agent-7 dibs",
    ]
    other = store_at(remote.clone("two"))
    assert [each.kind for each in other.events(0, 10, ("default", "job"))] == ["acquired", "released"]


def test_a_chain_is_begun_anew_and_takes_its_newest_history_along(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(remote.path))
    store = store_at(remote.path, "git:")
    for token in range(1, GIT_CHAIN_MAX + 5):
        put(store, lock("x", token=token), events=(event("x", token=token),))
    name = f"refs/dibs/{tail_of(key_of('x'))}"
    assert int(git(remote.path, "rev-list", "--count", name)) < GIT_CHAIN_MAX
    tokens = [each.token for each in store.events(0, 1000, ("default", "x"))]
    assert len(tokens) >= GIT_PAST_MAX
    assert tokens == list(range(tokens[0], GIT_CHAIN_MAX + 5))


@pytest.mark.promise("token:rises")
def test_what_is_long_over_is_cleared_away_and_numbers_still_rise(remote: Remote) -> None:
    from dibs.client.embedded import EmbeddedTransport
    from dibs.client.store_admin import sweep

    machine = Machine()
    store = store_at(remote.clone("one"), machine=machine)
    lease = granted(store, "job").lease
    release(store, "job", lease.lease_id)
    lease = granted(store, "job").lease
    transport = EmbeddedTransport(lambda: Coordinator(store))
    pass_time([machine], lease.ttl_ms + 1)
    assert sweep(transport.store())["expired"] == 1
    pass_time([machine], IDLE_RECORD_MS + 1)
    assert sweep(transport.store())["forgotten"] == 1
    version = max(store.tips.look([""]).values(), key=lambda each: each.version).version
    name = f"refs/dibs/{tail_of(key_of('job'))}"
    assert name in remote.refs()
    pass_time([machine], GIT_TOMBSTONE_MS)
    assert sweep(transport.store())["removed"] >= 1
    assert name not in remote.refs()
    again = granted(store_at(remote.clone("two"), machine=machine), "job").lease
    assert again.token > lease.token
    assert store.read([key_of("job")]).records[key_of("job")].version > version


def test_a_ref_that_was_used_again_is_not_cleared_away(remote: Remote) -> None:
    machine = Machine()
    one, two = (store_at(remote.clone(name), machine=machine) for name in ("one", "two"))
    put(one, lock("a"), lock("b"))
    drop(one, key_of("a"), key_of("b"))
    pass_time([machine], GIT_TOMBSTONE_MS + 1)
    seen = one.refs.look
    looks = 0

    def look_and_be_overtaken(tails: Sequence[str]) -> dict[str, str]:
        nonlocal looks
        looks += 1
        found = seen(tails)
        if looks == 1:
            put(two, lock("a", token=2))
        return found

    one.refs.look = look_and_be_overtaken  # type: ignore[method-assign]
    assert one.tidy()["removed"] == 1
    assert list(remote.refs()) == [f"refs/dibs/{tail_of(key_of('a'))}"]
    assert isinstance(acquire(two, "a", "new", 1_000), Granted | Held)


def test_the_probe_leaves_nothing_behind(remote: Remote) -> None:
    git(remote.path, "config", "receive.denyDeletes", "false")
    checks = store_at(remote.clone("one")).probe()
    assert all(each["ok"] for each in checks)
    assert {"create", "replace", "compare", "together", "delete", "speed", "ttl"} <= {each["check"] for each in checks}
    assert remote.refs() == {}


def test_a_server_does_not_stand_on_git(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    assert not store.capabilities.serves
