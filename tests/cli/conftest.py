"""A terminal for tests: commands run in this process, on a store in memory with a manual clock."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.main import run
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import OneNamespace
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

if TYPE_CHECKING:
    from dibs.client.settings import Settings

START_MS = 1_763_172_845_123


class Ran:
    """The output and exit code of one command."""

    def __init__(self, exit_code: int, out: str, err: str) -> None:
        self.exit = exit_code
        self.out = out
        self.err = err

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        assert self.err == ""
        assert self.out.count("\n") == 1
        document: dict[str, Any] = json.loads(self.out)
        assert document["schema_version"] == 1
        assert document["ok"] is (self.exit == 0)
        wanted = {"data"} if document["ok"] else {"error", "data"} if "data" in document else {"error"}
        assert set(document) == {"schema_version", "ok", *wanted}
        if "error" in wanted and "data" in wanted:
            assert document["data"] == document["error"]["details"]
        return document

    @property
    def everything(self) -> dict[str, Any]:
        """The document's `data`, of a success or a refusal."""
        document = self.document
        carried: dict[str, Any] = document["data"] if document["ok"] else document["error"]["details"]
        return carried

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.document["data"]
        return data

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.document["error"]
        assert set(error) == {"code", "message", "details"}
        return error


class Screen(io.StringIO):
    """Where somebody looks."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """`terminal("claim", "job")` types a command. On a `screen`, stderr is a terminal."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.store = MemoryStore(lambda: self.now_ms)
        self.env: dict[str, str] = {"USER": "ann"}
        self.screen = False

    def __call__(self, *argv: str, stdin: bytes | None = b"") -> Ran:
        out, err = io.StringIO(), Screen() if self.screen else io.StringIO()
        source = None if stdin is None else io.BytesIO(stdin)
        exit_code = run(argv, self.env, out, err, source, self._open)
        return Ran(exit_code, out.getvalue(), err.getvalue())

    def _open(self, settings: Settings) -> EmbeddedTransport:
        return EmbeddedTransport(lambda: Coordinator(self.store), OneNamespace(settings.namespace))

    def claim(self, job: str, *flags: str) -> str:
        """Claim a job and give its lease id."""
        ran = self("claim", "-q", *flags, "--", job)
        assert ran.exit == 0
        return ran.out.strip()

    def session(self, *flags: str) -> str:
        """Open a session and give its id."""
        ran = self("session", "open", "-q", *flags)
        assert ran.exit == 0
        return ran.out.strip()

    def until_in_line(self, job: str, count: int) -> None:
        """Wait in real time, with a bound, until this many are in a job's line."""
        for _ in range(400):
            if self("owner", job, "--json").everything.get("waiting") == count:
                return
            newest = self.store.events(0, 1, newest=True)
            self.store.watch(newest[-1].seq if newest else 0, 50)
        raise AssertionError(f"nobody got in line for {job}")

    def wait(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()
