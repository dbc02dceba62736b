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
from dibs.base.cheap import Callable
from dibs.base.checkout import first_line, git_folder_of, root_around
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.files import content, state_folder
from dibs.base.ids import digest
from dibs.base.jsontext import Document
from dibs.cli.framework.context import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.git.checkout_claims import Checkout
    from dibs.agents.git.git_reach import GitCommand
    from dibs.agents.repository.settings import GuardedCommand

_PATCH_BYTES_MAX = 4 * 1024 * 1024
_MARGIN_MS = 3_000  # between the end of a wait and the end of the client's patience
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
        if not self._lost and not self._wanted:
            return answered
        from dibs.agents import hook_sentences  # mostly there is nothing to say

        return with_remark(self._event, answered, "\n".join([*self._lost, *hook_sentences.wanted(self._wanted)]))

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
        return self._before(tuple(os.path.join(root, file) for file in files), is_named=True)

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
        from dibs.agents import hook_sentences

        if not refused:
            return None, hook_sentences.doubt_text(shell.granted)
        words = " ".join(jobs[refused[0]["job"]].match)
        return refusal(self._event, hook_sentences.command_text(refused[0], words)), ""

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
            from dibs.agents import hook_sentences

            ignored = not_heeded(checkout.policy)
            lines = [
                self._taken_up(checkout),
                hook_sentences.present(checkout.others()),
                f"dibs: {ignored}" if ignored else "",
            ]
            return remark(self._event, "\n".join([line for line in lines if line]))
        if kind == kinds.COMPACTED:
            from dibs.agents import hook_sentences

            return remark(self._event, hook_sentences.still_held(checkout.held()))
        if kind == kinds.END:
            self._end_stash(checkout)
            checkout.end()
        else:
            self._stopped(checkout)
        return NOTHING

    def _before(self, paths: tuple[str, ...], *, is_named: bool = False) -> HookAnswer:
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
                            from dibs.agents import hook_sentences

                            say = refusal if checkout.settings.guard == DENY else remark
                            return say(self._event, hook_sentences.number_text(taken[0]))
            finally:
                self._close(checkout)
        if in_way:
            from dibs.agents import hook_sentences

            denied = [each for each in in_way if each["level"] == DENY]
            if denied:
                heads = hook_sentences.NAMED if is_named else hook_sentences.REFUSALS
                return refusal(self._event, hook_sentences.refusal_text(denied, heads))
            warned = [each for each in in_way if each["level"] == WARN]
            if warned:
                notices = [hook_sentences.text_about(hook_sentences.WARNINGS, warned), *notices]
        return remark(self._event, "\n".join(notices))

    def _taken_over(self, checkout: Checkout) -> list[str]:
        """A line for each file that was just claimed and holds another agent's unfinished work."""
        if not any(lease.get("previous") and not lease.get("held_before") for lease in checkout.granted):
            return []
        from dibs.agents.git import unfinished_work  # few files had an owner before

        found = unfinished_work.taken_over(checkout)
        return [unfinished_work.text_of(found)] if found else []

    def _taken_up(self, checkout: Checkout) -> str:
        from dibs.agents import hook_sentences
        from dibs.agents.git import unfinished_work

        return hook_sentences.taken_up(unfinished_work.take_up(checkout))

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
        lines = []
        if shown:
            from dibs.agents import hook_sentences

            lines.append(hook_sentences.text_about(hook_sentences.TOUCHED, shown))
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
