"""Asks git: for the folders of a repository, which paths are staged, which are about to be pushed. It asks the git
program, with NUL bytes between names, so that no name is misread. The environment is passed on: in a hook it names the
index and the work tree. Changes nothing, reaches no network, and runs no program that the repository itself configures:
the repository may be an archive that was unpacked a moment ago.
"""

from __future__ import annotations

import os

from dibs.agents.repository.file_paths import recorded_paths
from dibs.base.cheap import Iterable, Mapping, Sequence
from dibs.base.checkout import first_line, root_around
from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.base.files import content
from dibs.base.git_program import GitResult, run_git
from dibs.base.ids import digest
from dibs.base.terminal import quoted
from dibs.client.setting_sources import CLONE, USER, needs_trust
from dibs.core.limits import NAMESPACE_CHARS_MAX

# The default name of a repository's namespace. Pure, but it resolves links in folder names. It is made from the address
# of `origin`, in one spelling, or without an `origin` from the git folder that all work trees share.

_DIGITS = 12


def namespace_of(repository: Repository) -> str:
    """`acme-app.1f2e3d4c5b6a`: two readable words, and a number that makes it unique."""
    origin = repository.origin()
    place = normalised(origin, repository.top) if origin else os.path.realpath(repository.common)
    if not origin and os.path.basename(place) == ".git":
        place = os.path.dirname(place)
    words = "-".join(place.strip("/").split("/")[-2:])
    readable = "".join([each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in words])
    return f"{readable[-(NAMESPACE_CHARS_MAX - _DIGITS - 1) :]}.{digest(place)[:_DIGITS]}"


def normalised(address: str, top: str) -> str:
    """`host/path` for an address of any form: `git@host:path.git`, `ssh://user@host:22/path`. A folder stays one,
    whole."""
    scheme, mark, rest = address.partition("://")
    if mark and scheme.lower() != "file":
        authority, _, path = rest.partition("/")
    elif not mark and ("]:" in address if address.startswith("[") else ":" in address.partition("/")[0]):
        end = address.find("]:") + 1 if "]:" in address else address.index(":")
        authority, path = address[:end], address[end + 1 :]
    else:
        folder = os.path.realpath(os.path.join(top, rest if mark else address))
        return folder.removesuffix("/.git").removesuffix(".git")
    host = authority.rpartition("@")[2].lower()
    name, colon, port = host.rpartition(":")
    host = name if colon and port.isdecimal() and not name.endswith(":") else host
    return f"{host}/{path.strip('/').removesuffix('.git').rstrip('/')}"


# One path per change, both sides of a rename, submodules too, independent of the user's configuration.
_NAMES = ("-z", "--name-only", "--no-renames", "--ignore-submodules=none")
_OF_REPOSITORY = frozenset(("local", "worktree"))  # the scopes of git's configuration that come with the repository
# What tells git which repository is meant, and must not where a folder does.
_POINTERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE")
# What git says where there is no work tree. After anything else there may be one: a configuration that is not valid, a
# format that this git does not know, another user's folder.
_NO_WORK_TREE = (
    "fatal: not a git repository",
    "fatal: invalid gitfile format",
    "fatal: this operation must be run in a work tree",
    "fatal: cannot use bare repository",
)
_MS_MAX = 10 * 60_000  # a large repository may take long to compare
_SETTINGS_MS_MAX = 5_000
_READ_SETTINGS = ("config", "rev-parse", "remote")
# An object that a partial clone lacks is not fetched, by whatever program its configuration names for that.
_LOCAL = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


class NotInWorkTree(InvalidInput):
    """The folder is in no work tree of a repository."""


