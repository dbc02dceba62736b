"""What the integrations share: the settings of a claim, and the claim of the work that runs now."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput
from dibs.sdk.default import default_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.core.durations import Duration
    from dibs.sdk.claim import Claim
    from dibs.sdk.client import Client

_current: ContextVar[Claim] = ContextVar("dibs_claim")


def current_claim() -> Claim:
    """Its `check()` raises LeaseLost when the job is not surely ours any more; `previous` has the last checkpoint."""
    try:
        return _current.get()
    except LookupError:
        raise InvalidInput("No claim is held here. Call it in the thread that runs the work.") from None


@contextmanager
def entered(claim: Claim) -> Iterator[Claim]:
    """Enter the claim's block, and let `current_claim()` find it meanwhile."""
    with claim:
        token = _current.set(claim)
        try:
            yield claim
        finally:
            _current.reset(token)


class OneOwner:
    """Settings as class attributes, for a task or command with one owner."""

    ttl: Duration = 60
    done: Duration | bool | None = None  # for how long the job counts as done after success; True is a day
    max_attempts: int | None = None  # park the job after so many failures and losses in a row
    client: Client | None = None  # None: the one that the environment names (DIBS_URL, …)

    @property
    def claim(self) -> Claim:
        """The claim of the work that runs now."""
        return current_claim()

    @property
    def previous_checkpoint(self) -> str | None:
        """Where the previous owner of the job stopped."""
        previous = self.claim.previous
        return None if previous is None else previous.checkpoint

    def _claim_on(self, name: str, *, wait: Duration | None = None, metadata: str | None = None) -> Claim:
        client = self.client or default_client()
        return client.claim(name, ttl=self.ttl, wait=wait, metadata=metadata, max_attempts=self.max_attempts)

    def _succeeded(self, claim: Claim) -> None:
        if self.done is not None:
            claim.done(done=self.done)
