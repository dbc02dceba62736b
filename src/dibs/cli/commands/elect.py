"""elect: a command that runs while this process leads. It is `dibs run` on an election's job, again after each loss."""

from __future__ import annotations

import os
import sys

from dibs.cli.commands.run import COMMAND, EXITS, KILL_AFTER, LEAVE_CHILDREN, STOPPED, run_as
from dibs.cli.framework.flags import METADATA, NO_WAIT, OWNER, WAIT
from dibs.cli.framework.spec import Argument, Command, Option
from dibs.core.names import ELECTION_PREFIX, election_job
from dibs.wire.codes import LOST, NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

TTL_DEFAULT = "30s"
WAIT_FOR_EVER = "24h"  # the longest wait that there is; then it campaigns again


def elect(call: Call) -> Answer:
    values = call.values
    waits_for_ever = values.get("wait") is None and not values.get("no_wait")
    wait = WAIT_FOR_EVER if waits_for_ever else values.get("wait")
    call.values = {**values, "wait": wait, "ttl": values.get("ttl") or TTL_DEFAULT}
    answer = run_as(call, election_job(values["election"]))
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
    os.execve(sys.executable, [sys.executable, "-m", "dibs", *sys.argv[1:]], dict(call.env))


COMMANDS = {
    "elect": Command(
        "elect",
        elect,
        about=(
            "Campaigns in an election, waits in line until it is won, and runs the command as the leader. An election "
            f"is a job, {ELECTION_PREFIX}NAME: one candidate leads at a time, and DIBS_TERM, the term, rises with "
            "every leader. When the command ends, dibs resigns and exits with the command's code. When the leadership "
            "is lost, the command and all its processes are stopped before anybody else can lead, and dibs "
            f"campaigns again, unless --once is given. {STOPPED}"
        ),
        arguments=(Argument("ELECTION", "the name of the election: the same for all candidates"), COMMAND),
        options=(
            Option(
                "--ttl",
                f"how long the leadership lasts without a heartbeat (default {TTL_DEFAULT})",
                value="TIME",
            ),
            Option(
                WAIT.flag, "campaign for up to this long (default: until it is won)", value="TIME", short="-w"
            ),
            Option(NO_WAIT.flag, "do not wait: if somebody else leads, exit with 1", short="-n"),
            Option("--once", "end when the leadership is lost, instead of campaigning again"),
            KILL_AFTER,
            OWNER,
            METADATA,
            LEAVE_CHILDREN,
        ),
        examples=(
            ("one scheduler in a fleet", "dibs elect scheduler -- ./scheduler"),
            ("end after a loss, for a supervisor of your own", "dibs elect scheduler --once -- ./scheduler"),
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
