"""One event of a coding agent, in the same words for all harnesses."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.agents.harness.identity import Agent

BEFORE_EDIT, BEFORE_SHELL, AFTER_TOOL = "before-edit", "before-shell", "after-tool"
START, COMPACTED, STOP, SUBAGENT_STOP, END, OTHER = (
    "start",
    "compacted",
    "stop",
    "subagent-stop",
    "end",
    "other",
)


class HookEvent:
    """`name` is the harness's own word for it, which some answers must repeat. `paths` are files that are about to be
    written, as given; `command` is a shell command."""

    __slots__ = ("agent", "command", "cwd", "harness", "kind", "name", "paths")

    def __init__(
        self,
        kind: str,
        harness: str,
        name: str,
        agent: Agent | None,
        *,
        cwd: str = "",
        paths: Sequence[str] = (),
        command: str = "",
    ) -> None:
        self.kind = kind
        self.harness = harness
        self.name = name
        self.agent = agent
        self.cwd = cwd
        self.paths = tuple(paths)
        self.command = command
