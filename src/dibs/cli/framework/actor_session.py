"""`--actor NAME`: one session for a named worker, found again from every shell of this user.

An agent runs each command in a new shell, so a lease id in a shell variable is lost with the next command. An actor's
name is not lost: `dibs claim`, `heartbeat` and `release` with the same name use one session, and the session proves
what it holds. The same name means the same worker, so two agents need two names.

A coding agent needs no name: the id of its session names the actor, which its harness gives its shells, or which its
hooks have noted (`agents/harness/session_finder.py`). Where the harness's process is known, the claims end with it.

An actor is one worker at a store: an identity belongs to the store, a namespace to a name. So its session holds jobs
in all namespaces that it claims in, and `dibs claim` of a path and of an issue are claims of one session.

The session's id is kept in a private file under `actors` in the state folder, one for each store and name. The file
proves nothing by itself: the store knows whether the session lives. Every claim and heartbeat of the actor renews the
session; a command that waits does so each minute. ACTOR_TTL_MS after the last time the session ends and its jobs are
released.

A token that is bound to a namespace sees only the sessions that were opened there, and `git:origin` is another store in
another clone. So the file may list several sessions, and the first that is known to the store is meant.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Any, Callable, Mapping
from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.base.files import lock_file, replace_file, state_folder
from dibs.base.ids import digest, new_id
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.registry import AGENT_SESSIONS, AGENT_SIGNS
from dibs.cli.framework.result import body_of
from dibs.client.transport import is_over
from dibs.core.limits import ACTOR_TTL_MS, AGENT_TTL_MS, OWNER_CHARS_MAX
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.wire.documents import Reply


def agent_here(env: Mapping[str, str], *, claims: bool) -> Any:
    """The coding agent whose command this is, an `Agent` of the plugin. DIBS_ACTOR, even empty, turns this off."""
    if "DIBS_ACTOR" in env or not any(env.get(variable) for variable in AGENT_SIGNS):
        return None
    from dibs.base.plugins import PARTS, plugin  # only for agents: each import delays a claim

    shell = plugin(PARTS, "agent-shell")
    return None if shell is None else shell.agent_here(env, claims=claims)


def agent_named(env: Mapping[str, str], name: str | None) -> Any:
    """The coding agent around whose session has this id: an agent that names itself so is not another worker."""
    signs = [env[variable] for variable in AGENT_SIGNS if env.get(variable)]
    # A sign that is no session's id may stand for any.
    if not name or not (name in signs or any(env.get(sign) for sign in AGENT_SIGNS[len(AGENT_SESSIONS) :])):
        return None
    from dibs.base.plugins import PARTS, plugin  # only for agents: each import delays a claim

    shell = plugin(PARTS, "agent-shell")
    return None if shell is None else shell.agent_named(env, name)


_BYTES_MAX = 2048
_SESSIONS_MAX = 4  # that are remembered for one actor
_UNKNOWN = "not_found"  # the answer about a session of another token, or of another store
_GATE_MS = 5_000
_GATE_DIGITS = 2  # so that there are not as many gates as actors
# The skill's placeholder for a name. Two agents that copied it would be one worker, so it is refused.
PLACEHOLDER = "YOUR-NAME"


def actor_named(call: Call) -> str | None:
    """The actor's name, if one was given. A session takes precedence over an actor, and a flag over a variable."""
    values = call.values
    if values.get("session") is not None:
        return None
    name: str | None = values.get("actor")
    if name is None and not call.env.get("DIBS_SESSION"):
        name = call.env.get("DIBS_ACTOR") or None
    if name == PLACEHOLDER:
        raise UsageError(f"--actor {name} is a placeholder. Choose a name that no other agent has.")
    return None if name is None else checked_actor(call, name)


