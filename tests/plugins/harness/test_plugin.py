"""The plugin folder says the same as the rest of the repository."""

from __future__ import annotations

import json
from pathlib import Path

from dibs import __version__
from dibs.agents.harness.agent_identity import CLAUDE
from dibs.agents.harness.configuration import SERVER, with_hooks

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "plugin"


def test_its_hooks_are_those_that_install_writes_for_any_harness() -> None:
    told = with_hooks("{}", CLAUDE).replace(f" --client {CLAUDE}", "")
    assert json.loads((PLUGIN / "hooks/hooks.json").read_text()) == json.loads(told)


def test_its_skill_is_the_skill() -> None:
    assert (PLUGIN / "skills/dibs/SKILL.md").read_text() == (ROOT / "skills/dibs/SKILL.md").read_text()


def test_its_manifests_agree_and_name_this_version() -> None:
    manifests = [".claude-plugin/plugin.json", ".codex-plugin/plugin.json"]
    for manifest in [json.loads((PLUGIN / name).read_text()) for name in manifests]:
        assert (manifest["name"], manifest["version"]) == ("dibs", __version__.replace(".dev", "-dev."))
    assert json.loads((PLUGIN / ".mcp.json").read_text()) == {"mcpServers": {"dibs": SERVER}}
    market = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
    assert (ROOT / market["plugins"][0]["source"]).resolve() == PLUGIN
    # Another project has `dibs@dibs`, and a client keeps one plugin of an id.
    assert market["name"] != "dibs"


def test_it_has_no_manifest_that_codex_would_take_instead() -> None:
    """With a `plugin.json` at its top, Codex 0.166 loads neither the hooks nor the MCP server."""
    assert not (PLUGIN / "plugin.json").exists()
