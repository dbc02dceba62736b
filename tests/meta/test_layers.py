"""Who may import whom. This file is the list of the rules, and holds the source to them.

Every import counts: at the top, inside a function, under `if TYPE_CHECKING`, relative, `import_module("...")`.
If a layer needs a type from a module it may not import, the type belongs in a lower layer.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(__file__).parents[2] / "src"

# Nothing that reads a clock, rolls dice, waits, or touches the world.
IMPURE = frozenset(
    """
    asyncio concurrent contextvars ctypes fcntl glob http io logging mmap multiprocessing os pathlib
    queue random sched secrets select selectors shutil signal socket socketserver sqlite3 ssl subprocess
    tempfile threading time urllib uuid warnings
    """.split()
)
# The parts of the core that hold values. All its other modules are rules.
CORE_VALUES = {
    "class_of",
    "commands",
    "draft",
    "durations",
    "events",
    "caller_rights",
    "lease_outcomes",
    "limits",
    "names",
    "outcomes",
    "overlap",
    "path_index",
    "records",
}
# The parts of dibs.contrib that need a library of that name.
CONTRIB_LIBRARIES = {"apscheduler", "celery", "django", "pytest", "tooz"}
# The parts of the stores that are no store.
STORES_SHARED = {"port", "registry", "codec", "fork_safety", "formats", "untrusted_records", "waiters"}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def part_below(package: str, module: str) -> str | None:
    """`sqlite` for `dibs.stores.sqlite.schema` below `dibs.stores`."""
    return module.removeprefix(package + ".").split(".")[0] if within(module, package) else None


def is_core_rule(module: str) -> bool:
    return module.startswith("dibs.core.") and part_below("dibs.core", module) not in CORE_VALUES


def store_of(module: str) -> str | None:
    """The store a module is part of: `sqlite` for dibs.stores.sqlite and for dibs.stores.sqlite_schema."""
    part = part_below("dibs.stores", module)
    return None if part is None or module == "dibs.stores" or part in STORES_SHARED else part.split("_")[0]


def base_may_not(importer: str, imported: str) -> bool:
    return within(imported, "dibs") and imported != "dibs" and not within(imported, "dibs.base")


def core_may_not(importer: str, imported: str) -> bool:
    top = imported.split(".")[0]
    if within(imported, "dibs.base.cheap"):  # only names for annotations
        return imported.removeprefix("dibs.base.cheap").strip(".")[:1].islower()
    if top == "dibs":
        own = ("dibs.core", "dibs.base.errors", "dibs.base.record")
        return imported != "dibs" and not any(within(imported, each) for each in own)
    return top in IMPURE or top not in sys.stdlib_module_names


def stores_may_not(importer: str, imported: str) -> bool:
    own = store_of(importer)
    return is_core_rule(imported) or (own is not None and store_of(imported) not in (None, own))


def engine_may_not(importer: str, imported: str) -> bool:
    return store_of(imported) is not None or within(imported, "dibs.server")


def client_may_not(importer: str, imported: str) -> bool:
    reaches_in = within(imported, "dibs.stores") or within(imported, "dibs.engine")
    embedded = any(
        within(importer, f"dibs.client.{part}")
        for part in ("embedded", "embedded_claim", "store_admin", "store_archive", "store_backup", "branches")
    )
    return reaches_in and not embedded


def sdk_may_not(importer: str, imported: str) -> bool:
    above = any(within(imported, f"dibs.{layer}") for layer in ("cli", "server"))
    return above or within(imported, "dibs.stores") or within(imported, "dibs.engine") or is_core_rule(imported)


def cli_may_not(importer: str, imported: str) -> bool:
    return within(imported, "dibs.stores") or within(imported, "dibs.engine") or is_core_rule(imported)


def plugin_library_may_not(importer: str, imported: str) -> bool:
    """What agents, hooks and commands share knows repositories and issues. It knows no coding agent."""
    return sdk_may_not(importer, imported) or within(imported, "dibs.agents.harness")


def contrib_may_not(importer: str, imported: str) -> bool:
    """On top of the SDK, for programs that use other libraries. One integration does not need another's library."""
    own, other = (part_below("dibs.contrib", module) for module in (importer, imported))
    crosses = other in CONTRIB_LIBRARIES and own != other and imported != "dibs.contrib"
    return sdk_may_not(importer, imported) or crosses


