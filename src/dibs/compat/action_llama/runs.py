"""Runs: the sessions that the gateway's per-run secrets identify. Pure.

A run is an ordinary session whose id is a one-way digest of its secret. The secret itself is stored nowhere: the digest
of a secret finds its run, and a reader of the store cannot compute the secret from the digest. (The time of the look-up
depends on the digest of a guess, so it reveals nothing about a secret.)

The principal of a run is `run:NAMESPACE`. No token can have that name, so the session's id alone gives no access.
"""

from __future__ import annotations

from dibs.base.digest import digest_id
from dibs.base.errors import InvalidInput, Unprocessable
from dibs.base.ids import new_id
from dibs.base.record import Record
from dibs.core import limits
from dibs.core.commands import OpenSession
from dibs.core.identity import Caller
from dibs.core.lease_outcomes import SessionState
from dibs.core.names import check_namespace
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
    """A live run: the holder that others see, and the caller of its commands."""

    session: str
    holder: str
    namespace: str
    caller: Caller
    stale: bool  # the last recorded request is so old that a new one must be recorded


def session_of(secret: str) -> str:
    """The id of the session that a secret identifies."""
    return digest_id("dibs run", secret)


def principal_of(ns: str) -> str:
    return _PREFIX + ns


def is_run(principal: str) -> bool:
    return principal.startswith(_PREFIX)


def namespace_of(session: SessionRecord) -> str | None:
    """The namespace of a run. None: the session is not a run."""
    return session.principal.removeprefix(_PREFIX) if is_run(session.principal) else None


def run_of(outcome: object) -> Run | None:
    """The run of an inspected session. None: the session is not a run, or has ended."""
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
    if not isinstance(secret, str) or not _is_secret(secret):
        raise InvalidInput(
            f"secret is {limits.RUN_SECRET_CHARS_MIN} to {limits.RUN_SECRET_CHARS_MAX} printable ASCII characters "
            "without blanks. Leave it out to get a new one."
        )
    principal = principal_of(check_namespace(ns))
    command = OpenSession(
        fresh_id=session_of(secret), principal=principal, owner=holder, ttl_ms=limits.RUN_TTL_MS, ns=ns
    )
    return command, secret


def opened_document(command: OpenSession, outcome: object, secret: str) -> Document:
    """The answer to the start of a run. No other document contains a secret."""
    if not isinstance(outcome, SessionState):
        raise InvalidInput("The run could not be started.")
    session = outcome.session
    is_over = session.ended_ms or outcome.now_ms >= session.expires_ms
    if is_over or (session.principal, session.owner) != (command.principal, command.owner):
        raise InvalidInput("Another run uses or used this secret. Leave it out to get a new one.")
    return {"secret": secret, **run_document(outcome)}


def run_document(state: SessionState) -> Document:
    """A run in the list that an admin gets."""
    session = state.session
    return {
        "holder": session.owner,
        "namespace": namespace_of(session),
        "since": timestamp(session.since_ms),
        "expires_at": timestamp(session.expires_ms),
        "locks": [hold.name for hold in state.holds],
    }


def ended_document(ns: str, holder: str, found: list[SessionState]) -> Reply:
    """The answer to the end of all runs of a holder. `found` has their states before the end."""
    if not found:
        details = f"There is no run of {holder!a} in the namespace {ns}."
        return Reply(status=404, body={"error": "Run not found", "code": "not_found", "details": details})
    released = sorted(hold.name for state in found for hold in state.holds)
    return Reply(status=200, body={"holder": holder, "ended": len(found), "released": released})


def _is_secret(text: str) -> bool:
    fits = limits.RUN_SECRET_CHARS_MIN <= len(text) <= limits.RUN_SECRET_CHARS_MAX
    return fits and text.isascii() and text.isprintable() and " " not in text
