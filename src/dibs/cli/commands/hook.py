"""hook install, uninstall, run: checks of commits and pushes against path: and repo: claims."""

from __future__ import annotations

from dibs.cli.framework.result import no, yes
from dibs.cli.framework.spec import ANY, Argument, Command
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

_WORDS = {
    "made": "put in place",
    "renewed": "was there, and is up to date",
    "chained": "put in place; the hook that was there runs first",
    "removed": "taken away",
    "restored": "taken away; the hook that was there is back",
    "none": "was not dibs's, or not there",
}
_STATES = {
    "in place": "in place",
    "chained": "in place; the hook that was there runs first",
    "called": "in place: `dibs hook run` is called by hand",
    "legacy": "in place: pre-commit runs it",
    "overwritten": "OVERWRITTEN by another program, or git looks elsewhere now: dibs does not run",
    "absent": "not in place",
    "not executable": "there, and not executable: dibs does not run",
}
_REMEDY = (
    "`dibs hook install` puts them back; the hook that is there now runs first. What overwrote them may do so again: "
    'to be safe from that, put `dibs hook run pre-commit "$@"` where it keeps your own commands.'
)


def install(call: Call) -> Answer:
    from dibs.cli.git import hook_files as hookfiles
    from dibs.cli.git.hook_status import note_installed
    from dibs.repository.settings import policy_of
    from dibs.repository.work_tree import Repository

    repository = Repository.here(call.env)
    policy = policy_of(repository)  # a setting that cannot be meant is told now, not at the next commit
    folder = hookfiles.place_of(repository)
    done = hookfiles.install(folder, _program(call, folder, repository.common))
    note_installed(repository, folder)
    document = {"folder": folder, "hooks": done, "policy": policy.policy, "policy_from": policy.source}
    lines = [f"  {hook:<12}{_WORDS[word]}" for hook, word in done.items()]
    after = f"Policy: {policy.policy} ({policy.source}). To change it: git config dibs.policy require"
    return yes(document, "\n".join([f"Hooks in {folder}:", *lines, after]))


def uninstall(call: Call) -> Answer:
    from dibs.cli.git import hook_files as hookfiles
    from dibs.cli.git.hook_status import note_uninstalled
    from dibs.repository.work_tree import Repository

    repository = Repository.here(call.env)
    folder = hookfiles.place_of(repository)
    done = hookfiles.uninstall(folder)
    note_uninstalled(repository)
    lines = [f"  {hook:<12}{_WORDS[word]}" for hook, word in done.items()]
    document = {"folder": folder, "hooks": done}
    return yes(document, "\n".join([f"Hooks in {folder}:", *lines]))


def status(call: Call) -> Answer:
    from dibs.cli.git.hook_status import OVERWRITTEN, RUNNING, states
    from dibs.repository.settings import policy_of
    from dibs.repository.work_tree import Repository

    repository = Repository.here(call.env)
    policy, found, folder = policy_of(repository), states(repository), repository.hooks()
    namespace = call.settings.namespace or policy.place["namespace"]
    document = {"folder": folder, "hooks": found, "policy": policy.policy, "policy_from": policy.source}
    document["namespace"] = namespace
    lines = [f"Hooks in {folder}:", *[f"  {hook:<12}{_STATES[state]}" for hook, state in found.items()]]
    lines += [f"Policy: {policy.policy} ({policy.source}).", f"Namespace: {namespace}"]
    if all(state in RUNNING for state in found.values()):
        return yes(document, "\n".join(lines))
    lines.append(_REMEDY if OVERWRITTEN in found.values() else "`dibs hook install` puts them in place.")
    message = "; ".join(f"{hook}: {_STATES[state]}" for hook, state in found.items() if state not in RUNNING)
    return no(NO, document, "\n".join(lines), code="hooks_not_in_place", message=message)


def run(call: Call) -> Answer:
    from dibs.cli.git.hook_check import run as run_hook

    return run_hook(call)


def _program(call: Call, hooks: str, common: str) -> str:
    """How a hook runs dibs: by its full path, because a hook may run without this PATH. Hooks that lie in the work tree
    may be tracked, and then no path of this machine belongs into them."""
    import os
    import shutil
    import sys

    if not os.path.realpath(hooks).startswith(os.path.realpath(common) + "/"):
        return "dibs"
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) != "dibs" or not os.access(started, os.X_OK):
        started = shutil.which("dibs", path=call.env.get("PATH")) or f"{sys.executable} -m dibs"
    return "dibs" if " " in started.removesuffix(" -m dibs") else started


COMMANDS = {
    "hook install": Command(
        "hook install",
        "check commits and pushes against path claims",
        install,
        about=(
            "Puts a pre-commit and a pre-push hook where git looks for them (core.hooksPath counts). A hook that is "
            "there is kept beside ours and runs first. The policy is off, warn (the default) or require: "
            "`git config dibs.policy`, dibs/config.toml in the git folder, or a tracked .dibs.toml for the whole team."
        ),
        examples=(("in a clone", "dibs hook install"), ("and refuse", "git config dibs.policy require")),
        exits=((0, "in place"), (64, "it cannot be done here, and why")),
    ),
    "hook uninstall": Command(
        "hook uninstall",
        "take the hooks away, and put back what was there",
        uninstall,
        examples=(("in a clone", "dibs hook uninstall"),),
        exits=((0, "as before"), (64, "it cannot be done here, and why")),
    ),
    "hook status": Command(
        "hook status",
        "show whether the hooks run, and their settings",
        status,
        about=(
            "Programs that manage hooks (husky, lefthook, pre-commit) may put theirs over ours, or tell git to look "
            "elsewhere. This looks where git looks now. `dibs doctor` says so, too, once they were put in place."
        ),
        examples=(("in a clone", "dibs hook status"),),
        exits=((0, "both run"), (1, "one of them does not"), (64, "it cannot be told here, and why")),
    ),
    "hook run": Command(
        "hook run",
        "what the hooks run: check changed paths against claims",
        run,
        about=(
            "Staged paths (pre-commit), or those of all commits that are new to the remote (pre-push, which reads what "
            "git writes), against live path: and repo: claims. Yours are those of DIBS_SESSION, those that `dibs lock` "
            "or `dibs claim --staged` took in the shell that runs git or as DIBS_ACTOR, and those of DIBS_LEASE."
        ),
        arguments=(
            Argument("HOOK", "which hook", choices=("pre-commit", "pre-push")),
            Argument("ARGUMENT", "what git passes to the hook", takes=ANY),
        ),
        examples=(
            ("what would be said about a commit now", "dibs hook run pre-commit"),
            ("from a hook of your own", 'dibs hook run pre-push "$@"'),
        ),
        exits=(
            (0, "nothing is in the way, or the policy only warns"),
            (1, "the policy is require, and something is"),
            (64, "not in a repository, or invalid setting"),
            (69, "the claims cannot be looked at, and the setting is to block"),
        ),
    ),
}
