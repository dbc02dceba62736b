"""demo: workers race for a backlog, one is killed, another takes over, and nothing is done twice.

Each worker is a program like any other that uses the SDK. The demo prints what they report, kills one in the middle of
its work, and at the end counts the work in the workers' own ledger, which dibs neither writes nor reads.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any
from zlib import crc32

import dibs
from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.base.own_program import own_program
from dibs.base.redact import without_secrets
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text.words import width_of
from dibs.client.settings import CONTEXT
from dibs.wire.codes import NO

STEPS = ("read the issue", "reproduced it", "wrote a failing test", "fixed it", "opened a pull request")
# The first owner of one job is killed in this step, EXPOSED_AFTER_SECONDS after the step began. The step itself takes
# FATAL_SECONDS.
FATAL_STEP, EXPOSED_AFTER_SECONDS, FATAL_SECONDS = 3, 0.7, 8.0
TTL_SECONDS, POLL_SECONDS, DONE_SECONDS = 4, 0.2, 300
WORKERS_DEFAULT, WORKERS_MAX = 5, 20
JOBS_DEFAULT, JOBS_MAX = 8, 50
SEED_MAX = 999_999_999
STEP_MS_MIN, STEP_MS_SPREAD = 550, 300
# More than start, kill and takeover need on a busy machine. The work itself comes on top.
PATIENCE_MS = 40_000
_VERBS = {"claimed": "claims", "done": "did", "waits": "waits for"}
_COLOURS = {"done": "good", "KILLED": "bad", "waits": "wait", "TAKES": "strong", "lost": "bad", "failed": "bad"}


def demo(call: Call) -> Answer:
    context = None if call.values.get("context") is None else call.settings.context
    url: str | None = call.values.get("url") if context is None else context.url
    workers = count(call, "workers", WORKERS_MAX) or WORKERS_DEFAULT
    if workers < 2:
        raise UsageError("--workers must be 2 or more: one of them is killed, and another takes over.")
    jobs = count(call, "jobs", JOBS_MAX) or JOBS_DEFAULT
    seed = count(call, "seed", SEED_MAX) or 1
    if url is not None and url.startswith("memory:"):
        raise UsageError("The demo has several processes, and memory:// works within one.")
    with StopSignals(), TemporaryDirectory(prefix="dibs-demo-", ignore_cleanup_errors=True) as folder:
        # In a store that may have real jobs, the names get a prefix of this run.
        prefix = "" if url is None else f"dibs-demo-{new_id()[:8]}/"
        play = Play(call, folder, backlog_of(jobs, workers, seed, prefix), workers)
        # The workers have the demo's store, the caller's token, and an owner name of their own.
        kept = [key for key in call.env if not key.startswith("DIBS_") or key in ("DIBS_TOKEN", "DIBS_TOKEN_FILE")]
        env = {key: call.env[key] for key in kept} | {"DIBS_URL": url or f"sqlite://{folder}/dibs.db"}
        if context is not None:
            env[CONTEXT] = context.name
        if url and call.settings.namespace:
            env["DIBS_NAMESPACE"] = call.settings.namespace
        asked = None if context is not None else env["DIBS_URL"]
        with dibs.Client(asked, namespace=env.get("DIBS_NAMESPACE"), context=env.get(CONTEXT)) as client:
            client.list(play.jobs[0]["name"])  # an unreachable server is reported before anything is started
            try:
                play.run(env)
            finally:
                is_tidy = url is None or tidied(client, play.jobs)
        document = {"url": url, "seed": seed, "workers": play.workers, **play.document()}
    after = f"The store was {folder}/dibs.db, which was removed."
    if url is not None:
        after = f"Nothing of it is left at {without_secrets(url)} but its history."
    if not is_tidy:
        after = f"Claims and done marks of {prefix} may be left; they expire by themselves."
    return answer(call, document, after)


def tidied(client: dibs.Client, jobs: list[Document]) -> bool:
    """Remove the done marks. False if something is left: a claim that is left ends with its TTL."""
    try:
        for job in jobs:
            with client.claim(job["name"], ttl=TTL_SECONDS, again=True):
                pass
    except dibs.DibsError:
        return False
    return True


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
    """One run. `folder` holds the backlog and the ledger."""

    def __init__(self, call: Call, folder: str, jobs: list[Document], workers: int) -> None:
        self.jobs = jobs
        self.workers = [f"agent-{number}" for number in range(1, workers + 1)]
        self.rows = {job["name"]: {**job, "owners": [], "done": False} for job in jobs}
        self._call = call
        self._folder = folder
        self._killed: Document | None = None
        self._takeover: Document | None = None
        self._troubles: list[str] = []
        self._ready = 0
        self._patient: set[str] = set()  # workers that wait for the dead one
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._events, self._heard = -1, b""  # the pipe that all workers write to, and the line that is not complete yet
        self._shot_ms = steady_ms()

    def run(self, env: dict[str, str]) -> None:
        """Start, race, end. No process outlives it."""
        first, several = self.jobs[0], "s" if len(self.jobs) > 1 else ""
        self._say(f"{len(self.workers)} workers, {len(self.jobs)} job{several}, one owner each")
        self._say(self._call.paint.faint(f"{first['label']} is {first['name']}, and so on"))
        self._say(self._call.paint.faint(f"The claims are kept in {without_secrets(env['DIBS_URL'])}\n"))
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
                pass
            if steady_ms() >= give_up_ms:
                self._troubles.append("It took too long and was ended.")
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
        os.close(self._events)

    def _start(self, env: dict[str, str]) -> int:
        """Start the workers. Closing the returned pipe is their starting shot."""
        started, shot = os.pipe()
        self._events, reports = os.pipe()
        for name in self.workers:
            words = [*own_program("dibs.cli.commands.demo"), name, self._folder]
            # In a group of its own: Ctrl-C reaches only the demo, which then ends the workers.
            self._processes[name] = subprocess.Popen(words, env=env, stdin=started, stdout=reports, process_group=0)
        os.close(started)
        os.close(reports)
        return shot

    def _listen(self) -> bool:
        """Take the events of the next moment, in the order in which they happened. False if all workers have ended."""
        if not select.select([self._events], [], [], 0.1)[0]:
            return True
        content = os.read(self._events, 65536)
        *lines, self._heard = (self._heard + content).split(b"\n")
        for event in sorted([json.loads(line) for line in lines], key=lambda each: int(each["at_ms"])):
            self.hear(event, event["at_ms"] - self._shot_ms)
        return bool(content)

    def hear(self, event: Document, at_ms: int) -> None:
        kind, worker, more = event["event"], event["worker"], event.get("why", "")
        row = self.rows.get(event.get("job", ""), {"label": ""})
        if kind == "ready":
            self._ready += 1
            return
        if kind == "waits":
            # Only the wait for a dead owner gets a line, and only once: live owners finish their jobs.
            if self._killed is None or event["owner"] != self._killed["worker"] or worker in self._patient:
                return
            self._patient.add(worker)
            more = f"{event['owner']} is silent: its lease lasts {event['left_ms'] / 1000:.1f}s"
        elif kind == "claimed":
            row["owners"].append(worker)
            kind, more = self._claimed(event, at_ms)
        elif kind == "exposed":
            process = self._processes[worker]
            process.kill()
            self._killed = {"worker": worker, "label": row["label"], "at_ms": at_ms}
            kind, more = "KILLED", f"kill -9 {process.pid}, in the middle of step {event['step']} of {len(STEPS)}"
        elif kind == "done":
            row["done"] = True
        elif kind == "failed":
            self._troubles.append(f"{worker}: {more}")
        paint = self._call.paint
        head = paint.tint(self.workers.index(worker), f"{at_ms / 1000:5.1f}s  {worker:<{len(self.workers[-1])}}  ")
        verb = getattr(paint, _COLOURS.get(kind, "shown"))(f"{_VERBS.get(kind, kind):<9} ")
        self._say(f"{head}{verb}{row['label']:<5}  {more}".rstrip())

    def _claimed(self, event: Document, at_ms: int) -> tuple[str, str]:
        """The kind of the event, and more about it: jobs that were skipped, or whose work is resumed."""
        before, checkpoint, skipped = event["before"], event["checkpoint"], event["skipped"]
        if event["attempt"] > 1:
            if self._killed is not None and before == self._killed["worker"]:
                after_ms = at_ms - self._killed["at_ms"]
                self._takeover = {"worker": event["worker"], "checkpoint": checkpoint, "after_ms": after_ms}
            at = f'at "{checkpoint}"' if checkpoint else "from the start"
            return "TAKES", f"resumes {before}'s work {at}"
        if not skipped:
            return "claimed", ""
        job, owner = skipped[0]
        others = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        return "claimed", f"skipped {self.rows[job]['label']} ({owner}){others}"

    def _say(self, line: str) -> None:
        if not self._call.values.get("json") and not self._call.values.get("quiet"):
            self._call.say([line])  # without a reader it goes on: the answer counts

    def document(self) -> Document:
        """The end: the workers' story beside the ledger, which has a line for every step that was done."""
        with open(f"{self._folder}/ledger", "a+", encoding="utf-8") as ledger:  # made, if no worker has
            ledger.seek(0)
            effects = Counter(ledger.read().splitlines())
        rows = list(self.rows.values())
        for row in rows:
            times = [effects[f"{row['name']}\t{step}"] for step in range(1, len(STEPS) + 1)]
            row["steps"] = len(STEPS) - times.count(0)
            row["duplicates"] = sum(times) - row["steps"]
        done, twice = sum(row["steps"] for row in rows), sum(row["duplicates"] for row in rows)
        return {
            "jobs": rows,
            "side_effects": {"expected": len(rows) * len(STEPS), "done": done, "duplicates": twice},
            "killed": self._killed,
            "takeover": self._takeover,
            "elapsed_ms": steady_ms() - self._shot_ms,
            "troubles": self._troubles,
        }


