"""Answers each event of a coding agent, for `dibs agent hook`.

Before a file is written it is claimed for the agent. Nothing is said if that succeeds. Before a shell command, the
files that it surely writes and the jobs that guard it are claimed, and it is refused if it would take what others have.
When a session or a subagent stops, files that equal the last commit again are let go.
"""

from __future__ import annotations

import os

from dibs.agents.harness import hook_events as kinds
from dibs.agents.harness.agent_identity import WINDSURF, Agent
from dibs.agents.harness.hook_events import NOTHING, HookAnswer, HookEvent, refusal, remark, with_remark
from dibs.agents.repository.settings import DENY, OFF, TEAM_FILE, WARN, AgentSettings, agent_settings, not_heeded
from dibs.base.cheap import Callable, Mapping
from dibs.base.checkout import first_line, git_folder_of, root_around
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.files import content, state_folder
from dibs.base.ids import digest
from dibs.base.jsontext import Document
from dibs.base.terminal import plain, quoted
from dibs.cli.framework.context import Call
from dibs.core.durations import span
from dibs.core.limits import TICKET_MS
from dibs.wire import sentences
from dibs.wire.sentences import few, life, waiters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.git.checkout_claims import Checkout
    from dibs.agents.git.git_reach import GitCommand
    from dibs.agents.repository.settings import GuardedCommand

_LINES_MAX = 5
_FILES_SHOWN = 3
_FILE_CHARS_MAX = 200
_PATCH_BYTES_MAX = 4 * 1024 * 1024
_PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:/._@+-")
# What is said of a file that is not ours to write, by the status of the first refusal; "" for all others.
_REFUSALS = {
    "held": "Not written: another worker is changing this file. It has it claimed with dibs.",
    "deadlock": "Not written: another worker has this file, and wants one that you have. Neither of you could go on.",
    "": "Not written: dibs lets nobody change this file now.",
}
# The same of a command that names such a file.
_NAMED = {
    "held": "Not run: the command names what another worker is changing, and dibs does not know that it only reads.",
    "deadlock": "Not run: the command names a file of another worker, who wants one that you have.",
    "": "Not run: the command names a file that dibs lets nobody change now.",
}
_WARNINGS = {
    **dict.fromkeys(
        ("held", "deadlock"),
        "Another worker is changing the same file in another checkout. The two changes will have to be merged.",
    ),
    "": "dibs lets nobody change this file now.",
}
_TOUCHED = {
    **dict.fromkeys(
        ("held", "deadlock"),
        "These files changed while the command ran, and another worker has them claimed. If the command wrote them, "
        "that worker's changes may be lost.",
    ),
    "": "These files changed while the command ran, though nobody may change them now.",
}
_MARGIN_MS = 3_000  # between the end of a wait and the end of the client's patience
_FLAGS = ("--actor", "--again", "--for", "--give-back", "--namespace")
BEFORE = (kinds.BEFORE_EDIT, kinds.BEFORE_SHELL)


