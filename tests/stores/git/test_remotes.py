"""Remotes as they are found: strict, put back, read-only, and with refs that somebody wrote by hand."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import NotAllowed, StoreCorrupt
from dibs.core.lease_outcomes import Released, Renewed
from dibs.core.limits import GIT_RECORD_BYTES_MAX
from dibs.core.outcomes import Granted, Held
from dibs.stores.git.entries import tail_of
from tests.programs import reserved_ports
from tests.stores.git.harness import USER_ENV, acquire, git, granted, release, renew, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.stores.git.harness import GitHttp, Remote

pytestmark = pytest.mark.full

JOB = f"refs/dibs/{tail_of('lock/default/job')}"
BRANCHES = "git:origin?prefix=refs/heads/dibs"  # git's own strictness is about branches


# -- remotes that take only what follows


def test_a_job_lives_on_where_a_ref_may_not_be_begun_anew(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JOB.replace("refs/dibs", "refs/heads/dibs")
    monkeypatch.setattr("dibs.stores.git.plan.GIT_CHAIN_MAX", 4)
    git(remote.path, "config", "receive.denyNonFastForwards", "true")
    store = store_at(remote.clone("one"), BRANCHES)
    lease = granted(store, "job").lease
    for _ in range(10):
        assert isinstance(renew(store, "job", lease.lease_id), Renewed)
    assert isinstance(release(store, "job", lease.lease_id), Released)
    assert int(git(remote.path, "rev-list", "--count", job)) == 12
    assert [event.kind for event in store.events(0, 10)] == ["acquired", "released"]
    # Once it may be, it is: the history is bounded again.
    git(remote.path, "config", "receive.denyNonFastForwards", "false")
    lease = granted(store_at(remote.clone("two"), BRANCHES), "job").lease
    assert int(git(remote.path, "rev-list", "--count", job)) == 1
    assert [event.kind for event in store.events(0, 10)] == ["acquired", "released", "acquired"]


def test_the_doctor_says_what_a_strict_remote_means_and_leaves_nothing_broken(remote: Remote) -> None:
    git(remote.path, "config", "receive.denyNonFastForwards", "true")
    git(remote.path, "config", "receive.denyDeletes", "true")
    store = store_at(remote.clone("one"), BRANCHES)
    checks = {each["check"]: each for each in store.probe()}
    assert checks["replace"]["ok"]
    assert "history is never cut" in checks["replace"]["says"]
    assert checks["together"]["ok"]
    assert not checks["delete"]["ok"]
    assert remote.refs()  # they could not be deleted
    assert store.tidy()["broken"] == {}


def test_the_doctor_does_not_advise_the_prefix_that_was_refused(remote: Remote) -> None:
    git(remote.path, "config", "receive.hideRefs", "refs/heads/dibs")
    store = store_at(remote.clone("one"), BRANCHES)
    (create,) = [each for each in store.probe() if each["check"] == "create"]
    assert not create["ok"]
    assert "?prefix=" not in create["says"].replace(BRANCHES, "")


# -- remotes that were put back


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize("how", ["emptied", "restored"])
def test_numbers_go_on_above_what_this_clone_has_seen_when_the_remote_was_put_back(remote: Remote, how: str) -> None:
    clone = remote.clone("one")
    store = store_at(clone)
    old = ""
    for number in range(1, 5):
        lease = granted(store, "job").lease
        release(store, "job", lease.lease_id)
        old = old or remote.refs()[JOB]
        assert lease.token == number
    if how == "emptied":  # what `git push --mirror` from a clone without claims does
        git(remote.clone("mirror"), "push", "-q", "--mirror", "origin")
        assert remote.refs() == {}
    else:
        git(remote.path, "update-ref", JOB, old)
    again = store_at(clone)
    assert granted(again, "job").lease.token == 5
    (notice,) = again.notices()
    assert "was put back" in notice
    assert store_at(clone).notices() == []
    assert granted(store_at(remote.clone("two")), "other").lease.token == 1


def test_a_process_that_runs_on_notices_that_the_remote_was_put_back(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    for _ in range(3):
        release(store, "job", granted(store, "job").lease.lease_id)
    git(remote.path, "update-ref", "-d", JOB)
    assert granted(store, "job").lease.token == 4


# -- refs that somebody wrote by hand


def _written(remote: Remote, change: Callable[[dict[str, Any]], str | None]) -> str:
    """A commit like the job's, but for what `change` does to it, or with the text it gives."""
    head, _, message = git(remote.path, "cat-file", "commit", JOB).partition("\n\n")
    subject, _, text = message.partition("\n\n")
    body = json.loads(text)
    made = change(body) or json.dumps(body, separators=(",", ":"))
    raw = f"{head}\n\n{subject}\n\n{made}\n".encode()
    return git(remote.path, *"hash-object -t commit -w --stdin".split(), given=raw)


