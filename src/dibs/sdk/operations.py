"""Every question the SDK asks, as a flow without I/O. Both faces drive these; neither knows a document's fields."""

from __future__ import annotations

import math

from dibs.base.cheap import Sequence
from dibs.base.errors import InvalidInput, InvalidTtl, LeaseLost
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.record import Record
from dibs.client.flow import Flow, all_pages
from dibs.client.naming import Naming
from dibs.client.pending import FOR_EVER_MS, SLICE_SECONDS, PendingClaim
from dibs.client.transport import Ask, is_over
from dibs.core import limits
from dibs.core.durations import Duration, duration_ms
from dibs.core.names import RESOURCES, is_resource
from dibs.sdk import answers
from dibs.sdk.answers import JobEvent, JobStatus, Lease, Overdue
from dibs.sdk.methods import name_given, prefix_given
from dibs.wire.documents import Reply
from dibs.wire.issue_names import is_plain
from dibs.wire.values import check_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime


class ClaimTerms(Record):
    """The terms of a claim, beside its jobs, as the methods of the SDK take them."""

    owner: str | None = None
    ttl: Duration | None = None
    wait: Duration | None = None
    replaces: str | None = None
    metadata: str | None = None
    shared: bool = False
    slots: int | None = None
    units: int | None = None
    count: int | None = None
    again: bool = False
    lock_delay: Duration | None = None
    max_attempts: int | None = None
    max_hold: Duration | None = None
    request_key: str | None = None
    session_id: str | None = None

    def document(self) -> Document:
        """The fields of the request that were given. `wait` is not sent: a flow asks again and again."""
        fields: Document = {
            "owner": self.owner,
            **ttl_fields(self.ttl),
            "replaces": self.replaces,
            "metadata": self.metadata,
            "mode": "shared" if self.shared else None,
            "slots": self.slots,
            "units": self.units,
            "count": self.count,
            "again": self.again or None,
            "lock_delay_seconds": whole_seconds(self.lock_delay, "lock_delay"),
            "max_attempts": self.max_attempts,
            "max_hold_seconds": whole_seconds(self.max_hold, "max_hold"),
            "request_key": new_id() if self.request_key is None else self.request_key,
            "session_id": self.session_id,
        }
        return {name: value for name, value in fields.items() if value is not None}


NO_TERMS = ClaimTerms()


def claim_request(
    verb: str,
    names: Sequence[str],
    terms: ClaimTerms,
    *,
    slice_seconds: int = SLICE_SECONDS,
    naming: Naming | None = None,
    tracker: Naming | None = None,
) -> PendingClaim:
    """A claim of one job, of any of several or of all of several, that was not asked for yet."""
    if isinstance(names, str):
        raise InvalidInput("Names are a list of names, not one text.")
    if terms.replaces is not None and not terms.wait:
        raise InvalidInput("replaces is for a claim that waits in line: give wait, too.")
    names = [name_given(name) for name in names]
    document = terms.document()
    if verb != "acquire":
        document["names"] = names
    return PendingClaim(
        verb,
        names[0] if verb == "acquire" else "",
        document,
        own_key=terms.request_key is None,
        wait_ms=wait_ms(terms.wait),
        slice_seconds=slice_seconds,
        naming=None if all(is_plain(name) for name in names) else naming,
        tracker=tracker,
    )


