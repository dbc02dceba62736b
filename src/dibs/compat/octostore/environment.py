"""`dibs serve --octostore`: the contract that the server answers by, and the variables of an OctoStore server. A
malformed one ends the start, as there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput
from dibs.compat.octostore.callers import fixed_callers
from dibs.compat.octostore.refusals import answer_refusal, unsupported
from dibs.compat.octostore.routes import as_octostore
from dibs.server.settings import PublicElections

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.core.identity import Caller
    from dibs.server.handlers import Api
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Table

BIND_DEFAULT = "127.0.0.1:3000"  # its own default is 0.0.0.0, which other machines reach
ORIGINS = (
    "https://octostore.io",
    "https://www.octostore.io",
    "http://localhost:3000",
    "http://localhost:4173",
    "http://127.0.0.1:4173",
)
_YES, _NO = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
_UNSERVED = ("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET", "OAUTH_DASHBOARD_URL", "ADMIN_USERNAME")


@dataclass(frozen=True)
class OctoStoreContract:
    """How a server answers that stands in for OctoStore's own: its users, as names and tokens, and its admin's key."""

    users: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    says = "users    those of STATIC_TOKENS, and of the store"

    @property
    def callers(self) -> dict[bytes, Caller]:
        return fixed_callers(self.users, self.admin_key)

    def served(self, api: Api, table: Table) -> Table:
        return as_octostore(api, table, self.admin_key)

    def refusal(self, status: int) -> HttpResponse:
        return answer_refusal(unsupported(status))


def settings_from(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a server, by their names."""
    for name in _UNSERVED:
        if environ.get(name):
            raise InvalidInput(f"{name} is for signing in with GitHub, which dibs does not do. Unset it.")
    users = _users(environ)
    admin_key = _text(environ, "ADMIN_KEY")
    if admin_key is not None and any(token == admin_key for _, token in users):
        raise InvalidInput("ADMIN_KEY must not match any configured static bearer token.")
    registers = _flag(environ, "LOCAL_REGISTRATION", False)
    if registers and users:
        raise InvalidInput("LOCAL_REGISTRATION cannot be combined with STATIC_TOKENS or STATIC_TOKENS_FILE.")
    return {
        "bind": environ.get("BIND_ADDR") or BIND_DEFAULT,
        "contract": OctoStoreContract(users=users, admin_key=admin_key),
        "local_registration": registers,
        "public_elections": _elections(environ),
        "cors_origins": ORIGINS,
        # Any other value than these two means no there, too.
        "webhook_allow_private": environ.get("OCTOSTORE_WEBHOOK_ALLOW_PRIVATE_NETWORKS") in ("1", "true"),
    }


def _elections(environ: Mapping[str, str]) -> PublicElections | None:
    if not _flag(environ, "PUBLIC_ELECTIONS", True):
        return None
    plain = PublicElections()
    streams = "PUBLIC_ELECTION_WATCH_STREAMS"
    return PublicElections(
        rooms=_number(environ, "MAX_PUBLIC_ELECTIONS", plain.rooms),
        requests=_number(environ, "PUBLIC_ELECTION_REQUESTS_PER_MINUTE", plain.requests),
        streams=_number(environ, f"{streams}_GLOBAL", plain.streams),
        streams_per_client=_number(environ, f"{streams}_PER_CLIENT", plain.streams_per_client),
        stream_ms=_number(environ, "PUBLIC_ELECTION_WATCH_MAX_SECONDS", plain.stream_ms // 1000) * 1000,
    )


def _users(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    text = _text(environ, "STATIC_TOKENS")
    if text is not None:
        found += _pairs(text, "STATIC_TOKENS")
    path = _text(environ, "STATIC_TOKENS_FILE")
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                found += _pairs(file.read(), "STATIC_TOKENS_FILE")
        except (OSError, UnicodeDecodeError):
            raise InvalidInput(f"STATIC_TOKENS_FILE {path} cannot be read.") from None
    return tuple(found)


def _pairs(text: str, source: str) -> list[tuple[str, str]]:
    """`user:token`, or a token alone, with commas or line ends between. No message holds a token."""
    entries = [entry.strip() for line in text.splitlines() for entry in line.split(",")]
    pairs = []
    for number, entry in enumerate([each for each in entries if each and not each.startswith("#")], start=1):
        name, colon, token = entry.partition(":")
        name, token = (name.strip(), token.strip()) if colon else (entry, entry)
        if not name or not token or any(character.isspace() for character in token):
            raise InvalidInput(f"{source} has an invalid entry: number {number}. Write user:token.")
        pairs.append((name, token))
    if not pairs:
        raise InvalidInput(f"{source} must contain at least one token.")
    return pairs


def _text(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    if value is not None and not value.strip():
        raise InvalidInput(f"{name} must not be empty when set.")
    return value


def _flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    value = environ.get(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word not in (*_YES, *_NO):
        raise InvalidInput(f"{name} must be one of true, false, 1, 0, on, off, yes, or no.")
    return word in _YES


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name)
    if value is None:
        return default
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise InvalidInput(f"{name} must be a positive integer.")
    return int(text)
