"""The routes that say whether the server and its store answer, for everybody; and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs._version import __version__
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.ids import is_id
from dibs.base.reply import Reply
from dibs.core import events
from dibs.core.limits import SCRAPE_MS_MAX
from dibs.core.records import META_KEY
from dibs.server.annexes import metrics_document
from dibs.server.http.parse import parse_query
from dibs.server.http.response import answer_document
from dibs.server.monitor.exposition import OPEN_TYPE, PLAIN_TYPE, exposition, format_for, process_numbers
from dibs.server.monitor.health import SharedProbe, known_trouble
from dibs.server.monitor.metric_table import METRICS, Scrape, StoreLook
from dibs.server.routes.operations import routed
from dibs.wire.parts import challenge_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table


def health_routes(api: Api) -> Table:
    return routed(
        {
            "proof": lambda call: _proved(api, call),
            "health": lambda call: api.health(),
            "ready": lambda call: api.ready(),
            "readyz": lambda call: api.ready(),
            "healthz": lambda call: answer_document({"status": "ok"}),
            "status": lambda call: _counts(api),
        }
    )


def _proved(api: Api, call: HttpRequest) -> Reply:
    """Prove to a client that this server knows the client's token, before the client sends it."""
    asked = parse_query(call.query)
    nonce, server = asked.get("nonce", ""), call.server
    if not is_id(nonce) or server is None:
        raise InvalidInput("nonce is a fresh UUID, asked over TCP.")
    return answer_document({"proof": api.guard.proof(asked.get("key", ""), challenge_text(nonce, server))})


def _counts(api: Api) -> Reply:
    tally = api.engine.tally
    return answer_document(
        {
            "status": "ok",
            "uptime_seconds": api.engine.uptime_ms() // 1000,
            "active_locks": tally.live,
            "waiting": tally.waiting,
            "sessions": tally.sessions,
            "total_users": len(api.guard.principals()),
            "total_acquires": tally.kinds[events.ACQUIRED],
            "total_releases": tally.kinds[events.RELEASED],
            "total_failures": tally.kinds[events.FAILED],
            "version": __version__,
        }
    )


# GET /metrics and GET /metrics/prometheus: the counts of this server.
#
# A scrape reads counters that exist anyway, so it costs the same with a million leases. It asks the store two
# questions, and waits for the answers no longer than SCRAPE_MS_MAX; scrapes at the same time share them.


class MetricsRoutes:
    """`document` makes OctoStore's JSON; None: there is Prometheus' text alone."""

    def __init__(self, api: Api, document: Callable[..., dict[str, Any]] | None) -> None:
        self._api = api
        self._document = document
        self._probe = SharedProbe(self._look, "dibs-scrape")
        api.on_close.append(self._probe.close)

    def table(self) -> Table:
        return routed({"metrics": self.metrics, "metrics-prometheus": self.prometheus})

    async def metrics(self, call: HttpRequest) -> Reply:
        self._admit(call, "metrics")
        media = format_for(call.headers.get(b"accept", b""))
        scrape = await self._scrape()
        if media is None and self._document is not None:
            return answer_document(self._document(scrape, self._api.guard, self._api.settings.contract))
        return _text(scrape, media or PLAIN_TYPE)

    async def prometheus(self, call: HttpRequest) -> Reply:
        self._admit(call, "metrics-prometheus")
        media = format_for(call.headers.get(b"accept", b""))
        return _text(await self._scrape(), media or PLAIN_TYPE)

    def _admit(self, call: HttpRequest, verb: str) -> None:
        if not self._api.metrics_are_open:
            self._api.caller_for(verb, call.headers)

    async def _scrape(self) -> Scrape:
        try:
            look = await self._probe.ask(SCRAPE_MS_MAX)
        except (TimeoutError, DibsError):
            look = None
        return Scrape(self._api.engine, process_numbers(), look, self._api.streams, self._api.certificate_ends_ms())

    def _look(self) -> StoreLook:
        store = self._api.engine.store
        found = store.read((META_KEY,))
        trouble = known_trouble(store, found.records[META_KEY].record)
        return StoreLook(store.newest_seq(), found.now_ms, self._api.guard.next_end_ms(), trouble is not None)


def metrics_routes(api: Api) -> Table:
    return MetricsRoutes(api, metrics_document()).table()


def _text(scrape: Scrape, media: str) -> Reply:
    body = exposition(METRICS, scrape, is_open=media == OPEN_TYPE)
    return Reply(200, content=body, headers={"content-type": media})
