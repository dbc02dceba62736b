"""GitHub, through `gh api`. One GraphQL query tells how up to fifty issues stand.

The state of the issue decides. A closed one is done, whatever closed it. An open one is not done, even if a merged pull
request once closed it: somebody reopened it. An open pull request that closes an open issue has it taken.
"""

from __future__ import annotations

from dibs.agents.tracker.github_notice import GitHubNotices
from dibs.agents.tracker.port import DONE, FREE, TAKEN, UNKNOWN, IssueState, IssueTracker, NoAnswer
from dibs.core.limits import TRACKER_ISSUES_AT_ONCE
from dibs.core.references import GITHUB_HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from dibs.agents.tracker.gh_program import GhProgram

    Document = dict[str, Any]

SCHEME = "github://"
_PULLS = (
    "closedByPullRequestsReferences(first: 50, includeClosedPrs: true, orderByState: true) "
    "{ nodes { state url author { login } } }"
)
_FIELDS = (
    "__typename "
    f"... on Issue {{ title state stateReason url closedAt {_PULLS} }} "
    "... on PullRequest { title state url closedAt author { login } }"
)
_LIST = (
    "query($owner: String!, $name: String!, $labels: [String!], $filter: IssueFilters, $after: String) "
    "{ repository(owner: $owner, name: $name) "
    "{ issues(first: 100, after: $after, states: OPEN, labels: $labels, filterBy: $filter, "
    "orderBy: {field: CREATED_AT, direction: ASC}) "
    f"{{ pageInfo {{ hasNextPage endCursor }} nodes {{ __typename number title state url {_PULLS} }} }} }} }}"
)
_TEXT_CHARS_MAX = 300
ME, NOBODY = "@me", "none"


class GitHub(IssueTracker):
    """GitHub as one account of `gh` sees it. A name whose host is not among `hosts` is never asked about: gh would
    send its token there."""

    title = "GitHub"

    def __init__(self, gh: GhProgram, hosts: Sequence[str] = (GITHUB_HOST,)) -> None:
        self._gh = gh
        self._hosts = hosts

    def states(self, names: Sequence[str]) -> dict[str, IssueState]:
        found = {name: IssueState(name, UNKNOWN) for name in names}
        by_host: dict[str, list[str]] = {}
        for name in names:
            place = place_of(name)
            if place is not None and place[0] in self._hosts:
                by_host.setdefault(place[0], []).append(name)
        for host, known in by_host.items():
            for first in range(0, len(known), TRACKER_ISSUES_AT_ONCE):
                found |= self._asked(host, known[first : first + TRACKER_ISSUES_AT_ONCE])
        return found

    def _asked(self, host: str, names: list[str]) -> dict[str, IssueState]:
        parts = []
        for at, name in enumerate(names):
            _, owner, repository, number = place_of(name) or ("", "", "", "0")
            parts.append(
                f'n{at}: repository(owner: "{owner}", name: "{repository}") '
                f"{{ it: issueOrPullRequest(number: {number}) {{ {_FIELDS} }} }}"
            )
        document = self._gh.graphql(host, f"{{ {' '.join(parts)} }}")
        found = {}
        for at, name in enumerate(names):
            repository_of = document["data"].get(f"n{at}")
            node = repository_of.get("it") if isinstance(repository_of, dict) else None
            found[name] = judged(name, node)
        if all(each.state == UNKNOWN for each in found.values()):
            _raise_unless_not_found(document)
        return found

    def pages(
        self, place: str, label: str | None, assignee: str | None, most: int
    ) -> Iterator[list[IssueState]]:
        host, owner, name = place.split("/")
        if host not in self._hosts:
            raise NoAnswer(f"{host} is not the host of this clone, and GH_HOST does not name it")
        asked: Document = {"owner": owner, "name": name, "labels": None if label is None else [label]}
        if assignee is not None:
            asked["filter"] = {"assignee": self._login(host, assignee)}
        where = SCHEME + ("" if host == GITHUB_HOST else f"{host}/") + f"{owner}/{name}/issues/"
        seen = 0
        while seen < most:
            issues = self._page(host, asked, place)
            nodes = [node for node in _nodes(issues) if isinstance(node.get("number"), int)][: most - seen]
            yield [judged(f"{where}{node['number']}", node) for node in nodes]
            seen += len(nodes)
            info = issues.get("pageInfo")
            after = info.get("endCursor") if isinstance(info, dict) and info.get("hasNextPage") else None
            if not isinstance(after, str) or after == asked.get("after"):
                return
            asked["after"] = after

    def _page(self, host: str, asked: Document, place: str) -> Document:
        document = self._gh.graphql(host, _LIST, asked)
        repository = document["data"].get("repository")
        if not isinstance(repository, dict) or not isinstance(repository.get("issues"), dict):
            raise NoAnswer(f"GitHub has no repository {place}, or this account may not see it")
        issues: Document = repository["issues"]
        return issues

    def _login(self, host: str, assignee: str) -> str | None:
        if assignee == NOBODY:
            return None
        if assignee != ME:
            return assignee
        viewer = self._gh.graphql(host, "{ viewer { login } }")["data"].get("viewer")
        login = _login_of({"author": viewer})
        if not login:
            raise NoAnswer("GitHub does not say who gh is logged in as")
        return login

    def announce(self, name: str, text: str | None, label: str | None, token: int) -> None:
        place = place_of(name)
        if place is not None and place[0] in self._hosts:
            GitHubNotices(self._gh, place).announce(text, label, token)

    def withdraw(self, name: str, label: str | None, token: int, *, has_comment: bool) -> None:
        place = place_of(name)
        if place is not None and place[0] in self._hosts:
            GitHubNotices(self._gh, place).withdraw(label, token, has_comment=has_comment)


