"""Finds files of dibs in projects, as some version of it wrote them: the skill, and the plugin for opencode.

`shipped_files.txt` has the digest of every text that was ever shipped. A file with one of these was changed by nobody,
so another version may replace it or take it away. Git may have changed how its lines end: that is no change.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Iterator, Mapping
from dibs.base.files import content
from dibs.base.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.commands.doctor import Findings

NAME = "dibs"
FILE = "SKILL.md"
# Where clients look for the skills of a project, or of a user. The first is used if none of them exists.
FOLDERS = (".claude/skills", ".agents/skills")
ABSENT, CURRENT, OLDER, CHANGED = "absent", "current", "older", "changed"
_BYTES_MAX = 1024 * 1024


def _own(*path: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), *path), encoding="utf-8") as file:
        return file.read()


def skill_text() -> str:
    return _own("skill", FILE)


def state_of(text: str | None, current: str) -> str:
    """Return what a file is that should say `current`: absent, current, older (and untouched), or changed."""
    if text is None:
        return ABSENT
    text = text.replace("\r\n", "\n")
    if text == current:
        return CURRENT
    from hashlib import sha256

    digest = sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return OLDER if digest in [line.partition(" ")[0] for line in _own("shipped_files.txt").splitlines()] else CHANGED


def skills_installed(env: Mapping[str, str], *, user: bool) -> Iterator[tuple[str, str]]:
    """The skills of dibs in the current folder, or of the user: path, and state."""
    top, current = env.get("HOME") or "" if user else "", skill_text()
    for folder in FOLDERS if top or not user else ():
        path = os.path.join(top, folder, NAME, FILE)
        found = content(path, _BYTES_MAX)
        if found is not None:
            yield path, state_of(found.decode("utf-8", "surrogateescape"), current)


def diagnose(found: Findings, env: Mapping[str, str]) -> None:
    """For `dibs doctor`: skills that teach what another version does."""
    for user in (False, True):
        for path, state in skills_installed(env, user=user):
            if state == CURRENT:
                found.good("skill", f"{plain(path)} is the one of this version")
            elif state == OLDER:
                to = f" --to {os.path.dirname(os.path.dirname(path))}" if user else ""
                found.look("skill", f"{plain(path)} is of an older dibs: `dibs skill install{plain(to)}` renews it")
            else:
                found.look("skill", f"{plain(path)} was changed by somebody: compare it with `dibs skill show`")
