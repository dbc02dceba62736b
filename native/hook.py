"""The wheel's build hook: compiles the wheel when that is possible. `DIBS_COMPILE` is the one switch.

    unset    a wheel is compiled if there is a C compiler and Python's headers; else it is a pure Python wheel
    1        a wheel is compiled, or the build fails
    0        a pure Python wheel

An editable install is never compiled: it is there to be edited.
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
        return TOOLS if _asked() != "0" and native.why_not() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or _asked() == "0":
            return
        missing = native.why_not()
        if missing is None:
            missing = self._compile(build_data)
        if missing is None:
            return
        if _asked() == "1":
            raise RuntimeError(f"DIBS_COMPILE=1 asks for a compiled wheel, and {missing}.")
        self.app.display_warning(f"This wheel is pure Python: {missing}. dibs works the same, and slower.")

    def _compile(self, build_data: dict[str, Any]) -> str | None:
        """Puts the compiled files into the wheel. Returns why it could not."""
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-wheel-")
        tree = Path(self._folder.name, "tree")
        count = len(native.paths_of(native.ROOT / "src/dibs"))
        self.app.display_info(
            f"Compiling {count} modules with mypyc: two to five minutes of one core. DIBS_COMPILE=0 leaves it out."
        )
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


def _asked() -> str:
    return os.environ.get("DIBS_COMPILE", "")
