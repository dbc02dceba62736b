"""Makes the compiled package: a copy of `src/dibs` in which the modules of MODULES are machine code.

    python native/package.py build/compiled [LEVEL]     # a tree to be put on PYTHONPATH; scripts/dev/compile calls this

The wheel's build hook (hook.py) calls `build`. One source: the copy is made from `src/dibs` by `expand.py`, and mypyc
compiles it. All modules are one group, in one shared object, so that calls between them are calls in C.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The way of a request from its bytes to a decision, into SQLite and back to an answer, and what a client does for it.
# Left out: the clock and the sweeper, of which tests and the simulation replace parts.
MODULES = (
    "base/record.py",
    "core/*.py",
    "core/*/*.py",
    "base/ids.py",
    "stores/codec.py",
    "stores/etcd/messages.py",
    "stores/postgres/connection.py",
    "stores/sqlite/checkpoint.py",
    "stores/sqlite/connection.py",
    "stores/sqlite/file_identity.py",
    "stores/sqlite/opener.py",
    "stores/sqlite/rows.py",
    "stores/sqlite/store.py",
    "wire/codes.py",
    "wire/documents.py",
    "wire/fields.py",
    "wire/lease_documents.py",
    "wire/parts.py",
    "wire/refusals.py",
    "wire/requests.py",
    "wire/session_documents.py",
    "wire/values.py",
    "engine/auth.py",
    "engine/batcher.py",
    "engine/coordinator.py",
    "engine/decider.py",
    "engine/liveness.py",
    "engine/metrics.py",
    "engine/observed_store.py",
    "engine/pace.py",
    "engine/pulses.py",
    "engine/tally.py",
    "engine/thread.py",
    "server/connection.py",
    "server/engine.py",
    "server/handlers.py",
    "server/http/parse.py",
    "server/http/request.py",
    "server/http/response.py",
    "server/routes/jobs.py",
    "server/routes/table.py",
    "client/exchange.py",
    "client/http.py",
    "client/renewal_plan.py",
    "client/flow.py",
    "client/pending.py",
    "client/requests.py",
    "client/servers.py",
    "client/connection.py",
    "client/urls.py",
    "base/generators.py",
    "base/http1.py",
    "base/reply.py",
    "client/naming.py",
    "base/traceparent.py",
)
GROUP = "dibs"  # the shared object is dibs__mypyc.*.so, beside the package
OPTIMISE = "2"
_SCRATCH = ("scratch-c", "scratch-o", ".mypy_cache")
_DEALLOC = re.compile(r"^\w+_dealloc\(.*?^\}\n", re.DOTALL | re.MULTILINE)  # in the C that mypyc makes


def why_not() -> str | None:
    """What is missing for a compiled build, or None."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        return f"there is no C compiler ({compiler.split()[0]})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed (python3-dev)"
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    return None


def paths_of(package: Path) -> list[Path]:
    """The files of a package to be compiled."""
    found = [path for pattern in MODULES for path in sorted(package.glob(pattern))]
    return [path for path in found if path.name != "__init__.py"]


def build(target: Path, level: str = OPTIMISE) -> None:
    """Make `target`: the whole package, with shared objects beside the modules that are compiled. `level`: how much
    the C compiler optimises."""
    shutil.rmtree(target, ignore_errors=True)
    package = target / "dibs"
    shutil.copytree(ROOT / "src/dibs", package, ignore=shutil.ignore_patterns("__pycache__"))
    # Another process: mypyc keeps state, and the package in its interpreted form is imported there.
    # What is on the path already stays there: an isolated build has its tools on it.
    paths = [str(ROOT / "src"), str(ROOT / "native"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, __file__, "--inside", level], cwd=target, env=env, check=True)
    for name in _SCRATCH:
        shutil.rmtree(target / name, ignore_errors=True)


def changed(target: Path) -> list[Path]:
    """The files of a built tree that are not those of the source: shared objects, and sources with records written
    out."""
    found = []
    for path in sorted(target.rglob("*")):
        source = ROOT / "src" / path.relative_to(target)
        if path.is_file() and not (source.is_file() and source.read_bytes() == path.read_bytes()):
            found.append(path)
    return found


