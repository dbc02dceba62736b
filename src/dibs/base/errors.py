"""Every exception dibs raises on purpose. Those that users meet are on docs/reference/python.md, with their parents.

"Somebody else has the job" is an answer, and answers are values (`core.outcomes`). NotClaimed and what is below it are
raised by the Python SDK alone, where a `with` block has no other way to say that it was not entered.
This module imports only names for annotations, so that every layer may import it.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.base.reply import Reply

# In the details of an error after a request without an answer: it may have been carried out or not.
FATE_UNKNOWN = "Whether it was carried out is not known."
NOTHING_HERE = "There is nothing at this address."  # what a request without a route is answered


class DibsError(Exception):
    """Base of all errors. `code` is the stable word for programs, `details` the sentence for people."""

    code = "internal_error"
    # What a server sends to its callers instead of `details`, which say where its store is and who may use it. Its log
    # and `dibs doctor` at the store have the details. None: they are for everybody.
    public: str | None = None

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy. Exception's own would call the class with the finished sentence, and a class that takes
        something else would fail in the process that unpickles it: `Pool.map` waits for ever then."""
        cause = self.__cause__
        kept = {"__cause__": cause} if cause is not None and _is_plain(cause) else {}
        return _remade, (type(self), self.args), {**self.__dict__, **kept}


def _remade(kind: type[DibsError], args: tuple[Any, ...]) -> DibsError:
    return kind.__new__(kind, *args)


_PLAIN = (str, bytes, int, float, bool, type(None))


def _is_plain(cause: BaseException) -> bool:
    """Tell whether a cause is certain to survive pickle: it is one of ours, or Python's own and made of plain values.
    Others are left out, as Python leaves out all."""
    if isinstance(cause, DibsError):
        return True
    notes: list[object] = getattr(cause, "__notes__", [])
    is_own = type(cause).__module__ == "builtins" and cause.__dict__.keys() <= {"__notes__"}
    return is_own and all(type(each) in _PLAIN for each in (*cause.args, *notes))


class InvalidInput(DibsError):
    """Raised for an argument that cannot be, before anything was changed. Correct the call; a repeat fails again."""

    code = "invalid_input"


class InvalidName(InvalidInput):
    """Raised for a job name or namespace that is not one: empty, too long, or with characters that nobody can see."""

    code = "invalid_lock_name"


class InvalidTtl(InvalidInput):
    """Raised for a `ttl` that is not a length of time, or out of bounds. It is from a second to a day."""

    code = "invalid_ttl"


class Unprocessable(InvalidInput):
    """Raised for a field that is missing or of the wrong type."""


class NotAllowed(DibsError):
    """Raised when your token does not permit the request, or you hold as many jobs as you may. Use another token, or
    ask who runs the server."""

    code = "forbidden"


class AuthenticationRequired(NotAllowed):
    """Raised when the server wants a token and none was sent. Set DIBS_TOKEN, or give `token`."""

    code = "authentication_required"


class AuthenticationFailed(NotAllowed):
    """Raised when the server does not know the token, or it has expired. Get another one."""

    code = "authentication_failed"


class NotOnRecord(DibsError):
    """There is no such bearer token or webhook, or the caller may not see it."""

    code = "not_found"


class HookRefused(NotAllowed):
    """Raised when the clone's own git hook said no."""


