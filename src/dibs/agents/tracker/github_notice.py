"""The comment and the label that say on an issue who works on it.

Only the owner of the job writes, so two racers never leave two comments. The comment begins with a hidden marker that
has the fencing token. So the next owner finds the comment of one that died and edits it, and an owner that was replaced
leaves the later one's alone. Comments that this account may not change are not ours.
"""

from __future__ import annotations

from dibs.agents.tracker.port import NoAnswer
from dibs.core.limits import TRACKER_COMMENTS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.agents.tracker.gh_program import GhProgram

    Document = dict[str, Any]

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


class _Comment:
    __slots__ = ("can_delete", "id", "token")

    def __init__(self, node: Document) -> None:
        self.id = str(node["id"])
        self.token = token_in(node.get("body")) or 0
        self.can_delete = bool(node.get("viewerCanDelete"))


class GitHubNotices:
    """The notices on one issue. `place` is its host, owner, repository and number."""

    def __init__(self, gh: GhProgram, place: tuple[str, str, str, str]) -> None:
        self._gh = gh
        self._host, self._owner, self._name, self._number = place

    def announce(self, text: str | None, label: str | None, token: int) -> None:
        if text is not None:
            issue, found = self._comments()
            if any(comment.token > token for comment in found):
                return  # a later owner has written; the job is not ours any more
            body = marked(text, token)
            if found:
                self._change(_EDIT, {"id": found[0].id, "body": body})
            else:
                self._change(_ADD, {"id": issue, "body": body})
            self._delete(found[1:])
        if label is not None:
            self._gh.rest(self._host, "POST", f"{self._path}/labels", {"labels": [label]})

    def withdraw(self, label: str | None, token: int, *, has_comment: bool) -> None:
        if has_comment:
            _, found = self._comments()
            if any(comment.token > token for comment in found):
                return
            self._delete(found)
        if label is not None:
            from urllib.parse import quote

            self._gh.rest(self._host, "DELETE", f"{self._path}/labels/{quote(label, safe='')}")

    @property
    def _path(self) -> str:
        return f"repos/{self._owner}/{self._name}/issues/{self._number}"

    def _comments(self) -> tuple[str, list[_Comment]]:
        """The issue's own id, and the comments with a marker that this account may change, newest first."""
        asked: Document = {"owner": self._owner, "name": self._name, "number": int(self._number)}
        found: list[_Comment] = []
        issue = ""
        for _ in range(TRACKER_COMMENTS_MAX // _PAGE):
            issue, comments = self._page(asked)
            for each in reversed(comments.get("nodes") or []):
                if isinstance(each, dict) and each.get("viewerCanUpdate") and token_in(each.get("body")):
                    found.append(_Comment(each))
            info = comments.get("pageInfo")
            before = (
                info.get("startCursor") if isinstance(info, dict) and info.get("hasPreviousPage") else None
            )
            if found or not before:
                break
            asked["before"] = before
        return issue, found

    def _page(self, asked: Document) -> tuple[str, Document]:
        repository = self._gh.graphql(self._host, _READ, asked)["data"].get("repository")
        node = repository.get("it") if isinstance(repository, dict) else None
        comments = node.get("comments") if isinstance(node, dict) else None
        if not isinstance(node, dict) or not isinstance(comments, dict):
            raise NoAnswer("GitHub does not show the comments of this issue")
        return str(node.get("id")), comments

    def _delete(self, comments: list[_Comment]) -> None:
        for comment in comments:
            if comment.can_delete:
                self._change(_DELETE, {"id": comment.id})

    def _change(self, mutation: str, variables: Document) -> None:
        document = self._gh.graphql(self._host, mutation, variables)
        if document.get("errors"):
            raise NoAnswer("GitHub did not take the comment")


def marked(text: str, token: int) -> str:
    return f"{_MARK}{token}{_MARK_END}\n{text}"


def token_in(body: object) -> int | None:
    """The fencing token in a comment's marker; None if the comment is none of dibs."""
    if not isinstance(body, str) or not body.startswith(_MARK):
        return None
    token = body[len(_MARK) :].partition(_MARK_END)[0]
    return int(token) if 0 < len(token) <= 18 and token.isascii() and token.isdigit() else None
