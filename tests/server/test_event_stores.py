"""Streams of events on real stores: two servers, a reader that changes between them, and one that is restarted."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dibs.sdk.client import Client
from tests.server.harness import TOKENS, Server
from tests.server.sse import StreamReader
from tests.server.test_events import happen, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.promise("events:ordered")
@pytest.mark.promise("events:told")
def test_a_reader_changes_between_servers_over_a_restart_and_misses_nothing(
    serve: Callable[[ExitStack], Server],
) -> None:
    with ExitStack() as rest:
        there = serve(rest)
        with ExitStack() as first:
            here = serve(first)
            client = Client(f"http://127.0.0.1:{here.port},http://127.0.0.1:{there.port}", TOKENS["agent"], timeout=5)
            rest.callback(client.close)
            events = rest.enter_context(client.events(after=0))
            with StreamReader(here.port, "/events?after=0") as reader:
                happen(there, "a")
                happen(here, "b")
                assert told(reader, 4) == [(kind, name) for name in "ab" for kind in ("acquired", "released")]
                last = reader.position
            seen = [next(events) for _ in range(4)]
        happen(there, "c")
        with ExitStack() as again:
            here = serve(again)  # with another id, on the same store
            with StreamReader(here.port, "/events", last_id=last) as reader:
                assert told(reader, 2) == [("acquired", "c"), ("released", "c")]
                happen(here, "d")
                happen(there, "e")
                assert told(reader, 4)[2:] == [("acquired", "e"), ("released", "e")]
            seen += [next(events) for _ in range(6)]
            assert [event.name for event in seen] == [name for name in "abcde" for _ in range(2)]
            seqs = [event.seq for event in seen]
            assert seqs == sorted(set(seqs))
            here.store.prune(keep=2, before_ms=0)
            with StreamReader(there.port, "/events", last_id=last) as reader:
                assert reader.next().kind == "gap"
                assert told(reader, 2) == [("acquired", "e"), ("released", "e")]
            with StreamReader(there.port, f"/events?after={seqs[-1] + 10**6}") as reader:
                assert reader.next().kind == "gap"


def test_a_git_store_is_followed_without_a_server(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    need_program("git")
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "it.git")], check=True)
    with Client(f"git+file://{tmp_path}/it.git", namespace="n") as client:
        with client.claim("a"):
            pass
        with client.events(after=0) as events:
            assert [next(events).event for _ in range(2)] == ["acquired", "released"]
            with client.claim("b"):
                pass
            assert [(next(events).name) for _ in range(2)] == ["b", "b"]
