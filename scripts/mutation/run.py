"""Changes dibs at random, one place at a time, and counts the changes that the fast tests do not notice.

    scripts/mutants                          400 mutants, or as many as 60 minutes allow
    scripts/mutants --count 50 --seed 7 core/queue.py engine/batcher.py
    scripts/mutants --only core/queue.py:120 all mutants of one line, or of one file without a number

One process imports dibs and collects the tests. A child of it runs them once and notes which test runs which lines.
Each mutant is another child: it has one function with one change, and runs the tests that come to the changed line, the
quickest first, until one fails. A test that takes ten times its time has noticed, too. Every 25th child changes
nothing: if its tests fail, they are not to be trusted, and the run says so.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from changes import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dibs"
EQUAL = Path(__file__).with_name("equal.txt")
REPORT = ROOT / "build" / "mutants.md"
MODULES = (
    "core/claims core/deadlock core/decide core/draft core/exclusion core/expiry core/grants core/leases core/overlap"
    " core/proof core/queue core/quota core/sessions core/several core/tickets core/tree_claims core/upkeep"
    " engine/batcher engine/coordinator engine/sweeper engine/waiters stores/memory stores/waiters"
    " stores/sqlite/checkpoint stores/sqlite/connection stores/sqlite/queries stores/sqlite/rows stores/sqlite/store"
).split()
TESTS = (
    "tests/core",
    "tests/engine",
    "tests/contract/test_memory_store.py",
    "tests/contract/test_sqlite_store.py",
    "tests/stores/test_waiters.py",
    *sorted(str(path) for path in (ROOT / "tests/stores").glob("test_sqlite_*.py")),
)
SLOW_S = 4.0  # a test that takes more CPU than this, with its lines noted, is not a fast one
TRACED_CALLS = 40  # so many calls of a function have their lines noted, in each test
NOTICED, UNNOTICED, HUNG, INVALID = 1, 0, 2, 3
CONTROL_EVERY = 25


class Noted:
    """Which test runs which lines and functions of the modules, and the CPU time it takes."""

    def __init__(self, files: set[str]) -> None:
        self._files = files
        # Answered: nobody can see these from outside. A line is `words_of` a mutant, and the reason.
        self._equal = {line.rpartition("`:")[0] + "`" for line in EQUAL.read_text().splitlines()}
        self.lines: dict[str, set[str]] = defaultdict(set)  # "file:line": tests
        self.calls: dict[str, set[str]] = defaultdict(set)  # "file:first line of a function": tests
        self.cpu_s: dict[str, float] = {}
        self.failed: list[str] = []
        self._test = ""
        self._counts: Counter[CodeType] = Counter()

    def begin(self, test: str) -> None:
        self._test = test
        self._counts.clear()

    def on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        self._counts[code] += 1
        if self._counts[code] == 1:
            self.calls[f"{code.co_filename}:{code.co_firstlineno}"].add(self._test)
        return self._on_line if self._counts[code] <= TRACED_CALLS else None

    def _on_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines[f"{frame.f_code.co_filename}:{frame.f_lineno}"].add(self._test)
        return self._on_line

    def save(self, path: str) -> None:
        sets = [{key: sorted(tests) for key, tests in each.items()} for each in (self.lines, self.calls)]
        Path(path).write_text(json.dumps([*sets, self.cpu_s, self.failed]))

    def load(self, path: str) -> None:
        lines, calls, self.cpu_s, self.failed = json.loads(Path(path).read_text())
        self.lines.update((key, set(tests)) for key, tests in lines.items())
        self.calls.update((key, set(tests)) for key, tests in calls.items())


class Runner:
    """A plugin of pytest: it takes the place of its loop over the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._end = time.monotonic() + options.minutes * 60
        self._failed = ""
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, int], list[FunctionType]] = defaultdict(list)
        files = {str(SOURCE / f"{name}.py") for name in options.modules}
        self._files = files
        # Answered: nobody can see these from outside. A line is `words_of` a mutant, and the reason.
        self._equal = {line.rpartition("`:")[0] + "`" for line in EQUAL.read_text().splitlines()}
        self._noted = Noted(files)
        self._top = tempfile.mkdtemp(prefix="dibs-mutants-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)

    # pytest calls these.

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.get_closest_marker("e2e") is None]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {each.nodeid: each for each in session.items}
        for name in self._options.modules:
            importlib.import_module(f"dibs.{name.replace('/', '.')}")  # some are imported when they are needed
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in self._files:
                self._functions[each.__code__.co_filename, each.__code__.co_firstlineno].append(each)
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
        known = f"{self._top}/noted"
        kept = self._options.notes
        if kept and os.path.exists(kept):
            self._noted.load(kept)
            return
        began = time.monotonic()
        code = self._child(lambda: self._note_all(known), wall_s=7200)
        if code != UNNOTICED:
            raise SystemExit(f"The tests could not be run without a change: {code}.")
        self._noted.load(known)
        if kept:
            shutil.copy(known, kept)
        say(
            f"{len(self._noted.cpu_s)} tests in {time.monotonic() - began:.0f} s;"
            f" failed without a change: {self._noted.failed}"
        )

    def _note_all(self, path: str) -> int:
        noted = self._noted
        threading.settrace(noted.on_call)
        items = list(self._items.values())
        for item, following in zip(items, [*items[1:], None], strict=True):
            noted.begin(item.nodeid)
            began = time.process_time()
            self._failed = ""
            sys.settrace(noted.on_call)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            noted.cpu_s[item.nodeid] = time.process_time() - began
            if self._failed:
                noted.failed.append(self._failed)
        noted.save(path)
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

    def _child(self, work: Any, wall_s: float) -> int:
        """What `work` returns in a child with a temporary folder of its own. HUNG: it did not return in time."""
        folder = tempfile.mkdtemp(dir=self._top)
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
        until = time.monotonic() + wall_s
        status = None
        while status is None and time.monotonic() < until:
            found, got = os.waitpid(pid, os.WNOHANG)
            status = got if found else None
            time.sleep(0.005)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if status is None:
            os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)
        return os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else HUNG

    # The run.

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that come to the changed line, then those that call the function, the quickest first."""
        noted, path = self._noted, str(mutant.path)
        lines = range(mutant.line, mutant.end_line + 1)
        near = set().union(*(noted.lines.get(f"{path}:{line}", set()) for line in lines))
        far = noted.calls.get(f"{path}:{mutant.first_line}", set()) - near
        bad = set(noted.failed)
        found: list[str] = []
        for each in (near, far):
            ready = [name for name in each if noted.cpu_s[name] <= SLOW_S and name not in bad and name in self._items]
            found += sorted(ready, key=lambda name: (noted.cpu_s[name], name))
        total_s = 0.0
        for index, name in enumerate(found):
            total_s += noted.cpu_s[name]
            if total_s > self._options.budget:
                return found[:index]
        return found

    def _all(self) -> None:
        chosen = self._chosen()
        results: list[tuple[Mutant, str, str]] = []
        said = f"{self._top}/said"
        controls = Counter[str]()
        for number, mutant in enumerate(chosen):
            if time.monotonic() > self._end:
                break
            tests = self._tests_of(mutant)
            Path(said).write_text("")
            if number % CONTROL_EVERY == CONTROL_EVERY - 1 and tests:
                code = self._child(lambda tests=tests: self._try(tests, None, said), wall_s=600)
                controls["sound" if code == UNNOTICED else f"{Path(said).read_text()} failed, code {code}"] += 1
            if not tests:
                code = UNNOTICED
            else:
                code = self._child(lambda tests=tests, mutant=mutant: self._try(tests, mutant, said), wall_s=240)
            word = {NOTICED: "killed", UNNOTICED: "survived", HUNG: "hung", INVALID: "invalid"}[code]
            results.append((mutant, word if tests else "no test", Path(said).read_text()))
            if word == "survived" or self._options.show:
                say(f"{number + 1}/{len(chosen)} {results[-1][1]}: {place(mutant)} {mutant.what} {results[-1][2]}")
            if number % CONTROL_EVERY == 0:
                report(results, controls, self._options)
        print(report(results, controls, self._options))
        say(f"Survivors are in {self._options.out}.")

    def _chosen(self) -> list[Mutant]:
        return [each for each in self._wanted() if words_of(each) not in self._equal]

    def _wanted(self) -> list[Mutant]:
        known = [each for path in sorted(self._files) for each in mutants(Path(path))]
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
            name, _, line = self._options.only.partition(":")
            wanted = str(SOURCE / name.removesuffix(".py")) + ".py"
            return [each for each in known if str(each.path) == wanted and (not line or each.line == int(line))]
        chance = random.Random(self._options.seed)
        chance.shuffle(known)
        return known[self._options.skip : self._options.skip + self._options.count]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def place(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(SOURCE)}:{mutant.line}"


def words_of(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(SOURCE)} {mutant.function} {mutant.what}"


def report(results: list[tuple[Mutant, str, str]], controls: Counter[str], options: argparse.Namespace) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, word, _ in results:
        name = str(mutant.path.relative_to(SOURCE))
        name = name if not name.startswith("stores/sqlite/") else "stores/sqlite/"
        for each in (name, "all"):
            counts[each][word] += 1
    rows = ["| module | mutants | killed | survived | killed, of 100 |", "| --- | --- | --- | --- | --- |"]
    for name in [*sorted(set(counts) - {"all"}), "all"]:
        count = counts[name]
        killed = count["killed"] + count["hung"]
        lived = count["survived"] + count["no test"]
        share = f"{100 * killed / (killed + lived):.0f}" if killed + lived else ""
        rows.append(f"| {name} | {killed + lived} | {killed} | {lived} | {share} |")
    text = "\n".join(rows) + f"\n\nSeed {options.seed}. Runs without a change: {dict(controls)}.\n\n"
    for mutant, word, _ in sorted(results, key=lambda each: (str(each[0].path), each[0].line)):
        if word in ("survived", "no test"):
            text += f"- {word}: {place(mutant)} {mutant.what}\n"
    hung = [f"- hung: {place(mutant)} {mutant.what}\n" for mutant, word, _ in results if word == "hung"]
    out = Path(options.out)
    out.parent.mkdir(exist_ok=True)
    out.write_text(text + "".join(hung))
    (out.with_suffix(".json")).write_text(
        json.dumps([[place(mutant), mutant.what, word, by] for mutant, word, by in results], indent=0)
    )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("modules", nargs="*", default=MODULES, help="files of src/dibs; default: rules, engine, stores")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--skip", type=int, default=0, help="of the same seed, leave out so many first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--budget", type=float, default=12, help="CPU seconds of tests for one mutant")
    parser.add_argument("--again", help="a report: only its survivors")
    parser.add_argument("--only", help="FILE or FILE:LINE of src/dibs")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--notes", help="a file that keeps which test runs which lines, for the next run")
    parser.add_argument("--out", default=str(REPORT))
    parser.add_argument("--show", action="store_true", help="say each result, and what the tests say")
    options = parser.parse_args()
    options.modules = [name.removesuffix(".py") for name in options.modules]
    if options.only:
        options.modules = [options.only.partition(":")[0].removesuffix(".py")]
    os.chdir(ROOT)
    words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0", "--no-header", *options.tests]
    return int(pytest.main(words, plugins=[Runner(options)]))


if __name__ == "__main__":
    sys.exit(main())
