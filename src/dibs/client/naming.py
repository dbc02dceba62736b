"""The one name and the namespace of each job, for CLI, SDK and MCP.

A flag, an argument or DIBS_NAMESPACE applies to all names. Otherwise `path:`, `repo:` and `branch:` names are in the
namespace of the repository around a folder, so that two repositories never conflict. Other names are not affected, and
cost nothing. Inside `dibs run`, the name in DIBS_JOB is the run's own job, whatever folder is the current one.

Issues and files can be written in several ways, and have one name. The rule for issues is `wire/issue_names.py`.

What is around a folder is known to a plugin, RESOLVER. It is imported for the first such name in a git work
tree, and runs git then. Without it issues have their one name, files are taken as they are written, and names of a
repository in a work tree are refused until a namespace is named.
"""

from __future__ import annotations

from dibs.base.cheap import Iterable, Mapping
from dibs.base.checkout import root_around
from dibs.base.errors import InvalidInput
from dibs.base.jsontext import Document
from dibs.client.transport import Surroundings
from dibs.core.names import DEFAULT_NAMESPACE, RESOURCES, check_name, is_resource
from dibs.wire.documents import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.wire.issue_names import JobName

# The plugin that makes `Surroundings` of an environment and a folder.
RESOLVER = "job-names"
# Variables by which a git hook names the repository.
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")
# The job of the `dibs run` around, and the namespace of the repository that it is in, if it is in one.
RUN_JOB, RUN_NAMESPACE = "DIBS_JOB", "DIBS_JOB_NAMESPACE"
_known: dict[tuple[str | None, ...], str] = {}
_NOT_ASKED = object()
BOUND_HINT = "{} is made of the origin. For the token's own: git config dibs.namespace NAME, and dibs trust"


class Namespaces:
    """The namespace of each name, for a client that was made in `folder`. The process may change its folder later, but
    a claim must be renewed where it was made. `stated` is for all names, `other` for names outside of trees."""

    def __init__(
        self,
        stated: str | None,
        other: str | None,
        env: Mapping[str, str],
        folder: str | None,
        instead: str = "DIBS_NAMESPACE",
    ) -> None:
        """`instead` is how the caller would name one namespace for all names."""
        self.stated = stated
        self._instead = instead
        self._usual = other if stated is None else stated
        self._env = env
        self._folder = folder
        self._found: object = _NOT_ASKED

    def namespace(self, names: Iterable[object]) -> str | None:
        """The namespace of these names; None: `default`, or the token's. Raises InvalidInput if they are in several."""
        inside = self._in_tree(names)
        if not inside:
            return self._usual
        found = self._place(inside)
        if found is None:
            if self._folder is not None and root_around(self._env, self._folder) is not None:
                from dibs.base.plugins import PARTS, plugin

                # Raises MissingExtra: without a resolver such a name would keep nobody out.
                plugin(PARTS, RESOLVER, "A path:, repo: or branch: name in a git work tree, without a namespace,")
            return self._usual
        wanted = [name for name in names if isinstance(name, str)]
        if len(inside) == len(wanted):
            return found
        for name in wanted:
            check_name(name)
        raise InvalidInput(
            f"path:, repo: and branch: names are in this repository's namespace {found}, others are not. "
            f"Claim them apart, or name one namespace for all: {self._instead}."
        )

    def _in_tree(self, names: Iterable[object]) -> list[str]:
        """Those of the names that the repository's namespace is for."""
        if self.stated is not None:
            return []
        return [name for name in names if isinstance(name, str) and is_resource(name)]

    def _place(self, inside: list[str]) -> str | None:
        """The namespace of names of a repository, of which there are some. Raises InvalidInput if only one of them is
        the run's job."""
        job = self._env.get(RUN_JOB)
        if job not in inside:
            return self.repository()
        run = self._env.get(RUN_NAMESPACE)  # none: the run was started outside of a repository
        if any(name != job for name in inside) and self.repository() != run:
            where = "outside of this repository" if run is None else f"in namespace {run}"
            raise InvalidInput(
                f"{job} is the job of the run around, {where}, and the other names are not. "
                f"Name them apart, or name one namespace for all: {self._instead}."
            )
        return run

    def repository(self) -> str | None:
        """The namespace of the surrounding repository. None: there is none, or it does not apply."""
        if self._found is _NOT_ASKED:
            self._found = None
            if self.stated is None:
                self._found = namespace_around(self._env, self._folder)
        return self._found  # type: ignore[return-value]  # text or None, once it was asked for

    def is_known(self, names: Iterable[object]) -> bool:
        """Tell whether the answer is known without asking git."""
        return self._found is not _NOT_ASKED or not self._in_tree(names)

    def with_namespace(self, reply: Reply, names: tuple[object, ...]) -> Reply:
        """A reply with its namespace, if that is not the usual one. A list of all names also names the namespace of the
        repository's tree, which must be listed separately."""
        body, inside = reply.body, self._in_tree(names)
        if body is None or (inside and self._found is _NOT_ASKED):
            return reply
        namespace = (self._place(inside) if inside else None) or self._usual
        if namespace is not None and namespace != DEFAULT_NAMESPACE:
            body = self._marked(body, namespace)
        begin = str(names[0]) if "locks" in body else None
        is_wide = begin is not None and any(tree.startswith(begin) and tree != begin for tree in RESOURCES)
        if is_wide and (found := self.repository()):  # names of trees and others may begin so
            body = {**body, "tree_namespace": found}
        reply.body = body
        return reply

    def _marked(self, body: Document, namespace: str) -> Document:
        marked = {**body, "namespace": namespace}
        for key in ("leases", "locks"):
            if key in body:
                marked[key] = [{**each, "namespace": namespace} for each in body[key]]
        if body.get("code") == "forbidden" and namespace == self._found:
            marked["details"] = f"{body.get('details')} {BOUND_HINT.format(namespace)}"
        return marked


