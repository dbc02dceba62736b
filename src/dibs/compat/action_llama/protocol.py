"""Action Llama's lock protocol, translated to dibs. Pure: the server and the `rlock` commands share it.

It checks a request's fields in the order of the contract, and turns replies of dibs into theirs. Every refusal has
`ok: false` and a `reason`. If their gateway sends an `error` as well, the refusal has it in the same words.

Release and heartbeat are generators: they yield a request to dibs (verb, job, document), are sent the reply, and
return status and document. The driver sends the requests, over a transport or inside a server.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Generator, Mapping
from dibs.base.errors import InvalidInput, InvalidName, InvalidTtl
from dibs.base.jsontext import Document
from dibs.core.durations import format_duration, parse_duration
from dibs.core.limits import TTL_MS_MAX, TTL_MS_MIN
from dibs.core.names import check_name
from dibs.wire.documents import Reply
from dibs.wire.parts import instant_ms
from dibs.wire.sentences import cycle_path, in_full

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.records import Holder

Said = tuple[int, Document]  # HTTP status and body
Asking = Generator[tuple[str, str, Document], Reply, Said]

# The TTL of an `rlock` lock: DIBS_RLOCK_TTL, else `resourceLockTimeout` of a config.toml, else the default.
#
# The file is the one that `--config` names, else `config.toml` in the current folder, where Action Llama keeps it. Many
# other programs use that file name too, so a file without the word `resourceLockTimeout` is ignored.

FIELD = "resourceLockTimeout"
CONFIG_BYTES_MAX = 1024 * 1024


def configured(env: Mapping[str, str], config: str | None) -> int | None:
    """Seconds, or None if nothing sets it."""
    said = env.get("DIBS_RLOCK_TTL")
    if said:
        return ttl_seconds(said, "DIBS_RLOCK_TTL")
    path = config or "config.toml"
    try:
        # Non-blocking, because opening a pipe would otherwise wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            content = file.read(CONFIG_BYTES_MAX)
    except OSError as error:
        if config is not None:
            raise InvalidInput(f"--config {path}: it cannot be read ({error.strerror}).") from None
        return None
    if FIELD.encode() not in content:
        return None
    import tomllib  # slow, and rarely needed

    try:
        found = tomllib.loads(content.decode())
    except ValueError as error:
        raise InvalidInput(f"{os.path.abspath(path)} is not TOML ({error}), and names {FIELD}.") from None
    seconds = found.get(FIELD)
    if seconds is None:  # the word is in a comment, or names another program's field
        return None
    if type(seconds) is not int:
        raise InvalidTtl(f"{path}: {FIELD} is a whole number of seconds, not {seconds!a}.")
    return _checked(seconds * 1000, f"{path}: {FIELD} is {seconds}")


def ttl_seconds(text: str, what: str) -> int:
    """Whole seconds within the bounds of a lease. `what` names the setting to correct."""
    try:
        ttl_ms = parse_duration(text, "lock time")
    except InvalidInput as error:
        raise InvalidTtl(f"{what}: {error.details}") from None
    return _checked(ttl_ms, f"{what} is {text!a}")


def _checked(ttl_ms: int, what: str) -> int:
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX or ttl_ms % 1000:
        least, most = format_duration(TTL_MS_MIN), format_duration(TTL_MS_MAX)
        raise InvalidTtl(f"{what}: use whole seconds, from {least} to {most}.")
    return ttl_ms // 1000


UNREACHABLE = 599  # not an HTTP status: no answer came
_HOST_SCHEMES = ("http", "https", "ws", "wss", "ftp")  # these must name a host
_NOT_IN_HOSTS = frozenset(" <>[\\]^|\x7f")


class Rejected(Exception):
    """The request is invalid. `status` and `body` are the answer."""

    def __init__(self, error: str, reason: str = "", status: int = 400) -> None:
        super().__init__(error)
        self.status = status
        self.body = refusal(error, reason)


def refusal(error: str, reason: str = "") -> Document:
    return {"ok": False, "error": error, "reason": reason or error}


def read_request(document: object) -> tuple[str, str, int | None]:
    """Secret, key and TTL in seconds of a request, checked in the order of the contract."""
    if document is None:
        raise Rejected("invalid JSON body", "The body must be a JSON object.")
    if not isinstance(document, dict):  # their gateway answers this too with a missing secret
        raise Rejected("missing secret", "The body must be a JSON object with secret and resourceKey.")
    secret = document.get("secret")
    if not isinstance(secret, str) or not secret:
        raise Rejected("missing secret")
    key = document.get("resourceKey")
    if not isinstance(key, str) or not key:
        raise Rejected("missing resourceKey")
    check_key(key)
    for field in document:
        if field not in ("secret", "resourceKey", "ttl"):
            # Their scripts paste a key into JSON unescaped. A quote in the key then makes an extra field.
            raise Rejected("invalid JSON body", f"There is no field {field!a}. Is a quote in the key not escaped?")
    ttl, least, most = document.get("ttl"), TTL_MS_MIN // 1000, TTL_MS_MAX // 1000
    if ttl is not None and (type(ttl) is not int or not least <= ttl <= most):
        raise Rejected("invalid ttl", f"ttl is a whole number of seconds from {least} to {most}.")
    return secret, key, ttl


def check_key(key: str) -> None:
    """Check that a key is a URI by the browsers' rules, and a valid name in dibs."""
    if not _is_uri(key):
        raise Rejected(
            "Invalid URI format: Invalid URL", "A resource key is a URI, such as github://acme/app/issues/42."
        )
    try:
        check_name(key)
    except InvalidName as error:
        raise Rejected("invalid resourceKey", error.details) from None


