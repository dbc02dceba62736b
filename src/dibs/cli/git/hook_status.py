"""Whether the installed hooks still run. Another program may have overwritten them, or git may use another folder."""

from __future__ import annotations

import os

from dibs.base.files import SHARED, replace_file
from dibs.cli.git.hook_files import BEFORE, HOOKS, is_ours, read_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.repository.work_tree import Repository

IN_PLACE, CHAINED, CALLED, LEGACY = "in place", "chained", "called", "legacy"
OVERWRITTEN, ABSENT, ASLEEP = "overwritten", "absent", "not executable"
RUNNING = frozenset((IN_PLACE, CHAINED, CALLED, LEGACY))
_CALL = b"dibs hook run"
# The settings files of hook managers in a repository: lefthook's and pre-commit's.
_MANAGED = ("lefthook.yml", ".lefthook.yml", "lefthook.yaml", ".pre-commit-config.yaml")


def states(repository: Repository) -> dict[str, str]:
    """The state of each hook, in the folder that git uses now."""
    folder = repository.hooks()
    installed = os.path.exists(_note(repository))
    return {hook: _state(repository, folder, hook, installed=installed) for hook in HOOKS}


def _state(repository: Repository, folder: str, hook: str, *, installed: bool) -> str:
    path = os.path.join(folder, hook)
    text = read_hook(path)
    if is_ours(text):
        if not os.access(path, os.X_OK):
            return ASLEEP
        return CHAINED if os.path.lexists(path + BEFORE) else IN_PLACE
    if is_ours(read_hook(f"{path}.legacy")) and b"pre-commit" in text:
        return LEGACY  # pre-commit runs the hook that was there before it
    if any(_CALL in read_hook(place) for place in _called_from(repository, folder, hook)):
        return CALLED
    return OVERWRITTEN if installed or os.path.lexists(path + BEFORE) else ABSENT


def _called_from(repository: Repository, folder: str, hook: str) -> list[str]:
    """Files that may call dibs: the hook itself, the file that husky's hook runs, a manager's settings."""
    beside = os.path.join(os.path.dirname(os.path.normpath(folder)), hook)
    managed = [os.path.join(repository.top, name) for name in _MANAGED]
    return [os.path.join(folder, hook), beside, *managed]


def note_installed(repository: Repository, folder: str) -> None:
    """Note the hooks, so that their loss can be noticed later."""
    path = _note(repository)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(path, folder + "\n", mode=SHARED)
    except OSError:
        pass  # the hooks are installed anyway


def note_uninstalled(repository: Repository) -> None:
    try:
        os.unlink(_note(repository))
    except OSError:
        pass


def _note(repository: Repository) -> str:
    return os.path.join(repository.common, "dibs", "hooks-installed")


def is_overwritten(repository: Repository) -> list[str]:
    """The hooks that were installed and do not run."""
    return [hook for hook, state in states(repository).items() if state in (OVERWRITTEN, ASLEEP)]
