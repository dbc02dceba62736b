"""In which namespace a name is, for all ways in.

What was named counts for all names: a flag or an argument, or DIBS_NAMESPACE. Else `path:` and `repo:` names are in the
namespace of the repository around a folder, so that two repositories never meet: the one that the repository's own
settings name (`settings`), else one that is made of where it comes from (`identity`). Other names are not concerned,
and cost nothing: git is asked when the first name of a tree comes, once in a process for each folder.
"""

from __future__ import annotations

import os

from dibs.core.names import DEFAULT_NAMESPACE, check_name, in_tree
from dibs.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from dibs.repository.work_tree import Repository
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

TREES = ("path:", "repo:")
SEVERAL = ("acquire-any", "acquire-all")
# What tells a repository from the folder it is in, if a hook of git's says so.
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")
_known: dict[tuple[str | None, ...], str] = {}
_NOT_ASKED = object()
BOUND_HINT = "{} is made of the repository's origin. For the token's own: git config dibs.namespace NAME"


def namespace_for_names(namespaces: str | Namespaces | None, names: tuple[object, ...]) -> str | None:
    """The namespace to ask in. Raises InvalidInput."""
    return namespaces.of(names) if isinstance(namespaces, Namespaces) else namespaces


def told(namespaces: str | Namespaces | None, reply: Reply, names: tuple[object, ...]) -> Reply:
    """The reply, with the namespace in it for whoever did not name it."""
    return namespaces.told(reply, names) if isinstance(namespaces, Namespaces) else reply


class Namespaces:
    """Which namespace each name is in, for a client that was made in `folder`, wherever its process goes later: a claim
    must be renewed where it was made. `stated` is for all names, `other` for those that are in no tree."""

    def __init__(
        self, stated: str | None, other: str | None, env: Mapping[str, str], folder: str | None
    ) -> None:
        self.stated = stated
        self._other = other
        self._env = env
        self._folder = folder
        self._found: object = _NOT_ASKED

    def of(self, names: Iterable[object]) -> str | None:
        """The namespace of these names. None: `default`, or the one that the token is bound to. Raises InvalidInput
        for names of several."""
        found, inside, wanted = self._place_of(names)
        if found is None or not inside:
            return found
        check_together(found, inside, wanted, "name one namespace for all: DIBS_NAMESPACE")
        return found

    def _place_of(self, names: Iterable[object]) -> tuple[str | None, list[str], list[str]]:
        """Their namespace; and which of them are there because they are in the repository's tree."""
        wanted = [name for name in names if isinstance(name, str)]
        inside = [name for name in wanted if in_tree(name)] if self.stated is None else []
        found = self.repository() if inside else None
        if found is None:
            return self._other if self.stated is None else self.stated, [], wanted
        return found, inside, wanted

    def repository(self) -> str | None:
        """The namespace of the repository around. None: there is none, or it does not count."""
        if self._found is _NOT_ASKED:
            self._found = None
            if self.stated is None and self._folder is not None:
                self._found = namespace_around(self._env, self._folder)
        return self._found  # type: ignore[return-value]  # text or None, once it was asked for

    def is_known(self, names: Iterable[object]) -> bool:
        """Whether telling takes no time, because git need not be asked."""
        if self.stated is not None or self._found is not _NOT_ASKED:
            return True
        return not any(isinstance(name, str) and in_tree(name) for name in names)

    def told(self, reply: Reply, names: tuple[object, ...]) -> Reply:
        """A reply with the namespace that it is about, where that is not the usual one. A list of all names says as
        well where those of the repository's tree are: they are to be listed apart."""
        if reply.body is None or not self.is_known(names):
            return reply
        body, namespace = reply.body, self._place_of(names)[0]
        if namespace is not None and namespace != DEFAULT_NAMESPACE:
            body = self._marked(body, namespace)
        if "locks" in body and covers_tree(str(names[0])) and (found := self.repository()):
            body = {**body, "tree_namespace": found}
        return reply if body is reply.body else reply.replace(body=body)

    def _marked(self, body: Document, namespace: str) -> Document:
        told = {**body, "namespace": namespace}
        for key in ("leases", "locks"):
            if key in body:
                told[key] = [{**each, "namespace": namespace} for each in body[key]]
        if body.get("code") == "forbidden" and namespace == self._found:
            told["details"] = f"{body.get('details')} {BOUND_HINT.format(namespace)}"
        return told


def names_of(verb: str, name: str, document: Document | None = None) -> tuple[object, ...]:
    """The names that a question is about; a prefix counts as one. Sessions and runs are in no tree."""
    if verb in SEVERAL:
        names = (document or {}).get("names")
        return tuple(names) if isinstance(names, list | tuple) else ()
    return () if verb.startswith(("session", "run")) else (name,)


def covers_tree(prefix: str) -> bool:
    """Whether names of a tree, and others, may begin with a prefix."""
    return any(tree.startswith(prefix) and tree != prefix for tree in TREES)


def check_together(namespace: str, inside: list[str], wanted: list[str], instead: str) -> None:
    """One step has one namespace. Raises InvalidInput where only some of the names are in the repository's."""
    if len(inside) == len(wanted):
        return
    for name in wanted:
        check_name(name)
    raise InvalidInput(
        f"path: and repo: names are in the namespace {namespace} of this repository, and the others are not. "
        f"Claim them apart, or {instead}."
    )


def namespace_around(env: Mapping[str, str], folder: str) -> str | None:
    """The namespace of the repository around a folder; None outside of one. Asked for once in a process."""
    key = (folder, *[env.get(name) for name in _VARIABLES])
    if key not in _known:
        repository = repository_around(env, folder)
        if repository is None:
            return None
        from dibs.repository.settings import policy_of

        _known[key] = policy_of(repository).place["namespace"]
    return _known[key]


def repository_around(env: Mapping[str, str], folder: str) -> Repository | None:
    """The repository whose work tree a folder is in. Raises InvalidInput where there is one that git does not tell of:
    a claim that quietly went elsewhere would keep nobody out."""
    if root_around(env, folder) is None:
        return None
    from dibs.repository.work_tree import NotInWorkTree, Repository

    try:
        return Repository.here(env, folder)
    except NotInWorkTree:
        return None
    except InvalidInput as error:
        raise InvalidInput(f"{error.details} To do without it, name the namespace: DIBS_NAMESPACE.") from None


def root_around(env: Mapping[str, str], folder: str) -> str | None:
    """The folder that seems to be the top of a work tree, found without git. Empty: git was told where it is."""
    if env.get("GIT_DIR"):
        return ""
    while not os.path.lexists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


def current_folder() -> str | None:
    """Where the process is; None if that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None
