"""Finds the agent's session that a process runs, as hooks have noted it.

Codex does not give its MCP servers the id of their session, and Gemini CLI gives it neither to them nor to its shells.
But the process that runs an agent's hooks also starts its shells and MCP servers. So a hook, which gets the session's
id, notes it for that process, and what the process has started finds the note.

A note is a file below `clients` in the state folder, one for each process and session. A process is identified by its
mark: boot, PID namespace, pid and start time. Neither a later process with the same pid nor one in another container is
taken for it. A process with several sessions (an editor, a daemon) cannot tell whose a shell is, so it counts for none
of them. The end of a session removes its note, and whoever makes a note removes those of ended processes.
"""

from __future__ import annotations

import os

from dibs.agents.harness.agent_identity import VARIABLES, Agent, agents_of
from dibs.agents.shells_above import forked_shells, look, runner
from dibs.base.cheap import Iterable, Mapping
from dibs.base.clock import wall_ms
from dibs.base.files import content, replace_file, state_folder
from dibs.base.ids import digest
from dibs.core.limits import LOCK_MEMORY_MS
from dibs.system import table
from dibs.system.session_mark import is_gone, lineage, process_mark

# Programs that run one command and stay above it.
WRAPPERS = frozenset(("bwrap", "sandbox-exec", "env", "nice", "timeout", "time", "uv", "codex-linux-sandbox"))
_STEPS_MAX = 64
_DIGITS = 16
_BYTES_MAX = 1024


def note(env: Mapping[str, str], agent: Agent) -> int:
    """Note that the process which runs this hook runs the agent's session. Returns its pid if claims may end with it,
    else 0. They may if an earlier hook met the same process: a wrapper around `dibs` lives only for a hook."""
    pid = agent.pid or _client_pid()
    mark = _mark(pid)
    if mark is None:
        return 0
    path = os.path.join(_folder(env), _name(mark, agent.session))
    try:
        os.utime(path)
    except OSError:
        _make(env, path, f"{mark} {agent.harness} {agent.session}\n")
        return agent.pid
    return pid if agent.pid or len(_notes_of(env, mark)) == 1 else 0


def forget(env: Mapping[str, str], agent: Agent) -> None:
    """The session is over. Its client may begin another one."""
    mark = _mark(agent.pid or _client_pid())
    if mark is not None:
        _remove(os.path.join(_folder(env), _name(mark, agent.session)))


def noted(env: Mapping[str, str], marks: Iterable[str]) -> Agent | None:
    """The agent that the first process with a note runs. None if it runs several, or none has a note."""
    for mark in marks:
        found = _notes_of(env, mark)
        if found:
            harness, session = found[0]
            pid = int(mark.split(":")[2])
            return Agent(harness, session, pid=pid) if len(found) == 1 else None
    return None


def _client_pid() -> int:
    """The nearest process above this one that is neither a shell nor a wrapper; 0 if it cannot be seen."""
    found = look(os.getppid())
    for _ in range(_STEPS_MAX):
        if found is None or found.pid <= 1:  # process 1 is above everybody
            return 0
        if not (found.is_shell or found.name in WRAPPERS):
            return found.pid
        found = look(found.parent)
    return 0


def _mark(pid: int) -> str | None:
    """The mark of a process whose start time is known."""
    mark = process_mark(pid)
    return None if mark is None or mark.endswith(":") else mark


def _folder(env: Mapping[str, str]) -> str:
    return os.path.join(state_folder(env), "clients")


def _name(mark: str, session: str) -> str:
    return f"{digest(mark)[:_DIGITS]}-{digest(session)[:_DIGITS]}"


def _notes_of(env: Mapping[str, str], mark: str) -> list[tuple[str, str]]:
    folder, first = _folder(env), f"{digest(mark)[:_DIGITS]}-"
    words = [_read(os.path.join(folder, name)) for name in _names(folder) if name.startswith(first)]
    return [(each[1], each[2]) for each in words if len(each) == 3 and each[0] == mark]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> list[str]:
    return (content(path, _BYTES_MAX) or b"").decode("utf-8", "replace").split()


def _make(env: Mapping[str, str], path: str, text: str) -> None:
    """If that fails, the client's other processes are not known as the agent's."""
    folder = _folder(env)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in _names(folder):
            other = os.path.join(folder, name)
            words = _read(other)
            # A process that no hook has met for days may be of another boot.
            if (words and is_gone(words[0])) or wall_ms() - os.stat(other).st_mtime * 1000 > LOCK_MEMORY_MS:
                _remove(other)
        replace_file(path, text)
    except OSError:
        pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


# Whether a coding agent itself runs this command, so that its session is the command's actor.
#
# A harness names its agent's session in the environment, which everything below inherits: also a script that the agent
# starts, and the ten workers that the script starts. They are not one worker. So a claim counts as the agent's only if
# the agent typed it: the shell that runs the command was started by the harness itself, which shows in that the process
# above the shell does not have the session's id in its environment, or is the one that the agent's hooks have noted.
# Where that cannot be seen, a claim is as without an agent. Proving a claim (heartbeat, release) needs no such care:
# the session holds only what was claimed in it.


def agent_here(env: Mapping[str, str], *, claims: bool) -> Agent | None:
    named = agents_of(env)
    above = None
    if claims or len(named) > 1:
        above = _above_shell()
        # Those that the process names to the shells that it starts: it does not have their ids itself.
        around = b"" if above == 0 else None if above is None else table().environment(above)
        named = [] if around is None else [agent for agent in named if not _has(around, agent)]
    client = noted(env, lineage(above or 0)[:1] if claims else lineage(os.getppid()))
    if client is None:
        return named[0] if len(named) == 1 else None
    # Another harness's id was inherited from around this client.
    own = next((agent for agent in named if agent.harness == client.harness), client)
    if own.session == client.session:
        own.pid = own.pid or client.pid
    return own


def agent_named(env: Mapping[str, str], name: str) -> Agent | None:
    """The agent around this command whose session has this id. Who gives the id says whose the command is: it need not
    be one that the agent typed."""
    named = next((agent for agent in agents_of(env) if agent.session == name), None)
    client = noted(env, lineage(os.getppid()))
    if client is None or client.session != name:
        return named
    if named is None:
        return client
    named.pid = named.pid or client.pid
    return named


def _has(environment: bytes, agent: Agent) -> bool:
    wanted = os.fsencode(f"{VARIABLES[agent.harness]}={agent.session}")
    return wanted in environment.split(b"\0")


def _above_shell() -> int | None:
    """The process that started the shell that runs this command. 0 if there is none; None if it cannot be seen."""
    first = runner(os.getppid())
    if first is None:
        return None
    chain = forked_shells(first)
    pid = chain[-1].parent if chain else first.pid
    for _ in range(_STEPS_MAX):
        if pid <= 0:
            return 0  # the shell is the first process of its own PID namespace
        found = look(pid)
        if found is None or found.name not in WRAPPERS:
            return pid
        pid = found.parent
    return None
