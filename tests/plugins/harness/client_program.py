"""A program that runs an agent, as Codex, Gemini CLI and Copilot do: it starts hooks, shells and one MCP server itself.

Each line on its standard input is an order, [what, given, environment]; each line on its standard output is the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

DIBS = [sys.executable, "-m", "dibs"]
HOOK = [*DIBS, "agent", "hook", "--client", sys.argv[1]]
SECONDS_MAX = 60


class Server:
    """`dibs mcp`, started when the first tool is called."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*DIBS, "mcp"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.count = 0
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        self.ask("initialize", about)

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = {"jsonrpc": "2.0", "id": self.count, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())["result"]
        return answer


servers: list[Server] = []
for line in sys.stdin:
    what, given, more = json.loads(line)
    env = {**os.environ, **more}
    if what == "tool":
        if not servers:
            servers.append(Server(env))
        print(json.dumps(servers[0].ask("tools/call", given)["structuredContent"]), flush=True)
        continue
    if what == "hook":
        words, text = HOOK, json.dumps(given)
    elif what == "wrapped hook":
        run = f"import subprocess; raise SystemExit(subprocess.run({HOOK!r}).returncode)"
        words, text = [sys.executable, "-c", run], json.dumps(given)
    else:
        words, text = ["bash", "-c", given], ""
    done = subprocess.run(words, input=text, env=env, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
