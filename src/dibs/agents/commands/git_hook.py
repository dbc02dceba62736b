"""hook install, uninstall, run: checks of commits and pushes against path: and repo: claims."""

from __future__ import annotations

import os
import sys

from dibs.agents.git import hook_check, hook_files
from dibs.agents.repository.settings import not_heeded, policy_of
from dibs.agents.repository.work_tree import Repository
from dibs.base.errors import FATE_UNKNOWN, HookRefused, InvalidInput
from dibs.base.jsontext import Document
from dibs.base.own_program import own_program
from dibs.base.redact import without_secrets
from dibs.cli.framework.context import Call, say_notices
from dibs.cli.framework.flags import PROOF, TTL, proof, put, ttl_seconds
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, no, yes
from dibs.cli.framework.spec import ANY, Argument, Command, Option
from dibs.client.embedded import EmbeddedTransport
from dibs.wire.codes import NO

# git push: pushes the branch and the claim together, so that the remote refuses the code of a former owner.

_NOTHING = "Nothing was pushed."


def push(call: Call) -> Answer:
    name: str = call.values["job"]
    words: list[str] = call.values.get("target") or []
    if len(words) > 2:
        raise UsageError("git push takes a remote and a branch.", call.command)
    remote, branch = words[0] if words else "origin", words[1] if len(words) > 1 else None
    document = proof(call)
    put(document, "ttl_seconds", ttl_seconds(call))
    url = call.settings.url or f"git:{remote}"
    if url.partition("?")[0] != f"git:{remote}":
        raise InvalidInput(
            f"The claim is at {without_secrets(url)} and the branch goes to {remote}. Both must be at one remote."
        )
    transport = EmbeddedTransport.at(url, call.settings.namespace)
    try:
        from dibs.client.store_admin import push_branch

        reply = push_branch(transport, name, document, branch, os.getcwd())
    except HookRefused as error:
        text = f"{error.details} {_NOTHING}"
        return Answer(NO, {}, text, code="hook_refused", message=text, is_error=True)
    finally:
        say_notices(transport, call.stderr)
        transport.close()
    if is_failure(reply):
        answer = failure(reply)
        if FATE_UNKNOWN not in answer.text:
            answer.text = answer.message = f"{answer.text.rstrip('.')}. {_NOTHING}"
        return answer
    body: Document = reply.body or {}
    pushed = body["pushed"]
    what = "was there already" if pushed["before"] == pushed["after"] else f"is now at {pushed['after'][:12]}"
    return yes(body, f"{call.paint.good('Pushed')}: {pushed['branch']} {what}, and {name} is still yours.")


_WORDS = {
    "made": "put in place",
    "renewed": "already installed and up to date",
    "chained": "installed; the earlier hook runs first",
    "removed": "taken away",
    "restored": "removed; the earlier hook is restored",
    "none": "not a dibs hook, or not there",
}
_STATES = {
    "in place": "in place",
    "chained": "installed; the earlier hook runs first",
    "called": "installed: your own hook calls `dibs hook run`",
    "legacy": "installed: pre-commit runs it",
    "overwritten": "OVERWRITTEN by another program, or git uses another folder now: dibs does not run",
    "absent": "not in place",
    "not executable": "not executable: dibs does not run",
}
_REMEDY = (
    "`dibs hook install` installs them again; the hook that is there now runs first. It may be overwritten again: "
    'to prevent that, add `dibs hook run pre-commit "$@"` to the commands of the other program.'
)


def install(call: Call) -> Answer:
    repository = Repository.here(call.env)
    policy = policy_of(repository)  # an invalid setting is reported now, not at the next commit
    folder = hook_files.place_of(repository)
    done = hook_files.install(folder, _program(call, folder, repository.common))
    hook_check.note_installed(repository, folder)
    document = {"folder": folder, "hooks": done, "policy": policy.policy, "policy_from": policy.source}
    after = f"Policy: {policy.policy} ({policy.source}). To change it: git config dibs.policy require"
    # Hooks are installed by anybody who works here, a coding agent too; to trust the repository is another decision.
    left = f"But {ignored}" if (ignored := not_heeded(policy)) else ""
    return yes(document, "\n".join([*_lines(folder, done, _WORDS), after, *([left] if left else [])]))


def uninstall(call: Call) -> Answer:
    repository = Repository.here(call.env)
    folder = hook_files.place_of(repository)
    done = hook_files.uninstall(folder)
    hook_check.note_uninstalled(repository)
    return yes({"folder": folder, "hooks": done}, "\n".join(_lines(folder, done, _WORDS)))


def _lines(folder: str, hooks: Document, words: dict[str, str]) -> list[str]:
    return [f"Hooks in {folder}:", *[f"  {hook:<23}{words[state]}" for hook, state in hooks.items()]]


