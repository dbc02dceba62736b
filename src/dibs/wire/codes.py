"""The one table: every outcome and every error, with its HTTP status, exit code and one plain sentence.

Nothing else in dibs maps an answer to a number. `tests/wire/test_codes.py` checks that the table is total.
"""

from __future__ import annotations

from dibs.base import errors

# Exit codes (docs/reference/exit-codes.md)
YES = 0
NO = 1
NOT_YOURS = 2
DEADLOCK = 3
DONE = 4
REPLACED = 5
OVERDUE = 6
LOST = 20
USAGE = 64
UNREACHABLE = 69
FAULT = 70
TRY_LATER = 75
NOT_ALLOWED = 77


class CodeRow:
    """One line of the table. `word` is the status of a reply or the code of an error."""

    __slots__ = ("exit", "http", "title", "word")

    def __init__(self, word: str, http: int, exit_code: int, title: str) -> None:
        self.word = word
        self.http = http
        self.exit = exit_code
        self.title = title


# The outcomes of the rules, by the names of their classes: a claim does not import all of the classes. A row with a
# word of CODES is sent as an error document, the others as an answer.
OUTCOMES: dict[str, CodeRow] = {
    "Granted": CodeRow("acquired", 200, YES, "The job is yours"),
    "GrantedAll": CodeRow("acquired", 200, YES, "The jobs are yours"),
    "Held": CodeRow("held", 200, NO, "Somebody else has it"),
    "Queued": CodeRow("queued", 200, NO, "You are in line"),
    "Refused": CodeRow("held", 200, NO, "None of these jobs is available"),
    "Superseded": CodeRow("superseded", 409, REPLACED, "A newer claim of the same group waits instead"),
    "Deadlock": CodeRow("deadlock", 409, DEADLOCK, "Waiting would deadlock"),
    "Differs": CodeRow("conflict", 409, NOT_YOURS, "Conflict"),
    "Parked": CodeRow("parked", 409, TRY_LATER, "The job is parked"),
    "Freed": CodeRow("freed", 200, YES, "The job may be claimed again"),
    "Left": CodeRow("left", 200, YES, "No longer in line"),
    "PlacesKept": CodeRow("kept", 200, YES, "Places kept"),
    "Transferred": CodeRow("transferred", 200, YES, "Handed over"),
    "SessionState": CodeRow("session", 200, YES, "How the session stands"),
    "SessionUnknown": CodeRow("not_found", 404, NOT_YOURS, "Session not found"),
    "SessionOver": CodeRow("session_expired", 410, NOT_YOURS, "Session expired"),
    "AlreadyDone": CodeRow("done", 200, DONE, "It was done already"),
    "Delayed": CodeRow("delayed", 409, TRY_LATER, "The job rests after a loss or a failure"),
    "Closed": CodeRow("closed", 409, TRY_LATER, "The job is closed"),
    "Renewed": CodeRow("renewed", 200, YES, "Still yours"),
    "Released": CodeRow("released", 200, YES, "Let go"),
    "Failed": CodeRow("failed", 200, YES, "Let go as failed"),
    "NotAJob": CodeRow("invalid_input", 400, USAGE, "Invalid input"),
    "NoteTooLong": CodeRow("invalid_input", 400, USAGE, "Invalid input"),
    "NotCurrent": CodeRow("lease_not_current", 404, NOT_YOURS, "Lease is not current"),
    "KeySpent": CodeRow("conflict", 409, NOT_YOURS, "Conflict"),
    "Forbidden": CodeRow("forbidden", 403, NOT_ALLOWED, "Forbidden"),
    "AclDiffers": CodeRow("conflict", 409, NOT_ALLOWED, "Conflict"),
    "ClosureSet": CodeRow("close", 200, YES, "Closed"),
    "NotClosed": CodeRow("invalid_input", 400, USAGE, "Invalid input"),
    "Opened": CodeRow("opened", 200, YES, "Open again"),
    "AclSet": CodeRow("acl", 200, YES, "Access list set"),
    "PoolSet": CodeRow("pool", 200, YES, "Pool set"),
    "NotFound": CodeRow("not_found", 404, NOT_YOURS, "Lock not found"),
    "QuotaExceeded": CodeRow("lock_limit_exceeded", 403, NOT_ALLOWED, "Lock limit exceeded"),
    "TooMany": CodeRow("rate_limited", 429, TRY_LATER, "Rate limit exceeded"),
    "Counted": CodeRow("counted", 200, YES, "Counted"),
    "Broken": CodeRow("broken", 200, YES, "Taken away from its owner"),
    "Status": CodeRow("status", 200, YES, "How it stands"),
    "Swept": CodeRow("swept", 200, YES, "Swept"),
    "BeatRecorded": CodeRow("noted", 200, YES, "Noted"),
    "Frozen": CodeRow("upstream_unavailable", 503, UNREACHABLE, "Store frozen"),
    "FreezeNoted": CodeRow("frozen", 200, YES, "Noted"),
    "Thawed": CodeRow("thawed", 200, YES, "Noted"),
    "Raised": CodeRow("raised", 200, YES, "Noted"),
    "Identified": CodeRow("identified", 200, YES, "Which store this is"),
}

