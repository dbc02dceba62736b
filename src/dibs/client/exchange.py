"""One question and its answer, from whichever server answers. A flow without I/O: it yields attempts.

Transports carry attempts out, in a thread or on an event loop. This decides what comes next: the same server again when
the connection broke, another one when a server is away, hangs, drains or has lost its store, and when to give up.

A lost reply is not lost ownership. What may be asked twice without doing it twice (`requests.py`) is asked again,
unchanged. What may not (a break could hit the next owner) goes to another server only if nothing was sent, or if the
server said that it did nothing; else its outcome is not known, and the caller is told so.
"""

from __future__ import annotations

from dibs.base.cheap import Generator
from dibs.base.clock import steady_ms
from dibs.base.errors import FATE_UNKNOWN, NOTHING_HERE, BadReply, DibsError, ServerUnreachable
from dibs.base.http1 import ConnectionLost
from dibs.base.jsontext import Document, decode
from dibs.client.connection import CLOSED, DO_NOT_BEGIN, NotConnected, TimedOut
from dibs.client.requests import ROW_FIELDS, VERBS, RequestBuilder, is_repeatable, method_of, waits_ms, within
from dibs.client.servers import PATIENCE_MS, Servers, moved_away
from dibs.client.transport import Ask
from dibs.client.urls import ServerAddress
from dibs.wire.codes import NOT_NOW, kind_of, says_no
from dibs.wire.documents import Reply
from dibs.wire.fields import REPLY_KINDS

Failure = ServerUnreachable | ConnectionLost
Result = Reply | Failure

# Checks that a reply is from dibs. Pure.
#
# A reply that lacks a field, or has one of another type, is from another server or from another version of dibs. It is
# refused here, so that no program gets a wrong value.

UNKNOWN_TYPE = 415
ALL = "acquire-all"
_CLAIMS = ("acquire", "acquire-any", ALL)
_OWN_FIELDS = {"inspect": "owner", "list": "next"}  # a document without it is of another program's server

# The least that the reply to a claim has, by its status; and so a no to another verb (`STATUSES_OF_NO`).
CLAIM_REPLIES = {
    "acquired": ("name", "lease_id", "fencing_token", "owner", "expires_at", "remaining_ms", "renew_after_ms"),
    "held": ("name", "owner", "remaining_ms"),
    "queued": ("name", "ticket", "position", "owner", "remaining_ms", "retry_after_ms"),
    "done": ("name", "owner", "done_ms_ago", "retry_after_ms"),
    "delayed": ("name", "retry_after_ms"),
    "closed": ("name", "closed", "retry_after_ms"),
    "parked": ("name", "failures"),
    "superseded": ("name", "group"),
}
# A claim of several has these in another form.
SEVERAL_REPLIES = {
    **{(verb, status): ("refused",) for verb in _CLAIMS[1:] for status in ("held", "parked", "done")},
    (ALL, "acquired"): ("leases", "owner", "remaining_ms", "renew_after_ms"),
}
PREVIOUS_FIELDS = frozenset(("owner", "how", "at", "fencing_token"))
_TYPES: dict[str, type] = {"text": str, "flag": bool, "list": list, "object": dict}
# Those of answers that are declared with their routes beside the others. What is not listed is text.
_KINDS = {
    **REPLY_KINDS,
    **dict.fromkeys(("webhooks", "deliveries", "runs", "released"), "list"),
    **dict.fromkeys(("took_ms", "ended"), "number"),
}


def is_of_kind(kind: str, value: object) -> bool:
    if kind == "number":
        return type(value) is int and value >= 0  # True is not a number here
    return isinstance(value, _TYPES[kind])


