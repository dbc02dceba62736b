"""Hooks and what they know of you, when the claims are behind a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.shells.conftest import Clone

pytestmark = [pytest.mark.e2e, pytest.mark.promise("same-answer"), pytest.mark.full]


def test_the_hooks_answer_the_same_through_a_server(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server") as server:
        env = {"DIBS_URL": server.url, "DIBS_TOKEN": server.token}
        clone.must("git config dibs.own true\ndibs lock acquire path:src --actor agent-7", **env)
        clone.stage("src/a")
        said = clone.sh("git commit -qm one", **env).err
        assert "agent-7 has path:src for another" in said
        assert "You have not claimed src/a" in said
        clone.must("git commit -qm one", **env, DIBS_ACTOR="agent-7")
        clone.must("dibs lock release path:src --actor agent-7", **env)
        for number, claim in enumerate(
            (
                "dibs claim --staged -q >/dev/null",
                "export DIBS_SESSION=$(dibs session open -q); dibs claim path:src -q >/dev/null",
                "export DIBS_LEASE=$(dibs claim path:src -q)",
            )
        ):
            clone.stage("src/a", text=f"{number}\n")
            clone.must(f"{claim}\ngit commit -qm more", **env)
            clone.must("for job in $(dibs list -q); do dibs break $job --reason next; done", **env)
    clone.stage("src/a", text="last\n")
    assert "cannot be read" in clone.sh("git commit -qm last", **env).err
