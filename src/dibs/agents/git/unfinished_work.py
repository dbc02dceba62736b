"""Unfinished work: uncommitted changes of an agent that has ended.

When an agent ends or dies, its files are free. One of them that is changed, and was not written since then, has the
agent's unfinished work in it. Nothing notes that: it follows from the last owner of the file's claim, from git, and
from the time of the file. So a commit, a stash or a revert ends it, and so does the edit of a person. The store forgets
who had a file a day after it was free.

The next agent that takes such a file is told once, because its claim is new only once. A session that is resumed takes
up its own files.
"""

from __future__ import annotations

import os

from dibs.agents.git.checkout_claims import Checkout, agent_of
from dibs.agents.harness.agent_identity import Agent
from dibs.base.cheap import Mapping
from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError
from dibs.base.jsontext import Document
from dibs.base.terminal import quoted
from dibs.cli.framework.context import Call
from dibs.core.durations import span
from dibs.core.records import EXPIRED, FREE
from dibs.wire.parts import instant_ms

_LINES_MAX = 5
_FILE_CHARS_MAX = 200
_FILES_MAX = 1000  # in one command line
_SKEW_MS = 2_000  # between the clock of the store and that of the files


def taken_over(checkout: Checkout) -> list[Document]:
    """The files that this agent's claims have just got, and that hold the unfinished work of another agent: `file` and
    what the store says of its last owner."""
    notes: dict[str, str] = {}
    new: dict[str, Document] = {}
    for lease in checkout.granted:
        previous = lease.get("previous")
        if not previous or lease.get("held_before") or not checkout.is_anothers(previous):
            continue
        file = checkout.file_of(lease["name"])
        if previous.get("checkpoint"):
            notes[file] = previous["checkpoint"]
        if checkout.is_here(lease["name"]):
            new[file] = {**previous, "file": file}
    found = _unfinished(checkout, new)
    return [{**each, "checkpoint": notes.get(each["file"])} for each in found]


def left_here(checkout: Checkout, *, own: bool = False) -> list[Document]:
    """All unfinished work in this checkout that nobody has taken up; `own`: only the agent's."""
    ended = {}
    for free in checkout.listed_here(FREE):
        last = free.get("previous")
        if last and (not own or agent_of(last) == checkout.agent.mark):
            ended[free["file"]] = {**last, "file": free["file"]}
    return _unfinished(checkout, ended)


def left_in(call: Call, root: str) -> list[Document]:
    """The same for the checkout with this top, as `dibs list` shows it to anybody."""
    try:
        checkout = Checkout(call, root, Agent("", ""))
        try:
            return left_here(checkout)
        finally:
            checkout.close()
    except DibsError:  # the list itself is there
        return []


def take_up(checkout: Checkout) -> list[str]:
    """Claim the agent's own unfinished files again, for a session that is resumed. Returns those that it has now."""
    left = [each["file"] for each in left_here(checkout, own=True)]
    refused = {each["file"] for each in checkout.claim(left, each=True)} if left else set()
    return [file for file in left if file not in refused]


def _unfinished(checkout: Checkout, ended: Mapping[str, Document]) -> list[Document]:
    """Those of the files that are changed, and were not written since their last owner ended. git is asked last."""
    old = {
        file: last
        for file, last in ended.items()
        if _written_ms(os.path.join(checkout.root, file)) <= instant_ms(last["at"]) + _SKEW_MS
    }
    if not old:
        return []
    states = checkout.repository.states([] if checkout.folds else list(old)[:_FILES_MAX])
    return [{**old[key], "file": path} for path in states if (key := checkout.key(path)) in old]


def _written_ms(path: str) -> int:
    """A file that was deleted has no time: then only git tells that it was changed."""
    try:
        return os.lstat(path).st_mtime_ns // 1_000_000
    except OSError:
        return 0


def text_of(found: list[Document]) -> str:
    lines = []
    for each in found[:_LINES_MAX]:
        ago = span(max(0, wall_ms() - instant_ms(each["at"])))
        end = "died" if each["how"] == EXPIRED else "ended"
        at = f"{each['at'][:19]}Z"
        note = f" Its checkpoint: {quoted(each['checkpoint'], _FILE_CHARS_MAX)}." if each.get("checkpoint") else ""
        lines.append(
            f"{quoted(each['file'], _FILE_CHARS_MAX)} has uncommitted changes of {quoted(each['owner'])}, which {end} "
            f"{ago} ago, at {at}.{note}"
        )
    return "\n".join(lines)
