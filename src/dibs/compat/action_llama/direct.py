"""The verbs of `rlock`, asked of dibs itself, without a gateway. `client.py` asks a gateway.

The caller is a session, a run, or a process without an identity. Each has its own proof."""

from __future__ import annotations

import os

from dibs.base.clock import wall_ms
from dibs.base.digest import digest
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.files import replace_file, state_folder
from dibs.base.generators import run_generator
from dibs.client.door import Ask
from dibs.compat.action_llama.protocol import UNREACHABLE, Rejected, acquired, heartbeat, refusal, release
from dibs.system.session_mark import is_gone, lineage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.cli.framework.context import Opener
    from dibs.cli.supervise.signals import UnconfirmedClaims
    from dibs.client.door import Door
    from dibs.client.settings import Settings
    from dibs.compat.action_llama.protocol import Asking, Said
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

# Callers without an identity: no session, no secret, no lease id.
#
# A user who locks something in a shell expects to release it in the same shell, by its name alone. Nothing identifies
# the user: two agents on one machine may share the user id, the terminal, the process group, even the process that
# starts their commands. So these notes never make a claim succeed: every claim is a new claim, and exclusion holds even
# if a note is wrong. Only releases and heartbeats use the notes, because both name a lock that was acquired before.
#
# A note is a private file: the lease id, the calling process, and the parent of that process. Descendants of the
# calling process get the lease. After the calling process has ended, descendants of its parent get it. The calling
# process is usually a script's shell. The parent is the agent, if the agent starts a new shell for each command.
#
# The note is not a lock and decides nothing. If it is lost, the lease expires by its TTL.

# No lease lives longer than this without a heartbeat, and each heartbeat renews the note's file time.
NOTE_MS_MAX = 2 * 24 * 3600 * 1000
_NOTE_BYTES_MAX = 4096
BE_SOMEBODY = (
    "Run inside `dibs session run`, or set SHUTDOWN_SECRET to what `dibs run-secret create -q --holder NAME` prints."
)


class Callers:
    """The notes about one namespace of a store or server. `pid` is the calling process."""

    def __init__(self, env: Mapping[str, str], place: str, namespace: str, pid: int) -> None:
        self._folder = os.path.join(state_folder(env), "callers")
        self._place = place
        self._namespace = namespace
        self._lineage = lineage(pid)
        if not self._lineage:
            raise InvalidInput(f"This system does not show which process calls. {BE_SOMEBODY}")

    def note(self, name: str, lease_id: str) -> None:
        """Remember that the caller has claimed `name`. Raises InvalidInput if the note cannot be written."""
        # Without a parent, only the caller itself and its descendants count.
        parent = self._lineage[1] if len(self._lineage) > 1 else ""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            replace_file(self._path(name), "\n".join([lease_id, self._lineage[0], parent]))
        except OSError as error:
            raise InvalidInput(
                f"{self._folder} cannot be written ({error.strerror}), so it could not be released by name. "
                f"{BE_SOMEBODY}"
            ) from None

    def lease(self, name: str) -> str | None:
        """The lease on `name` that the caller may use, if there is one. It may have expired."""
        try:
            with open(self._path(name), "rb") as file:
                words = file.read(_NOTE_BYTES_MAX).decode("utf-8", "replace").split("\n")
        except OSError:
            return None
        if len(words) != 3:
            return None
        lease_id, caller, parent = words
        if caller in self._lineage or (parent in self._lineage and is_gone(caller)):
            return lease_id
        return None

    def freshen(self, name: str) -> None:
        """Renew the note's file time, after a heartbeat."""
        try:
            os.utime(self._path(name))
        except OSError:
            pass

    def tidy(self) -> None:
        """Delete the notes of expired leases. A release leaves its note, because deleting it at once could delete
        the note that the next owner has just written."""
        oldest_s = (wall_ms() - NOTE_MS_MAX) / 1000
        try:
            with os.scandir(self._folder) as notes:
                for note in notes:
                    if note.stat().st_mtime < oldest_s:
                        os.unlink(note.path)
        except OSError:  # another process tidies at the same time
            pass

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, digest(self._place, self._namespace, name))


