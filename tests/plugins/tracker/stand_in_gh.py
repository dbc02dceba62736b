"""A stand-in for GitHub's `gh` program. It is not gh, and it reaches no GitHub: it answers from a file, in the shapes
that GitHub's documentation has for these requests. The file STAND_IN_GH names is a JSON document:

    {"issues": {"acme/app": {"42": {...}}}, "mode": "", "viewer": "ann"}

What it is asked goes to a file beside it, one line each.
An issue has `state`, `stateReason`, `title`, `pulls` (state, url, login), `comments`, `labels`, or `pull`: true.
`mode` is how gh fails: hang, half, empty, list, exit1, exit4, limited. `frozen_list` is an older list of issues.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from typing import Any

Document = dict[str, Any]
Answer = tuple[int, Any]

STATE = os.environ["STAND_IN_GH"]


def main() -> int:
    words = sys.argv[1:]
    given = sys.stdin.buffer.read() if "--input" in words else b""
    asked = json.loads(given) if given else None
    with open(STATE + ".calls", "a+", encoding="utf-8") as calls:
        fcntl.flock(calls, fcntl.LOCK_EX)
        calls.write(json.dumps({"words": words, "asked": asked, "env": seen()}) + "\n")
        with open(STATE, encoding="utf-8") as file:
            before = file.read()
        state = json.loads(before)
        modes = state.get("modes") or []
        mode = modes.pop(0) if modes else state.get("mode", "")
        failed = failure(mode)
        code, answer = failed if failed is not None else answered(state, words, asked)
        if changes(words, asked) or "modes" in state:
            with open(f"{STATE}.new", "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.replace(f"{STATE}.new", STATE)
    if mode == "hang":
        time.sleep(60)
    sys.stdout.write(answer if isinstance(answer, str) else json.dumps(answer))
    if code:
        login = "To get started, run: gh auth login\n"
        sys.stderr.write("gh: \x1b[31mno such luck\x1b[0m\n" if code == 1 else login)
    return code


def changes(words: list[str], asked: Any) -> bool:
    return "graphql" not in words or str((asked or {}).get("query")).startswith("mutation")


def seen() -> Document:
    return {key: os.environ.get(key) for key in ("GH_PROMPT_DISABLED", "GH_DEBUG", "GH_FORCE_TTY")}


def failure(mode: str) -> Answer | None:
    limited = {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded for user ID 1."}]}
    modes = {
        "half": (0, '{"data": {"n0": {"it"'),
        "empty": (0, ""),
        "list": (0, "[1, 2]"),
        "exit1": (1, ""),
        "exit4": (4, ""),
        "limited": (1, limited),
    }
    return modes.get(mode)


def answered(state: Document, words: list[str], asked: Any) -> Answer:
    if "graphql" not in words:
        return rest(state, words, asked)
    query, given = asked["query"], asked.get("variables") or {}
    if query.startswith("mutation"):
        return mutation(state, query, given)
    if "viewer { login }" in query:
        return 0, {"data": {"viewer": {"login": state.get("viewer", "ann")}}}
    if "comments(last" in query:
        return comments(state, given)
    if "issues(first" in query:
        return listed(state, given)
    return looked_up(state, query)


ONE = re.compile(r'(n\d+): repository\(owner: "([^"]*)", name: "([^"]*)"\) \{ it: issueOrPullRequest\(number: (\d+)\)')


def looked_up(state: Document, query: str) -> Answer:
    data: Document = {}
    errors: list[Document] = []
    for alias, owner, name, number in ONE.findall(query):
        issue = state["issues"].get(f"{owner}/{name}", {}).get(number)
        data[alias] = {"it": None if issue is None else node(f"{owner}/{name}", number, issue)}
        if issue is None:
            errors.append({"type": "NOT_FOUND", "path": [alias, "it"], "message": f"no issue {number}"})
    return (1, {"data": data, "errors": errors}) if errors else (0, {"data": data})


def node(place: str, number: str, issue: Document) -> Document:
    is_pull = issue.get("pull")
    found = {
        "__typename": "PullRequest" if is_pull else "Issue",
        "title": issue.get("title", f"Issue {number}"),
        "state": issue.get("state", "OPEN"),
        "url": f"https://github.com/{place}/{'pull' if is_pull else 'issues'}/{number}",
        "closedAt": issue.get("closedAt", "2026-11-01T10:00:00Z" if issue.get("state", "OPEN") != "OPEN" else None),
    }
    if is_pull:
        return found | {"author": {"login": issue.get("login", "ann")}}
    pulls = [
        {"state": pull["state"], "url": pull["url"], "author": pull["login"] and {"login": pull["login"]}}
        for pull in issue.get("pulls", [])
    ]
    reason = {"stateReason": issue.get("stateReason")}
    return found | reason | {"closedByPullRequestsReferences": {"nodes": pulls}, "number": int(number)}


def listed(state: Document, given: Document) -> Answer:
    place = f"{given['owner']}/{given['name']}"
    issues = state.get("frozen_list") or state["issues"].get(place)
    if issues is None:
        missing = {
            "type": "NOT_FOUND",
            "message": f"Could not resolve to a Repository with the name '{place}'.",
        }
        return 1, {"data": {"repository": None}, "errors": [missing]}
    wanted = [
        node(place, number, issue)
        for number, issue in issues.items()
        if issue.get("state", "OPEN") == "OPEN" and not issue.get("pull") and suits(issue, given)
    ]
    first = int(given.get("after") or 0)
    info = {"hasNextPage": first + 100 < len(wanted), "endCursor": str(first + 100)}
    page = {"pageInfo": info, "nodes": wanted[first : first + 100]}
    return 0, {"data": {"repository": {"issues": page}}}


def suits(issue: Document, given: Document) -> bool:
    labels = given.get("labels")
    if labels and not set(labels) & set(issue.get("labels", [])):
        return False
    return "filter" not in given or issue.get("assignee") == given["filter"]["assignee"]


def comments(state: Document, given: Document) -> Answer:
    place = f"{given['owner']}/{given['name']}"
    found = state["issues"][place][str(given["number"])].get("comments", [])
    until = int(given["before"]) if given.get("before") else len(found)
    first = max(0, until - 100)
    nodes = [{"id": f"{place}/{given['number']}/{each['id']}", **each_shown(each)} for each in found[first:until]]
    info = {"hasPreviousPage": first > 0, "startCursor": str(first)}
    it = {"id": f"{place}/{given['number']}", "comments": {"pageInfo": info, "nodes": nodes}}
    return 0, {"data": {"repository": {"it": it}}}


def each_shown(comment: Document) -> Document:
    mine = comment.get("mine", True)
    return {"body": comment["body"], "viewerCanUpdate": mine, "viewerCanDelete": mine}


def mutation(state: Document, query: str, given: Document) -> Answer:
    owner, name, number, *comment = given["id"].split("/")
    issue = state["issues"][f"{owner}/{name}"][number]
    found = issue.setdefault("comments", [])
    if "addComment" in query:
        state["made"] = state.get("made", 0) + 1
        found.append({"id": f"c{state['made']}", "body": given["body"]})
    for each in [each for each in found if [each["id"]] == comment]:
        if "deleteIssueComment" in query:
            found.remove(each)
        else:
            each["body"] = given["body"]
    return 0, {"data": {"done": {"clientMutationId": None}}}


def rest(state: Document, words: list[str], asked: Any) -> Answer:
    at = words.index("--method")
    method, path = words[at + 1], words[at + 2]
    _, owner, name, _, number, _, *label = path.split("/")
    labels = state["issues"][f"{owner}/{name}"][number].setdefault("labels", [])
    if method == "POST":
        labels += [each for each in asked["labels"] if each not in labels]
        return 0, labels
    wanted = label[0].replace("%20", " ")
    if wanted not in labels:
        return 1, {"message": "Label does not exist"}
    labels.remove(wanted)
    return 0, labels


if __name__ == "__main__":
    sys.exit(main())
