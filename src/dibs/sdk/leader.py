"""The leader of an election, as a block: a claim on the election's job."""

from __future__ import annotations

from dibs.core.names import ELECTION_PREFIX
from dibs.sdk.async_claim import AsyncClaim
from dibs.sdk.claim import Claim
from dibs.sdk.claim_state import ClaimState


class LeaderState(ClaimState):
    """What a claim says when it is an election."""

    _noun = "leader"

    def _not_taken_text(self) -> str:
        return f"The election was not won yet. Use the leader in a with block: `{self._block} … as leader:`."

    @property
    def election(self) -> str:
        """The name of the election."""
        return self.name.removeprefix(ELECTION_PREFIX)

    @property
    def term(self) -> int:
        """Rises with every leader. Send it with your writes, and let the receiver refuse smaller ones
        (`dibs.Fence`)."""
        return self.fencing_token

    @property
    def is_leader(self) -> bool:
        """Whether we certainly lead now. Cheap: it reads this machine's clock, not the network."""
        return self.remaining() > 0


class Leader(LeaderState, Claim):
    """`with client.leader(name) as leader:`. A loss is told as that of a claim: by `lost`, `on_lost`, `check()`, and at
    the end of the block."""

    def __enter__(self) -> Leader:
        super().__enter__()
        return self

    def resign(self) -> None:
        """Lead no more, before the block ends."""
        self.release()


class AsyncLeader(LeaderState, AsyncClaim):
    """`async with client.leader(name) as leader:`. When the leadership is lost, the block is cancelled and raises
    LeaseLost."""

    async def __aenter__(self) -> AsyncLeader:
        await super().__aenter__()
        return self

    async def resign(self) -> None:
        """Lead no more, before the block ends."""
        await self.release()