# The house stands without them: no other part imports them (see `base/plugins.py`).
PLUGINS = ("dibs.agents", "dibs.compat", "dibs.contrib", "dibs.oidc", "dibs.testing")
# Where one plugin uses another: the MCP tools of Action Llama are made of those of dibs, and the locks of grite and the
# hooks take the same shell for the same worker.
PLUGIN_ENTRANCES = {
    "dibs.compat.action_llama.tools": "dibs.agents",
    "dibs.compat.action_llama.direct": "dibs.agents.shell_actor",
    "dibs.compat.grite.locks": "dibs.agents.shell_actor",
}


RULES: dict[str, Callable[[str, str], bool]] = {
    "base": base_may_not,
    "core": core_may_not,
    "stores": stores_may_not,
    "engine": engine_may_not,
    "client": client_may_not,
    "sdk": sdk_may_not,
    "cli": cli_may_not,
    "agents": cli_may_not,
    "contrib": contrib_may_not,
    "agents/repository": plugin_library_may_not,
    "agents/tracker": plugin_library_may_not,
}


@cache  # two tests ask about each file
def imports_of(importer: str, source: str, *, is_package: bool = False) -> list[tuple[int, str]]:
    """Line and module of each import. `from a import b` may mean the module a.b, so it has a and a.b."""
    return list(_imports_of(importer, source, is_package=is_package))


def _imports_of(importer: str, source: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - 1 if is_package else node.level
                parents = importer.split(".")[: len(importer.split(".")) - up]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def breaches(layer: str, importer: str, source: str, *, is_package: bool = False) -> list[str]:
    found = imports_of(importer, source, is_package=is_package)
    return [f"{importer}:{line} imports {name}" for line, name in found if RULES[layer](importer, name)]


def layer_of(importer: str) -> str:
    """The innermost layer with rules of its own: `agents/tracker` for dibs.agents.tracker.github."""
    return max((layer for layer in RULES if within(importer, f"dibs.{layer.replace('/', '.')}")), key=len)


@pytest.mark.parametrize("layer", RULES)
def test_a_layer_imports_only_what_it_may(layer: str) -> None:
    files = sorted((SOURCE / "dibs" / layer).rglob("*.py"))
    assert files, f"src/dibs/{layer} is gone: this rule guards nothing"
    found = []
    for file in files:
        is_package = file.name == "__init__.py"
        path = file.parent if is_package else file.with_suffix("")
        importer = ".".join(path.relative_to(SOURCE).parts)
        found += breaches(layer, importer, file.read_text(encoding="utf-8"), is_package=is_package)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("dibs.core.claims.acquire", "import time"),
        ("dibs.core.claims.acquire", "def f():\n    from os import path"),
        ("dibs.core.claims.acquire", "import msgspec"),
        ("dibs.core.claims.acquire", "from dibs.base import clock"),
        ("dibs.core.claims.acquire", "from dibs.base.cheap import Sequence, socket"),
        ("dibs.core.claims.acquire", "from ...stores import port"),
        ("dibs.stores.sqlite", "from dibs.core import decide"),
        ("dibs.stores.sqlite", "from dibs.core.holds.expiry import settle"),
        ("dibs.stores.sqlite", "from . import memory"),
        ("dibs.engine.coordinator", "import_module('dibs.stores.sqlite')"),
        ("dibs.engine.coordinator", "import dibs.server.http_server"),
        ("dibs.client.http", "from dibs.engine import coordinator"),
        ("dibs.cli.main", "if TYPE_CHECKING:\n    from dibs.stores.port import Store"),
        ("dibs.cli.main", "import dibs.core.decide"),
        ("dibs.agents.mcp.backend", "from dibs.stores.memory import MemoryStore"),
        ("dibs.agents.mcp.methods", "from dibs.engine.coordinator import Coordinator"),
        ("dibs.agents.repository.settings", "from dibs.cli.framework.context import Call"),
        ("dibs.agents.tracker.github", "from dibs.agents.harness.agent_identity import Agent"),
        ("dibs.contrib.celery", "from dibs.stores.memory import MemoryStore"),
        ("dibs.contrib.celery", "from dibs.contrib import django"),
    ],
)
def test_a_forbidden_import_is_found_however_it_is_written(importer: str, source: str) -> None:
    assert breaches(layer_of(importer), importer, source)


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        (
            "dibs.core.claims.acquire",
            "from dibs.core.records import Lock\nimport dibs.base.errors, re",
        ),
        (
            "dibs.stores.sqlite",
            "import sqlite3, dibs.core.records\nfrom dibs.stores import port",
        ),
        ("dibs.stores.sqlite", "from dibs.stores.sqlite_schema import MIGRATIONS"),
        ("dibs.stores.registry", "from dibs.stores.sqlite import SqliteStore"),
        (
            "dibs.engine.coordinator",
            "from dibs.core.decide import decide\nimport dibs.stores.port",
        ),
        ("dibs.client.embedded", "from dibs.engine.coordinator import Coordinator"),
        ("dibs.cli.main", "from dibs.core.durations import parse\nfrom dibs.server import http_server"),
        ("dibs.contrib.celery", "from dibs.contrib.one_owner import OneOwner\nimport dibs.sdk.default"),
        ("dibs.contrib.tooz", "from dibs.contrib.tooz.groups import Groups\nimport tooz"),
    ],
)
def test_an_allowed_import_is_left_alone(importer: str, source: str) -> None:
    assert not breaches(layer_of(importer), importer, source)


