"""Callers without an identity: no session, no secret, no lease id.

A user who locks something in a shell expects to release it in the same shell, by its name alone. Nothing identifies
the user: two agents on one machine may share the user id, the terminal, the process group, even the process that
starts their commands. So these notes never make a claim succeed: every claim is a new claim, and exclusion holds even
if a note is wrong. Only releases and heartbeats use the notes, because both name a lock that was acquired before.

A note is a private file: the lease id, the calling process, and the parent of that process. Descendants of the calling
process get the lease. After the calling process has ended, descendants of its parent get it. The calling process is
usually a script's shell. The parent is the agent, if the agent starts a new shell for each command.

The note is not a lock and decides nothing. If it is lost, the lease expires by its TTL.
"""

from __future__ import annotations

import os

from dibs.base.clock import wall_ms
from dibs.base.digest import digest
from dibs.base.errors import InvalidInput
from dibs.base.files import replace_file
from dibs.base.paths import state_folder
from dibs.client.embedded import is_gone, lineage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# No lease lives longer than this without a heartbeat, and each heartbeat renews the note's file time.
NOTE_MS_MAX = 2 * 24 * 3600 * 1000
_NOTE_BYTES_MAX = 4096
BE_SOMEBODY = (
    "Run inside `dibs session run`, or set SHUTDOWN_SECRET to what "
    "`dibs run-secret create -q --holder NAME` prints."
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
