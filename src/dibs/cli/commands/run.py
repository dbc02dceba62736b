"""run, session run, elect: a command inside a session that is kept alive for it and ends with it."""

from __future__ import annotations

import os
import sys

from dibs.base.own_program import own_program
from dibs.base.terminal import plain
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer
from dibs.cli.framework.spec import NEW_JOB, REST, Argument, Command, Option
from dibs.cli.supervise.child import Child, environment, slot_variable
from dibs.cli.supervise.process_session import (
    UNCOUNTED,
    CheckpointFile,
    ProcessSession,
    SessionTerms,
    claim,
    end_dead_session,
    open_process_session,
)
from dibs.core.limits import REASON_CHARS_MAX
from dibs.core.names import ELECTION_PREFIX, election_job
from dibs.core.records import MAX_HOLD
from dibs.wire.codes import DONE, LOST, NO

NOT_EXECUTABLE = 126
NOT_FOUND = 127
KILL_AFTER_MS = 5_000


class _RunOptions:
    """The flags of the command, all checked before anything is started."""

    def __init__(self, call: Call, job: str | None) -> None:
        self.job = job
        self.words: list[str] = call.values["command"]
        self.leaves_children: bool = call.values.get("leave_children", False)
        self.terms = SessionTerms(call, "kill_after", KILL_AFTER_MS, needs_slack=True)
        self.refusal_code = flags.exit_code(call, "conflict_exit_code", NO)
        self.done_code = flags.exit_code(call, "done_exit_code", DONE)
        self.done = flags.done_fields(call, call.values.get("result"))
        self.retry_after = flags.number_for(call, "retry_after", "retry_after_seconds")
        self.ok_codes = _ok_codes(call)
        self.notes = _notes(call)
        slot_variable(call)


def _ok_codes(call: Call) -> frozenset[int] | None:
    """The exit codes besides 0 that are no failure; None means all."""
    text = call.values.get("ok_codes")
    if text is None:
        return frozenset()
    if text == "all":
        return None
    codes = text.split(",")
    if not all(flags.is_number(code, 0, flags.EXIT_CODE_MAX) for code in codes):
        raise UsageError(f"--ok-codes takes numbers from 0 to 255 with commas between them, or all; not {text!a}.")
    return frozenset([int(code) for code in codes])


def _notes(call: Call) -> CheckpointFile | None:
    path = call.values.get("checkpoint_file")
    if path is None:
        return None
    notes = CheckpointFile(path)
    notes.check()
    return notes


def _run(call: Call, job: str | None) -> Answer:
    """Run the command in a session, while `job` is ours. The guardian is forked first, without the store's files."""
    options = _RunOptions(call, job)
    if any("\0" in word for word in options.words):  # a program's arguments cannot contain one
        return _not_started(options.words, OSError(0, "its arguments contain a NUL byte"))
    child = Child(
        options.words,
        kill_after_ms=options.terms.kill_after_ms,
        leaves_children=options.leaves_children,
        end_dead_session=lambda session: end_dead_session(call, session),
    )
    try:
        session = open_process_session(call, options.terms, child.mark)
        return session if isinstance(session, Answer) else _within(call, options, session, child)
    finally:
        child.close()


def _within(call: Call, options: _RunOptions, session: ProcessSession, child: Child) -> Answer:
    ending: Document | None = UNCOUNTED  # nothing was run, or dibs itself was interrupted
    child.belongs_to(session.id)
    try:
        answer = _refused(call, options, session, child)
        if answer is None:
            answer = _inside(call, options, session, child)
            ending = _ending(options, session, child, answer)
            if options.done and answer.exit == 0 and ending is UNCOUNTED:
                call.complain(f"{plain(session.job or '')} is not marked as done, because the command was interrupted.")
    finally:
        # The guardian must live until the session has ended: without it, other processes take the session for dead.
        trouble = session.end(ending)
        if trouble is not None:
            call.complain(plain(trouble))
    return answer


def _ending(options: _RunOptions, session: ProcessSession, child: Child, answer: Answer) -> Document | None:
    """The fields of the release: done, failed, or neither.

    A command that somebody stopped has neither finished nor failed, whatever its exit code: by a signal to `dibs run`
    that was passed on (Ctrl-C, `systemctl stop`, a hang-up), or by a signal from its terminal. Its job is released, and
    its count of attempts does not change. Otherwise an exit code other than 0 is a failure, as for cron and systemd,
    unless --ok-codes lists it. One that was stopped at the ceiling of the claim has failed, as it would have been lost
    a moment later.
    """
    if answer.code == "lost":
        return {"failed": True, "reason": MAX_HOLD} if session.is_at_ceiling else None
    if child.was_interrupted:
        return UNCOUNTED
    if answer.exit == 0:
        return options.done
    if options.ok_codes is None or answer.exit in options.ok_codes:
        return {}
    why = f"exited with {answer.exit}" if answer.code == "exited" else answer.message
    fields: Document = {"failed": True, "reason": why[:REASON_CHARS_MAX]}
    flags.put(fields, "retry_after_seconds", options.retry_after)
    return fields


