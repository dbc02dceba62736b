"""Waiting in line without I/O: what to request next, how long to tolerate missing answers, and how to leave nothing
behind.

A flow is a generator that yields steps. Its driver (`drive` here, an event loop elsewhere) answers each `Ask` with the
reply, each `Work` with its result, each `Pause` with None, and each `StillWaiting` with None or with the milliseconds
until the next report. A long wait is split into slices. The first slice is short, so that the place in line is known
early and can be given up. A request with the ticket keeps the place, even if the server was gone for a moment.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, Generator, TypeVar
from dibs.base.clock import steady_ms
from dibs.base.errors import FATE_UNKNOWN
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.client.door import Ask, Door
from dibs.core.limits import LIST_PAGE_MAX, WAIT_MS_MAX
from dibs.core.names import is_resource
from dibs.wire.codes import NOT_NOW, NOT_YET, kind_of, kind_of_word
from dibs.wire.documents import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.naming import Naming

T = TypeVar("T")
Flow = Generator["Step", Any, T]
ANY = "acquire-any"
SLICE_SECONDS = 20
RETRY_MS = 500
FIRST_SLICE_MS = 1_000
POLL_MS_MIN = 50
POLL_MS_MAX = 2_000
GIVING_UP_MS = 2_000
GIVING_UP_PAUSE_MS = 100


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


def drive(door: Door, flow: Flow[T], show: Callable[[StillWaiting], int | None] | None = None) -> T:
    """Run a flow on a door, in this thread."""
    answer: Any = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None
        if isinstance(step, Ask):
            answer = door.ask(step)
        elif isinstance(step, Work):
            answer = step.do()
        elif isinstance(step, Pause):
            door.news(step.ms)
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
    """Return the reply to `list` with all pages as one, or the reply that failed. `most`: end when so many jobs were
    found that `keep` wants; `next` says where to go on. `pools`: only pools, in any state."""
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
    """`written` if the store has a job under it that is not free, else `name`. So claims, done marks and lines that
    were made under another spelling, or with `exact`, keep working."""
    if written is None or written == name:
        return name
    reply: Reply = yield Ask("inspect", written)
    is_used = reply.status < 300 and (reply.body or {}).get("status", "free") != "free"
    return written if is_used else name


def patiently(asked: Ask | Work, until_ms: int | None, *, heard: bool = False) -> Flow[Reply]:
    """Ask until the answer is another than *not now*, or the time is over; None: for ever. Where nobody has answered
    yet, which `heard` says, the address may be wrong: that is told at once."""
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


class PendingClaim:
    """One claim, from the names of its jobs to its lease, possibly with a place in line.

    `document` must have a request key, so that a repeat after a lost reply finds the same lease. `own_key`: the key
    was made for this claim, and nobody else knows it. `wait_ms` is how long it waits in line, in slices. `naming` finds
    the one name of each job; the `tracker` of the work tree around is asked about issues. Either may run git."""

    def __init__(
        self,
        verb: str,
        name: str,
        document: Document,
        *,
        ticket: str | None = None,
        own_key: bool = False,
        wait_ms: int = 0,
        slice_seconds: int = SLICE_SECONDS,
        naming: Naming | None = None,
        tracker: Naming | None = None,
        steady: Callable[[], int] = steady_ms,
    ) -> None:
        self._steady = steady
        self._verb = verb
        self._name = name
        self.names: list[str] = document.get("names") or [name]  # the jobs that the claim may get
        self._line_name = name
        self._document = document
        self._ticket = ticket
        self.own_key = own_key
        self.wait_ms = wait_ms
        self.slice_seconds = slice_seconds
        self.naming = naming  # None once the names are known
        self._tracker = tracker
        self.sent_ms = 0  # when the last answered request was sent
        self._asked = self._waited = False
        self._heard = False  # somebody has answered, or an answer was lost: the address is right
        self._rest: list[tuple[str, str]] = []  # leases whose release was not answered

    @property
    def owner(self) -> str | None:
        owner: str | None = self._document.get("owner")
        return owner

    @property
    def is_shared(self) -> bool:
        return self._document.get("mode") == "shared"

    @property
    def reserved(self) -> list[str]:
        """The jobs that the store would give to one session twice. Of several it passes over what the session has."""
        return [] if self._verb == ANY else self.names

    def look_up(self) -> Flow[None]:
        """Find the one names. A single job that is in use as it is written stays so. Raises InvalidInput."""
        naming, self.naming = self.naming, None
        if naming is None:
            return
        of_all, written = naming.of_all, self.names
        found: list[str] = yield Work(lambda: of_all(written))
        if self._verb == "acquire":
            found = [(yield from name_in_use(found[0], written[0]))]
        self._ask_for(found)

    def _ask_for(self, names: list[str]) -> None:
        """Claim these jobs instead. For a claim that was not asked for yet, or has given back what it got."""
        self.names = names
        if self._verb == "acquire":
            self._name = self._line_name = names[0]
        else:
            self._document = {**self._document, "names": names}
        self._asked = self._waited = False

    def _take_new_key(self) -> None:
        self._document["request_key"] = new_id()  # whoever made the claim names it as the one to repeat

    def ask_once(self, wait_ms: int = 0) -> Flow[Reply]:
        """Claim once; the other side may wait for up to `wait_ms`."""
        if self._rest and (failed := (yield from self._let_go_of_rest())) is not None:
            return failed
        document = dict(self._document)
        if self._ticket is not None:
            document["ticket"] = self._ticket
        if wait_ms:
            document["wait_seconds"] = wait_ms / 1000 if wait_ms % 1000 else wait_ms // 1000
            self._waited = True
        asked, self._asked = self._asked, True
        sent_ms = self._steady()
        reply: Reply = yield Ask(self._verb, self._name, document)
        self.sent_ms = sent_ms
        if not reply.sent:
            self._asked = asked
        self._heard = self._heard or reply.answered or FATE_UNKNOWN in str((reply.body or {}).get("details"))
        if reply.body and reply.body.get("status") == "queued":
            self._note_place(reply)
        if not self.own_key or not reply.body or "rest" not in reply.body:
            return reply
        self._rest = self._leases_in(reply)
        body = {key: value for key, value in reply.body.items() if key != "rest"}
        return (yield from self._let_go_of_rest()) or Reply(status=reply.status, body=body)

    def _let_go_of_rest(self) -> Flow[Reply | None]:
        """Release what an answer that we never read had given, according to a refusal. The reply that failed: some may
        be ours. Until this is answered nothing is asked again: a late release would take what the next answer gives."""
        failed = yield from self._let_go(self._rest)
        self._rest = self._rest if failed is not None else []
        return failed

    def wait(self) -> Flow[Reply]:
        """Claim until the reply is not `queued`, or the time is over. Returns the last reply."""
        wait_ms = min(self.wait_ms, FOR_EVER_MS)
        if self._verb == ANY:
            return (yield from self._polling(wait_ms))
        until_ms = self._steady() + wait_ms
        pause_ms = RETRY_MS
        within_ms: int | None = None
        while True:
            most_ms = self.slice_seconds * 1000 if self._ticket is not None else FIRST_SLICE_MS
            if within_ms is not None:
                most_ms = min(most_ms, within_ms)
            reply = yield from self.ask_once(max(1, min(most_ms, until_ms - self._steady())))
            now_ms = self._steady()
            queued = status_of(reply) == "queued"
            if queued:
                pause_ms = RETRY_MS
            elif self._came_and_went(reply):
                if now_ms < until_ms:
                    continue
                return (yield from self.ask_once())  # report the present state after the wait
            elif not self._goes_on(reply):
                return reply
            within_ms = yield StillWaiting(reply, wait_ms - (until_ms - now_ms))
            if now_ms >= until_ms:
                return reply
            if not queued:
                hint_ms = (reply.body or {}).get("retry_after_ms") if kind_of(reply) == NOT_NOW else None
                yield Pause(min(hint_ms or pause_ms, until_ms - now_ms))
                pause_ms = min(2 * pause_ms, POLL_MS_MAX)

    def _polling(self, wait_ms: int) -> Flow[Reply]:
        """Poll, without a place in line: claim-any takes no place."""
        until_ms = self._steady() + wait_ms
        pause_ms = POLL_MS_MIN
        while True:
            reply = yield from self.ask_once()
            left_ms = until_ms - self._steady()
            if left_ms <= 0 or not self._goes_on(reply):
                return reply
            yield StillWaiting(reply, wait_ms - left_ms)
            hint_ms = (reply.body or {}).get("retry_after_ms") or pause_ms
            yield Pause(max(1, min(pause_ms, hint_ms, left_ms)))
            pause_ms = min(2 * pause_ms, POLL_MS_MAX)

    def _goes_on(self, reply: Reply) -> bool:
        """Tell whether to keep waiting after an answer that is no place in line. *Not now* says nothing about the job:
        the next request finds our place by ticket or request key, or gets another. But an address at which nobody ever
        answered may be a wrong one. *Not yet* is waited for while it can change; of several jobs, claim-all wants all
        of them, claim-any one."""
        kind = kind_of(reply)
        if kind != NOT_YET:
            return kind == NOT_NOW and self._heard
        refused = [_may_come(each) for each in (reply.body or {}).get("refused", ())]
        if self._verb == ANY:
            return any(refused) or not refused
        return self._ticket is not None and all(refused)

    def _came_and_went(self, reply: Reply) -> bool:
        """Tell whether our turn came and a lease expired before we saw it, because this process was paused. No work was
        begun with it, so we claim again with a new key, at the end of the line."""
        if not self.own_key:
            return False
        from dibs.wire.refusals import KEY_SPENT  # only a reply to a waiter begins with it

        body: Document = reply.body or {}
        if not any(str(each.get("details")).startswith(KEY_SPENT) for each in (body, *body.get("refused", ()))):
            return False
        self._take_new_key()
        self._ticket = None
        return True

    def leave(self, reply: Reply) -> Flow[Reply]:
        """The wait is over: give up the place. If the job was handed over at this moment, it is ours after all."""
        for _ in range(2):
            left: Reply = yield Ask("leave", self._line_name, {"ticket": self._ticket})
            if left.status >= 300 or (left.body or {}).get("left"):
                break  # a place that could not be given up is lost after TICKET_MS
            reply = yield from self.ask_once()
            if status_of(reply) != "queued":
                return reply
        body = {key: value for key, value in (reply.body or {}).items() if key != "ticket"}
        return Reply(status=reply.status, body=body)

    def claim(self) -> Flow[Reply]:
        """The whole claim: look up the names, claim, wait, leave the line in the end, and ask the tracker."""
        if self.naming is not None:
            yield from self.look_up()
        around = None
        if self._tracker is not None:
            from dibs.core.references import is_tracked

            around = self._tracker.around() if is_tracked(self.names) else None
        if around is None:
            return (yield from self._claimed())
        again = bool(self._document.get("again"))
        tracked = around.tracked_claim(self._verb, self.names, again=again, own_key=self.own_key)
        if not (yield from tracked.is_asked_for()):
            return (yield from self._claimed())
        reply: Reply | None = yield from tracked.look_first()
        while reply is None:
            if self._verb == ANY:
                self._ask_for(tracked.names_left())
            got = yield from self._claimed()
            reply = yield from tracked.confirm(got, self.sent_ms)
            if reply is None:
                self._take_new_key()
        if tracked.warning is not None:
            from logging import getLogger

            getLogger("dibs").warning("GitHub gave no answer, so a claim was not checked there: %s", tracked.warning)
        return reply

    def _claimed(self) -> Flow[Reply]:
        if not self.wait_ms:
            return (yield from self.ask_once())
        reply = yield from self.wait()
        if status_of(reply) == "queued":
            reply = yield from self.leave(reply)
            if self._came_and_went(reply):
                reply = yield from self.ask_once()
        return reply

    def give_up(self) -> Flow[bool]:
        """The caller has given up: leave the line, and release what was granted, even if the reply was lost. False if
        that failed: then the TTL or the silence in the line ends it, or another try does."""
        until_ms = self._steady() + GIVING_UP_MS
        while True:
            failed = yield from self._left_over()
            if failed is None:
                self._asked, self._ticket = False, None
                return True
            if not failed.sent or self._steady() >= until_ms:
                return False
            yield Pause(GIVING_UP_PAUSE_MS)

    def _left_over(self) -> Flow[Reply | None]:
        """Try once to give everything up. None if nothing is left, else the reply that failed."""
        if not self._asked and self._ticket is None:
            return None
        got: list[tuple[str, str]] = []
        if self._ticket is None:
            # With only the request key, repeat the claim: it returns the place or the lease of the lost reply. If
            # there was none, this makes one with a short TTL, so that it ends soon even if this reply is lost, too.
            document = dict(self._document)
            document.pop("replaces", None)  # whoever came later stays in line
            if document.pop("ttl_ms", None) is not None or "ttl_seconds" in document:
                document["ttl_seconds"] = 1
            if self._waited:
                document["wait_seconds"] = 1  # without a wait the reply has no place
            reply: Reply = yield Ask(self._verb, self._name, document)
            if kind_of(reply) == NOT_NOW:
                return reply
            self._note_place(reply)
            got = self._leases_in(reply)
        if self._ticket is not None:
            left: Reply = yield Ask("leave", self._line_name, {"ticket": self._ticket})
            if kind_of(left) == NOT_NOW:
                return left
            if (left.body or {}).get("left") is False:
                from dibs.wire.values import secret_of

                got = [(name, secret_of(self._ticket)) for name in self.names]
        return (yield from self._let_go(got))

    def _let_go(self, leases: list[tuple[str, str]]) -> Flow[Reply | None]:
        """Release them. The reply that failed, if one did."""
        for name, lease_id in leases:
            released: Reply = yield given_back(name, lease_id)
            if kind_of(released) == NOT_NOW:
                return released
        return None

    def _leases_in(self, reply: Reply) -> list[tuple[str, str]]:
        """Name and lease id of each lease that this claim got, also of those that a refusal names, without those that
        its session had before. What a key of the user's has may be another process's, which has read its answer."""
        body: Document = reply.body or {}
        if status_of(reply) == "acquired":
            found: list[Document] = body.get("leases") or [body]
        else:
            found = body.get("rest", []) if self.own_key else []
        return [(each["name"], each["lease_id"]) for each in found if not each.get("held_before")]

    def _note_place(self, reply: Reply) -> None:
        if status_of(reply) == "queued" and reply.body:
            self._ticket, self._line_name = reply.body["ticket"], reply.body["name"]


FOR_EVER_MS = 1000 * WAIT_MS_MAX


def given_back(name: str, lease_id: str) -> Ask:
    """Release what this claim did not use, without a verdict on the work. What another process of the session was told
    of meanwhile stays."""
    return Ask("release", name, {"lease_id": lease_id, "uncounted": True, "unused": True})


_OF_JOBS = frozenset(("done", "done_seconds", "result", "failed", "reason", "retry_after_seconds"))


def ending_of(name: str, fields: Document) -> Document:
    """The fields of a release, for an ending that was not chosen for this name: how a command exited, or that a block
    raised, or of several names together. Work on a resource says nothing about it, so after a failure it counts as
    nothing. Who says of a resource itself that it is done is refused (`core/leases.py`)."""
    if not is_resource(name):
        return fields
    kept = {field: value for field, value in fields.items() if field not in _OF_JOBS}
    return kept | {"uncounted": True} if fields.get("failed") else kept


def status_of(reply: Reply) -> str | None:
    status = reply.body.get("status") if reply.body else None
    return status if isinstance(status, str) else None


def _may_come(refused: Document) -> bool:
    """Tell whether the refusal of one job of several may change with time."""
    return kind_of_word(str(refused.get("code") or refused.get("status"))) in (NOT_YET, NOT_NOW)