class TurnTimer:
    """The time that a hook may wait in line: less than its client waits for the hook. A client that has no answer by
    then lets the agent go on. `extend` moves the hook's own deadline."""

    def __init__(self, limit_ms: int = 0, extend: Callable[[int], None] | None = None) -> None:
        self._until_ms = steady_ms() + limit_ms - _MARGIN_MS
        self._extend = extend

    def within(self, wait_ms: int) -> int:
        """Return how much of a wait there is time for."""
        found = max(0, min(wait_ms, self._until_ms - steady_ms()))
        if found and self._extend is not None:
            self._extend(found + _MARGIN_MS * 2 // 3)
        return found


class AgentGuard:
    """One event of one agent. `requires` tells, after a failure, whether the repository wants it to refuse."""

    def __init__(self, call: Call, event: HookEvent) -> None:
        self._call = call
        self._event = event
        self._folder = event.cwd if os.path.isabs(event.cwd) else os.getcwd()
        self.requires = False
        self.timer = TurnTimer()
        self._wanted: dict[str, int] = {}
        self._lost: list[str] = []

    def answer(self) -> HookAnswer:
        """The answer to the event, with a line for each job of the agent that somebody waits for, and for what others
        took from it."""
        answered = self._answered()
        waiting = [f"dibs: {plain(waiters(name, count))}" for name, count in self._wanted.items()]
        shown = "\n".join([*self._lost, *waiting])
        return with_remark(self._event, answered, shown) if shown else answered

    def _answered(self) -> HookAnswer:
        event = self._event
        if event.agent is None or event.kind == kinds.OTHER:
            return NOTHING
        if event.kind == kinds.BEFORE_EDIT:
            return self._before(event.paths)
        if event.kind == kinds.BEFORE_SHELL:
            return self._before_shell()
        checkout = self._checkout(self._folder, event.agent)
        if checkout is None:
            return NOTHING
        try:
            return self._later(checkout)
        finally:
            self._close(checkout)

    def _before_shell(self) -> HookAnswer:
        from dibs.agents.harness.shell_writes import written

        command = self._event.command
        assert self._event.agent is not None
        self._event.agent.action = "shell"
        git = self._before_git() if "git" in command else NOTHING
        if git.reason:
            return git
        paths = written(command, self._folder)
        answer = self._before(tuple(paths)) if paths else NOTHING
        if not answer.reason:
            named = self._before_named()
            if named.reason:
                answer = named
            elif named.text:
                answer = with_remark(self._event, answer, named.text)
        _note_begin(self._stamp(), self._folder, command)
        if not answer.reason:
            refused, doubts = self._before_command()
            answer = refused or (with_remark(self._event, answer, doubts) if doubts else answer)
        return with_remark(self._event, answer, git.text) if git.text else answer

    def _before_named(self) -> HookAnswer:
        """Refuse a command that names a file which another has claimed, unless it is known to read only. For an
        agent that is alone in its checkout the store is not asked."""
        here, agent = os.path.realpath(self._folder), self._event.agent
        root = root_around({}, here)
        if not root or agent is None or not os.path.isdir(os.path.join(git_folder_of(root), "dibs", "holders")):
            return NOTHING
        from dibs.agents.git.present_agents import has_company

        if not has_company(git_folder_of(root), agent):
            return NOTHING
        from dibs.agents.harness.held_names import candidates, named

        found = candidates(
            self._event.command,
            here,
            lambda path: os.path.lexists(os.path.join(here, path)),
            lambda path: _patch_text(os.path.join(here, path)),
        )
        checkout = self._checkout(root, agent) if found else None
        if checkout is None:
            return NOTHING
        try:
            held = checkout.held_against() if checkout.settings.guard != OFF else []
            files = named(found, held, os.path.realpath(root), here, checkout.same)
        finally:
            self._close(checkout)
        # The store knows whose they are: it grants a claim on what the agent has itself, or its parent.
        return self._before(tuple(os.path.join(root, file) for file in files), _NAMED)

    def _before_git(self) -> HookAnswer:
        """Refuse git commands that would destroy or take what other agents have not committed."""
        from dibs.agents.git.git_reach import git_commands, reach_of, stash_use

        by_root: dict[str, list[GitCommand]] = {}
        found = git_commands(self._event.command, self._folder)
        if not any(reach_of(each.words, lambda path: True) or stash_use(each.words) for each in found):
            return NOTHING
        for each in found:
            if root := root_around({}, os.path.realpath(each.folder)):
                by_root.setdefault(root, []).append(each)
        notices = ""
        for root, commands in by_root.items():
            from dibs.agents.git import git_guard

            assert self._event.agent is not None
            checkout = self._checkout(root, self._event.agent)
            if checkout is None:
                continue
            refused, level = "", checkout.settings.guard
            try:
                if level != OFF:
                    refused, free = git_guard.stash_finding(commands, checkout)
                    refused = refused or git_guard.overwrite_finding(commands, checkout)
                    notices = notices or free
            finally:
                self._close(checkout)
            if refused:
                return refusal(self._event, refused) if level == DENY else remark(self._event, refused)
        return remark(self._event, notices)

    def _before_command(self) -> tuple[HookAnswer | None, str]:
        """Claim the jobs that guard the command here. Not for Windsurf, which does not say when a command ends. Returns
        a refusal, and which steps of the jobs are in doubt."""
        root = root_around({}, os.path.realpath(self._folder))
        agent = self._event.agent
        assert agent is not None
        # Read without git, and only where it is: most repositories guard no command.
        if not root or self._event.harness == WINDSURF or not os.path.lexists(os.path.join(root, TEAM_FILE)):
            return None, ""
        jobs = self._jobs(agent_settings(root, {}), root)
        shell = self._checkout(root, agent.shell()) if jobs else None
        if shell is None:
            return None, ""
        try:
            refused = shell.claim_jobs(list(jobs), self.timer.within(min([each.wait_ms for each in jobs.values()])))
        finally:
            self._close(shell)
        if not refused:
            return None, _doubt_text(shell.granted)
        words = " ".join(jobs[refused[0]["job"]].match)
        return refusal(self._event, _command_text(refused[0], words)), ""

    def _after_command(self, checkout: Checkout) -> None:
        """Release the jobs that the command was claimed as. No event says when a command in the background ends, so its
        jobs are released when the agent stops: then none of its commands runs any more."""
        if self._event.goes_on:
            return
        is_over = self._event.kind != kinds.AFTER_TOOL
        jobs = self._jobs(checkout.settings, checkout.root)
        if not (jobs or (is_over and checkout.settings.commands)):
            return
        shell = self._checkout(checkout.root, checkout.agent.shell())
        assert shell is not None
        if is_over:
            shell.end()
        else:
            shell.release_jobs(list(jobs))
        self._close(shell)

    def _jobs(self, settings: AgentSettings, root: str) -> dict[str, GuardedCommand]:
        if not settings.commands:
            return {}
        from dibs.agents.git.guarded_commands import guarding  # most repositories guard no command

        return guarding(settings, self._event.command, root)

    def _later(self, checkout: Checkout) -> HookAnswer:
        kind = self._event.kind
        if kind in (kinds.AFTER_TOOL, kinds.STOP, kinds.SUBAGENT_STOP, kinds.END):
            self._after_command(checkout)
        if checkout.settings.guard == OFF:
            return NOTHING
        if kind == kinds.AFTER_TOOL:
            checkout.agent.action = "shell"
            checkout.beat()
            return self._after(checkout)
        if kind == kinds.START:
            checkout.agent.action = "started"
            checkout.begin()
            ignored = not_heeded(checkout.policy)
            lines = [self._taken_up(checkout), _present(checkout.others()), f"dibs: {ignored}" if ignored else ""]
            return remark(self._event, "\n".join([line for line in lines if line]))
        if kind == kinds.COMPACTED:
            return remark(self._event, _still_held(checkout.held()))
        if kind == kinds.END:
            self._end_stash(checkout)
            checkout.end()
        else:
            self._stopped(checkout)
        return NOTHING

    def _before(self, paths: tuple[str, ...], heads: Mapping[str, str] = _REFUSALS) -> HookAnswer:
        agent = self._event.agent
        assert agent is not None
        by_root: dict[str, list[str]] = {}
        for path in paths:
            folder = os.path.dirname(os.path.join(self._folder, path).rstrip("/"))
            while not os.path.isdir(folder) and folder != os.path.dirname(folder):  # the file need not exist yet
                folder = os.path.dirname(folder)
            root = root_around({}, os.path.realpath(folder))
            if root:
                by_root.setdefault(root, []).append(path)
        in_way: list[Document] = []
        notices: list[str] = []
        for root, inside in by_root.items():
            checkout = self._checkout(root, agent)
            if checkout is None:
                continue
            try:
                if checkout.settings.guard != OFF:
                    files = [file for path in inside for file in checkout.files(path, self._folder)]
                    agent.action = f"edit {files[0]}" if files and self._event.kind == kinds.BEFORE_EDIT else "shell"
                    found = checkout.claim(list(dict.fromkeys(files)))
                    in_way += [{**each, "by_actor": checkout.is_of_actor(each)} for each in found[:1]] + found[1:]
                    notices += self._taken_over(checkout)
                    if checkout.settings.numbered and not found:
                        taken = [each for file in dict.fromkeys(files) if (each := checkout.taken_number(file))]
                        if taken:
                            say = refusal if checkout.settings.guard == DENY else remark
                            return say(self._event, _number_text(taken[0]))
            finally:
                self._close(checkout)
        denied = [each for each in in_way if each["level"] == DENY]
        if denied:
            return refusal(self._event, _refusal_text(denied, heads))
        warned = [each for each in in_way if each["level"] == WARN]
        return remark(self._event, "\n".join([*([_text(_WARNINGS, warned)] if warned else []), *notices]))

    def _taken_over(self, checkout: Checkout) -> list[str]:
        """A line for each file that was just claimed and holds another agent's unfinished work."""
        if not any(lease.get("previous") and not lease.get("held_before") for lease in checkout.granted):
            return []
        from dibs.agents.git import unfinished_work  # few files had an owner before

        found = unfinished_work.taken_over(checkout)
        return [unfinished_work.text_of(found)] if found else []

    def _taken_up(self, checkout: Checkout) -> str:
        from dibs.agents.git import unfinished_work

        files = unfinished_work.take_up(checkout)
        shown = few([quoted(file, _FILE_CHARS_MAX) for file in files], _FILES_SHOWN)
        return f"This session has its uncommitted files claimed again (dibs): {shown}." if files else ""

    def _end_stash(self, checkout: Checkout) -> None:
        if os.path.isdir(os.path.join(checkout.repository.common, "dibs", "stash")):
            from dibs.agents.git.stash_entries import end_owner

            end_owner(checkout.repository.common, checkout.agent)

    def _after(self, checkout: Checkout) -> HookAnswer:
        """After a shell command: claim what it changed, or say whose it is. Let go of what it committed."""
        begin = _take_begin(self._stamp())
        if begin is None:
            return NOTHING
        changed = checkout.repository.changed()
        new = []
        for file in changed:
            try:
                is_new = os.lstat(os.path.join(checkout.root, file)).st_mtime_ns >= begin.at_ns
            except OSError:
                continue
            if is_new and checkout.settings.applies_to(file):
                new.append(file)
        keys = {checkout.key(file) for file in changed}
        committed = _committed(checkout, begin)
        in_way: list[Document] = []
        if new or committed:  # most commands change nothing, and the store need not say what is held
            files = checkout.held()
            held = {checkout.key(file) for file in files}
            in_way = checkout.claim([file for file in new if checkout.key(file) not in held], each=True)
            # A file that was committed is free for others.
            done = [file for file in files if _is_changed(checkout.key(file), committed)]
            checkout.release([file for file in done if not _is_changed(checkout.key(file), keys)])
        shown = [each for each in in_way if each["level"] != OFF]
        lines = [_text(_TOUCHED, shown)] if shown else []
        return remark(self._event, "\n".join([*lines, *self._lost_by(checkout, begin, keys | committed)]))

    def _lost_by(self, checkout: Checkout, begin: _Begin, changed: set[str]) -> list[str]:
        """Say what the command has taken from others. Note what it has put into the stash. What somebody committed
        meanwhile is not lost."""
        if not _is_written_since(os.path.join(checkout.repository.own, "index"), begin.at_ns):
            return []
        from dibs.agents.git import git_guard

        if begin.entries is not None:
            git_guard.note_pushed(checkout, begin.entries)
        lost = git_guard.lost_files(checkout, begin.at_ns, changed)
        if not lost:
            return []
        git_guard.note_lost(checkout, lost)
        return [git_guard.lost_text(lost)]

    def _stopped(self, checkout: Checkout) -> None:
        """Let go of files that equal the last commit again. What a subagent leaves changed becomes its parent's."""
        if self._event.kind == kinds.STOP:
            checkout.agent.action = "stopped"
            checkout.beat()
        held = checkout.held()
        if held:
            changed = {checkout.key(file) for file in checkout.repository.changed()}
            checkout.release([file for file in held if not _is_changed(checkout.key(file), changed)])
            held = [file for file in held if _is_changed(checkout.key(file), changed)]
        parent = checkout.agent.parent
        if self._event.kind == kinds.SUBAGENT_STOP and parent is not None:
            if held:
                above = self._checkout(checkout.root, parent)
                if above is not None:
                    above.claim(held)
                    above.close()
            checkout.end()

    def _close(self, checkout: Checkout) -> None:
        self._wanted |= checkout.wanted()
        if os.path.isdir(os.path.join(checkout.repository.own, "dibs", "lost")) and remark(self._event, "heard").stdout:
            from dibs.agents.git.git_guard import take_lost

            self._lost += filter(None, [take_lost(checkout)])
        checkout.close()

    def _checkout(self, folder: str, agent: Agent) -> Checkout | None:
        root = root_around({}, os.path.realpath(folder))
        if not root:
            return None
        from dibs.agents.git.checkout_claims import Checkout

        os.chdir(root)
        self.requires = agent_settings(root, {}).require  # known before anything is asked that may not answer
        checkout = Checkout(self._call, root, agent)
        self.requires = checkout.settings.require
        return checkout

    def _stamp(self) -> str:
        """The file whose time is when the agent's last shell command began, by the clock of the file system."""
        agent = self._event.agent
        assert agent is not None
        return os.path.join(state_folder(self._call.env), "agents", digest(agent.key))


class _Begin:
    """The state before a shell command: the time by the clock of the file system, the length of HEAD's log, and the
    entries of the stash, if the command may push one."""

    def __init__(self, at_ns: int, log_bytes: int, entries: list[str] | None) -> None:
        self.at_ns = at_ns
        self.log_bytes = log_bytes
        self.entries = entries


def _note_begin(path: str, folder: str, command: str) -> None:
    """Note the state before a command, so that the hook after it knows what the command changed. If this fails, that
    hook says nothing."""
    root = root_around({}, os.path.realpath(folder))
    words = ["-"]
    if root:
        own = git_folder_of(root)
        words = [str(_size(os.path.join(own, "logs", "HEAD")))]
        if "stash" in command:
            from dibs.agents.git.stash_entries import entries

            shared = first_line(os.path.join(own, "commondir"))
            words += ["stash", *entries(os.path.join(own, shared) if shared else own)]
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "wb") as file:
            file.write(" ".join(words).encode())
    except OSError:
        pass