def answer(call: Call, document: Document, after: str) -> Answer:
    """The table, and the result in words. It is yes if every step of every job was done exactly once."""
    rows, sums, paint = document["jobs"], document["side_effects"], call.paint
    owners = [" → ".join(row["owners"]) for row in rows]
    form = f"{{:<6}}  {{:<{max(5, *map(len, owners))}}}  {{:>8}}  {{:>5}}  {{:>5}}"
    lines = ["", paint.faint("    " + form.format("JOB", "OWNER", "ATTEMPTS", "STEPS", "TWICE"))]
    for row, owned in zip(rows, owners, strict=True):
        mark = paint.good("✓") if row["done"] and not row["duplicates"] else paint.bad("✗")
        steps = f"{row['steps']}/{len(STEPS)}"
        lines.append(f"  {mark} " + form.format(row["label"], owned, len(row["owners"]), steps, row["duplicates"]))
    done = sum(row["done"] for row in rows)
    verdict = (
        f"{done} of {len(rows)} jobs done in {document['elapsed_ms'] / 1000:.1f}s. Steps in the workers' own ledger: "
        f"{sums['done']} of {sums['expected']}, {sums['duplicates'] or 'zero'} duplicates."
    )
    verdict = " ".join([verdict, *document["troubles"]])
    width = min(120, max(60, width_of(call.stdout, call.env) or 80))
    recovery, killed, takeover = "", document["killed"], document["takeover"]
    if takeover is not None:
        recovery = (
            f"{killed['worker']} was killed in the middle of {killed['label']}. Nobody let go for it: its lease ran "
            f"out, and {takeover['after_ms'] / 1000:.1f}s after the kill {takeover['worker']} took over and went on "
            f'from "{takeover["checkpoint"]}".'
        )
    lines.append("")
    for text in filter(None, [verdict, recovery, after]):
        lines += wrap(text, width - 1, break_long_words=False, break_on_hyphens=False)
    if (done, sums["done"], sums["duplicates"]) == (len(rows), sums["expected"], 0):
        return yes(document, "\n".join(lines))
    return no(NO, document, "\n".join(lines), code="demo_failed", message=verdict)


