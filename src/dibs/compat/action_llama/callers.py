"""Who is calling, when nobody says: no session, no secret, no lease id.

Whoever claims something in a shell expects to let it go in the same shell, by its name alone. There is no identity to
go by: two agents on one machine may share the user, the terminal, the process group, even the process that starts
their commands. So nothing here ever makes a claim succeed: without an identity, whoever asks is a newcomer, and
exclusion holds whatever this file believes. It is only about letting go and heartbeats, which name what was claimed.

What was claimed is noted in a private file: the lease id, the process that asked for it, and that one's parent. The
lease is shown to whoever descends from the first; when that has ended, to whoever descends from the second. The first
is the shell of a script; the second is the agent, where each of its commands gets a shell of its own.

The file is no lock and decides nothing. If it is lost, the lease runs out by its TTL.
"""

from __future__ import annotations

import os

from dibs.client.embedded import is_gone, lineage
from dibs.clock import wall_ms
from dibs.digest import digest
from dibs.errors import InvalidInput
from dibs.files import replace_file
from dibs.paths import state_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# No lease lives longer without a heartbeat, and each heartbeat makes the note young again.
NOTE_MS_MAX = 2 * 24 * 3600 * 1000
_NOTE_BYTES_MAX = 4096
BE_SOMEBODY = (
    "Run inside `dibs session run`, or set SHUTDOWN_SECRET to what "
    "`dibs run-secret create -q --holder NAME` prints."
)


class Callers:
    """The notes about one place: a store or server, and a namespace in it. `pid` is who calls."""

    def __init__(self, env: Mapping[str, str], place: str, namespace: str, pid: int) -> None:
        self._folder = os.path.join(state_folder(env), "callers")
        self._place = place
        self._namespace = namespace
        self._lineage = lineage(pid)
        if not self._lineage:
            raise InvalidInput(f"This system does not tell who calls. {BE_SOMEBODY}")

    def note(self, name: str, lease_id: str) -> None:
        """Remember that whoever calls has claimed `name`. Raises InvalidInput when that cannot be written."""
        # Nobody is the parent of what has none: then only the caller itself and its children count.
        parent = self._lineage[1] if len(self._lineage) > 1 else ""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            replace_file(self._path(name), "\n".join([lease_id, self._lineage[0], parent]))
        except OSError as error:
            raise InvalidInput(
                f"{self._folder} cannot be written ({error.strerror}), so nobody could let it go by name. "
                f"{BE_SOMEBODY}"
            ) from None

    def lease(self, name: str) -> str | None:
        """The lease on `name` that the caller may be shown, if there is one. It may be over already."""
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
        """A heartbeat came: the note is as young as that."""
        try:
            os.utime(self._path(name))
        except OSError:
            pass

    def tidy(self) -> None:
        """Drop the notes of what is long over. They are left by whoever let go: removing a note at once could remove
        the one that the next owner has just written."""
        oldest_s = (wall_ms() - NOTE_MS_MAX) / 1000
        try:
            with os.scandir(self._folder) as notes:
                for note in notes:
                    if note.stat().st_mtime < oldest_s:
                        os.unlink(note.path)
        except OSError:  # somebody else tidies as well
            pass

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, digest(self._place, self._namespace, name))
