"""Tries an installed dibs as a stranger would: python -m scripts.dev.packaging.trial BIN BUILD

BIN is the folder with the programs of a fresh environment, BUILD what must be there: `pure` or `compiled`. The version
must be that of this tree. Command, demo, server with a claim, SDK, and the first
answer over MCP. Everything is in a temporary home; nothing is left behind.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

WAIT_S_MAX = 60
_VERSION = Path(__file__).parents[3] / "src/dibs/_version.py"
_BUILDS = {"pure": "pure Python", "compiled": "compiled"}

_SDK = """
import dibs
with dibs.connect("memory://").claim("job-1") as claim:
    claim.check()
    assert claim.fencing_token == 1
"""
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "trial", "version": "1"},
    },
}


class Trial:
    def __init__(self, programs: Path, home: Path) -> None:
        self._programs = programs
        state = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIBS_", "PYTHON"))}
        self._env = {**kept, **state, "DIBS_SYSTEM_SOCKET": "off", "PATH": f"{programs}:{os.environ['PATH']}"}
        self._home = home

    def run(self, *words: str, exit_code: int = 0, stdin: str = "") -> str:
        done = subprocess.run(
            [self._programs / words[0], *words[1:]],
            env=self._env,
            cwd=self._home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )
        if done.returncode != exit_code:
            raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def serve(self) -> None:
        """A server on a free port: one claim is granted, the next is refused."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        server = subprocess.Popen(
            [self._programs / "dibs", "serve", "--port", str(port)],
            env=self._env,
            cwd=self._home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(f"{url}/ready")
            self.run("dibs", "claim", "job-1", "--actor", "a", "--url", url)
            self.run("dibs", "claim", "job-1", "--actor", "b", "--url", url, exit_code=1)
        finally:
            server.terminate()
            ended = server.wait(WAIT_S_MAX)
        assert ended == 0, f"dibs serve ended with {ended}"


def _wait_for(url: str) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def main() -> None:
    programs, build = Path(sys.argv[1]).absolute(), _BUILDS[sys.argv[2]]
    version = _VERSION.read_text(encoding="utf-8").split('"')[-2]
    with tempfile.TemporaryDirectory(prefix="dibs-trial-") as home:
        trial = Trial(programs, Path(home))
        said = json.loads(trial.run("dibs", "--version", "--verbose", "--json"))["data"]
        assert (said["version"], said["build"]) == (version, build), said
        assert trial.run("dibs-lease", "--version") == f"dibs {version}\n"
        trial.run("dibs", "demo", "--jobs", "4", "--workers", "3", "--json")
        trial.serve()
        trial.run("python", "-c", _SDK)
        first = json.loads(trial.run("dibs", "mcp", stdin=json.dumps(_INITIALIZE) + "\n").splitlines()[0])
        assert first["result"]["serverInfo"]["version"] == version, first
        print(f"  Python {said['python']}, {said['build']}: demo, server, SDK and MCP work")


if __name__ == "__main__":
    main()