def ask_dibs(
    verb: str,
    key: str,
    ttl_seconds: int | None,
    env: Mapping[str, str],
    opener: Opener | None,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    from dibs.cli.framework.context import open_door
    from dibs.client.settings import Settings

    # A run brings its own namespace.
    settings = Settings({} if env.get("SHUTDOWN_SECRET") else _place_of(key, env), env)
    door = (opener or open_door)(settings)
    try:
        if env.get("DIBS_SESSION"):
            return _in_session(door, verb, key, ttl_seconds, settings, unconfirmed)
        if env.get("SHUTDOWN_SECRET"):
            return _in_run(door, verb, key, ttl_seconds, env["SHUTDOWN_SECRET"], unconfirmed)
        return _as_nobody(door, verb, key, ttl_seconds, settings, pid, unconfirmed)
    finally:
        door.close()


def _place_of(key: str, env: Mapping[str, str]) -> dict[str, str]:
    """A path key belongs to the repository's namespace, as in the other commands."""
    if env.get("DIBS_NAMESPACE") or not key.startswith(("path:", "repo:")):
        return {}
    from dibs.base.checkout import current_folder
    from dibs.client.naming import namespace_around

    folder = current_folder()
    found = None if folder is None else namespace_around(env, folder)
    return {} if found is None else {"namespace": found}


def _in_session(
    door: Door,
    verb: str,
    key: str,
    ttl_seconds: int | None,
    settings: Settings,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    from dibs.wire.shapes import is_id

    session = settings.env["DIBS_SESSION"].strip().lower()
    if not is_id(session):
        raise Rejected("invalid session", "DIBS_SESSION is not the id of a session: `dibs session run` sets it.", 403)
    owner = settings.pick("owner", "DIBS_OWNER") or ""  # else it is the session's
    return _shown(door, verb, key, ttl_seconds, {"session_id": session}, owner, unconfirmed)


def _in_run(
    door: Door, verb: str, key: str, ttl_seconds: int | None, secret: str, unconfirmed: UnconfirmedClaims
) -> Said:
    from dibs.client.embedded import EmbeddedDoor
    from dibs.compat.action_llama.runs import EmbeddedRuns

    assert isinstance(door, EmbeddedDoor)  # a server is asked through its gateway instead
    try:
        # A release first tests its proof with a heartbeat. The history must not show that heartbeat.
        found = EmbeddedRuns(door).as_run(secret, audited=verb != "release")
    except DibsError as error:
        return UNREACHABLE, refusal(error.code, error.details)
    if found is None:
        reason = "No run of this store has the secret in SHUTDOWN_SECRET. dibs run-secret create makes one."
        raise Rejected("invalid secret", reason, 403)
    run, own_door = found
    return _shown(own_door, verb, key, ttl_seconds, {"session_id": run.session}, run.holder, unconfirmed)


def _shown(
    door: Door,
    verb: str,
    key: str,
    ttl_seconds: int | None,
    proof: Document,
    owner: str,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    """Ask with a proof of identity."""
    if verb == "release":
        return _follow(door, release(key, proof))
    if verb == "heartbeat":
        return _follow(door, heartbeat(key, proof, ttl_seconds))
    return acquired(key, _claim(door, key, _wish(owner, ttl_seconds) | proof, unconfirmed))


def _as_nobody(
    door: Door,
    verb: str,
    key: str,
    ttl_seconds: int | None,
    settings: Settings,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    """Ask as the calling process, which has no identity. Every claim is new; a note of its lease serves the release."""
    from dibs.compat.action_llama.direct import Callers

    callers = Callers(settings.env, settings.url or "", settings.namespace or "", pid)
    if verb == "acquire":
        return _claim_as_nobody(door, key, ttl_seconds, settings, callers, pid, unconfirmed)
    lease = callers.lease(key)
    proof = None if lease is None else {"lease_id": lease}
    if verb == "release":
        callers.tidy()
        return _follow(door, release(key, proof))
    said = _follow(door, heartbeat(key, proof, ttl_seconds))
    if said[0] == 200:
        callers.freshen(key)
    return said


def _claim_as_nobody(
    door: Door,
    key: str,
    ttl_seconds: int | None,
    settings: Settings,
    callers: Callers,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    from dibs.compat.action_llama.direct import BE_SOMEBODY

    owner = settings.pick("owner", "DIBS_OWNER") or f"{settings.owner} (pid {pid})"
    reply = _claim(door, key, _wish(owner, ttl_seconds), unconfirmed)
    status, document = acquired(key, reply)
    if status == 200 and reply.body is not None:
        try:
            callers.note(key, reply.body["lease_id"])
        except DibsError as error:
            door.ask(Ask("release", key, {"lease_id": reply.body["lease_id"]}))
            return 500, refusal("not noted", error.details)
    elif document.get("holder") == owner and callers.lease(key) is not None:
        here = "it was locked from here. rlock-heartbeat keeps it and runlock releases it. To lock it more than once:"
        document["reason"] += f": {here} {BE_SOMEBODY}"
    return status, document


def _wish(owner: str, ttl_seconds: int | None) -> Document:
    from dibs.base.ids import new_id
    from dibs.core.limits import RLOCK_TTL_MS_DEFAULT

    return {
        "owner": owner,
        "ttl_seconds": ttl_seconds or RLOCK_TTL_MS_DEFAULT // 1000,
        "request_key": new_id(),
    }


def _follow(door: Door, asking: Asking) -> Said:
    return run_generator(asking, lambda question: _call(door, *question))


def _claim(door: Door, key: str, document: Document, unconfirmed: UnconfirmedClaims) -> Reply:
    """Claim `key`. An interrupt releases the claim, if it was granted."""
    from dibs.client.queueing import PendingClaim, drive

    pending = PendingClaim("acquire", key, document)
    unconfirmed.begin(pending, lambda: door)
    return _told_apart(drive(door, pending.ask_once()))


def _call(door: Door, verb: str, key: str, document: Document) -> Reply:
    return _told_apart(door.ask(Ask(verb, key, document)))


def _told_apart(reply: Reply) -> Reply:
    """Tell a server or store that cannot be reached from one that answers "later": only a real answer has a
    request id."""
    if reply.status == 401:
        from dibs.cli.framework.result import failure

        return reply.replace(body={**(reply.body or {}), "details": failure(reply).text})
    if reply.status == 503 and "request_id" not in (reply.body or {}):
        return reply.replace(status=UNREACHABLE)
    return reply
