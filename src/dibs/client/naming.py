"""The namespace of a name, for CLI, SDK and MCP. A flag, an argument or DIBS_NAMESPACE applies to all names. Otherwise
`path:` and `repo:` names are in the namespace of the repository around a folder, so that two repositories never
conflict: the one in the repository's own settings (`settings`), or one made from its origin (`identity`). Other names
are not affected, and cost nothing: git is asked at the first `path:` or `repo:` name, once in a process for each
folder.
"""

from __future__ import annotations

import os

from dibs.base.checkout import root_around
from dibs.base.errors import InvalidInput
from dibs.core.names import DEFAULT_NAMESPACE, check_name, in_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from dibs.agents.repository.work_tree import Repository
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

TREES = ("path:", "repo:")
SEVERAL = ("acquire-any", "acquire-all")
# Variables by which a git hook names the repository.
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")
_known: dict[tuple[str | None, ...], str] = {}
_NOT_ASKED = object()
BOUND_HINT = "{} is made of the repository's origin. For the token's own: git config dibs.namespace NAME"


def namespace_for_names(namespaces: str | Namespaces | None, names: tuple[object, ...]) -> str | None:
    """The namespace to ask in. Raises InvalidInput."""
    return namespaces.of(names) if isinstance(namespaces, Namespaces) else namespaces


def told(namespaces: str | Namespaces | None, reply: Reply, names: tuple[object, ...]) -> Reply:
    """The reply, with the namespace in it if the caller did not name one."""
    return namespaces.told(reply, names) if isinstance(namespaces, Namespaces) else reply


class Namespaces:
    """The namespace of each name, for a client that was made in `folder`. The process may change its folder later, but
    a claim must be renewed where it was made. `stated` is for all names, `other` for names outside of trees."""

    def __init__(
        self, stated: str | None, other: str | None, env: Mapping[str, str], folder: str | None
    ) -> None:
        self.stated = stated
        self._usual = other if stated is None else stated
        self._env = env
        self._folder = folder
        self._found: object = _NOT_ASKED

    def of(self, names: Iterable[object]) -> str | None:
        """The namespace of these names. None: `default`, or the one that the token is bound to. Raises InvalidInput if
        they are in several."""
        inside = self._in_tree(names)
        found = self.repository() if inside else None
        if found is None:
            return self._usual
        wanted = [name for name in names if isinstance(name, str)]
        check_together(found, inside, wanted, "name one namespace for all: DIBS_NAMESPACE")
        return found

    def _in_tree(self, names: Iterable[object]) -> list[str]:
        """Those of the names that the repository's namespace is for."""
        if self.stated is not None:
            return []
        return [name for name in names if isinstance(name, str) and in_tree(name)]

    def repository(self) -> str | None:
        """The namespace of the surrounding repository. None: there is none, or it does not apply."""
        if self._found is _NOT_ASKED:
            self._found = None
            if self.stated is None and self._folder is not None:
                self._found = namespace_around(self._env, self._folder)
        return self._found  # type: ignore[return-value]  # text or None, once it was asked for

    def is_known(self, names: Iterable[object]) -> bool:
        """Whether the answer is known without asking git."""
        return self._found is not _NOT_ASKED or not self._in_tree(names)

    def told(self, reply: Reply, names: tuple[object, ...]) -> Reply:
        """A reply with its namespace, if that is not the usual one. A list of all names also names the namespace of the
        repository's tree, which must be listed separately."""
        body, inside = reply.body, self._in_tree(names)
        if body is None or (inside and self._found is _NOT_ASKED):
            return reply
        namespace = (self.repository() if inside else None) or self._usual
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
    """The names in a request; a prefix counts as a name. Sessions and runs are in no tree."""
    if verb in SEVERAL:
        names = (document or {}).get("names")
        return tuple(names) if isinstance(names, list | tuple) else ()
    return () if verb.startswith(("session", "run")) else (name,)


def covers_tree(prefix: str) -> bool:
    """Whether both tree names and other names may begin with a prefix."""
    return any(tree.startswith(prefix) and tree != prefix for tree in TREES)


def check_together(namespace: str, inside: list[str], wanted: list[str], instead: str) -> None:
    """One step has one namespace. Raises InvalidInput if only some of the names are in the repository's."""
    if len(inside) == len(wanted):
        return
    for name in wanted:
        check_name(name)
    raise InvalidInput(
        f"path: and repo: names are in the namespace {namespace} of this repository, and the others are not. "
        f"Claim them apart, or {instead}."
    )


def namespace_around(env: Mapping[str, str], folder: str) -> str | None:
    """The namespace of the repository around a folder; None outside of one. Git is asked once per process."""
    key = (folder, *[env.get(name) for name in _VARIABLES])
    if key not in _known:
        repository = repository_around(env, folder)
        if repository is None:
            return None
        from dibs.agents.repository.settings import policy_of

        _known[key] = policy_of(repository).place["namespace"]
    return _known[key]


def repository_around(env: Mapping[str, str], folder: str) -> Repository | None:
    """The repository whose work tree contains a folder. Raises InvalidInput if there seems to be one that git does not
    report: a claim that silently went elsewhere would keep nobody out."""
    if root_around(env, folder) is None:
        return None
    from dibs.agents.repository.work_tree import NotInWorkTree, Repository

    try:
        return Repository.here(env, folder)
    except NotInWorkTree:
        return None
    except InvalidInput as error:
        raise InvalidInput(f"{error.details} To do without it, name the namespace: DIBS_NAMESPACE.") from None


def current_folder() -> str | None:
    """The current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None
