"""The machine's service: one store for all users of a machine, behind a Unix socket at a known path.

A user who names no store uses the service if it exists (`dibs serve --system`, /run/dibs/dibs.sock), else their own
file. Two rules keep one job from having two owners in two stores:

- A user with live claims in their own file is not switched: an error asks which store to use.
- A user who has used the service does not fall back to their own file when it is down. A note in the state folder
  remembers that.

A socket is trusted only if root, or the user to whom root gave the folder, must have made it.
"""

from __future__ import annotations

import os
import stat

from dibs.base.errors import InvalidInput, ServerUnreachable
from dibs.base.files import state_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "/run/dibs/dibs.sock"
_OFF = ("off", "no", "0")


def system_url(env: Mapping[str, str]) -> str | None:
    """The URL of the machine's service, or None if there is none. Raises if it cannot be used safely."""
    path = socket_path(env)
    if path is None:
        return None
    note = note_path(env)
    if not os.path.lexists(path):
        if os.path.exists(note):
            raise ServerUnreachable(
                f"This machine's dibs service ({path}) does not answer. Do not begin the work; try again "
                f"later. If the service was removed, remove {note}."
            )
        return None
    reason = distrust(path)
    if reason is not None:
        raise InvalidInput(
            f"{path} cannot be trusted: {reason}. Name a store with --url or DIBS_URL, or set DIBS_SYSTEM_SOCKET=off."
        )
    if not os.path.exists(note):
        _refuse_to_split(path)
        _take_note(note, path)
    return f"unix://{path}"


def socket_path(env: Mapping[str, str]) -> str | None:
    """The path of the service's socket; None if the user turned it off."""
    path = env.get("DIBS_SYSTEM_SOCKET") or SOCKET
    return None if path in _OFF else path


def note_path(env: Mapping[str, str]) -> str:
    """The file that notes that this user's claims are in the machine's service."""
    return os.path.join(state_folder(env), "uses-the-machine's-service")


def distrust(path: str) -> str | None:
    """Return why somebody other than root or the service's user may have made this socket; None if nobody else can
    have."""
    folder = os.path.dirname(path)
    try:
        found, around, above = os.lstat(path), os.lstat(folder), os.stat(os.path.dirname(folder) or "/")
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if not stat.S_ISSOCK(found.st_mode):
        return "it is not a socket"
    if not stat.S_ISDIR(around.st_mode) or around.st_mode & 0o022:
        return f"others may write in {folder}"
    if above.st_uid != 0 or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        return f"{folder} may have been made by somebody other than root"
    if above.st_mode & stat.S_ISVTX and around.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to another user, and everybody may make folders beside it"
    if found.st_uid not in (0, around.st_uid):
        return "it belongs to another user than its folder"
    return None


def _refuse_to_split(path: str) -> None:
    """Raise if this user's own file has live claims: using the service as well would make two stores."""
    from dibs.client.embedded import EmbeddedDoor, default_store_url

    url = default_store_url()
    if not os.path.exists(url.removeprefix("sqlite://")):
        return
    door = EmbeddedDoor.at(None, None)
    try:
        from dibs.client.store_admin import holds_anything

        held = holds_anything(door.store())
    finally:
        door.close()
    if held:
        raise InvalidInput(
            f"This machine has a dibs service ({path}), and your own store {url} has live claims. Until they "
            f"end, choose one with --url or DIBS_URL."
        )


def _take_note(note: str, path: str) -> None:
    try:
        os.makedirs(os.path.dirname(note), mode=0o700, exist_ok=True)
        with open(note, "w") as file:
            file.write(f"{path}\n")
    except OSError:
        pass  # a user without a home has no file to fall back to
