"""The ways to claim, written once: clients and sessions have them, for threads and for event loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dibs.sdk.operations import Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dibs.errors import LeaseLost

    OnLost = Callable[[LeaseLost], object]

C = TypeVar("C")
TTL_SECONDS = 60.0


class Claims(Generic[C]):
    """`ttl` is how long the claim outlives silence, 60 seconds by default. Inside a session it has none of its own."""

    def _begin(self, wish: Wish, on_lost: OnLost | None) -> C:
        """The claim, not yet taken."""
        raise NotImplementedError

    def _common(self, ttl: float | None, owner: str | None) -> dict[str, Any]:
        """What every wish of this client or session says."""
        raise NotImplementedError

    def claim(
        self,
        name: str,
        *,
        ttl: float | None = None,
        wait: float | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        again: bool = False,
        lock_delay: float | None = None,
        max_attempts: int | None = None,
    ) -> C:
        """`with client.claim("issue-42") as claim:` takes the job, heartbeats while the block runs, and lets it go.

        Raises JobHeld (with the owner), JobDone, WouldDeadlock, … when it cannot be had, after waiting in line for
        `wait` seconds: none by default, `math.inf` for as long as it takes. `again` claims also what counts as done."""
        wish = Wish(
            "acquire",
            [name],
            wait=wait,
            metadata=metadata,
            mode="shared" if shared else None,
            slots=slots,
            again=again,
            lock_delay_seconds=None if lock_delay is None else round(lock_delay),
            max_attempts=max_attempts,
            **self._common(ttl, owner),
        )
        return self._begin(wish, on_lost)

    def claim_any(
        self,
        names: Sequence[str],
        *,
        ttl: float | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        again: bool = False,
        max_attempts: int | None = None,
    ) -> C:
        """The first of `names` that is free, in one question; `claim.name` says which. Raises JobHeld when none is."""
        wish = Wish(
            "acquire-any",
            names,
            metadata=metadata,
            mode="shared" if shared else None,
            slots=slots,
            again=again,
            max_attempts=max_attempts,
            **self._common(ttl, owner),
        )
        return self._begin(wish, on_lost)

    def claim_all(
        self,
        names: Sequence[str],
        *,
        ttl: float | None = None,
        wait: float | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
        shared: bool = False,
        again: bool = False,
    ) -> C:
        """All of `names` or none of them. They are kept, lost and let go together."""
        wish = Wish(
            "acquire-all",
            names,
            wait=wait,
            metadata=metadata,
            mode="shared" if shared else None,
            again=again,
            **self._common(ttl, owner),
        )
        return self._begin(wish, on_lost)
