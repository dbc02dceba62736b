"""The client for threads. One client may be shared by all threads of a program, and survives a fork."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.checkout import current_folder
from dibs.base.errors import InvalidInput, NotClaimed
from dibs.client.naming import Naming
from dibs.client.pool import Doors
from dibs.client.queueing import drive
from dibs.client.settings import Settings, place_of
from dibs.core.durations import duration_ms
from dibs.core.names import election_job
from dibs.sdk import operations
from dibs.sdk.claim import Claim, given_up
from dibs.sdk.claims import TTL_SECONDS, Claims
from dibs.sdk.events import Events
from dibs.sdk.leader import TTL_SECONDS as LEADER_TTL_SECONDS
from dibs.sdk.leader import Leader
from dibs.sdk.methods import asks
from dibs.sdk.operations import ClaimRequest
from dibs.sdk.parameters import explained
from dibs.sdk.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from dibs.client.queueing import Flow
    from dibs.core.durations import Duration
    from dibs.sdk.answers import JobEvent, JobStatus, Lease
    from dibs.sdk.claims import OnLost

    # Inside the class `list` is a method.
    Statuses = list[JobStatus]

T = TypeVar("T")
TIMEOUT_SECONDS = 10.0


def settings_of(url: str | None, token: str | None, owner: str | None, namespace: str | None) -> Settings:
    """Settings that are not given come from the environment, as for the command: DIBS_URL, DIBS_TOKEN, DIBS_OWNER, …
    …"""
    env = dict(os.environ)
    if token is not None:
        env["DIBS_TOKEN"] = token
    return Settings({"url": url, "owner": owner, "namespace": namespace}, env)


class Client(Claims[Claim]):
    """A client of a server (`http://`, `https://`, `unix://`) or of a store (`sqlite:///`, `memory://`, …).

    Without a URL: DIBS_URL, else your own store, the same that the `dibs` command uses. Nothing is opened before the
    first request. `timeout` limits one request, in seconds, without the time spent waiting in line."""

    @explained
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        owner: str | None = None,
        namespace: str | None = None,
        *,
        timeout: Duration = TIMEOUT_SECONDS,
        exact: bool = False,
    ) -> None:
        settings = settings_of(url, token, owner, namespace)
        self._names = Naming(settings.env, current_folder(), exact=exact)
        self._tracker = self._names
        self.owner_name = settings.owner
        self._shown = place_of(settings)
        self._closed = False
        self._doors = Doors(settings, max(1, duration_ms(timeout, "timeout")))

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<Client of {self.owner_name} at {self._shown}{closed}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close files and connections. Claims stay held: leave their blocks first."""
        self._closed = True
        self._doors.close()

    def _run(self, flow: Flow[T]) -> T:
        with self._doors.one() as door:
            return drive(door, flow)

    def _begin(self, request: ClaimRequest, on_lost: OnLost | None) -> Claim:
        return Claim(self._doors, request, on_lost)

    def _common(self, ttl: Duration | None, owner: str | None) -> dict[str, Any]:
        return {"owner": owner or self.owner_name, "ttl": TTL_SECONDS if ttl is None else ttl}

    @explained
    def session(
        self,
        *,
        owner: str | None = None,
        ttl: Duration | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Session:
        """`with client.session() as session:` and then `session.claim(…)`. One heartbeat for all its claims."""
        session = Session(self._doors, owner or self.owner_name, ttl, metadata, on_lost)
        session._names, session._tracker = self._names, self._tracker
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
    ) -> Leader:
        """`with client.leader("scheduler") as leader:` campaigns, waits in line until the election is won, and leads
        while the block runs. Raises JobHeld if somebody else still leads after `wait`. A block that raises resigns,
        too."""
        job = election_job(name)
        request = self._request(
            "acquire", [job], ttl, owner, wait=wait, metadata=metadata, fail_on_error=False
        )
        return Leader(self._doors, request, on_lost)

    @explained
    def acquire(
        self,
        name: str,
        *,
        ttl: Duration = TTL_SECONDS,
        wait: Duration | None = None,
        metadata: str | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        again: bool = False,
        request_key: str | None = None,
    ) -> Lease:
        """Take a job without a block and without heartbeats. Call `renew` yourself, well before `remaining_ms` is
        over."""
        request = self._request(
            "acquire",
            [name],
            ttl,
            owner,
            shared=shared,
            wait=wait,
            metadata=metadata,
            slots=slots,
            again=again,
            request_key=request_key,
        )
        try:
            return self._run(operations.acquire(request))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request_key is None:  # a caller with its own key can repeat the request
                given_up(self._doors, request)
            raise

    @explained
    def watch(self, name: str, *, poll: Duration = 1.0, since: int | None = None) -> Iterator[JobEvent]:
        """The events of a job as they happen, for ever. `since`: after that `seq`; else only what is new from now on.

        It polls every `poll` seconds, and sooner if a store of this machine reports news."""
        watching = operations.JobWatch(self._one_name(name), since)
        while True:
            yield from self._run(watching.poll())
            with self._doors.one() as door:
                door.news(duration_ms(poll, "poll"))

    @explained
    def events(
        self,
        prefix: str = "",
        *,
        name: str | None = None,
        after: int | None = None,
        since: Duration | None = None,
        patience: Duration | None = None,
    ) -> Events:
        """What happens to jobs, as it happens, each event once and in order: of all jobs, of those whose name begins
        with `prefix`, or of one. It begins after the event number `after`, or with the events of the last `since`
        seconds, or now. After a failure it continues at whichever server answers. It tries for ever, or for `patience`
        seconds."""
        one = None if name is None else self._one_name(name)
        return Events(self._doors.own, prefix, one, after, since, patience)

    renew = asks("renew", operations.renew, "Heartbeat by hand.")
    release = asks(
        "release",
        operations.release,
        "Release by hand; with `done`, the job is marked as done for that many seconds.",
    )
    fail = asks("fail", operations.fail, "Release by hand as failed. See `Claim.fail`.")
    transfer = asks(
        "transfer", operations.transfer, "Hand a job to another owner. Returns the new owner's lease."
    )
    owner = asks("owner", operations.inspect, "The state of a job, and who has it.")
    list = asks("list", operations.list_jobs, "All jobs with that prefix that are held.")
    history = asks("history", operations.history, "The newest events of a job, oldest first.")
    break_claim = asks(
        "break_claim",
        operations.break_claim,
        "Take a job away from its owner, who is told why. For operators.",
    )
    free = asks("free", operations.free, "Let a parked job be claimed again. For operators.")
