"""A branch in the same push as a claim: the server accepts both or neither.

So a worker that lost its job while it was paused cannot publish its work: its claim's ref has changed, and the server
refuses the whole push, including the branch. The branch is pushed as by `git push` without force: its old commit must
be an ancestor of the new one, and must not change before the push arrives.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from dibs.base.errors import HookRefused, InvalidInput
from dibs.base.git_program import GitResult, run_git
from dibs.base.record import Record
from dibs.base.redact import without_secrets
from dibs.stores.git.errors import unreachable
from dibs.stores.git.location import GitLocation
from dibs.stores.git.repository import environment

HOOK_MS_MAX = 3600 * 1000


class BranchUpdate(Record):
    """A ref of the user, by its full name, with its expected and new value. `env` tells git where objects are."""

    name: str
    old: str
    new: str
    env: Mapping[str, str]

    def check(self, location: GitLocation) -> None:
        """Raise InvalidInput if the branch is the reason that a push was refused."""
        if _at_remote(location, self.name) not in (self.old, self.new):
            raise InvalidInput(
                f"Somebody pushed to {self.name} at the same moment. Your claim is as it was. "
                "Fetch, rebase, and try again."
            )


def branch_update_for(location: GitLocation, branch: str | None, folder: str) -> BranchUpdate:
    """The update of a branch of the clone at `folder`. Runs the clone's pre-push hook, as a push would."""
    if location.is_local:
        raise InvalidInput("git: is this clone itself, and nothing is pushed to it. Name a remote: --url git:origin.")
    clone = _Clone(folder)
    branch = branch or clone.say("symbolic-ref", "--short", "--quiet", "HEAD")
    if not branch:
        raise InvalidInput("No branch is checked out here. Name one: dibs git push origin BRANCH --job JOB.")
    new = clone.say("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}")
    if not new:
        raise InvalidInput(f"This clone has no branch {branch!r}.")
    name = f"refs/heads/{branch}"
    old = _at_remote(location, name)
    if old and old != new and clone.run("merge-base", "--is-ancestor", old, new).code:
        where = without_secrets(location.remote)
        raise InvalidInput(
            f"{branch} at {where} is not where this clone's began: somebody pushed to it. Your claim is as it was. "
            f"Run: git pull --rebase {where} {branch}"
        )
    if old != new:
        clone.ask_hook(location.remote, f"{name} {new} {name} {old or '0' * len(new)}\n")
    return BranchUpdate(name=name, old=old, new=new, env=clone.lead())


def _at_remote(location: GitLocation, name: str) -> str:
    said = location.git.run("ls-remote", location.remote, name, timeout_ms=location.timeout_ms)
    if said.code or said.timed_out:
        raise unreachable(location, said)
    found = [line.split("\t") for line in said.out.decode("utf-8", "replace").splitlines()]
    return next((oid for oid, found_name in found if found_name == name), "")


class _Clone:
    """The user's clone, only for reading."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._env = environment(keep=("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR"))

    def run(self, *words: str) -> GitResult:
        return run_git(words, env=self._env, folder=self._folder)

    def say(self, *words: str) -> str:
        return os.fsdecode(self.run(*words).out).strip()

    def path(self, name: str) -> str:
        return self.say("rev-parse", "--path-format=absolute", "--git-path", name)

    def lead(self) -> dict[str, str]:
        """The environment by which git finds the clone's objects from another repository."""
        env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": self.path("objects")}
        shallow = self.path("shallow")
        if os.path.exists(shallow):
            env["GIT_SHALLOW_FILE"] = shallow
        return env

    def ask_hook(self, remote: str, line: str) -> None:
        hook = self.path("hooks/pre-push")
        if not os.access(hook, os.X_OK):
            return
        top = self.say("rev-parse", "--show-toplevel") or self._folder
        words = [hook, remote, self.say("remote", "get-url", "--push", remote) or remote]
        code = _run_hook(words, top, line)
        if code:
            raise HookRefused(
                f"The pre-push hook of this clone said no (exit {code}): {hook}. What it said stands above."
            )


def _run_hook(words: list[str], top: str, line: str) -> int:
    """Run it as git does, in the caller's environment and terminal. Its output goes to standard error."""
    try:
        os.fstat(2)
        said: int = 2
    except OSError:
        said = subprocess.DEVNULL
    try:
        ran = subprocess.run(
            words, input=line.encode(), stdout=said, stderr=said, cwd=top, check=False, timeout=HOOK_MS_MAX / 1000
        )
    except subprocess.TimeoutExpired:
        raise HookRefused(f"The pre-push hook of this clone took more than an hour: {words[0]}.") from None
    except OSError as error:
        raise HookRefused(f"The pre-push hook of this clone cannot be run: {error.strerror}: {words[0]}.") from None
    return ran.returncode
