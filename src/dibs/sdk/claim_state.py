"""The state of a claim, and how it begins and ends: the same for threads and for event loops."""

from __future__ import annotations

import sys
import threading
from functools import partial

from dibs.base.cheap import Any, Callable, Generic, TypeVar, ref
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, LeaseLost, NotClaimed, Unavailable
from dibs.base.ids import new_id
from dibs.base.logger import log
from dibs.base.traceparent import tracing
from dibs.client.flow import Flow, Pause
from dibs.client.pending import PendingClaim
from dibs.client.pool import TransportPool
from dibs.core.durations import Duration
from dibs.core.names import ELECTION_PREFIX, is_resource
from dibs.sdk import operations
from dibs.sdk.answers import Lease, Previous
from dibs.sdk.heart import WATCHDOG, Grip
from dibs.sdk.hold import LeaseHold, SessionHold, hold_in
from dibs.sdk.methods import Handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

D = TypeVar("D")
T = TypeVar("T")
Join = Callable[[PendingClaim], LeaseHold | None]

# Spans of OpenTelemetry about a claim: `dibs claim` while it is asked for, `dibs hold` while it is held.
#
# There are some only in a program that uses OpenTelemetry itself; else every function here returns at once. A span has
# the job's name and its fencing token, and never the lease id. Nothing is raised here: a trace must not cost a lease.


class _Harmless:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            log.debug("no span: %s", error)
        return isinstance(error, Exception)


_HARMLESS = _Harmless()


def begin_claim() -> tuple[Any, Any] | None:
    """A span, and what undoes that it is the current one: from here on, requests belong to it."""
    trace = tracing()
    if trace is not None:
        with _HARMLESS:
            from opentelemetry import context

            span = trace.get_tracer("dibs").start_span("dibs claim", kind=trace.SpanKind.CLIENT)
            return span, context.attach(trace.set_span_in_context(span))
    return None


def end_claim(begun: tuple[Any, Any] | None, hold: LeaseHold | None, error: BaseException | None = None) -> None:
    if begun is None:
        return
    span, current = begun
    with _HARMLESS:
        from opentelemetry import context

        if hold is not None:
            span.set_attributes(_attributes(hold))
        if error is None or isinstance(error, NotClaimed):  # an answer, not an error
            span.set_attribute("dibs.outcome", "acquired" if error is None else error.code)
        else:
            span.set_status(tracing().StatusCode.ERROR, type(error).__name__)
        span.end()
        context.detach(current)


def begin_hold(hold: LeaseHold) -> Any:
    """A span from the claim to its end. It is not the current one: the block may be left in another context."""
    trace = tracing()
    if trace is not None:
        with _HARMLESS:
            return trace.get_tracer("dibs").start_span("dibs hold", attributes=_attributes(hold))
    return None


def end_hold(span: Any, hold: LeaseHold, error: BaseException | None) -> None:
    if span is None:
        return
    with _HARMLESS:
        span.set_attribute("dibs.lost", hold.was_lost)
        if error is not None or hold.was_lost:
            span.set_status(tracing().StatusCode.ERROR, type(error).__name__ if error is not None else "lost")
        span.end()


def _attributes(hold: LeaseHold) -> dict[str, Any]:
    return {"dibs.job": hold.name, "dibs.fencing_token": hold.leases[0].fencing_token}


TRIES = 3
PAUSE_MS = 200
INSIST_MS = 2_000
GIVE_UP_MS = 2_000
KINDS_MAX = 5  # of errors in a group that a reason names


class ClaimEnd(Generic[T]):
    """The end of a claim: a request for each of its leases. `fails`: it says that the work failed. `of_resource`: the
    end of a resource, if it is another one."""

    def __init__(
        self,
        flow: Callable[..., Flow[T]],
        *,
        fails: bool = False,
        of_resource: ClaimEnd[T] | None = None,
        **fields: Any,
    ) -> None:
        self._flow = flow
        self._fields = fields
        self._of_resource = of_resource
        self.fails = fails

    def of(self, lease: Lease) -> Flow[T]:
        if self._of_resource is not None and is_resource(lease.name):
            return self._of_resource.of(lease)
        return self._flow(lease.name, lease.lease_id, **self._fields)


