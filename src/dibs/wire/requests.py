"""From a request document to a command. The same checks, in the same order, over HTTP and embedded.

Two steps, because the contract puts the caller's credential between them: `shape` looks only at fields and types (a
wrong one is `Unprocessable`, HTTP 422), `command_for` at what the values mean (HTTP 400, each with its own code).
Unknown fields are ignored. `null` is the same as leaving a field out.
"""

from __future__ import annotations

from dibs.core import limits
from dibs.core.commands import Acquire, Break, Inspect, Release, Renew, SetAcl
from dibs.core.durations import check_ttl_ms
from dibs.core.names import DEFAULT_NAMESPACE, check_name, check_namespace
from dibs.core.record import Record
from dibs.errors import InvalidInput, InvalidTtl, NotAllowed, Unprocessable
from dibs.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.commands import Command

    Document = dict[str, Any]

AGENT = "agent"
OPERATOR = "operator"
ADMIN = "admin"
ROLES = (AGENT, OPERATOR, ADMIN)

_U32_MAX = 2**32 - 1


class Caller(Record):
    """Who asks. `namespace` None: any namespace may be named."""

    principal: str
    role: str = AGENT
    namespace: str | None = None
    badges: tuple[str, ...] = ()
    over_quota: bool = False


# The embedded store is the user's own file: whoever can write it is its admin.
LOCAL = Caller(principal="local", role=ADMIN, badges=("user:local",))

_SHAPES: dict[str, dict[str, str]] = {
    "acquire": {
        "ttl_seconds": "whole",
        "metadata": "text",
        "owner": "text",
        "request_key": "text",
        "lease_id": "id",
        "session_id": "id",
        "ephemeral": "flag",
        "lock_delay_seconds": "whole",
        "again": "flag",
        "acl": "object",
    },
    "renew": {"lease_id": "id!", "ttl_seconds": "whole", "metadata": "text", "checkpoint": "text"},
    "release": {
        "lease_id": "id!",
        "done_seconds": "whole",
        "result": "text",
        "checkpoint": "text",
    },
    "break": {"reason": "text"},
    "acl": {"acl": "object!"},
    "inspect": {},
}

_REQUIRED = {
    verb: [field for field, kind in fields.items() if kind.endswith("!")] for verb, fields in _SHAPES.items()
}
_IDS = ("id", "id!")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "whole": (lambda value: type(value) is int and 0 <= value <= _U32_MAX, "a whole number from 0 up"),
    "text": (lambda value: isinstance(value, str) and _is_unicode(value), "text"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "id": (lambda value: isinstance(value, str) and _is_id(value), "an id as dibs gave it (a UUID)"),
}
_KINDS |= {f"{kind}!": rule for kind, rule in _KINDS.items()}


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_id(text: str) -> bool:
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        character in "0123456789abcdefABCDEF" for part in parts for character in part
    )


def shape(verb: str, document: object) -> Document:
    """`document` with every known field of the right type, ids in lower case, nulls gone."""
    if not isinstance(document, dict):
        raise Unprocessable("The request body must be a JSON object.")
    fields = _SHAPES[verb]
    for field in _REQUIRED[verb]:
        if document.get(field) is None:
            raise Unprocessable(f"The field {field} is required.")
    shaped: Document = {}
    for field, value in document.items():  # few are sent, many are known
        kind = fields.get(field)
        if kind is None or value is None:
            continue
        good, words = _KINDS[kind]
        if not good(value):
            raise Unprocessable(f"The field {field} must be {words}.")
        shaped[field] = value.lower() if kind in _IDS else value
    return shaped


def namespace_for(caller: Caller, asked: str | None) -> str:
    """The namespace a request works in: the one asked for, bounded by what the caller's credential allows."""
    if asked is not None:
        check_namespace(asked)
        if caller.namespace is not None and asked != caller.namespace:
            raise NotAllowed(f"This token is for the namespace {caller.namespace}, not for {asked}.")
        return asked
    return caller.namespace or DEFAULT_NAMESPACE


def command_for(verb: str, ns: str, name: str, document: Document, caller: Caller) -> Command:
    """The command for a shaped document. Raises InvalidInput with a code that says which part is wrong."""
    check_name(name)
    return _BUILDERS[verb](ns, name, document, caller)


def _acquire(ns: str, name: str, document: Document, caller: Caller) -> Acquire:
    if document.get("ephemeral") and "session_id" not in document:
        raise InvalidInput("ephemeral needs a session_id: an ephemeral lease lives as long as its session.")
    acl = document.get("acl")
    return Acquire(
        ns=ns,
        name=name,
        principal=caller.principal,
        owner=_text(document, "owner", limits.OWNER_CHARS_MAX) or caller.principal,
        ttl_ms=_ttl_ms(document, limits.TTL_MS_DEFAULT),
        fresh_lease_id=new_id(),
        metadata=_text(document, "metadata", limits.METADATA_CHARS_MAX),
        request_key=_request_key(document),
        lease_id=document.get("lease_id"),
        delay_ms=_delay_ms(document),
        again=document.get("again", False),
        acl=None if acl is None else _acl(acl),
        badges=caller.badges,
        admin=caller.role == ADMIN,
        over_quota=caller.over_quota,
    )