def checked_actor(call: Call, name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > OWNER_CHARS_MAX:
        raise UsageError(
            f"--actor (DIBS_ACTOR) is a printable name of 1 to {OWNER_CHARS_MAX} characters, not {name!a}."
        )
    return name


class ActorSession:
    """The session of one actor at one store, for jobs in all namespaces. `owner` is what others see, if not `name`."""

    def __init__(self, call: Call, name: str, agent: Any = None, owner: str | None = None) -> None:
        self._call = call
        self._name = name
        self._agent = agent
        self._owner = owner
        self._folder = os.path.join(state_folder(call.env), "actors")
        # The file of a named actor is the one that versions before 0.3 had for the default namespace.
        self._path = self._file(DEFAULT_NAMESPACE if agent is None else "agent")
        # A subagent opens the session of its parent, so both have one gate.
        family = name if agent is None else agent.session
        self._gate = os.path.join(self._folder, f"gate-{digest(family)[:_GATE_DIGITS]}")

    def _file(self, where: str) -> str:
        return os.path.join(self._folder, digest(self._call.settings.url or "", where, self._name))

    @classmethod
    def of_agent(cls, call: Call, agent: Any) -> ActorSession:
        return cls(call, agent.key, agent)

    @property
    def ttl_ms(self) -> int:
        """Return how long the session lives without a command: longer where the end of its process shows."""
        url = self._call.settings.url
        is_here = url is None or url.startswith("sqlite:")
        return AGENT_TTL_MS if is_here and self._mark() != "-" else ACTOR_TTL_MS

    def known(self) -> str | None:
        """The session that an earlier claim opened, which may have ended since; None if there was none. The store is
        asked only if several are remembered."""
        known = self._read()
        return known[0][0] if len(known) == 1 else self.renewed()

    def renewed(self) -> str | None:
        """The session that an earlier claim opened, renewed; None if there was none. It may have ended: then who uses
        it as proof is refused."""
        known = self._read()
        for session, _, _ in known:
            if (self._renewed(session, {"active": True}).body or {}).get("code") != _UNKNOWN:
                return session
        return known[0][0] if known else None

    def alive(self) -> str | None:
        """The session that an earlier claim opened, renewed as for a claim; None if there was none, or it is over."""
        return self._alone(lambda: self._keep(self.ttl_ms)) if self._read() else None

    def kept(self, ttl_ms: int = 0) -> str:
        """The session that an earlier claim opened, renewed, as proof. It lives for at least `ttl_ms` from now."""
        session = None
        if any(ttl_ms > kept_ms for _, kept_ms, _ in self._read()):
            session = self._alone(lambda: self._keep(ttl_ms))
        session = session or self.renewed() or next(iter(self.earlier()), None)
        if session is None:
            who = f"The actor {self._name!a}" if self._agent is None else "This agent"
            raise UsageError(
                f"{who} has claimed nothing here. Name the --actor and the --url of the claim; `dibs owner JOB` shows "
                "who has it.\nA claim without an actor printed a lease id: --lease ID."
            )
        return session

    def earlier(self) -> list[str]:
        """Sessions of the actor that a version before 0.3 opened: one for each namespace, and another one for an agent
        that named itself by its id. Their claims are released together with the others, or run out."""
        from dibs.base.checkout import current_folder
        from dibs.client.naming import namespace_around

        files = [self._file(DEFAULT_NAMESPACE)]
        if self._agent is None:
            here = namespace_around(self._call.env, current_folder())
            files = [self._file(each) for each in dict.fromkeys((self._call.settings.namespace, here)) if each]
        current = [session for session, _, _ in self._read()]
        return [entry[0] for file in files for entry in _sessions_in(file) if entry[0] not in current]

    def opened(self, ttl_ms: int) -> str:
        """The actor's session: the existing one, renewed, or a new one. It lives for at least `ttl_ms`."""
        opened = self._alone(lambda: self._keep(ttl_ms) or self._open(ttl_ms))
        assert opened is not None
        return opened

    def _alone(self, act: Callable[[], str | None]) -> str | None:
        """Do it while no other command of the actor does: two first claims of one actor open one session."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            gate = os.open(self._gate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if not lock_file(gate, _GATE_MS):
                raise StoreUnavailable(
                    f"Another dibs command of the same actor stands still: {self._gate} is locked. "
                    "Continue or end that process."
                )
            return act()
        finally:
            os.close(gate)

    def _renewed(self, session: str, asked: dict[str, int | bool | str]) -> Reply:
        """Renew the session. The answer says who began to wait for something of it; the command will say so."""
        if asked.get("active") and (note := self._note()):
            asked = {**asked, "metadata": note}
        reply = self._call.ask("session-keep", session, asked)
        self._call.wanted += (reply.body or {}).get("wanted", ())
        return reply

    def _keep(self, ttl_ms: int, *, active: bool = True) -> str | None:
        for session, kept_ms, before in self._read():
            mark = self._watched(before)
            # Nobody would see the end of a process that is not known.
            wanted_ms = ttl_ms if mark == "-" != before else max(ttl_ms, kept_ms)
            asked: dict[str, int | bool | str] = {"ttl_ms": wanted_ms, "active": active}
            if mark != before:
                asked["process"] = "" if mark == "-" else mark
            reply = self._renewed(session, asked)
            if (reply.body or {}).get("code") == _UNKNOWN:
                continue
            if is_over(reply):
                return None
            body_of(reply)
            if (wanted_ms, mark) != (kept_ms, before) or not os.path.exists(self._path):
                self._write(session, wanted_ms, mark)
            return session
        return None

    def _watched(self, mark: str) -> str:
        """The mark of the process whose end ends the session: known late, or another one in a resumed agent."""
        ours = self._mark()
        if mark in ("-", ours):
            return ours
        from dibs.system.session_mark import is_gone

        return ours if is_gone(mark) else mark

    def _open(self, ttl_ms: int) -> str:
        request = {"owner": self.owner(), "ttl_ms": ttl_ms, "fresh_session_id": new_id()}
        mark = self._mark()
        if mark != "-":
            request["process"] = mark
        if note := self._note():
            request["metadata"] = note
        if self._agent is not None and self._agent.parent is not None:
            above = self.of_agent(self._call, self._agent.parent)
            request["parent_id"] = above._keep(ttl_ms, active=False) or above._open(ttl_ms)  # we have the gate
        session: str = self._call.body("session-open", "", request)["session_id"]
        self._write(session, ttl_ms, mark)
        return session

    def _note(self) -> str:
        """The note of the session about its worker, for `dibs agents`. Empty for the shell of `dibs lock`."""
        agent = self._agent
        if agent is None and self._owner is not None:
            return ""
        from dibs.base.checkout import branch_of, current_folder, root_around
        from dibs.wire.agent_notes import ACTOR, SHELL, agent_note

        folder = current_folder() or ""
        tree = (root_around(self._call.env, folder) if folder else "") or folder
        home = self._call.env.get("HOME") or ""
        is_inside = home not in ("", "/") and f"{tree}/".startswith(f"{home}/")
        fields = {
            "part": SHELL if agent is not None and agent.is_shell else "",
            "host": os.uname().nodename,
            "work_tree": f"~{tree[len(home) :]}" if is_inside else tree,
            "branch": branch_of(tree) if tree else "",
            "action": _action(self._call, agent),
        }
        return agent_note(ACTOR if agent is None else agent.harness, fields)

    def owner(self) -> str:
        """The name that others see. Inside `dibs session run` an actor has its own: several may work there."""
        settings = self._call.settings
        if self._agent is None:
            return settings.stated_owner or self._owner or self._name
        named = settings.pick("owner", "DIBS_OWNER")
        if named:
            return named
        from dibs.base.checkout import current_folder, label_of

        folder = current_folder()
        owner: str = self._agent.owner("" if folder is None else label_of(self._call.env, folder))
        return owner

    def _mark(self) -> str:
        """The mark of the agent's process; `-` where it is not known."""
        if self._agent is None or not self._agent.pid:
            return "-"
        from dibs.system.session_mark import process_mark

        return process_mark(self._agent.pid) or "-"

    def _read(self) -> list[Entry]:
        """The remembered sessions, the newest first; without any, those that a version before 0.3 remembered for this
        namespace."""
        known = _sessions_in(self._path)
        namespace = self._call.settings.namespace
        if known or self._agent is not None or namespace is None:
            return known
        return _sessions_in(self._file(namespace))

    def _write(self, session: str, ttl_ms: int, mark: str) -> None:
        others = [entry for entry in _sessions_in(self._path) if entry[0] != session][: _SESSIONS_MAX - 1]
        lines = [f"{each} {lasts_ms} {process}\n" for each, lasts_ms, process in ((session, ttl_ms, mark), *others)]
        try:
            replace_file(self._path, "".join(lines))
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InvalidInput:
        what_next = "Claim without --actor: the claim then prints a lease id, for --lease."
        if self._call.settings.url is None:
            what_next = "Your own store is beside it: set XDG_STATE_HOME to a folder that can be written, or use --url."
        return InvalidInput(
            f"{self._folder} cannot be written ({error.strerror}), so dibs cannot remember the actor. {what_next}"
        )


def _action(call: Call, agent: Any) -> str:
    """The last action of a worker: what its hook says, else the command of dibs."""
    if agent is not None and (agent.action or call.command == "agent hook"):
        return str(agent.action)
    return f"dibs {call.command}"


Entry = tuple[str, int, str]  # a session's id, its TTL, and the mark of its process or `-`


def _sessions_in(path: str) -> list[Entry]:
    """The sessions in a file. One that is damaged or cannot be read has none."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_BYTES_MAX).decode("ascii", "replace").splitlines()
    except OSError:
        return []
    found = [line.split() for line in lines]
    return [(each[0], int(each[1]), each[2]) for each in found if len(each) == 3 and each[1].isdecimal()]


def session_named(call: Call, name: str) -> ActorSession:
    """The session of the actor with this name. The id of the coding agent's own session names the agent."""
    agent = agent_named(call.env, name)
    return ActorSession(call, name) if agent is None else ActorSession.of_agent(call, agent)


def actor_session(call: Call, *, claims: bool) -> ActorSession | None:
    """The session of the caller's actor: the one that it names, else the agent whose command this is."""
    name = actor_named(call)
    if name is not None:
        return session_named(call, name)
    agent = agent_here(call.env, claims=claims)
    return None if agent is None else ActorSession.of_agent(call, agent)
