"""The demo from its first to its last moment: start the workers, let them race, kill one, listen until all is done."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from zlib import crc32

import dibs
from dibs.base.clock import steady_ms
from dibs.cli.commands.demo_worker import STEPS, STEPS_BEFORE_DEATH, TTL_SECONDS, steps_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]

STEP_MS_MIN, STEP_MS_SPREAD = 550, 300
# Time between a worker's last checkpoint and its kill, so that it is in the middle of a step.
KILL_AFTER_MS = 700
# More than start, kill and takeover need on a busy machine. The work itself comes on top.
PATIENCE_MS = 40_000
GRACE_SECONDS = 2
_VERBS = {"claimed": "claims", "done": "did", "waits": "waits for"}
_COLOURS = {
    "done": "good",
    "KILLED": "bad",
    "waits": "wait",
    "TAKES": "strong",
    "lost": "bad",
    "failed": "bad",
}


def backlog_of(count: int, workers: int, seed: int, prefix: str = "") -> list[Document]:
    """The jobs, how long each step takes, and the job whose first owner is killed, which is claimed at once. The same
    seed gives the same backlog. `prefix` keeps the names apart from those of real jobs."""

    def dice(what: str, sides: int) -> int:
        return crc32(f"{seed} {what}".encode()) % sides

    jobs, number, fatal = [], 1842, dice("fatal", min(count, workers))
    for index in range(count):
        paces_ms = [STEP_MS_MIN + dice(f"pace {index} {step}", STEP_MS_SPREAD) for step in range(len(STEPS))]
        name = f"{prefix}github://acme/app/issues/{number}"
        jobs.append({"name": name, "label": f"#{number}", "paces_ms": paces_ms, "fatal": index == fatal})
        number += 1 + dice(f"gap {index}", 9)
    return jobs


class Play:
    """One run. `folder` holds the backlog and the ledger; `say` prints a line of the log."""

    def __init__(
        self,
        jobs: list[Document],
        workers: int,
        folder: str,
        say: Callable[[str], None],
        paint: Paint,
        width: int,
    ) -> None:
        self.jobs = jobs
        self.workers = [f"agent-{number}" for number in range(1, workers + 1)]
        empty: Document = {"skips": 0, "steps": 0, "done": False}
        labels = {job["name"]: job["label"] for job in jobs}
        self.rows = {name: {"name": name, "label": labels[name], "owners": [], **empty} for name in labels}
        self.killed: Document | None = None
        self.takeover: Document | None = None
        self.elapsed_ms = 0
        self._troubles: list[str] = []
        self._folder = folder
        self._say = say
        self._paint = paint
        self._width = width
        self._ready = 0
        self._skipped: dict[str, list[str]] = {}
        self._patient: set[str] = set()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._events, self._heard = -1, b""  # the pipe that all workers write to, and half a line of it
        self._shot_ms = steady_ms()
        self._kill_ms: int | None = None

    def run(self, env: Mapping[str, str]) -> None:
        """Start, race, end. No process outlives it."""
        give_up_ms = steady_ms() + PATIENCE_MS + sum(sum(job["paces_ms"]) for job in self.jobs)
        with open(f"{self._folder}/backlog", "w", encoding="utf-8") as backlog:
            json.dump(self.jobs, backlog)
        try:
            shot = self._start(env)
            while self._ready < len(self.workers) and not self._troubles and steady_ms() < give_up_ms:
                self._listen()
            os.close(shot)
            self._shot_ms = steady_ms()
            while steady_ms() < give_up_ms and self._listen():
                self._perhaps_kill()
            if steady_ms() >= give_up_ms:
                self._troubles.append("It took too long and was ended.")
        finally:
            self._end()
        self.elapsed_ms = steady_ms() - self._shot_ms

    def _start(self, env: Mapping[str, str]) -> int:
        """Start the workers. Closing the returned pipe is their starting shot."""
        # The workers import this same dibs, from any working directory.
        paths = [os.path.dirname(os.path.dirname(os.path.abspath(dibs.__file__))), env.get("PYTHONPATH")]
        started, shot = os.pipe()
        self._events, told = os.pipe()
        for name in self.workers:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", "dibs.cli.commands.demo_worker", name, self._folder],
                env={**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=started,
                stdout=told,
                process_group=0,  # Ctrl-C reaches only the demo, which then ends the workers in order
            )
        os.close(started)
        os.close(told)
        return shot

    def _listen(self) -> bool:
        """Take the events of the next moment, in the order in which they happened. False if all workers have ended."""
        if not select.select([self._events], [], [], 0.1)[0]:
            return True
        content = os.read(self._events, 65536)
        *lines, self._heard = (self._heard + content).split(b"\n")
        for event in sorted([json.loads(line) for line in lines], key=lambda each: int(each["at_ms"])):
            self.hear(event["worker"], event, event["at_ms"] - self._shot_ms)
        return bool(content)

    def hear(self, name: str, event: Document, at_ms: int) -> None:
        """Takes an event of a worker, and tells it."""
        kind, row, more = (
            event["event"],
            self.rows.get(event.get("job", ""), {"label": ""}),
            event.get("why", ""),
        )
        if kind == "ready":
            self._ready += 1
        elif kind == "skipped":
            row["skips"] += 1
            self._skipped.setdefault(name, []).append(f"{row['label']} ({event['owner']})")
        elif kind == "step":
            row["steps"] = event["step"]
        elif kind == "waits":
            # Only the wait for a dead owner gets a line, and only once: live owners finish their jobs.
            if self.killed and event["owner"] == self.killed["worker"] and name not in self._patient:
                self._patient.add(name)
                more = f"{event['owner']} is silent: its lease lasts {event['left_ms'] / 1000:.1f}s"
                self._tell(at_ms, kind, name, row["label"], more)
        elif kind == "claimed":
            self._claimed(name, row, event, at_ms)
        else:
            row["done"] = kind == "done"
            self._troubles += [f"{name}: {more}"] if kind == "failed" else []
            self._tell(at_ms, kind, name, row["label"], more)

    def _claimed(self, name: str, row: Document, event: Document, at_ms: int) -> None:
        row["owners"].append(name)
        before, checkpoint = event["before"], event["checkpoint"]
        row["steps"] = steps_in(checkpoint)
        skipped = ", ".join(self._skipped.pop(name, []))
        if event["attempt"] == 1:
            self._tell(at_ms, "claimed", name, row["label"], f"skipped {skipped}" if skipped else "")
            return
        if self.killed and before == self.killed["worker"]:
            after_ms = at_ms - self.killed["at_ms"]
            self.takeover = {
                "worker": name,
                "before": before,
                "job": row["name"],
                "checkpoint": checkpoint or "",
            }
            self.takeover["after_ms"] = after_ms
        at = f'resumes {before}\'s work at "{checkpoint}"' if checkpoint else f"from {before}, from the start"
        self._tell(at_ms, "TAKES", name, row["label"], at)

    def _perhaps_kill(self) -> None:
        """Kill the first owner of the fatal job, in the middle of its work."""
        row = self.rows[next(job["name"] for job in self.jobs if job["fatal"])]
        if self.killed or len(row["owners"]) != 1 or row["steps"] != STEPS_BEFORE_DEATH:
            return
        now_ms, worker = steady_ms() - self._shot_ms, row["owners"][0]
        self._kill_ms = self._kill_ms or now_ms + KILL_AFTER_MS
        if now_ms >= self._kill_ms:
            self._processes[worker].kill()
            pid = self._processes[worker].pid
            self.killed = {"worker": worker, "job": row["name"], "at_ms": now_ms, "pid": pid}
            middle = f"in the middle of step {row['steps'] + 1} of {len(STEPS)}"
            self._tell(now_ms, "KILLED", worker, row["label"], f"kill -9 {pid}, {middle}")

    def _end(self) -> None:
        """Ask all workers to stop. Kill those that do not."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._events >= 0:
            os.close(self._events)

    def _tell(self, at_ms: int, kind: str, worker: str, label: str, more: str = "") -> None:
        """One event for the log. The rest of a long one goes on below, indented."""
        wide = max(map(len, self.workers)), max(len(job["label"]) for job in self.jobs)
        head = f"{at_ms / 1000:5.1f}s  {worker:<{wide[0]}}  "
        verb, paint = f"{_VERBS.get(kind, kind):<9} ", getattr(self._paint, _COLOURS.get(kind, "shown"))
        label = f"{label:<{wide[1]}}  " if label else ""
        indent = len(head) + len(verb) + len(label)
        glued = more.replace(" (", "\N{NO-BREAK SPACE}(")  # a job and its owner stay on one line
        first, *rest = wrap(glued, max(20, self._width - 1 - indent), break_long_words=False) or [""]
        lines = [self._paint.tint(self.workers.index(worker), head) + paint(verb) + label + first]
        for line in [*lines, *(" " * indent + line for line in rest)]:
            self._say(line.replace("\N{NO-BREAK SPACE}", " ").rstrip())

    def document(self) -> Document:
        """Return how it ended: the workers' story beside the ledger."""
        effects: dict[str, list[str]] = {name: [] for name in self.rows}
        if os.path.exists(f"{self._folder}/ledger"):
            with open(f"{self._folder}/ledger", encoding="utf-8") as ledger:
                for line in ledger:
                    name, _, step = line.rstrip("\n").partition("\t")
                    effects[name].append(step)
        for name, row in self.rows.items():
            row["attempts"], row["steps"] = len(row["owners"]), len(set(effects[name]))
            row["duplicates"] = len(effects[name]) - row["steps"]
        rows = list(self.rows.values())
        done, twice = sum(row["steps"] for row in rows), sum(row["duplicates"] for row in rows)
        return {
            "jobs": rows,
            "side_effects": {"expected": len(rows) * len(STEPS), "done": done, "duplicates": twice},
            "killed": self.killed,
            "takeover": self.takeover,
            "elapsed_ms": self.elapsed_ms,
            "troubles": self._troubles,
        }


