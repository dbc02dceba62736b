"""The skill: the file that teaches an agent to use dibs, and putting it where the agent's client looks for it."""

from __future__ import annotations

import os

from dibs.errors import InvalidInput
from dibs.ids import new_id

NAME = "dibs"
FILE = "SKILL.md"
# Where clients look for the skills of a project. The first is taken when none of them is there yet.
FOLDERS = (".claude/skills", ".agents/skills")
INSTALLED, REPLACED, UNCHANGED = "installed", "replaced", "unchanged"


def skill_text() -> str:
    path = os.path.join(os.path.dirname(__file__), "skill", FILE)
    with open(path, encoding="utf-8") as file:
        return file.read()


def usual_folders(project: str) -> list[str]:
    """Where a project's skills go: to every client whose folder is there, and if there is none, to the first."""
    there = [folder for folder in FOLDERS if os.path.isdir(os.path.join(project, os.path.dirname(folder)))]
    return [os.path.join(project, folder) for folder in there or FOLDERS[:1]]


def install(folder: str, *, force: bool = False) -> tuple[str, str]:
    """Write `folder`/dibs/SKILL.md. Its path, and what was done. A file that is another is replaced only by force."""
    path = os.path.join(folder, NAME, FILE)
    text = skill_text()
    try:
        found = _read(path)
        if found == text:
            return path, UNCHANGED
        if found is not None and not force:
            raise InvalidInput(
                f"{path} is there already and differs from the skill of this version: nothing was changed. Use --force "
                "to replace it, or --to for another folder."
            )
        _write(path, text)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise InvalidInput(f"{path} cannot be written ({why}). Choose another folder with --to.") from None
    return path, INSTALLED if found is None else REPLACED


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(path: str, text: str) -> None:
    """All of it or nothing: an agent may read it at this moment."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    drafted = f"{path}.{new_id()}"
    try:
        with open(drafted, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(drafted, path)
    except BaseException:
        if os.path.lexists(drafted):
            os.unlink(drafted)
        raise
