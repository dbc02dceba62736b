"""Every exception dibs raises on purpose.

    DibsError
    ├── InvalidInput            you asked for something that cannot be; nothing was changed
    │   ├── InvalidName         the job name or namespace is not one
    │   ├── InvalidTtl          the lease time is not one
    │   ├── Unprocessable       a field is missing or of the wrong type
    │   └── BranchMoved         somebody else pushed to the branch; fetch first
    ├── NotAllowed              who you are does not permit it
    │   ├── AuthenticationRequired
    │   ├── AuthenticationFailed
    │   └── HookRefused         the clone's own git hook said no
    ├── Unavailable             the place that would answer cannot be reached, or is busy
    │   ├── ServerUnreachable
    │   ├── ServerDraining      the server is about to end and takes no new claims
    │   └── StoreUnavailable    `unknown` says whether the write may have happened
    │       ├── StoreFull
    │       └── StoreReplaced   its file was deleted or replaced while it was in use
    ├── StoreBroken             the store is there and cannot be used until somebody acts
    │   ├── StoreCorrupt
    │   └── StoreTooNew
    ├── MissingExtra            an optional part is not installed
    ├── BadReply                the other side answered with something that is not dibs
    ├── NotClaimed              you do not have the job; the answer is in `answer`
    │   ├── JobHeld             somebody else has it: `owner`, `silent_for`, `retry_after`
    │   ├── JobDone             it was done already: `owner`, `result`
    │   ├── JobResting          it rests after a loss or a failure: `retry_after`
    │   ├── JobParked           it failed too often; an operator frees it
    │   └── WouldDeadlock       waiting for it would never end: `cycle`
    ├── LeaseLost               it was yours and is not any more, or may not be: stop the work
    ├── EventsGone              events that were asked for are no longer on record: `after`, `oldest`
    ├── StaleToken              a write came with an older fencing token than the last one
    └── RequestRefused          the other side said no for another reason; `code` says which

"Somebody else has the job" is an answer, and answers are values (`core.outcomes`). NotClaimed and what is below it are
raised by the Python SDK alone, where a `with` block has no other way to say that it was not entered.
This module imports nothing, so that every layer may import it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# In the details of an error after a request without an answer: it may have been carried out or not.
FATE_UNKNOWN = "Whether it was carried out is not known."


class DibsError(Exception):
    """Base of all errors. `code` is the stable word for programs, `details` the sentence for people."""

    code = "internal_error"

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self.details = details


class InvalidInput(DibsError):
    code = "invalid_input"


class InvalidName(InvalidInput):
    code = "invalid_lock_name"


class InvalidTtl(InvalidInput):
    code = "invalid_ttl"


class Unprocessable(InvalidInput): ...


class BranchMoved(InvalidInput): ...


class NotAllowed(DibsError):
    code = "forbidden"


class AuthenticationRequired(NotAllowed):
    code = "authentication_required"


class AuthenticationFailed(NotAllowed):
    code = "authentication_failed"


class NotOnRecord(DibsError):
    """There is no such bearer token or webhook, or the caller may not see it."""

    code = "not_found"


class HookRefused(NotAllowed): ...


class Unavailable(DibsError):
    code = "upstream_unavailable"


class ServerUnreachable(Unavailable): ...


class ServerDraining(Unavailable):
    code = "draining"

    def __init__(self, details: str, *, retry_after_ms: int) -> None:
        super().__init__(details)
        self.retry_after_ms = retry_after_ms


class StoreUnavailable(Unavailable):
    """The store did not answer. `unknown` is true if a write was sent and its result is not known."""

    def __init__(self, details: str, *, unknown: bool = False) -> None:
        super().__init__(details)
        self.unknown = unknown


class StoreFull(StoreUnavailable): ...


class StoreReplaced(StoreUnavailable): ...


class StoreBroken(DibsError):
    code = "upstream_unavailable"


class StoreCorrupt(StoreBroken): ...


class StoreTooNew(StoreBroken): ...


class MissingExtra(DibsError):
    code = "invalid_input"


class BadReply(DibsError):
    code = "upstream_unavailable"


class NotClaimed(DibsError):
    """`answer` is the reply's document, as docs/reference/http.md has it."""

    code = "held"

    def __init__(self, details: str, answer: dict[str, Any] | None = None) -> None:
        super().__init__(details)
        self.answer: dict[str, Any] = answer or {}

    @property
    def owner(self) -> str | None:
        """The owner of the job, or who did it."""
        owner: str | None = self.answer.get("owner")
        return owner

    @property
    def retry_after(self) -> float | None:
        """Seconds until it makes sense to try again, if known."""
        after_ms: int | None = self.answer.get("retry_after_ms")
        return None if after_ms is None else after_ms / 1000


class JobHeld(NotClaimed):
    @property
    def silent_for(self) -> float | None:
        """Seconds since the owner's last sign of life, if known."""
        silent_ms: int | None = self.answer.get("silent_ms")
        return None if silent_ms is None else silent_ms / 1000


class JobDone(NotClaimed):
    code = "done"

    @property
    def result(self) -> str | None:
        """The result of the job."""
        result: str | None = self.answer.get("result")
        return result


class JobResting(NotClaimed):
    code = "delayed"


class JobParked(NotClaimed):
    code = "parked"


class WouldDeadlock(NotClaimed):
    code = "deadlock"

    @property
    def cycle(self) -> list[str]:
        """The cycle of waiting: owners and jobs in turn."""
        return list(self.answer.get("cycle", ()))


def with_order_to_stop(why: str) -> str:
    """The reason of a loss, with the one order that follows from it. A server's reason may give the order already."""
    return why if "Stop the work." in why else f"{why} Stop the work."


class LeaseLost(DibsError):
    """`why` is the reason alone; `name` and `fencing_token` are the lease's."""

    code = "lease_not_current"

    def __init__(self, name: str, fencing_token: int, why: str) -> None:
        super().__init__(f"{name} is not ours any more, or may not be: {with_order_to_stop(why)}")
        self.name = name
        self.fencing_token = fencing_token
        self.why = why


class EventsGone(DibsError):
    """Events after number `after` are no longer on record. `oldest` is the first that is, or that will be."""

    code = "not_found"

    def __init__(self, after: int, oldest: int) -> None:
        super().__init__(
            f"Events between number {after} and {oldest} are no longer on record. Look at the present state, "
            f"then go on: the next event is number {oldest} or later."
        )
        self.after = after
        self.oldest = oldest


class StaleToken(DibsError):
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
    def __init__(self, details: str, code: str) -> None:
        super().__init__(details)
        self.code = code
