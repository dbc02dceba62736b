"""demo: workers race for a backlog, one is killed, another takes over, and nothing is done twice."""

from __future__ import annotations

import os

from dibs.cli.framework.flag_values import count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.demo import plan as plans
from dibs.redact import without_secrets
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.demo.outcome import DemoResult
    from dibs.demo.plan import DemoPlan
    from dibs.demo.show import Show

    Document = dict[str, Any]

WIDTH_DEFAULT, WIDTH_MIN, WIDTH_MAX = 80, 60, 120
ROWS_DEFAULT = 24
ROOM_FOR_LOG = 4


def demo(call: Call) -> Answer:
    import shutil
    import tempfile

    from dibs.cli.supervise.signals import StopSignals

    url: str | None = call.values.get("url")
    plan = _plan(call, url)
    if url is not None and url.startswith("memory:"):
        raise UsageError("The demo has several processes, and memory:// works within one.", "demo")
    with StopSignals():
        folder = tempfile.mkdtemp(prefix="dibs-demo-")
        try:
            return _played(call, plan, url, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _plan(call: Call, url: str | None) -> DemoPlan:
    """The plan from the flags. In a store that may have real jobs, the names get a prefix of this run."""
    from dibs.ids import new_id

    workers = count(call, "workers", plans.WORKERS_MAX) or plans.WORKERS_DEFAULT
    if workers < plans.WORKERS_MIN:
        raise UsageError(
            "--workers must be 2 or more: one of them is killed, and another takes over.", "demo"
        )
    jobs = count(call, "jobs", plans.JOBS_MAX) or plans.JOBS_DEFAULT
    seed = count(call, "seed", plans.SEED_MAX) or plans.SEED_DEFAULT
    prefix = "" if url is None else f"{plans.PREFIX}{new_id()[:8]}/"
    return plans.plan_of(jobs, workers, seed, prefix)


def _played(call: Call, plan: DemoPlan, url: str | None, folder: str) -> Answer:
    import dibs
    from dibs.demo.play import Play, tidied
    from dibs.demo.screen import ASCII, PRETTY, Screen
    from dibs.demo.story import Story

    env = _environment(call, url or f"sqlite://{folder}/dibs.db")
    story = Story(plan)
    show = _show(call, len(plan.jobs) + len(plan.workers))
    pretty = "utf" in (getattr(call.stdout, "encoding", None) or "utf-8").lower()
    width = max(WIDTH_MIN, min(WIDTH_MAX, _size(call.stdout)[0]))
    screen = Screen(story, call.paint, width=width, glyphs=PRETTY if pretty else ASCII)
    where = f"The claims are kept in {env['DIBS_URL']}"
    client = dibs.Client(env["DIBS_URL"], namespace=env.get("DIBS_NAMESPACE"))
    with client:
        client.list(plan.jobs[0].name)  # an unreachable server is reported before anything is started
        show.put(screen.head(where))
        try:
            outcome = Play(story, screen, show, folder).run(env)
        finally:
            left = url is not None and not tidied(client, plan)
    report = screen.report(outcome, _where_after(plan, url, left, folder))
    return _answer(call, plan, outcome, "\n".join(report))


def _answer(call: Call, plan: DemoPlan, outcome: DemoResult, report: str) -> Answer:
    url = call.values.get("url")
    document = {"url": url, "seed": plan.seed, "workers": list(plan.workers), **outcome.document()}
    if outcome.good:
        return yes(document, report)
    undone = [row.label for row in outcome.rows if not row.done]
    what = [f"{outcome.duplicates} steps were done twice."] if outcome.duplicates else []
    what += [f"Not done: {', '.join(undone)}."] if undone else []
    verdict = " ".join(what) or "Some steps are missing from the ledger."
    message = " ".join([verdict, *outcome.troubles])
    return no(NO, document, f"{report}\n{call.paint.bad(verdict)}", code="demo_failed", message=message)


def _where_after(plan: DemoPlan, url: str | None, left: bool, folder: str) -> str:
    if url is None:
        return f"The store was {folder}/dibs.db, which was removed."
    if left:
        prefix = plan.jobs[0].name.partition("/")[0]
        return f"Claims and done marks of {prefix}/ may be left at {without_secrets(url)}; they expire by themselves."
    return f"Nothing of it is left at {without_secrets(url)} but its history."


def _environment(call: Call, url: str) -> dict[str, str]:
    """The workers' environment: the demo's store, the caller's token, and an owner name of their own."""
    own = ("DIBS_TOKEN", "DIBS_TOKEN_FILE")
    env = {key: value for key, value in call.env.items() if not key.startswith("DIBS_") or key in own}
    env["DIBS_URL"] = url
    if call.values.get("url") and call.settings.namespace:
        env["DIBS_NAMESPACE"] = call.settings.namespace
    return env


def _show(call: Call, rows: int) -> Show:
    """The board is drawn on a terminal that is large enough. In a pipe only the log is shown."""
    from dibs.demo.show import Show

    if call.values.get("json") or call.values.get("quiet"):
        return Show(None, live=False)
    stream = call.stdout
    terminal = stream is not None and stream.isatty() and call.env.get("TERM") != "dumb"
    columns, lines = _size(stream)
    live = terminal and columns >= WIDTH_MIN and lines >= rows + 2 + ROOM_FOR_LOG
    return Show(stream, live=live, shown=call.paint.shown)


def _size(stream: TextIO | None) -> tuple[int, int]:
    """Columns and rows of the terminal; the usual ones for a pipe."""
    try:
        assert stream is not None
        size = os.get_terminal_size(stream.fileno())
        columns, rows = size.columns, size.lines
    except (OSError, AssertionError, ValueError):
        columns, rows = 0, 0
    return columns or WIDTH_DEFAULT, rows or ROWS_DEFAULT


COMMANDS = {
    "demo": Command(
        "demo",
        demo,
        about=(
            "Starts real processes that race for the same backlog. Each job gets one owner; the others skip "
            "it. One owner is killed with kill -9 during its work. When its lease has expired, another worker"
            " takes over at the last checkpoint. At the end the work is counted in a ledger that is "
            "independent of dibs. It takes about ten seconds, in a store of its own that is removed at the "
            "end. DIBS_URL is ignored; --url runs it in another store, under job names of its own."
        ),
        options=(
            Option("--workers", f"how many workers, 2 or more (default {plans.WORKERS_DEFAULT})", value="N"),
            Option("--jobs", f"how many jobs (default {plans.JOBS_DEFAULT})", value="N"),
            Option("--seed", "a number that chooses the jobs and the worker to be killed", value="N"),
        ),
        examples=(
            ("see it", "dibs demo"),
            ("through a server", "dibs demo --url http://127.0.0.1:3427"),
        ),
        exits=(
            (0, "every job was done, and nothing twice"),
            (NO, "something was done twice, or not at all; the message says what"),
            (69, "the server of --url cannot be reached"),
        ),
    ),
}
