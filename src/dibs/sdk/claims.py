"""The methods by which clients and sessions claim, written once for threads and for event loops."""

from __future__ import annotations

import math
import os

from dibs.base.cheap import Any, Callable, Generic, Sequence, TypeVar
from dibs.base.checkout import current_folder
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, LeaseLost
from dibs.client.flow import Flow
from dibs.client.naming import Naming
from dibs.client.pending import PendingClaim
from dibs.client.settings import Settings, place_of
from dibs.core.durations import Duration, duration_ms
from dibs.core.limits import ELECTION_TTL_MS_DEFAULT, TTL_MS_DEFAULT
from dibs.core.names import election_job
from dibs.sdk import operations
from dibs.sdk.hold import SessionHold
from dibs.sdk.methods import Handle, explained, name_given
from dibs.sdk.operations import ClaimTerms, claim_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.pool import TransportPool
    from dibs.sdk.async_transport import AsyncTransport
    from dibs.sdk.claim_state import ClaimState, LeaderState

OnLost = Callable[[LeaseLost], object]

C = TypeVar("C", bound="ClaimState[Any]")
S = TypeVar("S", bound="SessionClaims[Any, Any]")
L = TypeVar("L", bound="LeaderState[Any]")
E = TypeVar("E")
D = TypeVar("D", bound="TransportPool | AsyncTransport")
TTL_SECONDS = TTL_MS_DEFAULT / 1000
LEADER_TTL_SECONDS = ELECTION_TTL_MS_DEFAULT / 1000
TIMEOUT_SECONDS = 10.0


class Claims(Handle, Generic[C, D]):
    """`ttl` is how long the claim lasts without a heartbeat, 60 seconds by default. In a session it lasts as long as
    the session."""

    _claim_type: type[C]
    _transports: D
    _names: Naming | None = None  # None: names are taken as they are, and no tracker is asked

    def _one_name(self, name: str) -> str:
        given = name_given(name)
        return given if self._names is None else self._names.of(given)

    @property
    def _within(self) -> SessionHold | None:
        """The session that claims are made in."""
        return None

    def _begin(
        self,
        verb: str,
        names: Sequence[str],
        terms: ClaimTerms,
        on_lost: OnLost | None,
        *,
        fail_on_error: bool,
        nested: bool = False,
    ) -> C:
        """A claim that is not taken yet."""
        request = self._request(verb, names, terms)
        claim = self._claim_type(self._transports, request, on_lost, self._within, fail_on_error=fail_on_error)
        if nested:
            claim._nested = True
        return claim

    def _completed(self, terms: ClaimTerms) -> ClaimTerms:
        """With what all claims of this client or session have in common."""
        raise NotImplementedError

    def _request(self, verb: str, names: Sequence[str], terms: ClaimTerms) -> PendingClaim:
        terms = self._completed(terms)
        seconds = self._transports.slice_seconds
        return claim_request(verb, names, terms, slice_seconds=seconds, naming=self._names, tracker=self._names)

    @explained
    def claim(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        replaces: str | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        units: int | None = None,
        again: bool = False,
        lock_delay: Duration | None = None,
        max_attempts: int | None = None,
        max_hold: Duration | None = None,
        fail_on_error: bool = True,
        nested: bool = False,
    ) -> C:
        """`with client.claim("issue-42") as claim:` takes the job, sends heartbeats while the block runs, and releases
        it.

        Raises JobHeld (with the owner), JobDone, WouldDeadlock, … if the job is not available, after waiting in line
        for `wait` seconds (default: no wait; `math.inf`: no limit). `again` claims a job even if it is marked as done.

        A block that raises an Exception has failed at the job, which counts as an attempt (`claim.fail`), unless
        `fail_on_error` is false. Interrupts, cancellation, and errors of dibs about other claims are no failure.

        With `nested`, a block inside a block of the same thread or task, client and session that has the job already
        gets the same lease, and asks nobody: its terms are those of the outer one. The last of them to end releases it.
        Inside a shared claim, only a shared one is granted."""
        terms = ClaimTerms(
            owner=owner,
            ttl=ttl,
            wait=wait,
            replaces=replaces,
            metadata=metadata,
            shared=shared,
            slots=slots,
            units=units,
            again=again,
            lock_delay=lock_delay,
            max_attempts=max_attempts,
            max_hold=max_hold,
        )
        return self._begin("acquire", [name], terms, on_lost, fail_on_error=fail_on_error, nested=nested)

    @explained
    def claim_any(
        self,
        names: Sequence[str],
        *,
        ttl: Duration | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        units: int | None = None,
        count: int | None = None,
        again: bool = False,
        max_attempts: int | None = None,
        max_hold: Duration | None = None,
        fail_on_error: bool = True,
    ) -> C:
        """Claim the first of `names` that is free, in one request; `claim.name` says which. If none is: raises JobDone
        when all are done, JobParked when no other will come free, and NoneFree when waiting may help. With `count` it
        claims that many of them or none; `claim.leases` says which."""
        terms = ClaimTerms(
            owner=owner,
            ttl=ttl,
            metadata=metadata,
            shared=shared,
            slots=slots,
            units=units,
            count=count,
            again=again,
            max_attempts=max_attempts,
            max_hold=max_hold,
        )
        return self._begin("acquire-any", names, terms, on_lost, fail_on_error=fail_on_error)

    @explained
    def claim_all(
        self,
        names: Sequence[str],
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        replaces: str | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
        shared: bool = False,
        units: int | None = None,
        again: bool = False,
        max_hold: Duration | None = None,
        fail_on_error: bool = True,
    ) -> C:
        """Claim all of `names` or none. They are renewed, lost and released together. Raises NoneFree, JobDone or
        JobParked."""
        terms = ClaimTerms(
            owner=owner,
            ttl=ttl,
            wait=wait,
            replaces=replaces,
            metadata=metadata,
            shared=shared,
            units=units,
            again=again,
            max_hold=max_hold,
        )
        return self._begin("acquire-all", names, terms, on_lost, fail_on_error=fail_on_error)


