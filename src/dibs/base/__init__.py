"""Tools that know nothing of the rules of dibs: errors, clock, ids, records, text, files."""

from __future__ import annotations

from dibs.base.cheap import Mapping

DISTRIBUTION = "dibs-lease"
_GIT_MS_MAX = 2_000


def build_kind() -> str:
    """Tell which build of dibs this is."""
    from dibs.base import ids  # a module that a compiled build has as machine code

    return "pure Python" if ids.__file__.endswith((".py", ".pyc")) else "compiled"


def build_commit(env: Mapping[str, str]) -> str | None:
    """The commit of this dibs, if it is known: it runs from a clone, or was installed from a git address. In a clone
    this runs git, so only commands that show the version ask."""
    import os

    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    root = os.path.dirname(source)
    # Only our own clone: an environment may well lie in a repository that is somebody else's.
    if os.path.basename(source) == "src" and os.path.lexists(os.path.join(root, ".git")):
        return _commit_of_clone(root, env)
    return _commit_of_address()


def _commit_of_clone(root: str, env: Mapping[str, str]) -> str | None:
    from dibs.base.errors import DibsError
    from dibs.base.git_program import run_git

    plain = {key: value for key, value in env.items() if not key.startswith("GIT_")}  # a hook's name its own repository
    words = ("describe", "--always", "--dirty=, changed", "--abbrev=12", "--exclude=*")
    try:
        result = run_git(words, env=plain, folder=root, timeout_ms=_GIT_MS_MAX)
    except (DibsError, OSError):
        return None
    said = result.out.decode("utf-8", "replace").strip()
    return said if result.code == 0 and not result.timed_out and said else None


def _commit_of_address() -> str | None:
    """The commit that pip, pipx or uv noted beside the package."""
    from importlib import metadata
    from json import loads

    try:
        noted = loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        commit = noted.get("vcs_info", {}).get("commit_id")
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    return commit[:12] if isinstance(commit, str) and commit.isalnum() else None
