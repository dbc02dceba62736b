"""mcp: serve the MCP client of an agent over stdin and stdout."""

from __future__ import annotations

from dibs.agents.harness.agent_identity import Agent
from dibs.agents.harness.session_finder import agent_here, agent_named
from dibs.agents.repository.work_tree import Repository, is_at_remote
from dibs.base.cheap import Callable
from dibs.cli.framework.actor_session import ActorSession
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import Command, Option


def mcp(call: Call) -> Answer:
    from dibs.agents.mcp.stdio import run

    if call.stdin is None or call.stdout is None:
        raise UsageError("dibs mcp needs standard input and output, and one of them is closed.", "mcp")
    if call.stdin.isatty() and call.stderr is not None:
        call.stderr.write("dibs mcp is meant to be started by an MCP client. Ctrl-D ends it.\n")
    if (url := call.settings.named_url) and is_at_remote(url):
        Repository.here(call.env).check_trusted(url)
    run(call.settings, action_llama=bool(call.values.get("action_llama")), finds=_agent_session(call))
    return yes({"stopped": True}, "")


def _agent_session(call: Call) -> Callable[[], Callable[[], str] | None]:
    """Makes what finds the agent whose MCP client started this, and gives what opens or renews the agent's session. It
    is called in another thread when the session is needed, because a hook may have to note first who the agent is. It
    gives None if the agent is not known, or if another actor is wanted (DIBS_ACTOR, DIBS_SESSION)."""

    def found() -> Callable[[], str] | None:
        if call.env.get("DIBS_SESSION"):
            return None
        actor = call.env.get("DIBS_ACTOR")
        agent = agent_here(call.env, claims=True) if actor is None else agent_named(call.env, actor)
        return None if agent is None else lambda: opened(agent)

    def opened(agent: Agent) -> str:
        own = Call(call.command, call.values, call.env, stdin=None, stdout=None, stderr=None, paint=call.paint)
        try:
            session = ActorSession.of_agent(own, agent)
            return session.opened(session.ttl_ms)
        finally:
            own.close()

    return found


COMMANDS = {
    "mcp": Command(
        mcp,
        Option("--owner NAME", "who the agent is, as shown to others (default: its client)", env="DIBS_OWNER"),
        Option("--action-llama", "also offer Action Llama's tools acquire_lock and release_lock"),
        summary="serve an agent's MCP client over stdin and stdout",
        about=(
            "The MCP client starts it. The agent's claims are renewed while the client runs, and released "
            "when it ends. A dibs server answers MCP clients itself, at /mcp."
        ),
        examples=(
            ("claude mcp add dibs -- dibs mcp", "in Claude Code"),
            ("DIBS_URL=https://dibs.example dibs mcp --owner agent-7", "on a server"),
        ),
        exits=((0, "the client has ended"),),
    ),
}
