"""A branch and the claim on the work in it, in one push: the server takes both or neither."""

from __future__ import annotations

from dibs.core.records import LockRecord, lock_key
from dibs.errors import InvalidInput
from dibs.service.coordinator import Coordinator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.core.commands import Renew
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored
    from dibs.stores.port import Store


def push_with_claim(
    store: Store, command: Renew, branch: str | None, folder: str
) -> tuple[Outcome, dict[str, Any]]:
    """The outcome of the renewal, and what was pushed if it was one. Raises BranchMoved."""
    carry = getattr(store, "carry", None)
    if carry is None:
        raise InvalidInput(
            "A branch can go with a claim only where both are at one git remote: --url git:origin."
        )
    key = lock_key(command.ns, command.name)

    def holds(puts: Mapping[str, Stored | None]) -> bool:
        """Whether what is to be written leaves the job with the caller. A note that it was lost carries no branch."""
        lock = puts.get(key)
        return isinstance(lock, LockRecord) and any(
            holder.lease_id == command.lease_id
            if command.lease_id is not None
            else holder.session == command.session
            for holder in lock.holders
        )

    pushed = carry(branch, folder, holds)
    return Coordinator(store).one(command), pushed
