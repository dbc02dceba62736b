"""Runs: what a per-run secret of the gateway stands for. Pure.

A run is a session like any other, whose id is a one-way digest of its secret. So the secret itself is kept nowhere:
whoever shows it is found by the digest, and whoever reads the store cannot make it from what is there. (How long that
look-up takes tells about the digest of a guess, never about a secret.)

The principal of a run is `run:NAMESPACE`. No token can be called that, so the session's id alone is worth nothing.
"""

from __future__ import annotations

from dibs.core import limits
from dibs.core.commands import OpenSession
from dibs.core.identity import Caller
from dibs.core.names import check_namespace
from dibs.core.outcomes import SessionState
from dibs.core.record import Record
from dibs.digest import digest_id
from dibs.errors import InvalidInput, Unprocessable
from dibs.ids import new_id
from dibs.wire.documents import Reply
from dibs.wire.parts import timestamp
from dibs.wire.permissions import require
from dibs.wire.shapes import is_unicode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.records import SessionRecord

    Document = dict[str, Any]

_PREFIX = "run:"


class Run(Record):
    """A live run: who it is to everybody, and as whom its commands are asked."""

    session: str
    holder: str
    namespace: str
    caller: Caller
    stale: bool  # it was last heard so long ago that this is worth writing down


def session_of(secret: str) -> str:
    """The id of the session that a secret stands for."""
    return digest_id("dibs run", secret)


def principal_of(ns: str) -> str:
    return _PREFIX + ns


def is_run(principal: str) -> bool:
    return principal.startswith(_PREFIX)


def namespace_of(session: SessionRecord) -> str | None:
    """The namespace of a run. None: the session is not a run."""
    return session.principal.removeprefix(_PREFIX) if is_run(session.principal) else None


def run_of(outcome: object) -> Run | None:
    """The run that an inspected session is, if it is one and lives."""
    if not isinstance(outcome, SessionState) or not outcome.live:
        return None
    session = outcome.session
    ns = namespace_of(session)
    if ns is None:
        return None
    return Run(
        session=session.id,
        holder=session.owner,
        namespace=ns,
        caller=Caller(principal=session.principal, namespace=ns, audited=True),
        stale=outcome.now_ms - session.renewed_ms >= limits.RUN_KEEP_MS,
    )


def open_run_command(ns: str, document: object, caller: Caller) -> tuple[OpenSession, str]:
    """The command that begins a run, and its secret: the one in `document`, else a fresh one."""
    if not isinstance(document, dict):
        raise Unprocessable("The request body must be a JSON object.")
    require(caller, "run-open")
    holder, secret = document.get("holder"), document.get("secret")
    if not isinstance(holder, str) or not is_unicode(holder):
        raise Unprocessable("The field holder is required: who the run is, as others see it.")
    if holder != holder.strip() or not holder.isprintable() or not 1 <= len(holder) <= limits.OWNER_CHARS_MAX:
        raise InvalidInput(
            f"holder is 1 to {limits.OWNER_CHARS_MAX} printable characters, with no blank at either end."
        )
    if secret is None:
        secret = new_id()
    if not isinstance(secret, str) or not _is_secret(secret):
        raise InvalidInput(
            f"secret is {limits.RUN_SECRET_CHARS_MIN} to {limits.RUN_SECRET_CHARS_MAX} printable ASCII characters "
            "without blanks. Leave it out to have a good one made."
        )
    principal = principal_of(check_namespace(ns))
    command = OpenSession(
        fresh_id=session_of(secret), principal=principal, owner=holder, ttl_ms=limits.RUN_TTL_MS, ns=ns
    )
    return command, secret


def opened_document(command: OpenSession, outcome: object, secret: str) -> Document:
    """What whoever began a run is told; the only document that ever holds a secret."""
    if not isinstance(outcome, SessionState):
        raise InvalidInput("The run could not be begun.")
    session = outcome.session
    is_over = session.ended_ms or outcome.now_ms >= session.expires_ms
    if is_over or (session.principal, session.owner) != (command.principal, command.owner):
        raise InvalidInput(
            "This secret is or was in use for another run. Leave it out to have a fresh one made."
        )
    return {"secret": secret, **run_document(outcome)}


def run_document(state: SessionState) -> Document:
    """A run, as whoever looks after runs may see it."""
    session = state.session
    return {
        "holder": session.owner,
        "namespace": namespace_of(session),
        "since": timestamp(session.since_ms),
        "expires_at": timestamp(session.expires_ms),
        "locks": [hold.name for hold in state.holds],
    }


def ended_document(ns: str, holder: str, found: list[SessionState]) -> Reply:
    """What whoever ended all runs of a holder is told; `found` is how they stood before."""
    if not found:
        details = f"There is no run of {holder!a} in the namespace {ns}."
        return Reply(status=404, body={"error": "Run not found", "code": "not_found", "details": details})
    released = sorted(hold.name for state in found for hold in state.holds)
    return Reply(status=200, body={"holder": holder, "ended": len(found), "released": released})


def _is_secret(text: str) -> bool:
    fits = limits.RUN_SECRET_CHARS_MIN <= len(text) <= limits.RUN_SECRET_CHARS_MAX
    return fits and text.isascii() and text.isprintable() and " " not in text