def checked_reply(verb: str, reply: Reply, address: ServerAddress) -> Reply:
    """The same, with its document. Raises BadReply."""
    body = document_of(reply, address)
    if reply.status == UNKNOWN_TYPE and "x-dibs-store" in reply.headers:
        raise BadReply(
            f"{address.url} serves OctoStore's rules (--octostore); nothing was done there. Ask a server without that "
            "flag, on the same store if you like."
        )
    if reply.status == UNKNOWN_TYPE:
        raise BadReply(f"{address.url} is not a dibs server; nothing was done there. Is the address right?")
    status = body.get("status") if body is not None else None
    own = _OWN_FIELDS.get(verb)
    if body is not None and reply.status < 300 and own is not None and own not in body:
        from dibs.base.plugins import PARTS, plugin

        completed = plugin(PARTS, "octostore-answers")
        body = body if completed is None else completed(verb, body)
    reply.body = body
    said_no = says_no(verb, status)
    if reply.status < 300 or said_no:
        wanted = VERBS[verb][2] if verb in VERBS else ()
        if verb in _CLAIMS:
            wanted = SEVERAL_REPLIES.get((verb, str(status))) or CLAIM_REPLIES.get(str(status), ("a known status",))
            if body is not None and "leases" in body:
                wanted = SEVERAL_REPLIES[ALL, "acquired"]
        elif said_no:
            wanted = CLAIM_REPLIES.get(str(status), wanted)
        if not wanted or (body is not None and _has(body, wanted)):
            return reply
        raise BadReply(f"{address.url} answered with JSON that is not from dibs, or from another version of it.")
    if body is None or not isinstance(body.get("code"), str):
        raise _not_dibs(reply, address)
    if reply.status == 404 and str(body.get("details")).startswith(NOTHING_HERE):  # no route, so no job was meant
        path = f" below {address.path}: leave the path out" if address.path else ": its dibs may be too old for this"
        raise BadReply(f"{address.url} answers, but there is nothing{path}.")
    after = reply.headers.get("retry-after", "")
    if after.isdecimal() and len(after) < 7:
        body.setdefault("retry_after_ms", int(after) * 1000)
    return reply


def _has(body: Document, wanted: tuple[str, ...]) -> bool:
    """Tell whether all of `wanted` are there with the right types. Only a lease may have none of them null."""
    sure = "lease_id" in wanted or "session_id" in wanted
    for field in wanted:
        value = body.get(field)
        if value is None:
            if sure or field not in body:
                return False
            continue
        if not is_of_kind(_KINDS.get(field, "text"), value):
            return False
        if field in ROW_FIELDS and not all(isinstance(row, dict) and _has(row, ROW_FIELDS[field]) for row in value):
            return False
    attempt, previous, skipped = body.get("attempt"), body.get("previous"), body.get("skipped")
    if previous is not None and not (isinstance(previous, dict) and previous.keys() >= PREVIOUS_FIELDS):
        return False
    if not sure:
        return True
    return (attempt is None or is_of_kind("number", attempt)) and (skipped is None or is_of_kind("list", skipped))


def document_of(reply: Reply, address: ServerAddress) -> Document | None:
    if not reply.content:
        if reply.status < 300:
            return None
        raise _not_dibs(reply, address)
    try:
        document = decode(reply.content.decode())
    except (ValueError, RecursionError):
        raise _not_dibs(reply, address) from None
    if isinstance(document, list):
        return {"webhooks": document}  # the only list without a name, as OctoStore has it
    if document is not None and not isinstance(document, dict):
        raise _not_dibs(reply, address)
    return document


def _not_dibs(reply: Reply, address: ServerAddress) -> DibsError:
    if 300 <= reply.status < 400 and "location" in reply.headers:
        where = reply.headers["location"][:200]
        return BadReply(
            f"{address.url} redirects to {where!r}. Redirects are not followed; give that as DIBS_URL or --url."
        )
    if reply.status in (502, 503, 504):
        return ServerUnreachable(
            f"Something before {address.url} answered {reply.status}: the server behind it is not up. {DO_NOT_BEGIN}"
        )
    return BadReply(f"{address.url} answered {reply.status}, but not as dibs does. {DO_NOT_BEGIN}")


RETRIES_MAX = 2
SHORT_WAIT_MS = 1_000  # with the second server: the first took long enough


