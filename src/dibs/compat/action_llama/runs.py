"""Runs: the sessions that the gateway's per-run secrets identify. Pure.

A run is an ordinary session whose id is a one-way digest of its secret. The secret itself is stored nowhere: the digest
of a secret finds its run, and a reader of the store cannot compute the secret from the digest. (The time of the look-up
depends on the digest of a guess, so it reveals nothing about a secret.)

The principal of a run is `run:NAMESPACE`. No token can have that name, so the session's id alone gives no access.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from dibs.base.errors import DibsError, InvalidInput, Unprocessable
from dibs.base.generators import run_generator
from dibs.base.ids import digest_id, new_id
from dibs.base.jsontext import Document, is_unicode
from dibs.base.record import Record
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, body_of, yes
from dibs.cli.framework.spec import Argument, Option
from dibs.cli.framework.spec import Command as CliCommand
from dibs.cli.text.words import job_command, plain, table
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask, OneNamespace
from dibs.core import limits
from dibs.core.caller_rights import LOCAL, Caller, require
from dibs.core.commands import Command, EndSession, InspectSession, KeepSession, OpenSession
from dibs.core.names import check_namespace
from dibs.core.outcomes import SessionOver, SessionUnknown
from dibs.core.session_outcomes import SessionState
from dibs.engine.queries import open_sessions
from dibs.wire.documents import Reply, expected, reply_for_error
from dibs.wire.parts import timestamp

# run-secret create, list, end: secrets that identify the runs of agents to `rlock` and the gateway.


def create(call: Call) -> Answer:
    holder = call.values["holder"]
    document = {"holder": holder, "secret": new_id()}  # by the secret a repeat is known
    secret = call.env.get("SHUTDOWN_SECRET")
    if call.values.get("given"):
        if not secret:
            raise UsageError("--given needs the secret in SHUTDOWN_SECRET, which is not set.", call.command)
        document["secret"] = secret
    body = body_of(_ask(call, "run-open", "", document))
    end = job_command(["run-secret", "end"], [holder])
    text = (
        f"{call.paint.good('Begun')}: the run of {plain(holder)}. Its secret, shown this once:\n"
        f"{plain(body['secret'])}\n"
        f"Give it to the run as SHUTDOWN_SECRET. When the run is over:  {end}"
    )
    return yes(body, text, quiet=plain(body["secret"]))


def list_(call: Call) -> Answer:
    body = body_of(_ask(call, "runs"))
    runs = sorted(body["runs"], key=lambda run: (run["holder"], run["since"]))
    rows = [("HOLDER", "SINCE", "LOCKS")]
    rows += [(plain(run["holder"]), run["since"], plain(" ".join(run["locks"])) or "-") for run in runs]
    text = "\n".join(table(rows)) if runs else "There are no active runs."
    return yes(body, text, quiet="\n".join(plain(run["holder"]) for run in runs))


def end(call: Call) -> Answer:
    body = body_of(_ask(call, "run-end", call.values["holder"]))
    freed = [plain(name) for name in body["released"]]
    text = f"{call.paint.good('Ended.')} Freed: {', '.join(freed) or 'it held nothing'}."
    return yes(body, text, quiet="\n".join(freed))


def _ask(call: Call, verb: str, name: str = "", document: Document | None = None) -> Reply:
    transport, asked = call.transport(), Ask(verb, name, document)
    return ask_store(transport, asked) if isinstance(transport, EmbeddedTransport) else transport.ask(asked)


_ADMIN = ((77, "over HTTP only: the token is not an admin's"),)
_NO_GATEWAY = ((2, "the server does not serve the gateway: dibs serve --gateway"),)
COMMANDS = {
    "run-secret create": CliCommand(
        create,
        Option("--holder NAME", "name of the run, as shown to others, such as dev-1a2b3c4d", required="holder"),
        Option("--given", "use the secret in SHUTDOWN_SECRET instead of a new one"),
        summary="begin a run and print its secret",
        about=(
            "A run is one execution of one agent. Its secret identifies it to `rlock` (SHUTDOWN_SECRET) and "
            "to the gateway of `dibs serve --gateway`. The secret is shown this once; dibs keeps a digest. "
            "A run ends with `dibs run-secret end`, or after two days without a request."
        ),
        examples=(
            ("export SHUTDOWN_SECRET=$(dibs run-secret create -q --holder dev-1a2b3c4d)", "before the agent starts"),
            ("dibs run-secret create --holder dev-1a2b3c4d --given", "a secret that a scheduler made"),
        ),
        exits=(
            (0, "begun"),
            *_NO_GATEWAY,
            (64, "invalid holder or secret"),
            *_ADMIN,
        ),
    ),
    "run-secret list": CliCommand(
        list_,
        summary="list the active runs",
        about=(
            "Shows the holder, the start and the locks of each run, and no secrets. --quiet prints the holders only."
        ),
        examples=(("dibs run-secret list", "which runs are active"),),
        exits=(
            (0, "the list, which may be empty"),
            *_NO_GATEWAY,
            *_ADMIN,
        ),
    ),
    "run-secret end": CliCommand(
        end,
        Argument("HOLDER", "the holder given to run-secret create"),
        summary="end a run and free its locks",
        about="Its secret is invalid from then on. If several runs have the same holder, all of them end.",
        examples=(("dibs run-secret end dev-1a2b3c4d", "when the agent has ended"),),
        exits=(
            (0, "ended"),
            (2, "there is no such run, or the server does not serve the gateway"),
            *_ADMIN,
        ),
    ),
}


_PREFIX = "run:"


class Run(Record):
    """A live run: the holder that others see, and the caller of its commands."""

    session: str
    holder: str
    namespace: str
    caller: Caller
    stale: bool  # the last recorded request is so old that a new one must be recorded


def session_of(secret: str) -> str:
    return digest_id("dibs run", secret)


def principal_of(ns: str) -> str:
    return _PREFIX + ns


def is_run(principal: str) -> bool:
    return principal.startswith(_PREFIX)


def run_of(outcome: object) -> Run | None:
    """The run of an inspected session. None: the session is not a run, or has ended."""
    if not isinstance(outcome, SessionState) or not outcome.live or not is_run(outcome.session.principal):
        return None
    session = outcome.session
    ns = session.principal.removeprefix(_PREFIX)
    return Run(
        session=session.id,
        holder=session.owner,
        namespace=ns,
        caller=Caller(principal=session.principal, namespace=ns, audited=True),
        stale=outcome.now_ms - session.renewed_ms >= limits.RUN_KEEP_MS,
    )


def open_run_command(ns: str, document: object, caller: Caller) -> tuple[OpenSession, str]:
    """The command that begins a run, and the secret: the one in `document`, or a new one."""
    if not isinstance(document, dict):
        raise Unprocessable("The request body must be a JSON object.")
    require(caller, "run-open")
    holder, secret = document.get("holder"), document.get("secret")
    if not isinstance(holder, str) or not is_unicode(holder):
        raise Unprocessable("The field holder is required: the name of the run, as shown to others.")
    if holder != holder.strip() or not holder.isprintable() or not 1 <= len(holder) <= limits.OWNER_CHARS_MAX:
        raise InvalidInput(
            f"holder is 1 to {limits.OWNER_CHARS_MAX} printable characters, with no blank at either end."
        )
    if secret is None:
        secret = new_id()
    is_text = isinstance(secret, str) and secret.isascii() and secret.isprintable() and " " not in secret
    if not is_text or not limits.RUN_SECRET_CHARS_MIN <= len(secret) <= limits.RUN_SECRET_CHARS_MAX:
        raise InvalidInput(
            f"secret is {limits.RUN_SECRET_CHARS_MIN} to {limits.RUN_SECRET_CHARS_MAX} printable ASCII characters "
            "without blanks. Leave it out to get a new one."
        )
    principal = principal_of(check_namespace(ns))
    command = OpenSession(
        fresh_id=session_of(secret), principal=principal, owner=holder, ttl_ms=limits.RUN_TTL_MS, ns=ns
    )
    return command, secret


def run_document(state: SessionState) -> Document:
    session = state.session
    return {
        "holder": session.owner,
        "namespace": session.principal.removeprefix(_PREFIX),
        "since": timestamp(session.since_ms),
        "expires_at": timestamp(session.expires_ms),
        "locks": [hold.name for hold in state.holds],
    }


def answer(verb: str, ns: str, holder: str, document: object, caller: Caller) -> Generator[str | Command, Any, Reply]:
    """Answers `run-open`, `runs` and `run-end`. Yields commands, and a principal for its open sessions."""
    if verb == "run-open":
        command, secret = open_run_command(ns, document, caller)
        outcome = expected((yield command), SessionState, SessionOver, SessionUnknown)
        if not isinstance(outcome, SessionState):
            raise InvalidInput("The run could not be started.")
        session = outcome.session
        is_over = session.ended_ms or outcome.now_ms >= session.expires_ms
        if is_over or (session.principal, session.owner) != (command.principal, command.owner):
            raise InvalidInput("Another run uses or used this secret. Leave it out to get a new one.")
        # No other document contains a secret.
        return Reply(status=201, body={"secret": secret, **run_document(outcome)})
    found: list[SessionState] = yield principal_of(ns)
    if verb == "runs":
        return Reply(status=200, body={"runs": [run_document(state) for state in found]})
    found = [state for state in found if state.session.owner == holder]
    for state in found:
        ended = yield EndSession(session=state.session.id, principal=state.session.principal)
        expected(ended, SessionState, SessionOver, SessionUnknown)  # it may have ended by itself just now
    if not found:
        details = f"There is no run of {holder!a} in the namespace {ns}."
        return Reply(status=404, body={"error": "Run not found", "code": "not_found", "details": details})
    released = sorted(hold.name for state in found for hold in state.holds)
    return Reply(status=200, body={"holder": holder, "ended": len(found), "released": released})


# Runs without a server: the gateway's operations on run secrets, on a local store.


def as_run(transport: EmbeddedTransport, secret: str, *, audited: bool = True) -> tuple[Run, EmbeddedTransport] | None:
    """The run of a secret, and a transport to the same store that acts as that run. None: no such run, or it has ended.
    With `audited` the history records the run's requests. Raises the store's errors."""
    found = transport.coordinator().one(InspectSession(session=session_of(secret), principal=None))
    run = run_of(expected(found, SessionState, SessionUnknown))
    if run is None:
        return None
    if run.stale:
        transport.coordinator().one(KeepSession(session=run.session, principal=run.caller.principal))
    return run, EmbeddedTransport(
        transport.coordinator, OneNamespace(run.namespace), run.caller.replace(audited=audited)
    )


def ask_store(transport: EmbeddedTransport, asked: Ask) -> Reply:
    """The reply to `runs`, `run-open` or `run-end`, as a server gives it."""

    def look_or_do(step: str | Command) -> Any:
        return open_sessions(transport.store(), step) if isinstance(step, str) else transport.coordinator().one(step)

    try:
        return run_generator(answer(asked.verb, transport.namespace(), asked.name, asked.document, LOCAL), look_or_do)
    except DibsError as error:
        return reply_for_error(error)