def _take_begin(path: str) -> _Begin | None:
    try:
        at_ns = os.stat(path).st_mtime_ns
        words = (content(path) or b"").decode("ascii", "replace").split()
        os.unlink(path)
    except OSError:
        return None
    log_bytes = int(words[0]) if words and words[0].isdecimal() else -1
    return _Begin(at_ns, log_bytes, words[2:] if words[1:2] == ["stash"] else None)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _is_written_since(path: str, at_ns: int) -> bool:
    try:
        return os.stat(path).st_mtime_ns >= at_ns
    except OSError:
        return False


def _committed(checkout: Checkout, begin: _Begin) -> set[str]:
    """The files in which the commit that is checked out differs from the one before a command."""
    moved = _moved_head(checkout.repository.own, begin.log_bytes)
    try:
        files = checkout.repository.changed_between(*moved) if moved is not None else []
    except InvalidInput:  # git does not have the older one any more
        files = []
    return {checkout.key(file) for file in files}


def _moved_head(own: str, log_bytes: int) -> tuple[str, str] | None:
    """The commits that HEAD was at before and after what its log has gained; None if it did not move."""
    path = os.path.join(own, "logs", "HEAD")
    if log_bytes < 0 or _size(path) <= log_bytes:
        return None
    lines = [line.split(b" ", 2) for line in (content(path) or b"")[log_bytes:].splitlines()]
    ids = [each[:2] for each in lines if len(each) == 3]
    old, new = (ids[0][0].decode("ascii", "replace"), ids[-1][1].decode("ascii", "replace")) if ids else ("", "")
    return (old, new) if old.strip("0") and old != new and old.isalnum() and new.isalnum() else None


