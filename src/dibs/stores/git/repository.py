"""Repositories: running git in one, and the files that processes share beside it.

`git` is bounded in time, without prompts, and killed with all its children. dibs may be called from a git hook, whose
environment names an index, a work tree, a quarantine: these are not passed on. The user's configuration for remotes is
passed on: credential helpers, ssh commands, proxies, configuration in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dibs.base import jsontext
from dibs.base.errors import StoreUnavailable
from dibs.base.files import SHARED, lock_file, replace_file
from dibs.base.git_program import LOCAL_MS_MAX, GitResult, run_git

VERSION_MIN = (2, 34)

# Variables that git sets for its hooks, or that would point git at another repository.
_SCRUBBED = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_QUARANTINE_PATH",
    "GIT_PUSH_OPTION_COUNT",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_GRAFT_FILE",
    "GIT_SHALLOW_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_REPLACE_REF_BASE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_REFLOG_ACTION",
    "SSH_ASKPASS",  # a prompt in a window that nobody would see
)
# dibs' own git commands run no hooks, signing or background work of the user.
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.logAllRefUpdates=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
    "push.pushOption=",
    "push.gpgSign=false",
    "advice.pushUpdateRejected=false",
)


class Git:
    """The git program, on one repository. `folder` is where relative addresses start."""

    def __init__(self, git_dir: str, folder: str, extra: Mapping[str, str] | None = None) -> None:
        self.git_dir = git_dir
        self.folder = folder
        self._env = {**environment(), "GIT_DIR": git_dir, **(extra or {})}

    def run(
        self,
        *words: str,
        given: bytes = b"",
        timeout_ms: int = LOCAL_MS_MAX,
        config: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
    ) -> GitResult:
        """Run it until it ends or its time is over. `extra` goes into its environment."""
        env, config = {**self._env, **(extra or {})}, (*_CONFIG, *config)
        return run_git(words, env=env, folder=self.folder, given=given, timeout_ms=timeout_ms, config=config)

    def ask(self, *words: str, given: bytes = b"", config: Sequence[str] = ()) -> bytes:
        """The output of a command that must succeed."""
        result = self.run(*words, given=given, config=config)
        if result.timed_out or result.code:
            why = "took too long" if result.timed_out else result.words
            raise StoreUnavailable(f"git {words[0]} failed in {self.git_dir}: {why}")
        return result.out


def environment(*, keep: tuple[str, ...] = ()) -> dict[str, str]:
    """The caller's environment, without variables that would point git elsewhere or let it prompt."""
    env = {name: value for name, value in os.environ.items() if name not in _SCRUBBED or name in keep}
    env.update(LC_ALL="C", LANGUAGE="C", GIT_TERMINAL_PROMPT="0", SSH_ASKPASS_REQUIRE="never")
    env["GIT_ASKPASS"] = ""  # empty, not absent: then core.askPass is not asked either
    env.update(GIT_OPTIONAL_LOCKS="0", GCM_INTERACTIVE="never")
    return env


def check_version() -> tuple[int, ...]:
    said = run_git(["--version"], env=environment(), folder=None)
    text = said.out.decode("utf-8", "replace").removeprefix("git version ").split()
    numbers = tuple([int(part) for part in (text[0] if text else "").split(".")[:3] if part.isdecimal()])
    if numbers < VERSION_MIN:
        wanted = ".".join(str(number) for number in VERSION_MIN)
        raise StoreUnavailable(
            f"git {' '.join(text) or 'of an unknown version'} is too old for this; dibs needs git {wanted} or newer."
        )
    return numbers


# Files that all processes of a clone share.

LOCKED_MS_MAX = 10_000  # others only read and write one small file under a lock, or use the private repository


@contextmanager
def file_lock(folder: str, name: str, *, shared: bool = False, waits: bool = True) -> Iterator[bool]:
    """Lets one process at a time into what a file of `folder` stands for, or any number of those that are `shared`.
    Says whether the lock was taken; it always is if the process waits for it."""
    path = os.path.join(folder, name)
    try:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreUnavailable(f"{folder} cannot be written: {error.strerror}.") from None
    try:
        try:
            is_taken = lock_file(handle, LOCKED_MS_MAX if waits else 0, shared=shared)
        except OSError as error:
            raise StoreUnavailable(f"{folder} cannot be locked: {error.strerror}.") from None
        if waits and not is_taken:
            raise StoreUnavailable(
                f"Another process has {path} for longer than {LOCKED_MS_MAX // 1000} s. Perhaps it is stopped; end it."
            )
        yield is_taken
    finally:
        os.close(handle)


def load_json(path: str) -> Any:
    """Return what `save_json` wrote; None if there is nothing that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return jsontext.decode(file.read())
    except (OSError, ValueError):
        return None


def save_json(path: str, document: Mapping[str, Any]) -> None:
    try:
        replace_file(path, jsontext.encode(document), mode=SHARED)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error.strerror}.") from None