def checkpoint_of(steps: int) -> str:
    """The checkpoint of an owner after this many steps, for the next owner."""
    return f"{steps}/{len(STEPS)} {STEPS[steps - 1]}"


class Worker:
    """Goes through the backlog until every job is done, by any worker."""

    def __init__(self, client: dibs.Client, jobs: list[Document], ledger: str, report: Callable[..., None]) -> None:
        self._client = client
        self._left = list(jobs)
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._report = report

    def run(self) -> None:
        while self._left:
            held: dict[str, dibs.JobHeld] = {}
            if not any(self._is_worked_on(job, held) for job in list(self._left)) and held:
                # Others hold all jobs that are left. A live owner renews its lease, a dead owner's lease ends.
                name = min(held, key=lambda each: held[each].retry_after or 0)
                left_ms = held[name].answer.get("remaining_ms") or 0
                self._report("waits", job=name, owner=held[name].owner, left_ms=left_ms)
                time.sleep(POLL_SECONDS)

    def _is_worked_on(self, job: Document, held: dict[str, dibs.JobHeld]) -> bool:
        """Work on the job, if nobody else does. Adds a job that somebody else has to `held`."""
        name = job["name"]
        try:
            with self._client.claim(name, ttl=TTL_SECONDS) as claim:
                self._work(job, claim, held)
            self._left.remove(job)
            return True
        except dibs.JobDone:
            self._left.remove(job)
        except dibs.JobHeld as refusal:
            held[name] = refusal
        except dibs.LeaseLost as lost:
            self._report("lost", job=name, why=lost.why)
        return False

    def _work(self, job: Document, claim: dibs.Claim, held: dict[str, dibs.JobHeld]) -> None:
        before, checkpoint = (claim.previous.owner, claim.previous.checkpoint) if claim.previous else (None, None)
        skipped = [(name, refusal.owner) for name, refusal in held.items()]
        more = {"before": before, "checkpoint": checkpoint, "skipped": skipped}
        self._report("claimed", job=job["name"], attempt=claim.attempt, **more)
        steps_done = int(checkpoint.partition("/")[0]) if checkpoint else 0
        for step in range(steps_done + 1, len(STEPS) + 1):
            if job["fatal"] and claim.attempt == 1 and step == FATAL_STEP:
                claim.lost.wait(EXPOSED_AFTER_SECONDS)
                self._report("exposed", job=job["name"], step=step)
                claim.lost.wait(FATAL_SECONDS)
            claim.lost.wait(job["paces_ms"][step - 1] / 1000)  # the work
            claim.check()
            # A line is one write to a file opened with O_APPEND, so lines of several workers never mix.
            os.write(self._ledger, f"{job['name']}\t{step}\n".encode())
            claim.checkpoint(checkpoint_of(step))
        claim.done(checkpoint_of(len(STEPS)), done=DONE_SECONDS)
        self._report("done", job=job["name"])


