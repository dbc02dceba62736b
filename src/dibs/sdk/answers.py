"""Typed answers, and the exception for each refusal."""

from __future__ import annotations

from dibs.base import errors
from dibs.base.jsontext import Document
from dibs.client.flow import status_of
from dibs.sdk.values import Value, hidden
from dibs.wire.codes import NOT_NOW, NOT_YOU, kind_of
from dibs.wire.documents import Reply


class Effect:
    """A step of the work, and what is known of it: `done`, `failed`, `in_doubt`, or none of them: it is new. `owner`,
    `fencing_token` and `at` are of the try that this is about. A block sets `result` for later owners."""

    __slots__ = ("at", "fencing_token", "key", "owner", "reason", "result", "status")

    def __init__(
        self,
        key: str,
        status: str,
        owner: str | None = None,
        fencing_token: int | None = None,
        at: str | None = None,
        result: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.key = key
        self.status = status
        self.owner = owner
        self.fencing_token = fencing_token
        self.at = at
        self.result = result
        self.reason = reason

    def __repr__(self) -> str:
        return f"Effect(key={self.key!r}, status={self.status!r}, owner={self.owner!r}, result={self.result!r})"

    @property
    def done(self) -> bool:
        """An owner did it; `result` is what it left."""
        return self.status == "done"

    @property
    def failed(self) -> bool:
        """Every owner that began it said that it failed."""
        return self.status == "failed"

    @property
    def in_doubt(self) -> bool:
        """An owner began it and did not say how it ended: it may have happened."""
        return self.status == "in_doubt"


class Previous(Value):
    """The previous owner, how its hold ended (released, failed, expired, broken, …) and why, and its checkpoint."""

    owner: str
    how: str
    at: str
    fencing_token: int
    checkpoint: str | None = None
    by: str | None = None
    reason: str | None = None
    attempt: int | None = None
    effects: tuple[Effect, ...] = ()  # the steps that it and those before it noted


class Lease(Value):
    """A job that is yours, for `remaining_ms` from the request. `lease_id` is the proof: keep it secret. `namespace` is
    None for `default`, or for the one that the token is bound to. After a renewal `waiting` is how many wait for it,
    and `new_waiters` how many of them no renewal has reported before. With a ceiling (`max_hold`), `ends_at` is when it
    ends, whatever is renewed. `slot_numbers` are the numbers of its slots, from 0, one for each unit, and `slot` is the
    first of them; empty and None if the job has no slots."""

    name: str
    lease_id: str = hidden()
    fencing_token: int
    owner: str
    expires_at: str
    remaining_ms: int
    attempt: int = 1
    metadata: str | None = None
    previous: Previous | None = None
    namespace: str | None = None
    waiting: int = 0
    new_waiters: int = 0
    ends_at: str | None = None
    ends_in_ms: int | None = None
    slot: int | None = None
    slot_numbers: tuple[int, ...] = ()

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint of the previous owner."""
        return self.previous.checkpoint if self.previous else None


class JobStatus(Value):
    """The state of a job, in one word. `status` is held; or of a job that nobody holds the first of what keeps others
    from it: parked, done, frozen (its store is being moved), closed, paused (its pool has no slots), delayed (it rests
    after a failure or a loss); or free. A newer server may have another word. `document` has all fields."""

    name: str
    status: str
    owner: str | None
    fencing_token: int
    expires_at: str | None
    remaining_ms: int | None
    metadata: str | None
    checkpoint: str | None
    previous: Previous | None
    document: Document = hidden(compare=False)
    namespace: str | None = None

    @property
    def held(self) -> bool:
        return self.status == "held"


class JobOwner(str):
    """The name of a job's owner, and the state of the job in `status`."""

    status: JobStatus

    @classmethod
    def of(cls, status: JobStatus) -> JobOwner:
        made = cls(status.owner or "")
        made.status = status
        return made

    @property
    def live(self) -> bool:
        """True while the claim has time left. One whose time is over is the owner's until its end is written."""
        return self.status.remaining_ms is None or self.status.remaining_ms > 0

    @property
    def metadata(self) -> str | None:
        return self.status.metadata


class JobEvent(Value):
    """Something that happened to the job `name`. `event` says what: acquired, progress, released, expired, …"""

    seq: int
    at: str
    event: str
    owner: str | None = None
    fencing_token: int | None = None
    checkpoint: str | None = None
    document: Document = hidden(compare=False, default_factory=dict)
    name: str | None = None
    namespace: str | None = None


class Overdue(Value):
    """The answer whether a job is overdue: `overdue`, and true as this. The last success was at `at`, by `owner`, with
    `result`; all are None if none is on record, and `record_since` says since when. `overdue_by` is in seconds."""

    name: str
    overdue: bool
    at: str | None
    owner: str | None
    result: str | None
    overdue_by: float | None
    record_since: str | None
    document: Document = hidden(compare=False)

    def __bool__(self) -> bool:
        return self.overdue


def overdue_from(document: Document) -> Overdue:
    last, late_ms = document.get("last_success") or {}, document["overdue_ms"]
    return Overdue(
        name=document["name"],
        overdue=document["status"] == "overdue",
        at=last.get("at"),
        owner=last.get("owner"),
        result=last.get("result"),
        overdue_by=None if late_ms is None else late_ms / 1000,
        record_since=document.get("record_since"),
        document=document,
    )


def previous_of(document: Document) -> Previous | None:
    found = document.get("previous")
    if not found:
        return None
    noted = tuple([effect_of(each) for each in found.get("effects", ())])
    return Previous(**{**_fields(Previous, found), "effects": noted})


def effect_of(document: Document) -> Effect:
    return Effect(**{field: document[field] for field in Effect.__slots__ if field in document})


def lease_of(document: Document, name: str | None = None) -> Lease:
    said = {"name": name or "", "owner": "", **_fields(Lease, document)}
    if "slot" in said:  # servers up to 0.2 name one slot by itself
        said["slot_numbers"] = tuple(said.get("slot_numbers") or (said["slot"],))
    if "previous" in said:
        said["previous"] = previous_of(document)
    return Lease(**said)


def status_from(document: Document) -> JobStatus:
    said = {**dict.fromkeys(JobStatus._types), **_fields(JobStatus, document)}
    return JobStatus(**{**said, "previous": previous_of(document), "document": document})


def event_from(document: Document, name: str | None = None) -> JobEvent:
    return JobEvent(**{"name": name, **_fields(JobEvent, document), "document": document})


def _fields(kind: type[Value], document: Document) -> Document:
    return {field: value for field, value in document.items() if field in kind._types}


def body_of(reply: Reply) -> Document:
    """The document of a successful reply. Any other reply is raised as its exception."""
    if reply.status < 300 and status_of(reply) not in _NOT_CLAIMED:
        return reply.body or {}
    raise refusal_of(reply)


def refusal_of(reply: Reply) -> errors.DibsError:
    """The exception for a reply that says no."""
    body = reply.body or {}
    code = str(body.get("code", "internal_error"))
    if status_of(reply) in _NOT_CLAIMED or code == "deadlock":
        return not_claimed(body)
    details = str(body.get("details") or body.get("error") or f"The answer was {reply.status}.")
    known = _BY_CODE.get(code)
    if known is None:
        known = _BY_KIND.get(kind_of(reply))
    if known is None:
        return errors.RequestRefused(details, code)
    error = known(details)
    error.code = code
    if isinstance(error, errors.Unavailable):
        error.retry_after_ms = body.get("retry_after_ms")
    return error


def not_claimed(answer: Document) -> errors.NotClaimed:
    """The exception for a claim that was refused, or for one job of several."""
    from dibs.wire.sentences import in_full  # most claims are granted

    status = answer["code"] if "code" in answer else answer.get("status")
    refused = answer.get("refused")
    kind = errors.NoneFree if refused is not None and status == "held" else _NOT_CLAIMED.get(status, errors.NotClaimed)
    error = kind(in_full(answer), answer, tuple([not_claimed(entry) for entry in refused or ()]))
    if kind is errors.NotClaimed:
        error.code = str(status)
    return error


# By the codes that the classes have, else by the kind of no.
_OF_REQUESTS = (errors.InvalidInput, errors.InvalidTtl, errors.InvalidName)
_OF_CALLERS = (errors.NotAllowed, errors.AuthenticationRequired, errors.AuthenticationFailed)
_BY_CODE: dict[str, type[errors.DibsError]] = {kind.code: kind for kind in (*_OF_REQUESTS, *_OF_CALLERS)}
_BY_KIND: dict[str | None, type[errors.DibsError]] = {NOT_NOW: errors.Unavailable, NOT_YOU: errors.NotAllowed}
_NOT_CLAIMED: dict[str | None, type[errors.NotClaimed]] = {
    **{kind.code: kind for kind in (errors.JobHeld, errors.JobDone, errors.JobResting, errors.JobClosed)},
    **{kind.code: kind for kind in (errors.JobParked, errors.JobSuperseded, errors.WouldDeadlock)},
    "queued": errors.JobHeld,
}
