"""Flags that several commands share, and how they become fields of a request."""

from __future__ import annotations

import time

from dibs.base.cheap import Any, Sequence
from dibs.base.errors import InvalidInput, InvalidTtl, RequestFailed
from dibs.base.ids import is_id, new_id
from dibs.base.jsontext import is_unicode
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.registry import AGENT_SIGNS
from dibs.cli.framework.spec import EXACT, Option
from dibs.core import limits
from dibs.core.durations import format_duration, parse_duration
from dibs.core.names import is_resource
from dibs.wire.fields import BYTES, CHARACTERS, NUMBERS
from dibs.wire.parts import moment_ms

# What the value of a flag may be: durations, counts, exit codes. Each refusal names the flag.

EXIT_CODE_MAX = 255
_TEXTS_MAX = {**CHARACTERS, **BYTES}
PID_MAX = 2**32


def flag_of(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def is_number(text: str, least: int, most: int) -> bool:
    """Tell whether a text is a whole number within these bounds, written in digits alone."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most


def process_number(call: Call, key: str) -> int:
    text: str = call.values[key]
    if not is_number(text, 1, PID_MAX):
        raise UsageError(f"{flag_of(key)} takes the number of a process, not {text!a}.")
    return int(text)


def given_ms(call: Call, key: str, what: str = "duration", refusal: type[InvalidInput] = InvalidInput) -> int | None:
    text = call.values.get(key)
    if text is None:
        return None
    try:
        return parse_duration(text, what)
    except InvalidInput as error:
        raise refusal(f"{flag_of(key)}: {error.details}") from None


def ttl_seconds(call: Call) -> int | None:
    lasts_ms = _ttl_ms(call, "lease time", "a lease lasts", limits.TTL_MS_MIN, limits.TTL_MS_MAX)
    return None if lasts_ms is None else lasts_ms // 1000


def _ttl_ms(call: Call, what: str, lasts: str, least_ms: int, most_ms: int) -> int | None:
    ttl_ms = given_ms(call, "ttl", what, InvalidTtl)
    if ttl_ms is not None and (not least_ms <= ttl_ms <= most_ms or ttl_ms % 1000):
        least, most = format_duration(least_ms), format_duration(most_ms)
        raise InvalidTtl(f"--ttl {call.values['ttl']}: {lasts} from {least} to {most}, in whole seconds.")
    return ttl_ms


def number_for(call: Call, key: str, field: str) -> int | None:
    """The number that a flag gives a field of a request, within the bounds that are declared for the field."""
    least, most = NUMBERS[field]
    if field.endswith("_seconds"):
        return seconds(call, key, most * 1000, least_ms=least * 1000)
    return count(call, key, most, least=least)


def seconds(call: Call, key: str, most_ms: int, *, least_ms: int = 0) -> int | None:
    length_ms = given_ms(call, key)
    if length_ms is None:
        return None
    if not least_ms <= length_ms <= most_ms or length_ms % 1000:
        least, most = format_duration(least_ms), format_duration(most_ms)
        bounds = f"from {least} to {most}" if least_ms else f"{most} at most"
        raise InvalidInput(f"{flag_of(key)} {call.values[key]}: use whole seconds, {bounds}.")
    return length_ms // 1000


def milliseconds(call: Call, key: str, default_ms: int, most_ms: int) -> int:
    """A duration from a flag, which need not be whole seconds."""
    length_ms = given_ms(call, key)
    if length_ms is None:
        return default_ms
    if length_ms > most_ms:
        raise InvalidInput(f"{flag_of(key)} {call.values[key]}: the most is {format_duration(most_ms)}.")
    return length_ms


def count(call: Call, key: str, most: int, *, least: int = 1) -> int | None:
    text = call.values.get(key)
    if text is None:
        return None
    if not is_number(text, least, most):
        raise UsageError(f"{flag_of(key)} takes a whole number from {least} to {most}, not {text!a}.")
    return int(text)


def until_ms(text: str, now_ms: int) -> int:
    """A time to come: of the day on this machine's clock, today or tomorrow; or a full one, in UTC."""
    clock = text.strip().split(":")
    if len(clock) == 2 and is_number(clock[0], 0, 23) and is_number(clock[1], 0, 59):
        year, month, day, *_ = time.localtime(now_ms // 1000)
        hours, minutes = int(clock[0]), int(clock[1])
        found = [int(time.mktime((year, month, day + more, hours, minutes, 0, 0, 0, -1))) * 1000 for more in (0, 1)]
        return found[0] if found[0] > now_ms else found[1]
    try:
        return moment_ms(text)
    except ValueError:
        raise UsageError(
            f"--until takes 18:00 on this machine's clock, or a time in UTC such as 2026-11-17T18:00, not {text!a}."
        ) from None


def exit_code(call: Call, key: str, default: int) -> int:
    code = count(call, key, EXIT_CODE_MAX, least=0)
    return default if code is None else code


TTL = Option("--ttl TIME", field="acquire.ttl_seconds")
OWNER = Option("--owner NAME", field="acquire.owner", env="DIBS_OWNER", filled=True)
LEASE = Option("--lease ID", field="renew.lease_id", env="DIBS_LEASE")
SESSION = Option("--session ID", field="acquire.session_id", env="DIBS_SESSION", completes="session")
ACTOR = Option(
    "--actor NAME",
    "for work by hand or from a script: your own name, the same in claim, heartbeat and release; at the address of "
    "the claim it is all the proof they need",
    env="DIBS_ACTOR",
)
METADATA = Option("--metadata TEXT", field="acquire.metadata")
CHECKPOINT = Option("--checkpoint TEXT", field="renew.checkpoint")
SHARED = Option("-s, --shared", field="acquire.mode")
EXCLUSIVE = Option("-x, --exclusive", "one owner at a time (the default)")
SLOTS = Option("--slots N", field="acquire.slots")
UNITS = Option("--units N", field="acquire.units")
MAX_ATTEMPTS = Option("--max-attempts N", field="acquire.max_attempts")
LOCK_DELAY = Option("--lock-delay TIME", field="acquire.lock_delay_seconds")
REQUEST_KEY = Option("--request-key KEY", field="acquire.request_key")
AGAIN = Option("--again", field="acquire.again")
MAX_HOLD = Option("--max-hold TIME", field="acquire.max_hold_seconds")
WAIT = Option("-w, --wait TIME", field="acquire.wait_seconds")
NO_WAIT = Option("-n, --no-wait", "do not wait (the default)")
TICKET = Option("--ticket TICKET", field="acquire.ticket")
REPLACES = Option("--replaces GROUP", field="acquire.replaces")
KEEP_PLACE = Option("--keep-place", "when --wait is over, keep the place in line and print its ticket")
STAGED = Option("--staged", "claim the path: of every file staged in git, instead of a JOB")
KEEP = Option("--keep", "start a background process that sends heartbeats, and releases when the calling process ends")
KEEP_FOR = Option("--keep-for PID", "like --keep, until this process ends (default: the parent of dibs)")
_TRACKED = "github://"  # how a job's name begins that a tracker may be asked about (`agents/tracker/tracked_claim.py`)

# What every claim takes, in the order in which help shows it.
CLAIM_OWNER = (TTL, OWNER, METADATA)
CLAIM_WAIT = (WAIT, NO_WAIT, KEEP_PLACE, TICKET, REPLACES)
CLAIM_TERMS = (EXCLUSIVE, SHARED, SLOTS, UNITS, SESSION, ACTOR, MAX_ATTEMPTS, LOCK_DELAY, REQUEST_KEY, AGAIN, MAX_HOLD)
CLAIM_KEEP = (KEEP, KEEP_FOR)
PROOF = (ACTOR, LEASE, SESSION)  # what says that a claim is the caller's
DONE_DEFAULT = format_duration(limits.DONE_MS_DEFAULT)
DONE = Option("--done TIME", field="release.done_seconds", bare=DONE_DEFAULT)
FAILED = Option("--failed", field="release.failed")
REASON = Option("--reason TEXT", field="release.reason")
RETRY_AFTER = Option("--retry-after TIME", field="release.retry_after_seconds")

# Exit codes as help says them: of a claim besides 0 and 1, of a claim of several, of a heartbeat or release too late.
ALL_EXITS = (
    (2, "the request key or the session has ended, or mode, slots or units are not those of the job or its pool"),
    (3, "waiting would deadlock; the cycle is shown"),
)
SUPERSEDED = ((5, "with --replaces: a newer claim of the same group waits instead"),)
CLAIM_EXITS = (
    *ALL_EXITS,
    (4, "the job is marked as done"),
    *SUPERSEDED,
    (75, "the job is delayed after a loss or a failure, parked or closed; the answer says which"),
)
NOT_YOURS = ((2, "the lease is not current: it expired, was released, or was taken away. Stop the work"),)


def put(document: Document, field: str, value: object) -> None:
    """Add a field to the document, unless it was not given."""
    if value is not None:
        document[field] = value


def check_texts(document: Document) -> Document:
    """Refuse a text that is too long, or none, before anything is changed. The store would refuse it afterwards."""
    for field in document.keys() & _TEXTS_MAX.keys():
        text: str = document[field] or ""
        if not (text.isascii() or is_unicode(text)):
            raise InvalidInput(f"{flag_of(field)} must be text in UTF-8.")
        if 4 * len(text) > _TEXTS_MAX[field]:
            from dibs.wire.values import text_of  # few texts are as long

            text_of(document, field)
    return document


def claim_document(call: Call) -> Document:
    """The request of a claim. All words are checked before the actor's session is opened."""
    lasts, asked = ttl_seconds(call), terms(call)
    session = session_id(call)
    if session is None and is_actor(call) and not call.command.startswith("lock "):  # `dibs lock` has its own actors
        from dibs.cli.framework.actor_session import actor_session

        actor = actor_session(call, claims=True)
        if actor is not None:
            session = _opened(call, actor, max(actor.ttl_ms, (lasts or 0) * 1000))
    document: Document = {}
    if session is None or call.settings.stated_owner is not None:
        document["owner"] = call.settings.owner  # else it is the session's
    put(document, "ttl_seconds", lasts)
    put(document, "session_id", session)
    return document | asked


def actor_owner(call: Call) -> str | None:
    """The name that others see of the actor that calls; None if no actor does."""
    if not is_actor(call):
        return None
    from dibs.cli.framework.actor_session import actor_session

    actor = actor_session(call, claims=False)
    return None if actor is None else actor.owner()


def _opened(call: Call, actor: Any, ttl_ms: int) -> str:
    """Open the actor's session. With --wait, try again while no server can open it."""
    from dibs.base.clock import steady_ms
    from dibs.cli.framework.result import body_of
    from dibs.client.flow import Work, drive, patiently
    from dibs.wire.documents import Reply

    def ask() -> Reply:
        try:
            return Reply(200, {"session_id": actor.opened(ttl_ms)})
        except RequestFailed as failed:
            return failed.reply

    began_ms = steady_ms()
    wait_ms = (seconds(call, "wait", limits.TTL_MS_MAX) or 0) * 1000
    reply = drive(call.transport(), patiently(Work(ask), began_ms + wait_ms))
    call.waited_ms = steady_ms() - began_ms
    return str(body_of(reply)["session_id"])


def is_actor(call: Call) -> bool:
    """Tell whether an actor identifies the caller, and no session does: by name, or as the coding agent around."""
    if call.values.get("actor") is not None:
        return True
    if session_id(call) is not None:
        return False
    return any(map(call.env.get, ("DIBS_ACTOR", *AGENT_SIGNS)))


def terms(call: Call) -> Document:
    """The fields of a claim other than owner, TTL and session."""
    refuse_contradictions(call)
    document: Document = {"request_key": new_id()}
    check_texts({"owner": call.settings.pick("owner", "DIBS_OWNER")})
    for option in (METADATA, REPLACES, *CLAIM_TERMS):
        if option.field and option is not SESSION and call.values.get(option.key) is not None:
            field = option.field.removeprefix("acquire.")
            put(document, field, _given(call, option, field))
    return check_texts(document)


def _given(call: Call, option: Option, field: str) -> object:
    if option.value in ("TIME", "N"):
        return number_for(call, option.key, field)
    given = call.values.get(option.key)
    if option.value is None:
        return None if not given else "shared" if option is SHARED else True
    return given


def refuse_contradictions(call: Call) -> None:
    """Raise a UsageError for flags of a claim that contradict each other, or what it names."""
    refuse_for_resources(call)
    values = call.values
    seconds(call, "wait", limits.TTL_MS_MAX)
    if values.get("no_wait") and values.get("wait") is not None:
        raise UsageError("Use --no-wait or --wait, not both.")
    if values.get("replaces") is not None and values.get("wait") is None and values.get("ticket") is None:
        raise UsageError("--replaces is for a claim that waits in line: give --wait, too.")
    for key in ("slots", "units"):
        if values.get("shared") and values.get(key) is not None:
            raise UsageError(f"Use --shared or --{key}, not both: a shared claim has no slots.")
    if values.get("exclusive") and (values.get("shared") or values.get("slots") is not None):
        raise UsageError("--exclusive means one owner: leave out --shared and --slots.")


_OF_JOBS = ("done", "failed", "retry_after", "max_attempts")


def refuse_for_resources(call: Call) -> None:
    """Raise a UsageError for flags that only jobs have, if the command names resources alone. Beside jobs they are
    about the jobs."""
    given = [key for key in _OF_JOBS if call.values.get(key)]
    if not given:
        return
    named = call.values.get("job") or call.values.get("name") or ()
    names = [named] if isinstance(named, str) else named
    if names and all(is_resource(name) for name in names):
        from dibs.wire.sentences import not_a_job

        raise UsageError(not_a_job(names[0], flag_of(given[0])))


def proof(call: Call) -> Document:
    """The proof that the job is the caller's: a lease id, else the session that claimed it. Of several jobs that were
    claimed in this terminal, each has a lease id of its own: `proof_of`."""
    lease: str | None = call.values.get("lease")
    if lease is None and call.values.get("session") is None and call.values.get("actor") is None:
        lease = call.env.get("DIBS_LEASE") or None
        if lease is not None and not is_id(lease.strip()):
            raise UsageError("DIBS_LEASE must be an id as dibs gave it (a UUID).")
    if lease is not None:
        if not lease.strip():
            raise UsageError("--lease is empty. Did the claim before it succeed?")
        return {"lease_id": lease.strip()}
    session = session_id(call)
    if session is None and is_actor(call):
        from dibs.cli.framework.actor_session import actor_session

        actor = actor_session(call, claims=False)
        session = None if actor is None else actor.kept((ttl_seconds(call) or 0) * 1000)
    if session is None and call.is_typed and (found := _typed_here(call)) is not None:
        return found
    if session is None:
        raise UsageError(
            f"{call.command} must know that the claim is yours: name yourself as in the claim, with --actor or "
            "--session.\nA claim without either printed a lease id: --lease ID."
        )
    return {"session_id": session}


def proof_of(call: Call, name: str, document: Document) -> Document:
    """A document with the `proof` for one of its jobs."""
    return {**document, "lease_id": call.typed_leases[name]} if name in call.typed_leases else document


def _typed_here(call: Call) -> Document | None:
    """The proof for jobs that were claimed in this terminal's shell; None if none of them was."""
    from dibs.base.plugins import PARTS, plugin

    named = call.values.get("job") or []
    names: list[str] = [named] if isinstance(named, str) else named
    typed: Any = plugin(PARTS, "typed-claims")
    known = {name: lease for name in names if typed is not None and (lease := typed.recall(call, name)) is not None}
    others = [name for name in names if name not in known]
    if not known:
        return None
    if others:
        from dibs.wire.sentences import few

        was = "was" if len(others) == 1 else "were"
        raise UsageError(
            f"{plain(few(others))} {was} not claimed in this terminal, so nothing was changed. "
            "Name by themselves those that were."
        )
    if len(known) == 1:
        return {"lease_id": known[names[0]]}
    call.typed_leases = known
    return {}


def session_of(call: Call) -> str | None:
    """The session whose claims are the caller's, as far as it is known without a claim; None with a lease id."""
    if call.values.get("lease") is not None:
        return None
    session = session_id(call)
    if session is not None or not is_actor(call):
        return session
    from dibs.cli.framework.actor_session import actor_session

    actor = actor_session(call, claims=False)
    return None if actor is None else actor.known()


def earlier_sessions(call: Call) -> list[str]:
    """Sessions besides that of the `proof` in which the caller's actor may still hold something."""
    if not is_actor(call):
        return []
    from dibs.cli.framework.actor_session import actor_session

    actor = actor_session(call, claims=False)
    return [] if actor is None else actor.earlier()


def session_id(call: Call) -> str | None:
    """The session to use, if any. An actor named on the command line takes precedence over DIBS_SESSION."""
    if call.values.get("actor") is not None and call.values.get("session") is None:
        return None
    given = call.settings.pick("session", "DIBS_SESSION")
    return None if given is None else checked_session(call, given, "--session (DIBS_SESSION)")


def checked_session(call: Call, text: str, what: str) -> str:
    if not is_id(text.strip()):
        hint = " Did opening it succeed?" if not text.strip() else ""
        raise UsageError(f"{what} is {text!a}, which is not a session id: `dibs session open` prints one.{hint}")
    return text.strip().lower()


def done_fields(call: Call, result: str | None) -> Document:
    """The fields of a release that mark the job as done; empty without --done."""
    done_seconds = number_for(call, "done", "done_seconds")
    if not done_seconds:
        if result is not None:
            raise UsageError("--result needs --done: the result is shown while the job is marked as done.")
        return {}
    fields: Document = {"done_seconds": done_seconds}
    put(fields, "result", result)
    return fields


def next_words(call: Call, flags: tuple[str, ...] = ("url", "namespace", "session", "actor")) -> list[str]:
    """The flags to repeat in the suggested next command. Values from the environment need no repeating. What is
    printed ends up in logs, so a password in a URL is left out."""
    words: list[str] = []
    for flag in flags:
        value = call.values.get(flag)
        if value and flag == "url":
            from dibs.base.redact import to_repeat  # most commands name no URL

            value = to_repeat(value)
        elif flag == "url" and (context := call.values.get("context")) is not None:
            flag, value = "context", context
        words += [f"--{flag}", value] if value else []
    return words


def claim_words(call: Call) -> list[str]:
    """The flags with which the same claim is made once more, as with its ticket: the place is kept for these terms."""
    words = next_words(call, ("url", "namespace"))
    for option in (EXACT, STAGED, *CLAIM_OWNER, REPLACES, *CLAIM_TERMS, *CLAIM_KEEP):
        given = call.values.get(option.key)
        if given:
            words += [option.flag] if option.value is None else [option.flag, given]
    return words


# Flags of the commands that open a session.

SESSION_TTL = Option("--ttl TIME", field="session-open.ttl_ms")
SESSION_OPEN = (SESSION_TTL, OWNER, METADATA)
# And of those that claim one job in it.
SESSION_CLAIM = (SESSION_TTL, WAIT, NO_WAIT, REPLACES, EXCLUSIVE, SHARED, SLOTS, UNITS)


def open_request(call: Call) -> Document:
    document: Document = {"owner": call.settings.owner}
    bounds = (limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX)
    put(document, "ttl_ms", _ttl_ms(call, "session time", "a session lives", *bounds))
    put(document, "metadata", call.values.get("metadata"))
    return document


def tracker_for(names: Sequence[str]) -> Any | None:
    """The plugin that asks a tracker, if one of these jobs is an issue; None if none is, or without the plugin."""
    for name in names:
        if name.startswith(_TRACKED):
            from dibs.base.plugins import PARTS, plugin  # not for other jobs: each import delays a claim

            return plugin(PARTS, "issue-tracker")
    return None
