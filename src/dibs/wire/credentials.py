"""Tokens in requests and replies. Only the reply that makes a token shows the token itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dibs.base.errors import InvalidInput, NotAllowed
from dibs.base.ids import token_key
from dibs.base.jsontext import Document
from dibs.base.record import Record
from dibs.core.caller_rights import AGENT, ROLES, Caller, Limits
from dibs.core.limits import ROTATION_GRACE_MS_DEFAULT
from dibs.core.names import check_namespace, check_principal
from dibs.core.service.credentials import CreateToken, Credential
from dibs.core.service.signed_identity import IdentityRule
from dibs.wire.parts import instant_ms, moment, timestamp
from dibs.wire.values import number_of

# One line of a tokens file, read and written. Pure.
#
#     name:sha256=HEX[:role[:namespace[:expires]]]
#     name:token[:role[:namespace[:expires]]]
#
# dibs writes the first form: a reader of the file learns no token. The second form holds the token itself; it is
# accepted with a warning. `expires` is a time in UTC without colons, as in 20261215T103000Z.

HASH = "sha256="
_HEX = frozenset("0123456789abcdef")


class TokenLine(Record):
    """`digest` is the SHA-256 of the token, in hexadecimal digits. `is_clear`: the line held the token itself."""

    name: str
    digest: str
    role: str = AGENT
    namespace: str | None = None
    expires_ms: int | None = None
    is_clear: bool = False

    def text(self) -> str:
        """The line for the file, with the hash."""
        parts = [self.name, HASH + self.digest, self.role]
        if self.namespace is not None or self.expires_ms is not None:
            parts.append(self.namespace or "")
        if self.expires_ms is not None:
            parts.append(compact_time(self.expires_ms))
        return ":".join(parts)


def parse_lines(path: str, content: str) -> Iterator[tuple[int, str, TokenLine | None]]:
    """Each line of a tokens file: its number, its text, and its entry, unless it is blank or a comment. Raises
    InvalidInput, with the place."""
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            yield number, text, parse_line(text) if text.strip() and not text.strip().startswith("#") else None
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {number}: {error.details}") from None


def parse_line(line: str) -> TokenLine:
    """Raises InvalidInput or InvalidName. No message holds a token."""
    name, *rest = line.strip().split(":")
    if not 1 <= len(rest) <= 4:
        raise InvalidInput("a line is name:token[:role[:namespace[:expires]]].")
    check_principal(name)
    role = rest[1] if len(rest) > 1 and rest[1] else AGENT
    if role not in ROLES:
        raise InvalidInput(f"the role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    namespace = check_namespace(rest[2]) if len(rest) > 2 and (rest[2] or len(rest) == 3) else None
    expires_ms = parse_compact_time(rest[3]) if len(rest) > 3 else None
    digest, is_clear = _digest(rest[0])
    return TokenLine(name=name, digest=digest, role=role, namespace=namespace, expires_ms=expires_ms, is_clear=is_clear)


def check_digest(text: str) -> str:
    """The hash of a token. Raises InvalidInput, which does not repeat the text: it may be the token itself."""
    if len(text) != 64 or not _HEX.issuperset(text):
        raise InvalidInput(f"{HASH.rstrip('=')} is the 64 hexadecimal digits of a token's SHA-256.")
    return text


def _digest(word: str) -> tuple[str, bool]:
    if word.startswith(HASH):
        return check_digest(word.removeprefix(HASH)), False
    if not word or not word.isascii() or not word.isprintable() or " " in word:
        raise InvalidInput("a token is printable ASCII without blanks or colons.")
    return digest_of(word), True


def digest_of(token: str) -> str:
    return token_key(token).hex()


def compact_time(ms: int) -> str:
    """`20261215T103000Z`."""
    return timestamp(ms)[:19].replace("-", "").replace(":", "") + "Z"


def parse_compact_time(text: str) -> int:
    if len(text) == 16 and text.isascii() and (text[:8] + text[9:15]).isdecimal():
        day, clock = text[:8], text[9:15]
        ms = instant_ms(f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:]}.000Z")
        if compact_time(ms) == text:  # otherwise there is no such day or hour
            return ms
    raise InvalidInput("the time it expires is written like 20261215T103000Z, in UTC.")


# The document that says who a caller is.


def whoami_document(caller: Caller, ends_ms: int | None) -> dict[str, Any]:
    """`ends_ms`: when the caller's token ends by itself."""
    document: dict[str, Any] = {"principal": caller.principal, "role": caller.role, "namespace": caller.namespace}
    return document if ends_ms is None else {**document, "expires_at": timestamp(ends_ms)}


# The fields of a document, and their names in `Limits`.
LIMIT_FIELDS = {
    **{"max_held": "held", "max_waiting": "waiting", "max_sessions": "sessions", "rate_per_second": "rate"},
    "max_hold_seconds": "hold_seconds",
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
    """Return how long a token shall be valid. None: not given."""
    return number_of(document, "expires_seconds", 0) * 1000 if "expires_seconds" in document else None


def grace_ms_of(document: Document) -> int:
    return number_of(document, "grace_seconds", ROTATION_GRACE_MS_DEFAULT // 1000) * 1000


def limits_of(document: Document, limits: Limits) -> Limits:
    """`limits` with the changes of the document."""

    def limit(field: str, present: int) -> int:
        return number_of(document, field, 0) if field in document else present

    return limits.replace(
        held=limit("max_held", limits.held),
        waiting=limit("max_waiting", limits.waiting),
        sessions=limit("max_sessions", limits.sessions),
        rate=limit("rate_per_second", limits.rate),
        hold_seconds=limit("max_hold_seconds", limits.hold_seconds),
    )


def credential_document(credential: Credential, now_ms: int) -> Document:
    """A token, for an admin to see."""
    return {
        "id": credential.id,
        "name": credential.name,
        "role": credential.role,
        "namespace": credential.namespace,
        "created_at": moment(credential.since_ms),
        "created_by": credential.by,
        "expires_at": moment(credential.expires_ms),
        "revoked_at": moment(credential.ended_ms),
        "last_used_at": moment(credential.used_ms),
        "valid": not credential.is_over(now_ms),
        "max_held": credential.limits.held,
        "max_waiting": credential.limits.waiting,
        "max_sessions": credential.limits.sessions,
        "rate_per_second": credential.limits.rate,
        "max_hold_seconds": credential.limits.hold_seconds,
    }


def identity_rule_document(rule: IdentityRule) -> Document:
    limits = dict(rule.limits)
    return {
        "issuer": rule.issuer,
        "audience": list(rule.audiences),
        "match": {claim: list(patterns) for claim, patterns in rule.match},
        "principal": rule.principal,
        "role": rule.role,
        "namespace": rule.namespace or None,
        "limits": {name: limits[field] for name, field in LIMIT_FIELDS.items() if field in limits},
    }