def _ttl_soon(body: dict[str, Any]) -> None:
    body["record"]["holders"][0]["ttl_ms"] = "soon"


def _expires_never(body: dict[str, Any]) -> None:
    body["record"]["holders"][0]["expires_ms"] = 10**300


def _stamp_soon(body: dict[str, Any]) -> None:
    body["stamp"]["wall_ms"] = "soon"


def _version_text(body: dict[str, Any]) -> None:
    body["version"] = "7"


def _long_line(body: dict[str, Any]) -> None:
    body["record"]["line"] = list(range(100_000))


def _of_another(body: dict[str, Any]) -> None:
    body["record"]["name"] = "other"


def _holder_none(body: dict[str, Any]) -> None:
    body["record"]["holders"] = [None]


def _bad_event(body: dict[str, Any]) -> None:
    body["events"] = [{"at_ms": "soon", "kind": 3}]


BAD: list[Callable[[dict[str, Any]], str | None]] = [
    _ttl_soon,
    _expires_never,
    _stamp_soon,
    _version_text,
    _long_line,
    _of_another,
    _holder_none,
    _bad_event,
    lambda body: "[" * 200_000,
    lambda body: '{"dibs":' + "[" * 200_000 + "]" * 200_000 + "}",
    lambda body: '{"dibs":1' + "0" * 100_000 + "}",
    lambda body: json.dumps(body)[:-1] + ',"x":"' + "x" * GIT_RECORD_BYTES_MAX + '"}',
]


def test_a_ref_written_by_hand_stops_its_own_job_and_no_other(remote: Remote) -> None:
    store = store_at(remote.clone("one"))
    for name in ("job", "other"):
        granted(store, name, ttl_ms=3_600_000)  # so many runs of git may take a slow machine a minute
    good = git(remote.path, "rev-parse", JOB)
    huge = git(remote.path, "hash-object", "-w", "--stdin", given=b"x" * (2 * GIT_RECORD_BYTES_MAX))
    for number, bad in enumerate([*[_written(remote, each) for each in BAD], huge]):
        git(remote.path, "update-ref", JOB, bad)
        for each in (store, store_at(remote.clone(f"clone-{number}"))):
            with pytest.raises(StoreCorrupt, match="is invalid"):
                acquire(each, "job", "two")
            assert isinstance(acquire(each, "other", "two"), Held)
            assert [key for key, _ in each.scan("lock/")] == ["lock/default/other"]
            assert each.due(10).keys == []
            assert [event.job for event in each.events(0, 10)] == ["other"]
            assert list(each.tidy()["broken"]) == [JOB]
        git(remote.path, "update-ref", JOB, good)
        assert isinstance(acquire(store, "job", "two"), Held)


# -- remotes that may be read and not written


@pytest.fixture
def daemon(remote: Remote) -> Iterator[str]:
    """The remote through git's own daemon, which serves reading alone."""
    with reserved_ports(1) as (port,):
        yield from _daemon(remote, port)


def _daemon(remote: Remote, port: int) -> Iterator[str]:
    words = [
        "git",
        "daemon",
        "--export-all",
        f"--base-path={remote.folder}",
        "--listen=127.0.0.1",
        f"--port={port}",
    ]
    process = subprocess.Popen([*words, "--reuseaddr"], env=USER_ENV, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < until, "git daemon did not come up"
                time.sleep(0.02)
        yield f"git://127.0.0.1:{port}/{remote.path.name}"
    finally:
        process.terminate()
        process.wait(60)


def test_a_git_daemon_that_only_reads_is_no_push_access(remote: Remote, daemon: str) -> None:
    remote.address = daemon
    store = store_at(remote.clone("one"))
    with pytest.raises(NotAllowed, match="no push access"):
        acquire(store, "job")
    assert store.time.ahead_ms() is None


def test_a_web_server_that_only_reads_is_no_push_access(remote: Remote, http: GitHttp) -> None:
    git(remote.path, "config", "http.receivepack", "false")
    with pytest.raises(NotAllowed, match="no push access"):
        acquire(store_at(remote.clone("one")), "job")


# -- secrets in addresses


def test_a_rotated_token_in_the_address_finds_the_same_memory(remote: Remote, http: GitHttp, tmp_path: Path) -> None:
    clone = remote.clone("one")
    plain = remote.address
    for token in ("first", "second"):
        git(clone, "remote", "set-url", "origin", plain.replace("http://", f"http://x:{token}@"))
        assert isinstance(acquire(store_at(clone), f"job-{token}"), Granted)
    assert len(list((clone / ".git" / "dibs" / "remotes").iterdir())) == 1
