"""Whether the server and its store answer. Nobody needs a token for these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.wire.operations import SOME_ID, Operation, in_query
from dibs.wire.schemas import ID_PATTERN, document_schema

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.routes.table import Table
    from dibs.wire.operations import Schema

HEALTH = "Health"
_HEALTHY = document_schema(
    {
        "status": ("text", "`ok`; with status 503 `degraded`"),
        "dibs": ("text", "the version of dibs that the server runs. A server that does not say is not dibs"),
        "storage": ("text", "the store's name"),
        "schema": ("number?", "the version of its format; null if it has none"),
        "db_size_bytes": ("number", "how much room it takes"),
        "now": ("text", "the time of the store's clock"),
    }
)
_ALIVE = document_schema({"status": ("text", "`ok`: the process answers")})
_READY = document_schema({"status": ("text", "`ready`")})
_COUNTS = document_schema(
    {
        "status": ("text", "`ok`"),
        "uptime_seconds": ("number", "since the server started"),
        "active_locks": ("number", "live leases in the store"),
        "waiting": ("number", "waiters in the store"),
        "sessions": ("number", "open sessions in the store"),
        "total_users": ("number", "principals with a token that this server knows"),
        "total_acquires": ("number", "since the server started"),
        "total_releases": ("number", "since the server started"),
        "total_failures": ("number", "the same, of holds released as failed"),
        "version": ("text", "of dibs"),
    }
)
_PROVED = document_schema(
    {
        "proof": (
            "text?",
            "the keyed BLAKE2b digest (32 bytes) of `dibs proof`, a zero byte and `NONCE@HOST:PORT` under the same "
            "key; host and port are the server's end of the connection. null if the server does not have the token",
        )
    }
)
_STORE_CODES = ("upstream_unavailable",)
_READY_CODES = (*_STORE_CODES, "draining")
_PROOF = Operation(
    "GET",
    "/proof",
    "proof",
    "does the server have this token",
    HEALTH,
    {200: _PROVED},
    parameters=(
        in_query(
            "key",
            "Names the token: the keyed BLAKE2b digest (16 bytes) of `dibs key id`, under the SHA-256 of the token",
        ),
        in_query("nonce", "A fresh UUID", format="uuid", pattern=ID_PATTERN)._replace(
            required=True, example=SOME_ID
        ),
    ),
    is_open=True,
)


def _look(path: str, name: str, summary: str, answer: Schema, codes: tuple[str, ...] = ()) -> Operation:
    return Operation("GET", path, name, summary, HEALTH, {200: answer}, codes, is_open=True)


def health_routes(api: Api) -> Table:
    return [
        (_PROOF, lambda call: api.proof(call.query, call.server)),
        (
            _look("/health", "health", "does the store answer", _HEALTHY, _STORE_CODES),
            lambda call: api.health(),
        ),
        (
            _look("/ready", "ready", "are new claims taken here", _READY, _READY_CODES),
            lambda call: api.ready(),
        ),
        (_look("/readyz", "readyz", "the same", _READY, _READY_CODES), lambda call: api.ready()),
        (_look("/healthz", "healthz", "does the process answer", _ALIVE), lambda call: api.alive()),
        (_look("/status", "status", "counts", _COUNTS), lambda call: api.status()),
    ]
