"""The owners of stash entries.

All work trees of a clone share one stash, so `git stash pop` of one agent may take the work of another. An entry is
known by the id of its commit, not by its position, which changes. Its owner is a note, a file below `dibs/stash` in the
git folder that the work trees share: it is where the stash is, it needs no server, and it goes with the clone.

git's own hook `reference-transaction` makes the note, in whatever form the push was typed. Where that hook is not
installed, the agent's hook makes it after a command that pushed. An entry without a note is a person's, and
everybody's. A note ends with its entry. The entries of an agent whose session or process is over are free.

The stash is read from git's log of it, without git. A repository that keeps it elsewhere (reftable) has no owners.
"""

from __future__ import annotations

import os

from dibs.agents.harness.agent_identity import Agent
from dibs.base.clock import wall_ms
from dibs.base.files import SHARED, content, replace_file
from dibs.base.jsontext import decode, encode
from dibs.base.record import Record
from dibs.core.limits import AGENT_TTL_MS
from dibs.system.session_mark import is_gone, process_mark

_PLACE = ("dibs", "stash")
_BYTES_MAX = 4096
_LOG_BYTES_MAX = 4 * 1024 * 1024
_ON_ITS_WAY_MS = 60_000
_HEXADECIMAL = frozenset("0123456789abcdef")


class StashOwner(Record):
    """The agent that made an entry. `agent` identifies the session, `owner` is its name for others. `process` is the
    mark of its harness, empty where that is not known."""

    agent: str
    owner: str
    process: str = ""
    at_ms: int = 0
    is_over: bool = False

    def is_of(self, agent: Agent) -> bool:
        """Tell whether it is an entry of this agent's session. Subagents have those of their session."""
        return self.agent == _session_of(agent)

    def has_ended(self) -> bool:
        """Tell whether the agent is gone. One whose process cannot be seen (another container, an earlier boot) counts
        for some hours."""
        if self.is_over or (self.process and is_gone(self.process)):
            return True
        pid = [*self.process.split(":"), "", ""][2]
        is_seen = pid.isascii() and pid.isdecimal() and len(pid) < 11 and process_mark(int(pid)) == self.process
        return not is_seen and abs(wall_ms() - self.at_ms) > AGENT_TTL_MS


def _session_of(agent: Agent) -> str:
    return agent.mark.partition("/")[0]


def entries(common: str) -> list[str]:
    """The ids of the entries, `stash@{0}` first, in the clone whose shared git folder this is."""
    lines = (content(os.path.join(common, "logs", "refs", "stash"), _LOG_BYTES_MAX) or b"").splitlines()
    ids = [line.split(b" ", 2)[1].decode("ascii", "replace") for line in lines if line.count(b" ") > 1]
    return [each for each in reversed(ids) if _is_id(each)]


def owner_of(common: str, entry: str) -> StashOwner | None:
    """None: a person's, or nobody knows."""
    try:
        found = decode((content(os.path.join(_folder(common), entry), _BYTES_MAX) or b"").decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    kinds = {"agent": str, "owner": str, "process": str, "at_ms": int, "is_over": bool}
    is_whole = isinstance(found, dict) and {"agent", "owner"} <= found.keys() <= kinds.keys()
    if not is_whole or not all(isinstance(found[key], kinds[key]) for key in found):
        return None
    return StashOwner.load(found)


def note_owner(common: str, entry: str, agent: Agent | None, place: str) -> None:
    """Note who pushes an entry; None: a person. If that fails, it is everybody's."""
    folder = _folder(common)
    path = os.path.join(folder, entry)
    if not _is_id(entry):
        return
    try:
        if agent is None:
            os.unlink(path)
            return
        os.makedirs(folder, exist_ok=True)
        if os.path.realpath(folder) != os.path.join(os.path.realpath(common), *_PLACE):
            return  # a link that came with the clone
        left = {entry, *entries(common)}
        for name in os.listdir(folder):
            other = os.path.join(folder, name)
            is_note = _is_id(name.partition(".")[0]) and name not in left
            # A note is made before its entry is in the log: another one may be on its way there.
            if is_note and wall_ms() - os.lstat(other).st_mtime * 1000 > _ON_ITS_WAY_MS:
                os.unlink(other)
        mark = process_mark(agent.pid) if agent.pid else None
        owner = StashOwner(agent=_session_of(agent), owner=agent.owner(place), process=mark or "", at_ms=wall_ms())
        replace_file(path, encode(owner.dump()), mode=SHARED)
    except OSError:
        pass


def end_owner(common: str, agent: Agent) -> None:
    """The agent's session is over: its entries are free. A session that is resumed has them again, by its id."""
    folder = _folder(common)
    for entry in entries(common) if os.path.isdir(folder) else ():
        owner = owner_of(common, entry)
        if owner is not None and owner.is_of(agent):
            try:
                replace_file(os.path.join(folder, entry), encode(owner.replace(is_over=True).dump()), mode=SHARED)
            except OSError:
                pass


def _folder(common: str) -> str:
    return os.path.join(common, *_PLACE)


def _is_id(text: str) -> bool:
    return len(text) in (40, 64) and _HEXADECIMAL.issuperset(text)
