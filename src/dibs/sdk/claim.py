"""A claim as a `with` block: taken at its start, renewed while it runs, released at its end.

`async_claim.py` has it for event loops. A program without one does not import `asyncio`, which costs more than a claim.
"""

from __future__ import annotations

from dibs.base.cheap import TypeVar, ref
from dibs.base.errors import DibsError, LeaseLost, Unavailable
from dibs.base.logger import log
from dibs.client.flow import drive
from dibs.client.pending import PendingClaim
from dibs.client.pool import TransportPool
from dibs.sdk import claim_state
from dibs.sdk.answers import Lease
from dibs.sdk.claim_state import ClaimEnd
from dibs.sdk.heart import Grip, SafeEvent, beat_once, in_own_thread
from dibs.sdk.hold import LeaseHold, SessionHold
from dibs.sdk.methods import explained, given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from dibs.sdk.effects import StepBlock, Unsure

T = TypeVar("T")


class LostEvent(SafeEvent):
    """Set when the claim is lost. Also looks at the clock, so that it agrees with `check()`."""

    def __init__(self, hold: LeaseHold) -> None:
        super().__init__()
        self._hold = ref(hold)
        hold.listen(lambda _: self.set())

    def is_set(self) -> bool:
        hold = self._hold()
        if hold is not None and hold.was_lost:
            self.set()
        return super().is_set()


def given_up(transports: TransportPool, request: PendingClaim, session: SessionHold | None = None) -> None:
    """Withdraw the claim. If nobody answers now, its session does it later; without a session it expires."""
    withdrawn = False
    try:
        with transports.one(claim_state.GIVE_UP_MS) as transport:
            withdrawn = drive(transport, request.withdraw())
    except DibsError:
        pass
    finally:
        if session is not None and not withdrawn:
            session.say_later(request.withdraw)


class Claim(claim_state.ClaimState["TransportPool"]):
    """`with client.claim(name) as claim:`. Its attributes are valid inside the block.

    When the claim is lost, `lost` is set, `on_lost` is called once with the LeaseLost, and `check()` and the end of
    the block raise it. A lost claim is never taken again automatically."""

    _lost: LostEvent | None = None

    @property
    def _renewed_by(self) -> TransportPool:
        return self._transports

    @property
    def lost(self) -> LostEvent:
        """Set when the claim is lost: a `threading.Event` to check or wait for."""
        if self._lost is None:
            self._lost = LostEvent(self._hold)
        return self._lost

    def __enter__(self) -> Self:
        request = self._begun()
        span = claim_state.begin_claim()
        try:
            hold = self._taken(request)
            claim_state.end_claim(span, hold)
            self._keep(hold)
            self._span = claim_state.begin_hold(hold)
        except BaseException as error:  # not claimed; or no thread, or an interrupt: nothing would renew it
            if self._held is None:
                claim_state.end_claim(span, None, error)
            elif left := self._held.leave(self, self.leases):
                self._held.let_go_of(left)
                given_up(self._transports, request, self._session)
            raise
        return self

    def _keep(self, hold: LeaseHold) -> None:
        if self._on_lost is not None:
            hold.listen(in_own_thread(self._on_lost))
        if self._session is None and self._grip is None:
            self._grip = Grip(hold, self._transports)

    def _taken(self, request: PendingClaim) -> LeaseHold:
        try:
            with self._transports.one() as transport:
                self._held = drive(
                    transport, claim_state.take(request, self._session, self._join if self._nested else None)
                )
                self._enter(self._held)
                return self._held
        except BaseException as error:
            if not claim_state.is_refusal(error):
                given_up(self._transports, request, self._session)
            raise
        finally:
            if self._session is not None:
                self._session.answered(request)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._leave(error)
        except DibsError:
            raise
        except BaseException:  # an interrupt: stop renewing in any case
            self._abandon(error)
            raise
        finally:
            claim_state.end_hold(self._span, self._hold, error)

    def _abandon(self, error: BaseException | None) -> None:
        hold = self._hold
        left = hold.leave(self, self.leases)
        if not left:
            return
        if hold.is_ours and (ended := hold.give_up(left)):
            self._released(hold, ended, error, claim_state.GIVE_UP_MS)

    def _leave(self, error: BaseException | None) -> None:
        hold = self._hold
        if not hold.is_ours:
            return  # a forked child does not touch the parent's claim
        left = hold.leave(self, self.leases)
        if not hold.has(self.leases) or (not left and not hold.was_lost):
            return  # it was ended before, or another block has it, too
        lost = None
        if ended := hold.give_up(left):
            lost = self._released(hold, ended, error)
        claim_state.raise_if_lost_at_exit(hold, error, lost)

    def _released(
        self, hold: LeaseHold, leases: tuple[Lease, ...], error: BaseException | None, timeout_ms: int | None = None
    ) -> LeaseLost | None:
        try:
            with self._transports.one(timeout_ms) as transport:
                return drive(
                    transport, claim_state.release_at_exit(hold, leases, error, fail_on_error=self._fail_on_error)
                )
        except Unavailable as trouble:  # the client was closed inside the block
            log.warning("%s could not be released and will expire: %s", leases[0].name, trouble.details)
            return None

    @explained
    def checkpoint(self, text: str, *, metadata: str | None = None) -> None:
        """Store progress for the next owner, now. If that fails, it is sent with the next heartbeat. What cannot be
        stored raises InvalidInput, and the claim goes on."""
        self.check()
        self._hold.note(self.leases, text, metadata)
        if self._grip is not None:
            self._grip.heart.beat()
        else:
            beat_once(self._hold, self._transports)
        self.check()
        self._hold.check_noted()

    def once(self, key: str, *, unsure: Unsure | None = None) -> StepBlock:
        """A step that changes something outside, and must not be repeated blindly: `with claim.once(key) as effect:`.
        `key` names it, the same for every owner. That it begins is noted before the block runs, how it ended after it.
        `effect` says what earlier owners noted: `done`, `failed` or `in_doubt`. What the block leaves in
        `effect.result` is kept for later owners. An exception notes that it failed; one of `unsure` (TimeoutError and
        ConnectionError), or one that is no Exception, that it is in doubt. Of several, the first job
        has the note."""
        from dibs.sdk.effects import Step, StepBlock  # few blocks have such a step

        return StepBlock(Step(self._hold, self.leases, key, unsure), self._transports)

    def _ended(self, ending: ClaimEnd[None]) -> None:
        self._finish(ending)

    def _handed_over(self, ending: ClaimEnd[Lease]) -> Lease:
        return self._finish(ending)[0]

    done = given(claim_state.ClaimState._done)(_ended)
    release = given(claim_state.ClaimState._release)(_ended)
    fail = given(claim_state.ClaimState._fail)(_ended)
    transfer = given(claim_state.ClaimState._transfer)(_handed_over)

    def share(self) -> None:
        """Share the job from now on, in one step: who waits to share it gets it at once, and nobody has it alone in
        between. A shared claim never becomes exclusive."""
        with self._transports.one() as transport:
            drive(transport, claim_state.share_hold(self._hold, self.leases))

    def _finish(self, ending: ClaimEnd[T]) -> list[T]:
        with self._transports.one() as transport:
            return drive(transport, claim_state.finish_hold(self._hold, self.leases, ending))


class Leader(claim_state.LeaderState["TransportPool"], Claim):
    """`with client.leader(name) as leader:`. A loss is reported as for a claim: by `lost`, `on_lost`, `check()`, and at
    the end of the block."""

    def resign(self) -> None:
        """Lead no more, before the block ends."""
        self.release()