# The closed set of error codes: every value that `code` may have.
CODES: dict[str, CodeRow] = {
    row.word: row
    for row in (
        CodeRow("authentication_required", 401, NOT_ALLOWED, "Authorization header required"),
        CodeRow("authentication_failed", 401, NOT_ALLOWED, "Authentication failed"),
        CodeRow("forbidden", 403, NOT_ALLOWED, "Forbidden"),
        CodeRow("lock_limit_exceeded", 403, NOT_ALLOWED, "Lock limit exceeded"),
        CodeRow("invalid_input", 400, USAGE, "Invalid input"),
        CodeRow("invalid_ttl", 400, USAGE, "Invalid TTL"),
        CodeRow("invalid_lock_name", 400, USAGE, "Invalid lock name"),
        CodeRow("not_found", 404, NOT_YOURS, "Resource not found"),
        CodeRow("session_expired", 410, NOT_YOURS, "Session expired"),
        CodeRow("lease_not_current", 404, NOT_YOURS, "Lease is not current"),
        CodeRow("conflict", 409, NOT_YOURS, "Conflict"),
        CodeRow("deadlock", 409, DEADLOCK, "Waiting would deadlock"),
        CodeRow("capacity_exceeded", 409, TRY_LATER, "Capacity exceeded"),
        CodeRow("rate_limited", 429, TRY_LATER, "Rate limit exceeded"),
        CodeRow("upstream_unavailable", 503, UNREACHABLE, "Store unavailable"),
        CodeRow("draining", 503, UNREACHABLE, "Server draining"),
        CodeRow("internal_error", 500, FAULT, "Internal server error"),
    )
}

# Errors whose HTTP status is not the one of their code.
_STATUS_OF: dict[type[errors.DibsError], int] = {errors.Unprocessable: 422}


def row_of_error(error: BaseException) -> CodeRow:
    """The row of an exception. An unknown exception is an internal error."""
    code = error.code if isinstance(error, errors.DibsError) else "internal_error"
    if isinstance(error, errors.NotClaimed):  # the word of an outcome, raised by the SDK
        return next(row for row in OUTCOMES.values() if row.word == code)
    row = CODES.get(code, CODES["internal_error"])  # a newer server may have more
    status = _STATUS_OF.get(type(error))  # type: ignore[arg-type]
    return row if status is None else CodeRow(row.word, status, row.exit, row.title)


def exit_of_code(code: str) -> int:
    """The exit code for an error's `code`, also for a code of a newer server."""
    row = CODES.get(code)
    return row.exit if row is not None else FAULT
