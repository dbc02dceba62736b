"""Requests to a gateway that speaks Action Llama's lock protocol: ours, or theirs.

The client sends one request, does not repeat it, and waits ten seconds at most, as their scripts do. If GATEWAY_URL
names several gateways, it asks one after the other until one answers. The result is always a status and a document
with `ok`. If no answer came, the status is one that HTTP does not have.
"""

from __future__ import annotations

from dibs.base.errors import DibsError, InvalidInput
from dibs.base.http1 import ConnectionLost, request_bytes
from dibs.base.jsontext import Document, decode, encode
from dibs.base.redact import without_secrets
from dibs.base.reply import Reply
from dibs.client.connection import Deadline, NotConnected, ServerConnection
from dibs.client.servers import PATIENCE_MS
from dibs.client.urls import ServerAddress, server_addresses
from dibs.compat.action_llama.protocol import UNREACHABLE, refusal

TIMEOUT_MS = 10_000
# A status that no lock route sends: the server that answered is not a gateway.
NOT_A_GATEWAY = 421


def ask(url: str, verb: str, document: Document, timeout_ms: int = TIMEOUT_MS) -> tuple[int, Document]:
    """The answer to POST `url`/locks/`verb`. If `url` lists several gateways, the first that answers."""
    try:
        addresses = server_addresses(url)
        if not addresses:
            raise InvalidInput(f"{without_secrets(url)!a} is not the URL of a gateway")
        body = encode(document).encode()
    except UnicodeEncodeError:
        return 400, refusal("invalid JSON body", "The key or the secret is not valid Unicode.")
    except DibsError as error:
        return _unreachable(error)
    answer: tuple[int, Document] = UNREACHABLE, {}
    for place, address in enumerate(addresses):
        others = len(addresses) - place - 1
        answer, sure = _ask_one(address, verb, body, min(timeout_ms, PATIENCE_MS) if others else timeout_ms)
        # A release may have been carried out already. A second gateway would then refuse it.
        if answer[0] not in (UNREACHABLE, 502, 503, 504) or not (sure or verb != "release"):
            break
    return answer


def _ask_one(address: ServerAddress, verb: str, body: bytes, timeout_ms: int) -> tuple[tuple[int, Document], bool]:
    """The answer of one gateway. The flag: if it did not answer, the request certainly had no effect."""
    # In a unix:// address the path is that of the socket.
    base = "/gateway" if address.scheme == "unix" else address.path
    headers = {"Host": address.authority, "Accept": "application/json", "Connection": "close"}
    request = request_bytes("POST", f"{base}/locks/{verb}", headers, body)
    try:
        raw = ServerConnection(address).exchange(request, Deadline(timeout_ms), repeatable=False)
    except ConnectionLost:
        reason = f"{address.url} closed the connection without an answer. Asking again does no harm."
        return (UNREACHABLE, refusal("gateway unreachable", reason)), False
    except DibsError as error:
        return _unreachable(error), isinstance(error, NotConnected) or not getattr(error, "sent", True)
    return _understood(address, raw), raw.status == 503


def _unreachable(error: DibsError) -> tuple[int, Document]:
    # Keep only what happened. The advice that follows is about DIBS_URL, and here it is GATEWAY_URL.
    what = error.details.partition(". ")[0].rstrip(".")
    hint = "Check GATEWAY_URL." if isinstance(error, InvalidInput) else "Do not go on without the lock."
    return UNREACHABLE, refusal("gateway unreachable", f"{what}. {hint}")


def _understood(address: ServerAddress, raw: Reply) -> tuple[int, Document]:
    try:
        document = decode(raw.content.decode())
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return _no_gateway(address, raw)
    if document.get("ok") is True and raw.status == 200:
        return 200, document
    # Their gateway leaves out `ok` in errors, and the reason where it names the holder.
    if (document.get("ok") is False and raw.status >= 400) or (
        raw.status in (400, 401, 403) and isinstance(document.get("error"), str)
    ):
        reason = f"held by {document['holder']}" if "holder" in document else document.get("error")
        return raw.status, {"ok": False, **document, "reason": document.get("reason") or str(reason)}
    return _no_gateway(address, raw)


# Statuses that a proxy in front of a gateway sends.
_LATER = {429: "too many requests", 502: "it is not up", 503: "it is not up or busy", 504: "it takes too long"}


def _no_gateway(address: ServerAddress, raw: Reply) -> tuple[int, Document]:
    if raw.status in _LATER:
        after = raw.headers.get("retry-after", "").strip()
        when = f"in {int(after)} s" if after.isdecimal() and len(after) < 7 else "later"
        why = f"{address.url} answered {raw.status}, {_LATER[raw.status]}."
        reason = f"{why} You do not have the lock; try again {when}."
        return raw.status, refusal(f"HTTP {raw.status}", reason)
    reason = f"{address.url} answered {raw.status}, but not as a gateway does. Is GATEWAY_URL right?"
    status = raw.status if raw.status >= 500 else NOT_A_GATEWAY
    return status, refusal(f"HTTP {raw.status}", reason)
