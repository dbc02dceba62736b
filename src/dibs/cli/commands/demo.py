"""demo: workers race for a backlog, one is killed, another takes over, and nothing is done twice."""

from __future__ import annotations

from dibs.base.redact import without_secrets
from dibs.cli.framework.flags import count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]

WORKERS_DEFAULT, WORKERS_MIN, WORKERS_MAX = 5, 2, 20
JOBS_DEFAULT, JOBS_MAX = 8, 50
SEED_DEFAULT, SEED_MAX = 1, 999_999_999


def demo(call: Call) -> Answer:
    import shutil
    import tempfile

    from dibs.cli.supervise.signals import StopSignals

    url: str | None = call.values.get("url")
    workers = count(call, "workers", WORKERS_MAX) or WORKERS_DEFAULT
    if workers < WORKERS_MIN:
        raise UsageError("--workers must be 2 or more: one of them is killed, and another takes over.", "demo")
    jobs = count(call, "jobs", JOBS_MAX) or JOBS_DEFAULT
    seed = count(call, "seed", SEED_MAX) or SEED_DEFAULT
    if url is not None and url.startswith("memory:"):
        raise UsageError("The demo has several processes, and memory:// works within one.", "demo")
    with StopSignals():
        folder = tempfile.mkdtemp(prefix="dibs-demo-")
        try:
            return _played(call, url, folder, workers, jobs, seed)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _played(call: Call, url: str | None, folder: str, workers: int, count: int, seed: int) -> Answer:
    import dibs
    from dibs.base.ids import new_id
    from dibs.cli.commands.demo_play import Play, backlog_of, report, tidied
    from dibs.cli.text.words import width_of

    # In a store that may have real jobs, the names get a prefix of this run.
    prefix = "" if url is None else f"dibs-demo-{new_id()[:8]}/"
    jobs = backlog_of(count, workers, seed, prefix)
    env = _environment(call, url or f"sqlite://{folder}/dibs.db")
    width = min(120, max(60, width_of(call.stdout, call.env) or 80))
    play = Play(jobs, workers, folder, lambda line: _say(call, line), call.paint, width)
    with dibs.Client(env["DIBS_URL"], namespace=env.get("DIBS_NAMESPACE")) as client:
        client.list(jobs[0]["name"])  # an unreachable server is reported before anything is started
        _say(call, f"{workers} workers, {count} job{'s' if count > 1 else ''}, one owner each")
        _say(call, call.paint.faint(f"{jobs[0]['label']} is {jobs[0]['name']}, and so on"))
        _say(call, call.paint.faint(f"The claims are kept in {without_secrets(env['DIBS_URL'])}"))
        _say(call, "")
        try:
            play.run(env)
        finally:
            left = url is not None and not tidied(client, jobs)
    after = f"The store was {folder}/dibs.db, which was removed."
    if url is not None:
        after = f"Nothing of it is left at {without_secrets(url)} but its history."
    if left:
        after = f"Claims and done marks of {prefix} may be left; they expire by themselves."
    document = {"url": url, "seed": seed, "workers": play.workers, **play.document()}
    return answer(call, document, report(document, call.paint, after, width))


def _say(call: Call, line: str) -> None:
    """Print a line of the log. A stream without a reader is no error: the answer counts."""
    if call.stdout is None or call.values.get("json") or call.values.get("quiet"):
        return
    try:
        call.stdout.write(call.paint.shown(line) + "\n")
        call.stdout.flush()
    except OSError:
        pass


def answer(call: Call, document: Document, text: str) -> Answer:
    """Yes, if every step of every job was done exactly once."""
    sums = document["side_effects"]
    undone = [row["label"] for row in document["jobs"] if not row["done"]]
    if not undone and sums["done"] == sums["expected"] and not sums["duplicates"]:
        return yes(document, text)
    what = [f"{sums['duplicates']} steps were done twice."] if sums["duplicates"] else []
    what += [f"Not done: {', '.join(undone)}."] if undone else []
    verdict = " ".join(what) or "Some steps are missing from the ledger."
    message = " ".join([verdict, *document["troubles"]])
    return no(NO, document, f"{text}\n{call.paint.bad(verdict)}", code="demo_failed", message=message)


def _environment(call: Call, url: str) -> dict[str, str]:
    """The workers' environment: the demo's store, the caller's token, and an owner name of their own."""
    own = ("DIBS_TOKEN", "DIBS_TOKEN_FILE")
    env = {key: value for key, value in call.env.items() if not key.startswith("DIBS_") or key in own}
    env["DIBS_URL"] = url
    if call.values.get("url") and call.settings.namespace:
        env["DIBS_NAMESPACE"] = call.settings.namespace
    return env


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
            Option("--workers", f"how many workers, 2 or more (default {WORKERS_DEFAULT})", value="N"),
            Option("--jobs", f"how many jobs (default {JOBS_DEFAULT})", value="N"),
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
