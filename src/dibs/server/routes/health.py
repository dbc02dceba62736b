"""The routes that say whether the server and its store answer, for everybody; and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dibs._version import __version__
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.ids import is_id
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.core import events
from dibs.core.limits import SCRAPE_MS_MAX
from dibs.core.records import META_KEY
from dibs.server.handlers import Api
from dibs.server.http.parse import parse_query
from dibs.server.http.request import PEER, HttpRequest
from dibs.server.http.response import answer_document
from dibs.server.monitor.exposition import PLAIN_TYPE, exposition, format_for
from dibs.server.monitor.health import SharedProbe, known_trouble
from dibs.server.monitor.metric_table import Scrape, StoreLook
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Table
from dibs.wire.parts import challenge_text


def health_routes(api: Api) -> Table:
    return routed(
        {
            "proof": lambda call: _proved(api, call),
            "health": lambda call: api.health(),
            "ready": lambda call: api.ready(),
            "readyz": lambda call: api.ready(),
            "healthz": lambda call: answer_document({"status": "ok"}),
            "status": lambda call: _counts(api, call),
        }
    )


def _proved(api: Api, call: HttpRequest) -> Reply:
    """Prove to a client that this server knows the client's token, before the client sends it."""
    asked = parse_query(call.query)
    nonce, server = asked.get("nonce", ""), call.server
    if not is_id(nonce) or server is None:
        raise InvalidInput("nonce is a fresh UUID, asked over TCP.")
    return answer_document({"proof": api.guard.proof(asked.get("key", ""), challenge_text(nonce, server))})


def _counts(api: Api, call: HttpRequest) -> Reply:
    tally = api.engine.tally
    is_known = api.guard.knows(call.head.digest, call.headers.get(PEER))
    return answer_document(
        {
            "status": "ok",
            "uptime_seconds": api.engine.uptime_ms() // 1000,
            "active_locks": tally.live,
            "waiting": tally.waiting,
            "sessions": tally.sessions,
            **({"total_users": len(api.guard.principals())} if is_known else {}),
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


def metrics_routes(api: Api, document: Callable[..., Document] | None) -> Table:
    """`document` makes OctoStore's JSON; None: there is Prometheus' text alone."""
    probe = SharedProbe(lambda: _look(api), "dibs-scrape")
    api.on_close.append(probe.close)

    async def answer(verb: str, call: HttpRequest) -> Reply:
        if not api.metrics_are_open:
            api.caller_for(verb, call.headers)
        media = format_for(call.headers.get(b"accept", b""))
        try:
            look = await probe.ask(SCRAPE_MS_MAX)
        except (TimeoutError, DibsError):
            look = None
        scrape = Scrape(api.engine, look, api.streams, api.certificate_ends_ms())
        if verb == "metrics" and media is None and document is not None:
            return answer_document(document(scrape, api.guard, api.settings.contract))
        media = media or PLAIN_TYPE
        return Reply(200, content=exposition(scrape, media), headers={"content-type": media})

    return routed({verb: partial(answer, verb) for verb in ("metrics", "metrics-prometheus")})


def _look(api: Api) -> StoreLook:
    store = api.engine.store
    found = store.read((META_KEY,))
    trouble = known_trouble(store, found.records[META_KEY].record)
    return StoreLook(store.newest_seq(), found.now_ms, api.guard.next_end_ms(), trouble is not None)
