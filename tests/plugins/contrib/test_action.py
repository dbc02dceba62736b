"""The GitHub Action's scripts, run by node against a bare repository as a runner would run them.

They were not run on GitHub."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types

import dibs
from dibs.base.clock import wall_ms
from dibs.oidc.tokens import SignedTokens
from dibs.stores.memory import MemoryStore
from tests.plugins.oidc.issuer import issuing
from tests.programs import ROOT, WAIT_S_MAX, clean_env, pause, wait_until
from tests.server.harness import running as serving
from tests.stores.git.harness import Remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]
ACTION = ROOT / "action"
# The parent of both scripts, as the runner's worker process is. It reads which script to run and the state of the first
# one, and says the exit code. Not a shell: shells drop variables whose names have a dash, such as INPUT_IF-HELD.
WORKER = """
import json, os, subprocess, sys
for line in sys.stdin:
    script, state = json.loads(line)
    code = subprocess.run(["node", script], env={**os.environ, **state}, check=False).returncode
    print(f"exit {code}", flush=True)
"""


TTL_S = 8  # a renewal through git may take seconds on a busy machine


class Runner:
    """One job of one workflow: a checkout, and a worker process that runs the two scripts."""

    def __init__(self, clone: Path, run_id: int, **inputs: str) -> None:
        self.folder = clone.parent / f"runner-{run_id}"
        self.folder.mkdir()
        program = self.folder / "dibs"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dibs "$@"\n')
        program.chmod(0o755)
        given = {"dibs": str(program), "job": "deploy", "ttl": f"{TTL_S}s", **inputs}
        self.env = clean_env(
            self.folder,
            GITHUB_OUTPUT=str(self.folder / "output"),
            GITHUB_STATE=str(self.folder / "state"),
            GITHUB_REPOSITORY="acme/app",
            GITHUB_RUN_ID=str(run_id),
            GITHUB_RUN_ATTEMPT="1",
            GITHUB_JOB="build",
            GIT_CONFIG_GLOBAL=os.devnull,
            **{f"INPUT_{name.upper()}": value for name, value in given.items()},
        )
        self.clone = clone
        self.worker: subprocess.Popen[str] | None = None

    def start(self, script: str) -> None:
        if self.worker is None:
            self.worker = subprocess.Popen(
                [sys.executable, "-c", WORKER],
                cwd=self.clone,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        states = {f"STATE_{name}": value for name, value in values(self.folder / "state").items()}
        assert self.worker.stdin is not None
        self.worker.stdin.write(json.dumps([str(ACTION / script), states]) + "\n")
        self.worker.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Exit code and output of the script. Its worker lives on."""
        assert self.worker is not None
        assert self.worker.stdout is not None
        said = ""
        for line in self.worker.stdout:
            if found := re.fullmatch(r"exit (\d+)\n", line):
                return int(found[1]), said
            said += line
        raise AssertionError(f"the worker ended: {said}")

    def run(self, script: str) -> tuple[int, str]:
        self.start(script)
        return self.ended()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.communicate(timeout=WAIT_S_MAX)

    @property
    def outputs(self) -> dict[str, str]:
        return values(self.folder / "output")


def values(file: Path) -> dict[str, str]:
    """What GitHub reads from its files: NAME<<END, lines, END."""
    found = {}
    lines = iter(file.read_text().splitlines() if file.exists() else [])
    for line in lines:
        name, _, end = line.partition("<<")
        found[name] = "\n".join(iter(lambda: next(lines), end))
    return found


