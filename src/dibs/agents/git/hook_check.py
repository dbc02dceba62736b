"""`dibs hook run`: checks changed paths against live claims."""

from __future__ import annotations

import os

from dibs.agents.git.hook_files import BEFORE, GUARDS, HOOKS, STASH, is_ours, read_hook
from dibs.agents.notices import is_new
from dibs.agents.repository.settings import BLOCK, OFF, REQUIRE, Policy, not_heeded, policy_of
from dibs.agents.repository.work_tree import Repository, pushes_of, repository_around
from dibs.agents.shell_actor import RememberedLeases, actor_of, may_keep
from dibs.base.cheap import Iterable, Mapping, Sequence
from dibs.base.checkout import current_folder
from dibs.base.clock import wall_ms
from dibs.base.files import SHARED, replace_file
from dibs.base.jsontext import Document
from dibs.base.record import Record
from dibs.cli.framework.actor_session import actor_session
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, yes
from dibs.cli.text.words import plain, span
from dibs.client.flow import all_pages, drive
from dibs.client.transport import Transport
from dibs.core.overlap import above
from dibs.wire.codes import NO, UNREACHABLE, YES
from dibs.wire.sentences import few, life

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.commands.doctor import Findings


# Which claims of others changed paths touch, and which paths the caller has not claimed. Pure. The rule for overlap is
# in `core/overlap.py`; for many paths at once the folders above each are looked up.


class PathClaim(Record):
    """One owner's live claim on a `path:` or `repo:` name. `life` is its owner's last sign of life, in words."""

    name: str
    owner: str
    token: int
    mode: str
    remaining_ms: int
    life: str = ""


class PathClaims:
    """All live claims of a tree, indexed by path."""

    def __init__(self, holds: Iterable[PathClaim]) -> None:
        self._repo: list[PathClaim] = []
        self._at: dict[str, list[PathClaim]] = {}
        self._within: dict[str, list[PathClaim]] = {}
        for hold in holds:
            if hold.name.startswith("repo:"):
                self._repo.append(hold)
                continue
            self._at.setdefault(hold.name, []).append(hold)
            for name in above(hold.name):
                self._within.setdefault(name, []).append(hold)

    def over(self, path: str) -> list[PathClaim]:
        """The claims that cover a path: on itself, on a folder above it, or on the whole repository."""
        name = path_name(path)
        found = [*self._repo, *self._at.get(name, ())]
        for outer in above(name):
            found += self._at.get(outer, ())
        return found

    def touching(self, path: str) -> list[PathClaim]:
        """The claims that overlap a path, including those below it, for a file that replaces a folder."""
        return [*self.over(path), *self._within.get(path_name(path), ())]


def path_name(path: str) -> str:
    """The job name of a path that git printed: relative to the top, normalised. A path that is too long for a name, or
    has characters that names may not have, cannot be claimed itself; the folders above it can."""
    return f"path:{path}"


def others_touched(holds: PathClaims, paths: Sequence[str], mine: set[PathClaim]) -> dict[PathClaim, list[str]]:
    """Claims of others, each with the changed paths that touch it."""
    found: dict[PathClaim, list[str]] = {}
    for path in paths:
        for hold in holds.touching(path):
            if hold not in mine:
                found.setdefault(hold, []).append(path)
    return found


def not_owned(holds: PathClaims, paths: Sequence[str], mine: set[PathClaim]) -> list[str]:
    """Paths that no claim of mine covers. A shared claim means that nobody changes anything: it does not count."""
    return [path for path in paths if not any(hold in mine and hold.mode != "shared" for hold in holds.over(path))]


# Texts of the git hooks. Pure.

_SHOWN_MAX = 5
_DOING = {"pre-commit": "commit", "pre-push": "push"}


