"""Tokens in requests and replies. Only the reply that makes a token shows the token itself."""

from __future__ import annotations

from dibs.base.errors import InvalidInput, NotAllowed
from dibs.core.credentials import CreateToken
from dibs.core.identity import AGENT, ROLES, Limits
from dibs.core.limits import ROTATION_GRACE_MS_DEFAULT
from dibs.core.names import check_namespace, check_principal
from dibs.wire.fields import NUMBERS
from dibs.wire.parts import timestamp
from dibs.wire.tokenfile import check_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.credentials import Credential
    from dibs.core.identity import Caller

    Document = dict[str, Any]

# The fields of a document, and their names in `Limits`.
LIMIT_FIELDS = {
    "max_held": "held",
    "max_waiting": "waiting",
    "max_sessions": "sessions",
    "rate_per_second": "rate",
}


def create_command(document: Document, caller: Caller, digest: str) -> CreateToken:
    """The command for a shaped document. `digest` is that of a new token, if the document has none."""
    try:
        name = check_principal(document["name"])
    except InvalidInput as error:
        raise InvalidInput(f"name: {error.details}") from None
    role = document.get("role", AGENT)
    if role not in ROLES:
        raise InvalidInput(f"role is {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    namespace = document.get("namespace", caller.namespace)
    if namespace is not None:
        check_namespace(namespace)
    if caller.namespace not in (None, namespace):
        raise NotAllowed(f"This token is for the namespace {caller.namespace}, and makes tokens for it only.")
    return CreateToken(
        digest=check_digest(document["sha256"]) if "sha256" in document else digest,
        name=name,
        by=caller.principal,
        role=role,
        namespace=namespace,
        life_ms=life_ms_of(document) or 0,
        limits=limits_of(document, Limits()),
    )


def life_ms_of(document: Document) -> int | None:
    """How long a token shall be valid. None: not given."""
    return _number(document, "expires_seconds") * 1000 if "expires_seconds" in document else None


def grace_ms_of(document: Document) -> int:
    return (
        _number(document, "grace_seconds") * 1000
        if "grace_seconds" in document
        else ROTATION_GRACE_MS_DEFAULT
    )


def limits_of(document: Document, limits: Limits) -> Limits:
    """`limits` with the changes of the document."""
    return limits.replace(
        **{word: _number(document, field) for field, word in LIMIT_FIELDS.items() if field in document}
    )


def _number(document: Document, field: str) -> int:
    least, most = NUMBERS[field]
    number: int = document[field]
    if not least <= number <= most:
        raise InvalidInput(f"{field} is from {least} to {most}; {number} was sent.")
    return number


def credential_document(credential: Credential, now_ms: int) -> Document:
    """A token, for an admin to see."""
    return {
        "id": credential.id,
        "name": credential.name,
        "role": credential.role,
        "namespace": credential.namespace,
        "created_at": timestamp(credential.since_ms),
        "created_by": credential.by,
        "expires_at": timestamp(credential.expires_ms) if credential.expires_ms else None,
        "revoked_at": timestamp(credential.ended_ms) if credential.ended_ms else None,
        "last_used_at": timestamp(credential.used_ms) if credential.used_ms else None,
        "valid": not credential.is_over(now_ms),
        **{field: getattr(credential.limits, word) for field, word in LIMIT_FIELDS.items()},
    }