class ClientFace(Claims[C, D], Generic[C, S, L, E, D]):
    """The methods of both clients. `C`, `S`, `L`, `E`: their claims, sessions, leaders and events; `D`: their
    transports."""

    _session_type: type[S]
    _leader_type: type[L]

    @explained
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        owner: str | None = None,
        namespace: str | None = None,
        *,
        context: str | None = None,
        timeout: Duration = TIMEOUT_SECONDS,
        exact: bool = False,
    ) -> None:
        settings = settings_of(url, token, owner, namespace, context)
        self._names = Naming(settings.env, current_folder(), exact=exact)
        self.owner_name = settings.owner
        self._shown = place_of(settings)
        self._closed = False
        self._timeout_ms = max(1, duration_ms(timeout, "timeout"))
        self._open(settings)

    def _open(self, settings: Settings) -> None:
        """Make the transports. Nothing is opened before the first request."""
        raise NotImplementedError

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<{type(self).__name__} of {self.owner_name} at {self._shown}{closed}>"

    def _completed(self, terms: ClaimTerms) -> ClaimTerms:
        ttl = TTL_SECONDS if terms.ttl is None else terms.ttl
        return terms.replace(owner=terms.owner or self.owner_name, ttl=ttl)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> E:
        raise NotImplementedError

    @explained
    def session(
        self,
        *,
        owner: str | None = None,
        ttl: Duration | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
    ) -> S:
        """`with client.session() as session:` and then `session.claim(…)`. One heartbeat for all its claims."""
        session = self._session_type(self._transports, owner or self.owner_name, ttl, metadata, on_lost)
        session._names = self._names
        return session

    @explained
    def leader(
        self,
        name: str,
        *,
        ttl: Duration = LEADER_TTL_SECONDS,
        wait: Duration | None = math.inf,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
    ) -> L:
        """`with client.leader("scheduler") as leader:` campaigns, waits in line until the election is won, and leads
        while the block runs. Raises JobHeld if somebody else still leads after `wait`. A block that raises resigns,
        too."""
        terms = ClaimTerms(owner=owner, ttl=ttl, wait=wait, metadata=metadata)
        request = self._request("acquire", [election_job(name)], terms)
        return self._leader_type(self._transports, request, on_lost, fail_on_error=False)

    @explained
    def events(
        self,
        prefix: str = "",
        *,
        name: str | None = None,
        after: int | None = None,
        since: Duration | None = None,
        patience: Duration | None = None,
    ) -> E:
        """Return what happens to jobs, as it happens, each event once and in order: of all jobs, of those whose name
        begins with `prefix`, or of one. It begins after the event number `after`, or with the events of the last
        `since` seconds, or now. After a failure it continues at whichever server answers. It tries for ever, or for
        `patience` seconds."""
        return self._new_events(prefix, name, after, since, patience)

    def _acquire(
        self,
        name: str,
        *,
        ttl: Duration = TTL_SECONDS,
        wait: Duration | None = None,
        metadata: str | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        units: int | None = None,
        again: bool = False,
        max_hold: Duration | None = None,
        request_key: str | None = None,
    ) -> PendingClaim:
        """Take a job without a block and heartbeats. Call `renew` yourself, well before `remaining_ms` is over."""
        terms = ClaimTerms(
            owner=owner,
            ttl=ttl,
            wait=wait,
            metadata=metadata,
            shared=shared,
            slots=slots,
            units=units,
            again=again,
            max_hold=max_hold,
            request_key=request_key,
        )
        return self._request("acquire", [name], terms)


