"""The wheel's build hook: with `DIBS_COMPILE=1` a wheel is compiled, or the build fails. Without, it is pure Python.

Who installs from a clone should not wait for minutes without a word. An editable install is never compiled: it is there
to be edited.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import package as native

TOOLS = ["mypy[mypyc]~=2.4", "setuptools>=70"]


class CompiledWheel(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return TOOLS if _is_asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not _is_asked():
            return
        missing = native.why_not() or self._compile(build_data)
        if missing is not None:
            raise RuntimeError(f"DIBS_COMPILE=1 asks for a compiled wheel, and {missing}.")

    def _compile(self, build_data: dict[str, Any]) -> str | None:
        """Puts the compiled files into the wheel. Returns why it could not."""
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-wheel-")
        tree = Path(self._folder.name, "tree")
        count = len(native.paths_of(native.ROOT / "src/dibs"))
        self.app.display_info(f"Compiling {count} modules with mypyc: two to five minutes of one core.")
        began = time.monotonic()
        try:
            native.build(tree)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"compiling it failed ({error})"
        self.app.display_info(f"Compiled in {time.monotonic() - began:.0f} s.")
        for path in native.changed(tree):
            build_data["force_include"][str(path)] = path.relative_to(tree).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        return None

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _is_asked() -> bool:
    return os.environ.get("DIBS_COMPILE") == "1"
