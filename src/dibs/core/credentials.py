"""Bearer tokens as a store keeps them, and the commands about them. Values only; `issuance.py` has the rules.

A store never holds a token: it holds the SHA-256 of 32 random bytes, and the key of the record is that hash. Most
commands touch none of this, so nothing on their way imports it.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.identity import AGENT, NO_LIMITS, Limits
from dibs.core.keys import CREDENTIAL_PREFIX, REGISTER_KEY
from dibs.core.limits import CREDENTIAL_TOMBSTONE_MS

ID_CHARS = 12  # how much of the hash is shown to people, as the token's id


class Credential(Record):
    """One token. It stays on record for a while after its end, so that its holder is told, and a copy of it in a
    tokens file is not accepted."""

    digest: str  # SHA-256 of the token, in hexadecimal digits
    name: str  # the principal
    since_ms: int
    role: str = AGENT
    namespace: str | None = None
    expires_ms: int = 0  # 0: never
    ended_ms: int = 0  # when it was revoked; 0: it was not
    life_ms: int = 0  # its lifetime; a token that replaces it gets the same
    by: str = ""  # who made it
    limits: Limits = NO_LIMITS
    used_ms: int = 0  # when it was last used, to about USE_NOTED_MS; 0: it was not

    @property
    def id(self) -> str:
        return self.digest[:ID_CHARS]

    def is_over(self, now_ms: int) -> bool:
        return bool(self.ended_ms) or 0 < self.expires_ms <= now_ms

    def due_ms(self) -> int | None:
        """Return when it is forgotten."""
        end_ms = self.ended_ms or self.expires_ms
        return end_ms + CREDENTIAL_TOMBSTONE_MS if end_ms else None

    def is_live(self) -> bool:
        return not self.ended_ms


class CredentialRegister(Record):
    """Counts the changes to all credentials, and names the last ones, so that a server reads only those."""

    changes: int = 0
    recent: tuple[str, ...] = ()  # digests; the last is change number `changes`

    def due_ms(self) -> int | None:
        return None

    def is_live(self) -> bool:
        return False


class Usage(Record):
    """How much a principal with a limit has; see `quota.py`. `count` is the number of the count."""

    count: int
    held: int = 0
    waiting: int = 0
    sessions: int = 0

    def due_ms(self) -> int | None:
        return None

    def is_live(self) -> bool:
        return False


class CreateToken(Record):
    """Make a token. `life_ms` 0: until revoked."""

    digest: str
    name: str
    by: str
    role: str = AGENT
    namespace: str | None = None
    life_ms: int = 0
    limits: Limits = NO_LIMITS


class RotateToken(Record):
    """Replace a token, which stays valid for `grace_ms`. `life_ms` None: the same as that of the old one. `keeps_end`:
    the new one ends when the old one would have; only an admin may give a token more time."""

    digest: str
    fresh_digest: str
    by: str
    grace_ms: int
    life_ms: int | None = None
    keeps_end: bool = False


class RevokeToken(Record):
    digest: str
    by: str


class LimitToken(Record):
    """Change the limits of a token's holder. What it has now stays."""

    digest: str
    by: str
    limits: Limits


class NoteUse(Record):
    """These tokens were used. Not written for those whose last use was noted within USE_NOTED_MS, by any server."""

    digests: tuple[str, ...]


class TokenState(Record):
    """A token, as it is now. `credential` None: there is none with this hash. `again`: nothing was changed."""

    now_ms: int
    credential: Credential | None
    again: bool = False


TokenCommand = CreateToken | RotateToken | RevokeToken | LimitToken | NoteUse


def credential_key(digest: str) -> str:
    return CREDENTIAL_PREFIX + digest


CLASSES: dict[str, type[Credential | CredentialRegister | Usage]] = {
    "usage": Usage,
    "credential": Credential,
    REGISTER_KEY: CredentialRegister,
}