def settings_of(
    url: str | None, token: str | None, owner: str | None, namespace: str | None, context: str | None = None
) -> Settings:
    """Settings that are not given come from the environment, as for the command: DIBS_URL, DIBS_TOKEN, DIBS_OWNER."""
    if url is not None and context is not None:
        raise InvalidInput("url names a place, and context a saved server. Give one of them.")
    env = dict(os.environ)
    if token is not None:
        env["DIBS_TOKEN"] = token
    given = {"url": url, "context": context, "token": token, "owner": owner, "namespace": namespace}
    return Settings(given, env)


class SessionClaims(Claims[C, D]):
    """The state of a session, and how to claim in it."""

    def __init__(
        self, transports: D, owner: str | None, ttl: Duration | None, metadata: str | None, on_lost: OnLost | None
    ) -> None:
        self._transports = transports
        self._owner = owner
        self._ttl = ttl
        self._metadata = metadata
        self._on_lost = on_lost
        self._held: SessionHold | None = None
        self._is_begun = False

    def _check_first(self) -> None:
        """Raises InvalidInput for a second block."""
        if self._is_begun:
            raise InvalidInput("A session is for one block. Ask the client for another one.")
        self._is_begun = True

    def _opening(self) -> Flow[SessionHold]:
        from dibs.system.session_mark import process_mark

        sent_ms = steady_ms()
        mark = process_mark(os.getpid())
        opened = yield from operations.open_session(self._owner, self._ttl, self._metadata, mark)
        return SessionHold(opened, sent_ms)

    @property
    def _within(self) -> SessionHold | None:
        return self._hold

    def __repr__(self) -> str:
        state = "not open yet" if self._held is None else self._held.summary()
        return f"<{type(self).__name__} of {self._owner}: {state}>"

    @property
    def _hold(self) -> SessionHold:
        if self._held is None:
            raise InvalidInput("The session is not open yet. Use it in a with block: `with … as session:`.")
        return self._held

    @property
    def session_id(self) -> str:
        """The session's secret. With it as DIBS_SESSION, a child process can work in this session."""
        return self._hold.session_id

    def remaining(self) -> float:
        """Seconds until the session counts as lost without another heartbeat."""
        return self._hold.left_ms() / 1000 if self._hold.is_ours else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the session is certainly still alive."""
        self._hold.check()

    def _completed(self, terms: ClaimTerms) -> ClaimTerms:
        self.check()
        if terms.ttl is not None:
            raise InvalidInput("A claim in a session lasts as long as the session: leave out ttl.")
        return terms.replace(owner=terms.owner or self._owner, session_id=self.session_id)
