"""The one table: every outcome and every error, with its HTTP status, exit code, one plain sentence, and its kind.

Nothing else in dibs maps an answer to a number. Who must decide what to do after a no asks for its kind, never for its
code: `kind_of` for a reply, `kind_of_word` for a job of several, `row_of_error` for an exception.
`tests/wire/test_codes.py` checks that the table is total.
"""

from __future__ import annotations

from dibs.base import errors
from dibs.base.reply import Reply

# Exit codes (docs/reference/exit-codes.md)
YES = 0
NO = 1
NOT_YOURS = 2
DEADLOCK = 3
DONE = 4
REPLACED = 5
OVERDUE = 6
IN_DOUBT = 7
UNPROVED = 8
LOST = 20
USAGE = 64
UNREACHABLE = 69
INTERNAL = 70
TRY_LATER = 75
NOT_ALLOWED = 77

# The five kinds of no. The kind says whom a refusal is about, and so what helps.
NOT_YET = "not_yet"  # the job: somebody has it, it is closed, it rests. Waiting helps.
NOT_ANY_MORE = "not_any_more"  # the job or the lease: done, parked, lost. Stop; neither time nor a repeat helps.
NEVER_LIKE_THIS = "never_like_this"  # the ask: a field, a bound, a spent key. Nothing was changed; ask otherwise.
NOT_NOW = "not_now"  # the server or its store: away, frozen, draining, overloaded. Go on; another server may do better.
NOT_YOU = "not_you"  # the caller: no token, the wrong one, or one that may not do this or no more of it.
KINDS = (NOT_YET, NOT_ANY_MORE, NEVER_LIKE_THIS, NOT_NOW, NOT_YOU)


class CodeRow:
    """One line of the table. `word` is the status of a reply or the code of an error. A yes has no `kind`."""

    __slots__ = ("exit", "http", "kind", "title", "word")

    def __init__(self, word: str, http: int, exit_code: int, title: str, kind: str | None = None) -> None:
        self.word = word
        self.http = http
        self.exit = exit_code
        self.title = title
        self.kind = kind


