"""No secret is in the arguments of a process, in what commands print about others, or in a server's log."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, wait_until

pytestmark = pytest.mark.e2e


def arguments() -> str:
    """The arguments of all processes that can be seen."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(found)


@pytest.mark.promise("logs:no-secrets")
def test_arguments_outputs_and_the_servers_log_hold_no_secret(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, flags=("--access-log",)) as server:
        env = {**server.env, "DIBS_URL": server.url, "DIBS_TOKEN": server.token, "DIBS_DEBUG": "1"}

        def dibs(*words: str, **more: str) -> str:
            ran = subprocess.run(
                [*DIBS, *words],
                env=env | more,
                capture_output=True,
                text=True,
                timeout=WAIT_S_MAX,
                check=False,
            )
            return ran.stdout + ran.stderr

        secrets = {server.token, "guess-0123456789"}
        made = dibs("token", "create", "ci", "--quiet").strip()
        rotated = dibs("token", "rotate", "ci", "--quiet").strip()
        lease = dibs("claim", "a", "--quiet").split()[0]
        assert len({made, rotated, lease}) == 3
        secrets |= {made, rotated, lease}
        marker = str(tmp_path / "began")
        work = subprocess.Popen(
            [*DIBS, "run", "b", "--", "sh", "-c", f"touch {marker}; exec sleep 60"],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: Path(marker).exists(), "the command runs")
            seen = arguments()
            assert marker in seen
        finally:
            work.terminate()
            work.wait(WAIT_S_MAX)
        said = [
            dibs("claim", "a"),
            dibs("list", "--json"),
            dibs("history", "a"),
            dibs("token", "list"),
            dibs("doctor"),
            dibs("claim", "c", DIBS_TOKEN="guess-0123456789"),
            dibs("doctor", DIBS_TOKEN="guess-0123456789"),
            dibs("claim", "c", DIBS_URL="http://127.0.0.1:1"),
            dibs("release", "a", "--lease", lease[:-1] + ("0" if lease[-1] != "0" else "1")),
        ]
        assert server.stop() == 0
        log = server.log.read_text()
        assert "/locks/a/acquire" in log
        for text in (seen, log, *said):
            assert [secret for secret in secrets if secret in text] == []
