"""The skill: the file that teaches an agent to use dibs, and its installation."""

from __future__ import annotations

import os

from dibs.agents.repository.file_paths import check_stays_inside
from dibs.base.errors import InvalidInput
from dibs.base.files import SHARED, replace_file

NAME = "dibs"
FILE = "SKILL.md"
# Where clients look for the skills of a project. The first is used if none of them exists.
FOLDERS = (".claude/skills", ".agents/skills")
INSTALLED, REPLACED, UNCHANGED = "installed", "replaced", "unchanged"


def skill_text() -> str:
    path = os.path.join(os.path.dirname(__file__), "skill", FILE)
    with open(path, encoding="utf-8") as file:
        return file.read()


def usual_folders() -> list[str]:
    """The skill folders of the current project: one for every client whose folder exists, else the first."""
    return [folder for folder in FOLDERS if os.path.isdir(os.path.dirname(folder))] or [FOLDERS[0]]


def install(folders: list[str], *, force: bool = False) -> list[tuple[str, str]]:
    """Write dibs/SKILL.md below each folder. Returns the paths, with what was done at each.

    A different file is replaced only with `force`. Without it, one different file stops the whole installation."""
    found = [
        (path, _looked(path, force))
        for path in [check_stays_inside(os.path.join(folder, NAME, FILE)) for folder in folders]
    ]
    for path, what in found:
        if what != UNCHANGED:
            _write(path, skill_text())
    return found


def _looked(path: str, force: bool) -> str:
    """Return what to do at a path."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = file.read()
    except FileNotFoundError:
        return INSTALLED
    except OSError as error:
        raise _cannot(path, error) from None
    if found == skill_text():
        return UNCHANGED
    if not force:
        raise InvalidInput(
            f"{path} exists and differs from the skill of this version; nothing was changed. Use --force to "
            "replace it, or --to for another folder."
        )
    return REPLACED


def _cannot(path: str, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be written ({error.strerror}). Choose another folder with --to.")


def _write(path: str, text: str) -> None:
    """Write the file atomically, because an agent may be reading it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(path, text, mode=SHARED)
    except OSError as error:
        raise _cannot(path, error) from None
