"""Flows: what to ask next, without I/O, so that programs with and without an event loop share it.

A flow is a generator that yields steps. Its driver (`drive` here, an event loop elsewhere) answers each `Ask` with the
reply, each `Work` with its result, each `Pause` with None, and each `StillWaiting` with None or with the milliseconds
until the next report. `pending.py` has the flow of a claim.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, Generator, TypeVar
from dibs.base.clock import steady_ms
from dibs.base.jsontext import Document
from dibs.client.transport import Ask, Transport
from dibs.core.limits import LIST_PAGE_MAX
from dibs.core.names import is_resource
from dibs.wire.codes import NOT_NOW, kind_of
from dibs.wire.documents import Reply

T = TypeVar("T")
Flow = Generator["Step", Any, T]
RETRY_MS = 500
POLL_MS_MAX = 2_000


class Pause:
    """Let time pass."""

    __slots__ = ("ms",)

    def __init__(self, ms: int) -> None:
        self.ms = ms


class Work:
    """Something that blocks and is no request, such as a run of git. An event loop runs it in a thread."""

    __slots__ = ("do",)

    def __init__(self, do: Callable[[], Any]) -> None:
        self.do = do


class StillWaiting:
    """The claim still waits. `reply` is the last one: a place in line, or the error."""

    __slots__ = ("reply", "waited_ms")

    def __init__(self, reply: Reply, waited_ms: int) -> None:
        self.reply = reply
        self.waited_ms = waited_ms


Step = Ask | Pause | StillWaiting | Work


def drive(transport: Transport, flow: Flow[T], show: Callable[[StillWaiting], int | None] | None = None) -> T:
    """Run a flow on a transport, in this thread."""
    answer: Any = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None
        if isinstance(step, Ask):
            answer = transport.ask(step)
        elif isinstance(step, Work):
            answer = step.do()
        elif isinstance(step, Pause):
            transport.news(step.ms)
        elif show is not None:
            answer = show(step)


def all_pages(
    prefix: str,
    states: tuple[str, ...] = ("held",),
    *,
    after: str = "",
    most: int | None = None,
    keep: Callable[[Document], bool] | None = None,
    pools: bool = False,
) -> Flow[Reply]:
    """Return the reply to `list` with all pages as one, or the reply that failed. `most`: end after that many jobs that
    `keep` accepts; `next` says where to go on. `pools`: only pools, in any state."""
    found: list[Document] = []
    last: str | None = after
    while True:
        asked = {"limit": most or LIST_PAGE_MAX, "after": last, "status": ",".join(states)}
        if pools:
            asked["pools"] = "true"
        reply: Reply = yield Ask("list", prefix, asked)
        body: Document = reply.body or {}
        if reply.status >= 300:
            return reply
        found += [lock for lock in body["locks"] if keep is None or keep(lock)]
        last = body["next"]
        if most is not None and len(found) > most:
            last = found[most - 1]["name"]
        if not last or (most is not None and len(found) >= most):
            reply.body = {**body, "locks": found[:most], "next": last}
            return reply


def name_in_use(name: str, written: str | None) -> Flow[str]:
    """`written` if the store has a job under it that is in use, else `name`. So claims and done marks that were made
    under another spelling, or with `exact`, keep working. A closure or a freeze is not about one spelling."""
    if written is None or written == name:
        return name
    from dibs.core.records import FREE, UNUSED  # few names are written in two ways

    reply: Reply = yield Ask("inspect", written)
    body: Document = reply.body or {}
    # A job that rests is in use, also while an operator keeps everybody from it.
    is_used = body.get("status", FREE) not in UNUSED or "available_at" in body
    return written if is_used and reply.status < 300 else name


def patiently(asked: Ask | Work, until_ms: int | None, *, heard: bool = False) -> Flow[Reply]:
    """Ask until the answer is another than *not now*, or the time is over; None: for ever. Where nobody has answered
    yet, which `heard` says, the address may be wrong: that is reported at once."""
    pause_ms, began_ms = RETRY_MS, steady_ms()
    while True:
        reply: Reply = yield asked
        heard = heard or reply.answered
        now_ms = steady_ms()
        if kind_of(reply) != NOT_NOW or not heard or (until_ms is not None and now_ms >= until_ms):
            return reply
        yield StillWaiting(reply, now_ms - began_ms)
        yield Pause(pause_ms if until_ms is None else min(pause_ms, until_ms - now_ms))
        pause_ms = min(2 * pause_ms, POLL_MS_MAX)


_OF_JOBS = frozenset(("done", "done_seconds", "result", "failed", "reason", "retry_after_seconds"))


def ending_of(name: str, fields: Document) -> Document:
    """The fields of a release, for an ending that was not chosen for this name: how a command exited, or that a block
    raised, or of several names together. Work on a resource says nothing about it, so after a failure it counts as
    nothing. Who says of a resource itself that it is done is refused (`core/claims/leases.py`)."""
    if not is_resource(name):
        return fields
    kept = {field: value for field, value in fields.items() if field not in _OF_JOBS}
    return kept | {"uncounted": True} if fields.get("failed") else kept


def status_of(reply: Reply) -> str | None:
    status = reply.body.get("status") if reply.body else None
    return status if isinstance(status, str) else None
