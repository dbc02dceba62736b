"""The machine under the figures: what it is, what is installed, what its disk does."""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import sysconfig
import time
from importlib import metadata
from pathlib import Path

from procs import BenchError

PACKAGES = {
    "wrk": "wrk",
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "etcd": "etcd-server",
}
PYTHON_PACKAGES = ("dibs", "uvicorn", "uvloop", "httptools", "msgspec")


def missing_packages() -> list[str]:
    return sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})


def apt_line(packages: list[str]) -> str:
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def install() -> None:
    """Install what is missing. Debian starts such services by itself; RUNLEVEL=1 asks its scripts not to."""
    packages = missing_packages()
    if not packages:
        return
    if os.geteuid() != 0:
        raise BenchError(f"--install needs root. Run this yourself:\n  sudo {apt_line(packages)}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-q"], check=True, env=env)
    subprocess.run([*apt_line(packages).split(), "-y"], check=True, env=env)


def filesystem(folder: Path) -> str:
    """The type of filesystem a folder is on: on tmpfs, fsync costs nothing and "durable" means nothing."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, point, fstype, *_ = line.split()
        inside = folder.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, fstype
    return kind


def fsync_ms(folder: Path, times: int = 200) -> float:
    """The median time to append 4 KiB and have it on disk."""
    path = folder / "fsync-probe"
    block, spent = b"x" * 4096, []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(block)
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - start)
    path.unlink()
    return statistics.median(spent) * 1e3


def _version(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "absent"
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found[0] if found else "unknown"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _python_versions() -> dict[str, str]:
    found = {}
    for package in PYTHON_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _configured() -> str:
    return str(sysconfig.get_config_var("CONFIG_ARGS") or "")


def commit() -> str:
    here = Path(__file__).parent
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or "unknown"


def describe(folder: Path) -> dict[str, str]:
    """Facts that make two results comparable, or not. No host or user names: results are published."""
    return {
        "commit": commit(),
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "load_before": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "python_optimised": "yes" if "--enable-optimizations" in _configured() else "no",
        "filesystem": filesystem(folder),
        "fsync_4k_ms": f"{fsync_ms(folder):.3f}",
        "wrk": _version("wrk", "-v"),
        "etcd": _version("etcd", "--version"),
        "postgres": _version("psql", "--version"),
        "redis": _version("redis-server", "--version"),
    } | _python_versions()
