"""`dibs.claim(…)` and the job functions, with their client: made from the environment when it is first needed."""

from __future__ import annotations

import os
import threading

from dibs.base.cheap import Any, Generic, TypeVar
from dibs.base.checkout import current_folder, root_around
from dibs.base.errors import InvalidInput
from dibs.core.durations import Duration
from dibs.sdk.answers import JobOwner, JobStatus, Lease
from dibs.sdk.claim import Claim
from dibs.sdk.claim_state import acquirer
from dibs.sdk.client import Client
from dibs.sdk.methods import Handle, explained, takes_like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.sdk.async_claim import AsyncClaim
    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.claim_state import Acquirer

# Which thread or task acquired what, through an object that several share. An object such as a Lock has many users.
# Each claim belongs to the user that acquired it. If a user lost its claim without knowing it and another acquires the
# lock, that is a new claim, and neither releases the other's.

K = TypeVar("K", "Client", "AsyncClient")
T = TypeVar("T")


class Acquired(Generic[T]):
    """The acquired claims by acquirer: a thread, or a task of an event loop. If an acquirer has ended, anybody may take
    its claims: `asyncio.wait_for(lock.acquire(), 5)` has a task of its own for that one call before Python 3.12."""

    def __init__(self) -> None:
        self._entries: list[tuple[Acquirer, T]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, thing: T) -> None:
        """It belongs to the current thread or task."""
        # One call that cannot be interrupted, and no lock: an interrupt between two calls would lose the claim.
        self._entries.append((acquirer(), thing))

    def mine(self) -> T | None:
        """The newest claim of the current thread or task."""
        entry = self._mine(acquirer())
        return None if entry is None else entry[1]

    def take(self) -> T | None:
        """The same, and remove it."""
        me = acquirer()
        with self._lock:
            entry = self._mine(me)
            if entry is None:
                return None
            self._entries.remove(entry)
            return entry[1]

    def _mine(self, me: Acquirer) -> tuple[Acquirer, T] | None:
        entries = self._entries[::-1]
        own = next((entry for entry in entries if entry[0] is me), None)
        return own or next((entry for entry in entries if _is_over(entry[0])), None)


def _is_over(acquirer: Acquirer) -> bool:
    return not acquirer.is_alive() if isinstance(acquirer, threading.Thread) else acquirer.done()


_lock = threading.Lock()
_clients: dict[tuple[type, tuple[str | None, ...]], Any] = {}

# A thread of the parent may hold the lock during a fork, and the child could never release it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

_VARIABLES = (
    *("DIBS_URL", "DIBS_CONTEXT", "DIBS_TOKEN", "DIBS_TOKEN_FILE", "DIBS_NAMESPACE", "DIBS_OWNER"),
    *("GIT_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"),
)


def _asked() -> tuple[str | None, ...]:
    # The namespace of path: names depends on the folder, so another work tree needs another client.
    folder = current_folder()
    root = None if folder is None else root_around(os.environ, folder)
    return (*(os.environ.get(name) for name in _VARIABLES), root)


def default_client() -> Client:
    """The client for the present environment. If the environment changes, it is another one."""
    return _default(Client)


def default_async_client() -> AsyncClient:
    from dibs.sdk.async_client import AsyncClient

    return _default(AsyncClient)


def _default(kind: type[K]) -> K:
    key = (kind, _asked())
    with _lock:
        if key not in _clients:
            _clients[key] = kind()
        found: K = _clients[key]
        return found


class EitherClaim(Handle):
    """`with` for threads, `async with` for event loops."""

    def __init__(self, verb: str, first: object, options: dict[str, Any]) -> None:
        self._verb = verb
        self._first = first
        self._options = options
        self._entered: Acquired[Any] = Acquired()  # the object may be shared, and used again

    def __repr__(self) -> str:
        return f"<dibs.{self._verb} of {self._first!r}, for a with block>"

    def __getattr__(self, name: str) -> Any:
        """The attributes of a claim exist only inside its block."""
        if name.startswith("_") or not (hasattr(Claim, name) or name == "lost"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise InvalidInput(
            f"Nothing was claimed yet. Use it in a with block: `with dibs.{self._verb}(…) as claim: claim.{name}`."
        )

    def __enter__(self) -> Claim:
        claim: Claim = getattr(default_client(), self._verb)(self._first, **self._options)
        claim.__enter__()
        self._entered.add(claim)
        return claim

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        claim: Any = self._entered.take()  # there is one: the block was entered
        claim.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncClaim:
        claim: AsyncClaim = getattr(default_async_client(), self._verb)(self._first, **self._options)
        await claim.__aenter__()
        self._entered.add(claim)
        return claim

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        claim: Any = self._entered.take()  # there is one: the block was entered
        await claim.__aexit__(kind, error, trace)


@explained
def connect(
    url: str | None = None,
    token: str | None = None,
    owner: str | None = None,
    namespace: str | None = None,
    *,
    context: str | None = None,
) -> Client:
    """A client of your own. Without a URL or context: what the `dibs` command uses."""
    return Client(url, token, owner, namespace, context=context)


@takes_like(Client.claim)
def claim(**given: Any) -> EitherClaim:
    """`with dibs.claim("issue-42") as claim:`, or `async with`. See `Client.claim`."""
    return EitherClaim("claim", given.pop("name"), given)


@takes_like(Client.claim_any)
def claim_any(**given: Any) -> EitherClaim:
    """The first of `names` that is free. See `Client.claim_any`."""
    return EitherClaim("claim_any", given.pop("names"), given)


@takes_like(Client.claim_all)
def claim_all(**given: Any) -> EitherClaim:
    """All of `names` or none. See `Client.claim_all`."""
    return EitherClaim("claim_all", given.pop("names"), given)


# The job functions: plain calls for programs that keep the lease id and send heartbeats themselves.


@explained
def claim_job(job_id: str, owner: str, metadata: str | None = None, ttl: Duration = 120) -> Lease:
    """Claim a job for `ttl` seconds from the last heartbeat. Raises JobHeld (with the owner), JobDone, … …"""
    return default_client().acquire(job_id, owner=owner, metadata=metadata, ttl=ttl)


@explained
def heartbeat_job(job_id: str, lease_id: str, checkpoint: str | None = None) -> Lease:
    """Renew the lease. Raises LeaseLost if the job is not yours any more: stop the work."""
    return default_client().renew(job_id, lease_id, checkpoint=checkpoint)


@explained
def release_job(job_id: str, lease_id: str, done: Duration | bool | None = None, result: str | None = None) -> None:
    """Release a job; with `done`, it is marked as done for that many seconds."""
    default_client().release(job_id, lease_id, done=done, result=result)


@explained
def fail_job(job_id: str, lease_id: str, reason: str | None = None, retry_after: Duration | None = None) -> None:
    """Release a job as failed: it counts as an attempt, and nobody gets it for `retry_after`."""
    default_client().fail(job_id, lease_id, reason, retry_after=retry_after)


@explained
def get_job_owner(job_id: str) -> JobOwner | None:
    """The owner of a job: the name, as text, which also has `live`, `metadata` and the whole `status`. None: nobody has
    the job."""
    status = default_client().owner(job_id)
    return JobOwner.of(status) if status.held else None


@explained
def list_claimed_jobs(prefix: str | None = None) -> list[JobStatus]:
    """All jobs with that prefix that are held."""
    return default_client().list(prefix)
