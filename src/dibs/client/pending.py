"""One claim on its way, without I/O: what to ask next, how long to tolerate missing answers, and how to undo it.

A long wait is split into slices. The first slice is short, so that the place in the queue is known early. A request
with the ticket keeps the place, even if the server was gone for a moment.

Whoever gives up sends one request, `withdraw`, and leaves nothing behind, whatever came of the claim: it may wait, have
the job, or not have arrived (`core/claims/withdraw.py`).
"""

from __future__ import annotations

from dibs.base.cheap import Callable, Sequence
from dibs.base.clock import steady_ms
from dibs.base.errors import FATE_UNKNOWN
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.client.flow import POLL_MS_MAX, RETRY_MS, Flow, Pause, StillWaiting, Work, name_in_use, status_of
from dibs.client.transport import Ask
from dibs.core.limits import WAIT_MS_MAX
from dibs.wire.codes import NOT_NOW, NOT_YET, kind_of, kind_of_word
from dibs.wire.documents import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.naming import Naming

ANY = "acquire-any"
SLICE_SECONDS = 20
FIRST_SLICE_MS = 1_000
POLL_MS_MIN = 50
GIVING_UP_MS = 2_000
GIVING_UP_PAUSE_MS = 100
FOR_EVER_MS = 1000 * WAIT_MS_MAX


def withdrawal(names: Sequence[str], request_key: str | None, ticket: str | None = None) -> Ask:
    """The request that undoes a claim of these jobs, which its request key names, or a ticket that it came with."""
    document: Document = {"names": list(names)}
    if request_key is not None:
        document["request_key"] = request_key
    if ticket is not None:
        document["ticket"] = ticket
    return Ask("withdraw", "", document)


