"""Flags that several commands share, and how they become fields of a request."""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.cli.framework.flag_values import count, seconds, ttl_seconds
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.registry import AGENT_SIGNS
from dibs.cli.framework.spec import Option
from dibs.core.durations import format_duration
from dibs.core.limits import DONE_MS_DEFAULT, DONE_MS_MAX
from dibs.wire.fields import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

TTL = Option("--ttl", field="acquire.ttl_seconds", value="TIME")
OWNER = Option("--owner", field="acquire.owner", value="NAME", env="DIBS_OWNER", filled=True)
LEASE = Option("--lease", field="renew.lease_id", value="ID", env="DIBS_LEASE")
SESSION = Option("--session", field="acquire.session_id", value="ID", env="DIBS_SESSION", completes="session")
ACTOR = Option(
    "--actor",
    "for work by hand or from a script: your own name, the same in claim, heartbeat and release; it is all the "
    "proof they need",
    value="NAME",
    env="DIBS_ACTOR",
)
METADATA = Option("--metadata", field="acquire.metadata", value="TEXT")
CHECKPOINT = Option("--checkpoint", field="renew.checkpoint", value="TEXT")
SHARED = Option("--shared", field="acquire.mode", short="-s")
EXCLUSIVE = Option("--exclusive", "one owner at a time (the default)", short="-x")
SLOTS = Option("--slots", field="acquire.slots", value="N")
MAX_ATTEMPTS = Option("--max-attempts", field="acquire.max_attempts", value="N")
LOCK_DELAY = Option("--lock-delay", field="acquire.lock_delay_seconds", value="TIME")
REQUEST_KEY = Option("--request-key", field="acquire.request_key", value="KEY")
AGAIN = Option("--again", field="acquire.again")
WAIT = Option("--wait", field="acquire.wait_seconds", value="TIME", short="-w")
NO_WAIT = Option("--no-wait", "do not wait (the default)", short="-n")
TICKET = Option("--ticket", field="acquire.ticket", value="TICKET")
KEEP_PLACE = Option("--keep-place", "when --wait is over, keep the place in line and print its ticket")
KEEP = Option("--keep", "start a background process that sends heartbeats, and releases when the calling process ends")
KEEP_FOR = Option("--keep-for", "like --keep, until this process ends (default: the parent of dibs)", value="PID")
TRACKED = "github://"  # how a job's name begins that a tracker may be asked about (`agents/tracker/guard.py`)
# What every claim takes, in the order in which help shows it.
CLAIM_OWNER = (TTL, OWNER, METADATA)
CLAIM_WAIT = (WAIT, NO_WAIT, KEEP_PLACE, TICKET)
CLAIM_TERMS = (
    *(EXCLUSIVE, SHARED, SLOTS),
    *(SESSION, ACTOR, MAX_ATTEMPTS, LOCK_DELAY, REQUEST_KEY, AGAIN),
)
CLAIM_KEEP = (KEEP, KEEP_FOR)
PROOF = (ACTOR, LEASE, SESSION)  # what says that a claim is the caller's
DONE_DEFAULT = format_duration(DONE_MS_DEFAULT)
DONE = Option("--done", field="release.done_seconds", value="TIME", bare=DONE_DEFAULT)
FAILED = Option("--failed", field="release.failed")
REASON = Option("--reason", field="release.reason", value="TEXT")
RETRY_AFTER = Option("--retry-after", field="release.retry_after_seconds", value="TIME")

# Exit codes of a claim besides 0 and 1.
CLAIM_EXITS = (
    (2, "the request key or the session has ended, or the job is held in another mode or with other slots"),
    (3, "waiting would deadlock; the cycle is shown"),
    (4, "the job is marked as done"),
    (75, "the job is delayed after a loss or a failure, or parked; the answer says which"),
)
# The exit code of a heartbeat or a release for a claim that has ended.
NOT_YOURS = (2, "the lease is not current: it expired, was released, or was taken away. Stop the work")


def put(document: Document, field: str, value: object) -> None:
    """Add a field to the document, unless it was not given."""
    if value is not None:
        document[field] = value


def claim_document(call: Call) -> Document:
    """The request document that all commands that claim have in common."""
    lasts = ttl_seconds(call)
    session = session_id(call) or _actor_session(call, lasts)
    document: Document = {}
    if session is None or call.settings.pick("owner", "DIBS_OWNER") is not None:
        document["owner"] = call.settings.owner  # else it is the session's
    put(document, "ttl_seconds", lasts)
    put(document, "session_id", session)
    return document | terms(call)


