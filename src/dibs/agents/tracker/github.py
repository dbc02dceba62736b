"""GitHub, through `gh api`. One GraphQL query gets the state of up to fifty issues.

The state of the issue decides. A closed one is done, whatever closed it. An open one is not done, even if a merged pull
request once closed it: somebody reopened it. An open pull request that closes an open issue has it taken. An issue that
this account may not see is UNKNOWN.
"""

from __future__ import annotations

from dibs.agents.tracker.port import DONE, FREE, TAKEN, UNKNOWN, IssueState, NoAnswer
from dibs.base.cheap import Any, Iterator, Mapping, Sequence
from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.base.git_program import GitResult, run_program
from dibs.base.jsontext import Document, decode, encode
from dibs.core.limits import TRACKER_COMMENTS_MAX, TRACKER_ISSUES_AT_ONCE
from dibs.wire.issue_names import GITHUB_HOST, TRACKED, reference_of

# The comment and the label that say on an issue who works on it.
#
# Only the owner of the job writes, so two racers never leave two comments. The comment begins with a hidden marker
# that has the fencing token. So the next owner finds the comment of one that died and edits it, and an owner that was
# replaced leaves the later one's alone. Comments that this account may not change are not ours.

_MARK, _MARK_END = "<!-- dibs:token=", " -->"
_PAGE = 100
_COMMENTS = (
    "comments(last: 100, before: $before) { pageInfo { hasPreviousPage startCursor } "
    "nodes { id body viewerCanUpdate viewerCanDelete } }"
)
_READ = (
    "query($owner: String!, $name: String!, $number: Int!, $before: String) "
    "{ repository(owner: $owner, name: $name) { it: issueOrPullRequest(number: $number) "
    f"{{ ... on Issue {{ id {_COMMENTS} }} ... on PullRequest {{ id {_COMMENTS} }} }} }} }}"
)
_ADD = "mutation($id: ID!, $body: String!) { addComment(input: {subjectId: $id, body: $body}) { clientMutationId } }"
_EDIT = "mutation($id: ID!, $body: String!) { updateIssueComment(input: {id: $id, body: $body}) { clientMutationId } }"
_DELETE = "mutation($id: ID!) { deleteIssueComment(input: {id: $id}) { clientMutationId } }"


