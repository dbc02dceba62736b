"""The load generators: wrk for HTTP, redis-benchmark for Redis. Each call gives one Sample."""

from __future__ import annotations

import csv
import itertools
import json
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from procs import TICKS, BenchError, cpu_seconds, memory_mb

LUA = Path(__file__).parent / "lua"
GRACE_SECONDS = 30.0
_runs = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. `bad` counts every answer that was not the expected one; any makes it suspect."""

    requests_per_s: float
    acquires_per_s: float
    releases_per_s: float
    p50_ms: float
    p99_ms: float
    acquired: int
    released: int
    bad: int
    first_bad: str = ""
    server_cpu_us: float = 0.0
    """CPU time of the server for one request, all its processes and threads. 0: not measured."""
    generator_cores: float = 0.0
    """How much of a core the load generator took. Near 1, it may have been the limit: it has one thread."""
    server_mb: float = 0.0
    others_cores: float = 0.0
    """How much of the cores programs took that are no part of this. Much of it makes the figure worthless."""
    requests: int = 0
    """All answers, the wrong ones included."""


def _output(argv: Sequence[str], seconds: float, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS, cwd=cwd, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{argv[0]} did not end within {seconds + GRACE_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise BenchError(f"{argv[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-800:]}")
    return done.stdout


def generator_cpu_seconds() -> float:
    """CPU time of all children that have ended: every load generator is one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def busy_seconds() -> float:
    """CPU time of the whole machine since its start: all but idle time and waiting for disks."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _idle, _waits, interrupts, soft, _stolen, *_ = map(int, words[1:])
    return (user + nice + system + interrupts + soft) / TICKS


def watched(pids: Sequence[int], drive: Callable[[], Sample]) -> Sample:
    """The sample of `drive`, with what the server and the load generator took meanwhile."""
    began, server, generator = time.perf_counter(), cpu_seconds(*pids), generator_cpu_seconds()
    busy = busy_seconds()
    sample = drive()
    busy = busy_seconds() - busy
    server, generator = cpu_seconds(*pids) - server, generator_cpu_seconds() - generator
    wall = time.perf_counter() - began
    count = max(sample.acquired + sample.released, 1) if not sample.requests else sample.requests
    return replace(
        sample,
        server_cpu_us=server / count * 1e6,
        generator_cores=generator / wall,
        others_cores=max(busy - server - generator, 0.0) / wall,
        server_mb=memory_mb(*pids),
    )


def fresh_tag() -> str:
    """Five characters no earlier run of this process had; servers and their data are new in every process."""
    return f"{next(_runs) % 100_000:05d}"


def wrk(
    script: str,
    url: str,
    connections: int,
    seconds: int,
    args: Sequence[str] = (),
    token: str | None = None,
    threads: int = 1,
) -> Sample:
    """Run one Lua script. One thread is enough for tens of thousands a second, and leaves the cores free. Several are
    for several servers (`lua/common.lua`), each with as many connections."""
    connections = -(-connections // threads) * threads
    argv = [
        "wrk",
        f"-t{threads}",
        f"-c{connections}",
        f"-d{seconds}s",
        "--timeout",
        "10s",
        "-s",
        f"{script}.lua",
    ]
    if token is not None:
        argv += ["-H", f"Authorization: Bearer {token}"]
    # From the scripts' own folder: Lua's require() looks in the current one.
    return generated([*argv, url, "--", fresh_tag(), *args], seconds, cwd=LUA)


def generated(argv: Sequence[str], seconds: float, cwd: Path | None = None) -> Sample:
    """Run a load generator that prints its figures on a line that begins with BENCH."""
    text = _output(argv, seconds, cwd)
    for line in text.splitlines():
        if line.startswith("BENCH "):
            return _from_wrk(json.loads(line.removeprefix("BENCH ")))
    raise BenchError(f"{argv[0]} printed no figures:\n{text[-800:]}")


def _from_wrk(figures: dict[str, int | str]) -> Sample:
    seconds = max(int(figures["micros"]), 1) / 1e6
    acquired, released = int(figures["acquired"]), int(figures["released"])
    socket_trouble = int(figures["socket_errors"]) + int(figures["timeouts"])
    first_bad = str(figures["first_bad"])
    if socket_trouble and not first_bad:
        first_bad = f"{figures['socket_errors']} socket errors, {figures['timeouts']} timeouts"
    return Sample(
        requests_per_s=int(figures["requests"]) / seconds,
        acquires_per_s=acquired / seconds,
        releases_per_s=released / seconds,
        p50_ms=int(figures["p50_us"]) / 1e3,
        p99_ms=int(figures["p99_us"]) / 1e3,
        acquired=acquired,
        released=released,
        bad=int(figures["bad"]) + socket_trouble,
        first_bad=first_bad,
        requests=int(figures["requests"]),
    )


def redis_line(port: int, command: str) -> str:
    """One inline command, one line of answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
        link.sendall(command.encode() + b"\r\n")
        return link.makefile("r").readline().strip()


def redis_benchmark(port: int, connections: int, count: int) -> Sample:
    """`SET name value NX PX 60000`, `count` times over random names.

    redis-benchmark does not look at the answers, so the number of keys tells how many SETs took effect. A few
    random names collide; more than one in a thousand not taking effect is counted as bad.
    """
    before = int(redis_line(port, "DBSIZE").removeprefix(":"))
    argv = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-c", str(connections), "-n", str(count)]
    # A prefix of its own: two runs within one second draw the same random numbers.
    argv += ["-r", "2000000000", "--csv"]
    argv += ["SET", f"bench{fresh_tag()}:__rand_int__", "bench-owner", "NX", "PX", "60000"]
    rows = list(csv.DictReader(_output(argv, seconds=60.0).splitlines()))
    taken = int(redis_line(port, "DBSIZE").removeprefix(":")) - before
    rate = float(rows[0]["rps"])
    lost = count - taken
    return Sample(
        requests_per_s=rate,
        acquires_per_s=rate * taken / count,
        releases_per_s=0.0,
        p50_ms=float(rows[0]["p50_latency_ms"]),
        p99_ms=float(rows[0]["p99_latency_ms"]),
        acquired=taken,
        released=0,
        bad=lost if lost * 1000 > count else 0,
        first_bad=f"{lost} of {count} SETs took no effect" if lost * 1000 > count else "",
        requests=count,
    )