def findings(hook: str, touched: Mapping[PathClaim, Sequence[str]], missing: Sequence[str], *, refuse: bool) -> str:
    """The claims of others that the change touches, and the paths that were not claimed."""
    what = _DOING[hook]
    lines = [f"this {what} is refused." if refuse else f"this {what} touches claims."]
    for hold, paths in touched.items():
        life = f" ({hold.life})" if hold.life else ""
        lines.append(
            f"  {plain(hold.owner)} has {plain(hold.name)} for another {span(hold.remaining_ms)}{life}; "
            f"the {what} changes {_listed(paths)}"
        )
    if missing:
        lines.append(f"  You have not claimed {_listed(missing)}")
    if refuse:
        lines.append(f"  {_next(hook, touched, missing)}")
    return "\n".join(lines)


def mentioned(touched: Mapping[PathClaim, Sequence[str]]) -> str:
    """Claims that may belong to this repository or to another one."""
    lines = ["these claims are outside of this repository's namespace, and may be meant for it:"]
    for hold, paths in touched.items():
        lines.append(f"  {plain(hold.owner)} has {plain(hold.name)}, which would touch {_listed(paths)}")
    return "\n".join(lines)


def _next(hook: str, touched: Mapping[PathClaim, Sequence[str]], missing: Sequence[str]) -> str:
    claim = "`dibs claim --staged` claims what is staged." if hook == "pre-commit" and missing else ""
    wait = "Wait until it is released, or leave those paths out." if touched else ""
    if not touched and not claim:
        wait = "Claim those paths first."
    skip = f"`git {_DOING[hook]} --no-verify` skips this check."
    return " ".join(part for part in (wait, claim, skip) if part)


def _listed(paths: Sequence[str]) -> str:
    return few([_shown(path) for path in paths], _SHOWN_MAX)