# The outcomes of the rules, by the names of their classes: a claim does not import all of the classes. A row with a
# word of CODES is sent as an error document, the others as an answer.
OUTCOMES: dict[str, CodeRow] = {
    "Granted": CodeRow("acquired", 200, YES, "The job is yours"),
    "GrantedAll": CodeRow("acquired", 200, YES, "The jobs are yours"),
    "Held": CodeRow("held", 200, NO, "Somebody else has it", NOT_YET),
    "Queued": CodeRow("queued", 200, NO, "You are in line", NOT_YET),
    "Refused": CodeRow("held", 200, NO, "None of these jobs is available", NOT_YET),
    "Superseded": CodeRow("superseded", 409, REPLACED, "A newer claim of the same group waits instead", NOT_ANY_MORE),
    "Deadlock": CodeRow("deadlock", 409, DEADLOCK, "Waiting would deadlock", NEVER_LIKE_THIS),
    "Differs": CodeRow("conflict", 409, NOT_YOURS, "Conflict", NEVER_LIKE_THIS),
    "Parked": CodeRow("parked", 409, TRY_LATER, "The job is parked", NOT_ANY_MORE),
    "Freed": CodeRow("freed", 200, YES, "The job may be claimed again"),
    "Left": CodeRow("left", 200, YES, "No longer in line"),
    "Withdrawn": CodeRow("withdrawn", 200, YES, "The claim is undone"),
    "TicketsKept": CodeRow("kept", 200, YES, "Places kept"),
    "Transferred": CodeRow("transferred", 200, YES, "Handed over"),
    "SessionState": CodeRow("session", 200, YES, "How the session stands"),
    "SessionUnknown": CodeRow("not_found", 404, NOT_YOURS, "Session not found", NOT_ANY_MORE),
    "SessionOver": CodeRow("session_expired", 410, NOT_YOURS, "Session expired", NOT_ANY_MORE),
    "AlreadyDone": CodeRow("done", 200, DONE, "It was done already", NOT_ANY_MORE),
    "Delayed": CodeRow("delayed", 409, TRY_LATER, "The job rests after a loss or a failure", NOT_YET),
    "Closed": CodeRow("closed", 409, TRY_LATER, "The job is closed", NOT_YET),
    "Renewed": CodeRow("renewed", 200, YES, "Still yours"),
    "Released": CodeRow("released", 200, YES, "Let go"),
    "Failed": CodeRow("failed", 200, YES, "Let go as failed"),
    "NotAJob": CodeRow("invalid_input", 400, USAGE, "Invalid input", NEVER_LIKE_THIS),
    "NoteTooLong": CodeRow("invalid_input", 400, USAGE, "Invalid input", NEVER_LIKE_THIS),
    "EffectRefused": CodeRow("conflict", 409, NOT_YOURS, "Conflict", NEVER_LIKE_THIS),
    "NotCurrent": CodeRow("lease_not_current", 404, NOT_YOURS, "Lease is not current", NOT_ANY_MORE),
    "KeySpent": CodeRow("conflict", 409, NOT_YOURS, "Conflict", NEVER_LIKE_THIS),
    "Forbidden": CodeRow("forbidden", 403, NOT_ALLOWED, "Forbidden", NOT_YOU),
    "AclDiffers": CodeRow("conflict", 409, NOT_ALLOWED, "Conflict", NEVER_LIKE_THIS),
    "ClosureSet": CodeRow("close", 200, YES, "Closed"),
    "NotClosed": CodeRow("invalid_input", 400, USAGE, "Invalid input", NEVER_LIKE_THIS),
    "Opened": CodeRow("opened", 200, YES, "Open again"),
    "AclSet": CodeRow("acl", 200, YES, "Access list set"),
    "PoolSet": CodeRow("pool", 200, YES, "Pool set"),
    "Numbered": CodeRow("numbered", 200, YES, "A number that nobody else has"),
    "NumberTaken": CodeRow("number_taken", 409, NO, "The number is taken", NOT_ANY_MORE),
    "NumberReturned": CodeRow("number_returned", 200, YES, "Given back"),
    "NotFound": CodeRow("not_found", 404, NOT_YOURS, "Lock not found", NOT_ANY_MORE),
    "QuotaExceeded": CodeRow("lock_limit_exceeded", 403, NOT_ALLOWED, "Lock limit exceeded", NOT_YOU),
    "TooMany": CodeRow("rate_limited", 429, TRY_LATER, "Rate limit exceeded", NOT_NOW),
    "Counted": CodeRow("counted", 200, YES, "Counted"),
    "Broken": CodeRow("broken", 200, YES, "Taken away from its owner"),
    "Status": CodeRow("status", 200, YES, "How it stands"),
    "Swept": CodeRow("swept", 200, YES, "Swept"),
    "BeatRecorded": CodeRow("noted", 200, YES, "Noted"),
    "Frozen": CodeRow("upstream_unavailable", 503, UNREACHABLE, "Store frozen", NOT_NOW),
    "FreezeNoted": CodeRow("frozen", 200, YES, "Noted"),
    "Thawed": CodeRow("thawed", 200, YES, "Noted"),
    "Raised": CodeRow("raised", 200, YES, "Noted"),
    "Identified": CodeRow("identified", 200, YES, "Which store this is"),
}