def place_of(name: str) -> tuple[str, str, str, str] | None:
    """Host, owner, repository and number of a GitHub issue's one name; None for every other name."""
    if not name.startswith(SCHEME):
        return None
    from dibs.core.references import reference_of

    found = reference_of(name)
    if found is None or found.name != name:
        return None
    parts = name.removeprefix(SCHEME).split("/")
    host = parts.pop(0) if len(parts) == 5 else GITHUB_HOST
    return host, parts[0], parts[1], parts[3]


def judged(name: str, node: object) -> IssueState:
    """How an issue or a pull request stands. Pure."""
    if not isinstance(node, dict):
        return IssueState(name, UNKNOWN)
    state, url, title = node.get("state"), _text(node.get("url")), _text(node.get("title"))
    at = _text(node.get("closedAt"))
    if node.get("__typename") == "PullRequest":
        if state == "OPEN":
            return IssueState(name, FREE, url, title=title)
        how = "merged" if state == "MERGED" else "closed"
        return IssueState(name, DONE, url, _login_of(node), how, at, title)
    pulls = _nodes(node.get("closedByPullRequestsReferences"))
    if state == "CLOSED":
        how = _text(node.get("stateReason")).lower().replace("_", " ")
        merged = next((pull for pull in pulls if pull.get("state") == "MERGED"), None)
        if merged is None or how in ("not planned", "duplicate"):
            return IssueState(name, DONE, url, "", f"closed as {how}" if how else "closed", at, title)
        return IssueState(
            name,
            DONE,
            _text(merged.get("url")) or url,
            _login_of(merged),
            "closed by a pull request",
            at,
            title,
        )
    if state != "OPEN":
        return IssueState(name, UNKNOWN)
    taken = next((pull for pull in pulls if pull.get("state") == "OPEN"), None)
    if taken is None:
        return IssueState(name, FREE, url, title=title)
    return IssueState(name, TAKEN, _text(taken.get("url")), _login_of(taken) or "somebody", title=title)


def _raise_unless_not_found(document: Document) -> None:
    """Nothing at all was found. If GitHub gives another reason than that there is no such thing, it gave no answer."""
    errors = document.get("errors")
    for error in errors if isinstance(errors, list) else ():
        if isinstance(error, dict) and error.get("type") != "NOT_FOUND":
            raise NoAnswer(f"GitHub: {_text(error.get('message')) or 'an error'}".rstrip("."))


def _nodes(connection: object) -> list[Document]:
    nodes = connection.get("nodes") if isinstance(connection, dict) else None
    return [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []


def _login_of(node: Document) -> str:
    author = node.get("author")
    return _text(author.get("login")) if isinstance(author, dict) else ""


def _text(value: object) -> str:
    """A text of a stranger, in one line, without what a terminal would obey."""
    if not isinstance(value, str):
        return ""
    return "".join([char if char.isprintable() else " " for char in value[:_TEXT_CHARS_MAX]]).strip()