def _of_first(field: str, about: str) -> Any:
    """A property of a claim: what its lease says; of several jobs, that of the first."""
    return property(lambda claim: getattr(claim.leases[0], field), doc=about)


class ClaimState(Handle, Generic[D]):
    """The state and the methods that claims of both faces share. Requests go through `D`: a `TransportPool` or an
    `AsyncTransport`."""

    _block = "with"  # the word that begins the block
    _noun = "claim"  # what the messages call it
    _instead = "Pass on what you need of it: its name, its fencing_token, its lease_id."
    _not_taken = "The claim was not taken yet. Use it in a with block: `{} … as claim:`."
    _nested = False
    _leases: tuple[Lease, ...] = ()  # those of the hold that this block has; none yet: all
    _grip: Grip | None = None  # what keeps the hold renewed

    def __init__(
        self,
        transports: D,
        request: PendingClaim,
        on_lost: Callable[[LeaseLost], object] | None = None,
        session: SessionHold | None = None,
        *,
        fail_on_error: bool,
    ) -> None:
        self._transports = transports
        self._request: PendingClaim | None = request
        self._on_lost = on_lost
        self._session = session
        self._fail_on_error = fail_on_error
        self._span: Any = None  # of the hold, if the program traces
        self._asked_for = ", ".join(request.names)
        self._asked_by = request.owner
        self._held: LeaseHold | None = None

    def _begun(self) -> PendingClaim:
        """The request, as the block begins. Raises InvalidInput for a second block."""
        request, self._request = self._request, None
        if request is None:
            raise InvalidInput(f"A {self._noun} is for one block only. Make another one with the client.")
        return request

    def __repr__(self) -> str:
        hold = self._held
        if hold is None:
            of = "" if self._asked_by is None else f" of {self._asked_by}"
            return f"<{type(self).__name__}{of}: {self._asked_for}, not taken yet>"
        tokens = ", ".join(f"{lease.name} (token {lease.fencing_token})" for lease in self.leases)
        return f"<{type(self).__name__} of {self.owner}: {tokens}, {hold.summary()}>"

    @property
    def _hold(self) -> LeaseHold:
        if self._held is None:
            raise InvalidInput(self._not_taken.format(self._block))
        return self._held

    @property
    def leases(self) -> tuple[Lease, ...]:
        """One for each job."""
        return self._leases or self._hold.leases

    name: str = _of_first("name", "The job. Of several, the first.")
    owner: str = _of_first("owner", "Who has it, as others see.")
    lease_id: str = _of_first("lease_id", "The proof of ownership. Keep it secret.")
    fencing_token: int = _of_first(
        "fencing_token",
        "Send it with your writes, and let the receiver refuse smaller ones (`dibs.Fence`). Of several jobs, the first "
        "one's.",
    )
    slot: int | None = _of_first(
        "slot",
        "The number of its slot, from 0; None if the job has no slots. Of several jobs or units, the first one's.",
    )
    attempt: int = _of_first(
        "attempt",
        "1 for the first owner since the last clean release, and 1 more for each that failed at the job or lost it.",
    )
    previous: Previous | None = _of_first(
        "previous", "The previous owner, how its hold ended, and its last checkpoint."
    )

    @property
    def slot_numbers(self) -> tuple[int, ...]:
        """The numbers of all its slots, one for each unit; empty if the job has none. Of several jobs those of the
        first."""
        return self.leases[0].slot_numbers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(lease.name for lease in self.leases)

    @property
    def fencing_tokens(self) -> dict[str, int]:
        return {lease.name: lease.fencing_token for lease in self.leases}

    def _holds(self) -> list[tuple[LeaseHold, Grip | None]]:
        """All holds of this client or session, with what keeps them renewed."""
        if self._session is not None:
            return [(hold, None) for hold in self._session.claims()]
        hearts = WATCHDOG.hearts_of(self._renewed_by)
        return [(each.hold, each.grip()) for each in hearts if isinstance(each.hold, LeaseHold)]

    @property
    def _renewed_by(self) -> TransportPool:
        """The transports through which its holds are renewed."""
        raise NotImplementedError

    def _join(self, request: PendingClaim) -> LeaseHold | None:
        """Enter the hold of a block around this one that has the job, if this one may be nested."""
        name, me = request.names[0], acquirer()
        for hold, grip in self._holds():
            if hold.whose is None or hold.whose() is not me or hold.is_over or not hold.is_ours:
                continue
            leases = tuple([lease for lease in hold.leases if lease.name == name])
            if not leases:
                continue
            if name in hold.shared_names and not request.is_shared:
                raise InvalidInput(
                    f"{name} is shared in the block around this one, so nobody can have it alone here. Claim it "
                    "exclusively there, and share() it later."
                )
            self._leases, self._held, self._grip = leases, hold, grip
            if hold.enter(self, leases):
                return hold
            self._leases, self._held, self._grip = (), None, None
        return None

    def _enter(self, hold: LeaseHold) -> None:
        """This block has the hold: what it joined, or all that it claimed."""
        if not self._leases:
            self._leases = hold.leases
            hold.enter(self, hold.leases)

    @property
    def waiting(self) -> int:
        """Return how many waited for the job at the last heartbeat. Of several jobs, for the one that most wait for."""
        return self._hold.waiting

    @property
    def ends_at(self) -> str | None:
        """The time at which it ends, whatever is renewed, by the store's clock. None: it has no ceiling
        (`max_hold`)."""
        return min([lease.ends_at for lease in self.leases if lease.ends_at is not None], default=None)

    def remaining(self) -> float:
        """Seconds until the claim counts as lost without another heartbeat. 0 if it is not ours."""
        hold = self._hold
        return hold.left_ms() / 1000 if hold.is_ours and hold.has(self.leases) else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the claim is certainly still ours. Cheap: it reads this machine's clock, not the
        network."""
        self._hold.check_leases(self.leases)

    # How each method of a claim ends it: both faces take these parameters, and carry the flow out (`_finish`).

    def _done(
        self, result: str | None = None, *, done: Duration | bool = True, checkpoint: str | None = None
    ) -> ClaimEnd[None]:
        """Release the job and mark it as done for `done` (default: a day). Claims in that time are refused with
        `result`, a short text. `checkpoint` is stored, too."""
        otherwise = self._beside_jobs(ClaimEnd(operations.release, checkpoint=checkpoint))
        return ClaimEnd(operations.release, of_resource=otherwise, done=done, result=result, checkpoint=checkpoint)

    def _release(self, *, checkpoint: str | None = None) -> ClaimEnd[None]:
        """Release the job before the block ends."""
        return ClaimEnd(operations.release, checkpoint=checkpoint)

    def _fail(
        self, reason: str | None = None, *, retry_after: Duration | None = None, checkpoint: str | None = None
    ) -> ClaimEnd[None]:
        """Release the job as failed, which counts as an attempt."""
        otherwise = self._beside_jobs(ClaimEnd(operations.give_back, checkpoint=checkpoint))
        said = {"reason": reason, "retry_after": retry_after, "checkpoint": checkpoint}
        return ClaimEnd(operations.fail, fails=True, of_resource=otherwise, **said)

    def _beside_jobs(self, ending: ClaimEnd[None]) -> ClaimEnd[None] | None:
        """Of jobs and resources that were claimed together, only the jobs are done or fail. Of resources alone this is
        refused."""
        return None if all(is_resource(lease.name) for lease in self.leases) else ending

    def _transfer(
        self, *, to_owner: str | None = None, to_session: str | None = None, checkpoint: str | None = None
    ) -> ClaimEnd[Lease]:
        """Hand the job to another owner in one atomic step. Returns the new owner's lease."""
        if len(self.leases) > 1:
            raise InvalidInput("Several jobs are handed over one by one, with client.transfer().")
        return ClaimEnd(
            operations.transfer,
            to_owner=to_owner,
            to_session=to_session,
            checkpoint=checkpoint,
            fresh_lease_id=new_id(),  # the same for each try: a repeat is known by it
        )


