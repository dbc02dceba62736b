"""Claims that somebody typed at a terminal: `dibs claim j`, then `dibs release j`, without a lease id or a name.

The lease id is remembered for the shell (`shell_actor.py`): heartbeat, release and transfer that are typed there find
it. A second `dibs claim j` does not: what excludes others is the claim, and two workers may share a terminal.

Only a shell that reads from its user can take a second command. It gives each command a process group of its own; a
script and `bash -c` do not, also where an agent runs them at a terminal: there the lease id proves the claim.
"""

from __future__ import annotations

import os

from dibs.agents.shell_actor import RememberedLeases, actor_of, may_keep
from dibs.agents.shells_above import forked_shells, runner
from dibs.base.clock import wall_ms
from dibs.base.jsontext import Document
from dibs.cli.framework.context import Call


def is_by_hand() -> bool:
    """Tell whether a shell runs this command for somebody who types."""
    own = os.getpgrp()
    return any(_group(shell.pid) not in (None, own) for shell in forked_shells(runner(os.getppid())))


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended
        return None


def remember(call: Call, lease: Document, request_key: str) -> bool:
    """Remember a claim for this shell. False if there is no shell, or no file can be written."""
    actor = actor_of(call)
    if not actor.marks:
        return False
    entry = actor.entry(lease["owner"], request_key, lease["lease_id"], lease["fencing_token"])
    until_ms = wall_ms() + lease["remaining_ms"]
    return _memory(call).remember(lease["name"], {**entry, "until_ms": until_ms}) is not None


def recall(call: Call, name: str) -> str | None:
    """The lease id of a claim that was typed in this shell. The store decides whether it is current."""
    actor = actor_of(call)
    for entry in _memory(call).entries(name):
        if entry.get("lease_id") and may_keep(entry, actor):
            lease_id: str = entry["lease_id"]
            return lease_id
    return None


def _memory(call: Call) -> RememberedLeases:
    return RememberedLeases(call.env, call.settings.url, call.settings.namespace, wall_ms())
