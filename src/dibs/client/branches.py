"""Pushes a branch together with the claim on its job: the remote accepts both or neither."""

from __future__ import annotations

from dibs.base.errors import DibsError, HookRefused, InvalidInput
from dibs.core.commands import Renew
from dibs.core.identity import LOCAL
from dibs.core.keys import lock_key
from dibs.core.records import LockRecord
from dibs.engine.coordinator import Coordinator
from dibs.wire.documents import Reply, reply_for_error, reply_to
from dibs.wire.requests import command_for, shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.client.embedded import EmbeddedDoor
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored
    from dibs.stores.port import Store


def push_branch(
    door: EmbeddedDoor, name: str, document: dict[str, Any], branch: str | None, folder: str
) -> Reply:
    """Renew a claim that is kept at a git remote, and push a branch there, in one step. Raises HookRefused."""
    try:
        command = command_for("renew", door.namespace((name,)), name, shape("renew", document), LOCAL)
        assert isinstance(command, Renew)  # the verb makes a Renew
        outcome, pushed = push_with_claim(door.store(), command, branch, folder)
    except HookRefused:
        raise
    except DibsError as error:
        return reply_for_error(error)
    reply = reply_to("renew", outcome)
    return reply if reply.status >= 400 else Reply(status=200, body=(reply.body or {}) | {"pushed": pushed})


def push_with_claim(
    store: Store, command: Renew, branch: str | None, folder: str
) -> tuple[Outcome, dict[str, Any]]:
    """The outcome of the renewal, and what was pushed if it succeeded. Raises BranchMoved."""
    carry = getattr(store, "carry", None)
    if carry is None:
        raise InvalidInput(
            "A branch can go with a claim only where both are at one git remote: --url git:origin."
        )
    key = lock_key(command.ns, command.name)

    def holds(puts: Mapping[str, Stored | None]) -> bool:
        """Whether the caller still has the job after this write. A write that notes a loss carries no branch."""
        lock = puts.get(key)
        return isinstance(lock, LockRecord) and any(
            holder.lease_id == command.lease_id
            if command.lease_id is not None
            else holder.session == command.session
            for holder in lock.holders
        )

    pushed = carry(branch, folder, holds)
    return Coordinator(store).one(command), pushed