def _renew(ns: str, name: str, document: Document, caller: Caller) -> Renew:
    return Renew(
        ns=ns,
        name=name,
        principal=caller.principal,
        lease_id=document["lease_id"],
        ttl_ms=_ttl_ms(document, None),
        metadata=_text(document, "metadata", limits.METADATA_CHARS_MAX),
        checkpoint=_bytes(document, "checkpoint", limits.CHECKPOINT_BYTES_MAX),
    )


def _release(ns: str, name: str, document: Document, caller: Caller) -> Release:
    done_ms = document.get("done_seconds", 0) * 1000
    if done_ms > limits.DONE_MS_MAX:
        raise InvalidInput(f"done_seconds may be {limits.DONE_MS_MAX // 1000} at most (a year).")
    result = _bytes(document, "result", limits.RESULT_BYTES_MAX)
    if result is not None and not done_ms:
        raise InvalidInput("A result needs done_seconds: it is shown for as long as the job counts as done.")
    return Release(
        ns=ns,
        name=name,
        principal=caller.principal,
        lease_id=document["lease_id"],
        done_ms=done_ms,
        result=result,
        checkpoint=_bytes(document, "checkpoint", limits.CHECKPOINT_BYTES_MAX),
    )


def _break(ns: str, name: str, document: Document, caller: Caller) -> Break:
    require_operator(caller, "break a claim")
    reason = _text(document, "reason", limits.REASON_CHARS_MAX)
    if not reason:
        raise InvalidInput("Breaking a claim needs a reason: the old owner is told.")
    return Break(ns=ns, name=name, principal=caller.principal, reason=reason)


def _set_acl(ns: str, name: str, document: Document, caller: Caller) -> SetAcl:
    return SetAcl(
        ns=ns,
        name=name,
        principal=caller.principal,
        acl=_acl(document["acl"]),
        admin=caller.role == ADMIN,
    )


def _inspect(ns: str, name: str, document: Document, caller: Caller) -> Inspect:
    return Inspect(ns=ns, name=name)


_BUILDERS: dict[str, Callable[[str, str, Document, Caller], Command]] = {
    "acquire": _acquire,
    "renew": _renew,
    "release": _release,
    "break": _break,
    "acl": _set_acl,
    "inspect": _inspect,
}


def require_operator(caller: Caller, what: str) -> None:
    if caller.role not in (OPERATOR, ADMIN):
        raise NotAllowed(f"Only an operator or admin may {what}; this token's role is {caller.role}.")


def _ttl_ms(document: Document, default: int | None) -> Any:
    seconds = document.get("ttl_seconds")
    if seconds is None:
        return default
    if seconds == 0:
        raise InvalidTtl("A lease lasts at least one second.")
    return check_ttl_ms(seconds * 1000)


def _delay_ms(document: Document) -> int:
    delay_ms: int = document.get("lock_delay_seconds", 0) * 1000
    if delay_ms > limits.LOCK_DELAY_MS_MAX:
        raise InvalidInput(f"lock_delay_seconds may be {limits.LOCK_DELAY_MS_MAX // 1000} at most.")
    return delay_ms


def _text(document: Document, field: str, chars_max: int) -> str | None:
    value: str | None = document.get(field)
    if value is not None and len(value) > chars_max:
        raise InvalidInput(f"{field} may have {chars_max} characters at most; this one has {len(value)}.")
    return value


def _bytes(document: Document, field: str, bytes_max: int) -> str | None:
    value: str | None = document.get(field)
    if value is not None and len(value.encode()) > bytes_max:
        raise InvalidInput(f"{field} may have {bytes_max} bytes at most; this one has {len(value.encode())}.")
    return value


def _request_key(document: Document) -> str | None:
    key = _text(document, "request_key", limits.REQUEST_KEY_CHARS_MAX)
    if key == "":
        raise InvalidInput(
            "request_key may not be empty; leave it out or give a value that is new for each claim."
        )
    return key


def _acl(document: Document) -> tuple[str, ...]:
    """Entries are `user:NAME` or `token:SECRET`. A secret is kept as its hash, never as itself."""
    entries = document.get("acquire")
    if not isinstance(entries, list) or not 1 <= len(entries) <= limits.ACL_ENTRIES_MAX:
        raise InvalidInput(f"acl.acquire is a list of 1 to {limits.ACL_ENTRIES_MAX} entries.")
    return tuple(dict.fromkeys(_acl_entry(entry) for entry in entries))


def _acl_entry(entry: object) -> str:
    if isinstance(entry, str) and _is_unicode(entry) and len(entry.encode()) <= limits.ACL_ENTRY_BYTES_MAX:
        kind, _, value = entry.partition(":")
        if kind == "user" and value:
            return entry
        if kind == "token" and value:
            return token_badge(value)
    raise InvalidInput(
        f"An access entry is user:NAME or token:TOKEN, of {limits.ACL_ENTRY_BYTES_MAX} bytes at most."
    )


def token_badge(token: str) -> str:
    """How a bearer token is named where it must be recognised but not known."""
    import hashlib  # only servers and access lists need it

    return "token:sha256:" + hashlib.sha256(token.encode()).hexdigest()
