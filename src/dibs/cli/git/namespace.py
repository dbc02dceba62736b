"""The namespace of `path:` and `repo:` names inside a git work tree: that of the repository, so that two never meet.

A flag or DIBS_NAMESPACE names one; else the repository's own setting does (`git config dibs.namespace`, see
`cli/git/policy.py`); else it is made of where the repository comes from: the address of `origin`, in one spelling for
all of its forms, or, where there is none, the git folder that all its work trees share. Other names are not concerned.
"""

from __future__ import annotations

import os

from dibs.core.limits import LIST_PAGE_MAX, NAMESPACE_CHARS_MAX
from dibs.core.names import check_name, in_tree
from dibs.core.records import HELD
from dibs.digest import digest
from dibs.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.cli.git.repository import Repository
    from dibs.client.door import Door

    Document = dict[str, Any]

# Commands that take jobs, and where.
_KEYS = ("job", "name", "resource", "resource_flag", "prefix")
_COMMANDS = frozenset(
    """
    run claim claim-any claim-all heartbeat release transfer wait hold owner list history break free
    """.split()
)
_DIGITS = 12


def namespace_of(repository: Repository) -> str:
    """`acme-app.1f2e3d4c5b6a`: two words to read, and a number that tells it from all others."""
    origin = repository.origin()
    place = normalised(origin, repository.top) if origin else os.path.realpath(repository.common)
    if not origin and os.path.basename(place) == ".git":
        place = os.path.dirname(place)
    words = "-".join(place.strip("/").split("/")[-2:])
    readable = "".join(
        [each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in words]
    )
    return f"{readable[-(NAMESPACE_CHARS_MAX - _DIGITS - 1) :]}.{digest(place)[:_DIGITS]}"


def normalised(address: str, top: str) -> str:
    """`host/path` for an address of any form: `git@host:path.git`, `ssh://user@host:22/path`, `https://host/path/`. A
    folder stays one, whole."""
    scheme, mark, rest = address.partition("://")
    if mark and scheme.lower() != "file":
        authority, _, path = rest.partition("/")
    elif not mark and _is_scp(address):
        authority, _, path = _scp_parts(address)
    else:
        folder = os.path.realpath(os.path.join(top, rest if mark else address))
        return folder.removesuffix("/.git").removesuffix(".git")
    return f"{_host(authority)}/{path.strip('/').removesuffix('.git').rstrip('/')}"


def _is_scp(address: str) -> bool:
    return ":" in address.partition("/")[0] if not address.startswith("[") else "]:" in address


def _scp_parts(address: str) -> tuple[str, str, str]:
    end = address.find("]:") + 1 if "]:" in address else address.index(":")
    return address[:end], ":", address[end + 1 :]


def _host(authority: str) -> str:
    host = authority.rpartition("@")[2].lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else host


def settle(call: Call, names: Iterable[str] | None = None) -> None:
    """Let the call work in the repository's namespace, if what it names is a place in a repository's tree."""
    wanted = _names(call) if names is None else list(names)
    inside = [name for name in wanted if in_tree(name)]
    if not inside or call.said("namespace") is not None:
        return
    found = here(call)
    if found is None:
        return
    if len(inside) < len(wanted):
        for name in wanted:
            check_name(name)
        raise InvalidInput(
            f"path: and repo: names are in the namespace {found} of this repository, and the others are not. Claim "
            "them apart, or name one namespace for all: --namespace."
        )
    call.work_in(found)


def here(call: Call) -> str | None:
    """The namespace of the repository around the current folder; None outside of one."""
    repository = repository_around(call)
    if repository is None:
        return None
    from dibs.cli.git.policy import policy_of

    return policy_of(repository).place["namespace"]


def repository_around(call: Call) -> Repository | None:
    if not _is_around(call.env):
        return None
    from dibs.cli.git.repository import Repository

    try:
        return Repository.here(call.env)
    except InvalidInput:
        return None


def tree_locks(call: Call, states: tuple[str, ...] = (HELD,)) -> list[Document]:
    """The live `path:` and `repo:` claims of the repository around, for whoever lists all there is. None are told
    where another namespace was named, or where these may not be looked at."""
    namespace = here(call) if call.said("namespace") is None else None
    if namespace is None:
        return []
    door = call.door_in(namespace)
    try:
        return [
            {**lock, "namespace": namespace}
            for prefix in ("path:", "repo:")
            for lock in _all(door, prefix, states)
        ]
    finally:
        door.close()


def _all(door: Door, prefix: str, states: tuple[str, ...]) -> list[Document]:
    found: list[Document] = []
    after = ""
    while True:
        reply = door.claimed(prefix, after, LIST_PAGE_MAX, states)
        page: Document = reply.body or {}
        if reply.status >= 400:
            return found
        found += page["locks"]
        after = page["next"]
        if not after:
            return found


def _is_around(env: Mapping[str, str]) -> bool:
    """Whether it is worth asking git."""
    folder = os.getcwd()
    while not env.get("GIT_DIR") and not os.path.lexists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
    return True


def _names(call: Call) -> list[str]:
    if call.command not in _COMMANDS and not call.command.startswith("lock "):
        return []
    found: list[str] = []
    for key in _KEYS:
        value = call.values.get(key)
        found += [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    return found


def shown(call: Call, answer: Answer) -> Answer:
    """The answer, with the repository's namespace in it if it was given in that."""
    namespace = call.repository_namespace
    if namespace is None or answer.is_said:
        return answer
    answer.document = {**answer.document, "namespace": namespace}
    if answer.code == "forbidden" and namespace in answer.text:
        hint = f"{namespace} is made of the repository's origin. For the token's own: git config dibs.namespace NAME"
        answer.text = answer.message = f"{answer.text} {hint}"
    elif answer.text and not answer.is_error:
        label = "Namespace: " if call.command.startswith("lock ") else "namespace      "
        answer.text += f"\n  {label}{namespace}"
    return answer
