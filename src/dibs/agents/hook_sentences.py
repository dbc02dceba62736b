"""The sentences of the hook: what an agent is told about files, commands and numbers that are not its own. Pure.

Most events have nothing to tell, so `hook_answers.py` imports this when there is something.
"""

from __future__ import annotations

from dibs.base.cheap import Mapping
from dibs.base.jsontext import Document
from dibs.base.terminal import plain, quoted
from dibs.core.durations import span
from dibs.core.limits import TICKET_MS
from dibs.wire import sentences
from dibs.wire.sentences import few, life, waiters

_LINES_MAX = 5
_FILES_SHOWN = 3
_FILE_CHARS_MAX = 200
_PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:/._@+-")
# What is said of a file that is not ours to write, by the status of the first refusal; "" for all others.
REFUSALS = {
    "held": "Not written: another worker is changing this file. It has it claimed with dibs.",
    "deadlock": "Not written: another worker has this file, and wants one that you have. Neither of you could go on.",
    "": "Not written: dibs lets nobody change this file now.",
}
# The same of a command that names such a file.
NAMED = {
    "held": "Not run: the command names what another worker is changing, and dibs does not know that it only reads.",
    "deadlock": "Not run: the command names a file of another worker, who wants one that you have.",
    "": "Not run: the command names a file that dibs lets nobody change now.",
}
WARNINGS = {
    **dict.fromkeys(
        ("held", "deadlock"),
        "Another worker is changing the same file in another checkout. The two changes will have to be merged.",
    ),
    "": "dibs lets nobody change this file now.",
}
TOUCHED = {
    **dict.fromkeys(
        ("held", "deadlock"),
        "These files changed while the command ran, and another worker has them claimed. If the command wrote them, "
        "that worker's changes may be lost.",
    ),
    "": "These files changed while the command ran, though nobody may change them now.",
}
_FLAGS = ("--actor", "--again", "--for", "--give-back", "--namespace")


def _who(refused: Document) -> str:
    """Return who has a file or a job, since when, and when it was last heard of."""
    if not refused.get("owner"):
        first = (refused.get("reserved_for") or {}).get("owner")
        return "somebody who waited for it" if first is None else f"{quoted(first)}, who waited for it"
    shown = [f"for {span(refused['held_ms'])}"] if "held_ms" in refused else []
    if life(refused):
        shown.append(life(refused))
    return quoted(refused["owner"]) + (f" ({', '.join(shown)})" if shown else "")


def _state(refused: Document) -> str:
    """The obstacle to a name, as the middle of a sentence. Texts of others are quoted."""
    status, left = refused.get("status"), span(refused.get("retry_after_ms") or 0)
    if status == "held" or (status == "deadlock" and refused.get("owner")):
        return "its pool has no slots now" if refused.get("paused") else _who(refused)
    if status == "done":
        return f"done already, by {quoted(refused.get('owner'))}; it counts as done for another {left}"
    if status == "delayed":
        failed = (refused.get("previous") or {}).get("how") == "failed"
        why = "its last owner failed" if failed else "its last owner was lost and may still write"
        return f"nobody gets it for another {left}, because {why}"
    if status == "closed":
        closure = refused["closed"]
        why = f"{quoted(closure['by'])} says {quoted(closure['reason'])}"
        return f"closed for another {span(closure['remaining_ms'])}; {why}"
    if status == "parked":
        return f"parked after {refused.get('failures')} owners in a row failed or were lost"
    return quoted(refused.get("details") or refused.get("error") or status, _FILE_CHARS_MAX)


def _step(refused: Document, job: str, then: str) -> str:
    """The step that helps, which depends on what stands in the way. `then`: what to do after it."""
    status, where = refused.get("status"), refused.get("namespace")
    if status == "held" and refused.get("by_actor"):
        actor = _typed("release", refused.get("conflict") or job, "--actor", refused["owner"], *_namespace(where))
        return f"If you claimed it yourself by that name, release it with {actor} and then {then}. "
    if status == "held":
        return f"Wait with {_typed('wait', job, '--for', '5m', *_namespace(where))} and then {then}. "
    if status == "done":
        again = (
            f"{_typed('claim', job, '--again', *_namespace(where))} and {_typed('release', job, *_namespace(where))}"
        )
        return f"It need not be done again. If it must be, use {again}, and then {then}. "
    if status == "delayed":
        return f"Try again in {span(refused.get('retry_after_ms') or 0)}. "
    if status == "parked":
        return f"Tell the person you work for: {_typed('free', job, *_namespace(where))} frees it. "
    if status == "deadlock":
        return "Undo or commit what you changed and end your turn, which lets go of your files. "
    return "Tell the person you work for. "


def _namespace(where: str | None) -> tuple[str, ...]:
    return () if where is None else ("--namespace", where)


