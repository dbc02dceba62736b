"""Agents as a list: one row for each, made of what its sessions and their claims have. Pure.

An agent's commands, hooks and MCP server note in its session's `metadata` who it is, where it works and what it did
last (`agent_notes.py`), and rewrite it whenever they renew the session. The rest of a row is what the session holds and
waits for. So `dibs agents`, `GET /agents` and the board say the same, and nothing else is kept.

- The commands that an agent runs have a session of their own, a part of the agent's (`SHELL`): one row for both.
- A subagent has its own row, after that of its agent, because its name begins with the agent's.
- An agent that has ended is listed for as long as the store remembers its session, unless it works again.
- A session that was opened over MCP without a hook is an agent, too: all that is known of it is its owner's name.
- Names, folders and branches are text of others. A note proves nothing, as an owner's name proves nothing.
"""

from __future__ import annotations

from dibs.base.cheap import Callable, Iterable, Sequence
from dibs.base.errors import InvalidInput
from dibs.base.jsontext import Document
from dibs.base.record import Record
from dibs.core.names import is_resource
from dibs.core.records import RELEASED, SessionRecord
from dibs.core.session_outcomes import SessionState
from dibs.wire import parts
from dibs.wire.agent_notes import SHELL, note_of
from dibs.wire.sentences import shown_name

# The states of an agent. Gone: its process ended, or its session was not renewed in time.
ALIVE, GONE, ENDED = "alive", "gone", "ended"
NAMES_SHOWN = 100  # of the files, jobs and places of one agent
_SHORT = 8


class ListedAgent(Record):
    """One agent: its own session, and those of its parts. `at` is its place in the list."""

    at: tuple[str, int, str]
    session: SessionRecord
    parts: tuple[SessionRecord, ...]
    note: dict[str, str]
    state: str
    is_dead: bool  # its process has ended
    parent: str | None


def name_of(owner: str) -> str:
    """The name of an agent, without the place that its owner's name has, too."""
    return owner.partition(" in ")[0]


def listed_agents(
    sessions: Iterable[SessionRecord], now_ms: int, is_gone: Callable[[str | None], bool], *, ended: bool
) -> list[ListedAgent]:
    """The agents among these sessions, in order. `ended`: with those that have ended properly."""
    noted = {each.id: (each, note) for each in sessions if (note := note_of(each.metadata)) is not None}
    shells: dict[str, list[SessionRecord]] = {}
    for each, note in noted.values():
        if note.get("part") == SHELL and each.parent in noted:
            shells.setdefault(each.parent, []).append(each)
    inside = {each.id for of_one in shells.values() for each in of_one}
    found = []
    for each, note in noted.values():
        if each.id in inside:
            continue
        is_dead = not each.ended_ms and is_gone(each.process)
        is_over = is_dead or each.ended_ms or each.expires_ms <= now_ms
        state = ALIVE if not is_over else ENDED if each.how == RELEASED else GONE
        above = noted.get(each.parent or "")
        parent = None if above is None else name_of(above[0].owner)
        place = (name_of(each.owner), each.since_ms, each.id[:_SHORT])
        found.append(
            ListedAgent(
                at=place,
                session=each,
                parts=tuple(shells.get(each.id, ())),
                note=note,
                state=state,
                is_dead=is_dead,
                parent=parent,
            )
        )
    # One that was lost and works again is told once. Two that live are two, whatever they are called.
    newest: dict[tuple[str, str], int] = {}
    for agent in found:
        key = (agent.at[0], agent.note.get("host", ""))
        newest[key] = max(newest.get(key, 0), agent.at[1])
    wanted = [
        agent
        for agent in found
        if agent.state == ALIVE
        or (agent.at[1] == newest[agent.at[0], agent.note.get("host", "")] and (ended or agent.state == GONE))
    ]
    return sorted(wanted, key=lambda agent: agent.at)


def page_of(agents: Sequence[ListedAgent], after: str, limit: int) -> tuple[list[ListedAgent], str | None]:
    """The agents after a place, and the place where the next page begins. Raises InvalidInput for no place."""
    if after:
        began, _, rest = after.partition(" ")
        short, _, name = rest.partition(" ")
        if not (name and began.isascii() and began.isdecimal() and len(began) < 20):
            raise InvalidInput("after is what the page before had as next.")
        agents = [each for each in agents if each.at > (name, int(began), short)]
    page = list(agents[:limit])
    if len(agents) <= limit or not page:
        return page, None
    name, since_ms, short = page[-1].at
    return page, f"{since_ms} {short} {name}"


def agents_document(
    page: Sequence[ListedAgent], states: Callable[[str], SessionState | None], now_ms: int, next_after: str | None
) -> Document:
    """`states` gives what a session has now."""
    return {
        "agents": [_row(agent, states, now_ms) for agent in page],
        "now": parts.timestamp(now_ms),
        "next": next_after,
    }


def _row(agent: ListedAgent, states: Callable[[str], SessionState | None], now_ms: int) -> Document:
    session, note = agent.session, agent.note
    found = [states(each.id) for each in (session, *agent.parts)]
    # After an outage a session lives longer than its record says.
    is_alive = agent.state == ALIVE or (not agent.is_dead and found[0] is not None and found[0].live)
    state = ALIVE if is_alive else agent.state
    live = [each for each in found if each is not None and each.live and is_alive]
    holds = [(shown_name(hold.name), hold.ns, hold.waiting) for one in live for hold in one.holds]
    names = list(dict.fromkeys([name for name, _, _ in holds]))
    files = [name[5:] for name in names if name.startswith("path:")]
    jobs = [name for name in names if not is_resource(name)]
    places = [shown_name(wait.name) for one in live for wait in one.session.waits]
    want = session.want
    if want is not None and want.until_ms > now_ms and is_alive:
        places += [shown_name(name) for name in (want.name, *want.more)]
    waits = list(dict.fromkeys(places))
    active_ms = max([each.active_ms or each.since_ms for each in (session, *agent.parts)])
    over_ms = session.ended_ms or session.expires_ms
    document: Document = {
        "name": agent.at[0],
        "owner": session.owner,
        "client": note["agent"],
        "state": state,
        "session": f"{session.id[:_SHORT]}…",
        "parent": agent.parent,
        "user_id": session.principal,
        "namespace": session.ns,
        "host": note.get("host"),
        "work_tree": note.get("work_tree"),
        "branch": note.get("branch"),
        "jobs": jobs[:NAMES_SHOWN],
        "files": files[:NAMES_SHOWN],
        "holds": [name for name in names if is_resource(name) and not name.startswith("path:")][:NAMES_SHOWN],
        "job_count": len(jobs),
        "file_count": len(files),
        "waits": waits[:NAMES_SHOWN],
        "waiting": sum({(name, ns): waiting for name, ns, waiting in holds}.values()),
        "action": note.get("action"),
        "active_at": parts.timestamp(active_ms),
        "idle_ms": max(0, now_ms - active_ms),
        "since": parts.timestamp(session.since_ms),
        "open_ms": max(0, now_ms - session.since_ms),
    }
    if state != ALIVE and over_ms <= now_ms:
        document["ended_at"] = parts.timestamp(over_ms)
    return document