def _refused(call: Call, options: _RunOptions, session: ProcessSession, child: Child) -> Answer | None:
    """Claim the job. None if it is ours, else the answer, printed to stderr because stdout belongs to the command."""
    if options.job is None:
        return None
    answer = claim(session, options.job, reopened=lambda: child.belongs_to(session.id))
    if answer is None or answer.is_error:
        return answer
    if not call.values.get("json"):
        call.complain(answer.text)
    code = {NO: options.refusal_code, DONE: options.done_code}.get(answer.exit, answer.exit)
    return Answer(code, answer.document, "", code=answer.code, message=answer.message)


def _inside(call: Call, options: _RunOptions, session: ProcessSession, child: Child) -> Answer:
    session.notes = options.notes
    env = environment(call, session)
    try:
        child.start(env, session.lost_ms)
    except OSError as error:
        return _not_started(options.words, error)
    session.on_kept = lambda: child.certain_until(session.lost_ms)
    child.wait(session.renew_if_due)
    if child.was_stopped:
        return _lost(options, session, child)
    code = child.code if child.code is not None else LOST
    message = f"{options.words[0]} exited with {code}."
    return Answer(code, _document(options, session) | {"exit": code}, "", code="exited", message=message)


def _document(options: _RunOptions, session: ProcessSession) -> Document:
    document: Document = {"session_id": session.id, "command": options.words}
    if session.grant is not None:
        kept = ("name", "fencing_token", "owner", "attempt", "slot", "slot_numbers", "previous")
        document |= {key: session.grant[key] for key in kept if key in session.grant}
    return document


def _not_started(words: list[str], error: OSError) -> Answer:
    missing = isinstance(error, FileNotFoundError) or not words[0]
    code = NOT_FOUND if missing else NOT_EXECUTABLE
    why = "there is no such command" if missing else (error.strerror or str(error)).lower()
    text = f"{words[0]!a} could not be started: {why}."
    return Answer(code, {"command": words}, text, code="not_started", is_error=True)


def _lost(options: _RunOptions, session: ProcessSession, child: Child) -> Answer:
    why = session.why
    what, risk = "The claim", "others may have its jobs now"
    if options.job is None:
        what = "The session"
    elif options.job.startswith(ELECTION_PREFIX):
        what, risk = "The leadership", "somebody else may lead now"
    text = f"{what} was lost ({plain(why).rstrip('.')}). The command was stopped, because {risk}."
    if child.some_left:
        text += " Some of its processes run as another user and could not be stopped."
    document = _document(options, session) | {"why": why, "all_stopped": not child.some_left}
    return Answer(LOST, document, text, code="lost", is_error=True)


COMMAND = Argument("COMMAND", "the command to run, with its arguments", takes=REST)
KILL_AFTER = Option(
    "--kill-after TIME",
    "how long the command has to end between SIGTERM and SIGKILL (default 5s, or a quarter of a short TTL)",
)
LEAVE_CHILDREN = Option("--leave-children", "do not stop background processes that the command leaves running")
_RUN_OPTIONS = (
    *flags.SESSION_CLAIM,
    Option("-E, --conflict-exit-code N", "the exit code if somebody else has the job (default 1)"),
    Option("--done-exit-code N", "the exit code if the job is marked as done (default 4)"),
    KILL_AFTER,
    Option(
        "--checkpoint-file FILE",
        "a file whose content is sent as checkpoint; if it does not exist, it is made with the last owner's checkpoint",
    ),
    Option(
        "--done TIME",
        f"if the command exits with 0 by itself, mark the job as done for this long (default {flags.DONE_DEFAULT})",
        bare=flags.DONE_DEFAULT,
    ),
    Option("--slot-as NAME=FIRST", "give the command the number of its slot, counted from FIRST, in this variable"),
    Option("--result TEXT", "the result, shown while the job is marked as done"),
    Option("--ok-codes CODES", "exit codes besides 0 that are no failure, such as 1,2; or all"),
    flags.RETRY_AFTER,
    *(flags.OWNER, flags.METADATA, flags.AGAIN, flags.MAX_ATTEMPTS, flags.LOCK_DELAY, flags.MAX_HOLD, LEAVE_CHILDREN),
)
EXITS = (
    (0, "the command exited with 0; other codes are its own, 128+n for signal n"),
    (NOT_EXECUTABLE, "the command cannot be run"),
    (NOT_FOUND, "there is no such command"),
)
STOPPED = (
    "The command gets the input, output and signals. It is run without a shell; use sh -c for one. When it "
    "ends, its background processes are stopped, unless --leave-children is given. With --json the document "
    "comes after the command's output."
)


# elect: a command that runs while this process leads. It is `dibs run` on an election's job, again after each loss.

TTL_DEFAULT = "30s"
WAIT_FOR_EVER = "24h"  # the longest wait that there is; then it campaigns again