def status(call: Call) -> Answer:
    repository = Repository.here(call.env)
    policy, found, folder = policy_of(repository), hook_check.states(repository), repository.hooks()
    namespace = call.settings.namespace or policy.place["namespace"]
    document = {"folder": folder, "hooks": found, "policy": policy.policy, "policy_from": policy.source}
    document["namespace"] = namespace
    lines = [*_lines(folder, found, _STATES), f"Policy: {policy.policy} ({policy.source}).", f"Namespace: {namespace}"]
    if ignored := not_heeded(policy):
        lines.append(f"But {ignored}")
    # The third one only notes whose the entries of the stash are: who never wanted it misses no check.
    unwanted = (hook_files.STASH, hook_check.ABSENT)
    gone = {
        hook: state for hook, state in found.items() if state not in hook_check.RUNNING and (hook, state) != unwanted
    }
    if not gone:
        return yes(document, "\n".join(lines))
    lines.append(_REMEDY if hook_check.OVERWRITTEN in gone.values() else "`dibs hook install` installs them.")
    message = "; ".join(f"{hook}: {_STATES[state]}" for hook, state in gone.items())
    return no(NO, document, "\n".join(lines), code="hooks_not_in_place", message=message)


def _program(call: Call, hooks: str, common: str) -> str:
    """Return how a hook runs dibs: by its full path, because a hook may run without this PATH. Hooks in the work tree
    may be tracked by git, so they get no path of this machine."""
    import shutil

    if not os.path.realpath(hooks).startswith(os.path.realpath(common) + "/"):
        return "dibs"
    started = os.path.abspath(sys.argv[0])
    words = [started]
    if os.path.basename(started) != "dibs" or not os.access(started, os.X_OK):
        found = shutil.which("dibs", path=call.env.get("PATH"))
        words = [found] if found else own_program()
    # The hook parts its words at spaces.
    return "dibs" if any(" " in word for word in words) else " ".join(words)


COMMANDS = {
    "git push": Command(
        push,
        Argument("TARGET", "the remote, then the branch (default: origin and the branch checked out)", takes=ANY),
        Option("--job JOB", "the job that the branch belongs to", completes="job", required="job"),
        *PROOF,
        TTL,
        summary="push a branch only if the job is still yours",
        about=(
            "Pushes the branch and renews the claim in one atomic push. If somebody has taken over the job, "
            "the remote refuses your branch. The claim must be at the same remote (--url git:REMOTE, which "
            "is the default here). Never forces: the branch must be ahead of the remote's. The clone's "
            "pre-push hook runs first."
        ),
        examples=(
            ("dibs git push origin fix-1842 --job issue-1842 --actor agent-7", "the work is done"),
            ("dibs git push --job issue-1842", "inside a session"),
        ),
        exits=(
            (0, "pushed, and the claim was renewed"),
            (1, "the pre-push hook refused; nothing was pushed"),
            (2, "the job is not yours any more; nothing was pushed"),
            (64, "somebody pushed to the branch, or there is no such branch; nothing was pushed"),
            (69, "the remote cannot be reached"),
            (77, "the remote refused the push"),
        ),
    ),
    "hook install": Command(
        install,
        summary="check commits and pushes against path claims",
        about=(
            "Installs a pre-commit and a pre-push hook where git looks for them, also with core.hooksPath, and a "
            "reference-transaction hook, which notes which coding agent pushes to the stash. "
            "An existing hook is kept and runs first. The policy is off, warn (the default) or require: "
            "`git config dibs.policy`, dibs/config.toml in the git folder, or a tracked .dibs.toml for the "
            "whole team."
        ),
        examples=(
            ("dibs hook install", "in a clone"),
            ("git config dibs.policy require", "and refuse"),
        ),
        exits=(
            (0, "in place"),
            (64, "it is not possible here; the message says why"),
        ),
    ),
    "hook uninstall": Command(
        uninstall,
        summary="remove the hooks, and restore the earlier ones",
        examples=(("dibs hook uninstall", "in a clone"),),
        exits=(
            (0, "as before"),
            (64, "it is not possible here; the message says why"),
        ),
    ),
    "hook status": Command(
        status,
        summary="show whether the hooks run, and their settings",
        about=(
            "Programs that manage hooks (husky, lefthook, pre-commit) may overwrite the hooks of dibs, or "
            "make git use another folder. This checks the hooks that git uses now. `dibs doctor` does the "
            "same once they were installed."
        ),
        examples=(("dibs hook status", "in a clone"),),
        exits=(
            (0, "they run"),
            (1, "one of the hooks does not run"),
            (64, "it is not possible here; the message says why"),
        ),
    ),
    "hook run": Command(
        hook_check.run,
        Argument("HOOK", "which hook", choices=hook_files.HOOKS),
        Argument("ARGUMENT", "what git passes to the hook", takes=ANY),
        summary="what the hooks run: check changed paths against claims",
        about=(
            "Notes whose a new entry of the stash is (reference-transaction). Checks the staged paths "
            "(pre-commit), or the paths of all commits that are new to the remote (pre-push), against live "
            "path: and repo: claims. Your own claims are those of DIBS_SESSION, "
            "DIBS_ACTOR and DIBS_LEASE, and those that `dibs lock` or `dibs claim --staged` made in this "
            "shell."
        ),
        examples=(
            ("dibs hook run pre-commit", "check a commit without making it"),
            ('dibs hook run pre-push "$@"', "from a hook of your own"),
        ),
        exits=(
            (0, "no claim is violated, or the policy only warns"),
            (1, "the policy is require, and a claim is violated"),
            (64, "not in a repository, or invalid setting"),
            (69, "the claims cannot be read, and the setting is to block"),
        ),
    ),
}
