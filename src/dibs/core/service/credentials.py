"""Bearer tokens as a store keeps them, the commands about them, and the rules: making, replacing and revoking tokens.

A store never holds a token: it holds the SHA-256 of 32 random bytes, and the key of the record is that hash. Most
commands touch none of this, so nothing on their way imports it. The promise `auth:revoked` begins here: every change is
written to the register too, which servers read.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable
from dibs.core import events
from dibs.core.caller_rights import AGENT, NO_LIMITS, Limits
from dibs.core.commands import PlainCommand
from dibs.core.draft import Draft
from dibs.core.limits import CREDENTIAL_CHANGES_KEPT, CREDENTIAL_TOMBSTONE_MS, USE_NOTED_MS
from dibs.core.outcomes import Outcome
from dibs.core.records import CREDENTIAL_PREFIX, REGISTER_KEY, Kept

ID_CHARS = 12  # how much of the hash is shown to people, as the token's id


class Credential(Kept):
    """One token. It stays on record for a while after its end, so that a copy in a tokens file is refused."""

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
        end_ms = self.ended_ms or self.expires_ms
        return end_ms + CREDENTIAL_TOMBSTONE_MS if end_ms else None

    def is_live(self) -> bool:
        return not self.ended_ms


class CredentialRegister(Kept):
    """Counts the changes to all credentials, and names the last ones, so that a server reads only those."""

    changes: int = 0
    recent: tuple[str, ...] = ()  # digests; the last is change number `changes`


class Usage(Kept):
    """The counts of what a principal with a limit has; see `quota.py`. `count` is the number of the count."""

    count: int
    held: int = 0
    waiting: int = 0
    sessions: int = 0


class CreateToken(PlainCommand):
    """Make a token. `life_ms` 0: until revoked."""

    digest: str
    name: str
    by: str
    role: str = AGENT
    namespace: str | None = None
    life_ms: int = 0
    limits: Limits = NO_LIMITS


class RotateToken(PlainCommand):
    """Replace a token, which stays valid for `grace_ms`. `life_ms` None: the same as that of the old one. `keeps_end`:
    the new one ends when the old one would have; only an admin may give a token more time."""

    digest: str
    fresh_digest: str
    by: str
    grace_ms: int
    life_ms: int | None = None
    keeps_end: bool = False


class RevokeToken(PlainCommand):
    digest: str
    by: str


class LimitToken(PlainCommand):
    """Change the limits of a token's holder. What it has now stays."""

    digest: str
    by: str
    limits: Limits


class NoteUse(PlainCommand):
    """These tokens were used. Not written for those whose last use was noted within USE_NOTED_MS, by any server."""

    digests: tuple[str, ...]


class TokenState(Outcome):
    """A token, as it is now. `credential` None: there is none with this hash. `again`: nothing was changed."""

    credential: Credential | None
    again: bool = False


def credential_key(digest: str) -> str:
    return CREDENTIAL_PREFIX + digest


CLASSES: dict[str, type[Kept]] = {"usage": Usage, "credential": Credential, REGISTER_KEY: CredentialRegister}


def create_token(draft: Draft, command: CreateToken) -> TokenState:
    """Make a token. One that is on record stays as it is: this is a repeat, or a second import."""
    found = draft.find(credential_key(command.digest), Credential)
    if found is not None:
        return TokenState(now_ms=draft.now_ms, credential=found, again=True)
    made = Credential(
        digest=command.digest,
        name=command.name,
        since_ms=draft.now_ms,
        role=command.role,
        namespace=command.namespace,
        expires_ms=draft.now_ms + command.life_ms if command.life_ms else 0,
        life_ms=command.life_ms,
        by=command.by,
        limits=command.limits,
    )
    return _write(draft, made, events.TOKEN_CREATED, command.by)


def rotate_token(draft: Draft, command: RotateToken) -> TokenState:
    """Replace a token by a new one. A token that has ended gets no successor: its holder lost access."""
    fresh = draft.find(credential_key(command.fresh_digest), Credential)
    if fresh is not None:  # this command was committed before, and its reply was lost
        return TokenState(now_ms=draft.now_ms, credential=fresh, again=True)
    old = draft.find(credential_key(command.digest), Credential)
    if old is None or old.is_over(draft.now_ms):
        return TokenState(now_ms=draft.now_ms, credential=None)
    life_ms = old.life_ms if command.life_ms is None else command.life_ms
    ends_ms = draft.now_ms + life_ms if life_ms else 0
    made = old.replace(
        digest=command.fresh_digest,
        since_ms=draft.now_ms,
        expires_ms=old.expires_ms if command.keeps_end else ends_ms,
        life_ms=life_ms,
        by=command.by,
        used_ms=0,
    )
    if command.grace_ms:
        grace_ends_ms = draft.now_ms + command.grace_ms
        old = old.replace(expires_ms=min(old.expires_ms or grace_ends_ms, grace_ends_ms))
        _write(draft, old, events.TOKEN_ROTATED, command.by)
    else:
        _write(draft, old.replace(ended_ms=draft.now_ms), events.TOKEN_REVOKED, command.by)
    return _write(draft, made, events.TOKEN_CREATED, command.by)


def revoke_token(draft: Draft, command: RevokeToken) -> TokenState:
    found = draft.find(credential_key(command.digest), Credential)
    if found is None or found.ended_ms:
        return TokenState(now_ms=draft.now_ms, credential=found, again=True)
    return _write(draft, found.replace(ended_ms=draft.now_ms), events.TOKEN_REVOKED, command.by)


def limit_token(draft: Draft, command: LimitToken) -> TokenState:
    found = draft.find(credential_key(command.digest), Credential)
    if found is None or found.limits == command.limits:
        return TokenState(now_ms=draft.now_ms, credential=found, again=True)
    return _write(draft, found.replace(limits=command.limits), events.TOKEN_LIMITED, command.by)


def note_use(draft: Draft, command: NoteUse) -> TokenState:
    """Write down when tokens were used. Servers need not know, so the register stays as it is."""
    draft.need(*[credential_key(digest) for digest in command.digests])
    for digest in command.digests:
        found = draft.find(credential_key(digest), Credential)
        if found is not None and found.used_ms + USE_NOTED_MS <= draft.now_ms:
            draft.write(credential_key(digest), found.replace(used_ms=draft.now_ms))
    return TokenState(now_ms=draft.now_ms, credential=None)


def forget_credential(draft: Draft, key: str) -> None:
    """Delete a token that ended long ago. No server accepts it, so none needs to know."""
    found = draft.get(key)
    if isinstance(found, Credential) and (due_ms := found.due_ms()) is not None and due_ms <= draft.now_ms:
        draft.write(key, None)


def _write(draft: Draft, credential: Credential, kind: str, by: str) -> TokenState:
    register = draft.find(REGISTER_KEY, CredentialRegister) or CredentialRegister()
    recent = (*register.recent, credential.digest)[-CREDENTIAL_CHANGES_KEPT:]
    draft.write(REGISTER_KEY, register.replace(changes=register.changes + 1, recent=recent))
    draft.write(credential_key(credential.digest), credential)
    ns, about = credential.namespace or "", f"token {credential.id}"
    draft.emit(kind, ns, principal=credential.name, by=by, reason=about)
    return TokenState(now_ms=draft.now_ms, credential=credential)


RULES: dict[type[Any], Callable[[Draft, Any], TokenState]] = {
    CreateToken: create_token,
    RotateToken: rotate_token,
    RevokeToken: revoke_token,
    LimitToken: limit_token,
    NoteUse: note_use,
}