def _patch_text(path: str) -> str:
    return "" if "\0" in path else (content(path, _PATCH_BYTES_MAX) or b"").decode("utf-8", "replace")


def _is_changed(file: str, changed: set[str]) -> bool:
    return file in changed or any(each.startswith(f"{file}/") for each in changed)


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


def _text(heads: Mapping[str, str], refusals: list[Document], end: str = "") -> str:
    """A line for each file that is not ours to write, between what happened and what to do."""
    found: dict[str, str] = {}
    for each in refusals:
        found.setdefault(quoted(each["file"], _FILE_CHARS_MAX), _state(each))
    lines = [f"{file}: {state}" for file, state in list(found.items())[:_LINES_MAX]]
    head = heads.get(str(refusals[0].get("status")), heads[""])
    return "\n".join([head, *lines, *([end] if end else [])])


def _refusal_text(denied: list[Document], heads: Mapping[str, str] = _REFUSALS) -> str:
    is_named = heads is _NAMED
    step = _step(denied[0], f"path:{denied[0]['file']}", "run it again" if is_named else "write it")
    other = "Run it without these files, or on a copy if it only reads them" if is_named else "Work on another file"
    return _text(heads, denied, f"{other}, or {step[0].lower()}{step[1:]}`dibs list` shows what is taken.")