class LeaderState(ClaimState[D]):
    """The attributes of a claim that is an election."""

    _noun = "leader"
    _not_taken = "The election was not won yet. Use the leader in a with block: `{} … as leader:`."

    @property
    def election(self) -> str:
        """The name of the election."""
        return self.name.removeprefix(ELECTION_PREFIX)

    term: int = _of_first(
        "fencing_token",
        "Rises with every leader. Send it with your writes, and let the receiver refuse smaller ones (`dibs.Fence`).",
    )

    @property
    def is_leader(self) -> bool:
        """Tell whether we certainly lead now. Cheap: it reads this machine's clock, not the network."""
        return self.remaining() > 0


if TYPE_CHECKING:
    Acquirer = threading.Thread | asyncio.Task[object]


def acquirer() -> Acquirer:
    """The one that acquires something here: the task of an event loop, or else the thread."""
    loops: Any = sys.modules.get("asyncio")  # a program that has not imported it runs no loop
    loop = None if loops is None else loops._get_running_loop()  # where no loop runs the public function raises
    task: Acquirer | None = None if loop is None else loops.current_task(loop)
    return threading.current_thread() if task is None else task


def take(request: PendingClaim, session: SessionHold | None, join: Join | None = None) -> Flow[LeaseHold]:
    """Claim the jobs, in a session or alone. If it fails, whoever drives it gives the claim up, unless it was refused;
    in a session it also says that the request got its answer."""
    if request.naming is not None:
        yield from request.look_up()
    around = join(request) if join is not None else None
    if around is not None:
        return around
    if session is not None:
        session.reserve(request)
        yield from session.settle(request.reserved)
    leases = yield from operations.acquire(request)
    if session is None:
        hold = LeaseHold(leases, request.sent_ms, waited=bool(request.wait_ms))
    else:
        hold = yield from hold_in(session, leases, request)
    hold.whose = ref(acquirer())
    if request.is_shared:
        hold.shared_names = frozenset([lease.name for lease in leases])
    ends = [lease.ends_in_ms for lease in leases if lease.ends_in_ms is not None]
    if hold.is_due() or (ends and request.wait_ms):
        # Its time was counted from before the wait in line. This also shows that we still have it.
        yield from hold.heartbeat()
        if hold.ceiling_ms is None:  # nobody answered
            hold.note_ceiling(ends, request.sent_ms)
        hold.check()
        if hold.trouble is not None:
            raise Unavailable(f"The job was granted, but could not be renewed: {hold.trouble}")
    return hold


