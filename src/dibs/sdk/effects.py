"""A step of the work that changes something outside: `with claim.once(key) as effect:`.

That the step begins is noted before the block runs, and how it ended afterwards (`core/claims/effects.py` has the
rules). What the block is told is in `effect`; what it leaves in `effect.result` is for later owners.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Sequence
from dibs.base.errors import DibsError, InvalidInput, LeaseLost, RequestRefused
from dibs.base.ids import new_id
from dibs.base.jsontext import is_unicode
from dibs.client.flow import Flow, drive
from dibs.client.pool import TransportPool
from dibs.core.limits import EFFECT_RESULT_BYTES_MAX
from dibs.core.names import is_resource
from dibs.sdk import operations
from dibs.sdk.answers import Effect, Lease, effect_of
from dibs.sdk.claim_state import ClaimEnd, insisting, reason_of
from dibs.sdk.hold import LeaseHold

Unsure = tuple[type[BaseException], ...]
# After these nobody knows whether the other side did it: a request was sent, or may have been.
UNSURE: Unsure = (TimeoutError, ConnectionError)


class Step:
    """One try of a step. Both faces drive its flows, `begin` before the block and that of `end` after it, and call
    `broken` if one raises."""

    def __init__(self, hold: LeaseHold, leases: Sequence[Lease], key: str, unsure: Unsure | None) -> None:
        self._hold = hold
        self._lease = next((each for each in leases if not is_resource(each.name)), leases[0])
        self._key = key
        self._id = new_id()
        self._unsure = UNSURE if unsure is None else unsure
        self._effect: Effect | None = None
        self._unanswered: dict[str, Any] = {}  # the note that was sent last, until it is answered

    def begin(self) -> Flow[Effect]:
        self._hold.check_leases((self._lease,))
        unsaid = self._hold.unsaid_ends.get((self._lease.name, self._key))
        if unsaid is not None:  # an earlier try in this claim is over, and the store does not know it
            try:
                yield from self._noted(unsaid)
            except RequestRefused:  # nor that it began
                pass
            del self._hold.unsaid_ends[self._lease.name, self._key]
        self._effect = effect = yield from self._noted(self._note("begun"))
        return effect

    def end(self, error: BaseException | None) -> Flow[None] | None:
        """Note how the block ended; None if it was done before."""
        effect = self._effect
        assert effect is not None  # the block has begun
        if effect.done:
            return None
        wrong = None if error is not None else _wrong_result(effect.result)
        if error is None:
            note = self._note("done", result=None if wrong else effect.result)
        else:
            failed = isinstance(error, Exception) and not isinstance(error, self._unsure)
            note = self._note("failed" if failed else "in_doubt", reason=reason_of(error))
        self._unanswered = note
        return self._ended(note, wrong)

    def _ended(self, note: dict[str, Any], wrong: str | None) -> Flow[None]:
        self._hold.check_leases((self._lease,))
        yield from self._noted(note)
        if wrong is not None:
            raise InvalidInput(f"The step {self._key} is noted as done, without its result: {wrong}")

    def broken(self, trouble: BaseException, error: BaseException | None = None) -> None:
        """A flow raised `trouble`, after `error` of the block. That is what its caller gets; trouble with the note is
        added to it. A note that was not answered is sent again before the next try in this claim."""
        note = self._unanswered
        is_begun = note.get("status") == "begun"
        if note:
            unsaid = self._note("failed", reason="not run") if is_begun else note
            self._hold.unsaid_ends[self._lease.name, self._key] = unsaid
        if error is None or not isinstance(trouble, DibsError):
            if note and not is_begun and error is None:
                trouble.add_note(f"The step {self._key} was finished, and is in doubt for the next owner.")
            raise trouble
        if not isinstance(error, LeaseLost):
            error.add_note(f"The step {self._key} is in doubt for the next owner: {trouble.details}")

    def _note(self, status: str, **more: str | None) -> dict[str, Any]:
        return {"key": self._key, "effect_id": self._id, "status": status, **more}

    def _noted(self, note: dict[str, Any]) -> Flow[Effect]:
        self._unanswered = note
        try:
            body = yield from insisting(self._hold, ClaimEnd(operations.note_effect, **note), self._lease)
        except LeaseLost as lost:
            self._hold.end(lost.why)
            self._hold.check()
            raise
        except (InvalidInput, RequestRefused):
            self._unanswered = {}
            raise
        self._unanswered = {}
        return effect_of(body["effect"])


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
        try:
            with self._transports.one() as transport:
                return drive(transport, self._step.begin())
        except BaseException as trouble:
            self._step.broken(trouble)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        noting = self._step.end(error)
        if noting is None:
            return
        try:
            with self._transports.one() as transport:
                drive(transport, noting)
        except BaseException as trouble:
            self._step.broken(trouble, error)
