"""Claims through a git remote: how many a second, and how long one takes.

    python bench/git_store.py             # clone counts 1, 2 and 6, on different jobs and on one
    python bench/git_store.py --quick

Every clone claims and releases in turn, in a thread of its own; each step is several git processes, so the machine's
cores are the limit on a local remote. Network time, which dominates with a real host, is not included.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stats import percentile

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Release
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.git import location_of
from dibs.stores.git.store import GitStore
from dibs.stores.port import Store

ENV = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class Tally:
    """The results of one clone: milliseconds of each claim it got, and how often the job was held."""

    def __init__(self) -> None:
        self.claims_ms: list[float] = []
        self.releases_ms: list[float] = []
        self.refused = 0


def work(store: Store, name: Callable[[], str], until: float, tally: Tally) -> None:
    coordinator = Coordinator(store)
    while time.perf_counter() < until:
        job, began = name(), time.perf_counter()
        claim = Acquire(ns="default", name=job, principal="p", owner="o", ttl_ms=60_000, fresh_lease_id=new_id())
        outcome = coordinator.one(claim)
        claimed = time.perf_counter()
        if not isinstance(outcome, Granted):
            tally.refused += 1
            continue
        tally.claims_ms.append((claimed - began) * 1000)
        coordinator.one(Release(ns="default", name=job, principal="p", lease_id=outcome.lease.lease_id))
        tally.releases_ms.append((time.perf_counter() - claimed) * 1000)


def measure(folder: Path, url: str, clones: int, seconds: float, *, contested: bool) -> str:
    remote = folder / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True, env=ENV)
    stores = []
    for number in range(clones):
        clone = remote if url == "git:" else folder / f"clone-{number}"
        if url != "git:":
            subprocess.run(["git", "init", "-q", str(clone)], check=True, env=ENV)
            words = ["git", "-C", str(clone), "remote", "add", "origin", f"file://{remote}"]
            subprocess.run(words, check=True, env=ENV)
        stores.append(GitStore(location_of(url, str(clone))))
    for store in stores:
        store.read(["meta"])  # makes what is made on first use
    tallies = [Tally() for _ in stores]
    numbers = itertools.count()
    until = time.perf_counter() + seconds
    names = [(lambda: "the-one") if contested else (lambda: f"job-{next(numbers)}") for _ in stores]
    threads = [
        threading.Thread(target=work, args=(store, name, until, tally))
        for store, name, tally in zip(stores, names, tallies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return row(url, clones, seconds, tallies, contested=contested)


def row(url: str, clones: int, seconds: float, tallies: list[Tally], *, contested: bool) -> str:
    claims = sorted(ms for tally in tallies for ms in tally.claims_ms)
    releases = sorted(ms for tally in tallies for ms in tally.releases_ms)
    where = "one clone (`git:`)" if url == "git:" else "a bare remote (`file://`)"
    what = "one job" if contested else "different jobs"
    cells = [
        where,
        str(clones),
        what,
        f"{len(claims) / seconds:.1f}",
        f"{percentile(claims, 50):.0f} / {percentile(claims, 99):.0f}",
        f"{percentile(releases, 50):.0f} / {percentile(releases, 99):.0f}",
        str(sum(tally.refused for tally in tallies)),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    parser.add_argument("--quick", action="store_true", help="one second for each row")
    parser.add_argument("--folder", type=Path, default=None, help="the disk to write to")
    given = parser.parse_args()
    os.environ.update(ENV)
    seconds = 1.0 if given.quick else given.seconds
    print("| store | workers | claims and releases of | claims/s | claim ms, p50 / p99 | release ms | refused |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for url, clones, contested in (
        ("git:", 1, False),
        ("git:", 6, False),
        ("git:origin", 1, False),
        ("git:origin", 2, False),
        ("git:origin", 6, False),
        ("git:origin", 6, True),
    ):
        with tempfile.TemporaryDirectory(prefix="dibs-git-", dir=given.folder) as temp:
            print(measure(Path(temp), url, clones, seconds, contested=contested), flush=True)


if __name__ == "__main__":
    main()
