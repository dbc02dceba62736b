"""skill show, skill install: the page that teaches agents to use dibs."""

from __future__ import annotations

import os

from dibs.agents.commands.agent_install import read_file, write_file
from dibs.agents.repository.file_paths import check_stays_inside
from dibs.agents.shipped_files import (
    ABSENT,
    CHANGED,
    CURRENT,
    FILE,
    FOLDERS,
    NAME,
    OLDER,
    skill_text,
    state_of,
)
from dibs.base.errors import InvalidInput
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import Command, Option


def show(call: Call) -> Answer:
    text = skill_text()
    return yes({"name": NAME, "skill": text}, text.rstrip("\n"), quiet=text.rstrip("\n"))


def install(call: Call) -> Answer:
    """Write dibs/SKILL.md below each folder. Without --force, one that somebody changed stops the installation."""
    to, text = call.values.get("to"), skill_text()
    if to == "":
        raise UsageError("--to needs a folder of skills, such as .claude/skills.", "skill install")
    # One for every client whose folder exists, else the first.
    usual = [folder for folder in FOLDERS if os.path.isdir(os.path.dirname(folder))] or [FOLDERS[0]]
    done: dict[str, str] = {}
    for folder in usual if to is None else [to]:
        path = check_stays_inside(os.path.join(folder, NAME, FILE))
        done[path] = _DONE_OF[state_of(read_file(path), text)]
        if done[path] == "replaced" and not call.values.get("force"):
            raise InvalidInput(
                f"{path} was changed by somebody, or is of a newer dibs; nothing was changed. Use --force to replace "
                "it, or --to for another folder."
            )
    for path, what in done.items():
        if what != "unchanged":
            write_file(path, text)
    files = [{"path": path, "done": what} for path, what in done.items()]
    shown = "\n".join(_DONE[what].format(path) for path, what in done.items())
    return yes({"files": files}, shown, quiet="\n".join(done))


_DONE_OF = {ABSENT: "installed", CURRENT: "unchanged", OLDER: "updated", CHANGED: "replaced"}
_DONE = {
    "installed": "Installed {}.",
    "updated": "Brought {} up to date.",
    "replaced": "Replaced {}, which was another version.",
    "unchanged": "{} is up to date: nothing was changed.",
}


COMMANDS = {
    "skill show": Command(
        show,
        summary="print the skill that teaches agents to use dibs",
        about="Prints this version's SKILL.md, in the agent-skills format.",
        examples=(("dibs skill show >> AGENTS.md", "into any prompt"),),
        exits=((0, "printed"),),
    ),
    "skill install": Command(
        install,
        Option("--to DIR", "the folder of skills", completes="file"),
        Option("--force", "replace a file that differs"),
        summary="install the skill where agents find it",
        about=(
            "Writes dibs/SKILL.md into .claude/skills and .agents/skills of the current folder, for each of "
            ".claude and .agents that exists; if neither does, into .claude/skills. A file of an older version "
            "is brought up to date. One that you changed is kept unless --force is given."
        ),
        examples=(
            ("dibs skill install", "for this project"),
            ("dibs skill install --to ~/.claude/skills", "for all projects of this user"),
        ),
        exits=(
            (0, "the skill is installed"),
            (64, "a different file is there, or the file cannot be written"),
        ),
    ),
}
