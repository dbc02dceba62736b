"""The gateway: Action Llama's lock routes for its unmodified scripts, on the same store as everything else.

`/gateway/locks/...` follows their protocol (`protocol.py`), errors included, and takes the secret of a run instead of
a token. `/gateway/runs` is our own: an admin begins and ends runs there, with the documents of the rest of the server.
No log contains a secret: neither the server's log nor the access log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dibs.base.errors import DibsError, InvalidInput
from dibs.base.generators import run_generator_async
from dibs.base.reply import Reply
from dibs.compat.action_llama import protocol as theirs
from dibs.compat.action_llama import upstream
from dibs.compat.action_llama.runs import (
    ended_document,
    is_run,
    open_run_command,
    opened_document,
    principal_of,
    run_document,
    run_of,
    session_of,
)
from dibs.compat.action_llama.upstream import Upstream
from dibs.core.commands import EndSession, InspectSession, KeepSession
from dibs.core.limits import (
    OWNER_CHARS_MAX,
    RUN_SECRET_CHARS_MAX,
    RUN_SECRET_CHARS_MIN,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from dibs.engine.queries import claimed, open_sessions
from dibs.server.http.parse import decode_name, parse_json, parse_query
from dibs.server.http.response import ClientGone, answer_document, answer_for_error, encode, encoded
from dibs.wire.documents import reply_for_error, reply_to
from dibs.wire.operations import NAMESPACE, Operation, document_schema, in_path, in_query
from dibs.wire.requests import command_for, shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from dibs.base.jsontext import Document
    from dibs.compat.action_llama.protocol import Asking, Said
    from dibs.compat.action_llama.runs import Run
    from dibs.core.identity import Caller
    from dibs.core.lease_outcomes import SessionState
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table
    from dibs.wire.operations import Answer, Schema

    Handler = Callable[[HttpRequest], Awaitable[Reply]]

# The gateway's operations, as declared for the router and the OpenAPI document.

PREFIX = "/gateway"
SECTION = "Gateway"
_TEXT: Schema = {"type": "string"}
_ASKED: Schema = {
    "type": "object",
    "properties": {
        "secret": {**_TEXT, "minLength": 1, "description": "The secret of a run."},
        "resourceKey": {**_TEXT, "format": "uri", "minLength": 1, "description": "A URI."},
        "ttl": {
            "type": ["integer", "null"],
            "minimum": TTL_MS_MIN // 1000,
            "maximum": TTL_MS_MAX // 1000,
            "description": "In seconds.",
        },
    },
    "required": ["secret", "resourceKey"],
    "additionalProperties": False,
}
_MOMENT = ("number", "in milliseconds since 1970")
# What the fields of answers mean, wherever they are. "-": it may be left out.
_MEANINGS = {
    "agentName": ("text", "the agent of the run"),
    "ended": ("number", "how many runs"),
    "error": ("text-", "their word for it"),
    "expiresAt": _MOMENT,
    "expires_at": ("text", "when it ends without a call"),
    "heldSince": _MOMENT,
    "holder": ("text", "whose it is"),
    "locks": ("texts", "the names of the jobs that it holds"),
    "namespace": ("text", "its namespace"),
    "ok": ("flag", "whether it was done"),
    "reason": ("text", "why"),
    "released": ("texts", "the jobs that they held"),
    "resourceKey": ("text", "the key"),
    "secret": ("text", "the proof. Keep it to yourself"),
    "since": ("text", "when it began"),
    "status": ("text", "`ok`"),
}


def _schema(fields: str) -> Schema:
    return document_schema({field: _MEANINGS[field] for field in fields.split()})


def _list_of(fields: str) -> Schema:
    return {"type": "array", "items": _schema(fields)}


def _with_list(name: str, fields: str) -> Schema:
    return {"type": "object", "properties": {name: _list_of(fields)}, "required": [name]}


_REFUSED = _schema("ok error reason")
_RUN = "holder namespace since expires_at locks"
_SECRET = "the-secret-of-a-run"
_EXAMPLE = {"secret": _SECRET, "resourceKey": "github://acme/app/issues/42"}
_STATUSES = (400, 403, 404, 409, 413, 429, 500, 503)


def _theirs(method: str, path: str, name: str, summary: str, answer: Answer, **more: Any) -> Operation:
    """An operation of Action Llama's protocol: the secret of a run takes the place of a token."""
    answers: dict[int, Answer] = {200: answer, **dict.fromkeys(_STATUSES, _REFUSED)}
    usual = {"is_open": True, "is_foreign": True, "who": "a run"}
    return Operation(method, PREFIX + path, name, summary, SECTION, answers, **{**usual, **more})


