"""mcp, skill show, skill install: the doors for agents."""

from __future__ import annotations

from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import Command, Option
from dibs.errors import MissingExtra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

_DONE = {
    "installed": "Installed {}.",
    "replaced": "Replaced {}, which was another version.",
    "unchanged": "{} is up to date: nothing was changed.",
}


def mcp(call: Call) -> Answer:
    import gc

    gc.enable()  # off for commands that end at once
    try:
        from dibs.agents.stdio import run
    except ImportError as error:
        raise MissingExtra(
            f"dibs mcp needs {error.name}. In a clone of dibs, run: pip install '.[mcp]'"
        ) from None
    if call.stdin is None or call.stdout is None:
        raise UsageError(
            "dibs mcp speaks through standard input and output, and one of them is closed.", "mcp"
        )
    if call.stdin.isatty() and call.stderr is not None:
        call.stderr.write("dibs mcp speaks MCP, and is started by a client that does. Ctrl-D ends it.\n")
    run(call.settings, action_llama=bool(call.values.get("action_llama")))
    return yes({"stopped": True}, "")


def show(call: Call) -> Answer:
    from dibs.agents.skills import NAME, skill_text

    text = skill_text()
    return yes({"name": NAME, "skill": text}, text.rstrip("\n"), quiet=text.rstrip("\n"))


def install(call: Call) -> Answer:
    from dibs.agents.skills import install as install_in
    from dibs.agents.skills import usual_folders

    to = call.values.get("to")
    if to == "":
        raise UsageError("--to is the folder of skills, such as .claude/skills.", "skill install")
    folders = [to] if to is not None else usual_folders()
    done = install_in(folders, force=bool(call.values.get("force")))
    files = [{"path": path, "done": what} for path, what in done]
    text = "\n".join(_DONE[what].format(path) for path, what in done)
    return yes({"files": files}, text, quiet="\n".join(path for path, _ in done))


COMMANDS = {
    "mcp": Command(
        "mcp",
        "serve an agent's MCP client over stdin and stdout",
        mcp,
        about=(
            "Started by the client, not by hand. What the agent claims is kept alive while its client lives and let go "
            "when that ends. Claims go to --url, else DIBS_URL, else your own store. It needs the mcp "
            "extra: pip install '.[mcp]' in a clone. A dibs server answers MCP clients itself, at /mcp."
        ),
        options=(
            Option(
                "--owner",
                "who the agent is, as shown to others (default: its client)",
                value="NAME",
                env="DIBS_OWNER",
            ),
            Option("--action-llama", "also offer Action Llama's tools acquire_lock and release_lock"),
        ),
        examples=(
            ("in Claude Code", "claude mcp add dibs -- dibs mcp"),
            ("on a server", "DIBS_URL=https://dibs.example dibs mcp --owner agent-7"),
        ),
        exits=((0, "the client is gone"), (64, "the mcp extra is not installed")),
    ),
    "skill show": Command(
        "skill show",
        "print the skill that teaches agents to use dibs",
        show,
        about="A SKILL.md in the agent-skills format, as this version of dibs has it.",
        examples=(("into any prompt", "dibs skill show >> AGENTS.md"),),
        exits=((0, "printed"),),
    ),
    "skill install": Command(
        "skill install",
        "put the skill where an agent finds it",
        install,
        about=(
            "Writes dibs/SKILL.md below the folder of skills: .claude/skills and .agents/skills of the current folder, "
            "whichever of .claude and .agents is there; if neither is, .claude/skills. A file that was changed is left "
            "alone unless --force is given."
        ),
        options=(
            Option("--to", "the folder of skills", value="DIR", completes="file"),
            Option("--force", "replace a file that differs"),
        ),
        examples=(
            ("for this project", "dibs skill install"),
            ("for all projects of this user", "dibs skill install --to ~/.claude/skills"),
        ),
        exits=((0, "it is there"), (64, "another file is there, or it cannot be written")),
    ),
}
