"""Commands take each job by its one name, however it was written."""

from __future__ import annotations

from dibs.agents.repository.job_names import JobNames
from dibs.agents.repository.namespace import current_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.cli.framework.context import Call

_ONE = frozenset(
    """
    run claim hold heartbeat release transfer wait owner history break free
    """.split()
)
_SEVERAL = frozenset(("claim-any", "claim-all"))
_FORKING = frozenset(("run", "hold"))  # these fork before they open their store


def names_here(call: Call) -> JobNames:
    return JobNames(call.env, current_folder(), exact=bool(call.values.get("exact")))


def fold(call: Call) -> None:
    """Put the one names into the place of those that were written. `call.written` keeps how."""
    if call.command not in _ONE and call.command not in _SEVERAL and call.command != "git push":
        return
    for key in ("job", "name"):
        given = call.values.get(key)
        if isinstance(given, str):
            call.values = {**call.values, key: one_names(call, [given])[0]}
        elif isinstance(given, list):
            call.values = {**call.values, key: one_names(call, given)}


def one_names(call: Call, given: Iterable[str]) -> list[str]:
    names = names_here(call)
    found = [(names.of(written), written) for written in given]
    call.written |= {name: written for name, written in found if name != written}
    return [name for name, _ in found]


def use_names_in_use(call: Call) -> None:
    """A name that is in use as it was written is meant as it was written. Of several at once the one names count: a
    look at each would be no step of one."""
    if call.command not in _ONE:
        return
    from dibs.client.name_in_use import name_in_use
    from dibs.client.queueing import drive

    job = call.values["job"]
    names = job if isinstance(job, list) else [job]
    door = call.door_in(call.settings.namespace) if call.command in _FORKING else call.door()
    try:
        used = [drive(door, name_in_use(name, call.written.get(name))) for name in names]
    finally:
        if call.command in _FORKING:
            door.close()
    call.values = {**call.values, "job": used if isinstance(job, list) else used[0]}