_BODY = {"request": _ASKED, "example": _EXAMPLE}
ACQUIRE = _theirs("POST", "/locks/acquire", "gateway-acquire", "acquire a lock", _schema("ok resourceKey"), **_BODY)
RELEASE = _theirs("POST", "/locks/release", "gateway-release", "release a lock", _schema("ok"), **_BODY)
HEARTBEAT = _theirs("POST", "/locks/heartbeat", "gateway-heartbeat", "keep a lock", _schema("ok expiresAt"), **_BODY)
_OWN_SECRET = in_query("secret", "The secret of the run", minLength=1)._replace(required=True, example=_SECRET)
OWN_LOCKS = _theirs(
    "GET",
    "/locks/list",
    "gateway-list",
    "the locks of a run",
    _list_of("resourceKey holder heldSince expiresAt"),
    parameters=(_OWN_SECRET,),
)
_ALL = _with_list("locks", "resourceKey holder heldSince agentName")
ALL_LOCKS = _theirs(
    "GET", "/locks/status", "locks-of-all", "all locks", _ALL, parameters=NAMESPACE, is_open=False, who=""
)
ALL_LOCKS = ALL_LOCKS._replace(answers={**ALL_LOCKS.answers, 401: _REFUSED})
HEALTH = _theirs("GET", "/health", "gateway-health", "can locks be taken", _schema("status"), who="no token")
_RUN_ASKED: Schema = {
    "type": "object",
    "properties": {
        "holder": {**_TEXT, "minLength": 1, "maxLength": OWNER_CHARS_MAX, "description": "Its name."},
        "secret": {
            "type": ["string", "null"],
            "minLength": RUN_SECRET_CHARS_MIN,
            "maxLength": RUN_SECRET_CHARS_MAX,
            "pattern": "^[!-~]+$",
            "description": "Printable ASCII. Without it, a new one is made.",
        },
    },
    "required": ["holder"],
}
_PATH = f"{PREFIX}/runs"
OPEN_RUN = Operation(
    "POST",
    _PATH,
    "run-open",
    "begin a run",
    SECTION,
    {201: _schema(f"secret {_RUN}")},
    ("capacity_exceeded",),
    NAMESPACE,
    request=_RUN_ASKED,
    example={"holder": "agent-1"},
)
RUNS = Operation("GET", _PATH, "runs", "open runs", SECTION, {200: _with_list("runs", _RUN)}, (), NAMESPACE)
END_RUNS = Operation(
    "DELETE",
    f"{_PATH}/{{name}}",
    "run-end",
    "end all runs of a holder",
    SECTION,
    {200: _schema("holder ended released")},
    ("not_found",),
    (in_path("name", "The holder", "agent-1", minLength=1), *NAMESPACE),
)


