"""Every exception dibs raises on purpose.

    DibsError
    ├── InvalidInput            you asked for something that cannot be; nothing was changed
    │   ├── InvalidName         the job name or namespace is not one
    │   ├── InvalidTtl          the lease time is not one
    │   ├── Unprocessable       a field is missing or of the wrong type
    │   └── BranchMoved         somebody else pushed to the branch; fetch first
    ├── NotAllowed              who you are does not permit it
    │   ├── AuthenticationRequired
    │   └── AuthenticationFailed
    ├── Unavailable             the place that would answer cannot be reached, or is busy
    │   ├── ServerUnreachable
    │   └── StoreUnavailable    `unknown` says whether the write may have happened
    │       └── StoreFull
    ├── StoreBroken             the store is there and cannot be used until somebody acts
    │   ├── StoreCorrupt
    │   └── StoreTooNew
    ├── MissingExtra            an optional part is not installed
    └── BadReply                the other side answered with something that is not dibs

"Somebody else has the job" is not here: that is an answer, and answers are values (`core.outcomes`).
This module imports nothing, so that every layer may import it.
"""


class DibsError(Exception):
    """Base of all of them. `code` is the stable word for programs, `details` the sentence for people."""

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


class Unprocessable(InvalidInput):
    pass


class BranchMoved(InvalidInput):
    pass


class NotAllowed(DibsError):
    code = "forbidden"


class AuthenticationRequired(NotAllowed):
    code = "authentication_required"


class AuthenticationFailed(NotAllowed):
    code = "authentication_failed"


class Unavailable(DibsError):
    code = "upstream_unavailable"


class ServerUnreachable(Unavailable):
    pass


class StoreUnavailable(Unavailable):
    """The store did not answer. `unknown` is true when the write was sent and its fate was not learned."""

    def __init__(self, details: str, *, unknown: bool = False) -> None:
        super().__init__(details)
        self.unknown = unknown


class StoreFull(StoreUnavailable):
    pass


class StoreBroken(DibsError):
    code = "upstream_unavailable"


class StoreCorrupt(StoreBroken):
    pass


class StoreTooNew(StoreBroken):
    pass


class MissingExtra(DibsError):
    code = "invalid_input"


class BadReply(DibsError):
    code = "upstream_unavailable"
