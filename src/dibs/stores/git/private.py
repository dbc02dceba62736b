"""The private repository of a remote. It is made on first use, and deleted when it is too large. It is a cache:
everything in it came from the remote, or was pushed there.
"""

from __future__ import annotations

import os
import shutil

from dibs.base.errors import StoreUnavailable
from dibs.base.ids import new_id
from dibs.stores.git.repository import FileLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.git.location import GitLocation

CACHE_FILES_MAX = 20_000
ALGORITHMS = ("sha1", "sha256")


def make_private(location: GitLocation, algorithm: str) -> None:
    """Make the repository, completely or not at all. Two processes that make it at once make the same."""
    path = location.git.git_dir
    made = f"{path}.{new_id()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        words = ("init", "--quiet", "--bare", "--template=", f"--object-format={algorithm}", made)
        location.git.ask(*words)
        with open(os.path.join(made, "config"), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_settings(location))
        os.rename(made, path)
    except OSError as error:
        if not os.path.isdir(path):
            raise StoreUnavailable(f"{path} cannot be made: {error.strerror}.") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _settings(location: GitLocation) -> str:
    """The clone's configuration, so that credentials, rewritten addresses and proxies are its own."""
    if not location.include:
        return ""
    path = os.path.relpath(location.include, location.git.git_dir)
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (path, location.name)]
    return (
        f'[include]\n\tpath = "{quoted[0]}"\n'
        f'[remote "{quoted[1]}"]\n\tmirror = false\n\tpromisor = false\n\tprune = false\n\ttagOpt = --no-tags\n'
    )


def remake_private(location: GitLocation, algorithm: str) -> None:
    """The remote uses another hash algorithm: make it again."""
    shutil.rmtree(location.git.git_dir, ignore_errors=True)
    make_private(location, algorithm)


def remove_locks(location: GitLocation, space: str) -> None:
    """Remove lock files below refs that only the caller writes."""
    for folder, _, files in os.walk(os.path.join(location.git.git_dir, space)):
        for name in files:
            if name.endswith(".lock"):
                os.unlink(os.path.join(folder, name))


def shrink_private(location: GitLocation) -> bool:
    """Delete the cache if it is large and nobody uses it."""
    path = location.git.git_dir
    count = sum(len(files) for _, _, files in os.walk(path))
    if count <= CACHE_FILES_MAX:
        return False
    with FileLock(location.folder, "use.lock", waits=False) as is_alone:
        if is_alone:
            shutil.rmtree(path, ignore_errors=True)
        return is_alone
