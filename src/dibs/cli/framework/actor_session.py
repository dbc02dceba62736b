"""`--actor NAME`: one session for a named worker, found again from every shell of this user.

An agent runs each command in a new shell, so a lease id in a shell variable is lost with the next command. An actor's
name is not lost: `dibs claim`, `heartbeat` and `release` with the same name use one session, and the session proves
what it holds. The same name means the same worker, so two agents need two names.

The session's id is kept in a private file under `actors` in the state folder, one for each store, namespace and name.
The file proves nothing by itself: the store knows whether the session lives. Every claim and heartbeat of the actor
renews the session. ACTOR_TTL_MS after the last one the session ends and its jobs are released.
"""

from __future__ import annotations

import os

from dibs.cli.framework.parse import UsageError
from dibs.client.door import OVER_CODES
from dibs.core.limits import ACTOR_TTL_MS, OWNER_CHARS_MAX
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.digest import digest
from dibs.errors import InvalidInput, RequestRefused
from dibs.files import replace_file
from dibs.paths import state_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.wire.documents import Reply

_BYTES_MAX = 256
# The skill's placeholder for a name. Two agents that copied it would be one worker, so it is refused.
PLACEHOLDER = "YOUR-NAME"


def actor_named(call: Call) -> str | None:
    """The actor's name, if one was given. A session takes precedence over an actor, and a flag over a variable."""
    values = call.values
    if values.get("session") is not None:
        return None
    name: str | None = values.get("actor")
    if name is None and not call.env.get("DIBS_SESSION"):
        name = call.env.get("DIBS_ACTOR") or None
    if name is not None and (not name.strip() or not name.isprintable() or len(name) > OWNER_CHARS_MAX):
        raise UsageError(
            f"--actor (DIBS_ACTOR) is a printable name of 1 to {OWNER_CHARS_MAX} characters, not {name!a}.",
            call.command,
        )
    if name == PLACEHOLDER:
        raise UsageError(
            f"--actor {name} is a placeholder. Choose a name that no other agent has.", call.command
        )
    return name


class ActorSession:
    """The session of one actor at one store and namespace."""

    def __init__(self, call: Call, name: str) -> None:
        settings = call.settings
        self._call = call
        self._name = name
        self._folder = os.path.join(state_folder(call.env), "actors")
        self._path = os.path.join(
            self._folder, digest(settings.url or "", settings.namespace or DEFAULT_NAMESPACE, name)
        )

    def kept(self) -> str:
        """The session that an earlier claim opened, renewed. If it has ended, the request that uses it as proof gets
        the refusal."""
        session, _ = self._read()
        if session is None:
            raise UsageError(
                f"The actor {self._name!a} has claimed nothing here. "
                "Did the claim name the same actor, --url and --namespace?",
                self._call.command,
            )
        self._call.door().call("session-keep", session, {})
        return session

    def opened(self, ttl_ms: int) -> str:
        """The actor's session: the existing one, renewed, or a new one. It lives for at least `ttl_ms`."""
        import fcntl

        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            gate = os.open(os.path.join(self._folder, "gate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidInput(
                f"{self._folder} cannot be written ({error.strerror}), so dibs cannot remember the actor. "
                "Use --lease or --session instead."
            ) from None
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)  # two first claims of one actor open one session
            return self._keep(ttl_ms) or self._open(ttl_ms)
        finally:
            os.close(gate)

    def _keep(self, ttl_ms: int) -> str | None:
        session, kept_ms = self._read()
        if session is None:
            return None
        ttl_ms = max(ttl_ms, kept_ms)
        reply = self._call.door().call("session-keep", session, {"ttl_ms": ttl_ms})
        if (reply.body or {}).get("code") in OVER_CODES:
            return None
        _check(reply)
        if ttl_ms > kept_ms:
            self._write(session, ttl_ms)
        return session

    def _open(self, ttl_ms: int) -> str:
        owner = self._call.settings.pick("owner", "DIBS_OWNER") or self._name
        reply = self._call.door().call("session-open", "", {"owner": owner, "ttl_ms": ttl_ms})
        _check(reply)
        session: str = (reply.body or {})["session_id"]
        self._write(session, ttl_ms)
        return session

    def _read(self) -> tuple[str | None, int]:
        """The session's id and its TTL."""
        try:
            with open(self._path, "rb") as file:
                words = file.read(_BYTES_MAX).decode("ascii", "replace").split()
        except OSError:
            return None, 0
        return (words[0], int(words[1])) if len(words) == 2 and words[1].isdecimal() else (None, 0)

    def _write(self, session: str, ttl_ms: int) -> None:
        replace_file(self._path, f"{session} {ttl_ms}\n")


def claiming_session(call: Call, ttl_ms: int | None) -> str | None:
    """The session to claim in, opened if there is none; None without an actor."""
    name = actor_named(call)
    return None if name is None else ActorSession(call, name).opened(max(ACTOR_TTL_MS, ttl_ms or 0))


def proving_session(call: Call) -> str | None:
    """The session that proves what the actor claimed; None without an actor."""
    name = actor_named(call)
    return None if name is None else ActorSession(call, name).kept()


def _check(reply: Reply) -> None:
    if reply.status >= 300:
        body = reply.body or {}
        raise RequestRefused(str(body.get("details") or body.get("error")), str(body.get("code")))