@pytest.fixture
def runner(tmp_path: Path, need_program: Callable[[str], str]) -> Iterator[Callable[..., Runner]]:
    need_program("node")
    need_program("git")
    remote = Remote(tmp_path)
    made: list[Runner] = []

    def make(**inputs: str) -> Runner:
        number = len(made) + 1
        made.append(Runner(remote.clone(f"checkout-{number}"), number, **inputs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def client_of(one: Runner) -> dibs.Client:
    address = subprocess.run(
        ["git", "remote", "get-url", "origin"], cwd=one.clone, capture_output=True, text=True, check=True
    ).stdout.strip()
    return dibs.connect(f"git+file://{address.removeprefix('file://')}")


def test_of_two_runners_that_race_one_owns_the_job_and_the_other_gets_it_after_the_release(
    runner: Callable[..., Runner],
) -> None:
    wanted = {"if-held": "skip", "ttl": "30s"}  # a renewal through git may take seconds on a busy machine
    both = [runner(**wanted), runner(**wanted)]
    for each in both:
        each.start("main.js")
    said = [each.ended() for each in both]
    assert [code for code, _ in said] == [0, 0], said
    winner, loser = sorted(both, key=lambda each: each.outputs["owned"], reverse=True)
    assert (winner.outputs["owned"], loser.outputs["owned"]) == ("true", "false")
    assert loser.outputs["owner"] == winner.outputs["owner"] == f"acme/app run {both.index(winner) + 1}.1 build"
    lease = winner.outputs["lease"]
    assert f"::add-mask::{lease}\n" in said[both.index(winner)][1]
    ended = winner.run("post.js")
    assert ended[0] == 0, ended
    assert loser.run("post.js") == (0, "")  # it has nothing to release
    again = runner()
    assert again.run("main.js")[0] == 0
    assert again.outputs["token"] == "2"


def test_a_held_job_fails_the_step_unless_it_may_be_skipped(runner: Callable[..., Runner]) -> None:
    first, second = runner(), runner()
    assert first.run("main.js")[0] == 0
    code, said = second.run("main.js")
    assert code == 1
    assert "::error::Not claimed: deploy. acme/app run 1.1 build has deploy" in said


def test_a_killed_runner_gives_way_to_one_that_waits_and_leaves_its_checkpoint(
    runner: Callable[..., Runner],
) -> None:
    first, second = runner(), runner(**{"if-held": "wait", "wait": "60s"})
    assert first.run("main.js")[0] == 0
    with client_of(first) as client:
        client.renew("deploy", first.outputs["lease"], checkpoint="step 3\nof 5 <<end")
    assert first.worker is not None
    second.start("main.js")
    os.kill(first.worker.pid, signal.SIGKILL)
    first.worker.wait()
    assert second.ended()[0] == 0
    assert second.outputs["checkpoint"] == "step 3\nof 5 <<end"
    assert second.outputs["token"] == "2"


def test_heartbeats_keep_the_job_past_its_ttl_and_a_loss_fails_the_run(runner: Callable[..., Runner]) -> None:
    one = runner(job="--deploy 100% ; $(touch x)")
    assert one.run("main.js")[0] == 0
    with client_of(one) as client:
        name = "--deploy 100% ; $(touch x)"
        renewed = wait_until(lambda: _renewed(client, name), "the job was renewed")
        assert renewed.held
        client.break_claim(name, "an operator")
    code, said = one.run("post.js")
    assert code == 1
    assert "was lost while the steps ran" in said


RULES = """
[[identity]]
issuer = "{issuer}"
audience = "dibs"
match = {{ repository = "acme/app", ref = "refs/heads/main" }}
principal = "ci-{{repository}}"
"""


def test_a_run_claims_on_a_server_by_its_own_identity_and_no_secret(
    runner: Callable[..., Runner], tmp_path: Path
) -> None:
    rules = tmp_path / "identity.toml"
    with issuing() as issuer:
        rules.write_text(RULES.format(issuer=issuer.url))
        with serving(tmp_path, signed=SignedTokens(str(rules)), real_time=True, store=MemoryStore(wall_ms)) as server:
            one = runner(url=f"http://127.0.0.1:{server.port}")
            one.env |= {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{issuer.url}/sign?", "RUNNER_TEMP": str(one.folder)}
            one.env |= {"ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-run"}
            issuer.lasts_s = [1]  # the first is due for renewal at once
            code, said = one.run("main.js")
            assert (code, one.outputs["owned"]) == (0, "true"), said
            [path] = one.folder.glob("dibs-token-*")
            first = re.search(r"::add-mask::(eyJ.*)", said)
            assert first is not None
            wait_until(lambda: path.read_text().strip() != first[1], "the token was renewed")
            assert path.stat().st_mode & 0o777 == 0o600
            status = server.ask("GET", "/locks/deploy", who="admin").json
            assert (status["status"], status["owner"]) == ("held", "acme/app run 1.1 build")
            code, said = one.run("post.js")
            assert (code, "Released deploy" in said) == (0, True), said
            assert not path.exists()
            assert server.ask("GET", "/locks/deploy", who="admin").json["status"] == "free"


def test_a_run_that_github_signs_nothing_for_says_what_to_do(runner: Callable[..., Runner]) -> None:
    with issuing() as issuer:
        one = runner(url="http://127.0.0.1:1")
        one.env |= {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{issuer.url}/sign?", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "x"}
        issuer.status = 403
        code, said = one.run("main.js")
    assert code == 1
    assert "answers with 403. Give the job permissions: id-token: write" in said


def _renewed(client: dibs.Client, name: str) -> dibs.JobStatus | None:
    pause(0.2)
    status = client.owner(name)
    return status if status.document.get("held_ms", 0) > 1_000 * TTL_S + 500 else None


def test_without_dibs_or_with_a_wrong_input_the_step_says_what_to_do(runner: Callable[..., Runner]) -> None:
    code, said = runner(dibs="no-such-dibs").run("main.js")
    assert code == 1
    assert "Install dibs in an earlier step" in said
    code, said = runner(**{"if-held": "perhaps"}).run("main.js")
    assert code == 1
    assert "if-held is one of fail, skip, wait" in said


def test_the_action_declares_what_its_scripts_read_and_write() -> None:
    declared = yaml.safe_load((ACTION / "action.yml").read_text())
    scripts = "".join(file.read_text() for file in ACTION.glob("*.js"))
    assert set(declared["inputs"]) == set(re.findall(r'input\("([\w-]+)"\)', scripts))
    assert set(declared["outputs"]) == set(re.findall(r'output\("([\w-]+)"', scripts))
    assert (ACTION / declared["runs"]["main"]).exists()
    assert (ACTION / declared["runs"]["post"]).exists()
