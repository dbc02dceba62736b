"""The one name of a job in a git work tree, for `client/naming.py`.

The rule for issues, pull requests and tickets is `wire/issue_names.py`, that for files is `file_paths.py`. This module
finds what they must know: the clone around a folder, and the team's settings, the table `[names]` in `.dibs.toml`. git
is asked only for a name that needs the clone's origin.

Settings are the repository's and not the user's: two people with different ones would have two names for one job.
"""

from __future__ import annotations

import os

from dibs.agents.repository.file_paths import name_in_checkout, path_from_top
from dibs.agents.repository.settings import TEAM_FILE, policy_of, team_table
from dibs.agents.repository.work_tree import normalised, repository_around
from dibs.base.cheap import Any, Callable, Mapping, Sequence
from dibs.base.checkout import root_around
from dibs.base.errors import InvalidInput
from dibs.wire import issue_names
from dibs.wire.issue_names import (
    FILES,
    GITHUB_HOST,
    REPOSITORY,
    SETTINGS,
    HostedRepository,
    IssueHosts,
    JobName,
    is_plain,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.tracker.tracked_claim import TrackedClaim, TrackerGuard


class JobNames:
    """The names of jobs as seen from a folder, which may be in a work tree."""

    def __init__(self, env: Mapping[str, str], folder: str | None) -> None:
        self._env = env
        self._folder = folder
        self._top: str | None = None
        self._has_top = False
        self._table: dict[str, Any] | None = None
        self._guard: TrackerGuard | None = None

    def explained(self, name: str) -> JobName:
        if name.startswith(FILES):
            return self._of_file(name)
        needed = None if is_plain(name) else issue_names.needs(name)
        hosts = self._hosts() if needed in (SETTINGS, REPOSITORY) else None
        repository = None
        if needed == REPOSITORY:
            place, repository = self._hosted_repository(hosts or IssueHosts())
            if place and repository is None:
                why = f"This clone comes from {place}, which is not known as GitHub or GitLab."
                return JobName(name, name, f"{why} The name stays as it is.")
        return issue_names.job_name(name, hosts, repository)

    def _of_file(self, name: str) -> JobName:
        path, is_from_top = _path_of(name)
        top = self.top() if path is not None else None
        if top is None or path is None or self._folder is None:
            return issue_names.job_name(name)
        found = path_from_top(top, top if is_from_top else self._folder, path)
        if found is None:
            return JobName(name, name, "It is not below the top of this work tree, so it stays as it is.")
        return JobName(name, f"path:{found}", "It is a file: links are followed, and the path is from the top.")

    def top(self) -> str | None:
        """The top of the work tree around; None outside of one."""
        if not self._has_top:
            found = None if self._folder is None else root_around(self._env, self._folder)
            if found == "" and self._folder is not None:
                repository = repository_around(self._env, self._folder)
                found = None if repository is None else repository.top
            self._top, self._has_top = found, True
        return self._top

    def in_checkout(self, name: str) -> str | None:
        """The name by which agents' hooks claim the file `path:…` for this work tree alone; None outside of one."""
        top = self.top()
        return None if top is None else name_in_checkout(top, name.removeprefix("path:"))

    def namespace(self) -> str | None:
        """The namespace of `path:` and `repo:` names: the one in the repository's settings, or one made from its
        origin. None if git knows no work tree here. Raises InvalidInput."""
        repository = None if self._folder is None else repository_around(self._env, self._folder)
        return None if repository is None else policy_of(repository).place["namespace"]

    def tracked_claim(self, verb: str, names: Sequence[str], *, again: bool, own_key: bool) -> TrackedClaim:
        from dibs.agents.tracker.tracked_claim import TrackedClaim, TrackerGuard

        if self._guard is None:
            self._guard = TrackerGuard(self._env, self.top)
        return TrackedClaim(self._guard, verb, names, again=again, own_key=own_key)

    def hosted_repository(self) -> HostedRepository | None:
        """The repository that the clone around came from; None outside of a clone, and if its host is not known."""
        return self._hosted_repository(self._hosts())[1]

    def _settings(self) -> Mapping[str, Any]:
        if self._table is None:
            top = self.top()
            self._table = {} if top is None else _team_names(top)
        return self._table

    def _hosts(self) -> IssueHosts:
        return IssueHosts(**{key: value for key, value in self._settings().items() if key != "repository"})

    def _hosted_repository(self, hosts: IssueHosts) -> tuple[str, HostedRepository | None]:
        """Return where the clone comes from, as `host/path`, and the repository there. Empty: from nowhere."""
        address = str(self._settings().get("repository", ""))
        if address and "://" not in address and ":" not in address:
            place = address if "." in address.partition("/")[0] else f"{GITHUB_HOST}/{address}"
        else:
            repository = None
            if not address and self.top() is not None and self._folder is not None:
                repository = repository_around(self._env, self._folder)
            address = repository.origin() if repository is not None else address
            place = normalised(address, self.top() or "/") if address else ""
        if place.startswith("/"):  # a folder of this machine
            return "", None
        return place, issue_names.repository_at(place, hosts) if place else None


def _path_of(name: str) -> tuple[str | None, bool]:
    """The path in a name, and whether it counts from the top, as `path:src` does, and `path:./src` does not."""
    if name.startswith("file://"):
        host, _, path = name[7:].partition("/")
        if host not in ("", "localhost"):
            return None, False
        from urllib.parse import unquote_to_bytes  # only for this form

        try:
            return f"/{unquote_to_bytes(path).decode()}", False
        except ValueError:
            return f"/{path}", False
    path = name.removeprefix("path:")
    if name.startswith("path:") and not path.startswith(FILES[1:4]):
        return (path if path and ".." not in path.split("/") else None), True
    return path, False


def _team_names(top: str) -> dict[str, Any]:
    """The table `[names]` of the team's file, checked. Raises InvalidInput, naming the file."""
    table, path = team_table(top, "names") or {}, os.path.join(top, TEAM_FILE)
    for key, value in table.items():
        if key not in _MEANT:
            raise InvalidInput(f"{path}: [names] has no setting {key!a}. It has {', '.join(_MEANT)}.")
        is_meant, what = _MEANT[key]
        if not is_meant(value):
            raise InvalidInput(f"{path}: [names] {key} is {what}, not {value!a}.")
    return table


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each.isascii() for each in value)


def _are_lists(value: object) -> bool:
    return isinstance(value, dict) and all(_are_texts(each) for each in value.values())


_MEANT: dict[str, tuple[Callable[[object], bool], str]] = {
    "repository": (lambda value: bool(value) and _are_texts([value]), 'a text, such as "acme/app"'),
    "github": (_are_texts, 'a list of hosts, such as ["github.example.com"]'),
    "gitlab": (_are_texts, 'a list of hosts, such as ["gitlab.example.com"]'),
    "jira": (_are_lists, 'a table from hosts to projects, such as {"acme.atlassian.net" = ["PROJ"]}'),
    "linear": (_are_lists, 'a table from workspaces to teams, such as {acme = ["ENG"]}'),
}