class PendingClaim:
    """One claim, from the names of its jobs to its lease, possibly with a place in the queue.

    `document` must have a request key, which names the ask: a repeat after a lost reply finds the same lease.
    `own_key`: the key was made for this claim. One that the caller has named may be asked by others, too: who gives up
    ends its place and nothing else. `wait_ms` is how long it waits in the queue, in slices. `naming` finds the one name
    of each job; the `tracker` of the work tree around is asked about issues. Either may run git."""

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
        self._document = document
        self._ticket = ticket
        self.own_key = own_key
        self.wait_ms = wait_ms
        self.slice_seconds = slice_seconds
        self.naming = naming  # None once the names are known
        self._tracker = tracker
        self.sent_ms = 0  # when the last answered request was sent
        self._asked = False  # a server or store may have something of it
        self._heard = False  # somebody has answered, or an answer was lost: the address is right

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
        """Claim these jobs instead. For a claim that was not asked for yet, or was withdrawn."""
        self.names = names
        if self._verb == "acquire":
            self._name = names[0]
        else:
            self._document = {**self._document, "names": names}
        self._asked = False

    def _begin_anew(self) -> None:
        """From now on it is another ask, at the end of the queue."""
        self._document["request_key"] = new_id()  # whoever made the claim names it as the one to repeat
        self._asked, self._ticket = False, None

    def ask_once(self, wait_ms: int = 0) -> Flow[Reply]:
        """Claim once; the other side may wait for up to `wait_ms`."""
        document = dict(self._document)
        if self._ticket is not None:
            document["ticket"] = self._ticket
        if wait_ms:
            document["wait_seconds"] = wait_ms / 1000 if wait_ms % 1000 else wait_ms // 1000
        asked, self._asked = self._asked, True
        sent_ms = self._steady()
        reply: Reply = yield Ask(self._verb, self._name, document)
        self.sent_ms = sent_ms
        if not reply.sent:
            self._asked = asked
        self._heard = self._heard or reply.answered or FATE_UNKNOWN in str((reply.body or {}).get("details"))
        if reply.body and status_of(reply) == "queued":
            self._ticket = reply.body["ticket"]
        if not self.own_key or not reply.body or "rest" not in reply.body:
            return reply
        # A lost answer had granted some of the jobs. The store repeats that answer to this ask until they are given up.
        undone: Reply = yield self.withdrawal()
        if kind_of(undone) == NOT_NOW:
            return undone
        self._begin_anew()
        return Reply(status=reply.status, body={key: value for key, value in reply.body.items() if key != "rest"})

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
        """Poll, without a place in the queue: claim-any takes no place."""
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
        """Tell whether to keep waiting after an answer that is no place in the queue. *Not now* says nothing about the
        job: the next request finds our place by ticket or request key, or gets another. But an address at which nobody
        ever answered may be a wrong one. *Not yet* is waited for while it can change; of several jobs, claim-all wants
        all of them, claim-any one."""
        kind = kind_of(reply)
        if kind != NOT_YET:
            return kind == NOT_NOW and self._heard
        refused = [_may_come(each) for each in (reply.body or {}).get("refused", ())]
        if self._verb == ANY:
            return any(refused) or not refused
        return self._ticket is not None and all(refused)

    def _came_and_went(self, reply: Reply) -> bool:
        """Tell whether our turn came and a lease expired before we saw it, because this process was paused. No work was
        begun with it, so we claim again with a new key, at the end of the queue."""
        if not self.own_key:
            return False
        from dibs.wire.refusals import KEY_SPENT  # only a reply to a waiter begins with it

        body: Document = reply.body or {}
        if not any(str(each.get("details")).startswith(KEY_SPENT) for each in (body, *body.get("refused", ()))):
            return False
        self._begin_anew()
        return True

    def end_wait(self, reply: Reply) -> Flow[Reply]:
        """The wait is over: withdraw the claim. What others use or may ask for stays, and then it is ours after all. If
        nobody answers, that is the answer: the place may still be there, and be given the job."""
        undone: Reply = yield self.withdrawal()
        if kind_of(undone) == NOT_NOW and not (yield from self.withdraw()):
            return undone
        if (undone.body or {}).get("kept"):
            return (yield from self.ask_once())
        if self.own_key:
            self._begin_anew()
        return Reply(status=reply.status, body={k: v for k, v in (reply.body or {}).items() if k != "ticket"})

    def claim(self) -> Flow[Reply]:
        """The whole claim: look up the names, claim, wait, leave the queue in the end, and ask the tracker."""
        if self.naming is not None:
            yield from self.look_up()
        around = None
        if self._tracker is not None:
            from dibs.wire.issue_names import is_tracked

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
            key: str = self._document["request_key"]
            reply = yield from tracked.confirm(got, self.sent_ms, withdrawal(self.names, key))
            if reply is None:
                self._begin_anew()
        if tracked.warning is not None:
            from logging import getLogger

            getLogger("dibs").warning("GitHub gave no answer, so a claim was not checked there: %s", tracked.warning)
        return reply

    def _claimed(self) -> Flow[Reply]:
        if not self.wait_ms:
            return (yield from self.ask_once())
        reply = yield from self.wait()
        return (yield from self.end_wait(reply)) if status_of(reply) == "queued" else reply

    def withdrawal(self) -> Ask:
        """The request that undoes it. It may have come with the ticket of another claim, which is proof enough."""
        return withdrawal(self.names, self._document["request_key"] if self.own_key else None, self._ticket)

    def withdraw(self) -> Flow[bool]:
        """The caller has given up. False if nobody answered: then the TTL or the silence in the queue ends it, or
        another try does."""
        if not self._asked and self._ticket is None:
            return True
        if not self.own_key and self._ticket is None:
            return True  # whoever named it can ask for what it got
        until_ms = self._steady() + GIVING_UP_MS
        while True:
            reply: Reply = yield self.withdrawal()
            if kind_of(reply) != NOT_NOW:
                self._asked, self._ticket = False, None
                if self.own_key:
                    self._begin_anew()
                return True
            if not reply.sent or self._steady() >= until_ms:
                return False
            yield Pause(GIVING_UP_PAUSE_MS)


def _may_come(refused: Document) -> bool:
    """Tell whether the refusal of one job of several may change with time."""
    return kind_of_word(str(refused.get("code") or refused.get("status"))) in (NOT_YET, NOT_NOW)
