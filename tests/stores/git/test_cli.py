"""The ordinary commands on a git store."""

from __future__ import annotations

import io
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.cli.main import run
from dibs.server.run import serve
from dibs.server.settings import ServerSettings
from tests.stores.git.harness import git

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.git.harness import Remote


class Said:
    """What a command printed as JSON, and its exit code."""

    def __init__(self, *words: str, url: str = "git:origin") -> None:
        out = io.StringIO()
        env = {**os.environ, "USER": "ann", "DIBS_URL": url}
        self.exit = run([*words, "--json"], env, out, io.StringIO(), None)
        document: dict[str, Any] = json.loads(out.getvalue())
        self.data: dict[str, Any] = document.get("data") or document["error"]["details"]


@pytest.fixture
def clone(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> Path:
    clone = remote.clone("one")
    monkeypatch.chdir(clone)
    return clone


def test_a_worker_goes_through_its_loop(remote: Remote, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Said("claim", "issue-42", "--owner", "agent-7", "--ttl", "5m")
    assert mine.exit == 0
    monkeypatch.chdir(remote.clone("two"))
    held = Said("claim", "issue-42", "--owner", "agent-8")
    assert (held.exit, held.data["owner"]) == (1, "agent-7")
    assert [job["name"] for job in Said("list").data["locks"]] == ["issue-42"]
    lease = ("--lease", mine.data["lease_id"])
    assert Said("heartbeat", "issue-42", *lease, "--checkpoint", "half way").exit == 0
    assert Said("release", "issue-42", *lease, "--done=1h").exit == 0
    assert Said("claim", "issue-42").exit == 4
    kinds = [event["event"] for event in Said("history", "issue-42").data["events"]]
    assert kinds == ["acquired", "progress", "released"]


def test_a_session_holds_trees_and_ends(clone: Path) -> None:
    session = Said("session", "open").data["session_id"]
    for job in ("path:src/auth.rs", "issue-1"):
        assert Said("claim", job, "--session", session).exit == 0
    assert Said("claim", "path:src/").exit == 1
    assert Said("claim-all", "issue-1", "issue-2").exit == 1
    assert Said("session", "end", session).exit == 0
    assert Said("claim", "path:src/").exit == 0
    assert Said("claim-all", "issue-1", "issue-2").exit == 0


@pytest.mark.promise("queue:fifo")
def test_who_waits_gets_the_job_when_it_is_let_go(remote: Remote) -> None:
    url = f"git+file://{remote.path}"
    mine = Said("claim", "job", "--owner", "first", url=url)
    waited: list[Said] = []
    waiting = threading.Thread(
        target=lambda: waited.append(Said("claim", "job", "--owner", "next", "--wait", "60s", url=url)),
        daemon=True,
    )
    waiting.start()
    for _ in range(200):
        if Said("owner", "job", url=url).data.get("waiting"):
            break
        waiting.join(0.05)
    assert Said("release", "job", "--lease", mine.data["lease_id"], url=url).exit == 0
    waiting.join(60)
    assert [said.exit for said in waited] == [0]
    assert waited[0].data["fencing_token"] == 2


def test_the_doctor_looks_at_the_remote_that_is_named(remote: Remote, clone: Path) -> None:
    said = Said("doctor", "git:origin", url="")
    assert said.exit == 0
    assert {"create", "compare", "together", "delete", "ttl"} <= {each["check"] for each in said.data["checks"]}
    assert remote.refs() == {}
    remote.hook("pre-receive", "exit 1")
    said = Said("doctor", "git:origin", url="")
    assert said.exit == 69
    assert [each["check"] for each in said.data["checks"] if not each["ok"]] == ["create"]


def test_gc_names_what_it_left_alone(remote: Remote, clone: Path) -> None:
    blob = git(remote.path, "hash-object", "-w", "--stdin", given=b"x")
    git(remote.path, "update-ref", "refs/dibs/lock/by-hand", blob)
    said = Said("gc")
    assert said.exit == 0
    assert list(said.data["broken"]) == ["refs/dibs/lock/by-hand"]
    assert said.data["removed"] == 0


def test_a_server_is_told_that_it_cannot_stand_on_git(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(clone.parent / "state"))
    with pytest.raises(InvalidInput, match="cannot use git:origin"):
        serve(ServerSettings(store="git:origin", bind="127.0.0.1:0"))