class Unavailable(DibsError):
    """Raised when the server or the store cannot be reached, or is busy. Do not begin the work; try again later. A
    claim that you have goes on until its deadline."""

    code = "upstream_unavailable"
    retry_after_ms: int | None = None

    def __init__(self, details: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(details)
        if retry_after_ms is not None:
            self.retry_after_ms = retry_after_ms


class ServerUnreachable(Unavailable):
    """Raised when no server answers at the address, or what answers cannot be trusted."""


class ServerDraining(Unavailable):
    """Raised by a server that is about to end and takes no new claims. Try again after `retry_after_ms`."""

    code = "draining"


class Overloaded(Unavailable):
    """More requests than the store can write. Nothing was done; try again after `retry_after_ms`."""

    code = "capacity_exceeded"


class StoreUnavailable(Unavailable):
    """The store did not answer. `unknown` is true if a write was sent and its result is not known."""

    public: str | None = "The server's store does not answer. Ask another server, or try again in a moment."

    def __init__(self, details: str, *, unknown: bool = False) -> None:
        super().__init__(details)
        self.unknown = unknown


class StoreFull(StoreUnavailable):
    """Raised when the disk or the store has no room for the write."""

    public = "The server's store is full. Ask another server, or who runs this one."


class StoreReplaced(StoreUnavailable):
    """Raised when the store's file was deleted or replaced while it was in use. Connect again."""

    public = "The server's store was deleted or replaced while in use. Ask who runs the server."


class StoreBroken(DibsError):
    """Raised for a store that is there and cannot be used until somebody acts."""

    code = "upstream_unavailable"
    public = "The server cannot use its store. Who runs the server finds the reason in its log. Ask another server."


class StoreDenied(StoreBroken):
    """Raised when the store does not let this program in: a wrong user or password, or a right that is missing."""

    public = "The store does not let this server in. Who runs it finds the reason in its log. Ask another server."


class StoreCorrupt(StoreBroken):
    """Raised for a store whose records cannot be read. Restore a backup."""

    public = "The server's store is damaged. Who runs the server finds more in its log. Ask another server."


class StoreTooNew(StoreBroken):
    """Raised for a store of a newer version of dibs. Update dibs."""


class StoreTooOld(StoreBroken):
    """Raised for a store of a version of dibs that this one does not read. `details` names the version, and how its
    records are moved."""


class MissingExtra(DibsError):
    """Raised when an optional part is not installed. `details` has the command that installs it."""

    code = "invalid_input"


class BadReply(DibsError):
    """Raised when what answered is not dibs, or another version. Check the URL. Whether the request was carried out is
    not known."""

    code = "upstream_unavailable"


def _said(field: str, about: str, read: Callable[[Any], Any] = lambda said: said) -> Any:
    """A property of a refusal: what its answer says in a field."""
    return property(lambda refusal: read(refusal.answer.get(field)), doc=about)


def _in_seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


class NotClaimed(DibsError):
    """Raised when a claim did not get the job. Its classes say why. `answer` is the reply's document, as the HTTP
    reference has it; `refusals` has one of these for each job of a claim on several, with `code` and `name`."""

    code = "held"
    name: str | None = _said("name", "The job. None for a claim on several.")
    owner: str | None = _said("owner", "The owner of the job, or who did it.")
    retry_after: float | None = _said(
        "retry_after_ms",
        "Seconds until it makes sense to try again, if known. None for what is parked: no time frees that.",
        _in_seconds,
    )

    def __init__(
        self, details: str, answer: dict[str, Any] | None = None, refusals: tuple[NotClaimed, ...] = ()
    ) -> None:
        super().__init__(details)
        self.answer: dict[str, Any] = answer or {}
        self.refusals = refusals


class JobHeld(NotClaimed):
    """Raised when somebody else has the job. Take another one, or try again after `retry_after`; `wait` waits in
    line."""

    silent_for: float | None = _said("silent_ms", "Seconds since the owner's last sign of life, if known.", _in_seconds)
    expires_in: float | None = _said(
        "remaining_ms", "Seconds until the owner's claim ends without another heartbeat, if known.", _in_seconds
    )
    waiting: int = _said("waiting", "The number of those in line.", lambda count: int(count or 0))
    conflict: str | None = _said("conflict", "In a tree: the name of the claim in the way, if it is another one.")


class NoneFree(JobHeld):
    """Raised when nothing was claimed of several jobs, and waiting may help: none of them is free (`claim_any`), or not
    all are (`claim_all`). `refusals` says why for each, `retry_after` is the earliest time worth asking. If waiting
    does not help, JobDone or JobParked is raised."""

    retry_after: float = _said(
        "retry_after_ms", "Seconds until it makes sense to try again.", lambda ms: _in_seconds(ms) or 1.0
    )


class JobDone(NotClaimed):
    """Raised when the job counts as done, or all of several do: do not do it again. `again=True` claims it all the
    same."""

    code = "done"
    result: str | None = _said("result", "The result of the job.")
    done_at: str | None = _said("done_at", "The time at which it was done, by the store's clock.")


class JobResting(NotClaimed):
    """Raised when nobody has the job and nobody gets it yet, because its last owner failed or was lost. Try again
    after `retry_after`."""

    code = "delayed"


class JobClosed(NotClaimed):
    """Raised when an operator has closed the job for a while, whoever has it. Try again after `retry_after`, or wait
    in line."""

    code = "closed"
    reason: str | None = _said(
        "closed", "The reason that the operator gave.", lambda closure: (closure or {}).get("reason")
    )
    until: str | None = _said(
        "closed", "The time at which it opens, by the store's clock.", lambda closure: (closure or {}).get("until")
    )


class JobParked(NotClaimed):
    """Raised when too many owners in a row failed at the job or were lost. Tell a person: `client.free` or `dibs free`
    frees it. Of several jobs, when all that are not done are parked (`claim_any`), or one is (`claim_all`)."""

    code = "parked"
    failures: int = _said(
        "failures", "The number of owners in a row that failed at it or were lost.", lambda count: int(count or 0)
    )


class JobSuperseded(NotClaimed):
    """Raised when a newer claim of the same group (`replaces`) came while this one waited: it waits instead, and this
    work is out of date."""

    code = "superseded"
    by: str | None = _said("by", "The owner name of the newer claim, if it still waits.")


class WouldDeadlock(NotClaimed):
    """Raised when waiting for the job would never end: its owner waits for what you hold. Release what you hold, then
    claim both with `claim_all`."""

    code = "deadlock"
    cycle: list[str] = _said("cycle", "The cycle of waiting: owners and jobs in turn.", lambda cycle: list(cycle or ()))


def with_order_to_stop(why: str) -> str:
    """The reason of a loss, with the one order that follows from it. A server's reason may give the order already."""
    return why if "Stop the work." in why else f"{why} Stop the work."


class LeaseLost(DibsError):
    """Raised when the claim is lost, or may be: stop the work, and write nothing more. `why` is the reason alone,
    `name` and `fencing_token` are the lease's."""

    code = "lease_not_current"

    def __init__(self, name: str, fencing_token: int, why: str) -> None:
        super().__init__(f"{name} is not ours any more, or may not be: {with_order_to_stop(why)}")
        self.name = name
        self.fencing_token = fencing_token
        self.why = why


class EventsGone(DibsError):
    """Raised when events after number `after` are no longer on record. `oldest` is the first that is, or that will be.
    Look at the present state, then go on."""

    code = "not_found"

    def __init__(self, after: int, oldest: int) -> None:
        super().__init__(
            f"Events between number {after} and {oldest} are no longer on record. Look at the present state, "
            f"then go on: the next event is number {oldest} or later."
        )
        self.after = after
        self.oldest = oldest


class StaleToken(DibsError):
    """Raised by a fence for a write with an older fencing token than the last one. Its owner has lost the job: roll
    back, and stop the work."""

    code = "conflict"

    def __init__(self, name: str, token: int, newest: int) -> None:
        super().__init__(
            f"The write for {name} came with fencing token {token}, but {newest} has been seen. It was "
            f"refused, because its owner has lost the job."
        )
        self.name = name
        self.token = token
        self.newest = newest


class RequestRefused(DibsError):
    """Raised when the other side said no for a reason that has no class of its own. `code` says which."""

    def __init__(self, details: str, code: str) -> None:
        super().__init__(details)
        self.code = code


class RequestFailed(RequestRefused):
    """A request was answered with a no that whoever asked has no answer of its own for. `reply` has it, and is what the
    next one is answered."""

    def __init__(self, reply: Reply) -> None:
        body = reply.body or {}
        super().__init__(str(body.get("details") or body.get("error")), str(body.get("code") or body.get("status")))
        self.reply = reply