def ask_servers(
    servers: Servers, builder: RequestBuilder, asked: Ask, timeout_ms: int
) -> Generator[Attempts, Result, Reply]:
    """The reply. Raises DibsError when nobody answered, or with something that is not dibs."""
    if not servers.is_one:
        asked = within(asked, builder.slice_ms)
    now_ms = steady_ms()
    until_ms = now_ms + timeout_ms + waits_ms(asked)
    waiting = servers.order(now_ms)
    attempts = Attempts(asked, waiting[0], alone=servers.is_one)
    while waiting:
        address = attempts.address = waiting.pop(0)
        left_ms = max(1, until_ms - now_ms)
        if waiting:
            line_ms = waits_ms(asked)
            spare_ms = max(0, left_ms - line_ms) // (len(waiting) + 1)
            left_ms = max(1, min(left_ms, line_ms + min(PATIENCE_MS, spare_ms)))
        attempts.timeout_ms, attempts.now_ms = left_ms, now_ms
        attempts.request = builder.request(asked, address)
        got = yield attempts
        now_ms = steady_ms()
        if isinstance(got, Reply):
            is_ours = servers.heard(address, got.status, got.headers, now_ms)
            try:
                reply = checked_reply(asked.verb, got, address) if is_ours else moved_away(address)
                if kind_of(reply) != NOT_NOW:
                    servers.answered(address, now_ms)
                    return reply
                attempts.refused(reply)  # it is about that server, not about the job: another may do better
            except ServerUnreachable as error:  # a proxy says that nobody is behind it
                attempts.refused(error)
        else:
            if isinstance(got, ConnectionLost) and attempts.repeats > 0:
                attempts.repeats -= 1
                waiting.append(address)  # the others first
            attempts.failed(got)
        servers.failed(address, now_ms)
        if not attempts.may_go_on() or now_ms >= until_ms:
            break
        asked = within(asked, SHORT_WAIT_MS)
    return attempts.end()


def is_in_doubt(reply: Reply) -> bool:
    """Tell whether a server that could not answer may have carried the request out. One that failed in a way it should
    not does not know."""
    body = reply.body or {}
    return body.get("code") == "internal_error" or FATE_UNKNOWN in str(body.get("details"))


class Attempts:
    """The attempts to have one request answered: the one to make now, and what came of the others. Whoever is given it
    sends `request` to `address`, waits for `timeout_ms`, and answers with the reply or with what went wrong:
    ConnectionLost or a ServerUnreachable, as values. `alone`: there is only one server, whose error is reported
    unchanged."""

    def __init__(self, asked: Ask, address: ServerAddress, *, alone: bool) -> None:
        self.address = address
        self.request = b""
        self.timeout_ms = 0
        self.now_ms = 0  # when the attempt begins
        self.repeatable = is_repeatable(asked)
        self._asked = asked
        self._alone = alone
        self.repeats = RETRIES_MAX if self.repeatable else 0
        self._errors: list[ServerUnreachable] = []
        self._reply: Reply | None = None
        self._unsure = False  # a request went out, and nobody knows what became of it
        self._passed_on = False  # a proxy answered, which may have passed it on before

    def refused(self, reply: Reply | ServerUnreachable) -> None:
        if isinstance(reply, Reply):
            self._reply = reply
            self._unsure = self._unsure or is_in_doubt(reply)
        else:
            self._errors.append(reply)
            self._passed_on = True

    def failed(self, error: Failure) -> None:
        if isinstance(error, ConnectionLost):
            self._unsure = True
            error = ServerUnreachable(f"{self.address.url} {CLOSED} {DO_NOT_BEGIN}")
        elif isinstance(error, TimedOut):
            self._unsure = self._unsure or error.sent
        self._errors.append(error)

    def may_go_on(self) -> bool:
        return self.repeatable or not (self._unsure or self._passed_on)

    def end(self) -> Reply:
        unknown = self._unsure and method_of(self._asked) != "GET"
        if self._reply is not None:
            said = str((self._reply.body or {}).get("details"))
            if unknown and FATE_UNKNOWN not in said:
                before = " An earlier try had no answer." if self._errors else ""
                self._reply.body = {**(self._reply.body or {}), "details": f"{said}{before} {FATE_UNKNOWN}"}
            return self._reply
        details = self._errors[-1].details
        if not self._alone:
            each = dict.fromkeys(error.details.removesuffix(DO_NOT_BEGIN).strip() for error in self._errors)
            details = f"{' '.join(each)} {DO_NOT_BEGIN}"
        if unknown:
            raise ServerUnreachable(f"{details} {FATE_UNKNOWN}")
        if all(isinstance(error, NotConnected) for error in self._errors):
            raise NotConnected(details)
        raise ServerUnreachable(details)
