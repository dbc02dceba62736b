"""Elections as OctoStore answers them: always public, nothing that dibs adds, and refusals in its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.errors import AuthenticationRequired, InvalidInput, InvalidTtl
from dibs.compat.octostore.bodies import OCTOSTORE, PlainStream, metadata_of, read_body
from dibs.compat.octostore.refusals import (
    OctoStoreRefusal,
    forbidden,
    invalid,
    invalid_ttl,
    lease_gone,
    lease_taken,
)
from dibs.core.commands import Acquire, Inspect
from dibs.core.lease_outcomes import Released
from dibs.core.limits import CANDIDATE_CHARS_MAX, ROOM_CHARS_MAX, ROOM_CHARS_MIN
from dibs.core.outcomes import NotCurrent, QuotaExceeded, Status
from dibs.server.http.admission import PUBLIC_NAMESPACE
from dibs.server.http.parse import decode_name
from dibs.server.http.response import answer_document, answer_for
from dibs.server.routes.elections import CAMPAIGN, ElectionRoutes
from dibs.wire.elections import election_document

if TYPE_CHECKING:
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.identity import Caller
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse

FULL_RETRY_S = 30
FIELDS = {
    "campaign": {"candidate_id": "text!", "ttl_seconds": "number", "metadata": "text"},
    "election-renew": {"leader_token": "text!", "ttl_seconds": "number"},
    "resign": {"leader_token": "text!", "ttl_seconds": "number"},
}


class Elections(ElectionRoutes):
    """dibs' election routes, with other words around the same commands."""

    stream_class = PlainStream

    async def _read(self, verb: str, call: HttpRequest) -> dict[str, Any]:
        return await read_body(call, self._no_stranger, FIELDS[verb])

    @staticmethod
    def _no_stranger(headers: object) -> None:
        """Nobody is known here, so nobody may send more than a stranger."""
        raise AuthenticationRequired("Bearer token required")

    def _caller(self, verb: str, call: HttpRequest) -> tuple[Caller, bool]:
        if self._api.rooms.settings is None:
            raise forbidden("Public elections are disabled on this server")
        return self._api.rooms.caller(), True

    def _namespace(self, caller: Caller, call: HttpRequest) -> str:
        return PUBLIC_NAMESPACE

    def _room(self, call: HttpRequest) -> str:
        room = decode_name(call.raw_name)
        if not ROOM_CHARS_MIN <= len(room.encode()) <= ROOM_CHARS_MAX:
            raise invalid(f"Election ID must be between {ROOM_CHARS_MIN} and {ROOM_CHARS_MAX} characters")
        if not (room.isascii() and room.replace("-", "a").replace("_", "a").isalnum()):
            raise invalid("Election ID may only contain letters, numbers, '-' and '_'")
        return room

    def _command(
        self, verb: str, ns: str, room: str, document: dict[str, Any], caller: Caller, *, public: bool
    ) -> Command:
        if verb == CAMPAIGN.id:
            _check_candidate(document["candidate_id"])
            metadata_of(document)
        if verb == "resign":
            document = {"leader_token": document["leader_token"]}
        try:
            command = super()._command(verb, ns, room, document, caller, public=public)
        except InvalidTtl:
            raise invalid_ttl("Public election TTL must be between 5 and 300 seconds") from None
        except InvalidInput as error:
            raise invalid(error.details) from None
        return command.replace(policy=OCTOSTORE) if isinstance(command, Acquire) else command

    async def _answer(self, room: str, command: Command, call: HttpRequest, public: bool) -> HttpResponse:
        outcome = await self._api.engine.batcher.submit(command)
        if isinstance(outcome, QuotaExceeded):
            raise OctoStoreRefusal(
                "capacity_exceeded",
                "Capacity exceeded: Public election capacity reached; retry later or self-host OctoStore",
                retry_s=FULL_RETRY_S,
            )
        if isinstance(outcome, NotCurrent):
            raise lease_taken() if outcome.holders else lease_gone()
        if isinstance(outcome, Released) and outcome.again:
            state = await self._api.engine.batcher.submit(Inspect(ns=PUBLIC_NAMESPACE, name=outcome.name))
            raise lease_taken() if isinstance(state, Status) and state.lock.holders else lease_gone()
        document = election_document(room, outcome)
        return answer_for(outcome) if document is None else answer_document(document)


def _check_candidate(candidate: str) -> None:
    if not 1 <= len(candidate.encode()) <= CANDIDATE_CHARS_MAX:
        raise invalid(f"Candidate ID must be between 1 and {CANDIDATE_CHARS_MAX} characters")
    plain = candidate.translate(dict.fromkeys(map(ord, "-_.:@"), "a"))
    if not (plain.isascii() and plain.isalnum()):
        raise invalid("Candidate ID contains unsupported characters")
