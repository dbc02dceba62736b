"""A step of the work that changes something outside: `with claim.once(key) as effect:`.

That the step begins is noted before the block runs, and how it ended afterwards (`core/claims/effects.py` has the
rules). What the block is told is in `effect`; what it leaves in `effect.result` is for later owners.
"""

from __future__ import annotations

from dibs.base.errors import DibsError, InvalidInput, LeaseLost
from dibs.base.ids import new_id
from dibs.base.jsontext import is_unicode
from dibs.client.flow import Flow, drive
from dibs.client.pool import TransportPool
from dibs.core.limits import EFFECT_RESULT_BYTES_MAX
from dibs.sdk import operations
from dibs.sdk.answers import Effect, Lease, effect_of
from dibs.sdk.claim_state import ClaimEnd, insisting, reason_of
from dibs.sdk.hold import LeaseHold

Unsure = tuple[type[BaseException], ...]
# After these nobody knows whether the other side did it: a request was sent, or may have been.
UNSURE: Unsure = (TimeoutError, ConnectionError)


class Step:
    """One try of a step. Both faces drive its two flows: `begin` before the block, `end` after it."""

    def __init__(self, hold: LeaseHold, lease: Lease, key: str, unsure: Unsure | None) -> None:
        self._hold = hold
        self._lease = lease
        self._key = key
        self._id = new_id()
        self._unsure = UNSURE if unsure is None else unsure
        self._effect: Effect | None = None

    def begin(self) -> Flow[Effect]:
        self._effect = effect = yield from self._noted(status="begun")
        return effect

    def end(self, error: BaseException | None) -> Flow[None]:
        """Note how the block ended. The block's own error is what its caller gets; trouble with the note is added."""
        effect = self._effect
        assert effect is not None  # the block has begun
        if effect.done:
            return
        if error is None:
            yield from self._note_done(effect)
            return
        failed = isinstance(error, Exception) and not isinstance(error, self._unsure)
        try:
            yield from self._noted(status="failed" if failed else "in_doubt", reason=reason_of(error))
        except DibsError as trouble:
            if not isinstance(error, LeaseLost):
                error.add_note(f"The step {self._key} is in doubt for the next owner: {trouble.details}")

    def _note_done(self, effect: Effect) -> Flow[None]:
        wrong = _wrong_result(effect.result)
        try:
            yield from self._noted(status="done", result=None if wrong else effect.result)
        except DibsError as trouble:
            trouble.add_note(f"The step {self._key} was finished, and is in doubt for the next owner.")
            raise
        if wrong is not None:
            raise InvalidInput(f"The step {self._key} is noted as done, without its result: {wrong}")

    def _noted(self, *, status: str, result: str | None = None, reason: str | None = None) -> Flow[Effect]:
        self._hold.check_leases((self._lease,))
        note = ClaimEnd(
            operations.note_effect, key=self._key, effect_id=self._id, status=status, result=result, reason=reason
        )
        try:
            return effect_of((yield from insisting(self._hold, note, self._lease)))
        except LeaseLost as lost:
            self._hold.end(lost.why)
            self._hold.check()
            raise


def _wrong_result(result: object) -> str | None:
    if result is None:
        return None
    if not isinstance(result, str) or not is_unicode(result):
        return "a result is text."
    size = len(result.encode())
    most = EFFECT_RESULT_BYTES_MAX
    return None if size <= most else f"it may have {most} bytes, and this one has {size}."


class StepBlock:
    """`with claim.once(key) as effect:`."""

    def __init__(self, step: Step, transports: TransportPool) -> None:
        self._step = step
        self._transports = transports

    def __enter__(self) -> Effect:
        with self._transports.one() as transport:
            return drive(transport, self._step.begin())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._transports.one() as transport:
            drive(transport, self._step.end(error))
