"""Remotes, clones and machines for tests of the git store."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Release, Renew
from dibs.core.outcomes import Granted, Held
from dibs.core.records import lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.git import location_of
from dibs.stores.git.store import GitStore
from dibs.stores.git.times import Clocks, Reading
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Store

TTL_MS = 60_000


def git(folder: Path | str, *words: str, given: bytes | None = None) -> str:
    """Run git, as a user would; its output."""
    ran = subprocess.run(
        ["git", *words], cwd=folder, input=given, capture_output=True, check=False, timeout=60, env=USER_ENV
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode().strip()


# Whoever runs the tests may have any configuration of git, or none.
USER_ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Machine:
    """A machine with its own clocks, and a remote whose clock is right. Machines of one number have one steady
    clock, and are one to dibs. `told`: whether the remote tells the time."""

    def __init__(self, number: int = 1, *, ahead_ms: int = 0, told: bool = True) -> None:
        self.clock = ManualClock(wall_ms=1_700_000_000_000 + ahead_ms, steady_ms=5_000_000 + number * 777)
        self.remote_ms = 1_700_000_000_000
        self._number = number
        self._told = told

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.remote_ms += ms

    def clocks(self) -> Clocks:
        clock = self.clock
        return Clocks(
            steady_ms=clock.steady_ms,
            wall_ms=clock.wall_ms,
            boot_id=lambda: f"{clock.boot_id()} of {self._number}",
            remote=self._reading,
        )

    def _reading(self) -> Reading | None:
        steady_ms = self.clock.steady_ms()
        if not self._told:
            return None
        return Reading(said_ms=self.remote_ms, began_ms=steady_ms, ended_ms=steady_ms, grain_ms=0)


def pass_time(machines: Iterable[Machine], ms: int) -> None:
    for machine in machines:
        machine.advance(ms)


class Remote:
    """A bare repository, and clones of it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.path = folder / "remote.git"
        self.address = f"file://{self.path}"
        git(folder, "init", "-q", "--bare", *flags, str(self.path))

    def clone(self, name: str) -> Path:
        """A clone with nothing in it but the remote's address."""
        clone = self.folder / name
        git(self.folder, "init", "-q", str(clone))
        git(clone, "remote", "add", "origin", self.address)
        return clone

    def refs(self) -> dict[str, str]:
        lines = git(self.path, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def hook(self, name: str, text: str) -> None:
        path = self.path / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)


def store_at(folder: Path, url: str = "git:origin", machine: Machine | None = None) -> GitStore:
    location = location_of(url, str(folder))
    location.poll_ms = min(location.poll_ms, 50)
    return GitStore(location, machine.clocks() if machine is not None else None)


def acquire(store: Store, name: str, owner: str = "a", ttl_ms: int = TTL_MS) -> Outcome:
    command = Acquire(ns="default", name=name, principal="p", owner=owner, ttl_ms=ttl_ms, fresh_lease_id=new_id())
    return Coordinator(store).one(command)


def granted(store: Store, name: str, owner: str = "a", ttl_ms: int = TTL_MS) -> Granted:
    outcome = acquire(store, name, owner, ttl_ms)
    assert isinstance(outcome, Granted)
    return outcome


def release(store: Store, name: str, lease_id: str) -> Outcome:
    return Coordinator(store).one(Release(ns="default", name=name, principal="p", lease_id=lease_id))


def renew(store: Store, name: str, lease_id: str) -> Outcome:
    return Coordinator(store).one(Renew(ns="default", name=name, principal="p", lease_id=lease_id))


def owner_of(held: Outcome) -> str:
    assert isinstance(held, Held)
    return held.blockers[0].holder.owner


class Race:
    """Several stores after one job, round after round: each of its races has one winner, whom every loser is told."""

    def __init__(self, stores: list[Store], advance: Callable[[int], None]) -> None:
        self.stores = stores
        self._advance = advance
        self.tokens: dict[str, list[int]] = {}

    def round(self, name: str) -> None:
        """Created, let go while others ask, and run out."""
        owner, lease = self._run(name, lambda number: self._ask(name, number))
        releasing = int(owner)

        def ask(number: int) -> Outcome:
            if number == releasing:
                return release(self.stores[number], name, lease)
            while owner_of_or_none(outcome := self._ask(name, number)) == owner:
                pass
            return outcome

        self._run(name, ask, without=releasing)
        for store in self.stores:  # on machines of their own: a lease is over for those who have seen it
            store.read([lock_key("default", name)])
        self._advance(TTL_MS + 1)
        self._run(name, lambda number: self._ask(name, number))
        tokens = self.tokens[name]
        assert tokens == sorted(set(tokens)), "a fencing token did not rise"

    def _ask(self, name: str, number: int) -> Outcome:
        return acquire(self.stores[number], name, str(number))

    def _run(self, name: str, ask: Callable[[int], Outcome], without: int = -1) -> tuple[str, str]:
        outcomes: dict[int, Outcome] = {}

        def run(number: int) -> None:
            outcomes[number] = ask(number)

        in_threads([partial(run, number) for number in range(len(self.stores))])
        outcomes.pop(without, None)
        won = [(number, each) for number, each in outcomes.items() if isinstance(each, Granted)]
        assert len(won) == 1, f"{len(won)} winners of {name}"
        number, grant = won[0]
        losers = [each for each in outcomes.values() if each is not grant]
        assert {owner_of(each) for each in losers} == {str(number)}
        self.tokens.setdefault(name, []).append(grant.lease.token)
        return str(number), grant.lease.lease_id


def owner_of_or_none(outcome: Outcome) -> str | None:
    return outcome.blockers[0].holder.owner if isinstance(outcome, Held) else None


class GitHttp:
    """git's own smart HTTP, behind a small server on loopback. `lose_replies`: how many of the next pushes are
    carried out and not answered; `midway`: the answer begins and breaks off, else there is not a byte of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lose_replies = 0
        self.midway = True
        self.pushes = 0
        self.ahead_ms = 0  # of its Date
        backend = os.path.join(git(root, "--exec-path"), "git-http-backend")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._serve(b"")

            def do_POST(self) -> None:
                self._serve(self._body())

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", "0")))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _serve(self, body: bytes) -> None:
                path, _, query = self.path.partition("?")
                env = {
                    **USER_ENV,
                    "GIT_PROJECT_ROOT": str(outer.root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "REMOTE_USER": "tester",
                    "REMOTE_ADDR": "127.0.0.1",
                }
                ran = subprocess.run([backend], input=body, capture_output=True, env=env, timeout=60, check=False)
                if self.command == "POST" and path.endswith("git-receive-pack"):
                    outer.pushes += 1
                    if outer.lose_replies > 0:
                        outer.lose_replies -= 1
                        self.close_connection = True
                        if outer.midway:
                            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
                        return
                self._answer(ran.stdout)

            def _answer(self, said: bytes) -> None:
                head, _, content = said.partition(b"\r\n\r\n")
                fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
                status = next((value for name, value in fields if name == "Status"), "200 OK")
                self.send_response(int(status.split(" ")[0]))
                for name, value in fields:
                    if name != "Status":
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string((timestamp or time.time()) + outer.ahead_ms / 1000)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def address(self, remote: Remote) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{remote.path.name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)
