"""Runs without a server: the gateway's operations on run secrets, on a local store."""

from __future__ import annotations

from dibs.client.embedded import EmbeddedDoor, answered
from dibs.compat.action_llama.runs import (
    ended_document,
    open_run_command,
    opened_document,
    principal_of,
    run_document,
    run_of,
    session_of,
)
from dibs.core.commands import EndSession, KeepSession
from dibs.core.identity import LOCAL
from dibs.engine.coordinator import Coordinator
from dibs.engine.queries import inspect_one, open_sessions
from dibs.wire.documents import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.compat.action_llama.runs import Run

    Document = dict[str, Any]


class EmbeddedRuns:
    """The runs of the namespace that `door` works in."""

    def __init__(self, door: EmbeddedDoor) -> None:
        self._door = door

    def as_run(self, secret: str, *, audited: bool = True) -> tuple[Run, EmbeddedDoor] | None:
        """The run of a secret, and a door to the same store that acts as that run. None: no such run, or it has ended.

        With `audited` the history records the run's requests. Raises the store's errors."""
        store = self._door.store
        run = run_of(inspect_one(store(), session_of(secret)))
        if run is None:
            return None
        if run.stale:
            Coordinator(store()).one(KeepSession(session=run.session, principal=run.caller.principal))
        return run, EmbeddedDoor(store, run.namespace, run.caller.replace(audited=audited))

    def open_run(self, document: Document) -> Reply:
        """Begin a run; the reply holds its secret."""

        def answer() -> Reply:
            command, secret = open_run_command(self._door.namespace(), document, LOCAL)
            outcome = Coordinator(self._door.store()).one(command)
            return Reply(status=201, body=opened_document(command, outcome, secret))

        return answered(answer)

    def runs(self) -> Reply:
        def answer() -> Reply:
            found = open_sessions(self._door.store(), principal_of(self._door.namespace()))
            return Reply(status=200, body={"runs": [run_document(state) for state in found]})

        return answered(answer)

    def end_runs(self, holder: str) -> Reply:
        """End every run of `holder` and free its locks."""

        def answer() -> Reply:
            store, ns = self._door.store(), self._door.namespace()
            found = [
                state for state in open_sessions(store, principal_of(ns)) if state.session.owner == holder
            ]
            for state in found:
                Coordinator(store).one(
                    EndSession(session=state.session.id, principal=state.session.principal)
                )
            return ended_document(ns, holder, found)

        return answered(answer)
