"""Making, replacing and revoking tokens. The promise `auth:revoked` begins here: every change is written to the
register too, which servers read.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.credentials import (
    CreateToken,
    Credential,
    CredentialRegister,
    LimitToken,
    NoteUse,
    RevokeToken,
    RotateToken,
    TokenState,
    credential_key,
)
from dibs.core.events import Event
from dibs.core.keys import REGISTER_KEY
from dibs.core.limits import CREDENTIAL_CHANGES_KEPT, USE_NOTED_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.draft import Draft


def create_token(draft: Draft, command: CreateToken) -> TokenState:
    """Make a token. A token that is on record stays as it is: this is a repeat, or a second import of the same
    file."""
    found = _find(draft, command.digest)
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
    """Replace a token; returns the new one. A token that has ended gets no successor, because its holder lost
    access."""
    fresh = _find(draft, command.fresh_digest)
    if fresh is not None:  # this command was committed before, and its reply was lost
        return TokenState(now_ms=draft.now_ms, credential=fresh, again=True)
    old = _find(draft, command.digest)
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
    found = _find(draft, command.digest)
    if found is None or found.ended_ms:
        return TokenState(now_ms=draft.now_ms, credential=found, again=True)
    return _write(draft, found.replace(ended_ms=draft.now_ms), events.TOKEN_REVOKED, command.by)


def limit_token(draft: Draft, command: LimitToken) -> TokenState:
    found = _find(draft, command.digest)
    if found is None or found.limits == command.limits:
        return TokenState(now_ms=draft.now_ms, credential=found, again=True)
    return _write(draft, found.replace(limits=command.limits), events.TOKEN_LIMITED, command.by)


def note_use(draft: Draft, command: NoteUse) -> TokenState:
    """Write down when tokens were used. Servers need not be told, so the register stays as it is."""
    draft.need(*[credential_key(digest) for digest in command.digests])
    for digest in command.digests:
        found = _find(draft, digest)
        if found is not None and found.used_ms + USE_NOTED_MS <= draft.now_ms:
            draft.write(credential_key(digest), found.replace(used_ms=draft.now_ms))
    return TokenState(now_ms=draft.now_ms, credential=None)


def forget_credential(draft: Draft, key: str) -> None:
    """Delete a token that ended long ago. No server accepts it, so none needs to be told."""
    found = draft.get(key)
    if isinstance(found, Credential) and (due_ms := found.due_ms()) is not None and due_ms <= draft.now_ms:
        draft.write(key, None)


def _find(draft: Draft, digest: str) -> Credential | None:
    found = draft.get(credential_key(digest))
    return found if isinstance(found, Credential) else None


def _write(draft: Draft, credential: Credential, kind: str, by: str) -> TokenState:
    register = draft.get(REGISTER_KEY)
    if not isinstance(register, CredentialRegister):
        register = CredentialRegister()
    recent = (*register.recent, credential.digest)[-CREDENTIAL_CHANGES_KEPT:]
    draft.write(REGISTER_KEY, register.replace(changes=register.changes + 1, recent=recent))
    draft.write(credential_key(credential.digest), credential)
    told = Event(
        at_ms=draft.now_ms,
        kind=kind,
        ns=credential.namespace or "",
        principal=credential.name,
        by=by,
        reason=f"token {credential.id}",
    )
    draft.tell(told)
    return TokenState(now_ms=draft.now_ms, credential=credential)


RULES: dict[type[Any], Callable[[Draft, Any], TokenState]] = {
    CreateToken: create_token,
    RotateToken: rotate_token,
    RevokeToken: revoke_token,
    LimitToken: limit_token,
    NoteUse: note_use,
}
