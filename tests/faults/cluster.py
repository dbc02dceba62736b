"""Several `dibs serve` on one store, with one tokens file."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from dibs import Client
from dibs.base.ids import new_id
from tests.programs import DIBS, ServerProcess, clean_env, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from pathlib import Path

TOKEN = "dibs_several"


class Cluster:
    """Servers on one store, with one tokens file. The URL of the store and the command may differ from server to
    server."""

    def __init__(
        self,
        folder: Path,
        store_url: str | Callable[[int], str],
        stack: ExitStack,
        command: Callable[[int], Sequence[str]] = lambda number: DIBS,
    ) -> None:
        self.folder = folder
        self._store_url = store_url
        self._command = command
        self.stack = stack
        self.servers: list[ServerProcess] = []
        self._tokens = folder / "tokens"
        self._tokens.touch(mode=0o600)
        self._tokens.write_text(f"agent:{TOKEN}:admin\n")

    def start(self, count: int, *flags: str) -> None:
        for _ in range(count):
            number = len(self.servers)
            home = self.folder / f"server-{number}"
            home.mkdir()
            words = ("--tokens", str(self._tokens), *flags)
            store = self._store_url if isinstance(self._store_url, str) else self._store_url(number)
            server = ServerProcess(home, store=store, flags=words, command=self._command(number))
            self.stack.callback(end, server)
            server.start()
            self.servers.append(server)

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def client(self, url: str | None = None, **more: Any) -> Client:
        return self.stack.enter_context(Client(url or self.url, TOKEN, **more))

    def env(self) -> dict[str, str]:
        return clean_env(self.folder / "home", DIBS_URL=self.url, DIBS_TOKEN=TOKEN)

    def hit(self, fault: str, at: int = 0) -> None:
        """Do the fault to a server: by default to the one that the client uses."""
        server = self.servers[at]
        if fault == "killed":
            server.kill()
        elif fault == "told to end":
            server.process.send_signal(signal.SIGTERM)
        else:
            self.pause(at)

    def pause(self, at: int = 0) -> None:
        """SIGSTOP, but not in the middle of a write: SQLite's lock would keep the others from theirs."""
        others = self.client(self.servers[at - 1].url, timeout=0.7)  # within the TTL of what is held meanwhile

        def stands_still_and_others_can_write() -> bool:
            self.servers[at].pause()
            probe = f"probe-{new_id()}"  # a claim whose answer was lost may be held
            try:
                others.release(probe, others.acquire(probe).lease_id)
            except Exception:
                self.servers[at].resume()
                return False
            return True

        wait_until(stands_still_and_others_can_write, "a server stands still outside of a write")


def end(server: ServerProcess) -> None:
    if server.process.returncode is None:
        server.resume()
    server.kill()
