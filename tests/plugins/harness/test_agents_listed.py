"""`dibs agents`: one row for each agent whose hooks were run, and what people read of an agent's claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import DIBS, WAIT_S_MAX, dibs_here

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.harness.conftest import Yard

A, B = "aaaa1111-2222-4333-8444-555566667777", "bbbb1111-2222-4333-8444-555566667777"


def agents(yard: Yard, *flags: str) -> dict[str, dict[str, Any]]:
    ran = dibs_here(yard.env, yard.folder, "agents", "--json", *flags)
    assert ran.returncode == 0, ran
    return {each["name"]: each for each in json.loads(ran.stdout)["data"]["agents"]}


def said(yard: Yard, *words: str, folder: Path | None = None) -> str:
    ran = dibs_here(yard.env, folder or yard.folder, *words)
    return ran.stdout + ran.stderr


@pytest.mark.promise("agent:listed")
def test_one_row_for_each_agent(yard: Yard) -> None:
    one, two = yard.agent(A), yard.agent(B, "codex")
    one.tell("SessionStart")
    found = agents(yard)
    assert (found["claude-aaaa"]["action"], found["claude-aaaa"]["file_count"]) == ("started", 0)
    assert one.edit("src/a")
    assert not two.edit("src/a")
    assert two.edit("src/b")
    found = agents(yard)
    assert list(found) == ["claude-aaaa", "codex-bbbb"]
    first = found["claude-aaaa"]
    wanted = {"client": "claude", "state": "alive", "branch": "main", "files": ["src/a"], "action": "edit src/a"}
    assert {key: first[key] for key in wanted} == wanted
    assert os.path.realpath(os.path.expanduser(first["work_tree"])) == os.path.realpath(yard.folder)
    assert found["codex-bbbb"]["files"] == ["src/b"]
    rows = said(yard, "agents").splitlines()
    assert rows[0].split()[:3] == ["AGENT", "CLIENT", "STATE"]
    assert [row.split()[0] for row in rows[1:]] == ["claude-aaaa", "codex-bbbb"]


def test_a_row_follows_the_agent(yard: Yard) -> None:
    agent = yard.agent(A)
    assert agent.edit("src/a")
    yard.git("checkout", "-q", "-b", "fix")
    assert agent.edit("src/b")
    assert agents(yard)["claude-aaaa"]["branch"] == "fix"
    agent.tell("Stop")
    assert agents(yard)["claude-aaaa"]["action"] == "stopped"
    agent.tell("SessionEnd")
    assert agents(yard) == {}
    assert agents(yard, "--all")["claude-aaaa"]["state"] == "ended"


def test_a_subagent_has_a_row_and_a_shell_has_none(yard: Yard) -> None:
    (yard.folder / ".dibs.toml").write_text('[[agent.command]]\nmatch = "make deploy"\nclaim = "deploy:prod"\n')
    agent = yard.agent(A)
    assert agent.shell("make deploy")
    assert agent.edit("src/a", agent_id="cccc", agent_type="t")
    found = agents(yard)
    assert list(found) == ["claude-aaaa", "claude-aaaa/cccc"]
    assert found["claude-aaaa"]["jobs"] == ["deploy:prod"]
    assert found["claude-aaaa/cccc"]["parent"] == "claude-aaaa"
    assert "/shel" not in said(yard, "list") + said(yard, "session", "list")


@pytest.mark.fault("F-659")
def test_a_subagent_whose_agent_is_not_shown_has_its_whole_name(yard: Yard) -> None:
    other, agent = yard.agent("00000000-1111"), yard.agent(A)
    assert other.edit("src/b")
    assert agent.edit("src/a", agent_id="cccc", agent_type="t")
    assert [row.split()[0] for row in said(yard, "agents").splitlines()[2:]] == ["claude-aaaa", "/cccc"]
    agent.send(agent.document("SessionEnd"))
    assert [row.split()[0] for row in said(yard, "agents").splitlines()[2:]] == ["claude-aaaa/cccc"]


@pytest.mark.fault("F-609")
def test_no_digest_is_shown_to_people(yard: Yard) -> None:
    assert yard.agent(A).edit("src/a")
    digests = ("path:@", "checkout=", "clone=", '{"agent"')
    for words in (
        ("list",),
        ("list", "-q"),
        ("owner", "path:src/a"),
        ("history", "path:src/a"),
        ("wait", "path:src/a", "--for", "0s"),
        ("claim", "path:src/a"),
        ("claim", "path:src"),
        ("claim", "repo:app"),
        ("session", "list"),
        ("top", "--once"),
        ("agents",),
    ):
        shown = said(yard, *words)
        assert "claude-aaaa" in shown or "path:src/a" in shown, words
        assert not [each for each in digests if each in shown], (words, shown)


@pytest.mark.fault("F-610")
@pytest.mark.parametrize("written", ["src/a", "./src/a", "path:src/a"])
def test_a_file_is_found_as_it_is_written(yard: Yard, written: str) -> None:
    assert yard.agent(A).edit("src/a")
    assert "claude-aaaa in app@main has path:src/a " in said(yard, "owner", written)
    assert "claude-aaaa in app@main claimed it" in said(yard, "history", written)
    assert "Not yet: claude-aaaa" in said(yard, "wait", written, "--for", "0s")
    below = said(yard, "owner", written.replace("src/", ""), folder=yard.folder / "src")
    assert ("claude-aaaa" in below) == (not written.startswith("path:"))


def test_a_job_that_is_called_like_a_file_is_the_job_and_the_file_is_named(yard: Yard) -> None:
    assert yard.agent(A).edit("src/a")
    assert "Nobody has src/b" in said(yard, "owner", "src/b")
    assert "Claimed src/a" in said(yard, "claim", "src/a", "--owner", "person", "--exact")
    shown = said(yard, "owner", "src/a")
    assert "person has src/a" in shown
    assert "path:src/a is another one: claude-aaaa" in shown
    said(yard, "break", "src/a", "--exact", "--reason", "over")
    assert "claude-aaaa in app@main has path:src/a" in said(yard, "owner", "src/a")
    both = said(yard, "owner", "src/a", "issue-1")
    assert "Nobody has issue-1" in both
    assert "Files are named apart from jobs: path:src/a" in both


def test_a_repository_with_wrong_settings_keeps_no_job_from_being_looked_at(yard: Yard) -> None:
    (yard.folder / ".dibs.toml").write_text("[names]\nnonsense = 1\n")
    yard.git("config", "dibs.namespace", " ")
    assert "Claimed v1.2" in said(yard, "claim", "v1.2", "--owner", "person")
    assert "person has v1.2" in said(yard, "owner", "v1.2")


@pytest.mark.fault("F-611")
def test_who_releases_a_file_releases_it_for_its_checkout_too(yard: Yard) -> None:
    one, two = yard.agent(A), yard.agent(B)
    assert one.edit("src/a")
    assert not two.edit("src/a")
    env = {**yard.env, "CLAUDE_CODE_SESSION_ID": A}
    ran = dibs_here(env, yard.folder, "release", "src/a")
    assert ran.returncode == 0, ran
    assert two.edit("src/a")


@pytest.mark.e2e
def test_an_agent_whose_process_was_killed_is_gone(yard: Yard) -> None:
    client = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        yard.env["CLAUDE_PID"] = str(client.pid)
        assert yard.agent(A).edit("src/a")
        assert agents(yard)["claude-aaaa"]["state"] == "alive"
    finally:
        client.kill()
        client.wait()
    row = agents(yard)["claude-aaaa"]
    assert (row["state"], row["files"]) == ("gone", [])
    shown = subprocess.run(
        [*DIBS, "agents"],
        env=yard.env,
        cwd=yard.folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert " gone " in shown.stdout