class GitHubNotices:
    """The notices on one issue. `place` is its host, owner, repository and number."""

    def __init__(self, gh: GhProgram, place: tuple[str, str, str, str]) -> None:
        self._gh = gh
        self._host, self._owner, self._name, self._number = place

    def announce(self, text: str | None, label: str | None, token: int) -> None:
        if text is not None:
            issue, found = self._comments()
            if any((token_in(comment.get("body")) or 0) > token for comment in found):
                return  # a later owner has written; the job is not ours any more
            body = marked(text, token)
            if found:
                self._change(_EDIT, {"id": str(found[0]["id"]), "body": body})
            else:
                self._change(_ADD, {"id": issue, "body": body})
            self._delete(found[1:])
        if label is not None:
            self._gh.rest(self._host, "POST", f"{self._path}/labels", {"labels": [label]})

    def withdraw(self, label: str | None, token: int, *, has_comment: bool) -> None:
        if has_comment:
            _, found = self._comments()
            if any((token_in(comment.get("body")) or 0) > token for comment in found):
                return
            self._delete(found)
        if label is not None:
            from urllib.parse import quote

            self._gh.rest(self._host, "DELETE", f"{self._path}/labels/{quote(label, safe='')}")

    @property
    def _path(self) -> str:
        return f"repos/{self._owner}/{self._name}/issues/{self._number}"

    def _comments(self) -> tuple[str, list[Document]]:
        """The issue's own id, and the comments with a marker that this account may change, newest first."""
        asked: Document = {"owner": self._owner, "name": self._name, "number": int(self._number)}
        found: list[Document] = []
        issue = ""
        for _ in range(TRACKER_COMMENTS_MAX // _PAGE):
            node = at(self._gh.graphql(self._host, _READ, asked), "data", "repository", "it")
            comments = at(node, "comments")
            if not isinstance(comments, dict):
                raise NoAnswer("GitHub does not show the comments of this issue")
            issue = str(node["id"])
            for each in reversed(comments.get("nodes") or []):
                if isinstance(each, dict) and each.get("viewerCanUpdate") and token_in(each.get("body")):
                    found.append(each)
            before = at(comments, "pageInfo", "startCursor") if at(comments, "pageInfo", "hasPreviousPage") else None
            if found or not before:
                break
            asked["before"] = before
        return issue, found

    def _delete(self, comments: list[Document]) -> None:
        for comment in comments:
            if comment.get("viewerCanDelete"):
                self._change(_DELETE, {"id": str(comment["id"])})

    def _change(self, mutation: str, variables: Document) -> None:
        if self._gh.graphql(self._host, mutation, variables).get("errors"):
            raise NoAnswer("GitHub did not take the comment")


def marked(text: str, token: int) -> str:
    return f"{_MARK}{token}{_MARK_END}\n{text}"


def token_in(body: object) -> int | None:
    """The fencing token in a comment's marker; None if the comment is none of dibs."""
    if not isinstance(body, str) or not body.startswith(_MARK):
        return None
    token = body[len(_MARK) :].partition(_MARK_END)[0]
    return int(token) if 0 < len(token) <= 18 and token.isascii() and token.isdigit() else None


# Runs the `gh` program, which has the user's credentials and talks to GitHub.
#
# All calls of one object share one deadline. A request is written to gh's standard input as JSON, so no text is taken
# for a flag or a file. gh gets no terminal to ask on.

_LOGIN = 4  # gh's exit code where it has no credentials
_WORDS_SHOWN_MAX = 300
_QUIET = {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1"}
# They would make gh print colours, or requests with their headers.
_LEFT_OUT = ("GH_FORCE_TTY", "CLICOLOR_FORCE", "GH_DEBUG", "DEBUG")


class GhProgram:
    def __init__(self, env: Mapping[str, str], timeout_ms: int) -> None:
        self._env = {key: value for key, value in env.items() if key not in _LEFT_OUT} | _QUIET
        self._timeout_ms = timeout_ms
        self._until_ms = steady_ms() + timeout_ms

    def graphql(self, host: str, query: str, variables: Document | None = None) -> Document:
        """Return what a query gives: `data`, and `errors` where only a part of it was answered."""
        done = self._run(["graphql"], host, {"query": query, "variables": variables or {}})
        try:
            document = decode(done.out.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(at(document, "data"), dict):
            raise NoAnswer(next(_errors(document), "") or self._why(done))
        answered: Document = document
        return answered

    def rest(self, host: str, method: str, path: str, body: Document | None = None) -> None:
        """A request that changes something. Raises NoAnswer unless it succeeded."""
        done = self._run(["--method", method, path], host, body)
        if done.code:
            raise NoAnswer(self._why(done))

    def _run(self, words: list[str], host: str, body: Document | None) -> GitResult:
        left_ms = self._until_ms - steady_ms()
        if left_ms <= 0:
            raise NoAnswer(f"gh gave no answer within {self._timeout_ms / 1000:g} s")
        given = b"" if body is None else encode(body).encode("utf-8", "backslashreplace")
        sends = [] if body is None else ["--input", "-"]
        try:
            done = run_program(
                ["gh", "api", "--hostname", host, *words, *sends],
                env=self._env,
                given=given,
                timeout_ms=left_ms,
                install="GitHub's gh",
            )
        except StoreUnavailable as error:
            raise NoAnswer(error.details.rstrip(".")) from None
        if done.timed_out:
            raise NoAnswer(f"gh gave no answer within {self._timeout_ms / 1000:g} s")
        if done.code == _LOGIN:
            raise NoAnswer(f"gh is not logged in to {host}: run `gh auth login`")
        return done

    def _why(self, done: GitResult) -> str:
        if not done.code:
            return "gh printed something that is no answer"
        return f"gh: {done.words.removeprefix('gh: ')}"[:_WORDS_SHOWN_MAX].rstrip(".")


def at(value: Any, *keys: str) -> Any:
    """The value at a path in a stranger's document; None if the path ends before."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _errors(document: object, passing: str = "") -> Iterator[str]:
    """The errors in an answer, in words, but for those of the type `passing`."""
    errors = at(document, "errors")
    for error in errors if isinstance(errors, list) else ():
        if isinstance(error, dict) and (not passing or error.get("type") != passing):
            yield f"GitHub: {_text(error.get('message')) or 'an error'}"[:_WORDS_SHOWN_MAX].rstrip(".")


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


class GitHub:
    """GitHub as one account of `gh` sees it. Only `hosts` are asked: gh sends its token there."""

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
        for place, name in enumerate(names):
            _, owner, repository, number = place_of(name) or ("", "", "", "0")
            parts.append(
                f'n{place}: repository(owner: "{owner}", name: "{repository}") '
                f"{{ it: issueOrPullRequest(number: {number}) {{ {_FIELDS} }} }}"
            )
        document = self._gh.graphql(host, f"{{ {' '.join(parts)} }}")
        found = {name: judged(name, at(document, "data", f"n{place}", "it")) for place, name in enumerate(names)}
        if all(each.state == UNKNOWN for each in found.values()):
            for error in _errors(document, "NOT_FOUND"):  # if it gives another reason, it gave no answer
                raise NoAnswer(error)
        return found

    def pages(self, place: str, label: str | None, assignee: str | None, most: int) -> Iterator[list[IssueState]]:
        host, owner, name = place.split("/")
        if host not in self._hosts:
            raise NoAnswer(f"{host} is not the host of this clone, and GH_HOST does not name it")
        asked: Document = {"owner": owner, "name": name, "labels": None if label is None else [label]}
        if assignee is not None:
            asked["filter"] = {"assignee": self._login(host, assignee)}
        where = TRACKED + ("" if host == GITHUB_HOST else f"{host}/") + f"{owner}/{name}/issues/"
        seen = 0
        while seen < most:
            issues = at(self._gh.graphql(host, _LIST, asked), "data", "repository", "issues")
            if not isinstance(issues, dict):
                raise NoAnswer(f"GitHub has no repository {place}, or this account may not see it")
            nodes = [node for node in _nodes(issues) if isinstance(node.get("number"), int)][: most - seen]
            yield [judged(f"{where}{node['number']}", node) for node in nodes]
            seen += len(nodes)
            after = at(issues, "pageInfo", "endCursor") if at(issues, "pageInfo", "hasNextPage") else None
            if not isinstance(after, str) or after == asked.get("after"):
                return
            asked["after"] = after

    def _login(self, host: str, assignee: str) -> str | None:
        if assignee == NOBODY:
            return None
        if assignee != ME:
            return assignee
        login = _text(at(self._gh.graphql(host, "{ viewer { login } }"), "data", "viewer", "login"))
        if not login:
            raise NoAnswer("GitHub does not say who gh is logged in as")
        return login

    def notices(self, name: str) -> GitHubNotices | None:
        place = place_of(name)
        return GitHubNotices(self._gh, place) if place is not None and place[0] in self._hosts else None


def place_of(name: str) -> tuple[str, str, str, str] | None:
    """Host, owner, repository and number of a GitHub issue's one name; None for every other name."""
    if not name.startswith(TRACKED):
        return None
    found = reference_of(name)
    if found is None or found.name != name:
        return None
    parts = name.removeprefix(TRACKED).split("/")
    host = parts.pop(0) if len(parts) == 5 else GITHUB_HOST
    return host, parts[0], parts[1], parts[3]


def judged(name: str, node: object) -> IssueState:
    """Return how an issue or a pull request stands. Pure."""
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
        url = _text(merged.get("url")) or url
        return IssueState(name, DONE, url, _login_of(merged), "closed by a pull request", at, title)
    if state != "OPEN":
        return IssueState(name, UNKNOWN)
    taken = next((pull for pull in pulls if pull.get("state") == "OPEN"), None)
    if taken is None:
        return IssueState(name, FREE, url, title=title)
    return IssueState(name, TAKEN, _text(taken.get("url")), _login_of(taken) or "somebody", title=title)


def _nodes(connection: object) -> list[Document]:
    nodes = at(connection, "nodes")
    return [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []


def _login_of(node: Document) -> str:
    return _text(at(node, "author", "login"))


def _text(value: object) -> str:
    """A text of a stranger, in one line, without what a terminal would obey."""
    if not isinstance(value, str):
        return ""
    return "".join([char if char.isprintable() else " " for char in value[:_TEXT_CHARS_MAX]]).strip()
