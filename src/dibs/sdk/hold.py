"""Holds: what is held, until when, and how it ends. The promise `loss:told`, without I/O and without threads.

A hold ends when it is released, when the store says so, or when its deadline passes on this machine's clock. The
deadline is counted from before the last successful request was sent, and is a little earlier than the store's. So
`check()` knows of a loss before anybody else can own the job. A failed renewal is repeated until the deadline, never
after it. A lost hold is never claimed again here.

A session has one heartbeat for all its claims, so it knows all of them, and the jobs that its blocks ask for. Nothing
that is claimed in it expires by itself. So what nobody answered is said again with each heartbeat until somebody does:
that a claim is withdrawn, that a block ended and how, and what it noted.
"""

from __future__ import annotations

import os
import threading

from dibs.base.cheap import Any, Callable, Iterable, Sequence, ref
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, JobHeld, LeaseLost
from dibs.base.ids import new_fraction
from dibs.base.jsontext import Document
from dibs.base.logger import log
from dibs.client.flow import Flow
from dibs.client.pending import PendingClaim
from dibs.client.renewal_plan import CEILING_REACHED, RenewalPlan
from dibs.client.transport import Ask, is_over
from dibs.core.durations import format_duration
from dibs.sdk.answers import Lease
from dibs.wire.codes import NEVER_LIKE_THIS, kind_of
from dibs.wire.documents import Reply
from dibs.wire.values import check_texts

MARGIN_MS_MIN = 50
MARGIN_MS_MAX = 2_000


