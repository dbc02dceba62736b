"""OctoStore's sessions, which are dibs' sessions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from dibs.base.ids import new_id
from dibs.compat.octostore.bodies import read_body
from dibs.compat.octostore.refusals import no_session, session_over, unsupported
from dibs.core.commands import EndSession, InspectSession, KeepSession, OpenSession
from dibs.core.lease_outcomes import SessionState
from dibs.core.limits import SESSION_TTL_MS_DEFAULT, SESSION_TTL_MS_MAX, SESSION_TTL_MS_MIN
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.outcomes import SessionOver
from dibs.core.records import RELEASED
from dibs.server.http.response import NO_CONTENT, answer_document
from dibs.wire.parts import timestamp

if TYPE_CHECKING:
    from dibs.compat.octostore.callers import User, UserDirectory
    from dibs.core.outcomes import Outcome
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse


FIELDS = {"session-open": {"ttl_seconds": "number"}}


class Sessions:
    def __init__(self, api: Api, callers: UserDirectory) -> None:
        self._api = api
        self._callers = callers

    async def open(self, call: HttpRequest) -> HttpResponse:
        document = await read_body(call, self._api.caller_of, FIELDS["session-open"])
        user = self._callers.user("session-open", call)
        self._api.check_open()
        asked_ms = document.get("ttl_seconds", SESSION_TTL_MS_DEFAULT // 1000) * 1000
        command = OpenSession(
            fresh_id=new_id(),
            principal=user.principal,
            owner=user.principal,
            ttl_ms=min(max(asked_ms, SESSION_TTL_MS_MIN), SESSION_TTL_MS_MAX),
            ns=user.scope or DEFAULT_NAMESPACE,
        )
        state = _opened(await self._api.engine.batcher.submit(command))
        return answer_document(
            {
                "session_id": state.session.id,
                "expires_at": timestamp(state.session.expires_ms),
                "keepalive_interval_secs": state.session.ttl_ms // 2000,
            },
            201,
        )

    async def keep(self, call: HttpRequest) -> HttpResponse:
        session_id = _id_in(call)
        user = self._callers.user("session-keep", call)
        command = KeepSession(session=session_id, principal=user.principal, bound=user.scope)
        state = _opened(await self._api.engine.batcher.submit(command))
        return answer_document({"session_id": session_id, "expires_at": timestamp(state.session.expires_ms)})

    async def show(self, call: HttpRequest) -> HttpResponse:
        session_id = _id_in(call)
        user = self._callers.user("session-show", call)
        state = await self._look(session_id, user)
        return answer_document(
            {
                "session_id": session_id,
                "user_id": user.id,
                "expires_at": timestamp(state.session.expires_ms),
                "lock_count": len(state.holds),
                "active": state.live,
            }
        )

    async def end(self, call: HttpRequest) -> HttpResponse:
        session_id = _id_in(call)
        user = self._callers.user("session-end", call)
        await self._look(session_id, user)
        outcome = await self._api.engine.batcher.submit(
            EndSession(session=session_id, principal=user.principal, bound=user.scope)
        )
        if not isinstance(outcome, SessionState | SessionOver):
            raise no_session()
        return answer_document({})._replace(status=NO_CONTENT, body=b"")

    async def _look(self, session_id: str, user: User) -> SessionState:
        """The session, if it has not ended: one that has is unknown."""
        found = await self._api.engine.batcher.submit(InspectSession(session=session_id, principal=user.principal))
        if not isinstance(found, SessionState) or not user.has(found.session) or found.session.ended_ms:
            raise no_session()
        return found


def _opened(outcome: Outcome) -> SessionState:
    if isinstance(outcome, SessionState):
        return outcome
    if isinstance(outcome, SessionOver) and outcome.session.how != RELEASED:
        raise session_over()
    raise no_session()


def _id_in(call: HttpRequest) -> str:
    try:
        return str(uuid.UUID(call.raw_name.decode("ascii")))
    except ValueError:
        raise unsupported(400) from None
