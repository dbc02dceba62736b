"""claim --staged: claims the paths of all files staged in git, all or none."""

from __future__ import annotations

from dibs.agents.git.hook_check import complain_not_heeded, path_name
from dibs.agents.repository.settings import policy_of
from dibs.agents.repository.work_tree import Repository
from dibs.agents.shell_actor import RememberedLeases, actor_of
from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput, InvalidName
from dibs.base.jsontext import Document
from dibs.cli.commands.claim_many import claim_names
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import session_id
from dibs.cli.framework.result import Answer
from dibs.cli.text.words import plain, shell_line
from dibs.core.limits import ALL_NAMES_MAX
from dibs.core.names import check_name
from dibs.core.overlap import above

_FOLDERS_SHOWN = 5


def claim_staged(call: Call) -> Answer:
    repository = Repository.here(call.env)
    policy = policy_of(repository)
    call.fall_back_on(policy.place)
    complain_not_heeded(call, policy, repository)
    answer, document = claim_names(call, staged_names(repository.staged()))
    leases = answer.document.get("leases")
    if leases and session_id(call) is None:
        _remember(call, leases, document["request_key"])
    return answer


def staged_names(paths: list[str]) -> list[str]:
    """The names to claim, without those that another one covers. Raises InvalidInput with what to do instead."""
    if not paths:
        raise InvalidInput("Nothing is staged. Run `git add` first.")
    names = {_named(path) for path in paths}
    needed = sorted(name for name in names if names.isdisjoint(above(name)))
    if len(needed) > ALL_NAMES_MAX:
        folders = sorted({(above(name) or [name])[-1] for name in needed})
        shown = shell_line(["dibs", "claim-all", *folders[:_FOLDERS_SHOWN]])
        more = " ..." if len(folders) > _FOLDERS_SHOWN else ""
        raise InvalidInput(
            f"{len(needed)} paths are staged, but at most {ALL_NAMES_MAX} can be claimed in one step. "
            f"Claim the folders they are in:  {shown}{more}"
        )
    return needed


def _named(path: str) -> str:
    try:
        return check_name(path_name(path))
    except InvalidName as error:
        folder = path.rpartition("/")[0]
        instead = f"path:{plain(folder)}" if folder else "repo:NAME, which is everything"
        shown = plain(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
        raise InvalidName(f"{shown} cannot be claimed by its name: {error.details} Claim {instead}.") from None


def _remember(call: Call, leases: list[Document], request_key: str) -> None:
    """Remember the leases, for the commit hook and for `dibs lock release`."""
    actor = actor_of(call)
    if not actor.marks:
        return
    memory = RememberedLeases(call.env, call.settings.url, call.settings.namespace, wall_ms())
    for lease in leases:
        entry = actor.entry(lease["owner"], request_key, lease["lease_id"], lease["fencing_token"])
        memory.remember(lease["name"], {**entry, "until_ms": wall_ms() + lease["remaining_ms"]})
