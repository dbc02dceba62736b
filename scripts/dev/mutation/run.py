"""Changes dibs at random, one place at a time, and counts those that nobody notices.

    scripts/dev/mutants                          400 mutants, or as many as 60 minutes allow
    scripts/dev/mutants --count 50 --seed 7 core/waiting/queue.py engine/batcher.py
    scripts/dev/mutants --only core/waiting/queue.py:120    all mutants of one line; `:120-140`: of several

One process imports dibs and collects the tests. A child of it runs them once, with every statement noting itself, so
that it is known which test comes to which. Each mutant is another child: it has one function with one change, and runs
the tests that come to the changed statement, the most promising first, until one fails; after them worlds of the
simulation, of several seeds and numbers of servers. A test that takes ten times its CPU time, or waits without end, has
noticed, too. Every 25th mutant has a twin that changes nothing: if its tests fail, they are not to be trusted, and the
run says so.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from changes import Mutant, mutants, probed

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "dibs"
EQUAL = Path(__file__).with_name("equal.txt")
REPORT = ROOT / "build" / "mutants.md"
RULES = [
    str(path.relative_to(SOURCE).with_suffix(""))
    for path in sorted((SOURCE / "core").rglob("*.py"))
    if path.name not in ("__init__.py", "limits.py") and "def " in path.read_text(encoding="utf-8")
]
MODULES = [
    *RULES,
    "wire/issue_names",
    *("engine/batcher", "engine/coordinator", "engine/decider", "engine/event_log", "engine/feed", "engine/liveness"),
    *("engine/observed_store", "engine/pace", "engine/pulses", "engine/sweeper", "engine/thread", "engine/waiters"),
    *("stores/codec", "stores/memory", "stores/waiters"),
    *(f"stores/sqlite/{name}" for name in ("checkpoint", "connection", "queries", "rows", "store")),
]
TESTS = (
    "tests/core",
    "tests/engine",
    "tests/contract/test_memory_store.py",
    "tests/contract/test_sqlite_store.py",
    "tests/wire/test_issue_names.py",
    "tests/stores/test_codec.py",
    "tests/stores/test_waiters.py",
    "tests/stores/test_registry.py",
    "tests/stores/test_damage.py",
    *sorted(str(path) for path in (ROOT / "tests/stores").glob("test_sqlite_*.py")),
)
SIMULATION = "tests/engine/test_simulation.py::test_servers_keep_every_promise_through_faults["
# Tests of the judges take long and say nothing of the rules; other stores need servers.
BESIDE = re.compile(
    r"two_features_meet|a_fault_that_is_put_back|a_fault_between_two_servers|is_made_smaller|(etcd|postgres|postgresql)]$"
)
NOTICED, UNNOTICED, HUNG, INVALID = 1, 0, 2, 3
STILL_S = 90.0  # longer than any wait of a test
EQUAL_WORD = "equal"  # survived as well, and is in equal.txt with the reason
WORDS = {NOTICED: "killed", UNNOTICED: "survived", HUNG: "hung", INVALID: "invalid"}
CONTROL_EVERY = 25


class Noted:
    """Which tests come to which statements of the modules, and the CPU time of each."""

    def __init__(self) -> None:
        self.tests: dict[tuple[str, int], list[str]] = defaultdict(list)  # by file and line
        self.cpu_s: dict[str, float] = {}
        self.failed: list[str] = []
        self._lines: dict[str, dict[str, list[int]]] = {}  # by test and file

    def note(self, test: str, cpu_s: float, hits: dict[str, bytearray]) -> None:
        self.cpu_s[test] = cpu_s
        self._lines[test] = {path: [at for at, hit in enumerate(own) if hit] for path, own in hits.items() if any(own)}

    def save(self, path: str, source: int) -> None:
        Path(path).write_text(json.dumps([source, self._lines, self.cpu_s, self.failed]))

    def load(self, path: str, source: int) -> None:
        """What is known of this source."""
        of, *kept = json.loads(Path(path).read_text()) if os.path.exists(path) else (0, {}, {}, [])
        if of == source:
            self._lines, self.cpu_s, self.failed = kept

    def sort(self) -> None:
        for test in sorted(self.cpu_s, key=lambda test: (self.cpu_s[test], test)):
            for file, own in self._lines[test].items():
                for line in own:
                    self.tests[file, line].append(test)


class Child:
    """A process with a temporary folder of its own."""

    def __init__(self, pid: int, folder: str) -> None:
        self.pid, self.folder = pid, folder
        self._cpu_s, self._looked_s = 0.0, time.monotonic()

    def stands_still(self) -> bool:
        """Return whether it took no CPU time for STILL_S. On a busy machine it may take long for its work."""
        if time.monotonic() - self._looked_s < STILL_S:
            return False
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        before, self._cpu_s = self._cpu_s, (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        self._looked_s = time.monotonic()
        return self._cpu_s - before < 0.1


class Runner:
    """A plugin of pytest: it takes the place of its loop over the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._end = time.monotonic() + options.minutes * 60
        self._failed = ""
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, int], list[FunctionType]] = defaultdict(list)
        self._modules = dict.fromkeys([*MODULES, *options.modules])  # all are noted, whichever are changed
        self._files = {str(SOURCE / f"{name}.py") for name in self._modules}
        # Answered: nobody can see these from outside. A line is `words_of` a mutant, and the reason.
        self._equal = {line.rpartition("`:")[0] + "`" for line in EQUAL.read_text().splitlines() if "`:" in line}
        self._noted = Noted()
        self._kills = Counter[str]()  # by test, with all its parameters
        self._top = tempfile.mkdtemp(prefix="dibs-mutants-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        os.chmod(self._top, 0o755)  # some tests are another user for a while

    # pytest calls these.

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.get_closest_marker("e2e") is None and not BESIDE.search(each.name)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {each.nodeid: each for each in session.items}
        for name in self._modules:
            importlib.import_module(f"dibs.{name.replace('/', '.')}")  # some are imported when they are needed
        gc.unfreeze()  # tests/conftest.py freezes what there is, and what is frozen is not listed
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in self._files:
                self._functions[each.__code__.co_filename, each.__code__.co_firstlineno].append(each)
        if unseen := self._files - {file for file, _ in self._functions}:
            raise SystemExit(f"No function was found of {', '.join(sorted(unseen))}.")
        gc.collect()
        gc.freeze()
        try:
            self._note()
            self._all()
        finally:
            shutil.rmtree(self._top, ignore_errors=True)
        return True

    # The children.

    def _note(self) -> None:
        kept = self._options.notes or f"{self._top}/noted"
        source = crc32("".join([Path(file).read_text(encoding="utf-8") for file in sorted(self._files)]).encode())
        self._noted.load(kept, source)
        unknown = [item for name, item in self._items.items() if name not in self._noted.cpu_s]
        if unknown:
            began = time.monotonic()
            child = self._start(lambda: self._note_all(unknown, kept, source))
            while (code := self._ended(child)) is None:
                time.sleep(0.1)
            if code != UNNOTICED:
                raise SystemExit(f"The tests could not be run without a change: {code}.")
            say(f"{len(unknown)} tests were run to see which lines they come to: {time.monotonic() - began:.0f} s.")
            self._noted.load(kept, source)
        self._noted.sort()
        say(f"{len(self._noted.cpu_s)} tests; failed without a change: {self._noted.failed}")

    def _note_all(self, items: list[pytest.Item], path: str, source: int) -> int:
        hits: dict[str, bytearray] = {}
        for file in self._files:
            hits[file] = bytearray(2 + Path(file).read_text(encoding="utf-8").count("\n"))
            for first_line, code in probed(Path(file)):
                for each in self._functions[file, first_line]:
                    each.__globals__["__noted__"] = hits[file]
                    each.__code__ = code
        for item, following in zip(items, [*items[1:], None], strict=True):
            began = time.process_time()
            self._failed = ""
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._noted.note(item.nodeid, time.process_time() - began, hits)
            for own in hits.values():
                own[:] = bytes(len(own))
            if self._failed:
                self._noted.failed.append(self._failed)
        self._noted.save(path, source)
        return UNNOTICED

    def _try(self, names: list[str], mutant: Mutant | None, said: str) -> int:
        if mutant is not None:
            code = mutant.code()
            live = self._functions[str(mutant.path), mutant.first_line]
            if code is None or not live:
                return INVALID
            try:
                for each in live:
                    each.__code__ = code
            except ValueError:  # it needs other cells
                return INVALID
        self._failed = ""
        items = [self._items[name] for name in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, 5 + 10 * self._noted.cpu_s[item.nodeid])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                Path(said).write_text(self._failed)
                return NOTICED
        return UNNOTICED

    def _start(self, work: Callable[[], int]) -> Child:
        folder = tempfile.mkdtemp(dir=self._top)
        os.chmod(folder, 0o755)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1) if self._options.show else (0, 1, 2):
                os.dup2(quiet, each)
            os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = folder
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            code = NOTICED  # an error outside of the tests is noticed, too
            try:
                code = work()
            finally:
                os._exit(code)
        return Child(pid, folder)

    def _ended(self, child: Child) -> int | None:
        """What its work returned. HUNG: it was killed for its CPU time, or stands still. None: it may still."""
        found, status = os.waitpid(child.pid, os.WNOHANG)
        if not found and not child.stands_still():
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if not found:
            os.waitpid(child.pid, 0)
        shutil.rmtree(child.folder, ignore_errors=True)
        return os.WEXITSTATUS(status) if found and os.WIFEXITED(status) else HUNG

    # The run.

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that come to the changed statement: those first that cost little for what they noticed so far, and
        after them the worlds of the simulation. Each of the two has CPU time of its own."""
        noted, options = self._noted, self._options
        known = [name for name in noted.tests[str(mutant.path), mutant.statement] if name in self._items]
        known = [name for name in known if name not in noted.failed]
        fast = [name for name in known if not name.startswith(SIMULATION)]
        fast.sort(key=lambda name: noted.cpu_s[name] / (1 + 10 * self._kills[name.partition("[")[0]]))
        worlds = sorted({*known} - {*fast}, key=lambda name: crc32(name.encode()))  # all numbers of servers
        return self._within(fast, options.budget) + self._within(worlds, options.simulate)

    def _within(self, names: list[str], budget_s: float) -> list[str]:
        found = []
        for name in names:
            if self._noted.cpu_s[name] <= budget_s:
                budget_s -= self._noted.cpu_s[name]
                found.append(name)
        return found

    def _all(self) -> None:
        chosen = self._wanted()
        results, controls = self._earlier(chosen) if self._options.more else ({}, Counter[str]())
        self._kills.update([by.partition("[")[0] for _, by in results.values()])
        waiting = [each for each in chosen if each not in results]
        running: list[tuple[Child, Mutant, bool]] = []
        while running or (waiting and time.monotonic() < self._end):
            if waiting and len(running) < self._options.workers and time.monotonic() < self._end:
                mutant = waiting.pop(0)
                tests = self._tests_of(mutant)
                if not tests or words_of(mutant) in self._equal:
                    results[mutant] = ("no test" if not tests else EQUAL_WORD, "")
                    continue
                changes = [True, False] if len(results) % CONTROL_EVERY == CONTROL_EVERY - 1 else [True]
                for does in changes:
                    work = partial(self._try, tests, mutant if does else None, self._said(mutant, does))
                    running.append((self._start(work), mutant, does))
                continue
            time.sleep(0.005)
            for each in list(running):
                child, mutant, does = each
                code = self._ended(child)
                if code is None:
                    continue
                running.remove(each)
                by = Path(self._said(mutant, does))
                test = by.read_text() if by.exists() else ""
                if not does:
                    controls["sound" if code == UNNOTICED else f"{test} failed, code {code}"] += 1
                    continue
                results[mutant] = (WORDS[code], test)
                self._kills[test.partition("[")[0]] += 1
                if code == UNNOTICED or self._options.show:
                    say(f"{len(results)}/{len(chosen)} {WORDS[code]}: {place(mutant)} {mutant.what} {test}")
                report(results, controls, self._options)
        print(report(results, controls, self._options))
        say(f"{len(waiting)} were not tried. Survivors are in {self._options.out}.")

    def _said(self, mutant: Mutant, does: bool) -> str:
        return f"{self._top}/{mutant.path.stem}-{mutant.number}-{does}"

    def _earlier(self, chosen: list[Mutant]) -> tuple[dict[Mutant, tuple[str, str]], Counter[str]]:
        """The results of an earlier run of the same changes, and of its runs without a change."""
        known = {f"{place(each)} {each.number} {each.what}": each for each in chosen}
        path = Path(self._options.out).with_suffix(".json")
        old, controls = json.loads(path.read_text()) if path.exists() else ([], {})
        return {known[name]: (word, by) for name, word, by in old if name in known}, Counter(controls)

    def _wanted(self) -> list[Mutant]:
        known = [each for name in sorted(self._options.modules) for each in mutants(SOURCE / f"{name}.py")]
        names = tuple([f"{name}.py " for name in self._options.modules])
        for old in sorted(self._equal - {words_of(each) for each in known}):
            if old.startswith(names):
                say(f"{EQUAL.name} names a change that is none any more: {old}")
        if self._options.again:
            found: list[Mutant] = []
            for line in Path(self._options.again).read_text().splitlines():
                said = re.fullmatch(r"- (?:survived|no test): (\S+):(\d+) (.*)", line)
                if said is not None:  # the line may have moved since: the nearest one
                    alike = [each for each in known if place(each).startswith(f"{said[1]}:") and each.what == said[3]]
                    near = sorted([(abs(each.line - int(said[2])), at) for at, each in enumerate(alike)])
                    found += [alike[at] for _, at in near[:1]]
            return found
        if self._options.only:
            name, _, lines = self._options.only.partition(":")
            wanted = str(SOURCE / name.removesuffix(".py")) + ".py"
            first, _, last = lines.partition("-")
            of = range(int(first or 0), int(last or first or 10**6) + 1)
            return [each for each in known if str(each.path) == wanted and each.line in of]
        tried = {name for path in self._options.besides for name in _tried(path)}
        known = [each for each in known if (str(each.path.relative_to(SOURCE)), each.what) not in tried]
        chance = random.Random(self._options.seed)
        chance.shuffle(known)
        return known[self._options.skip : self._options.skip + self._options.count]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def place(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(SOURCE)}:{mutant.line}"


def _tried(report: str) -> set[tuple[str, str]]:
    """The changes of a report, by file and words: their lines may have moved since."""
    names = [name for name, _, _ in json.loads(Path(report).with_suffix(".json").read_text())[0]]
    said = [re.fullmatch(r"(\S+):\d+ \d+ (.*)", name) for name in names]
    return {(each[1], each[2]) for each in said if each is not None}


def words_of(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(SOURCE)} {mutant.function} {mutant.what}"


def report(results: dict[Mutant, tuple[str, str]], controls: Counter[str], options: argparse.Namespace) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, (word, _) in results.items():
        name = str(mutant.path.relative_to(SOURCE))
        name = name if not name.startswith("stores/sqlite/") else "stores/sqlite/"
        for each in (name, "all"):
            counts[each][word] += 1
    rows = [
        "| module | mutants | killed | survived | of these equal | killed, of 100 | without the equal |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in [*sorted(set(counts) - {"all"}), "all"]:
        count = counts[name]
        killed, equal = count["killed"] + count["hung"], count[EQUAL_WORD]
        lived = count["survived"] + count["no test"] + equal
        shares = [f"{100 * killed / of:.0f}" if of else "" for of in (killed + lived, killed + lived - equal)]
        rows.append(f"| {name} | {killed + lived} | {killed} | {lived} | {equal} | {shares[0]} | {shares[1]} |")
    worlds = sum(by.startswith(SIMULATION) for _, by in results.values())
    text = (
        "\n".join(rows) + f"\n\nCommit {options.commit}, seed {options.seed}. Killed by the simulation only: {worlds}."
    )
    text += f" Runs without a change: {dict(controls)}.\n\n"
    for mutant in sorted(results, key=lambda each: (str(each.path), each.line)):
        word, _ = results[mutant]
        if word in ("survived", "no test", EQUAL_WORD):
            text += f"- {word}: {place(mutant)} {mutant.what}\n"
    text += "".join(
        [f"- hung: {place(mutant)} {mutant.what}\n" for mutant, (word, _) in results.items() if word == "hung"]
    )
    out = Path(options.out)
    out.parent.mkdir(exist_ok=True)
    out.write_text(text)
    rest = [[f"{place(each)} {each.number} {each.what}", *result] for each, result in results.items()]
    out.with_suffix(".json").write_text(json.dumps([rest, controls], indent=0))
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/dev/mutants", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("modules", nargs="*", default=MODULES, help="files of src/dibs; default: rules, engine, stores")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--skip", type=int, default=0, help="of the same seed, leave out so many first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--budget", type=float, default=30, help="CPU seconds of fast tests for one mutant")
    parser.add_argument("--simulate", type=float, default=20, help="CPU seconds of the simulation after them")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="mutants at once")
    parser.add_argument("--more", action="store_true", help="go on with the last report, of the same seed and source")
    parser.add_argument("--again", help="a report: only its survivors")
    parser.add_argument("--besides", nargs="*", default=(), help="reports: leave out what they tried")
    parser.add_argument("--only", help="FILE, FILE:LINE or FILE:FIRST-LAST of src/dibs")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--notes", help="a file that keeps which test runs which lines, for the next run")
    parser.add_argument("--out", default=str(REPORT))
    parser.add_argument("--show", action="store_true", help="say each result, and what the tests say")
    options = parser.parse_args()
    options.modules = [name.removesuffix(".py") for name in options.modules]
    if options.only:
        options.modules = [options.only.partition(":")[0].removesuffix(".py")]
    os.chdir(ROOT)
    options.commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0", "--no-header", *options.tests]
    return int(pytest.main(words, plugins=[Runner(options)]))


if __name__ == "__main__":
    sys.exit(main())
