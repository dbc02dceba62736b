"""`dibs serve --octostore`: the operations that OctoStore has are answered as it answers them. All other operations of
dibs stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.compat.octostore.admin import STATUS as ADMIN_STATUS
from dibs.compat.octostore.admin import TIMESERIES
from dibs.compat.octostore.bodies import PlainStream
from dibs.compat.octostore.callers import UserDirectory
from dibs.compat.octostore.description import described
from dibs.compat.octostore.elections import Elections
from dibs.compat.octostore.locks import Locks, UnknownOutcome, own_end_ms
from dibs.compat.octostore.refusals import answer_refusal
from dibs.compat.octostore.sessions import Sessions
from dibs.compat.octostore.webhooks import Webhooks
from dibs.core import events
from dibs.core.commands import Inspect
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.outcomes import Status
from dibs.engine.event_log import EventFilter
from dibs.server.http.response import ClientGone, answer_document
from dibs.server.routes import elections, webhooks
from dibs.stores.port import maintenance_of
from dibs.wire.lease_documents import frame, lock_change, lock_snapshot
from dibs.wire.parts import timestamp

if TYPE_CHECKING:
    from typing import Any

    from dibs.core.events import Event
    from dibs.server.event_stream import EventStream
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Handler, Table

ADMIN_PAGES = (ADMIN_STATUS.id, TIMESERIES.id, "metrics")


def as_octostore(api: Api, table: Table, admin_key: str | None) -> Table:
    """`table`, with OctoStore's answers where it has the operation."""
    routes = OctoStoreRoutes(api, admin_key)
    own = routes.handlers()
    made: Table = []
    for operation, handler in table:
        if operation.id in ADMIN_PAGES:
            handler = routes.for_admin(handler)
        elif operation.id in own:
            handler = own[operation.id]
        elif operation.id not in OTHERS:
            made.append((operation, handler))
            continue
        made.append((described(operation), _in_its_words(handler)))
    return made


OTHERS = ("register", "token-rotate-own")  # dibs' handlers, with OctoStore's refusals


class OctoStoreRoutes:
    def __init__(self, api: Api, admin_key: str | None) -> None:
        self._api = api
        self._callers = UserDirectory(api, admin_key)
        self._locks = Locks(api, self._callers)

    def handlers(self) -> dict[str, Handler]:
        """By the id of the operation."""
        locks, sessions, rooms = self._locks, Sessions(self._api, self._callers), Elections(self._api)
        hooks = Webhooks(self._api, self._callers)
        return {
            "acquire": locks.acquire,
            "renew": locks.renew,
            "release": locks.release,
            "inspect": locks.show,
            "list": locks.listing,
            "acl": locks.acl,
            "watch": self.watch,
            "session-open": sessions.open,
            "session-keep": sessions.keep,
            "session-show": sessions.show,
            "session-end": sessions.end,
            elections.OPEN.id: rooms.open,
            elections.CAMPAIGN.id: rooms.asks(elections.CAMPAIGN),
            elections.RENEW.id: rooms.asks(elections.RENEW),
            elections.RESIGN.id: rooms.asks(elections.RESIGN),
            elections.SHOW.id: rooms.show,
            elections.WATCH.id: rooms.watch,
            webhooks.WEBHOOKS.id: hooks.listing,
            webhooks.CREATE.id: hooks.create,
            webhooks.REMOVE.id: hooks.remove,
            "health": self.health,
            "status": self.status,
        }

    async def watch(self, call: HttpRequest) -> EventStream:
        """The state of one lock and its changes."""
        user = self._callers.user("watch", call)
        name = self._callers.lock_name(call, user)
        self._api.check_open()
        client = call.client
        self._api.streams.check_room(client)
        feed = self._api.engine.feed
        at = await feed.position_now()
        state = await self._api.engine.batcher.submit(Inspect(ns=DEFAULT_NAMESPACE, name=name))
        shown: dict[str, Any] = {"status": "free"}
        if isinstance(state, Status) and state.lock.holders:
            holder = state.lock.holders[0]
            expires_at = timestamp(own_end_ms(holder))
            shown = {"status": "held", "fencing_token": holder.token, "expires_at": expires_at}
        first = frame(lock_snapshot(name, shown, state.now_ms), at)
        wanted = EventFilter(ns=DEFAULT_NAMESPACE, name=name)
        stream = PlainStream(feed, wanted, at, _change_frame, first=first)
        stream.is_allowed = lambda: self._callers.is_still_known(user, call)
        self._api.streams.add(stream, client)
        return stream

    async def health(self, call: HttpRequest) -> HttpResponse:
        """Unlike OctoStore's, it asks the store: 503 if that does not answer."""
        answer = await self._api.health()
        if answer.status != 200:
            return answer
        size = await self._api.in_reader(lambda: maintenance_of(self._api.engine.store).size_bytes())
        return answer_document({"db_size_bytes": size, "status": "ok", "storage": "wal"})

    async def status(self, call: HttpRequest) -> HttpResponse:
        tally = self._api.engine.tally
        return answer_document(
            {
                "active_locks": tally.live,
                "status": "ok",
                "total_acquires": tally.kinds[events.ACQUIRED],
                "total_releases": tally.kinds[events.RELEASED],
                "total_users": len(self._api.guard.principals()),
                "uptime_seconds": self._api.engine.uptime_ms() // 1000,
            }
        )

    def for_admin(self, handler: Handler) -> Handler:
        """An admin's page: by the server's admin key, as a header or after `Bearer admin:`, or by dibs' own roles."""

        async def handle(call: HttpRequest) -> HttpResponse | EventStream:
            self._callers.admit_admin(call)
            answer: HttpResponse | EventStream = await handler(call)  # which finds an admin's token in the request
            return answer

        return handle


def _change_frame(event: Event) -> bytes | None:
    change = lock_change(event)
    return None if change is None else frame(change, event.seq)


def _in_its_words(handler: Handler) -> Handler:
    async def handle(call: HttpRequest) -> HttpResponse | EventStream:
        try:
            answer: HttpResponse | EventStream = await handler(call)
            return answer
        except ClientGone:
            raise
        except UnknownOutcome as unknown:
            return unknown.answer
        except Exception as error:
            return answer_refusal(error)

    return handle
