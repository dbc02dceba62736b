"""The meaning of a `git:` URL, and what the store can do.

A URL names a clone or a remote:

    git:                     this clone and all its worktrees
    git:origin               a remote of this clone, reached with the clone's own configuration
    git+ssh://host/repo.git  a remote by its address; also git+https://, git+http://, git+file://

Options may follow the address: `?prefix=refs/heads/dibs&skew=5m&timeout=1m`.

A remote's records are kept in a private bare repository, in `dibs/` of the clone's git folder or in the user's state
folder: no object, ref or file of the user's clone is touched. That repository includes the clone's configuration.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from dibs.base.checkout import root_around
from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.base.files import state_folder
from dibs.base.git_program import run_git
from dibs.base.redact import without_secrets
from dibs.core.durations import parse_duration
from dibs.core.limits import GIT_FILE_POLL_MS, GIT_LOCAL_POLL_MS, GIT_MS_MAX, GIT_POLL_MS, GIT_SKEW_MS
from dibs.stores.git.repository import Git, check_version, environment
from dibs.stores.port import Capabilities

_NO_ORDER = "number the events of different jobs in one order: every claim would have to wait for every other"
_NO_CREDIT = "give credit for an outage: there is no server to notice one"
_CLOCK = "each machine's own; a record's age counts from its first sight, or by the remote's clock less 15 minutes"

LOCAL = Capabilities(
    name="git",
    clock=_CLOCK,
    reach="host",
    watch="polling",
    durable=True,
    one_log=False,
    gapless=False,
    serves=False,
    poll_ms=200,
    cannot=(_NO_ORDER, _NO_CREDIT, "be used by a server: SQLite is far faster"),
)
REMOTE = LOCAL.replace(
    name="git remote",
    reach="network",
    poll_ms=5_000,
    cannot=(
        _NO_ORDER,
        _NO_CREDIT,
        "hand a job over within a second: waiters look every 5 seconds (every second on a `file://` remote)",
        "be used by a server: its beats would be several pushes a second",
        "be more durable than the remote's own git",
    ),
)


PREFIX = "refs/dibs"
HEADS_PREFIX = "refs/heads/dibs"  # for hosts that accept only branches
ADDRESSES = ("git+file://", "git+ssh://", "git+https://", "git+http://")
_OPTIONS = {"prefix": "DIBS_GIT_PREFIX", "skew": "DIBS_GIT_SKEW", "timeout": "DIBS_GIT_TIMEOUT"}
_FORBIDDEN = frozenset(" ~^:?*[\\\x7f")


class GitLocation:
    """The location of records, and how to reach them. `remote` is empty for the clone itself."""

    def __init__(self, url: str, git: Git, folder: str, remote: str, options: Mapping[str, str]) -> None:
        self.shown = without_secrets(url)  # the URL, for people
        self.git = git
        self.folder = folder  # for the clock and the lock
        self.remote = remote
        self.prefix = check_prefix(options.get("prefix") or PREFIX)
        self.skew_ms = parse_duration(options["skew"], "skew") if options.get("skew") else GIT_SKEW_MS
        self.skew_is_stated = bool(options.get("skew"))
        self.timeout_ms = parse_duration(options["timeout"], "time-out") if options.get("timeout") else GIT_MS_MAX
        self.poll_ms = GIT_LOCAL_POLL_MS
        self.include = ""  # the clone's configuration, for the private repository
        self.name = ""  # the remote's, if it has one
        self.address = remote  # where that is

    @property
    def is_local(self) -> bool:
        return not self.remote

    @property
    def objects(self) -> str:
        """The folder of the objects, if it is on a file system; else empty."""
        if self.is_local:
            return os.path.join(self.git.git_dir, "objects")
        if not _is_file(self.address):
            return ""
        folder = os.path.join(self.git.folder, self.address.removeprefix("file://"))
        inner = os.path.join(folder, ".git", "objects")
        return inner if os.path.isdir(inner) else os.path.join(folder, "objects")


def location_of(url: str, folder: str | None = None) -> GitLocation:
    """The location that `url` names, seen from `folder`. Asks git, but does not use the network."""
    address, options = _split(url)
    if address.startswith(ADDRESSES):
        check_version()
        address = address.removeprefix("git+")
        if not address.partition("://")[2].strip("/"):
            raise InvalidInput(f"{without_secrets(url)!r} names no repository.")
        return _private(url, address, address, os.path.join(state_folder(), "git"), options, os.path.sep)
    if not address.startswith("git:"):
        raise InvalidInput(
            f"{without_secrets(url)!r} names no git store. These do: git:, git:origin, {', '.join(ADDRESSES)}…"
        )
    check_version()
    common, top = _clone_at(folder or os.getcwd())
    clone = Git(common, top)
    configured = clone.run("config", "--get", "dibs.prefix").out.decode("utf-8", "replace").strip()
    if configured:
        options.setdefault("prefix", configured)
    name = address.removeprefix("git:")
    if not name:
        return GitLocation(url, clone, os.path.join(common, "dibs", "local"), "", options)
    return _by_name(url, clone, name, options)


def _split(url: str) -> tuple[str, dict[str, str]]:
    address, mark, query = url.partition("?")
    options: dict[str, str] = {}
    for part in query.split("&") if mark else ():
        key, equals, value = part.partition("=")
        if key not in _OPTIONS or not equals or not value:
            known = ", ".join([f"{name}=" for name in _OPTIONS])
            raise InvalidInput(f"{without_secrets(part)!r} is no option of a git store. Options are: {known}.")
        options[key] = value
    for key, variable in _OPTIONS.items():
        if key not in options and os.environ.get(variable):
            options[key] = os.environ[variable]
    return address, options


def _clone_at(folder: str) -> tuple[str, str]:
    """The common git folder of the clone that `folder` is in, and where its relative addresses start."""
    # Inside a hook git names the repository; a user may, too.
    env = environment(keep=("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR"))
    root = root_around(env, folder)
    if root is None:
        raise _not_in_clone(folder)
    said = run_git(["rev-parse", "--path-format=absolute", "--git-common-dir"], env=env, folder=root or folder)
    if "dubious ownership" in said.err:
        raise StoreUnavailable(f"git does not trust this clone: {said.words}")
    if said.code:
        raise _not_in_clone(folder)
    common = os.fsdecode(said.out).removesuffix("\n")
    return common, os.path.dirname(common) if os.path.basename(common) == ".git" else common


def _not_in_clone(folder: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{folder} is not in a git clone. Go into one, or name a remote: git+ssh://HOST/PATH. "
        "A bare repository is named by GIT_DIR."
    )


def _by_name(url: str, clone: Git, name: str, options: dict[str, str]) -> GitLocation:
    pushed = [] if name.startswith("-") else _addresses(clone, name, "--push")
    if not pushed:
        known = clone.run("remote").out.decode("utf-8", "replace").split()
        has = f"It has: {', '.join(known)}." if known else "It has none; `git remote add` makes one."
        raise InvalidInput(f"This clone has no remote {name!r}. {has}")
    if len(pushed) > 1:
        raise InvalidInput(
            f"The remote {name!r} has {len(pushed)} push addresses, and a claim can only be in one. Name it: git+URL."
        )
    # If they differ, claims must be read from where they are written.
    remote = name if _addresses(clone, name) == pushed else pushed[0]
    folder = os.path.join(clone.git_dir, "dibs", "remotes")
    location = _private(url, pushed[0], remote, folder, options, clone.folder)
    location.include = os.path.join(clone.git_dir, "config")
    location.name = name
    return location


def _addresses(clone: Git, name: str, *flags: str) -> list[str]:
    return os.fsdecode(clone.run("remote", "get-url", "--all", *flags, name).out).splitlines()


def _private(url: str, address: str, remote: str, parent: str, options: dict[str, str], start: str) -> GitLocation:
    prefix = options.get("prefix") or PREFIX
    folder = os.path.join(parent, hashlib.sha256(f"{without_secrets(address)}\0{prefix}".encode()).hexdigest()[:16])
    is_ssh = address.startswith("ssh://") or ("://" not in address and ":" in address.partition("/")[0])
    git = Git(os.path.join(folder, "repo.git"), start, _ssh_env(start) if is_ssh else None)
    location = GitLocation(url, git, folder, remote, options)
    location.address = address
    location.poll_ms = GIT_FILE_POLL_MS if _is_file(address) else GIT_POLL_MS
    return location


def _is_file(address: str) -> bool:
    return address.startswith(("/", ".", "file://"))


def _ssh_env(start: str) -> dict[str, str]:
    """ssh in batch mode, unless the user configured an ssh command."""
    if os.environ.get("GIT_SSH_COMMAND") or os.environ.get("GIT_SSH"):
        return {}
    found = run_git(["config", "--get", "core.sshCommand"], env=environment(), folder=start)
    return {} if found.out.strip() else {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}


def check_prefix(prefix: str) -> str:
    """A valid prefix for refs that is used by nobody else."""
    parts = prefix.strip("/").split("/")
    depth = 3 if parts[:2] in (["refs", "heads"], ["refs", "tags"]) else 2
    bad = any(
        not part or part.startswith(".") or part.endswith((".", ".lock")) or ".." in part or "@{" in part
        for part in parts
    )
    if bad or parts[0] != "refs" or len(parts) < depth or set(prefix) & _FORBIDDEN or not prefix.isprintable():
        raise InvalidInput(f"{prefix!r} cannot be a prefix of refs. Use refs/dibs, or refs/heads/dibs.")
    return "/".join(parts)