def surroundings(env: Mapping[str, str], folder: str | None) -> Surroundings | None:
    """The work tree around a folder; None outside of one, and without a resolver."""
    if folder is None or root_around(env, folder) is None:
        return None
    from dibs.base.plugins import PARTS, plugin

    resolver = plugin(PARTS, RESOLVER)
    found: Surroundings | None = None if resolver is None else resolver(env, folder)
    return found


def namespace_around(env: Mapping[str, str], folder: str | None) -> str | None:
    """The namespace of the repository around a folder; None outside of one. Git is asked once per process."""
    key = (folder, *[env.get(name) for name in _VARIABLES])
    if key not in _known:
        around = surroundings(env, folder)
        found = None if around is None else around.namespace()
        if found is None:
            return None
        _known[key] = found
    return _known[key]


class Naming:
    """The names of jobs as seen from a folder. `exact`: every name stays as it is."""

    def __init__(self, env: Mapping[str, str], folder: str | None, *, exact: bool = False) -> None:
        self._env = env
        self._folder = folder
        self._exact = exact
        self._around: object = _NOT_ASKED

    def of(self, name: str) -> str:
        """The one name. Raises InvalidInput where settings or clone cannot be read, and InvalidName for a password."""
        from dibs.wire.issue_names import is_plain

        as_it_is = self._exact or name == self._env.get(RUN_JOB)  # by the run, maybe in another folder
        return name if as_it_is or is_plain(name) else self.explained(name).name

    def of_all(self, names: Iterable[str]) -> list[str]:
        return [self.of(name) for name in names]

    def explained(self, name: str) -> JobName:
        from dibs.wire.issue_names import JobName, is_plain, job_name

        if self._exact:
            return JobName(name, name, "Names are taken as they are written.")
        around = None if is_plain(name) else self.around()
        return job_name(name) if around is None else around.explained(name)

    def around(self) -> Surroundings | None:
        if self._around is _NOT_ASKED:
            self._around = surroundings(self._env, self._folder)
        return self._around  # type: ignore[return-value]  # what is around, once it was looked for