class Repository:
    """One work tree. `common` is the git folder that all work trees of a clone share, `own` that of this one."""

    def __init__(self, env: Mapping[str, str], top: str, common: str, own: str, folder: str | None = None) -> None:
        self._env = env
        self._folder = folder
        self.top = top
        self.common = common
        self.own = own
        self._config: list[tuple[str, str, str]] | None = None
        self._is_trusted: bool | None = None

    @classmethod
    def here(cls, env: Mapping[str, str], folder: str | None = None) -> Repository:
        """The repository around a folder, by default the current one. Raises NotInWorkTree if there is none, and
        InvalidInput if git does not report it. git is asked where a `.git` is: on its own way up it would also take a
        tracked folder that looks like a bare repository."""
        try:
            root = root_around(env, folder or os.getcwd())
        except OSError:  # the current folder was deleted
            root = None
        if root is None:
            raise NotInWorkTree("This is not inside the work tree of a git repository.")
        folder = root or folder
        asked = ("--show-toplevel", "--git-common-dir", "--git-dir")
        done = _run({**env, "LC_ALL": "C"}, ("rev-parse", "--path-format=absolute", *asked), folder=folder)
        lines = os.fsdecode(done.out).removesuffix("\n").split("\n")  # a folder's name may hold other line separators
        if any(line.startswith(_NO_WORK_TREE) for line in done.err.splitlines()):
            raise NotInWorkTree(f"This is not inside the work tree of a git repository ({done.words}).")
        if done.code or len(lines) != 3:
            raise InvalidInput(f"git does not tell which repository this is: {done.words}.")
        top, common, own = lines
        return cls(env, top, common, own, folder)

    @classmethod
    def at(cls, env: Mapping[str, str], top: str) -> Repository:
        """The repository whose work tree has its top at `top`, found without running git. It is the folder's, whatever
        the environment names."""
        env = {name: value for name, value in env.items() if name not in _POINTERS}
        own = os.path.join(top, ".git")
        if os.path.isfile(own):  # a linked work tree names its folder
            own = os.path.join(top, first_line(own).removeprefix("gitdir: "))
        shared = first_line(os.path.join(own, "commondir"))
        return cls(env, top, os.path.normpath(os.path.join(own, shared)) if shared else own, own, top)

    def changed(self) -> list[str]:
        """Paths, from the top, that differ from the last commit or are not tracked, but for ignored ones."""
        return recorded_paths(self.top, list(self.states()))

    def states(self, below: Sequence[str] = ()) -> dict[str, str]:
        """The same paths as git recorded them, each with the two letters of its state. `??`: it is not tracked. Only
        those that are `below` some paths, if there are any: git looks at no others."""
        # Otherwise git would look into submodules, and run the programs that their configurations name.
        words = ("-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=dirty")
        asked = ("status", "--porcelain=v1", *words, "--", *below)
        listed = self._out(asked, extra={**self._without_own_filters(), "GIT_LITERAL_PATHSPECS": "1"})
        return {line[3:]: line[:2] for line in _parts(listed)}

    def changed_between(self, old: str, new: str) -> list[str]:
        """Paths in which two commits differ."""
        words = ("diff", *_NAMES, "--no-ext-diff", "--no-relative", old, new, "--")
        return recorded_paths(self.top, _parts(self._out(words)))

    def _without_own_filters(self) -> dict[str, str]:
        """An environment in which the filters that the repository's own configuration names are as the user has them:
        mostly not at all. Every name counts, in whatever bytes: they come from git, and go back to git as they are."""
        filters = [entry for entry in self._configured() if entry[1].startswith("filter.")]
        wanted = dict.fromkeys([key for scope, key, _ in filters if scope in _OF_REPOSITORY], "")
        wanted |= {key: value for scope, key, value in filters if scope not in _OF_REPOSITORY and key in wanted}
        wanted |= {f"{key.rpartition('.')[0]}.required": "false" for key in wanted}
        count = self._env.get("GIT_CONFIG_COUNT", "")
        first = int(count) if count.isdecimal() else 0
        env = {"GIT_CONFIG_COUNT": str(first + len(wanted))} if wanted else {}
        for at, (key, value) in enumerate(wanted.items(), first):  # not `-c`, which ends a key at its first `=`
            env |= {f"GIT_CONFIG_KEY_{at}": _same_bytes(key), f"GIT_CONFIG_VALUE_{at}": _same_bytes(value)}
        return env

    def _configured(self) -> list[tuple[str, str, str]]:
        """`git config`, all of it: scope, key and value. git is asked once. It is not asked to choose: what its
        patterns match depends on the locale."""
        if self._config is None:
            done = self._run(("config", "-z", "--show-scope", "--list"))
            if done.code:
                raise InvalidInput(f"`git config --list` failed: {done.words}.")
            texts = [part.decode("utf-8", "surrogateescape") for part in done.out.split(b"\0")[:-1]]
            entries = [(scope, entry.partition("\n")) for scope, entry in zip(texts[::2], texts[1::2], strict=True)]
            if _OF_REPOSITORY.isdisjoint(texts[::2]):
                self._check_owner()
            self._config = [(scope, key, value) for scope, (key, _, value) in entries]
        return self._config

    def _check_owner(self) -> None:
        """Raise InvalidInput in the repository of another user, whose configuration git leaves out of its list without
        a word. A `.git` that is no repository has none."""
        try:
            Repository.here(self._env, self._folder)
        except NotInWorkTree:
            pass

    @property
    def is_trusted(self) -> bool:
        """Tell whether the user said `dibs trust` to it."""
        if self._is_trusted is None:
            from dibs.agents.repository.trust import is_trusted

            self._is_trusted = is_trusted(self._env, self.top, self.common, self.own)
        return self._is_trusted

    def check_trusted(self, url: str) -> None:
        """Raise InvalidInput for a store at a remote of an untrusted clone (`is_at_remote`)."""
        if not self.is_trusted:
            raise InvalidInput(
                f"{quoted(url)} would run what this clone's configuration names, and the clone is not trusted. The "
                "user can run `dibs trust` in it."
            )

    def settings(self) -> dict[str, str]:
        """The values of `git config` under `dibs.` that count (`client/setting_sources.py`), by key; of several the
        last, as git does."""
        return {key: value for author, key, value in self._own_settings() if self.heeds(key, author)}

    def ignored(self) -> dict[str, str]:
        """Those that do not, because the user does not trust the repository."""
        return {key: value for author, key, value in self._own_settings() if not self.heeds(key, author)}

    def heeds(self, key: str, author: str) -> bool:
        """Tell whether an author's word on a setting counts here."""
        return not needs_trust(key, author) or self.is_trusted

    def _own_settings(self) -> list[tuple[str, str, str]]:
        """Author, key and value."""
        found = [entry for entry in self._configured() if entry[1].startswith("dibs.")]
        return [(CLONE if scope in _OF_REPOSITORY else USER, key[5:], value) for scope, key, value in found]

    def origin(self) -> str:
        """The address of the remote `origin`, as git would use it; empty if there is none."""
        addresses = [value for _, key, value in self._configured() if key == "remote.origin.url"]
        is_rewritten = any(key.startswith("url.") for _, key, _ in self._configured())
        if len(addresses) == 1 and addresses[0] and not is_rewritten:
            return addresses[0]
        # A file for each remote is git's oldest way.
        if not addresses and not any(os.path.exists(f"{self.common}/{old}/origin") for old in ("remotes", "branches")):
            return ""
        done = self._run(("remote", "get-url", "origin"))
        return "" if done.code else os.fsdecode(done.out).removesuffix("\n")

    def hooks(self) -> str:
        """Return where git looks for hooks. A relative core.hooksPath counts from the top, where hooks run."""
        named = _parts(self._run(("config", "-z", "--type=path", "--get", "core.hooksPath")).out)
        return os.path.join(self.top, named[0]) if named else os.path.join(self.common, "hooks")

    def staged(self) -> list[str]:
        """Paths, from the top, in which the next commit differs from the commit it is based on. In a merge, from every
        side of it: a path that is the same on one side was not changed by this commit."""
        paths = self._changed_since(())
        for other in (content(os.path.join(self.own, "MERGE_HEAD")) or b"").decode("ascii").split():
            kept = set(self._changed_since((other,)))
            paths = [path for path in paths if path in kept]
        return recorded_paths(self.top, paths)

    def _changed_since(self, base: tuple[str, ...]) -> list[str]:
        return _parts(self._out(("diff", "--cached", *_NAMES, "--no-ext-diff", "--no-relative", *base, "--")))

    def pushed(self, remote: str, pushes: Iterable[tuple[str, str]]) -> list[str]:
        """Paths changed by commits that are new to the remote, each once. For a merge, only what the merge itself
        changes. A push is the id here, and the one at the remote."""
        given = [(local, there) for local, there in pushes if local.strip("0")]
        if not given:
            return []
        # An id that this clone does not have (the remote has newer commits) is skipped.
        known = [there for _, there in given if there.strip("0")]
        tracked = (f"--remotes={remote}",) if remote else ()
        ids = (*(local for local, _ in given), "--not", *known, *tracked)
        news = self._out(("rev-list", "--ignore-missing", *ids, "--"))
        words = ("diff-tree", "--stdin", "-r", "-c", "--root", "--no-commit-id", *_NAMES)
        return recorded_paths(self.top, list(dict.fromkeys(_parts(self._out(words, news)))))

    def _out(self, words: tuple[str, ...], given: bytes = b"", extra: Mapping[str, str] | None = None) -> bytes:
        done = self._run(words, given, extra)
        if done.code:
            raise InvalidInput(f"`git {words[0]}` failed: {done.words}.")
        return done.out

    def _run(self, words: tuple[str, ...], given: bytes = b"", extra: Mapping[str, str] | None = None) -> GitResult:
        return _run({**self._env, **(extra or {})}, words, given, self._folder)