def _inside(level: str) -> None:
    """In the target folder, in a process of its own."""
    from expand import expand_tree

    package = Path("dibs")
    chosen = paths_of(package)
    expand_tree(package, {path.as_posix() for path in chosen})
    _compile([path.as_posix() for path in chosen], level)


def leave_out_trashcan(folder: Path) -> None:
    """Take CPython's trashcan out of the deallocation of records, in the C that mypyc made.

    The trashcan is a list: where deallocations nest fifty deep, CPython puts the next object into it for later. It is
    linked through the header that the collector has before each of its objects. A record is none of them (expand.py),
    and mypyc 2.4 asks for the trashcan all the same: what lies before the record in memory would be overwritten."""

    def without(found: re.Match[str]) -> str:
        if "PyObject_GC_UnTrack" in found[0]:
            return found[0]
        return "".join(line for line in found[0].splitlines(keepends=True) if "CPy_TRASHCAN" not in line)

    for path in sorted(folder.rglob("*.c")):
        text = path.read_text(encoding="utf-8")
        path.write_text(_DEALLOC.sub(without, text), encoding="utf-8")


def _compile(paths: list[str], level: str) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Parallel(build_ext):
        def build_extensions(self) -> None:
            for each in self.extensions:
                # Only its init function is looked up by name. If the others were visible, the loader would look up some
                # thousand names each time that a command starts.
                each.extra_compile_args = [*each.extra_compile_args, "-fvisibility=hidden"]
            if level == "0":
                read_headers_once(self)
            one_by_one = self.compiler.compile

            def several(sources: list[str], **options: object) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    made = pool.map(lambda source: one_by_one([source], **options), sources)
                    return [name for names in made for name in names]

            self.compiler.compile = several
            super().build_extensions()

    def read_headers_once(command: build_ext) -> None:
        """For a build that is only tested. Every file begins with the same headers, which take longer than most files.
        A compiler that does not know what this makes reads the header itself."""
        header = str(Path(_SCRATCH[0], f"__native_internal_{GROUP}.h").resolve())
        for each in command.extensions:
            each.extra_compile_args += ["-w", "-include", header]
        own = max(command.extensions, key=lambda each: len(each.sources))  # the others are a few lines for each module
        folders = [f"-I{folder}" for folder in (*own.include_dirs, *command.compiler.include_dirs)]
        words = [*command.compiler.compiler_so, *folders, *own.extra_compile_args[:-2]]
        command.compiler.spawn([*words, "-x", "c-header", header, "-o", f"{header}.gch"])
        for each in command.extensions:
            each.include_dirs += own.include_dirs

    version = f"--python-version={sys.version_info[0]}.{sys.version_info[1]}"
    # The project's own type check is stricter and runs before. No compiled module uses the types of these packages.
    config = Path(_SCRATCH[0], "mypy.ini")
    config.parent.mkdir()
    config.write_text("[mypy]\n[mypy-sqlalchemy.*,psycopg.*]\nfollow_imports = skip\n")
    flags = [f"--config-file={config}", "--follow-imports=silent", "--ignore-missing-imports", version]
    modules = mypycify(
        [*flags, *paths],
        opt_level=level,
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir=_SCRATCH[0],
    )
    leave_out_trashcan(Path(_SCRATCH[0]))
    made = Distribution({"name": "dibs", "packages": [], "ext_modules": modules})
    made.cmdclass["build_ext"] = Parallel
    command = made.get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = command.build_lib = _SCRATCH[1]
    command.ensure_finalized()
    command.run()


def main() -> int:
    if sys.argv[1] == "--inside":
        _inside(sys.argv[2])
        return 0
    missing = why_not()
    if missing is not None:
        print(f"Not compiled: {missing}.", file=sys.stderr)
        return 69
    build(Path(sys.argv[1]).resolve(), *sys.argv[2:3])
    return 0


if __name__ == "__main__":
    sys.exit(main())
