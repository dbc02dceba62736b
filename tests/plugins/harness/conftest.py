"""A checkout with agents in it, each of which sends the events of its harness to `dibs agent hook`: to the command in
this process, and to real processes in tests that are marked `e2e`."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import DIBS, WAIT_S_MAX, clean_env, dibs_here

if TYPE_CHECKING:
    from pathlib import Path


class AgentProcess:
    """One agent of one harness. Documents are as each harness documents them."""

    def __init__(self, env: dict[str, str], folder: Path, harness: str, session: str, *, is_real: bool) -> None:
        self.env, self.folder, self.harness, self.session, self.is_real = env, folder, harness, session, is_real

    def send(self, document: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
        words, text = ("agent", "hook", *flags), json.dumps(document)
        if not self.is_real:
            return dibs_here(self.env, self.folder, *words, stdin=text)
        return subprocess.run(
            [*DIBS, *words],
            input=text,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )

    def document(self, moment: str, tool: str = "", given: dict[str, Any] | None = None, **more: Any) -> Any:
        cwd = str(self.folder)
        if self.harness == "copilot":
            if not tool:  # events with Claude's names have Claude's fields
                return {"hook_event_name": moment, "session_id": self.session, "cwd": cwd, **more}
            made = {"sessionId": self.session, "timestamp": 1, "cwd": cwd}
            return {**made, "toolName": tool, "toolArgs": json.dumps(given), **more}
        if self.harness == "windsurf":
            made = {"agent_action_name": moment, "trajectory_id": self.session, "execution_id": "e"}
            return {**made, "tool_info": {"cwd": cwd, **(given or {})}}
        made = {"hook_event_name": moment, "cwd": cwd, **more}
        made |= {"tool_name": tool, "tool_input": given} if tool else {}
        if self.harness == "cursor":
            return {**made, "conversation_id": self.session, "generation_id": "g", "workspace_roots": [cwd]}
        made |= {"turn_id": "t1"} if self.harness == "codex" else {}
        return {**made, "session_id": self.session, "transcript_path": "/t"}

    def edit(self, file: str, **more: Any) -> bool:
        """Ask to write a file; whether it was refused is what the harness would take it for."""
        path = str(self.folder / file)
        patch = f"*** Begin Patch\n*** Update File: {file}\n@@\n-x\n+y\n*** End Patch\n"
        moment, tool, given = {
            "claude": ("PreToolUse", "Edit", {"file_path": path, "old_string": "x", "new_string": "y"}),
            "codex": ("PreToolUse", "apply_patch", {"command": patch}),
            "gemini": ("BeforeTool", "write_file", {"file_path": path, "content": "y"}),
            "copilot": ("preToolUse", "edit", {"path": path}),
            "opencode": ("PreToolUse", "edit", {"filePath": path, "oldString": "x", "newString": "y"}),
            "cursor": ("preToolUse", "Write", {"file_path": path}),
            "windsurf": ("pre_write_code", "", {"file_path": path}),
        }[self.harness]
        return self.may(self.send(self.document(moment, tool, given, **more)))

    def shell(self, command: str, **more: Any) -> bool:
        given: dict[str, Any] = {"command": command}
        if self.harness == "cursor":
            return self.may(self.send(self.document("beforeShellExecution", **given, **more)))
        moment, tool, given = {
            "gemini": ("BeforeTool", "run_shell_command", given),
            "copilot": ("preToolUse", "bash", given),
            "windsurf": ("pre_run_command", "", {"command_line": command}),
        }.get(self.harness, ("PreToolUse", "Bash", given))
        return self.may(self.send(self.document(moment, tool, given, **more)))

    def tell(self, moment: str, **more: Any) -> str:
        """The context that the agent is told."""
        done = self.send(self.document(moment, **more))
        assert done.returncode == 0, done
        if not done.stdout:
            return done.stderr
        told = json.loads(done.stdout)["hookSpecificOutput"]
        assert told["hookEventName"] == moment
        return str(told["additionalContext"])

    def may(self, done: subprocess.CompletedProcess[str]) -> bool:
        assert "allow" not in done.stdout
        if done.returncode == 2:
            assert done.stderr
            return False
        assert done.returncode == 0, done
        assert "because" not in done.stderr, done
        return not (done.stdout and json.loads(done.stdout).get("permissionDecision") == "deny")


class Yard:
    """A repository, and agents in it."""

    def __init__(self, env: dict[str, str], folder: Path, *, is_real: bool) -> None:
        self.env, self.folder, self.is_real = env, folder, is_real

    def agent(self, session: str, harness: str = "claude", folder: Path | None = None) -> AgentProcess:
        return AgentProcess(self.env, folder or self.folder, harness, session, is_real=self.is_real)

    def git(self, *words: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(
            ["git", *identity, *words],
            cwd=self.folder,
            env=self.env,
            check=True,
            capture_output=True,
            timeout=WAIT_S_MAX,
        )


@pytest.fixture
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Yard:
    folder = tmp_path / "app"
    (folder / "src").mkdir(parents=True)
    made = Yard(clean_env(tmp_path / "state"), folder, is_real=request.node.get_closest_marker("e2e") is not None)
    for name in ("a", "b", "c"):
        (folder / "src" / name).write_text("x\n")
    made.git("init", "-q", "-b", "main")
    made.git("add", "-A")
    made.git("commit", "-q", "-m", "m")
    return made