def _same_bytes(text: str) -> str:
    """A text of git's as one for the environment, in which it becomes the same bytes again in every locale."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def _run(env: Mapping[str, str], words: tuple[str, ...], given: bytes = b"", folder: str | None = None) -> GitResult:
    # GIT_CONFIG would make `git config` read another file than the rest of git does.
    env = {name: value for name, value in env.items() if name != "GIT_CONFIG"} | _LOCAL
    # These only read some files: one that takes long is a pipe, or on a disk that is away.
    timeout_ms = _SETTINGS_MS_MAX if words[0] in _READ_SETTINGS else _MS_MAX
    try:
        return run_git(words, env=env, folder=folder, given=given, timeout_ms=timeout_ms, dies_with_us=True)
    except StoreUnavailable as error:
        raise InvalidInput(error.details) from None


def _parts(output: bytes) -> list[str]:
    """Names are UTF-8 in every locale, as names of jobs are. Bytes that are not text are kept."""
    return [part.decode("utf-8", "surrogateescape") for part in output.split(b"\0") if part]


def is_at_remote(url: str) -> bool:
    """Tell whether a store runs the programs that the clone's configuration names: ssh commands, helpers, hooks of a
    folder. Whoever types a command with `git:origin` asks for it; nobody typed what an agent's hook or MCP server
    does."""
    return url.startswith("git:") and url.partition("?")[0] != "git:"


def pushes_of(lines: str) -> list[tuple[str, str]]:
    """The ids here and there in the lines that git writes to a pre-push hook. A ref before them may hold blanks."""
    fields = [line.rsplit(" ", 3) for line in lines.splitlines() if line]
    if any(len(each) != 4 for each in fields):
        raise InvalidInput("pre-push reads lines of four words from standard input, as git writes them.")
    return [(each[1], each[3]) for each in fields]


def repository_around(env: Mapping[str, str], folder: str) -> Repository | None:
    """The repository whose work tree contains a folder. Raises InvalidInput if there seems to be one that git does not
    report: a claim that silently went elsewhere would keep nobody out."""
    if root_around(env, folder) is None:
        return None
    try:
        return Repository.here(env, folder)
    except NotInWorkTree:
        return None
    except InvalidInput as error:
        raise InvalidInput(f"{error.details} To do without it, name the namespace: DIBS_NAMESPACE.") from None