def margin_ms(ttl_ms: int) -> int:
    """Return how much earlier than in the store a hold is lost here: clock rates differ, and stopping takes time."""
    return max(MARGIN_MS_MIN, min(MARGIN_MS_MAX, ttl_ms // 20))


class Hold:
    """Something with a deadline and an end: leases, or a session."""

    def __init__(self, name: str, fencing_token: int, ttl_ms: int, sent_ms: int) -> None:
        self.name = name
        self.fencing_token = fencing_token
        self.plan = RenewalPlan(ttl_ms, sent_ms, margin_ms(ttl_ms))
        self.trouble: str | None = None  # why the last renewal did not succeed
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.beating = threading.Lock()  # whose thread has it sends a heartbeat, so that no older one comes after it
        self._ended: str | None = None
        self._let_go = False
        self.ending = False  # we are releasing it, so a "not current" reply is no loss
        self._listeners: list[Callable[[LeaseLost], None]] = []
        self.ceiling_ms: int | None = None  # when it ends, whatever is renewed

    def _deadline_ms(self) -> int:
        lost_ms = self.plan.lost_ms
        return lost_ms if self.ceiling_ms is None else min(lost_ms, self.ceiling_ms)

    def pass_time(self, ms: int) -> None:
        """Bring its deadlines nearer, as time does. For tests whose clock was moved."""
        self.plan.next_ms -= ms
        self.plan.lost_ms -= ms
        self._near_ceiling(ms)

    def _near_ceiling(self, ms: int) -> None:
        if self.ceiling_ms is not None:
            self.ceiling_ms -= ms

    def heartbeat(self) -> Flow[None]:
        """Renew the hold, and note the result."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Tell whether it was lost or released."""
        return self._ended is not None or self._let_go

    def left_ms(self) -> int:
        """Until the deadline, without another renewal."""
        return 0 if self.is_over else max(0, self._deadline_ms() - steady_ms())

    def lost(self) -> LeaseLost | None:
        """The loss, or None while it is ours. Also looks at the clock."""
        if not self.is_ours:
            return self._error("the claim belongs to the process that this one was forked from.")
        self._look_at_clock()
        if self._ended is not None:
            return self._error(self._ended)
        return self._error("it was released.") if self._let_go else None

    def _look_at_clock(self) -> None:
        """Past the deadline it is lost."""
        if self._ended is not None or self._let_go:
            return
        if steady_ms() < (self.plan.lost_ms if self.ceiling_ms is None else self._deadline_ms()):
            return
        if self._deadline_ms() == self.ceiling_ms:
            self.end(f"{CEILING_REACHED}.")
        else:
            ttl = format_duration(self.plan.ttl_ms)
            because = f" ({self.trouble.rstrip('.')})" if self.trouble else ""
            self.end(f"no heartbeat was answered in time, which is {ttl}{because}.")

    def summary(self) -> str:
        if not self.is_ours:
            return "of the parent process"
        lost = self.lost()
        if lost is None:
            return f"ours for {format_duration(self.left_ms())} and renewed"
        return "let go" if self._let_go else f"lost: {lost.why}"

    def failed(self, trouble: str) -> None:
        """Log that a renewal failed, while there is still time to act."""
        from dibs.client.event_reader import why_away

        first = self.trouble is None
        trouble = self.trouble = why_away(trouble)  # without the advice not to begin: the work has begun
        self.plan.failed(steady_ms())
        write = log.warning if first else log.info
        write(
            "A heartbeat of %s failed, and is repeated for another %s: %s",
            self.name,
            format_duration(self.left_ms()),
            trouble,
        )

    def check(self) -> None:
        """Raise LeaseLost unless it is certainly still ours."""
        error = self.lost()
        if error is not None:
            raise error

    @property
    def was_lost(self) -> bool:
        """Tell whether it ended without being released. In a forked child it is true only for what the parent lost."""
        if self.is_ours:
            self._look_at_clock()
        return self._ended is not None

    @property
    def is_ours(self) -> bool:
        """Tell whether this process claimed it, and not its parent before a fork."""
        return os.getpid() == self._pid

    def let_go(self) -> bool:
        """Mark it as released: no more renewals, and no loss. False if it had ended before."""
        with self._lock:
            if self.is_over:
                return False
            self._let_go = True
        return True

    def end(self, why: str) -> None:
        """Mark it as lost, and call the listeners once."""
        with self._lock:
            if self.is_over:
                return
            self._ended = why
            listeners, self._listeners = self._listeners, []
        error = self._error(why)
        for listener in listeners:
            listener(error)

    def listen(self, listener: Callable[[LeaseLost], None]) -> None:
        """Call `listener` when it is lost, from the first thread that notices; at once if it is lost already."""
        with self._lock:
            if self._ended is None:
                self._listeners.append(listener)
                return
        listener(self._error(self._ended))

    def is_due(self) -> bool:
        return steady_ms() >= self.plan.next_ms

    def nap_ms(self) -> int:
        """Until the next thing to do."""
        nap_ms = self.plan.left_ms(steady_ms())
        return nap_ms if self.ceiling_ms is None else min(nap_ms, self.left_ms())

    def call_ms(self) -> int:
        """Return how long one renewal may take: not past the deadline, and with time for another."""
        return max(1, min(self.plan.call_ms, self.left_ms()))

    def _error(self, why: str) -> LeaseLost:
        return LeaseLost(self.name, self.fencing_token, why)

    def _heard(self, reply: Reply) -> bool:
        """Tell whether the reply was a success. If not, notes the loss or the failure."""
        if reply.status < 300:
            return True
        body: Document = reply.body or {}
        details = str(body.get("details") or body.get("error") or f"status {reply.status}")
        if is_over(reply) and not self.ending:
            self.end(details)
        else:
            self.failed(details)
        return False


News = dict[tuple[str, str], str]  # by the job's name, and checkpoint or metadata


class LeaseHold(Hold):
    """Leases that were claimed together and are renewed together. If one is lost, all count as lost.

    A block has some of them: the one that claimed them has all, and each block inside it, of the same thread or task,
    has those of its name. A lease is released with the last block that has it, and the rest goes on."""

    shared_names: frozenset[str] = frozenset()  # those of its jobs that it shares
    whose: ref[Any] | None = None  # the thread or task that claimed it

    def __init__(self, leases: tuple[Lease, ...], sent_ms: int, *, waited: bool = False) -> None:
        self.leases = leases
        first = self.leases[0]
        super().__init__(first.name, first.fencing_token, min([each.remaining_ms for each in leases]), sent_ms)
        if not waited and (first.ends_in_ms is not None or len(leases) > 1):  # else its next renewal says it better
            self.note_ceiling([each.ends_in_ms for each in leases], sent_ms)
        self._blocks: dict[int, frozenset[str]] = {}  # the names that each block has
        self._news: News = {}  # checkpoint and metadata of a name that were not sent yet
        self.refused_news: str | None = None  # why the store refused the last ones
        self.refused_end: InvalidInput | None = None  # an end of the claim was refused, not its work
        self.waiting = 0  # how many waited for its jobs at the last heartbeat
        self.unsaid_ends: dict[tuple[str, str], dict[str, Any]] = {}  # of steps, by job and key (`effects.py`)

    def note_ceiling(self, ends: Iterable[int | None], sent_ms: int) -> None:
        """An answer to a request of `sent_ms` says how long they may last. A later one is more precise."""
        ends_in_ms = min([each for each in ends if each is not None], default=None)
        if ends_in_ms is not None:
            self.ceiling_ms = sent_ms + ends_in_ms - margin_ms(ends_in_ms)

    def has(self, leases: Sequence[Lease]) -> bool:
        """Tell whether a block's leases are still part of it. They are let go of together, so the first tells."""
        return leases[0] in self.leases

    def check_leases(self, leases: Sequence[Lease]) -> None:
        """Raise LeaseLost unless these are certainly still ours."""
        if not self.has(leases):  # others that were claimed with them may go on
            raise LeaseLost(leases[0].name, leases[0].fencing_token, "it was released.")
        self.check()

    def enter(self, block: object, leases: Sequence[Lease]) -> bool:
        """One more block has these. False if they are over."""
        with self._lock:
            if self.is_over or not self.has(leases):
                return False
            self._blocks = {**self._blocks, id(block): frozenset([lease.name for lease in leases])}
        return True

    def leave(self, block: object, leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """Return which of a block's leases no other block has: they are to be released. May be called twice."""
        with self._lock:
            self._blocks = {each: names for each, names in self._blocks.items() if each != id(block)}
        return tuple([lease for lease in leases if not self._blocks_with([lease])])

    def _blocks_with(self, leases: Iterable[Lease]) -> int:
        wanted = {lease.name for lease in leases}
        return sum([not wanted.isdisjoint(names) for names in self._blocks.values()])

    def let_go_of(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """Mark these as released, and with the last of its leases the hold. Returns those that had not ended before."""
        with self._lock:
            ended = tuple([lease for lease in self.leases if lease in leases])
            if self.is_over or not ended:
                return ()
            kept = tuple([lease for lease in self.leases if lease not in leases])
            if kept:
                self.leases, self.name, self.fencing_token = kept, kept[0].name, kept[0].fencing_token
                return ended
        return ended if self.let_go() else ()

    def give_up(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """The block that has these is over. Returns those whose end is still to be said: if one was taken away, that of
        the others that were claimed with it."""
        if not self.was_lost:
            return self.let_go_of(leases)
        return tuple(leases) if len(self.leases) > 1 and steady_ms() < self.plan.lost_ms else ()

    def say_later(self, lease: Lease, say: Callable[[], Flow[bool]], error: DibsError) -> None:
        """Nobody answered when the end of a lease was said: without a session it expires."""
        log.warning("%s could not be released and will expire: %s", lease.name, error.details)

    def end_said(self, lease: Lease) -> None:
        """The end of a lease that was given up was answered."""

    def send_noted(self, lease: Lease) -> Flow[None]:
        """Send what was noted and not sent yet, because the lease is about to end."""
        said = {key: value for (name, key), value in self._news.items() if name == lease.name}
        if said:
            reply: Reply = yield Ask("renew", lease.name, {"lease_id": lease.lease_id, **said})
            if reply.status < 300:
                self._forget({(lease.name, key): value for key, value in said.items()})

    def check_alone(self, leases: Sequence[Lease]) -> None:
        """Raise InvalidInput if other blocks have these leases, too: they would lose them without being told."""
        blocks = self._blocks_with(leases)
        if blocks > 1:
            names = ", ".join([lease.name for lease in leases])
            raise InvalidInput(
                f"{names} is claimed by {blocks} blocks, one inside the other. It can be ended, handed over or "
                "shared when only one of them is left."
            )

    def note(self, leases: Iterable[Lease], checkpoint: str, metadata: str | None) -> None:
        """To be sent with the next renewal of these. Raises InvalidInput for what no store would take, and notes
        nothing."""
        news = {"checkpoint": checkpoint}
        if metadata is not None:
            news["metadata"] = metadata
        check_texts(news)
        with self._lock:
            self._news = self._news | {(lease.name, key): value for lease in leases for key, value in news.items()}
            self.refused_news = None

    def check_noted(self) -> None:
        """Raise InvalidInput if what was noted last was refused."""
        if self.refused_news is not None:
            raise InvalidInput(self.refused_news)

    def heartbeat(self) -> Flow[None]:
        sent_ms = steady_ms()
        renewed = yield from self._renewed()
        if renewed is not None:
            self.trouble = None
            self.waiting = max([int(each.get("waiting", 0)) for each in renewed])
            self.note_ceiling([each.get("ends_in_ms") for each in renewed], sent_ms)
            # A time that the ceiling cuts is no shorter TTL: heartbeats keep their pace.
            lefts = [int(each["remaining_ms"]) for each in renewed if each["remaining_ms"] != each.get("ends_in_ms")]
            self.plan.kept(sent_ms, ttl_ms=min(lefts, default=None), jitter=new_fraction())

    def _renewed(self) -> Flow[list[Document] | None]:
        """Renew each lease, with what was noted. None: one of them failed. The claim is worth more than its news: if
        they are refused for what they are, they are dropped, and it is renewed without them."""
        news = self._news
        found: list[Document] = []
        for lease in self.leases:
            said = {key: value for (name, key), value in news.items() if name == lease.name}
            reply: Reply = yield Ask("renew", lease.name, {"lease_id": lease.lease_id, **said})
            if said and kind_of(reply) == NEVER_LIKE_THIS:
                self._drop(lease.name, said, str((reply.body or {}).get("details")))
                reply = yield Ask("renew", lease.name, {"lease_id": lease.lease_id})
            if lease not in self.leases:
                continue  # it was let go of meanwhile
            if not self._heard(reply):
                return None
            found.append(reply.body or {})
        self._forget(news)
        return found

    def _forget(self, news: News) -> None:
        with self._lock:
            self._news = {key: value for key, value in self._news.items() if news.get(key) != value}

    def _drop(self, name: str, said: dict[str, str], why: str) -> None:
        self._forget({(name, key): value for key, value in said.items()})
        self.refused_news = why
        log.warning("The %s of %s was refused, and is not stored: %s", " and ".join(said), name, why)


_TAKEN = "it was taken away; `dibs history` says by whom."


def _already(names: Sequence[str]) -> JobHeld:
    return JobHeld(f"{', '.join(names)} is held, or asked for, by this very session in another block.")


class SessionHold(Hold):
    """A session and its claims. They end with it."""

    def __init__(self, session: Document, sent_ms: int) -> None:
        super().__init__(f"The session of {session['owner']}", 0, session["remaining_ms"], sent_ms)
        self.session_id: str = session["session_id"]
        self._asked: dict[str, PendingClaim] = {}
        self._claims: list[SessionLeaseHold] = []
        self._given_up: dict[str, str] = {}  # the jobs of leases, by id, whose block is over: they are nobody's here
        self._ended_ids: set[str] = set()  # those of them whose end was answered
        self._unsaid: list[Callable[[], Flow[bool]]] = []  # what nobody has answered yet

    def let_go(self) -> bool:
        """All its claims end, too."""
        if not super().let_go():
            return False
        for claim in self.claims():
            claim.let_go()
        return True

    def reserve(self, request: PendingClaim) -> None:
        """Call it before asking: if two blocks ask for the same job at once, the second is refused."""
        with self._lock:
            twice = [name for name in request.reserved if name in self._asked]
            if not twice:
                self._asked.update(dict.fromkeys(request.reserved, request))
        if twice:
            raise _already(twice)

    def answered(self, request: PendingClaim) -> None:
        """The request got its answer, or was given up: others may ask for its jobs."""
        with self._lock:
            self._asked = {name: by for name, by in self._asked.items() if by is not request}
            self._forget_ended()

    def give_up(self, leases: Iterable[Lease]) -> None:
        """Their block is over. A claim of another block may still be answered with them, until their end is said."""
        with self._lock:
            self._given_up |= {lease.lease_id: lease.name for lease in leases}

    def end_said(self, lease: Lease) -> None:
        with self._lock:
            self._ended_ids.add(lease.lease_id)
            self._forget_ended()

    def _forget_ended(self) -> None:
        """An answer on its way to a block that asks for the job may still name a lease that has ended."""
        over = {id for id in self._ended_ids if self._given_up.get(id) not in self._asked}
        self._ended_ids -= over
        self._given_up = {id: name for id, name in self._given_up.items() if id not in over}

    def had(self, leases: Sequence[Lease]) -> list[str]:
        """Return which of these jobs a block of this session already has. A job that was taken away meanwhile does not
        count: its block is notified, and the new lease is another one."""
        with self._lock:
            self._claims = [claim for claim in self._claims if not claim.is_over]
            held = {lease.name: (lease.lease_id, claim) for claim in self._claims for lease in claim.leases}
        twice = []
        for lease in leases:
            lease_id, claim = held.get(lease.name, ("", None))
            if lease.lease_id == lease_id or lease.lease_id in self._given_up:
                twice.append(lease.name)
            elif claim is not None:
                claim.end(_TAKEN)
        return twice

    def claims(self) -> list[SessionLeaseHold]:
        with self._lock:
            return [claim for claim in self._claims if not claim.is_over]

    def adopt(self, claim: SessionLeaseHold) -> None:
        with self._lock:
            self._claims.append(claim)
        self.listen(lambda error: claim.end(error.why))

    def say_later(self, say: Callable[[], Flow[bool]]) -> None:
        """Nobody answered. The next heartbeat says it again, and is sent soon. Other claims of the session need not
        wait for that: withdrawing one claim leaves what the store has granted to another."""
        with self._lock:
            if say not in self._unsaid:
                self._unsaid.append(say)
        self.plan.failed(steady_ms())

    def say_again(self) -> Flow[None]:
        for say in list(self._unsaid):
            if (yield from say()):
                with self._lock:
                    self._unsaid = [each for each in self._unsaid if each != say]

    def settle(self, names: Iterable[str]) -> Flow[None]:
        """A block asks for these jobs: say first that an earlier one gave them up."""
        if self._unsaid and not set(names).isdisjoint(self._given_up.values()):
            yield from self.say_again()

    def heartbeat(self) -> Flow[None]:
        sent_ms = steady_ms()
        reply: Reply = yield Ask("session-keep", self.session_id, {})
        if not self._heard(reply):
            return
        self.trouble = None
        self.plan.kept(sent_ms, ttl_ms=int((reply.body or {})["remaining_ms"]), jitter=new_fraction())
        claims = self.claims()
        yield from self.say_again()
        if not claims:
            return
        # A single claim can be taken away (broken, handed on) while the session lives: check what it still has.
        shown: Reply = yield Ask("session-show", self.session_id, {})
        if shown.status < 300:
            holds = (shown.body or {}).get("holds", ())
            found: dict[tuple[str, int], Document] = {(each["name"], each["fencing_token"]): each for each in holds}
            for claim in claims:
                ours = {(lease.name, lease.fencing_token) for lease in claim.leases}
                claim.waiting = max([int(found.get(each, {}).get("waiting", 0)) for each in ours])
                claim.note_ceiling([found.get(each, {}).get("ends_in_ms") for each in ours], sent_ms)
                if not claim.ending and not found.keys() >= ours:
                    claim.end(_TAKEN)

    def _near_ceiling(self, ms: int) -> None:
        for claim in self.claims():
            claim._near_ceiling(ms)

    def _look_at_clock(self) -> None:
        super()._look_at_clock()
        for claim in self.claims():
            if claim.ceiling_ms is not None:
                claim._look_at_clock()

    def nap_ms(self) -> int:
        lefts = [claim.left_ms() for claim in self.claims() if claim.ceiling_ms is not None]
        return min([super().nap_ms(), *lefts])


class SessionLeaseHold(LeaseHold):
    """Leases inside a session: they need no renewals of their own, and their deadline is the session's."""

    def __init__(self, leases: tuple[Lease, ...], sent_ms: int, session: SessionHold, *, waited: bool = False) -> None:
        super().__init__(leases, sent_ms, waited=waited)
        self.plan, self._session = session.plan, session
        session.adopt(self)

    def give_up(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        self._session.give_up(leases)  # before the session forgets that a block of its own has them
        ended = super().give_up(leases)
        for lease in leases:
            if lease not in ended:
                self._session.end_said(lease)
        return ended

    def end_said(self, lease: Lease) -> None:
        self._session.end_said(lease)

    def say_later(self, lease: Lease, say: Callable[[], Flow[bool]], error: DibsError) -> None:
        log.warning("%s is released with the next heartbeat of its session: %s", lease.name, error.details)
        self._session.say_later(say)

    def heartbeat(self) -> Flow[None]:
        """Only to send what was noted: the session's own heart keeps it alive."""
        sent_ms = steady_ms()
        renewed = yield from self._renewed()
        self.note_ceiling([each.get("ends_in_ms") for each in renewed or ()], sent_ms)

    def failed(self, trouble: str) -> None:
        """No lease is at stake, only what was noted."""
        if self._news:
            self._session.say_later(self._noted_is_sent)

    def _noted_is_sent(self) -> Flow[bool]:
        """Send what was noted, unless its block just does that: the session does not wait for it."""
        if self.is_over or not self.beating.acquire(blocking=False):
            return self.is_over
        try:
            yield from self.heartbeat()
        finally:
            self.beating.release()
        return not self._news


def hold_in(session: SessionHold, leases: tuple[Lease, ...], request: PendingClaim) -> Flow[LeaseHold]:
    """The hold for a claim in a session. For the store, a session that claims a job again is the same owner. Here two
    blocks would both believe that they own it, so the second is refused, and withdraws its claim of the other jobs."""
    twice = session.had(leases)
    if not twice:
        return SessionLeaseHold(leases, request.sent_ms, session, waited=bool(request.wait_ms))
    if len(twice) < len(leases) and not (yield from request.withdraw()):
        session.say_later(request.withdraw)
    raise _already(twice)