def is_actor(call: Call) -> bool:
    """Tell whether an actor identifies the caller, and no session does: by name, or as the coding agent around."""
    if call.values.get("actor") is not None:
        return True
    if session_id(call) is not None:
        return False
    return bool(call.env.get("DIBS_ACTOR")) or any(call.env.get(name) for name in AGENT_SIGNS)


def _actor_session(call: Call, ttl_seconds: int | None) -> str | None:
    """The session of the actor named with --actor. `dibs lock` handles its actors itself."""
    if call.command.startswith("lock ") or not is_actor(call):
        return None
    from dibs.cli.framework.actor_session import claiming_session

    return claiming_session(call, None if ttl_seconds is None else ttl_seconds * 1000)


def terms(call: Call) -> Document:
    """The fields of a claim other than owner, TTL and session."""
    refuse_contradictions(call)
    document: Document = {"request_key": new_id()}
    for option in (METADATA, *CLAIM_TERMS):
        if option.field and option is not SESSION:
            field = option.field.removeprefix("acquire.")
            put(document, field, _given(call, option, field))
    return document


def _given(call: Call, option: Option, field: str) -> object:
    """Return what a flag gives to its field; None if it was not given."""
    if option.value == "TIME":
        return seconds(call, option.key, NUMBERS[field][1] * 1000)
    if option.value == "N":
        return count(call, option.key, NUMBERS[field][1])
    given = call.values.get(option.key)
    if option.value is None:
        return None if not given else "shared" if option is SHARED else True
    return given


def refuse_contradictions(call: Call) -> None:
    """Raise a UsageError for flags of a claim that contradict each other."""
    values = call.values
    if values.get("no_wait") and values.get("wait") is not None:
        raise UsageError("Use --no-wait or --wait, not both.", call.command)
    if values.get("shared") and values.get("slots") is not None:
        raise UsageError("Use --shared or --slots, not both: a shared claim has no slots.", call.command)
    if values.get("exclusive") and (values.get("shared") or values.get("slots") is not None):
        raise UsageError("--exclusive means one owner: leave out --shared and --slots.", call.command)


def proof(call: Call) -> Document:
    """The proof that the job is the caller's: a lease id, or the session that claimed it. A lease id takes
    precedence."""
    lease: str | None = call.values.get("lease")
    if lease is None and call.values.get("session") is None and call.values.get("actor") is None:
        lease = call.env.get("DIBS_LEASE") or None
    if lease is not None:
        if not lease.strip():
            raise UsageError("--lease is empty. Did the claim before it succeed?", call.command)
        return {"lease_id": lease.strip()}
    session = session_id(call)
    if session is None and is_actor(call):
        from dibs.cli.framework.actor_session import proving_session

        session = proving_session(call)
    if session is None:
        raise UsageError(
            f"{call.command} must know that the claim is yours: name yourself as in the claim, with --actor or "
            "--session.\nA claim without either printed a lease id: --lease ID.",
            call.command,
        )
    return {"session_id": session}


def session_id(call: Call) -> str | None:
    """The session to use, if any. An actor named on the command line takes precedence over DIBS_SESSION."""
    if call.values.get("actor") is not None and call.values.get("session") is None:
        return None
    given = call.settings.pick("session", "DIBS_SESSION")
    return None if given is None else checked_session(call, given, "--session (DIBS_SESSION)")


def checked_session(call: Call, text: str, what: str) -> str:
    from dibs.wire.shapes import is_id  # imported only when a session is used

    if not is_id(text.strip()):
        hint = " Did opening it succeed?" if not text.strip() else ""
        raise UsageError(
            f"{what} is {text!a}, which is not a session id: `dibs session open` prints one.{hint}",
            call.command,
        )
    return text.strip().lower()


def done_fields(call: Call, result: str | None) -> Document:
    """The fields of a release that mark the job as done; empty without --done."""
    done_seconds = seconds(call, "done", DONE_MS_MAX)
    if not done_seconds:
        if result is not None:
            raise UsageError(
                "--result needs --done: the result is shown while the job is marked as done.", call.command
            )
        return {}
    fields: Document = {"done_seconds": done_seconds}
    put(fields, "result", result)
    return fields


def next_words(call: Call, flags: tuple[str, ...] = ("url", "namespace", "session", "actor")) -> list[str]:
    """The flags to repeat in the suggested next command. Values from the environment need no repeating. What is
    printed ends up in logs, so a password in a URL is left out."""
    given = [(flag, call.values.get(flag)) for flag in flags]
    return [
        word
        for flag, value in given
        if value
        for word in (f"--{flag}", _without_password(value) if flag == "url" else value)
    ]


def _without_password(url: str) -> str:
    from dibs.base.redact import to_repeat  # most commands name no URL

    return to_repeat(url)