# The closed set of error codes: every value that `code` may have.
CODES: dict[str, CodeRow] = {
    row.word: row
    for row in (
        CodeRow("authentication_required", 401, NOT_ALLOWED, "Authorization header required", NOT_YOU),
        CodeRow("authentication_failed", 401, NOT_ALLOWED, "Authentication failed", NOT_YOU),
        CodeRow("forbidden", 403, NOT_ALLOWED, "Forbidden", NOT_YOU),
        CodeRow("lock_limit_exceeded", 403, NOT_ALLOWED, "Lock limit exceeded", NOT_YOU),
        CodeRow("invalid_input", 400, USAGE, "Invalid input", NEVER_LIKE_THIS),
        CodeRow("invalid_ttl", 400, USAGE, "Invalid TTL", NEVER_LIKE_THIS),
        CodeRow("invalid_lock_name", 400, USAGE, "Invalid lock name", NEVER_LIKE_THIS),
        CodeRow("not_found", 404, NOT_YOURS, "Resource not found", NOT_ANY_MORE),
        CodeRow("session_expired", 410, NOT_YOURS, "Session expired", NOT_ANY_MORE),
        CodeRow("lease_not_current", 404, NOT_YOURS, "Lease is not current", NOT_ANY_MORE),
        CodeRow("conflict", 409, NOT_YOURS, "Conflict", NEVER_LIKE_THIS),
        CodeRow("number_taken", 409, NO, "The number is taken", NOT_ANY_MORE),
        CodeRow("deadlock", 409, DEADLOCK, "Waiting would deadlock", NEVER_LIKE_THIS),
        CodeRow("capacity_exceeded", 503, TRY_LATER, "Capacity exceeded", NOT_NOW),
        CodeRow("rate_limited", 429, TRY_LATER, "Rate limit exceeded", NOT_NOW),
        CodeRow("upstream_unavailable", 503, UNREACHABLE, "Store unavailable", NOT_NOW),
        CodeRow("draining", 503, UNREACHABLE, "Server draining", NOT_NOW),
        CodeRow("internal_error", 500, INTERNAL, "Internal server error", NOT_NOW),
    )
}

# Errors whose HTTP status is not the one of their code.
_STATUS_OF: dict[type[errors.DibsError], int] = {errors.Unprocessable: 422}


# Which verbs have answers that say no by their status alone: they are no errors, whatever their HTTP status. In the
# answers of all other verbs a status says how something stands.
_CLAIM_NOS = frozenset(("held", "queued", "done", "delayed", "closed", "parked", "superseded"))
STATUSES_OF_NO: dict[str, frozenset[str]] = {
    **dict.fromkeys(("acquire", "acquire-any", "acquire-all"), _CLAIM_NOS),
    "transfer": frozenset(("held",)),
    "next": frozenset(("closed",)),
    "overdue": frozenset(("overdue",)),
}


def says_no(verb: str, status: object) -> bool:
    """Tell whether an answer with this status is a no to what was asked, and not an error."""
    return isinstance(status, str) and status in STATUSES_OF_NO.get(verb, ())


def row_of_error(error: BaseException) -> CodeRow:
    """The row of an exception. An unknown exception is an internal error."""
    code = error.code if isinstance(error, errors.DibsError) else "internal_error"
    if isinstance(error, errors.NotClaimed):  # the word of an outcome, raised by the SDK
        return next(row for row in OUTCOMES.values() if row.word == code)
    row = CODES.get(code, CODES["internal_error"])  # a newer server may have more
    status = _STATUS_OF.get(type(error))  # type: ignore[arg-type]
    return row if status is None else CodeRow(row.word, status, row.exit, row.title, row.kind)


def exit_of_code(code: str) -> int:
    """The exit code for an error's `code`, also for a code of a newer server."""
    row = CODES.get(code)
    return row.exit if row is not None else INTERNAL


_KIND_OF_WORD: dict[str, str | None] = {row.word: row.kind for row in (*OUTCOMES.values(), *CODES.values())}
# Of the statuses below 500 that are not about the ask.
_KIND_OF_STATUS = {
    **dict.fromkeys((401, 403), NOT_YOU),
    **dict.fromkeys((404, 410), NOT_ANY_MORE),
    **dict.fromkeys((408, 425, 429), NOT_NOW),
}


def kind_of_word(word: str) -> str | None:
    """The kind of a reply's status or of an error's code, where no HTTP status says more; None for a yes. A word that
    only a newer server knows counts as a no that waiting does not change."""
    return _KIND_OF_WORD.get(word, NEVER_LIKE_THIS)


def kind_of(reply: Reply) -> str | None:
    """The kind of a no to a request that acts; None for a yes. Of a claim on several jobs it is that of all together.
    A code of a newer server has the kind of its HTTP status."""
    body = reply.body or {}
    word = body.get("code") or body.get("status")
    if isinstance(word, str) and word in _KIND_OF_WORD:  # what answers may be anything
        return _KIND_OF_WORD[word]
    if reply.status < 400:
        return None
    return NOT_NOW if reply.status >= 500 else _KIND_OF_STATUS.get(reply.status, NEVER_LIKE_THIS)