def elect(call: Call) -> Answer:
    values = call.values
    waits_for_ever = values.get("wait") is None and not values.get("no_wait")
    wait = WAIT_FOR_EVER if waits_for_ever else values.get("wait")
    # A leader that ends has led, however it ended: as in Python, its command's exit code counts as no failure.
    call.values = {**values, "wait": wait, "ttl": values.get("ttl", TTL_DEFAULT), "ok_codes": "all"}
    answer = _run(call, election_job(values["election"]))
    is_over = answer.exit == NO and not answer.is_error and answer.code != "exited"
    if answer.code == "lost" and not values.get("once"):
        call.complain(f"{answer.message} Campaigning again.")
        _begin_again(call)
    elif is_over and waits_for_ever:
        _begin_again(call)
    return answer


def _begin_again(call: Call) -> None:
    """In a fresh process image: the guards of the next command must be started before the store is opened."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [*own_program(), *sys.argv[1:]], dict(call.env))


COMMANDS = {
    "run": Command(
        lambda call: _run(call, call.values["job"]),
        NEW_JOB,
        COMMAND,
        *_RUN_OPTIONS,
        about=(
            "Claims the job, runs the command, sends heartbeats while it runs, and releases the job when it "
            "ends. An exit code other than 0 counts as a failed attempt. A command that was interrupted has "
            "neither failed nor succeeded: its job is released, and not marked as done, even if the command "
            "then exits with 0. If somebody else has the job, prints the owner and runs nothing. If the "
            "claim is lost, the command and all its processes are stopped (SIGTERM, after --kill-after "
            "SIGKILL) before anybody else can have the job, even if dibs itself is killed or paused. "
            f"{STOPPED}"
        ),
        examples=(
            ("dibs run nightly-report -- ./report", "one at a time"),
            ("dibs run deploy --wait 10m -- ./deploy production", "one after the other"),
            ("dibs run nightly-report --done=20h -- ./report", "once a night, whichever machine is first"),
            ("dibs run import --max-attempts 3 --retry-after 10m -- ./import", "at most three attempts"),
            ("dibs run -n -E 75 backup -- ./backup", "as with flock"),
        ),
        exits=(
            *EXITS,
            (NO, "somebody else has the job, or still has it after the wait; nothing was run (-E changes the code)"),
            *flags.CLAIM_EXITS,
            (LOST, "the claim was lost; the command was stopped"),
            (64, "no command was given, or the TTL is too short for --kill-after"),
            (69, "the store or server cannot be reached; nothing was run"),
        ),
    ),
    "session run": Command(
        lambda call: _run(call, None),
        COMMAND,
        *flags.SESSION_OPEN,
        KILL_AFTER,
        LEAVE_CHILDREN,
        about=(
            "Opens a session, renews it while the command runs, and ends it when the command ends. All "
            "claims made in the session are released then. DIBS_SESSION is set for the command, so "
            "heartbeats and releases need only the job's name. If the session is lost, the command and all "
            f"its processes are stopped (SIGTERM, after --kill-after SIGKILL). {STOPPED}"
        ),
        examples=(
            ("dibs session run --owner agent-7 -- ./worker.sh", "a worker"),
            ("dibs session run -- sh -c 'dibs claim deploy --wait 5m && ./deploy'", "two steps under one claim"),
        ),
        exits=(
            *EXITS,
            (LOST, "the session was lost; the command was stopped"),
            (64, "no command was given, or the TTL is too short for --kill-after"),
            (69, "the session could not be opened; nothing was run"),
        ),
    ),
    "elect": Command(
        elect,
        Argument("ELECTION", "the name of the election: the same for all candidates"),
        COMMAND,
        Option("--ttl TIME", f"how long the leadership lasts without a heartbeat (default {TTL_DEFAULT})"),
        Option("-w, --wait TIME", "campaign for up to this long (default: until it is won)"),
        Option("-n, --no-wait", "do not wait: if somebody else leads, exit with 1"),
        Option("--once", "end when the leadership is lost, instead of campaigning again"),
        *(KILL_AFTER, flags.OWNER, flags.METADATA, LEAVE_CHILDREN),
        about=(
            "Waits in line until the election is won, and runs the command as the leader. An election is a "
            f"job, {ELECTION_PREFIX}NAME: one candidate leads at a time, and DIBS_TERM, the term, rises with "
            "every leader. When the command ends, dibs resigns and exits with the command's code, which "
            "counts as no failure. When the leadership is lost, the command and all its processes are "
            "stopped before anybody else can lead, and dibs campaigns again, unless --once is given. "
            f"{STOPPED}"
        ),
        examples=(
            ("dibs elect scheduler -- ./scheduler", "one scheduler in a fleet"),
            ("dibs elect scheduler --once -- ./scheduler", "end after a loss, for a supervisor of your own"),
        ),
        exits=(
            *EXITS,
            (NO, "somebody else leads, or still leads after the wait; nothing was run"),
            (LOST, "with --once: the leadership was lost; the command was stopped"),
            (64, "no command was given, or the TTL is too short for --kill-after"),
            (69, "the store or server cannot be reached; nothing was run"),
        ),
    ),
}
