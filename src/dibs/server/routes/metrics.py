"""GET /metrics and GET /metrics/prometheus: the counts of this server.

A scrape reads counters that exist anyway, so it costs the same with a million leases. It asks the store one question,
and waits for the answer no longer than SCRAPE_MS_MAX; scrapes at the same time share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.errors import DibsError
from dibs.base.ids import new_request_id
from dibs.core.limits import SCRAPE_MS_MAX
from dibs.server.http.response import HttpResponse, answer_document
from dibs.server.monitor.exposition import OPEN_TYPE, PLAIN_TYPE, exposition, format_for
from dibs.server.monitor.health import known_trouble
from dibs.server.monitor.metric_table import METRICS, Scrape, StoreLook
from dibs.server.monitor.probe import SharedProbe
from dibs.server.monitor.process_numbers import process_numbers
from dibs.server.routes.health import HEALTH
from dibs.wire.operations import JSON_TYPE, Operation
from dibs.wire.permissions import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table

_MEDIA = (PLAIN_TYPE.decode(), OPEN_TYPE.decode())
_TEXT = {"type": "string"}
_METRICS = Operation(
    "GET",
    "/metrics",
    "metrics",
    "counts of this server: Prometheus' text if `Accept` asks for it, else OctoStore's JSON",
    HEALTH,
    {200: {"type": "object"}},
    media=(JSON_TYPE, *_MEDIA),
)
_PROMETHEUS = Operation(
    "GET",
    "/metrics/prometheus",
    "metrics-prometheus",
    "the same, always as Prometheus' text",
    HEALTH,
    {200: _TEXT},
    media=_MEDIA,
)


class MetricsRoutes:
    """`document` makes OctoStore's JSON."""

    def __init__(self, api: Api, document: Callable[[Scrape], dict[str, Any]]) -> None:
        self._api = api
        self._document = document
        self._probe = SharedProbe(self._look, "dibs-scrape")
        api.on_close.append(self._probe.close)

    def table(self) -> Table:
        return [(_METRICS, self.metrics), (_PROMETHEUS, self.prometheus)]

    async def metrics(self, call: HttpRequest) -> HttpResponse:
        self._admit(call, _METRICS.id)
        media = format_for(call.headers.get(b"accept", b""))
        scrape = await self._scrape()
        return answer_document(self._document(scrape)) if media is None else _text(scrape, media)

    async def prometheus(self, call: HttpRequest) -> HttpResponse:
        self._admit(call, _PROMETHEUS.id)
        media = format_for(call.headers.get(b"accept", b""))
        return _text(await self._scrape(), media or PLAIN_TYPE)

    def _admit(self, call: HttpRequest, verb: str) -> None:
        if not self._api.metrics_are_open:
            require(self._api.caller_for(verb, call.headers), verb)

    async def _scrape(self) -> Scrape:
        try:
            look = await self._probe.ask(SCRAPE_MS_MAX)
        except (TimeoutError, DibsError):
            look = None
        return Scrape(
            self._api.engine, process_numbers(), look, self._api.streams, self._api.certificate_ends_ms()
        )

    def _look(self) -> StoreLook:
        store = self._api.engine.store
        return StoreLook(store.newest_seq(), self._api.next_token_end_ms(), known_trouble(store) is not None)


def metrics_routes(api: Api) -> Table:
    from dibs.compat.octostore.metrics import metrics_document

    def document(scrape: Scrape) -> dict[str, Any]:
        users = len(api.guard.principals())
        return metrics_document(scrape, users, only_its_own=api.settings.octostore is not None)

    return MetricsRoutes(api, document).table()


def _text(scrape: Scrape, media: bytes) -> HttpResponse:
    body = exposition(METRICS, scrape, is_open=media == OPEN_TYPE)
    return HttpResponse(200, body, new_request_id().encode(), kind=media)