def _shown(path: str) -> str:
    """A path on one line, without terminal escapes. Bytes that are not text are shown as escapes."""
    return plain(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def document(
    hook: str, policy: str, touched: Mapping[PathClaim, Sequence[str]], missing: Sequence[str], count: int
) -> Document:
    return {
        "hook": hook,
        "policy": policy,
        "paths": count,
        "touched": [
            {
                "name": hold.name,
                "owner": hold.owner,
                "remaining_ms": hold.remaining_ms,
                "paths": [_shown(path) for path in paths],
            }
            for hold, paths in touched.items()
        ],
        "not_claimed": [_shown(path) for path in missing],
    }


def unreachable(hook: str, why: str, *, refuse: bool) -> str:
    what = _DOING[hook]
    if refuse:
        return (
            f"this {what} is refused, because the claims cannot be read: {why}\n"
            f"  `git {what} --no-verify` skips this check; `git config dibs.unreachable warn` only warns."
        )
    return f"the claims cannot be read, so this {what} was not checked: {why}"


# Whether the installed hooks still run. Another program may have overwritten them, or git may use another folder.

IN_PLACE, CHAINED, CALLED, LEGACY = "in place", "chained", "called", "legacy"
OVERWRITTEN, ABSENT, ASLEEP = "overwritten", "absent", "not executable"
RUNNING = frozenset((IN_PLACE, CHAINED, CALLED, LEGACY))
_CALL = b"dibs hook run"
# The settings files of hook managers in a repository: lefthook's and pre-commit's.
_MANAGED = ("lefthook.yml", ".lefthook.yml", "lefthook.yaml", ".pre-commit-config.yaml")


def states(repository: Repository) -> dict[str, str]:
    """The state of each hook, in the folder that git uses now."""
    folder = repository.hooks()
    noted = read_hook(_note(repository)).decode("utf-8", "replace").splitlines()
    # A version before 0.3 noted no names, and had no other hooks.
    installed = noted[1:] or (GUARDS if noted else ())
    return {hook: _state(repository, folder, hook, installed=hook in installed) for hook in HOOKS}


def _state(repository: Repository, folder: str, hook: str, *, installed: bool) -> str:
    path = os.path.join(folder, hook)
    text = read_hook(path)
    if is_ours(text):
        if not os.access(path, os.X_OK):
            return ASLEEP
        return CHAINED if os.path.lexists(path + BEFORE) else IN_PLACE
    if is_ours(read_hook(f"{path}.legacy")) and b"pre-commit" in text:
        return LEGACY  # pre-commit runs the hook that was there before it
    # Files that may call dibs: the hook itself, the file that husky's hook runs, a manager's settings.
    beside = os.path.join(os.path.dirname(os.path.normpath(folder)), hook)
    call = _CALL + (f" {STASH}".encode() if hook == STASH else b"")
    if any(call in read_hook(os.path.join(repository.top, place)) for place in (path, beside, *_MANAGED)):
        return CALLED
    return OVERWRITTEN if installed or os.path.lexists(path + BEFORE) else ABSENT


def note_installed(repository: Repository, folder: str) -> None:
    """Note the hooks, so that their loss can be noticed later."""
    path = _note(repository)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(path, "\n".join([folder, *HOOKS, ""]), mode=SHARED)
    except OSError:
        pass  # the hooks are installed anyway


def note_uninstalled(repository: Repository) -> None:
    try:
        os.unlink(_note(repository))
    except OSError:
        pass


def _note(repository: Repository) -> str:
    return os.path.join(repository.common, "dibs", "hooks-installed")


def diagnose(found: Findings, env: Mapping[str, str]) -> None:
    """For `dibs doctor`: hooks that were installed here and do not run any more."""
    folder = current_folder()
    repository = None if folder is None else repository_around(env, folder)
    if repository is None:
        return
    found_here = states(repository).items()
    gone = [hook for hook, state in found_here if state in (OVERWRITTEN, ASLEEP)]
    running = [hook for hook, state in found_here if state in RUNNING]
    if running and not gone:
        found.good("hooks", f"{' and '.join(running)} of dibs run here")
    if gone:
        found.bad("hooks", f"{' and '.join(gone)} of dibs do not run here any more: `dibs hook status` says why")


def run(call: Call) -> Answer:
    hook = call.values["hook"]
    repository = Repository.here(call.env)
    if hook == STASH:
        return _note_pushes(call, repository)
    policy = policy_of(repository)
    if policy.policy == OFF:
        return yes(document(hook, OFF, {}, (), 0), "")
    paths = _paths(call, hook, repository)
    if not paths:
        return yes(document(hook, policy.policy, {}, (), 0), "")
    call.fall_back_on(policy.place)
    complain_not_heeded(call, policy, repository)
    holds = _live_holds(call.transport())
    if isinstance(holds, Answer):
        refuse = policy.unreachable == BLOCK
        text = unreachable(hook, holds.text, refuse=refuse)
        fields = {"hook": hook, "policy": policy.policy, "unreachable": policy.unreachable, "why": holds.text}
        return Answer(UNREACHABLE if refuse else YES, fields, text, code="unreachable", is_error=True)
    answer = _judged(call, hook, policy, paths, holds)
    if call.repository_namespace is not None and not policy.is_namespace_set:
        _mention(call, answer, paths)
    return answer


def _note_pushes(call: Call, repository: Repository) -> Answer:
    """Note whose the new entries of the stash are. An id that is in its log is none: then an older entry is the first
    again."""
    from dibs.agents.git.stash_entries import entries, note_owner
    from dibs.agents.harness.session_finder import agent_here
    from dibs.base.checkout import label_of

    lines = call.stdin.read() if call.stdin is not None and not call.stdin.isatty() else b""
    changes = [line.split(" ") for line in lines.decode("utf-8", "surrogateescape").splitlines()]
    known = entries(repository.common)
    pushed = [each[1] for each in changes if each[2:] == ["refs/stash"] and each[1].strip("0") and each[1] not in known]
    if pushed and call.values["argument"][:1] == ["prepared"]:
        agent = agent_here(call.env, claims=False)
        for entry in pushed:
            note_owner(repository.common, entry, agent, label_of({}, repository.top))
    return yes({"hook": STASH, "pushed": pushed}, "")


def complain_not_heeded(call: Call, policy: Policy, repository: Repository) -> None:
    """Say once which settings of a repository do not count, because the user does not trust it."""
    text = not_heeded(policy)
    if text and is_new(call.env, repository.common, text):
        call.complain(text)


def _mention(call: Call, answer: Answer, paths: list[str]) -> None:
    """Add a note about claims on these paths outside of any repository's namespace. HTTP clients make such claims.
    They may be meant for another repository, so they are mentioned and refuse nothing."""
    transport = call.another_transport(namespace=None)
    try:
        holds = _live_holds(transport)
    finally:
        transport.close()
    touched = {} if isinstance(holds, Answer) else _touched(call, PathClaims(holds), paths)[0]
    if touched:
        said = mentioned(touched)
        answer.text = f"{answer.text}\n{said}" if answer.text else said
        answer.is_error = True


def _paths(call: Call, hook: str, repository: Repository) -> list[str]:
    if hook == "pre-commit":
        return repository.staged()
    if call.stdin is None or call.stdin.isatty():
        raise UsageError("pre-push needs the lines that git writes to its standard input.", call.command)
    lines = call.stdin.read()
    remote: list[str] = call.values["argument"]
    return repository.pushed(remote[0] if remote else "", pushes_of(lines.decode("utf-8", "surrogateescape")))


def _judged(call: Call, hook: str, policy: Policy, paths: list[str], holds: list[PathClaim]) -> Answer:
    tree = PathClaims(holds)
    touched, mine = _touched(call, tree, paths)
    missing = not_owned(tree, paths, mine) if policy.own else []
    found = document(hook, policy.policy, touched, missing, len(paths))
    if not touched and not missing:
        return yes(found, "")
    refuse = policy.policy == REQUIRE
    text = findings(hook, touched, missing, refuse=refuse)
    return Answer(NO if refuse else YES, found, text, code="claimed_by_another", is_error=True)


def _touched(call: Call, tree: PathClaims, paths: list[str]) -> tuple[dict[PathClaim, list[str]], set[PathClaim]]:
    """Claims of others that the paths touch, and the claims near them that are the caller's own."""
    near = {hold: None for path in paths for hold in tree.touching(path)}
    mine = _mine(call, near) if near else set()
    return others_touched(tree, paths, mine), mine


def _live_holds(transport: Transport) -> list[PathClaim] | Answer:
    """All live claims on paths or on the whole repository, or the reason why they cannot be read."""
    found: list[PathClaim] = []
    for prefix in ("path:", "repo:"):
        reply = drive(transport, all_pages(prefix))
        if is_failure(reply):
            return failure(reply)
        for lock in (reply.body or {})["locks"]:
            for each in lock.get("holders") or (lock,):
                fields = {field: each[field] for field in ("owner", "mode", "remaining_ms")}
                found.append(PathClaim(name=lock["name"], token=each["fencing_token"], life=life(each), **fields))
    return found


def _mine(call: Call, holds: Iterable[PathClaim]) -> set[PathClaim]:
    """The claims that are provably the caller's: of its session, of its actor, or of its lease id. The fencing token
    identifies the hold, because no two leases of a job have the same. A lease id can be checked only by using it, so
    it is sent as a heartbeat, which does nothing else to the claim."""
    known = _of_session(call)
    actor = actor_of(call, in_hook=True)
    memory = RememberedLeases(call.env, call.settings.url, call.settings.namespace, wall_ms())
    lease = call.env.get("DIBS_LEASE", "").strip()
    mine = set()
    for hold in holds:
        taken = [entry for entry in memory.entries(hold.name) if entry["token"] == hold.token]
        is_mine = (hold.name, hold.token) in known or any(may_keep(entry, actor) for entry in taken)
        if not is_mine and lease:
            reply = call.ask("renew", hold.name, {"lease_id": lease})
            is_mine = not is_failure(reply) and (reply.body or {}).get("fencing_token") == hold.token
        if is_mine:
            mine.add(hold)
    return mine


def _of_session(call: Call) -> set[tuple[str, int]]:
    """The holds of the session that is named, or of the actor or the coding agent that runs git."""
    session = call.env.get("DIBS_SESSION", "").strip() or None
    actor = None if session else actor_session(call, claims=False)
    if actor is not None:
        session = actor.known()
    if session is None:
        return set()
    holds = (call.ask("session-show", session, {}).body or {}).get("holds") or ()
    here = call.settings.namespace  # none: the token's
    return {(hold["name"], hold["fencing_token"]) for hold in holds if here in (None, hold["namespace"])}
