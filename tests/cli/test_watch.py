"""dibs watch and history --follow: each event once, in order, from a store and from servers that come and go."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.client.embedded import EmbeddedTransport
from dibs.client.event_reader import asked_events
from dibs.engine.coordinator import Coordinator
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, dibs, reserved_ports, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


def test_watch_prints_what_happened_and_ends_after_a_time(terminal: Terminal) -> None:
    terminal("release", "issue-1", "--lease", terminal.claim("issue-1", "--owner", "bob"))
    terminal.claim("other", "--owner", "ann")
    told = terminal("watch", "--since", "1h", "--for", "0s")
    assert told.exit == 0
    assert [line.split("  ", 1)[1] for line in told.out.splitlines()] == [
        "issue-1  bob claimed it for 1m (token 1)",
        "issue-1  bob released it",
        "other  ann claimed it for 1m (token 1)",
    ]
    of_one = terminal("watch", "other", "--since", "1h", "--for", "0s", "--json").out
    assert [json.loads(line)["event"] for line in of_one.splitlines()] == ["acquired"]
    assert terminal("watch", "--prefix", "issue", "--since", "1h", "--for", "0s").out.count("\n") == 2
    assert terminal("watch", "--for", "0s").out == ""
    assert terminal("history", "issue-1", "--follow", "--since", "1h", "--for", "0s").out.count("\n") == 2
    assert terminal("watch", "job", "--prefix", "x").exit == 64


def test_watch_reports_pruned_history(terminal: Terminal) -> None:
    for number in range(5):
        terminal.claim(f"job-{number}")
    terminal.store.prune(keep=2, before_ms=0)
    told = terminal("watch", "--since", "1h", "--for", "0s").out
    assert told.count("\n") == 2  # what is asked for by time is what is left
    page: Any = EmbeddedTransport(lambda: Coordinator(terminal.store)).ask(asked_events("", None, 1, 10)).body
    assert page["gap"]["oldest"] == 4


class Watch:
    """`dibs watch --json`, or another command that goes on, in a process of its own."""

    def __init__(self, env: dict[str, str], *words: str, command: tuple[str, ...] = ("watch",)) -> None:
        self.process = subprocess.Popen(
            [*DIBS, *command, "--json", *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S_MAX)
        self._thread.join(WAIT_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.full
@pytest.mark.promise("events:ordered")
def test_watch_misses_nothing_while_servers_are_killed_and_started(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/shared.db"
    for each in "ab":
        (tmp_path / each).mkdir()
    with reserved_ports(2) as ports:
        a, b = (
            ServerProcess(tmp_path / each, store=store, bind=f"127.0.0.1:{port}")
            for each, port in zip("ab", ports, strict=True)
        )
        b.env = a.env  # one token for both
        _kill_and_start(store, a, b)


def _kill_and_start(store: str, a: ServerProcess, b: ServerProcess) -> None:
    with a, b:
        env = {**a.env, "DIBS_URL": f"{a.url},{b.url}", "DIBS_TOKEN": a.token}
        done = 0

        def claim(count: int) -> None:
            nonlocal done
            for _ in range(count):
                done += 1
                assert dibs({**env, "DIBS_URL": store}, "claim", f"job-{done}", "--owner", "me").exit == 0

        claim(1)
        watch = Watch(env, "--since", "1h")
        try:
            wait_until(lambda: len(watch.lines) == 1, "the past is told")
            claim(2)
            wait_until(lambda: len(watch.lines) == 3, "what another process does is told")
            a.kill()
            claim(2)
            wait_until(lambda: len(watch.lines) == 5, "the other server goes on")
            b.kill()
            claim(2)
            a.start()
            wait_until(lambda: len(watch.lines) == 7, "a server that is back goes on")
            assert [event["name"] for event in watch.lines] == [f"job-{number}" for number in range(1, 8)]
            seqs = [event["seq"] for event in watch.lines]
            assert seqs == sorted(set(seqs))
        finally:
            watch.close()