def _is_uri(key: str) -> bool:
    """Tell whether the WHATWG URL parser would accept it, about: by the scheme, the host and the port."""
    scheme, colon, rest = key.strip().partition(":")
    letters = scheme.replace("+", "").replace("-", "").replace(".", "")
    if not colon or not scheme.isascii() or not scheme[:1].isalpha() or not letters.isalnum():
        return False
    needs_host = scheme.lower() in _HOST_SCHEMES
    if needs_host:
        rest = "//" + rest.replace("\\", "/").lstrip("/")
    if not rest.startswith("//"):
        return True
    authority = rest[2:]
    for end in "/?#":
        authority = authority.partition(end)[0]
    _, at, place = authority.rpartition("@")
    host, port = _host_and_port(place)
    if not host and (needs_host or port or at):
        return False
    is_number = port.isascii() and port.isdecimal() and len(port) < 7
    if port and not (is_number and int(port) <= 65535):
        return False
    return not any(each in _NOT_IN_HOSTS or each < " " for each in host)


def _host_and_port(place: str) -> tuple[str, str]:
    """Host and port. If they cannot be told apart, the host returned is an invalid one."""
    if not place.startswith("["):
        host, _, port = place.partition(":")
        return host, port
    host, bracket, port = place[1:].partition("]")
    inside = set(host.lower()) <= set("0123456789abcdef:.")
    if not bracket or not inside or port[:1] not in ("", ":"):
        return "[", ""
    return host, port[1:]


def acquired(key: str, reply: Reply) -> Said:
    """The answer to a request for `key`, from the reply to "acquire"."""
    body = reply.body or {}
    status = body.get("status")
    if status == "acquired":
        return 200, {"ok": True, "resourceKey": key}
    if status == "held" and body.get("owner") is not None:
        held = {"ok": False, "holder": body["owner"], "heldSince": instant_ms(body["since"])}
        other = f" ({body['conflict']})" if "conflict" in body else ""
        return 409, held | {"reason": f"held by {body['owner']}{other}"}
    if status in ("held", "done", "delayed", "parked", "closed"):
        return 409, {"ok": False, "reason": in_full(body)}
    cycle = body.get("cycle")
    if cycle:
        reason = f"possible deadlock: {cycle_path(cycle)}"
        return 409, {"ok": False, "reason": reason, "deadlock": True, "cycle": list(cycle)}
    return failed(reply)


def failed(reply: Reply) -> Said:
    """The answer for a reply that is an error of dibs."""
    body = reply.body or {}
    code, details = body.get("code"), str(body.get("details") or "dibs could not answer.")
    if code in ("not_found", "session_expired"):
        return 403, refusal("invalid secret", details)
    if code in ("conflict", "forbidden", "lock_limit_exceeded", "capacity_exceeded", "deadlock"):
        return 409, {"ok": False, "reason": details}
    status = 400 if reply.status == 422 else reply.status
    return status, refusal(str(body.get("error") or code), details)


def heartbeat(key: str, proof: Document | None, ttl_seconds: int | None) -> Asking:
    """Renew a lock. Without `ttl_seconds` the lock's TTL stays. `proof` is None if the caller has none."""
    if proof is not None:
        extra = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
        kept = yield "renew", key, proof | extra
        if kept.status < 300 and kept.body is not None:
            return 200, {"ok": True, "expiresAt": instant_ms(kept.body["expires_at"])}
        if not _is_not_mine(kept):
            return failed(kept)
    return _whose((yield "inspect", key, {}))


def release(key: str, proof: Document | None) -> Asking:
    """Release a lock that is held now. A heartbeat tests the proof first, because a second release of the same
    lock succeeds in dibs and fails in this protocol."""
    if proof is not None:
        reply = yield "renew", key, proof
        if reply.status < 300 and reply.body is not None:
            reply = yield "release", key, {"lease_id": reply.body["lease_id"]}
            if reply.status < 300:
                return 200, {"ok": True}
        if not _is_not_mine(reply):
            return failed(reply)
    return _whose((yield "inspect", key, {}))


def _is_not_mine(reply: Reply) -> bool:
    return (reply.body or {}).get("code") == "lease_not_current"


def _whose(found: Reply) -> Said:
    body = found.body or {}
    if found.status >= 300:
        return failed(found)
    if body.get("status") == "held":
        return 409, {"ok": False, "reason": f"held by {body['owner']}"}
    return 404, {"ok": False, "reason": "lock not found"}


def held_entry(name: str, holder: Holder) -> Document:
    return {"resourceKey": name, "holder": holder.owner, "heldSince": holder.since_ms}