def text_about(heads: Mapping[str, str], refusals: list[Document], end: str = "") -> str:
    """A line for each file that is not ours to write, between what happened and what to do."""
    found: dict[str, str] = {}
    for each in refusals:
        found.setdefault(quoted(each["file"], _FILE_CHARS_MAX), _state(each))
    lines = [f"{file}: {state}" for file, state in list(found.items())[:_LINES_MAX]]
    head = heads.get(str(refusals[0].get("status")), heads[""])
    return "\n".join([head, *lines, *([end] if end else [])])


def refusal_text(denied: list[Document], heads: Mapping[str, str] = REFUSALS) -> str:
    is_named = heads is NAMED
    step = _step(denied[0], f"path:{denied[0]['file']}", "run it again" if is_named else "write it")
    other = "Run it without these files, or on a copy if it only reads them" if is_named else "Work on another file"
    return text_about(heads, denied, f"{other}, or {step[0].lower()}{step[1:]}`dibs list` shows what is taken.")


def _typed(*words: str) -> str:
    """A dibs command as it can be typed. Others choose the names of files, jobs and owners: one that needs quotes in a
    shell stands in no command."""
    is_plain = all(
        word[:1] != "-" and len(word) <= _FILE_CHARS_MAX and _PLAIN_CHARACTERS.issuperset(word)
        for word in words
        if word not in _FLAGS
    )
    return f"`dibs {' '.join(words)}`" if is_plain else f"`dibs {words[0]}`"


def command_text(refused: Document, words: str) -> str:
    job = refused["name"]
    has = " has it" if refused.get("status") == "held" and not refused.get("paused") else ""
    if "position" in refused:
        ahead = f", and you are number {refused['position']} in line" if refused["position"] else ""
        return (
            f"Not run: it is not your turn yet. In this repository one worker at a time runs `{plain(words)}`, as the "
            f"job {quoted(job)}: {_state(refused)}{has}{ahead}.\nAsk again: run the same command again. Within "
            f"{span(TICKET_MS)} you keep your place."
        )
    return (
        f"Not run: in this repository one worker at a time runs `{plain(words)}`, as the job {quoted(job)}: "
        f"{_state(refused)}{has}.\n{_step(refused, job, 'run the command again')}".rstrip()
    )


def doubt_text(granted: list[Document]) -> str:
    """A line for each step of these jobs of which nobody knows whether it happened."""
    lines = []
    for lease in granted:
        for step in (lease.get("previous") or {}).get("effects", ()):
            if step["status"] == "in_doubt":
                quotes = {key: quoted(step[key]) for key in ("key", "owner", "reason") if key in step}
                said = sentences.effect({**step, **quotes}, sentences.now_ms_of(lease))
                lines.append(f"{quoted(lease['name'])} (dibs): {said}. Look whether it happened before you go on.")
    return "\n".join(lines[:_LINES_MAX])


def number_text(taken: Document) -> str:
    """Say that the number in a new file's name is somebody's, and which is free; or why nobody is given one."""
    what = f"number {taken['digits']} of {quoted(taken['series'])}"
    if "refused" in taken:
        return f"Not written: {what} is not given out; {_state(taken['refused'])}."
    if "file" in taken:
        who = f"{quoted(taken['file'], _FILE_CHARS_MAX)} has it"
    else:
        who = f"{quoted(taken['owner'])} has it" if "owner" in taken else "it is used already"
    back = _typed(
        "next", taken["series"], "--give-back", str(int(taken["digits"])), *_namespace(taken.get("namespace"))
    )
    free = "" if "file" in taken else f" If nobody needs {taken['digits']} any more, {back} frees it."
    return f"Not written: {what} is taken; {who}.\nName the file with {taken['next']}, which is free.{free}"


def present(others: list[Document]) -> str:
    """At most five lines about who works here."""
    by_owner: dict[str, list[str]] = {}
    for each in others:
        files = by_owner.setdefault(quoted(each["owner"]), [])
        if (file := quoted(each["file"], _FILE_CHARS_MAX)) not in files:
            files.append(file)
    lines = []
    for owner, files in list(by_owner.items())[: _LINES_MAX - 1]:
        lines.append(f"{owner} has claimed {few(files, _FILES_SHOWN)}.")
    return "\n".join(["Others work in this checkout (dibs):", *lines]) if lines else ""


def still_held(held: list[str]) -> str:
    if not held:
        return ""
    shown = few([plain(file) for file in held], 20)
    return f"This session still has these files claimed with dibs: {shown}."


def wanted(waiting: Mapping[str, int]) -> list[str]:
    """A line for each file or job for which somebody began to wait."""
    return [f"dibs: {plain(waiters(name, count))}" for name, count in waiting.items()]


def taken_up(files: list[str]) -> str:
    shown = few([quoted(file, _FILE_CHARS_MAX) for file in files], _FILES_SHOWN)
    return f"This session has its uncommitted files claimed again (dibs): {shown}." if files else ""
