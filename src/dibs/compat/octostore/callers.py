"""Callers as OctoStore sees them: a user by its token, or the admin by its key. All that hold the same token are one
user, and a user with a namespace may only use names below it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

from dibs.base.errors import InvalidInput, InvalidName
from dibs.base.ids import new_token
from dibs.compat.octostore.admin import ADMIN_PRINCIPAL, BEARER_ADMIN, ELECTIONS, KEY_HEADERS
from dibs.compat.octostore.bodies import check_lock_name, refused, unsupported, user_id
from dibs.core.caller_rights import ADMIN, AGENT, Caller
from dibs.core.commands import Command
from dibs.core.holds.max_hold import max_hold_ms
from dibs.core.holds.proof import may_use
from dibs.core.limits import ADMIN_GUESSES_MAX
from dibs.core.names import check_principal
from dibs.core.outcomes import Outcome
from dibs.core.records import Holder, SessionRecord
from dibs.server.handlers import Api
from dibs.server.http.admission import ClientWindows
from dibs.server.http.parse import decode_name
from dibs.server.http.request import HttpRequest
from dibs.wire.values import token_badge

# What an admitted request has in place of the key. The key itself is no token: as one, it could be guessed without end.
_ADMITTED = new_token()
NIL = "00000000-0000-0000-0000-000000000000"


class User(NamedTuple):
    principal: str
    scope: str | None = None  # the namespace: a prefix of names
    is_admin: bool = False
    badges: tuple[str, ...] = ()
    max_hold_ms: int = 0

    @property
    def id(self) -> str:
        return id_of(self.principal)

    def has(self, session: SessionRecord) -> bool:
        """Tell whether a session is this user's. Not by `bound`: all locks are in one namespace here."""
        return may_use(session, self.principal, self.scope)


def id_of(principal: str) -> str:
    return NIL if principal == ADMIN_PRINCIPAL else user_id(principal, None)


def internal_id(holder: Holder) -> str:
    """Return who holds a lock: an ephemeral one its session, every other one the user."""
    return holder.session if holder.session is not None and holder.ephemeral else id_of(holder.principal)


class UserDirectory:
    def __init__(self, api: Api, admin_key: str | None) -> None:
        self._api = api
        self._admin_key = admin_key
        self._guesses = ClientWindows(ADMIN_GUESSES_MAX, "wrong keys")

    def user(self, verb: str, call: HttpRequest) -> User:
        if self.has_admin_key(call):
            return User(ADMIN_PRINCIPAL, is_admin=True, max_hold_ms=self._api.settings.max_hold_ms)
        caller = self._api.caller_for(verb, call.headers).replace(max_hold_ms=self._api.settings.max_hold_ms)
        badges = tuple(each.lower() if each.startswith("user:") else each for each in caller.badges)
        return User(caller.principal, caller.namespace, badges=badges, max_hold_ms=max_hold_ms(caller))

    def has_admin_key(self, call: HttpRequest) -> bool:
        """Tell whether the request has the server's admin key. Raises if the client sent too many wrong ones."""
        given = next((call.headers[name] for name in KEY_HEADERS if name in call.headers), None)
        if self._admin_key is None or given is None:
            return False
        client = call.client
        self._guesses.check(client)
        if hmac.compare_digest(given, self._admin_key.encode()):
            call.connection.show_standing()
            return True
        self._guesses.count(client)
        return False

    def admit_admin(self, call: HttpRequest) -> None:
        """Raises unless an admin asks. The admin's key becomes a token that only the server's guard knows."""
        headers = dict(call.headers)
        bearer = headers.get(b"authorization", b"").strip()
        if bearer.startswith(BEARER_ADMIN):
            headers[KEY_HEADERS[0]] = bearer.removeprefix(BEARER_ADMIN)
            call.headers = headers
        if self.has_admin_key(call):
            headers[b"authorization"] = b"Bearer " + _ADMITTED.encode()
        call.headers = {name: value for name, value in headers.items() if name not in KEY_HEADERS}
        if self._api.caller_of(call.headers).role != ADMIN:
            raise refused("forbidden", "Admin access required")

    def lock_name(self, call: HttpRequest, user: User, *, anywhere: bool = False) -> str:
        """The name in the address, if the user may use it."""
        try:
            name = decode_name(call.raw_name)
        except InvalidName:
            raise unsupported(400) from None
        check_lock_name(name)
        if not anywhere and name.startswith(ELECTIONS):
            raise refused("forbidden", "The __election namespace is reserved for public leader elections")
        if not anywhere and user.scope is not None and not name.startswith(f"{user.scope}."):
            raise refused("forbidden", f"lock '{name}' is outside namespace '{user.scope}'")
        return name


class Handlers:
    """Answers requests of these users, by dibs' engine."""

    def __init__(self, api: Api, callers: UserDirectory) -> None:
        self._api = api
        self._callers = callers

    async def _submit(self, command: Command) -> Outcome:
        return await self._api.engine.batcher.submit(command)


def fixed_callers(users: Iterable[tuple[str, str]], admin_key: str | None) -> dict[bytes, Caller]:
    """The users of STATIC_TOKENS, and the admin, by the hash of their token or key."""
    found: dict[bytes, Caller] = {}
    for name, token in users:
        principal = principal_of(name, token)
        badges = (f"user:{principal}", token_badge(token))
        found[hashlib.sha256(token.encode()).digest()] = Caller(principal=principal, role=AGENT, badges=badges)
    if admin_key is not None:
        found[hashlib.sha256(_ADMITTED.encode()).digest()] = Caller(principal=ADMIN_PRINCIPAL, role=ADMIN)
    return found


def principal_of(name: str, token: str) -> str:
    """The name of a user. A name that is the token itself would show the token to everybody."""
    try:
        if name != token:
            return check_principal(name)
    except InvalidInput:
        pass
    return "user-" + hashlib.sha256(name.encode()).hexdigest()[:12]
