"""The verbs of `rlock`, asked of dibs itself, without a gateway. `client.py` asks a gateway.

The caller is a session, a run, or a process without an identity. Each has its own proof."""

from __future__ import annotations

import os

from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.files import replace_file, state_folder
from dibs.base.generators import run_generator
from dibs.base.ids import digest
from dibs.client.door import Ask
from dibs.compat.action_llama.protocol import UNREACHABLE, Rejected, acquired, heartbeat, refusal, release
from dibs.system.session_mark import is_gone, lineage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.cli.framework.context import Opener
    from dibs.cli.signals import UnconfirmedClaims
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

    def __init__(self, env: Mapping[str, str], url: str, namespace: str, pid: int) -> None:
        self._folder = os.path.join(state_folder(env), "callers")
        self._url = url
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
        return os.path.join(self._folder, digest(self._url, self._namespace, name))


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
    settings = Settings({} if env.get("SHUTDOWN_SECRET") else _namespace_around(key, env), env)
    door = (opener or open_door)(settings)
    try:
        request = _LockRequest(door, verb, key, ttl_seconds, settings, unconfirmed)
        if env.get("DIBS_SESSION"):
            return request.in_session()
        if env.get("SHUTDOWN_SECRET"):
            return request.in_run(env["SHUTDOWN_SECRET"])
        return request.as_nobody(pid)
    finally:
        door.close()


def _namespace_around(key: str, env: Mapping[str, str]) -> dict[str, str]:
    """A path key belongs to the repository's namespace, as in the other commands."""
    if env.get("DIBS_NAMESPACE") or not key.startswith(("path:", "repo:")):
        return {}
    from dibs.base.checkout import current_folder
    from dibs.client.naming import namespace_around

    folder = current_folder()
    found = None if folder is None else namespace_around(env, folder)
    return {} if found is None else {"namespace": found}


class _LockRequest:
    """One verb for one key, asked through a door. The answer is theirs."""

    def __init__(
        self,
        door: Door,
        verb: str,
        key: str,
        ttl_seconds: int | None,
        settings: Settings,
        unconfirmed: UnconfirmedClaims,
    ) -> None:
        self._door = door
        self._verb = verb
        self._key = key
        self._ttl_seconds = ttl_seconds
        self._settings = settings
        self._unconfirmed = unconfirmed

    def in_session(self) -> Said:
        from dibs.base.ids import is_id

        session = self._settings.env["DIBS_SESSION"].strip().lower()
        if not is_id(session):
            reason = "DIBS_SESSION is not the id of a session: `dibs session run` sets it."
            raise Rejected("invalid session", reason, 403)
        owner = self._settings.pick("owner", "DIBS_OWNER") or ""  # else it is the session's
        return self._with_proof({"session_id": session}, owner)

    def in_run(self, secret: str) -> Said:
        from dibs.client.embedded import EmbeddedDoor
        from dibs.compat.action_llama.runs import EmbeddedRuns

        assert isinstance(self._door, EmbeddedDoor)  # a server is asked through its gateway instead
        try:
            # A release first tests its proof with a heartbeat. The history must not show that heartbeat.
            found = EmbeddedRuns(self._door).as_run(secret, audited=self._verb != "release")
        except DibsError as error:
            return UNREACHABLE, refusal(error.code, error.details)
        if found is None:
            reason = "No run of this store has the secret in SHUTDOWN_SECRET. dibs run-secret create makes one."
            raise Rejected("invalid secret", reason, 403)
        run, self._door = found
        return self._with_proof({"session_id": run.session}, run.holder)

    def _with_proof(self, proof: Document, owner: str) -> Said:
        if self._verb == "release":
            return self._follow(release(self._key, proof))
        if self._verb == "heartbeat":
            return self._follow(heartbeat(self._key, proof, self._ttl_seconds))
        return acquired(self._key, self._claim(owner, proof))

    def as_nobody(self, pid: int) -> Said:
        """Ask as the calling process, which has no identity. Every claim is new; a note of its lease serves the
        release."""
        callers = Callers(self._settings.env, self._settings.url or "", self._settings.namespace or "", pid)
        if self._verb == "acquire":
            return self._claim_as_nobody(callers, pid)
        lease = callers.lease(self._key)
        proof = None if lease is None else {"lease_id": lease}
        if self._verb == "release":
            callers.tidy()
            return self._follow(release(self._key, proof))
        said = self._follow(heartbeat(self._key, proof, self._ttl_seconds))
        if said[0] == 200:
            callers.freshen(self._key)
        return said

    def _claim_as_nobody(self, callers: Callers, pid: int) -> Said:
        owner = self._settings.pick("owner", "DIBS_OWNER") or f"{self._settings.owner} (pid {pid})"
        reply = self._claim(owner, {})
        status, document = acquired(self._key, reply)
        if status == 200 and reply.body is not None:
            try:
                callers.note(self._key, reply.body["lease_id"])
            except DibsError as error:
                self._door.ask(Ask("release", self._key, {"lease_id": reply.body["lease_id"]}))
                return 500, refusal("not noted", error.details)
        elif document.get("holder") == owner and callers.lease(self._key) is not None:
            here = (
                "it was locked from here. rlock-heartbeat keeps it and runlock releases it. To lock it more than once:"
            )
            document["reason"] += f": {here} {BE_SOMEBODY}"
        return status, document

    def _claim(self, owner: str, proof: Document) -> Reply:
        """Claim the key. An interrupt releases the claim, if it was granted."""
        from dibs.base.ids import new_id
        from dibs.client.queueing import PendingClaim, drive
        from dibs.core.limits import RLOCK_TTL_MS_DEFAULT

        ttl_seconds = self._ttl_seconds or RLOCK_TTL_MS_DEFAULT // 1000
        document = {"owner": owner, "ttl_seconds": ttl_seconds, "request_key": new_id(), **proof}
        pending = PendingClaim("acquire", self._key, document)
        self._unconfirmed.begin(pending, lambda: self._door)
        return _known(drive(self._door, pending.ask_once()))

    def _follow(self, asking: Asking) -> Said:
        return run_generator(asking, lambda question: _known(self._door.ask(Ask(*question))))


def _known(reply: Reply) -> Reply:
    """Tell a server or store that cannot be reached from one that answers "later": only a real answer has a
    request id."""
    if reply.status == 401:
        from dibs.cli.framework.result import failure

        return reply.replace(body={**(reply.body or {}), "details": failure(reply).text})
    if reply.status == 503 and "request_id" not in (reply.body or {}):
        return reply.replace(status=UNREACHABLE)
    return reply
