"""The same calls through the store in this process and through a server get the same documents."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.settings import read_token
from dibs.client.connect import connect
from dibs.paths import token_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.client.door import Door
    from dibs.wire.documents import Reply

pytestmark = [pytest.mark.e2e, pytest.mark.promise("same-answer")]

# Ids are random, times pass, and a server names the credential and the request.
VARY = {
    "lease_id",
    "holder_id",
    "expires_at",
    "remaining_ms",
    "renew_after_ms",
    "since",
    "held_ms",
    "retry_after_ms",
}
VARY |= {"at", "done_at", "done_ms_ago", "until", "done_until", "available_at", "seq", "request_id", "by"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Door]:
    pytest.importorskip("uvicorn", reason="the server extra is not installed")
    env = {"XDG_STATE_HOME": str(tmp_path / "server"), "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "dibs", "serve", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        first = child.stderr.readline()  # ends when the server is up, or with the process
        try:
            assert "listens on http" in first, first + child.stderr.read()
            url = first.split()[-1]
            yield connect(url, namespace=None, token=read_token(token_path(env)), timeout_ms=10_000)
        finally:
            child.terminate()
            child.stderr.read()
            child.wait(20)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Door]:
    door = connect(f"sqlite://{tmp_path / 'own.db'}", namespace=None, token=None, timeout_ms=10_000)
    yield door
    door.close()


def known(value: Any) -> Any:
    """A document without what varies."""
    if isinstance(value, dict):
        return {
            key: None if key in VARY else known(each) for key, each in value.items() if key != "request_id"
        }
    if isinstance(value, str):
        return re.sub(r"\d+m?s ago( by \w+)?", "a moment ago", value)
    return [known(each) for each in value] if isinstance(value, list) else value


def program(door: Door) -> list[Reply]:
    """A life with everything in it. Long TTLs: nothing may run out while it runs."""
    replies: list[Reply] = []

    def call(verb: str, name: str, **document: Any) -> dict[str, Any]:
        replies.append(door.call(verb, name, document))
        return replies[-1].body or {}

    job = "github://acme/app/issues/42 é%2F"
    call("inspect", job)
    lease = call("acquire", job, owner="agent-7", ttl_seconds=3600, metadata="m", request_key="k")["lease_id"]
    call("acquire", job, owner="agent-7", ttl_seconds=3600, request_key="k")
    call("acquire", job, owner="agent-8", ttl_seconds=3600)
    call("inspect", job)
    call("renew", job, lease_id=lease, checkpoint="half way", ttl_seconds=7200)
    call("renew", job, lease_id="00000000-0000-4000-8000-000000000000")
    call("renew", job, lease_id="nonsense")
    call("renew", job)
    call("release", job, lease_id=lease, result="r")
    call("release", job, lease_id=lease, done_seconds=3600, result="PR 77", checkpoint="end")
    call("release", job, lease_id=lease)
    call("acquire", job, owner="agent-8")
    call("inspect", job)
    call("acquire", job, owner="agent-8", request_key="k", again=True)
    again = call("acquire", job, owner="agent-8", again=True, ttl_seconds=3600, lock_delay_seconds=60)[
        "lease_id"
    ]
    call("break", job)
    call("break", job, reason="it hangs")
    call("break", job, reason="again")
    call("renew", job, lease_id=again)
    call("acquire", job, owner="agent-9", again=True)
    call("inspect", job)
    call("acl", "none", acl={"acquire": ["user:x"]})
    call("acl", job, acl={"acquire": []})
    call("acl", job, acl={"acquire": ["user:x", "token:secret"]})
    call("inspect", job)
    for name in ("..", "a/b", "?#&+ %", "\u4e16\u754c", "-x"):
        call("acquire", name, owner="o", ttl_seconds=3600)
    for name in ("", "n" * 513, "a\nb", " a"):
        call("acquire", name, owner="o")
    for document in (
        {"ttl_seconds": 0},
        {"ttl_seconds": 86_401},
        {"ttl_seconds": -1},
        {"ttl_seconds": 1.5},
        {"owner": 5},
        {"owner": "o" * 257},
        {"metadata": "m" * 1025},
        {"request_key": ""},
        {"ephemeral": True},
        {"acl": {"acquire": "x"}},
    ):
        call("acquire", "bad", **document)
    replies.append(door.claimed("", "", 3))
    replies.append(door.claimed("a", "", 10))
    replies.append(door.claimed("", "a/b", 10))
    replies.append(door.history(job, 100))
    replies.append(door.history(job, 2))
    replies.append(door.history("unheard of", 5))
    return replies


def test_a_server_and_a_store_give_the_same_documents(server: Door, embedded: Door) -> None:
    through_server, through_store = program(server), program(embedded)
    assert len(through_server) == len(through_store)
    for number, (theirs, ours) in enumerate(zip(through_server, through_store, strict=True)):
        assert (number, theirs.status, known(theirs.body)) == (number, ours.status, known(ours.body))