def report(document: Document, paint: Paint, after: str, width: int) -> str:
    """The table, and its result in words."""
    rows, sums = document["jobs"], document["side_effects"]
    owners = [" → ".join(row["owners"]) for row in rows]
    form = f"{{:<6}}  {{:<{max(5, *map(len, owners))}}}  {{:>8}}  {{:>5}}  {{:>5}}"
    lines = ["", paint.faint("    " + form.format("JOB", "OWNER", "ATTEMPTS", "STEPS", "TWICE"))]
    for row, owned in zip(rows, owners, strict=True):
        mark = paint.good("✓") if row["done"] and not row["duplicates"] else paint.bad("✗")
        steps = f"{row['steps']}/{len(STEPS)}"
        lines.append(f"  {mark} " + form.format(row["label"], owned, row["attempts"], steps, row["duplicates"]))
    verdict = (
        f"{sum(row['done'] for row in rows)} of {len(rows)} jobs done in {document['elapsed_ms'] / 1000:.1f}s. "
        f"Steps in the workers' own ledger: {sums['done']} of {sums['expected']}, "
        f"{sums['duplicates'] or 'zero'} duplicates."
    )
    lines.append("")
    for text in filter(None, [verdict, *document["troubles"], _recovery(document), after]):
        lines += wrap(text, width - 1, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _recovery(document: Document) -> str:
    killed, takeover = document["killed"], document["takeover"]
    if killed is None:
        return ""
    label = next(row["label"] for row in document["jobs"] if row["name"] == killed["job"])
    told = f"{killed['worker']} was killed in the middle of {label}."
    if takeover is None:
        return f"{told} Nobody took over."
    return (
        f"{told} Nobody let go for it: its lease ran out, and {takeover['after_ms'] / 1000:.1f}s after the kill "
        f'{takeover["worker"]} took over and went on from "{takeover["checkpoint"]}".'
    )


def tidied(client: dibs.Client, jobs: list[Document]) -> bool:
    """Remove the done marks. False if something is left: a claim that is left ends with its TTL."""
    clean = True
    for job in jobs:
        try:
            with client.claim(job["name"], ttl=TTL_SECONDS, again=True):
                pass
        except dibs.NotClaimed:
            clean = False
        except dibs.DibsError:  # the server does not answer: do not ask for the other jobs
            return False
    return clean
