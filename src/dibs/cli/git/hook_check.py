"""`dibs hook run`: checks changed paths against live claims."""

from __future__ import annotations

from dibs.agents.repository.settings import BLOCK, OFF, REQUIRE, policy_of
from dibs.agents.repository.work_tree import Repository, pushes_of
from dibs.base.clock import wall_ms
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, yes
from dibs.cli.git import path_check as guard
from dibs.cli.git.actor import actor_of, may_keep
from dibs.cli.git.path_check import PathClaim, PathClaims
from dibs.cli.git.remembered_leases import RememberedLeases
from dibs.cli.text import hook as hook_text
from dibs.core.limits import LIST_PAGE_MAX
from dibs.wire.codes import NO, UNREACHABLE, YES
from dibs.wire.sentences import life

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dibs.agents.repository.settings import Policy
    from dibs.cli.framework.context import Call
    from dibs.client.door import Door

    Document = dict[str, Any]


def run(call: Call) -> Answer:
    hook = call.values["hook"]
    repository = Repository.here(call.env)
    policy = policy_of(repository)
    if policy.policy == OFF:
        return yes(hook_text.document(hook, OFF, {}, (), 0), "")
    paths = _paths(call, hook, repository)
    if not paths:
        return yes(hook_text.document(hook, policy.policy, {}, (), 0), "")
    call.fall_back_on(policy.place)
    holds = _live_holds(call.door())
    if isinstance(holds, Answer):
        return _not_asked(hook, policy, holds)
    answer = _judged(call, hook, policy, paths, holds)
    if call.repository_namespace is not None and not policy.is_namespace_set:
        _mention(call, answer, paths)
    return answer


def _mention(call: Call, answer: Answer, paths: list[str]) -> None:
    """Add a note about claims on these paths outside of any repository's namespace. HTTP clients make such claims.
    They may be meant for another repository, so they are mentioned and refuse nothing."""
    door = call.door_in(None)
    try:
        holds = _live_holds(door)
    finally:
        door.close()
    if isinstance(holds, Answer):
        return
    tree = PathClaims(holds)
    near = {hold: None for path in paths for hold in tree.touching(path)}
    touched = guard.others_touched(tree, paths, _mine(call, near)) if near else {}
    if touched:
        said = hook_text.mentioned(touched)
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
    near = {hold: None for path in paths for hold in tree.touching(path)}
    mine = _mine(call, near)
    touched = guard.others_touched(tree, paths, mine)
    missing = guard.not_owned(tree, paths, mine) if policy.own else []
    document = hook_text.document(hook, policy.policy, touched, missing, len(paths))
    if not touched and not missing:
        return yes(document, "")
    refuse = policy.policy == REQUIRE
    text = hook_text.findings(hook, touched, missing, refuse=refuse)
    return Answer(NO if refuse else YES, document, text, code="claimed_by_another", is_error=True)


def _not_asked(hook: str, policy: Policy, failed: Answer) -> Answer:
    refuse = policy.unreachable == BLOCK
    text = hook_text.unreachable(hook, failed.text, refuse=refuse)
    document = {"hook": hook, "policy": policy.policy, "unreachable": policy.unreachable, "why": failed.text}
    return Answer(UNREACHABLE if refuse else YES, document, text, code="unreachable", is_error=True)


def _live_holds(door: Door) -> list[PathClaim] | Answer:
    """All live claims on paths or on the whole repository, or the reason why they cannot be read."""
    found: list[PathClaim] = []
    for prefix in ("path:", "repo:"):
        after = ""
        while True:
            reply = door.claimed(prefix, after, LIST_PAGE_MAX)
            if is_failure(reply):
                return failure(reply)
            page: Document = reply.body or {}
            found += [hold for lock in page["locks"] for hold in _holds(lock)]
            after = page["next"]
            if not after:
                break
    return found


def _holds(lock: Document) -> list[PathClaim]:
    return [
        PathClaim(
            lock["name"],
            each["owner"],
            each["fencing_token"],
            each["mode"],
            each["remaining_ms"],
            life(each),
        )
        for each in lock.get("holders") or (lock,)
    ]


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
        if (
            (hold.name, hold.token) in known
            or any(
                entry["token"] == hold.token and may_keep(entry, actor) for entry in memory.entries(hold.name)
            )
            or (lease and _proves(call, lease, hold))
        ):
            mine.add(hold)
    return mine


def _of_session(call: Call) -> set[tuple[str, int]]:
    session = call.env.get("DIBS_SESSION", "").strip() or _agent_session(call)
    if not session:
        return set()
    reply = call.door().call("session-show", session, {})
    holds = (reply.body or {}).get("holds") or ()
    return {(hold["name"], hold["fencing_token"]) for hold in holds}


def _agent_session(call: Call) -> str | None:
    """The session of the coding agent that runs git, if one does and has claimed anything."""
    from dibs.cli.framework.actor_session import ActorSession
    from dibs.cli.framework.agent_shell import agent_here

    agent = agent_here(call.env, claims=False)
    return None if agent is None else ActorSession.of_agent(call, agent).known()


def _proves(call: Call, lease: str, hold: PathClaim) -> bool:
    reply = call.door().call("renew", hold.name, {"lease_id": lease})
    return not is_failure(reply) and (reply.body or {}).get("fencing_token") == hold.token
