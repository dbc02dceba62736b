"""Bearer tokens as a store keeps them, and what can be asked about them. Values only; `issuance.py` has the rules.

A store never holds a token: it holds the SHA-256 of 32 random bytes, and the key of the record is that hash. Most
commands touch none of this, so nothing on their way imports it.
"""

from __future__ import annotations

from dibs.core.identity import AGENT, NO_LIMITS, Limits
from dibs.core.keys import CREDENTIAL_PREFIX, REGISTER_KEY
from dibs.core.limits import CREDENTIAL_TOMBSTONE_MS
from dibs.core.record import Record

ID_CHARS = 12  # how much of the hash people are shown, and name a token by


class Credential(Record):
    """One token. It stays on record for a while after its end, so that who shows it is told, and a copy of it in some
    tokens file lets nobody in."""

    digest: str  # SHA-256 of the token, in hexadecimal digits
    name: str  # whose it is: the principal
    since_ms: int
    role: str = AGENT
    namespace: str | None = None
    expires_ms: int = 0  # 0: never
    ended_ms: int = 0  # when it was revoked; 0: it was not
    life_ms: int = 0  # how long it was made for; one that takes its place is made for as long
    by: str = ""  # who made it
    limits: Limits = NO_LIMITS

    @property
    def id(self) -> str:
        return self.digest[:ID_CHARS]

    def is_over(self, now_ms: int) -> bool:
        return bool(self.ended_ms) or 0 < self.expires_ms <= now_ms

    def due_ms(self) -> int | None:
        """When it is forgotten."""
        end_ms = self.ended_ms or self.expires_ms
        return end_ms + CREDENTIAL_TOMBSTONE_MS if end_ms else None

    def is_live(self) -> bool:
        return not self.ended_ms


class CredentialRegister(Record):
    """Counts the changes to all credentials, and names the last ones: who follows reads those and no others."""

    changes: int = 0
    recent: tuple[str, ...] = ()  # digests; the last is change number `changes`

    def due_ms(self) -> int | None:
        return None

    def is_live(self) -> bool:
        return False


class CreateToken(Record):
    """Let somebody in. `life_ms` 0: until revoked."""

    digest: str
    name: str
    by: str
    role: str = AGENT
    namespace: str | None = None
    life_ms: int = 0
    limits: Limits = NO_LIMITS


class RotateToken(Record):
    """Put a new token in the place of one, which goes on for `grace_ms`. `life_ms` None: as long as the old one's."""

    digest: str
    fresh_digest: str
    by: str
    grace_ms: int
    life_ms: int | None = None


class RevokeToken(Record):
    digest: str
    by: str


class LimitToken(Record):
    """Change how much the holder of a token may have. What it has already stays."""

    digest: str
    by: str
    limits: Limits


class TokenState(Record):
    """A token, as it is now. `credential` None: there is none with this hash. `again`: nothing was changed."""

    now_ms: int
    credential: Credential | None
    again: bool = False


TokenCommand = CreateToken | RotateToken | RevokeToken | LimitToken


def credential_key(digest: str) -> str:
    return CREDENTIAL_PREFIX + digest


CLASSES: dict[str, type[Credential | CredentialRegister]] = {
    "credential": Credential,
    REGISTER_KEY: CredentialRegister,
}
