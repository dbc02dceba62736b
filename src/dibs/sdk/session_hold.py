"""What a session holds: its claims, the jobs that its blocks ask for, and the claims it still has to give back. The
session's heartbeat keeps all its claims alive, so all of them must be known here. A claim that could not be given up,
because nobody answered, is owed: it is given back with the next heartbeat that succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.base.clock import steady_ms
from dibs.base.errors import JobHeld, Unavailable
from dibs.base.ids import new_fraction
from dibs.client.door import OVER_CODES
from dibs.client.queueing import Ask
from dibs.sdk.hold import Hold, LeaseHold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dibs.client.queueing import Flow, PendingClaim
    from dibs.sdk.answers import Lease, SessionStatus
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

_TAKEN = "it was taken away; `dibs history` says by whom."


def _already(names: Sequence[str]) -> JobHeld:
    return JobHeld(f"{', '.join(names)} is held, or asked for, by this very session in another block.")


class SessionHold(Hold):
    """A session and its claims. They end with it."""

    def __init__(self, session: SessionStatus, sent_ms: int) -> None:
        super().__init__(f"The session of {session.owner}", 0, session.remaining_ms, sent_ms)
        self.session_id = session.session_id
        self._asked: set[str] = set()
        self._claims: list[SessionLeaseHold] = []
        self._owed: list[PendingClaim] = []
        self._settling: list[PendingClaim] = []

    def let_go(self) -> bool:
        """All its claims end, too."""
        if not super().let_go():
            return False
        with self._lock:
            claims = list(self._claims)
        for claim in claims:
            claim.let_go()
        return True

    def reserve(self, names: Sequence[str]) -> None:
        """Call it before asking: if two blocks ask for the same job at once, the second is refused."""
        with self._lock:
            twice = [name for name in names if name in self._asked]
            if not twice:
                self._asked.update(names)
        if twice:
            raise _already(twice)

    def answered(self, names: Sequence[str]) -> None:
        with self._lock:
            self._asked.difference_update(names)

    def had(self, leases: Sequence[Lease]) -> list[str]:
        """Which of these jobs a block of this session already has. A job that was taken away meanwhile does not count:
        its block is told, and the new lease is another one."""
        with self._lock:
            self._claims = [claim for claim in self._claims if not claim.is_over]
            held = {lease.name: (lease.lease_id, claim) for claim in self._claims for lease in claim.leases}
        twice = []
        for lease in leases:
            lease_id, claim = held.get(lease.name, ("", None))
            if lease_id == lease.lease_id:
                twice.append(lease.name)
            elif claim is not None:
                claim.end(_TAKEN)
        return twice

    def adopt(self, claim: SessionLeaseHold) -> None:
        with self._lock:
            self._claims.append(claim)
        self.listen(lambda error: claim.end(error.why))

    def owe(self, pending: PendingClaim) -> None:
        """A claim that nobody waits for any more could not be given up. The next heartbeat gives it back, and is sent
        soon."""
        with self._lock:
            if pending not in self._owed:
                self._owed.append(pending)
        self.plan.failed(steady_ms())

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    def settle_debts(self, names: Sequence[str] = ()) -> Flow[None]:
        """Give back what is owed. Raises Unavailable if any of `names` may still be owed: a new claim would be mistaken
        for the old one and given back with it."""
        for pending in list(self._owed):
            with self._lock:
                if pending in self._settling or pending not in self._owed:
                    continue  # another thread gives it back, or has done so
                self._settling.append(pending)
            settled = False
            try:
                settled = yield from pending.give_up()
            finally:
                with self._lock:  # one step: in between another thread would count it as owed
                    self._settling.remove(pending)
                    if settled:
                        self._owed.remove(pending)
        still = sorted({name for pending in self._owed for name in pending.names} & set(names))
        if still:
            raise Unavailable(
                f"An earlier claim of {', '.join(still)} could not be given back yet. Try again."
            )

    def heartbeat(self) -> Flow[None]:
        sent_ms = steady_ms()
        reply: Reply = yield Ask("session-keep", self.session_id, {})
        if not self._heard(reply):
            return
        self.trouble = None
        self.plan.kept(sent_ms, ttl_ms=int((reply.body or {})["remaining_ms"]), jitter=new_fraction())
        with self._lock:
            claims = [claim for claim in self._claims if not claim.is_over]
        yield from self.settle_debts()
        if not claims:
            return
        # A single claim can be taken away (broken, handed on) while the session lives: check what it still has.
        shown: Reply = yield Ask("session-show", self.session_id, {})
        if shown.status < 300:
            holds = (shown.body or {}).get("holds", ())
            found = {(each["name"], each["fencing_token"]): int(each.get("waiting", 0)) for each in holds}
            _end_missing(claims, found)


def _end_missing(claims: Iterable[SessionLeaseHold], found: dict[tuple[str, int], int]) -> None:
    """`found` is what the session holds, and how many wait for it."""
    for claim in claims:
        ours = {(lease.name, lease.fencing_token) for lease in claim.leases}
        claim.waiting = max([found.get(each, 0) for each in ours])
        if not claim.ending and not found.keys() >= ours:
            claim.end(_TAKEN)


class SessionLeaseHold(LeaseHold):
    """Leases inside a session: they need no renewals of their own, and their deadline is the session's."""

    def __init__(self, leases: Sequence[Lease], sent_ms: int, session: SessionHold) -> None:
        super().__init__(leases, sent_ms)
        self.plan = session.plan
        session.adopt(self)

    def heartbeat(self) -> Flow[None]:
        """Only to learn of changes: the session's own heart keeps it alive."""
        news = self._news
        for lease in self.leases:
            reply: Reply = yield Ask("renew", lease.name, {"lease_id": lease.lease_id, **news})
            if reply.status >= 300:
                body: Document = reply.body or {}
                if body.get("code") in OVER_CODES and not self.ending:
                    self.end(str(body.get("details")))
                return
        with self._lock:
            self._news = {key: value for key, value in self._news.items() if news.get(key) != value}


def hold_in(session: SessionHold, leases: Sequence[Lease], sent_ms: int) -> Flow[LeaseHold]:
    """The hold for a claim in a session. For the store, a session that claims a job again is the same owner. Here two
    blocks would both believe that they own it, so the second is refused and gives back any other jobs it got."""
    twice = session.had(leases)
    if not twice:
        return SessionLeaseHold(leases, sent_ms, session)
    for lease in leases:
        if lease.name not in twice:
            yield Ask("release", lease.name, {"lease_id": lease.lease_id})
    raise _already(twice)
