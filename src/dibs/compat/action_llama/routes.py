"""The gateway: Action Llama's lock routes for its unmodified scripts, on the same store as everything else.

`/gateway/locks/...` follows their protocol (`protocol.py`), errors included, and takes the secret of a run instead of
a token. `/gateway/runs` is our own: an admin begins and ends runs there, with the documents of the rest of the server.
No log contains a secret: neither the server's log nor the access log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from dibs.base.errors import DibsError, InvalidInput
from dibs.base.generators import run_generator_async
from dibs.base.http1 import ConnectionLost, request_bytes
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.client.urls import ServerAddress, server_address
from dibs.compat import Schemas, with_list
from dibs.compat.action_llama import protocol as theirs
from dibs.compat.action_llama import runs
from dibs.compat.action_llama.protocol import Asking, Rejected, Said
from dibs.core import limits
from dibs.core.commands import Command, InspectSession, KeepSession
from dibs.core.limits import UPSTREAM_MS_MAX, UPSTREAM_REQUESTS_MAX
from dibs.core.outcomes import SessionUnknown
from dibs.core.session_outcomes import SessionState
from dibs.engine.queries import claimed, open_sessions
from dibs.sdk.async_transport import connected
from dibs.server.handlers import Api
from dibs.server.http.parse import decode_name, parse_json, parse_query
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import ClientGone, answer_document, answer_for_error, encode, encoded, public_reply
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Table
from dibs.wire.answer_fields import flag, number, text, texts
from dibs.wire.documents import expected, reply_to
from dibs.wire.operations import NAMESPACE, OTHERWISE, Operation, Parameter, Schema, by_id, in_path, in_query
from dibs.wire.requests import command_for, shape

Handler = Callable[[HttpRequest], Awaitable[Reply]]

# The gateway's operations, as declared for the router and the OpenAPI document.

PREFIX = "/gateway"
_TEXT: Schema = {"type": "string"}
_ASKED: Schema = {
    "type": "object",
    "properties": {
        "secret": {**_TEXT, "minLength": 1, "description": "The secret of a run."},
        "resourceKey": {**_TEXT, "format": "uri", "minLength": 1, "description": "A URI."},
        "ttl": {
            "type": ["integer", "null"],
            "minimum": limits.TTL_MS_MIN // 1000,
            "maximum": limits.TTL_MS_MAX // 1000,
            "description": "In seconds.",
        },
    },
    "required": ["secret", "resourceKey"],
    "additionalProperties": False,
}
_RUN_ASKED: Schema = {
    "type": "object",
    "properties": {
        "holder": {**_TEXT, "minLength": 1, "maxLength": limits.OWNER_CHARS_MAX, "description": "Its name."},
        "secret": {
            "type": ["string", "null"],
            "minLength": limits.RUN_SECRET_CHARS_MIN,
            "maxLength": limits.RUN_SECRET_CHARS_MAX,
            "pattern": "^[!-~]+$",
            "description": "Printable ASCII. Without it, a new one is made.",
        },
    },
    "required": ["holder"],
}
# What the fields of answers mean, wherever they are.
_FIELDS = Schemas(
    {
        "agentName": text("the agent of the run"),
        "ended": number("how many runs"),
        "error": text("their word for it"),
        "expiresAt": number("in milliseconds since 1970"),
        "expires_at": text("when it ends without a call"),
        "heldSince": number("in milliseconds since 1970"),
        "holder": text("whose it is"),
        "locks": texts("the names of the jobs that it holds"),
        "namespace": text("its namespace"),
        "ok": flag("whether it was done"),
        "reason": text("why"),
        "released": texts("the jobs that they held"),
        "resourceKey": text("the key"),
        "secret": text("the proof. Keep it to yourself"),
        "since": text("when it began"),
        "status": text("`ok`"),
    }
)
_RUN = ("holder", "namespace", "since", "expires_at", "locks")
_OWN = _FIELDS.of("resourceKey", "holder", "heldSince", "expiresAt")
_SECRET = "the-secret-of-a-run"
_ANSWERS: dict[str, Schema] = {
    "acquired": _FIELDS.of("ok", "resourceKey"),
    "released": _FIELDS.of("ok"),
    "kept": _FIELDS.of("ok", "expiresAt"),
    "own": {"type": "array", "items": _OWN},
    "locks": with_list("locks", _FIELDS.of("resourceKey", "holder", "heldSince", "agentName")),
    "well": _FIELDS.of("status"),
    "anything": {},
    "run": _FIELDS.of("secret", *_RUN),
    "runs": with_list("runs", _FIELDS.of(*_RUN)),
    "ended": _FIELDS.of("holder", "ended", "released"),
}
_EXAMPLE = {"secret": _SECRET, "resourceKey": "github://acme/app/issues/42"}
_OWN_SECRET = in_query("secret", "The secret of the run", minLength=1)._replace(required=True, example=_SECRET)
_SENT = in_path("name", "As their command sends it", "rerun")
_HOLDER = in_path("name", "The holder", "agent-1", minLength=1)
# Action Llama's protocol: the secret of a run takes the place of a token. Then what its own gateway answers.


def _of_a_run(
    method: str,
    path: str,
    verb: str,
    summary: str,
    answer: Schema,
    *,
    who: str = "a run",
    parameters: tuple[Parameter, ...] = (),
    request: Schema | None = None,
    example: Schema | None = None,
) -> Operation:
    return Operation(
        method,
        path,
        verb,
        summary,
        "Gateway",
        {200: answer},
        is_open=True,
        is_foreign=True,
        who=who,
        parameters=parameters,
        request=request,
        example=example,
    )


_THEIRS = by_id(
    _of_a_run(
        "POST",
        "/gateway/locks/acquire",
        "gateway-acquire",
        "acquire a lock",
        _ANSWERS["acquired"],
        request=_ASKED,
        example=_EXAMPLE,
    ),
    _of_a_run(
        "POST",
        "/gateway/locks/release",
        "gateway-release",
        "release a lock",
        _ANSWERS["released"],
        request=_ASKED,
        example=_EXAMPLE,
    ),
    _of_a_run(
        "POST",
        "/gateway/locks/heartbeat",
        "gateway-heartbeat",
        "keep a lock",
        _ANSWERS["kept"],
        request=_ASKED,
        example=_EXAMPLE,
    ),
    _of_a_run(
        "GET",
        "/gateway/locks/list",
        "gateway-list",
        "the locks of a run",
        _ANSWERS["own"],
        parameters=(_OWN_SECRET,),
    ),
    _of_a_run(
        "GET",
        "/gateway/locks/status",
        "locks-of-all",
        "all locks",
        _ANSWERS["locks"],
        parameters=NAMESPACE,
    ),
    _of_a_run(
        "GET",
        "/gateway/health",
        "gateway-health",
        "can locks be taken",
        _ANSWERS["well"],
        who="no token",
    ),
    _of_a_run(
        "POST",
        "/gateway/signals/{name}",
        "gateway-signals-of",
        "passed on to Action Llama's own gateway: al-rerun, al-return, al-status",
        _ANSWERS["anything"],
        parameters=(_SENT,),
        request=_ANSWERS["anything"],
    ),
    _of_a_run(
        "POST",
        "/gateway/calls",
        "gateway-calls",
        "passed on to Action Llama's own gateway: al-subagent",
        _ANSWERS["anything"],
        request=_ANSWERS["anything"],
    ),
    _of_a_run(
        "GET",
        "/gateway/calls/{name}",
        "gateway-calls-of",
        "passed on to Action Llama's own gateway: al-subagent-check, al-subagent-wait",
        _ANSWERS["anything"],
        parameters=(_SENT,),
    ),
    _of_a_run(
        "POST",
        "/gateway/shutdown",
        "gateway-shutdown",
        "passed on to Action Llama's own gateway: al-shutdown",
        _ANSWERS["anything"],
        request=_ANSWERS["anything"],
    ),
)
_REFUSED = _FIELDS.of("ok", "error", "reason", optional=("error",), title="gateway-refusal")
for _id, _each in _THEIRS.items():
    if _each.answers[200]:
        _THEIRS[_id] = _each._replace(answers={**_each.answers, OTHERWISE: _REFUSED})
_ALL = _THEIRS["locks-of-all"]  # which an operator asks
_THEIRS[_ALL.id] = _ALL._replace(is_open=False, who="")
_RUNS = by_id(
    Operation(
        "POST",
        "/gateway/runs",
        "run-open",
        "begin a run",
        "Gateway",
        {201: _ANSWERS["run"]},
        codes=("capacity_exceeded",),
        parameters=NAMESPACE,
        request=_RUN_ASKED,
        example={"holder": "agent-1"},
    ),
    Operation("GET", "/gateway/runs", "runs", "open runs", "Gateway", {200: _ANSWERS["runs"]}, parameters=NAMESPACE),
    Operation(
        "DELETE",
        "/gateway/runs/{name}",
        "run-end",
        "end all runs of a holder",
        "Gateway",
        {200: _ANSWERS["ended"]},
        codes=("not_found",),
        parameters=(_HOLDER, *NAMESPACE),
    ),
)


# Requests of Action Llama's commands that are not about locks: signals, calls between agents, shutdown.
#
# All its commands use one GATEWAY_URL. A server with --gateway-upstream forwards these requests to their gateway
# unchanged; a server without it refuses them. It forwards the secret too, because their gateway checks it.

NOT_FORWARDED = (
    "This gateway serves locks only. The operator of dibs can name Action Llama's own gateway, which answers this: "
    "dibs serve --gateway --gateway-upstream URL."
)

_STATUSES = range(200, 600)


class Upstream:
    """Their gateway at `url`. With None nothing can be forwarded. Belongs to one event loop."""

    def __init__(self, url: str | None) -> None:
        self._address = None if url is None else server_address(url)
        self._mark = f"1.1 dibs-{new_id()}"  # identifies a request that comes back to this server
        self._seats = asyncio.Semaphore(UPSTREAM_REQUESTS_MAX)
        self._closing = asyncio.Event()

    async def forward(self, method: str, path: str, call: HttpRequest) -> Reply:
        if self._address is None:
            raise Rejected("not served here", NOT_FORWARDED, 501)
        name = unquote_to_bytes(call.raw_name)
        if name in (b".", b"..") or b"/" in name or b"\\" in name:  # it could lead out of its place in the path
            raise Rejected("invalid name", "A name in the address is no step in a path.", 400)
        via = call.headers.get(b"via", b"").decode("latin-1")
        if self._mark in via:
            raise Rejected("gateway loop", "--gateway-upstream leads back to this server.", 508)
        body = await call.rest()
        target = self._address.path + path
        if call.query:
            target += f"?{call.query.decode('latin-1')}"
        kind = call.headers.get(b"content-type", b"application/json").decode("latin-1")
        headers = {"Host": self._address.authority, "Connection": "close"}
        headers["Via"] = f"{via}, {self._mark}" if via else self._mark
        request = request_bytes(method, target, headers, body if method == "POST" else None, kind)
        async with self._seats:
            if call.connection.is_gone:  # the client left while the request waited for a seat
                raise ClientGone
            raw = await self._asked(self._address, request)
        return Reply(raw.status, content=raw.content)

    def close(self) -> None:
        """Answer every waiting request that this server is stopping."""
        self._closing.set()

    async def _asked(self, address: ServerAddress, request: bytes) -> Reply:
        """Their gateway may never answer, and a stopping server must not wait."""
        asking, closing = [asyncio.ensure_future(each) for each in (_exchange(address, request), self._closing.wait())]
        try:
            await asyncio.wait((asking, closing), timeout=UPSTREAM_MS_MAX / 1000, return_when=asyncio.FIRST_COMPLETED)
            if closing.done() and not asking.done():
                raise Rejected("gateway unreachable", "This server is stopping. Ask again in a moment.", 503)
            raw = await asking if asking.done() else None
            if isinstance(raw, Reply) and raw.status in _STATUSES:
                return raw
        except (ConnectionLost, DibsError):
            pass
        finally:
            asking.cancel()
            closing.cancel()
        details = "Action Llama's gateway did not answer. Locks are served here as before."
        raise Rejected("gateway unreachable", details, 502)


async def _exchange(address: ServerAddress, request: bytes) -> Reply:
    connection = await connected(address)
    try:
        return await connection.exchange(request)
    finally:
        connection.close()


class Gateway:
    def __init__(self, api: Api, ttl_ms: int, upstream_url: str | None = None) -> None:
        """`upstream_url` names Action Llama's own gateway, which answers requests that are not about locks."""
        self._api = api
        self._upstream = Upstream(upstream_url)
        self._batcher = api.engine.batcher
        self._ttl_seconds = ttl_ms // 1000

    def close(self) -> None:
        self._upstream.close()

    def routes(self) -> Table:
        """Every operation with its handler. A GATEWAY_URL that ends in a slash makes paths with two."""
        handlers: dict[str, Callable[[HttpRequest], Awaitable[Said | Reply]]] = {
            **{f"gateway-{verb}": partial(self._of_lock, verb) for verb in ("acquire", "release", "heartbeat")},
            "gateway-list": self._list,
            "locks-of-all": self._status,
            "gateway-health": self._health,
        }
        foreign: Table = []
        for verb, each in _THEIRS.items():
            handler = _in_their_words(handlers.get(verb) or partial(self._pass_on, each))
            foreign.append((each, handler))
            foreign.append((each._replace(path=each.path.replace(PREFIX, f"{PREFIX}/", 1), is_listed=False), handler))
        return [*routed({verb: partial(self._of_runs, verb) for verb in _RUNS}, _RUNS), *foreign]

    async def _pass_on(self, operation: Operation, call: HttpRequest) -> Reply:
        path = operation.path.removeprefix(PREFIX).replace("{name}", call.raw_name.decode("latin-1"))
        return await self._upstream.forward(operation.method, path, call)

    async def _health(self, call: HttpRequest) -> Said:
        """Health, which their agents check before they begin. This one also checks that locks can be acquired."""
        answer = await self._api.ready()
        return (200, {"status": "ok"}) if answer.status == 200 else (answer.status, {"status": "unavailable"})

    # Locks

    async def _of_lock(self, verb: str, call: HttpRequest) -> Said:
        run, key, ttl_seconds = await self._asked(call)
        proof = {"session_id": run.session}
        if verb == "release":
            # A release first tests its proof with a heartbeat. The history must not show that heartbeat.
            run = run.replace(caller=run.caller.replace(audited=False))
            return await self._follow(run, theirs.release(key, proof))
        if verb == "heartbeat":
            return await self._follow(run, theirs.heartbeat(key, proof, ttl_seconds))
        self._api.check_open()
        run = run.replace(caller=self._api.counted(run.caller))
        document = {**proof, "owner": run.holder, "ttl_seconds": ttl_seconds or self._ttl_seconds}
        return theirs.acquired(key, await self._ask(run, "acquire", key, document))

    async def _list(self, call: HttpRequest) -> Said:
        secret = parse_query(call.query).get("secret")
        if not secret:
            raise Rejected("missing secret")
        state = await self._inspect(secret)
        await self._run(state)
        call.connection.show_standing()
        holds = [(hold.name, hold.holder) for hold in state.holds]
        entries = [theirs.held_entry(*hold) | {"expiresAt": hold[1].expires_ms} for hold in holds]
        return 200, entries  # type: ignore[return-value]  # theirs is a bare list

    async def _status(self, call: HttpRequest) -> Said:
        ns, _ = self._api.reader("locks-of-all", call.query, call.headers)
        return 200, await self._api.in_reader(lambda: {"locks": self._all_locks(ns)})

    def _all_locks(self, ns: str) -> list[Document]:
        entries: list[Document] = []
        after: str | None = ""
        while after is not None:
            page = claimed(self._api.engine.store, ns, after=after)
            for name, holder in [(lock.name, holder) for lock in page.locks for holder in lock.holders]:
                # The name of a run is AGENT-ID.
                agent = holder.owner.rpartition("-")[0] if runs.is_run(holder.principal) else ""
                named = {"resourceKey": name, "agentName": agent or holder.owner}
                entries.append(named | theirs.held_entry(name, holder))
            after = page.next_after
        return entries

    async def _asked(self, call: HttpRequest) -> tuple[runs.Run, str, int | None]:
        """The run that asks, the key and the TTL. The checks are in the order of the contract."""
        body = await call.rest()
        try:
            document = parse_json(body)
        except InvalidInput as error:
            raise Rejected("invalid JSON body", error.details) from None
        secret, key, ttl_seconds = theirs.read_request(document)
        run = await self._run(await self._inspect(secret))
        call.connection.show_standing()
        return run, key, ttl_seconds

    async def _inspect(self, secret: str) -> Any:
        # No secret is that long, so there is no need to digest a megabyte.
        session = runs.session_of(secret[: limits.RUN_SECRET_CHARS_MAX + 1])
        found = await self._batcher.submit(InspectSession(session=session, principal=None))
        return expected(found, SessionState, SessionUnknown)

    async def _run(self, state: Any) -> runs.Run:
        run = runs.run_of(state)
        if run is None:
            raise Rejected("invalid secret", "No run has this secret, or it is over.", 403)
        if run.stale:
            await self._batcher.submit(KeepSession(session=run.session, principal=run.caller.principal))
        return run

    async def _follow(self, run: runs.Run, asking: Asking) -> Said:
        return await run_generator_async(asking, lambda question: self._ask(run, *question))

    async def _ask(self, run: runs.Run, verb: str, key: str, document: Document) -> Reply:
        try:
            command = command_for(verb, run.namespace, key, shape(verb, document), run.caller)
            return reply_to(verb, await self._batcher.submit(command))
        except DibsError as error:
            return public_reply(error)

    # Runs

    async def _of_runs(self, verb: str, call: HttpRequest) -> Reply:
        document = await call.json(self._api.caller_of) if verb == "run-open" else None
        caller = self._api.caller_for(verb, call.headers)
        ns = self._api.namespace_of(caller, parse_query(call.query), call.headers)
        holder = decode_name(call.raw_name) if verb == "run-end" else ""
        return encoded(await run_generator_async(runs.answer(verb, ns, holder, document, caller), self._look_or_do))

    async def _look_or_do(self, asked: str | Command) -> Any:
        if isinstance(asked, str):
            return await self._api.in_reader(lambda: open_sessions(self._api.engine.store, asked))
        return await self._batcher.submit(asked)


def _in_their_words(handler: Callable[[HttpRequest], Awaitable[Said | Reply]]) -> Handler:
    """Answer every error in the form that their gateway uses: `ok`, `error`, `reason`."""

    async def handle(call: HttpRequest) -> Reply:
        try:
            answer = await handler(call)
            return answer if isinstance(answer, Reply) else answer_document(answer[1], answer[0])
        except Rejected as rejected:
            return answer_document(rejected.body, rejected.status)
        except ClientGone:
            raise
        except Exception as error:
            refused = answer_for_error(error)
            word = "Unauthorized" if refused.status == 401 else getattr(error, "code", "internal_error")
            reason = getattr(
                error, "details", f"The request failed; see the server's log ({refused.headers['x-request-id']})."
            )
            refused.content = encode(theirs.refusal(word, reason))
            return refused

    return handle


def open_gateway(api: Api) -> Gateway:
    """The gateway of a server, by its settings: `server/plugins.py` names this function."""
    return Gateway(api, api.settings.rlock_ttl_ms, api.settings.gateway_upstream)