def _typed(*words: str) -> str:
    """A dibs command as it can be typed. Others choose the names of files, jobs and owners: one that needs quotes in a
    shell stands in no command."""
    is_plain = all(
        word[:1] != "-" and len(word) <= _FILE_CHARS_MAX and _PLAIN_CHARACTERS.issuperset(word)
        for word in words
        if word not in _FLAGS
    )
    return f"`dibs {' '.join(words)}`" if is_plain else f"`dibs {words[0]}`"


def _command_text(refused: Document, words: str) -> str:
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


def _doubt_text(granted: list[Document]) -> str:
    """A line for each step of these jobs of which nobody knows whether it happened."""
    lines = []
    for lease in granted:
        for step in (lease.get("previous") or {}).get("effects", ()):
            if step["status"] == "in_doubt":
                quotes = {key: quoted(step[key]) for key in ("key", "owner", "reason") if key in step}
                said = sentences.effect({**step, **quotes}, sentences.now_ms_of(lease))
                lines.append(f"{quoted(lease['name'])} (dibs): {said}. Look whether it happened before you go on.")
    return "\n".join(lines[:_LINES_MAX])


def _number_text(taken: Document) -> str:
    """Say that the number in a new file's name is somebody's, and which is free."""
    what = f"number {taken['digits']} of {quoted(taken['series'])}"
    if "file" in taken:
        who = f"{quoted(taken['file'], _FILE_CHARS_MAX)} has it"
    else:
        who = f"{quoted(taken['owner'])} has it" if "owner" in taken else "it is used already"
    back = _typed(
        "next", taken["series"], "--give-back", str(int(taken["digits"])), *_namespace(taken.get("namespace"))
    )
    free = "" if "file" in taken else f" If nobody needs {taken['digits']} any more, {back} frees it."
    return f"Not written: {what} is taken; {who}.\nName the file with {taken['next']}, which is free.{free}"


def _present(others: list[Document]) -> str:
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


def _still_held(held: list[str]) -> str:
    if not held:
        return ""
    shown = few([plain(file) for file in held], 20)
    return f"This session still has these files claimed with dibs: {shown}."
