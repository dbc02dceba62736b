"""The same calls through the store in this process and through a server get the same documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.files import token_path
from dibs.client.settings import read_token
from dibs.client.transport import Ask
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.client.transport import Transport
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
    *("held_ms", "last_heartbeat", "silent_ms"),
    "retry_after_ms",
}
VARY |= {"session_id", "user_id", "ticket"}
VARY |= {"at", "done_at", "done_ms_ago", "until", "done_until", "available_at", "seq", "request_id", "by"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Transport]:
    pytest.importorskip("httptools", reason="the server extra is not installed")
    env = {"XDG_STATE_HOME": str(tmp_path / "server"), "HOME": str(tmp_path)}
    env |= {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
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
            child.wait(60)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Transport]:
    transport = connect(f"sqlite://{tmp_path / 'own.db'}", namespace=None, token=None, timeout_ms=10_000)
    yield transport
    transport.close()


def known(value: Any) -> Any:
    """A document without what varies."""
    if isinstance(value, dict):
        return {key: None if key in VARY else known(each) for key, each in value.items() if key != "request_id"}
    if isinstance(value, str):
        return re.sub(r"\d+m?s ago( by \w+)?", "a moment ago", value)
    return [known(each) for each in value] if isinstance(value, list) else value


def program(transport: Transport) -> list[Reply]:
    """A life with everything in it. Long TTLs: nothing may run out while it runs."""
    replies: list[Reply] = []

    def call(verb: str, name: str, **document: Any) -> dict[str, Any]:
        replies.append(transport.ask(Ask(verb, name, document)))
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
    again = call("acquire", job, owner="agent-8", again=True, ttl_seconds=3600, lock_delay_seconds=60)["lease_id"]
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
    replies.append(transport.ask(Ask("list", "", {"limit": 3})))
    replies.append(transport.ask(Ask("list", "a", {"limit": 10})))
    replies.append(transport.ask(Ask("list", "", {"limit": 10, "after": "a/b"})))
    replies.append(transport.ask(Ask("history", job, {"limit": 100})))
    replies.append(transport.ask(Ask("history", job, {"limit": 2})))
    replies.append(transport.ask(Ask("history", "unheard of", {"limit": 5})))
    return replies


def coordination(transport: Transport) -> list[Reply]:
    """Sessions, lines, deadlocks, several jobs, shared and counted claims, trees, handing over."""
    replies: list[Reply] = []

    def call(verb: str, name: str, **document: Any) -> dict[str, Any]:
        replies.append(transport.ask(Ask(verb, name, document)))
        return replies[-1].body or {}

    def session(owner: str) -> str:
        return str(call("session-open", "", owner=owner, ttl_seconds=300)["session_id"])

    one, two, unknown = session("one"), session("two"), "00000000-0000-4000-8000-000000000000"
    call("session-open", "", owner="short", ttl_seconds=1)
    call("acquire", "a", session_id=one, owner="one")
    call("acquire", "b", session_id=two, owner="two", metadata="m")
    call("acquire", "b", session_id=one, owner="one")
    call("acquire", "a", session_id=two, owner="two", wait_seconds=1)
    for verb in ("session-show", "session-keep"):
        for each in (one, unknown, "nonsense", ""):
            call(verb, each)
    call("renew", "a", session_id=one, checkpoint="half way")
    call("renew", "a", session_id=two)
    call("acquire", "x", session_id=unknown)
    call("acquire", "x", session_id="nonsense")
    ticket = call("acquire", "b", owner="three", wait_seconds=1, request_key="k", ttl_seconds=3600)["ticket"]
    call("acquire", "b", owner="four", wait_seconds=1)
    call("acquire", "b", owner="three", ticket=ticket, wait_seconds=1)
    call("acquire", "a", owner="three", ticket=ticket)
    call("acquire", "b", owner="three", ticket="nonsense")
    call("acquire", "b", wait_seconds=999_999)
    call("leave", "a", ticket=ticket)
    call("leave", "b")
    call("inspect", "b")
    call("leave", "b", ticket=ticket)
    call("leave", "b", ticket=ticket)
    lists: list[Any] = [None, [], "x", ["a", "a"], ["n"] * 1001]
    for names in lists:
        call("acquire-any", "", names=names)
        call("acquire-all", "", names=names)
    call("acquire-any", "", names=["a", "b"], owner="five")
    call("acquire-any", "", names=["a", 5], owner="five")
    call("acquire-any", "", names=["a", "c", "d"], owner="five", ttl_seconds=3600)
    call("acquire-all", "", names=["e", "a"], owner="five")
    call("acquire-all", "", names=["f", "e"], owner="five", ttl_seconds=3600)
    call("acquire-all", "", names=["f", "g"], owner="six", wait_seconds=1)
    several: dict[str, dict[str, Any]] = {
        "acquire-all": {"names": ["h", "i"]},
        "acquire-any": {"names": ["j", "k"], "count": 2},
    }
    for verb, terms in several.items():
        call(verb, "", **terms, owner="five", ttl_seconds=3600, request_key=verb)
        call("break", terms["names"][0], reason="stuck")
        assert call(verb, "", **terms, owner="five", ttl_seconds=3600, request_key=verb)["rest"]
    call("acquire-all", "", names=["path:src", "path:src/x"], owner="five")
    call("acquire", "s", mode="shared", owner="one", ttl_seconds=3600)
    call("acquire", "s", mode="shared", owner="two", ttl_seconds=3600)
    call("acquire", "s", owner="three")
    call("inspect", "s")
    call("acquire", "n", slots=2, owner="one", ttl_seconds=3600)
    call("acquire", "n", slots=3, owner="two", ttl_seconds=3600)
    for slots in (0, -1, 10_001, "2"):
        call("acquire", "n", slots=slots, owner="two")
    call("acquire", "path:src/auth", owner="one", ttl_seconds=3600)
    call("acquire", "path:src", owner="two")
    call("acquire", "path:src//auth/", owner="two")
    call("acquire", "path:../x", owner="two")
    call("inspect", "path:src")
    call("close", "series", for_seconds=300, reason="renumbered")
    call("next", "series", owner="one")
    call("open", "series")
    call("next", "series", owner="one")
    call("acquire", "path:tree", session_id=one)
    call("acquire", "path:tree/leaf", session_id=one)
    call("transfer", "path:tree", session_id=one, to_owner="x")
    call("transfer", "a", session_id=one)
    call("transfer", "a", session_id=one, to_session=unknown)
    call("transfer", "a", session_id=two, to_owner="x")
    call("transfer", "a", session_id=one, to_session=two)
    call("renew", "a", session_id=one)
    call("acquire", "p", owner="one", ttl_seconds=3600, max_attempts=1)
    call("break", "p", reason="poison")
    call("acquire", "p", owner="two")
    call("inspect", "p")
    call("free", "p")
    call("free", "p")
    call("session-end", two)
    call("session-end", two)
    call("session-show", two)
    call("acquire", "x", session_id=two)
    call("inspect", "a")
    for name in ("a", "b", "p", "path:src"):
        replies.append(transport.ask(Ask("history", name, {"limit": 100})))
    replies.append(transport.ask(Ask("list", "", {"limit": 100})))
    return replies


def test_a_server_and_a_store_coordinate_alike(server: Transport, embedded: Transport) -> None:
    through_server, through_store = coordination(server), coordination(embedded)
    for number, (theirs, ours) in enumerate(zip(through_server, through_store, strict=True)):
        assert (number, theirs.status, known(theirs.body)) == (number, ours.status, known(ours.body))
    sessions = [(transport.ask(Ask("sessions")).body or {})["sessions"] for transport in (server, embedded)]
    for found in sessions:
        assert {"one"} <= {each["owner"] for each in found} <= {"one", "short"}


def test_a_server_and_a_store_give_the_same_documents(server: Transport, embedded: Transport) -> None:
    through_server, through_store = program(server), program(embedded)
    assert len(through_server) == len(through_store)
    for number, (theirs, ours) in enumerate(zip(through_server, through_store, strict=True)):
        assert (number, theirs.status, known(theirs.body)) == (number, ours.status, known(ours.body))
