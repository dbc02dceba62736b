"""Makes, shows, replaces and revokes the tokens of a store, for a server's routes and for the command on a store of
this machine. Errors are raised. No claim needs this module.
"""

from __future__ import annotations

from dibs.base.errors import InvalidInput, RequestRefused, UnknownToken
from dibs.base.ids import new_secret
from dibs.core.credentials import (
    CreateToken,
    Credential,
    LimitToken,
    RevokeToken,
    RotateToken,
    TokenState,
)
from dibs.core.identity import Caller, require
from dibs.core.keys import CREDENTIAL_PREFIX
from dibs.core.limits import LIST_PAGE_DEFAULT
from dibs.engine.coordinator import Coordinator
from dibs.engine.queries import recount
from dibs.wire.credentials import (
    create_command,
    credential_document,
    digest_of,
    grace_ms_of,
    life_ms_of,
    limits_of,
)
from dibs.wire.documents import Reply, reply_for
from dibs.wire.requests import shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dibs.core.commands import PlainCommand
    from dibs.stores.port import Store

    Document = dict[str, Any]

OF_ANOTHER = "A token with this hash is known, and is not of your namespace."
VERBS = ("tokens", "token-create", "token-rotate", "token-revoke", "token-limit")


def credential_pages(store: Store) -> Iterator[list[Credential]]:
    """All tokens on record, also revoked and expired ones."""
    after = ""
    while page := store.scan(CREDENTIAL_PREFIX, after, LIST_PAGE_DEFAULT):
        records = [versioned.record for _, versioned in page]
        yield [each for each in records if isinstance(each, Credential)]
        after = page[-1][0]


def credentials(store: Store, name: str | None = None) -> list[Credential]:
    """All tokens on record, or those of one principal, by name."""
    found = [each for page in credential_pages(store) for each in page if name in (None, each.name)]
    return sorted(found, key=lambda each: (each.name, each.since_ms))


class CredentialAdmin:
    """The requests of one caller about tokens."""

    def __init__(self, store: Store, caller: Caller) -> None:
        if not store.capabilities.serves:
            raise InvalidInput(
                "Tokens are for servers, and no server stands on this store. Whoever may write it may use it."
            )
        self._store = store
        self._coordinator = Coordinator(store)
        self._caller = caller

    def ask(self, verb: str, name: str, wanted_id: str, document: object) -> Reply:
        """The reply to one of VERBS. `name` is the token's principal, `wanted_id` the beginning of its hash, or
        empty."""
        require(self._caller, verb)
        if verb == "tokens":
            return self._list()
        if verb == "token-create":
            return self._create(shape(verb, document))
        if verb == "token-revoke":
            return self._revoke(name, wanted_id)
        if verb == "token-rotate":
            return self._rotate(name, wanted_id, shape(verb, document))
        return self._limit(name, wanted_id, shape(verb, document))

    def _list(self) -> Reply:
        now_ms = self._store.read(()).now_ms
        seen = [each for each in credentials(self._store) if self._is_ours(each)]
        return Reply(status=200, body={"tokens": [credential_document(each, now_ms) for each in seen]})

    def _create(self, document: Document) -> Reply:
        token = new_secret()
        command = create_command(document, self._caller, digest_of(token))
        reply = self._run(command)
        if reply.status != 200 or reply.body is None:
            return reply
        if self._caller.namespace not in (None, reply.body["namespace"]):  # a token that was on record before
            raise RequestRefused(OF_ANOTHER, "conflict")
        if "sha256" not in document:
            reply.body["token"] = token
        return reply.replace(status=201)

    def _rotate(self, name: str, wanted_id: str, document: Document) -> Reply:
        live = self._live(name, wanted_id)
        if len(live) > 1:
            ids = ", ".join([each.id for each in live])
            raise InvalidInput(f"{name} has {len(live)} tokens. Say which by its id: {ids}.")
        token = new_secret()
        grace_ms = grace_ms_of(document)
        command = RotateToken(
            digest=live[0].digest,
            fresh_digest=digest_of(token),
            by=self._caller.principal,
            grace_ms=grace_ms,
            life_ms=life_ms_of(document),
        )
        reply = self._run(command)
        if reply.status != 200 or reply.body is None:
            return reply
        replaced = {"id": live[0].id, "grace_seconds": grace_ms // 1000}
        return reply.replace(body={**reply.body, "token": token, "replaces": replaced})

    def replace_own(self, digest: str, life_ms: int) -> str:
        """A new token in the place of the caller's own, which is over then. It ends when the old one would have. A
        token of a file becomes one of the store first: the store then says that it is over, and is asked before the
        file. `life_ms` is what is left of it there; 0: it does not end."""
        caller = self._caller
        self._run(
            CreateToken(
                digest=digest,
                name=caller.principal,
                by=self._by,
                role=caller.role,
                namespace=caller.namespace,
                life_ms=life_ms,
            )
        )
        token = new_secret()
        self._run(RotateToken(digest=digest, fresh_digest=digest_of(token), by=self._by, grace_ms=0, keeps_end=True))
        return token

    def _revoke(self, name: str, wanted_id: str) -> Reply:
        return self._each("revoked", name, wanted_id, lambda each: RevokeToken(digest=each.digest, by=self._by))

    def _limit(self, name: str, wanted_id: str, document: Document) -> Reply:
        return self._each(
            "tokens",
            name,
            wanted_id,
            lambda each: LimitToken(digest=each.digest, by=self._by, limits=limits_of(document, each.limits)),
        )

    def _each(self, field: str, name: str, wanted_id: str, command: Any) -> Reply:
        changed: list[Document] = []
        for each in self._live(name, wanted_id):
            reply = self._run(command(each))
            if reply.status != 200 or reply.body is None:
                return reply
            changed.append(reply.body)
        return Reply(status=200, body={field: changed})

    @property
    def _by(self) -> str:
        return self._caller.principal

    def _is_ours(self, credential: Credential) -> bool:
        return self._caller.namespace in (None, credential.namespace)

    def _live(self, name: str, wanted_id: str) -> list[Credential]:
        """The tokens that name and id select; at least one."""
        now_ms = self._store.read(()).now_ms
        found = [
            each
            for each in credentials(self._store, name)
            if self._is_ours(each) and each.digest.startswith(wanted_id) and not each.is_over(now_ms)
        ]
        if not found:
            raise UnknownToken(f"There is no valid token of {name}{' with this id' if wanted_id else ''} in the store.")
        return found

    def _run(self, command: PlainCommand) -> Reply:
        outcome = self._coordinator.one(command)
        if not isinstance(outcome, TokenState):  # the store is being moved to another one
            return reply_for(outcome)
        if outcome.credential is None:
            raise UnknownToken("This token is over. Make a new one.")
        self._count(command, outcome.credential)
        return Reply(status=200, body=credential_document(outcome.credential, outcome.now_ms))

    def _count(self, command: PlainCommand, credential: Credential) -> None:
        """A principal that gets a limit may already hold something. The limit counts new holds at once, and old ones
        from this count on."""
        payer = Caller(principal=credential.name, namespace=credential.namespace, limits=credential.limits).payer
        if payer is not None and isinstance(command, CreateToken | LimitToken):
            recount(self._store, payer)