def plugin_of(module: str) -> str | None:
    return next((each for each in PLUGINS if within(module, each)), None)


def plugin_breaches(importer: str, source: str, *, is_package: bool = False) -> list[str]:
    own, entrance = plugin_of(importer), PLUGIN_ENTRANCES.get(importer)
    return [
        f"{importer}:{line} imports {name}"
        for line, name in imports_of(importer, source, is_package=is_package)
        if plugin_of(name) not in (None, own) and not (entrance is not None and within(name, entrance))
    ]


def test_nothing_imports_a_plugin() -> None:
    found: list[str] = []
    for file in sorted((SOURCE / "dibs").rglob("*.py")):
        is_package = file.name == "__init__.py"
        path = file.parent if is_package else file.with_suffix("")
        importer = ".".join(path.relative_to(SOURCE).parts)
        found += plugin_breaches(importer, file.read_text(encoding="utf-8"), is_package=is_package)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("importer", "source", "is_breach"),
    [
        ("dibs.cli.commands.list", "def f():\n    from dibs.compat.grite import locks", True),
        ("dibs.server.http_server", "if TYPE_CHECKING:\n    from dibs.agents.mcp.methods import Methods", True),
        ("dibs.sdk.client", "import_module('dibs.contrib.celery')", True),
        ("dibs.compat.grite.locks", "from dibs.agents.git import staged", True),
        ("dibs.compat.grite.locks", "from dibs.compat.grite import documents", False),
        ("dibs.agents.mcp.stdio", "from dibs.compat.action_llama.tools import TOOLS", True),
        ("dibs.compat.action_llama.tools", "from dibs.agents.mcp.tools import Tool", False),
        (
            "dibs.server.plugins",
            "ROUTES = {'gateway': 'dibs.compat.action_llama.routes:open_gateway'}",
            False,
        ),
    ],
)
def test_an_import_of_an_plugin_is_judged_by_who_imports_it(importer: str, source: str, is_breach: bool) -> None:
    assert bool(plugin_breaches(importer, source)) is is_breach