def be_worker(worker: str, folder: str) -> int:
    """Run one worker: `python -m dibs.cli.commands.demo NAME FOLDER`. The end of stdin is the starting shot. A line of
    JSON on stdout reports each action, with the time on the steady clock of the machine."""

    def report(event: str, **fields: Any) -> None:
        line = json.dumps({"worker": worker, "event": event, "at_ms": steady_ms(), **fields})
        os.write(sys.stdout.fileno(), f"{line}\n".encode())  # all workers write to one pipe

    logging.getLogger("dibs").setLevel(logging.ERROR)  # a claim could not be released: the demo reports it
    try:
        with dibs.connect(owner=worker) as client, open(f"{folder}/backlog", encoding="utf-8") as backlog:
            client.list("dibs-demo-")  # connect before the race begins
            report("ready")
            sys.stdin.read()
            Worker(client, json.load(backlog), f"{folder}/ledger", report).run()
    except dibs.DibsError as error:
        report("failed", why=error.details)
        return 1
    except BrokenPipeError:  # the demo has ended
        return 1
    return 0


COMMANDS = {
    "demo": Command(
        demo,
        Option("--workers N", f"how many workers, 2 or more (default {WORKERS_DEFAULT})"),
        Option("--jobs N", f"how many jobs (default {JOBS_DEFAULT})"),
        Option("--seed N", "a number that chooses the jobs and the worker to be killed"),
        about=(
            "Starts real processes that race for the same backlog. Each job gets one owner. One owner is "
            "killed with kill -9 during its work; when its lease has expired, another worker takes over at "
            "the last checkpoint. It takes about ten seconds, in a store of its own. DIBS_URL is ignored; "
            "--url or --context runs it in another store, under job names of its own."
        ),
        examples=(
            ("dibs demo", "see it"),
            ("dibs demo --url http://127.0.0.1:3427", "through a server"),
        ),
        exits=(
            (0, "every job was done, and nothing twice"),
            (NO, "something was done twice, or not at all; the message says what"),
            (69, "the server of --url cannot be reached"),
        ),
    ),
}


if __name__ == "__main__":
    sys.exit(be_worker(*sys.argv[1:]))
