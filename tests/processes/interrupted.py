"""dibs or rlock with a signal to itself at a chosen moment: `interrupted.py MOMENT NUMBER PROGRAM WORDS…`.

MOMENT is `asked` (a claim is about to be sent), `committed` (the store has written it), `answered` (its answer is
there), or `printing`."""

from __future__ import annotations

import os
import sys
from typing import Any

from dibs.client.embedded import EmbeddedTransport
from dibs.client.http import HttpTransport

moment, number, program, *words = sys.argv[1:]
sent: list[str] = []


def strike(now: str) -> None:
    if now == moment and not sent:
        sent.append(now)
        os.kill(os.getpid(), int(number))


def around(kind: type, name: str, before: str, after: str, verbs: tuple[str, ...] | None) -> None:
    real = getattr(kind, name)

    def call(self: Any, *args: Any) -> Any:
        matters = verbs is None or args[0].verb in verbs
        if matters:
            strike(before)
        result = real(self, *args)
        if matters:
            strike(after)
        return result

    setattr(kind, name, call)


CLAIMS = ("acquire", "acquire-any", "acquire-all")
for transport in (EmbeddedTransport, HttpTransport):
    around(transport, "ask", "asked", "answered", CLAIMS)
if moment == "committed":
    from dibs.stores.git.store import GitStore
    from dibs.stores.sqlite.store import SqliteStore

    for store in (SqliteStore, GitStore):
        real = store.commit

        def commit(self: Any, expect: Any, puts: Any, events: Any, real: Any = real) -> Any:
            result = real(self, expect, puts, events)
            if any(event.kind in ("acquired", "queued") for event in events):
                strike("committed")
            return result

        store.commit = commit  # type: ignore[method-assign]


class Stdout:
    """Standard output, with a signal before what is written."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, text: str) -> int:
        strike("printing")
        return int(self._real.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


sys.stdout = Stdout(sys.stdout)
sys.argv = [program, *words]
if program == "dibs":
    from dibs.cli.main import entry
else:
    from dibs.compat.action_llama.rlock import rlock as entry
sys.exit(entry())