def share_hold(hold: LeaseHold, leases: tuple[Lease, ...]) -> Flow[None]:
    """Share these jobs from now on. A repeat changes nothing."""
    hold.check_leases(leases)
    hold.check_alone(leases)
    try:
        for lease in leases:
            yield from insisting(hold, ClaimEnd(operations.renew, shared=True), lease)
    except LeaseLost as lost:
        hold.end(lost.why)
        hold.check()
    hold.shared_names |= {lease.name for lease in leases}


def is_refusal(error: BaseException) -> bool:
    """True if nothing can have been claimed."""
    return isinstance(error, NotClaimed | InvalidInput)


def finish_hold(hold: LeaseHold, leases: tuple[Lease, ...], ending: ClaimEnd[T]) -> Flow[list[T]]:
    """End these leases of a claim. They count as ended only when the store has confirmed it."""
    hold.check_leases(leases)
    found: list[T] = []
    hold.ending = True
    try:
        hold.check_alone(leases)
        # Jobs first: an end that is refused is refused for the first of them, and nothing has ended.
        for lease in sorted(leases, key=lambda each: is_resource(each.name)):
            found.append((yield from insisting(hold, ending, lease)))
        hold.let_go_of(leases)
    except LeaseLost as lost:
        hold.end(lost.why)
        hold.check()
    except InvalidInput as error:
        hold.refused_end = None if ending.fails else error
        raise
    finally:
        hold.ending = False
    return found