def ttl_fields(ttl: Duration | None, what: str = "ttl") -> Document:
    """A TTL as a document has it: whole seconds where it is that, which every server understands."""
    if ttl is None:
        return {}
    try:
        ttl_ms = duration_ms(ttl, what)
    except InvalidInput as error:
        raise InvalidTtl(error.details) from None
    return {"ttl_ms": ttl_ms} if ttl_ms % 1000 else {"ttl_seconds": ttl_ms // 1000}


def whole_seconds(value: Duration | None, what: str) -> int | None:
    """For what is counted in whole seconds: never less than was asked for."""
    return None if value is None else -(-duration_ms(value, what) // 1000)


def wait_ms(wait: Duration | None) -> int:
    if wait is None:
        return 0
    return FOR_EVER_MS if wait == math.inf else duration_ms(wait, "wait")


def done_fields(done: Duration | bool | None) -> Document:
    """`done` is True for as long as is usual, a day, or how long."""
    if done is None or done is False:
        return {}
    if done is True:
        return {"done_seconds": limits.DONE_MS_DEFAULT // 1000}
    return {"done_seconds": max(1, whole_seconds(done, "done") or 0)}


def check_done(name: str, done: Duration | bool | None) -> None:
    """Refuse `done` for a resource, before the work that it would be said of."""
    if done is not None and is_resource(name):
        from dibs.wire.sentences import not_a_job

        raise InvalidInput(not_a_job(name, "done"))


def acquire(request: PendingClaim) -> Flow[tuple[Lease, ...]]:
    """The leases, or the refusal raised."""
    body = answers.body_of((yield from request.claim()))
    return tuple([answers.lease_of(each) for each in body.get("leases") or [body]])


def renew(
    name: str,
    lease_id: str,
    *,
    ttl: Duration | None = None,
    checkpoint: str | None = None,
    metadata: str | None = None,
    shared: bool = False,
) -> Flow[Lease]:
    """Heartbeat by hand. `shared`: an exclusive claim is shared from now on."""
    document = {"lease_id": lease_id, "checkpoint": checkpoint, "metadata": metadata}
    document["mode"] = "shared" if shared else None
    asked = _given(document) | ttl_fields(ttl)
    return answers.lease_of(_still_ours(name, (yield Ask("renew", name, asked))), name)


def note_effect(
    name: str,
    lease_id: str,
    *,
    key: str,
    effect_id: str | None,
    status: str,
    result: str | None = None,
    reason: str | None = None,
    checkpoint: str | None = None,
    metadata: str | None = None,
) -> Flow[Document]:
    """Heartbeat that notes that a step begins, or how it ended. Its answer has what is known of it as `effect`."""
    document: Document = {"lease_id": lease_id, "effect_key": key, "effect_id": effect_id, "effect_status": status}
    document |= {"effect_result": result, "effect_reason": reason, "checkpoint": checkpoint, "metadata": metadata}
    body = _still_ours(name, (yield Ask("renew", name, _given(document))))
    if "effect" not in body:  # it ignored fields that it does not know
        raise InvalidInput("This server is older than once(): it keeps no notes of steps. Upgrade the server first.")
    return body


def release(
    name: str,
    lease_id: str,
    *,
    done: Duration | bool | None = None,
    result: str | None = None,
    checkpoint: str | None = None,
) -> Flow[None]:
    """Release by hand; with `done`, the job is marked as done for that many seconds."""
    document = {"lease_id": lease_id, "result": result, "checkpoint": checkpoint}
    _still_ours(name, (yield Ask("release", name, _given(document) | done_fields(done))))


def give_back(name: str, lease_id: str, *, checkpoint: str | None = None) -> Flow[None]:
    """Let go without a verdict on the work."""
    document = {"lease_id": lease_id, "uncounted": True, "checkpoint": checkpoint}
    _still_ours(name, (yield Ask("release", name, _given(document))))


def fail(
    name: str,
    lease_id: str,
    reason: str | None = None,
    *,
    retry_after: Duration | None = None,
    checkpoint: str | None = None,
) -> Flow[None]:
    """Release by hand as failed. See `Claim.fail`."""
    # A reason is mostly the text of an error: it is shortened and cleaned until it can be sent, and never refused.
    document: Document = {"lease_id": lease_id, "failed": True, "checkpoint": checkpoint}
    if reason is not None:
        document["reason"] = str(reason).encode("utf-8", "backslashreplace").decode()[: limits.REASON_CHARS_MAX]
    rest = whole_seconds(retry_after, "retry_after")
    if rest is not None and rest > limits.RETRY_MS_MAX // 1000:
        raise InvalidInput(f"retry_after is a week at most; this is {retry_after!r}.")
    document["retry_after_seconds"] = rest
    _still_ours(name, (yield Ask("release", name, _given(document))))


def transfer(
    name: str,
    lease_id: str,
    *,
    to_owner: str | None = None,
    to_session: str | None = None,
    ttl: Duration | None = None,
    checkpoint: str | None = None,
    fresh_lease_id: str | None = None,
) -> Flow[Lease]:
    """Hand a job to another owner. Returns the new owner's lease."""
    document = {
        "lease_id": lease_id,
        "fresh_lease_id": fresh_lease_id or new_id(),
        "to_owner": to_owner,
        "to_session": to_session,
        "checkpoint": checkpoint,
    }
    asked = _given(document) | ttl_fields(ttl)
    return answers.lease_of(_still_ours(name, (yield Ask("transfer", name, asked))), name)


def inspect(name: str) -> Flow[JobStatus]:
    """The state of a job, and who has it. One that nobody ever claimed is free."""
    reply: Reply = yield Ask("inspect", name, {})
    body = reply.body or {}
    if reply.status == 404 and body.get("code") == "not_found":
        free = {"name": name, "status": "free", "fencing_token": 0, "namespace": body.get("namespace")}
        return answers.status_from(free)
    if reply.status < 300 and "fencing_token" in body:
        return answers.status_from(body)
    raise answers.refusal_of(reply)


def list_jobs(prefix: str | None = None) -> Flow[list[JobStatus]]:
    """All held jobs with that prefix; also those of the tree of the repository around, which are in its namespace."""
    begins = prefix_given(prefix)
    body = answers.body_of((yield from all_pages(begins)))
    found: list[Document] = body["locks"]
    if body.get("tree_namespace"):
        for tree in RESOURCES:
            if tree.startswith(begins):
                found += answers.body_of((yield from all_pages(tree)))["locks"]
        found.sort(key=lambda lock: lock["name"])
    return [answers.status_from(each) for each in found]


def history(name: str, limit: int = limits.HISTORY_PAGE_DEFAULT) -> Flow[list[JobEvent]]:
    """The newest events of a job, oldest first."""
    body = answers.body_of((yield Ask("history", name, {"limit": limit})))
    return [answers.event_from(each, name) for each in body["events"]]


def overdue(name: str, within: Duration = "1d") -> Flow[Overdue]:
    """Tell whether a job succeeded in time: the last release that was no failure is at most `within` ago."""
    reply: Reply = yield Ask("overdue", name, {"within_seconds": max(1, whole_seconds(within, "within") or 0)})
    if (reply.body or {}).get("status") in ("in_time", "overdue"):
        return answers.overdue_from(reply.body or {})
    raise answers.refusal_of(reply)


def break_claim(name: str, reason: str, fencing_token: int | None = None) -> Flow[None]:
    """Take a job away from its owners, who are told why; with `fencing_token` from that one. For operators."""
    answers.body_of((yield Ask("break", name, _given({"reason": reason, "fencing_token": fencing_token}))))


def free(name: str) -> Flow[bool]:
    """Let a parked job be claimed again. For operators."""
    return bool(answers.body_of((yield Ask("free", name, {}))).get("freed"))


def close_job(name: str, reason: str, *, duration: Duration | None = None, until: datetime | None = None) -> Flow[None]:
    """Let nobody be granted a job for `duration`, or `until` a time; of a name that ends in "/", all below it. Owners
    keep theirs. For operators."""
    if until is not None and until.tzinfo is None:
        raise InvalidInput("until needs a time zone, such as datetime.now(UTC) has.")
    document = {"reason": reason, "for_seconds": whole_seconds(duration, "duration")}
    document["until"] = None if until is None else until.isoformat()
    answers.body_of((yield Ask("close", name, _given(document))))


def open_job(name: str) -> Flow[bool]:
    """End what `close_job` began, early. Returns whether it was closed under this name. For operators."""
    return bool(answers.body_of((yield Ask("open", name, {}))).get("opened"))


def set_pool(name: str, slots: int | None) -> Flow[int | None]:
    """Say how many owners a job may have at once: claims of it need not. 0 pauses it, None makes it no pool. Owners
    keep what they have. Returns how many slots it had. For operators."""
    was: int | None = answers.body_of((yield Ask("pool", name, {"slots": slots})))["was"]
    return was


def list_pools(prefix: str | None = None) -> Flow[list[JobStatus]]:
    """All pools with that prefix, in any state."""
    body = answers.body_of((yield from all_pages(prefix_given(prefix), pools=True)))
    return [answers.status_from(each) for each in body["locks"]]


def next_number(
    name: str, *, at_least: int = 0, number: int | None = None, owner: str | None = None, request_key: str | None = None
) -> Flow[int]:
    """A number of a series that nobody else gets: the next one, from `at_least` on. `number`: just this one; raises
    RequestRefused if somebody has it. It stays taken until `return_number`."""
    document = {"at_least": at_least or None, "number": number, "owner": owner, "request_key": request_key or new_id()}
    found: int = answers.body_of((yield Ask("next", name, _given(document))))["number"]
    return found


def return_number(name: str, number: int, *, request_key: str | None = None) -> Flow[bool]:
    """Give the `number` of a series back. Returns whether anybody had it. A repeat with the same `request_key` frees
    nothing: the number may be another's."""
    document = {"number": number, "request_key": request_key or new_id()}
    return bool(answers.body_of((yield Ask("give-back", name, document)))["returned"])


def open_session(owner: str | None, ttl: Duration | None, metadata: str | None, process: str | None) -> Flow[Document]:
    document: Document = {"owner": owner, "metadata": metadata, "process": process}
    document["fresh_session_id"] = new_id()
    if ttl is not None:  # not ttl_seconds, which OctoStore's contract moves to the nearer bound without a word
        document["ttl_ms"] = duration_ms(ttl, "ttl")
    return answers.body_of((yield Ask("session-open", "", _given(document))))


def join_session(session_id: str) -> Flow[Document]:
    """Renew a session that was opened elsewhere, and say what it is."""
    answers.body_of((yield Ask("session-keep", session_id, {})))
    return answers.body_of((yield Ask("session-show", session_id, {})))


def end_session(session_id: str) -> Flow[None]:
    reply: Reply = yield Ask("session-end", session_id, {})
    if reply.status not in (404, 410):  # ended already is ended
        answers.body_of(reply)


def _still_ours(name: str, reply: Reply) -> Document:
    """The document of a yes. What says that the lease is no more is a loss."""
    body = reply.body or {}
    if is_over(reply):
        raise LeaseLost(name, 0, str(body.get("details")))
    return answers.body_of(reply)


def _given(document: Document) -> Document:
    """The arguments that were given. Texts are checked here: one that JSON cannot carry is refused before anything is
    sent."""
    given = {key: value for key, value in document.items() if value is not None}
    check_texts(given)
    return given
