"""gh next: claim the first open issue of GitHub that nobody works on."""

from __future__ import annotations

from dibs.agents.commands.issue_checks import claim_page, guard_of
from dibs.agents.repository.job_names import JobNames
from dibs.agents.tracker.port import NoAnswer, refused_several
from dibs.base.checkout import current_folder
from dibs.base.errors import ServerUnreachable
from dibs.base.jsontext import Document
from dibs.cli.commands.claim import claim_document
from dibs.cli.commands.claim_many import granted_any, refused_any
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import CLAIM_KEEP, CLAIM_OWNER, CLAIM_TERMS, REQUEST_KEY, count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, is_failure, no, refusal_exit
from dibs.cli.framework.spec import Command, Option
from dibs.cli.text.words import plain
from dibs.core.limits import NAMES_MAX, TRACKER_ISSUES_MAX, TRACKER_LIST_MS_MAX
from dibs.wire.codes import NO
from dibs.wire.issue_names import GITHUB, GITHUB_HOST, IssueHosts, repository_at


def gh_next(call: Call) -> Answer:
    place = _place(call)
    most = count(call, "limit", TRACKER_ISSUES_MAX) or TRACKER_ISSUES_MAX
    document = claim_document(call)
    guard = guard_of(call)
    tracker = guard.tracker([f"github://{place}/issues/1"], TRACKER_LIST_MS_MAX)
    refused: list[Document] = []
    try:
        pages = tracker.pages(place, call.values.get("label"), call.values.get("assignee"), most)
        for page in pages:
            reply, titles = claim_page(call, guard, page, document), {issue.name: issue.title for issue in page}
            body: Document = reply.body or {}
            if is_failure(reply):
                return refused_any(call, reply, document)
            if refusal_exit(reply) is None:
                body["skipped"] = [*refused, *body.get("skipped", ())][:NAMES_MAX]
                body["title"] = titles[body["name"]]
                return granted_any(call, body, document, body["title"])
            refused += body["refused"]
    except NoAnswer as error:
        raise ServerUnreachable(f"GitHub gave no answer: {error}. Nothing was claimed.") from None
    return _nothing(call, place, refused, document)


def _nothing(call: Call, place: str, refused: list[Document], document: Document) -> Answer:
    if refused:
        document["names"] = [entry["name"] for entry in refused]
        return refused_any(call, refused_several(refused), document)
    label, assignee = call.values.get("label"), call.values.get("assignee")
    text = f"{plain(place)} has no open issue"
    text += "" if label is None else f" with the label {plain(label)}"
    text += "" if assignee is None else f" assigned to {plain(assignee)}"
    empty: Document = {"status": "held", "refused": [], "retry_after_ms": 60_000}
    return no(NO, empty, f"{text}.", code="held", message=f"{text}.")


def _place(call: Call) -> str:
    """The repository, as `host/owner/name`: the one given, else that of the clone around."""
    given = call.values.get("repo")
    if given is None:
        found = JobNames(call.env, current_folder()).hosted_repository()
        if found is None or found.kind != GITHUB:
            raise UsageError("This is no clone of a repository on GitHub. Name one: --repo OWNER/NAME.", call.command)
        return f"{found.host}/{found.path}"
    *hosts, owner, name = ["", "", *given.split("/")][-3:] if given.count("/") in (1, 2) else ["", "", ""]
    host = "".join(hosts) or GITHUB_HOST
    found = repository_at(f"{host}/{owner}/{name}", IssueHosts(github=[host]))
    if found is None or found.kind != GITHUB:
        raise UsageError(f"--repo is OWNER/NAME or HOST/OWNER/NAME, not {given!a}.", call.command)
    return f"{found.host}/{found.path}"


COMMANDS = {
    "gh next": Command(
        gh_next,
        Option("--label NAME", "only issues with this label"),
        Option("--repo [HOST/]OWNER/NAME", "the repository (default: that of the clone around)"),
        Option("--assignee LOGIN", "only issues of this user; @me: yours, none: nobody's"),
        Option("--limit N", f"look at this many issues at most (default {TRACKER_ISSUES_MAX})"),
        *CLAIM_OWNER,
        *[option for option in CLAIM_TERMS if option is not REQUEST_KEY],
        *CLAIM_KEEP,
        summary="claim the first open issue of GitHub that nobody works on",
        about=(
            "Lists the open issues of a repository on GitHub, oldest first, through the gh program, which "
            "must be logged in. Skips issues that an open pull request closes, and those that are "
            "claimed or done in dibs. Claims the first that is left, in one atomic step for each page of a "
            "hundred, and asks GitHub once more about that one before it answers. With --quiet it prints "
            "the name, a tab, and the lease id."
        ),
        examples=(
            ("dibs gh next --label ready", "the oldest issue that is ready"),
            ('dibs gh next --label ready --keep-for "$AGENT_PID"', "for an agent that runs longer than the TTL"),
            (r"IFS=$'\t' read -r JOB LEASE < <(dibs gh next -q --label ready) || exit 0", "in a script"),
        ),
        exits=(
            (0, "one of the issues is yours"),
            (1, "none of the issues is available, or there is none"),
            (2, "the session has ended"),
            (4, "all of the issues are done"),
            (69, "GitHub or the store cannot be reached; nothing was claimed"),
        ),
    ),
}
