"""trust: lets a repository's own settings say where its claims are."""

from __future__ import annotations

import os

from dibs.agents.harness.agent_identity import agents_of
from dibs.agents.repository import trust as listed
from dibs.agents.repository.settings import policy_of
from dibs.agents.repository.work_tree import Repository
from dibs.base.errors import InvalidInput
from dibs.base.files import trusted_path
from dibs.base.redact import without_secrets
from dibs.base.terminal import plain, quoted
from dibs.cli.commands.config import changing_settings
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.registry import AGENT_SIGNS
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import MAYBE, Argument, Command, Option
from dibs.wire.codes import NO


def trust(call: Call) -> Answer:
    if call.values.get("list") and (call.values.get("remove") or call.values.get("path")):
        raise UsageError("--list takes no path, and not --remove.", "trust")
    path = trusted_path(call.env)
    why_not = "" if path is None else listed.why_not(path)
    if call.values.get("list"):
        if why_not:
            raise InvalidInput(f"{path} counts for nothing, because {why_not}. Remove it, or: chmod 600 {path}")
        tops = [top for top, _ in listed.entries(call.env)]
        return yes({"trusted": tops}, "\n".join(map(plain, tops)) or "No repository is trusted.", quiet="\n".join(tops))
    if agents_of(call.env) or any(call.env.get(sign) for sign in AGENT_SIGNS):
        raise InvalidInput(
            "Whom to trust is for a person to say, not for a coding agent. Ask the user to run this in a terminal."
        )
    if why_not:
        raise InvalidInput(f"{path} cannot be relied on, because {why_not}. Remove it, or: chmod 600 {path}")
    folder = call.values.get("path") or "."
    if call.values.get("remove"):
        return _removed(call, folder)
    if not os.path.isdir(folder):
        raise InvalidInput(f"There is no folder {folder!a}.")
    repository = Repository.here(call.env, os.path.realpath(folder))
    before = policy_of(repository).ignored
    entry = listed.entry_of(repository.top, repository.common)
    with changing_settings(path) as place:
        listed.write(place, [*listed.entries(call.env), entry])
    says = [f"  {key} = {quoted(without_secrets(value))}" for key, value in before.items()]
    text = f"{call.paint.good('Trusted')}: {plain(entry[0])}. What its settings say of url and namespace counts now."
    return yes({"trusted": entry[0], "settings": before}, "\n".join([text, *says]))


def _removed(call: Call, folder: str) -> Answer:
    """A folder that is gone is named by its path, as the list has it."""
    gone = os.path.realpath(folder)
    common = ""
    if os.path.isdir(gone):
        try:
            repository = Repository.here(call.env, gone)
            gone, common = listed.entry_of(repository.top, repository.common)
        except InvalidInput:
            pass
    with changing_settings(trusted_path(call.env)) as place:
        before = listed.entries(call.env)
        left = [entry for entry in before if entry[0] != gone and entry[1] != common]
        if len(left) == len(before):
            text = f"{plain(gone)} is not trusted."
            return no(NO, {"path": gone}, text, code="not_found", message=text)
        listed.write(place, left)
    return yes({"removed": gone}, f"{plain(gone)} is not trusted any more.")


COMMANDS = {
    "trust": Command(
        trust,
        Argument("PATH", "a folder in the repository (default: the current one)", takes=MAYBE, completes="file"),
        Option("--list", "show the list"),
        Option("--remove", "trust it no more"),
        summary="let a repository's settings say where its claims are",
        about=(
            "A repository may come from anybody, with its .git. So its `url` and `namespace` (git config "
            "dibs.KEY, dibs/config.toml in the git folder, a tracked .dibs.toml) count only if you trust "
            "it; other settings always count. The list has real paths, in `trusted` beside your "
            "config.toml. Linked work trees are trusted with their repository, submodules are not. Tokens "
            "go to such a server only if you saved them for it, with `dibs login`."
        ),
        examples=(
            ("dibs trust", "the repository around"),
            ("dibs trust --list", "those that are trusted"),
            ("dibs trust --remove ~/src/app", "not any more"),
        ),
        exits=(
            (0, "done"),
            (1, "it was not trusted"),
            (64, "no repository is there, or a coding agent asks"),
        ),
    ),
}