def release_at_exit(
    hold: LeaseHold, leases: tuple[Lease, ...], error: BaseException | None = None, *, fail_on_error: bool = True
) -> Flow[LeaseLost | None]:
    """Release these leases after the block. What nobody answers is said again by their session, or they expire. Returns
    an earlier loss."""
    end = _GIVEN_BACK if hold.was_lost else _end_after(error, hold.refused_end, fail_on_error=fail_on_error)
    first: LeaseLost | None = None
    for at, lease in enumerate(leases):
        try:
            yield from insisting(hold, end, lease)
        except LeaseLost as lost:
            first = first or LeaseLost(lease.name, lease.fencing_token, lost.why)
        except Unavailable as trouble:
            hold.say_later(lease, partial(_ended, hold, end, lease), trouble)
            continue
        except DibsError as trouble:
            log.warning("%s could not be released: %s", lease.name, trouble.details)
        except BaseException:  # an interrupt
            for each in leases[at:]:
                hold.say_later(each, partial(_ended, hold, end, each), Unavailable("It was interrupted."))
            raise
        hold.end_said(lease)
    return None if hold.was_lost else first


def _ended(hold: LeaseHold, end: ClaimEnd[None], lease: Lease) -> Flow[bool]:
    """Tell whether the end of a lease was answered."""
    try:
        yield from hold.send_noted(lease)
        yield from end.of(lease)
    except Unavailable:
        return False
    except DibsError:  # it had ended
        pass
    hold.end_said(lease)
    return True


_GIVEN_BACK: ClaimEnd[None] = ClaimEnd(operations.give_back)


def _end_after(
    error: BaseException | None, refused_end: InvalidInput | None = None, *, fail_on_error: bool
) -> ClaimEnd[None]:
    """Return how to release at the end of a block. The refusal of an argument of `done()` and its like is no failure:
    the work may be finished, so the job is given back without a verdict. Work on a resource says nothing about it."""
    if fail_on_error and failures_in(error, refused_end):
        return ClaimEnd(operations.fail, of_resource=_GIVEN_BACK, reason=reason_of(error, refused_end))
    if error is None or (isinstance(error, Exception) and not fail_on_error):
        return ClaimEnd(operations.release)
    return _GIVEN_BACK


def failures_in(error: BaseException | None, refused_end: InvalidInput | None = None) -> list[Exception]:
    """Return what of an error is the work's own failure: of a group, whatever in it is. KeyboardInterrupt, SystemExit,
    GeneratorExit and cancellation are no failure, and neither are errors of dibs about other claims, nor a refused end
    of this one."""
    found: list[Exception] = []
    look = [error]
    while look:
        each = look.pop()
        if isinstance(each, BaseExceptionGroup):
            look += reversed(each.exceptions)
        elif isinstance(each, Exception) and not isinstance(each, NotClaimed | LeaseLost) and each is not refused_end:
            found.append(each)
    return found


def reason_of(error: BaseException | None, refused_end: InvalidInput | None = None) -> str:
    """Return why the work failed, for everybody to read. It names only the types of errors, because their texts may
    contain a secret; of a group, also those of the failures inside."""
    kind = f"raised {type(error).__name__}"
    if not isinstance(error, BaseExceptionGroup):
        return kind
    inside = list(dict.fromkeys(type(each).__name__ for each in failures_in(error, refused_end)))
    more = f" and {len(inside) - KINDS_MAX} more" if len(inside) > KINDS_MAX else ""
    return f"{kind} of {', '.join(inside[:KINDS_MAX])}{more}"


def insisting(hold: LeaseHold, ending: ClaimEnd[T], lease: Lease) -> Flow[T]:
    """Send a request, and repeat it if there was no answer: release and transfer can be repeated."""
    until_ms = min(steady_ms() + INSIST_MS, hold.plan.lost_ms)
    for left in range(TRIES - 1, -1, -1):
        try:
            yield from hold.send_noted(lease)
            return (yield from ending.of(lease))
        except Unavailable:
            if left == 0 or steady_ms() + PAUSE_MS >= until_ms:
                raise
            yield Pause(PAUSE_MS)
    raise AssertionError("the last try returns or raises")


def raise_if_lost_at_exit(hold: LeaseHold, error: BaseException | None, lost: LeaseLost | None = None) -> None:
    """At the end of the block: raise a loss, or add it as a note to the block's own error. `lost`: it was found out
    only when the job was released."""
    if lost is None and hold.was_lost:
        lost = hold.lost()
    if lost is None or isinstance(error, LeaseLost):
        return
    if error is None:
        raise lost
    error.add_note(f"By then the claim was lost: {lost.details}")
