"""The plugin for opencode, run by node as opencode runs it: its functions ask real `dibs agent hook` processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dibs.agents.harness.configuration import plugin
from tests.programs import DIBS, WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.plugins.harness.conftest import Yard

DRIVER = """
import { Dibs } from "./dibs.mjs"
const said = []
const client = { app: { log: async ({ body }) => said.push(body.message) } }
const hooks = await Dibs({ client, directory: process.argv[2] })
const edit = (sessionID, file) =>
  hooks["tool.execute.before"]({ tool: "edit", sessionID }, { args: { filePath: `${process.argv[2]}/${file}` } })
    .then(() => true, (error) => error.message)
const info = { id: "ses_child", parentID: "ses_one" }
await hooks.event({ event: { type: "session.created", properties: { info } } })
const output = { output: "done" }
const answers = [await edit("ses_one", "src/a"), await edit("ses_child", "src/a"), await edit("ses_two", "src/a")]
await hooks.event({ event: { type: "session.idle", properties: { sessionID: "ses_child" } } })
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "ses_two" }, { args: { command: "x" } }).catch(() => {})
const { writeFileSync } = await import("node:fs")
writeFileSync(`${process.argv[2]}/src/a`, "by two")
await hooks["tool.execute.after"]({ tool: "bash", sessionID: "ses_two", args: { command: "x" } }, output)
await hooks.event({ event: { type: "session.deleted", properties: { info: { id: "ses_one" } } } })
answers.push(await edit("ses_two", "src/a"))
console.log(JSON.stringify({ answers, said, output: output.output }))
"""


def driven(yard: Yard, folder: Path, path: str, patience: str = "10_000") -> dict[str, list[object]]:
    (folder / "dibs.mjs").write_text(plugin().replace("= 10_000", f"= {patience}"))
    (folder / "driver.mjs").write_text(DRIVER)
    ran = subprocess.run(
        ["node", "driver.mjs", str(yard.folder)],
        cwd=folder,
        env={**yard.env, "PATH": path},
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, list[object]] = json.loads(ran.stdout)
    return found


def test_the_plugin_refuses_a_file_of_another_session_and_reports_what_a_command_touched(
    yard: Yard, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    node = Path(need_program("node"))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dibs").write_text(f'#!/bin/sh\nexec {" ".join(DIBS)} "$@"\n')
    (programs / "dibs").chmod(0o755)
    found = driven(yard, tmp_path, f"{programs}:{node.parent}:{yard.env['PATH']}")
    mine, child, other, after = found["answers"]
    assert (mine, child, after) == (True, True, True)
    assert "another worker is changing this file" in str(other)
    assert "These files changed while the command ran" in str(found["output"])
    assert found["said"] == []


def test_without_dibs_the_work_goes_on_and_it_is_said_once(
    yard: Yard, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only/node").symlink_to(need_program("node"))
    found = driven(yard, tmp_path, str(tmp_path / "only"))
    assert found["answers"] == [True, True, True, True]
    assert ["dibs is not installed here" in str(text) for text in found["said"]] == [True]


def test_a_dibs_that_hangs_refuses_nothing(yard: Yard, tmp_path: Path, need_program: Callable[[str], str]) -> None:
    programs = tmp_path / "only"
    programs.mkdir()
    (programs / "node").symlink_to(need_program("node"))
    (programs / "dibs").write_text(f"#!/bin/sh\nexec {need_program('sleep')} 600\n")
    (programs / "dibs").chmod(0o755)
    assert driven(yard, tmp_path, str(programs), patience="100")["answers"] == [True, True, True, True]