def passed_on(method: str, path: str, what: str) -> Operation:
    """An operation that their own gateway answers."""
    name = path.strip("/").replace("/{name}", "-of")
    named = (in_path("name", "As their command sends it", "rerun"),) if "{name}" in path else ()
    summary = f"passed on to Action Llama's own gateway: {what}"
    body: Schema | None = {} if method == "POST" else None
    operation = _theirs(method, path, f"gateway-{name}", summary, {}, parameters=named, request=body)
    return operation._replace(answers={200: {}})


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
        locks: list[tuple[Operation, Callable[[HttpRequest], Awaitable[Said]]]] = [
            (ACQUIRE, self._acquire),
            (RELEASE, self._release),
            (HEARTBEAT, self._heartbeat),
            (OWN_LOCKS, self._list),
            (ALL_LOCKS, self._status),
            (HEALTH, self._health),
        ]
        foreign: Table = [(operation, _in_their_words(handler)) for operation, handler in locks]
        foreign += [
            (passed_on(method, path, what), _in_their_words(self._passing_on(method, path)))
            for method, path, what in upstream.ROUTES
        ]
        return [
            (OPEN_RUN, self.open_run),
            (RUNS, self.runs),
            (END_RUNS, self.end_runs),
            *foreign,
            *[
                (each._replace(path=each.path.replace(PREFIX, f"{PREFIX}/", 1), is_listed=False), handler)
                for each, handler in foreign
            ],
        ]

    def _passing_on(self, method: str, path: str) -> Handler:
        async def handle(call: HttpRequest) -> Reply:
            name = call.raw_name.decode("latin-1")
            return await self._upstream.forward(method, path.replace("{name}", name), call)

        return handle

    async def _health(self, call: HttpRequest) -> Said:
        """Health, which their agents check before they begin. This one also checks that locks can be acquired."""
        answer = await self._api.ready()
        return (200, {"status": "ok"}) if answer.status == 200 else (answer.status, {"status": "unavailable"})

    # Locks

    async def _acquire(self, call: HttpRequest) -> Said:
        run, key, ttl_seconds = await self._asked(call)
        self._api.check_open()
        run = run.replace(caller=self._api.counted(run.caller))
        document = {
            "session_id": run.session,
            "owner": run.holder,
            "ttl_seconds": ttl_seconds or self._ttl_seconds,
        }
        return theirs.acquired(key, await self._ask(run, "acquire", key, document))

    async def _release(self, call: HttpRequest) -> Said:
        run, key, _ = await self._asked(call)
        # A release first tests its proof with a heartbeat. The history must not show that heartbeat.
        run = run.replace(caller=run.caller.replace(audited=False))
        return await self._follow(run, theirs.release(key, {"session_id": run.session}))

    async def _heartbeat(self, call: HttpRequest) -> Said:
        run, key, ttl_seconds = await self._asked(call)
        return await self._follow(run, theirs.heartbeat(key, {"session_id": run.session}, ttl_seconds))

    async def _list(self, call: HttpRequest) -> Said:
        secret = parse_query(call.query).get("secret")
        if not secret:
            raise theirs.Rejected("missing secret")
        state = await self._inspect(secret)
        await self._run(state)
        entries = [theirs.own_entry(hold.name, hold.holder) for hold in state.holds]
        return 200, entries  # type: ignore[return-value]  # theirs is a bare list

    async def _status(self, call: HttpRequest) -> Said:
        ns, _ = self._api.reader("locks-of-all", call.query, call.headers)
        return 200, await self._api.in_reader(lambda: {"locks": self._all_locks(ns)})

    def _all_locks(self, ns: str) -> list[Document]:
        entries: list[Document] = []
        after: str | None = ""
        while after is not None:
            page = claimed(self._api.engine.store, ns, after=after)
            for lock in page.locks:
                for holder in lock.holders:
                    entries.append(theirs.status_entry(lock.name, holder, by_run=is_run(holder.principal)))
            after = page.next_after
        return entries

    async def _asked(self, call: HttpRequest) -> tuple[Run, str, int | None]:
        """The run that asks, the key and the TTL. The checks are in the order of the contract."""
        body = await call.rest()
        try:
            document = parse_json(body)
        except InvalidInput as error:
            raise theirs.Rejected("invalid JSON body", error.details) from None
        secret, key, ttl_seconds = theirs.read_request(document)
        return await self._run(await self._inspect(secret)), key, ttl_seconds

    async def _inspect(self, secret: str) -> Any:
        # No secret is that long, so there is no need to digest a megabyte.
        session = session_of(secret[: RUN_SECRET_CHARS_MAX + 1])
        return await self._batcher.submit(InspectSession(session=session, principal=None))

    async def _run(self, state: Any) -> Run:
        run = run_of(state)
        if run is None:
            raise theirs.Rejected("invalid secret", "No run has this secret, or it is over.", 403)
        if run.stale:
            await self._batcher.submit(KeepSession(session=run.session, principal=run.caller.principal))
        return run

    async def _follow(self, run: Run, asking: Asking) -> Said:
        return await run_generator_async(asking, lambda question: self._ask(run, *question))

    async def _ask(self, run: Run, verb: str, key: str, document: Document) -> Reply:
        try:
            command = command_for(verb, run.namespace, key, shape(verb, document), run.caller)
            return reply_to(verb, await self._batcher.submit(command))
        except DibsError as error:
            return reply_for_error(error)

    # Runs

    async def open_run(self, call: HttpRequest) -> Reply:
        document = await call.json(self._api.caller_of)
        caller, ns = self._operator("run-open", call)
        command, secret = open_run_command(ns, document, caller)
        return answer_document(opened_document(command, await self._batcher.submit(command), secret), 201)

    async def runs(self, call: HttpRequest) -> Reply:
        _, ns = self._operator("runs", call)
        return answer_document({"runs": [run_document(state) for state in await self._runs_of(ns)]})

    async def end_runs(self, call: HttpRequest) -> Reply:
        _, ns = self._operator("run-end", call)
        holder = decode_name(call.raw_name)
        found = [state for state in await self._runs_of(ns) if state.session.owner == holder]
        principal = principal_of(ns)
        ends = [EndSession(session=state.session.id, principal=principal) for state in found]
        await asyncio.gather(*[self._batcher.submit(end) for end in ends])
        reply = ended_document(ns, holder, found)
        return encoded(reply)

    def _operator(self, verb: str, call: HttpRequest) -> tuple[Caller, str]:
        caller = self._api.caller_for(verb, call.headers)
        return caller, self._api.namespace_of(caller, parse_query(call.query), call.headers)

    async def _runs_of(self, ns: str) -> list[SessionState]:
        return await self._api.in_reader(lambda: open_sessions(self._api.engine.store, principal_of(ns)))


def _in_their_words(handler: Callable[[HttpRequest], Awaitable[Said | Reply]]) -> Handler:
    """Answer every error in the form that their gateway uses: `ok`, `error`, `reason`."""

    async def handle(call: HttpRequest) -> Reply:
        try:
            answer = await handler(call)
            return answer if isinstance(answer, Reply) else answer_document(answer[1], answer[0])
        except theirs.Rejected as rejected:
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
    """The gateway of a server, by its settings: `server/annexes.py` names this function."""
    return Gateway(api, api.settings.rlock_ttl_ms, api.settings.gateway_upstream)
