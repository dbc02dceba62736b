"""Elections as documents, in OctoStore's form. An election is a job: its owner leads, its fencing token is the term,
its lease id is what the leader token proves. The rules are those of claims; nothing here decides.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.base.ids import dashed
from dibs.core import events as kinds
from dibs.core import lease_outcomes, limits, outcomes
from dibs.core.names import election_job
from dibs.wire.parts import timestamp
from dibs.wire.requests import command_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.base.jsontext import Document
    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.identity import Caller
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Holder

LEADER, FOLLOWER, VACANT = "leader", "follower", "vacant"
SCHEMA_VERSION = 1
_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ROOM = _ALPHANUMERIC | frozenset("-_")
_CANDIDATE = _ALPHANUMERIC | frozenset("-_.:@")


def job_of(room: str, *, public: bool) -> str:
    """The job of an election. The id of a public one must be long enough not to be met by chance."""
    if public and not (limits.ROOM_CHARS_MIN <= len(room) <= limits.ROOM_CHARS_MAX and _ROOM.issuperset(room)):
        raise InvalidInput(
            f"The id of a public election has {limits.ROOM_CHARS_MIN} to {limits.ROOM_CHARS_MAX} characters: letters, "
            "digits, - or _."
        )
    return election_job(room)


def campaign_command(ns: str, room: str, document: Document, caller: Caller, *, public: bool) -> Command:
    """Claims the job of an election for a candidate."""
    job = job_of(room, public=public)
    candidate = document["candidate_id"]
    if not 1 <= len(candidate) <= limits.CANDIDATE_CHARS_MAX or not _CANDIDATE.issuperset(candidate):
        raise InvalidInput(
            f"candidate_id is 1 to {limits.CANDIDATE_CHARS_MAX} letters, digits or - _ . : @ characters."
        )
    asked: Document = {"owner": candidate, "ttl_seconds": _ttl_seconds(document, public)}
    for field in ("metadata", "request_key"):
        if field in document:
            asked[field] = document[field]
    return command_for("acquire", ns, job, asked, caller)


def renew_command(ns: str, room: str, document: Document, caller: Caller, *, public: bool) -> Command:
    """A heartbeat of the leader. It is an event, because those who watch want to know until when the term lasts."""
    job = job_of(room, public=public)
    asked: Document = {"lease_id": lease_of(room, document["leader_token"])}
    if public or "ttl_seconds" in document:
        asked["ttl_seconds"] = _ttl_seconds(document, public)
    return command_for("renew", ns, job, asked, caller).replace(audited=True)


def resign_command(ns: str, room: str, document: Document, caller: Caller, *, public: bool) -> Command:
    job = job_of(room, public=public)
    return command_for("release", ns, job, {"lease_id": lease_of(room, document["leader_token"])}, caller)


def _ttl_seconds(document: Document, public: bool) -> int:
    seconds: int = document.get("ttl_seconds", limits.ELECTION_TTL_MS_DEFAULT // 1000)
    if public and not limits.PUBLIC_TTL_MS_MIN <= seconds * 1000 <= limits.PUBLIC_TTL_MS_MAX:
        raise InvalidTtl(
            f"In a public election ttl_seconds is from {limits.PUBLIC_TTL_MS_MIN // 1000} to "
            f"{limits.PUBLIC_TTL_MS_MAX // 1000}; {seconds} was asked for."
        )
    return seconds


def token_of(room: str, lease_id: str) -> str:
    """Return what a leader proves its term with: the election, hashed, and the lease id, as 43 characters."""
    raw = _mark(room) + bytes.fromhex(lease_id.replace("-", ""))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def lease_of(room: str, token: str) -> str:
    """The lease id in a leader token. That of another election gives an id that no lease has."""
    try:
        raw = base64.b64decode(token + "=", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != 32 or base64.urlsafe_b64encode(raw).decode().rstrip("=") != token:
        raise InvalidInput("Invalid leader token")
    return dashed(raw[16:].hex() if raw[:16] == _mark(room) else "0" * 32)


def _mark(room: str) -> bytes:
    return hashlib.sha256(room.encode()).digest()[:16]


def room_document(room: str) -> Document:
    """A new election. Nothing is on record before the first campaign."""
    path = f"/elections/{room}"
    return {
        "election_id": room,
        "campaign_path": f"{path}/campaign",
        "status_path": path,
        "watch_path": f"{path}/watch",
    }


def election_document(room: str, outcome: Outcome) -> Document | None:
    """The answer to a campaign, a renewal, a resignation or a look; None if the outcome is a refusal like any other."""
    if isinstance(outcome, outcomes.Granted | lease_outcomes.Renewed):
        return {
            "status": LEADER,
            "election_id": room,
            "leader": leader_document(outcome.lease),
            "leader_token": token_of(room, outcome.lease.lease_id),
            "renew_after_ms": (outcome.lease.expires_ms - outcome.now_ms) // 2,
        }
    if isinstance(outcome, outcomes.Held):
        holder = outcome.blockers[0].holder if outcome.blockers else None
        until_ms = holder.expires_ms if holder else outcome.first.expires_ms if outcome.first else 0
        return _follower(room, holder, until_ms - outcome.now_ms)
    if isinstance(outcome, outcomes.Delayed):
        return _follower(room, None, outcome.until_ms - outcome.now_ms)
    if isinstance(outcome, lease_outcomes.Released):
        return {"election_id": room, "status": VACANT, "previous_term": outcome.ending.token}
    if isinstance(outcome, outcomes.Status):
        return state_document(room, outcome)
    return None


def _follower(room: str, holder: Holder | None, remaining_ms: int) -> Document:
    return {
        "status": FOLLOWER,
        "election_id": room,
        "leader": None if holder is None else leader_document(holder),
        "retry_after_ms": max(0, remaining_ms),
    }


def leader_document(holder: Holder) -> Document:
    return _leader(holder.owner, holder.metadata, holder.token, holder.expires_ms)


def _leader(candidate: str, metadata: str | None, term: int, expires_ms: int | None) -> Document:
    document: Document = {"candidate_id": candidate}
    if metadata is not None:
        document["metadata"] = metadata
    document["term"] = term
    document["expires_at"] = None if expires_ms is None else timestamp(expires_ms)
    return document


def state_document(room: str, state: outcomes.Status) -> Document:
    """Return who leads. There is no `leader` when nobody does."""
    holders = state.lock.holders
    if not holders:
        return {"election_id": room, "status": VACANT, "retry_after_ms": 0}
    return {
        "election_id": room,
        "status": LEADER,
        "leader": leader_document(holders[0]),
        "retry_after_ms": max(0, holders[0].expires_ms - state.now_ms),
    }


class WatchedElection:
    """Turns events of an election's job into states. Remembers the leader, whose metadata a renewal does not repeat.
    The end of a term is as the event knew it: heartbeats of a session, which move it, are no events."""

    def __init__(self, room: str, state: outcomes.Status) -> None:
        self._room = room
        document = state_document(room, state)
        self._leader: Document | None = document.get("leader")
        self.first = self._state(document["retry_after_ms"], state.now_ms)

    def change(self, event: Event) -> Document | None:
        """The state after an event; None if it changes nothing that is shown."""
        ends_ms = event.hold_ends_ms()
        known = self._leader
        if event.kind == kinds.ACQUIRED:
            self._leader = _leader(event.owner, event.metadata, event.token, ends_ms)
        elif event.kind == kinds.RENEWED and known is not None:
            self._leader = _leader(known["candidate_id"], known.get("metadata"), known["term"], ends_ms)
        elif event.kind == kinds.PROGRESS and known is not None:
            self._leader = _leader(known["candidate_id"], event.metadata, known["term"], ends_ms)
        elif event.kind in kinds.OWNERSHIP_ENDS:
            self._leader = ends_ms = None
        else:
            return None
        return self._state(0 if ends_ms is None else max(0, ends_ms - event.at_ms), event.at_ms)

    def _state(self, remaining_ms: int, at_ms: int) -> Document:
        return {
            "schema_version": SCHEMA_VERSION,
            "election_id": self._room,
            "status": VACANT if self._leader is None else LEADER,
            "leader": self._leader,
            "retry_after_ms": remaining_ms,
            "observed_at": timestamp(at_ms),
        }
