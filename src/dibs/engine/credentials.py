"""The tokens of a store: the requests that make, show, replace and revoke them, and what a server knows of them.

`CredentialAdmin` is for a server's routes and for the command on a store of this machine. Errors are raised.

`CredentialDirectory` has the tokens in memory, so that no request reads the store for them. A server looks at the
register of changes, which is one record, every CREDENTIAL_LOOK_MS, and sooner when it hears of a change. So it knows a
token that was made or revoked anywhere within that time. A server that could not look for CREDENTIAL_STALE_MS_MAX
accepts none of the store's tokens until it has looked. That is the bound of the promise `auth:revoked`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from dibs.base import errors
from dibs.base.clock import steady_ms
from dibs.base.ids import new_secret, proof_key_id
from dibs.base.jsontext import Document
from dibs.base.logger import log
from dibs.core import limits
from dibs.core.caller_rights import Caller, require
from dibs.core.commands import PlainCommand
from dibs.core.events import RIGHTS_CHANGES, Event
from dibs.core.records import CREDENTIAL_PREFIX, REGISTER_KEY
from dibs.core.service import credentials as rules
from dibs.engine.coordinator import run_one
from dibs.engine.event_log import EventFilter, collect
from dibs.engine.queries import begun, recount, scan_records
from dibs.engine.thread import EngineThread
from dibs.stores.port import RecordCorrupt, Store
from dibs.wire import credentials as wire
from dibs.wire.documents import Reply, expected
from dibs.wire.lease_documents import gap_document, named_event
from dibs.wire.requests import shape

_NEVER_MS = 2**63
UNREADABLE = -2  # instead of the number of changes: the register is damaged
OF_ANOTHER = "A token with this hash is known, and is not of your namespace."


def every_credential(store: Store) -> Iterator[rules.Credential]:
    """All tokens on record, also revoked and expired ones."""
    for _, each in scan_records(store, CREDENTIAL_PREFIX):
        if isinstance(each, rules.Credential):
            yield each


def credentials(store: Store, name: str | None = None) -> list[rules.Credential]:
    found = [each for each in every_credential(store) if name in (None, each.name)]
    return sorted(found, key=lambda each: (each.name, each.since_ms))


def caller_of(token: rules.Credential | wire.TokenLine) -> Caller:
    badges = (f"user:{token.name}", f"token:sha256:{token.digest}")
    return Caller(principal=token.name, role=token.role, namespace=token.namespace, badges=badges)


class CredentialAdmin:
    def __init__(self, store: Store, caller: Caller) -> None:
        if not store.capabilities.serves:
            raise errors.InvalidInput(
                "Tokens are for servers, and no server stands on this store. Whoever may write it may use it."
            )
        self._store = store
        self._caller = caller
        self._by = caller.principal

    def ask(self, verb: str, name: str, wanted_id: str, document: object) -> Reply:
        """The reply. `name` is a principal, `wanted_id` the beginning of a token's hash, or empty."""
        require(self._caller, verb)
        now_ms, _ = begun(self._store)
        if verb == "tokens":
            seen = [each for each in credentials(self._store) if self._is_ours(each)]
            return Reply(status=200, body={"tokens": [wire.credential_document(each, now_ms) for each in seen]})
        if verb == "token-create":
            return self._create(shape(verb, document))
        if verb == "token-revoke":
            by = self._by
            return self._each("revoked", name, wanted_id, lambda each: rules.RevokeToken(digest=each.digest, by=by))
        if verb == "token-rotate":
            return self._rotate(name, wanted_id, shape(verb, document))
        given = shape(verb, document)

        def limit(each: rules.Credential) -> PlainCommand:
            return rules.LimitToken(digest=each.digest, by=self._by, limits=wire.limits_of(given, each.limits))

        return self._each("tokens", name, wanted_id, limit)

    def _create(self, document: Document) -> Reply:
        token = new_secret()
        command = wire.create_command(document, self._caller, wire.digest_of(token))
        made = self._run(command)
        if self._caller.namespace not in (None, made["namespace"]):  # a token that was on record before
            raise errors.RequestRefused(OF_ANOTHER, "conflict")
        if "sha256" not in document:
            made["token"] = token
        return Reply(status=201, body=made)

    def _rotate(self, name: str, wanted_id: str, document: Document) -> Reply:
        live = self._live(name, wanted_id)
        if len(live) > 1:
            ids = ", ".join([each.id for each in live])
            raise errors.InvalidInput(f"{name} has {len(live)} tokens. Say which by its id: {ids}.")
        token = new_secret()
        grace_ms = wire.grace_ms_of(document)
        command = rules.RotateToken(
            digest=live[0].digest,
            fresh_digest=wire.digest_of(token),
            by=self._by,
            grace_ms=grace_ms,
            life_ms=wire.life_ms_of(document),
        )
        replaced = {"id": live[0].id, "grace_seconds": grace_ms // 1000}
        return Reply(status=200, body={**self._run(command), "token": token, "replaces": replaced})

    def replace_own(self, digest: str) -> str:
        """Replace the caller's own token by a new one, which ends when the old one would have. The old one ends at
        once. A token that the store does not know (of STATIC_TOKENS) is first put into the store, so that the store can
        refuse it."""
        by, role, ns = self._by, self._caller.role, self._caller.namespace
        self._run(rules.CreateToken(digest=digest, name=by, by=by, role=role, namespace=ns))
        token = new_secret()
        fresh = wire.digest_of(token)
        self._run(rules.RotateToken(digest=digest, fresh_digest=fresh, by=by, grace_ms=0, keeps_end=True))
        return token

    def _each(self, field: str, name: str, wanted_id: str, command: Any) -> Reply:
        changed = [self._run(command(each)) for each in self._live(name, wanted_id)]
        return Reply(status=200, body={field: changed})

    def _is_ours(self, credential: rules.Credential) -> bool:
        return self._caller.namespace in (None, credential.namespace)

    def _live(self, name: str, wanted_id: str) -> list[rules.Credential]:
        """The tokens that name and id select; at least one."""
        now_ms = self._store.read(()).now_ms
        found = [
            each
            for each in credentials(self._store, name)
            if self._is_ours(each) and each.digest.startswith(wanted_id) and not each.is_over(now_ms)
        ]
        if not found:
            raise errors.NotOnRecord(
                f"There is no valid token of {name}{' with this id' if wanted_id else ''} in the store."
            )
        return found

    def _run(self, command: PlainCommand) -> Document:
        outcome = expected(run_one(self._store, command), rules.TokenState)
        if outcome.credential is None:
            raise errors.NotOnRecord("This token is over. Make a new one.")
        found = outcome.credential
        payer = Caller(principal=found.name, namespace=found.namespace, limits=found.limits).payer
        if payer is not None and isinstance(command, rules.CreateToken | rules.LimitToken):
            recount(self._store, payer)  # what it holds already; new holds count without this
        return wire.credential_document(found, outcome.now_ms)


class TokensUnchecked(errors.StoreUnavailable):
    retry_after_ms = 1_000


class CredentialDirectory(EngineThread):
    """One per server. Any thread may call `look`, one at a time; only the event loop's thread may call `caller`."""

    def __init__(self, store: Store, steady: Callable[[], int] = steady_ms) -> None:
        super().__init__("dibs-tokens")
        self._store = store
        self._steady = steady
        self._looking = threading.Lock()
        self._changes = -1
        self._known: dict[bytes, tuple[Caller, int]] = {}  # by hash; with the time of its end
        self._keys: dict[str, bytes] = {}  # hashes by their name in proofs
        self._looked_ms = self._loaded_ms = -_NEVER_MS
        self._ahead_ms = 0  # how far the store's clock is ahead of ours
        self._used: set[bytes] = set()  # hashes of tokens that were used since that was last written down
        self._use_noted_ms = steady()
        self.hurry = self._wake.set  # look soon, because there is a change
        self._failed = False

    def __len__(self) -> int:
        now_ms = self._steady() + self._ahead_ms
        return len([over_ms for _, over_ms in list(self._known.values()) if now_ms < over_ms])

    def principals(self) -> set[str]:
        now_ms = self._steady() + self._ahead_ms
        return {caller.principal for caller, over_ms in list(self._known.values()) if now_ms < over_ms}

    def has(self, key: bytes) -> bool:
        """Tell whether this is the hash of a token on record, also of one that has ended."""
        return key in self._known

    def caller(self, key: bytes) -> Caller | None:
        """The caller of a token by its hash; None: it is unknown. Raises if it has ended or the look is too old."""
        known = self._known.get(key)
        if known is None:
            return None
        now_ms = self._steady()
        if now_ms - self._looked_ms > limits.CREDENTIAL_STALE_MS_MAX:
            raise TokensUnchecked("This server cannot read its store, so it cannot tell if the token is valid.")
        caller, over_ms = known
        if now_ms + self._ahead_ms >= over_ms:
            raise errors.AuthenticationFailed("The token has expired or was revoked. Ask an admin for a new one.")
        self._used.add(key)
        return caller

    def ends_ms(self, key: bytes) -> int | None:
        _, over_ms = self._known.get(key, (None, _NEVER_MS))
        return None if over_ms == _NEVER_MS else over_ms

    def next_end_in_ms(self) -> int | None:
        """In how many milliseconds the next of the valid tokens ends. For any thread."""
        now_ms = self._steady() + self._ahead_ms
        ends = [over_ms - now_ms for _, over_ms in list(self._known.values()) if now_ms < over_ms < _NEVER_MS]
        return min(ends, default=None)

    def key_named(self, key_id: str) -> bytes | None:
        return self._keys.get(key_id)

    def look(self) -> None:
        """Read the changes. Raises the store's errors."""
        with self._looking:
            self._look()
            if self._steady() - self._loaded_ms > limits.CREDENTIAL_RELOAD_MS:
                # All tokens, which is necessary after a restore. There may be many, so looking continues meanwhile;
                # those that change meanwhile are read once more at the end.
                changes, began_ms = self._changes, self._steady()
                self._known, self._keys = self._load(looks=True)
                self._changes, self._loaded_ms = changes, began_ms
                self._look()

    def note_use(self) -> None:
        """Write down which tokens were used. Raises the store's errors; what was not written is then forgotten."""
        used, self._used = self._used, set()  # one that the event loop still adds to the old set is lost
        self._use_noted_ms = self._steady()
        digests = sorted([key.hex() for key in list(used)])
        for first in range(0, len(digests), limits.USES_AT_ONCE_MAX):
            command = rules.NoteUse(digests=tuple(digests[first : first + limits.USES_AT_ONCE_MAX]))
            run_one(self._store, command)

    def start(self) -> None:
        self.look()
        super().start()

    def stop(self, timeout_ms: int = limits.CREDENTIAL_STALE_MS_MAX) -> bool:
        """The store may be closed after this."""
        return super().stop(timeout_ms)

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait(limits.CREDENTIAL_LOOK_MS / 1000)
            self._wake.clear()
            try:
                self.look()
                if self._used and self._steady() - self._use_noted_ms >= limits.USE_NOTED_MS:
                    self.note_use()
            except Exception as error:
                if not self._failed and not self._stopping:
                    ours = None if isinstance(error, errors.DibsError) else error
                    log.error("the store's tokens cannot be looked at: %s", error, exc_info=ours)
                self._failed = True
            else:
                self._failed = False
        with suppress(errors.DibsError):
            self.note_use()

    def _look(self) -> None:
        now_ms = self._steady()
        try:
            snapshot = self._store.read((REGISTER_KEY,))
        except RecordCorrupt as error:
            # Nobody can make or end a token while the register is damaged, so what is known stays true.
            self._ahead_ms = self._store.read(()).now_ms - now_ms
            if self._changes != UNREADABLE:
                log.error("tokens can neither be made nor ended: %s", error.details)
                self._known, self._keys = self._load()
            self._changes, self._looked_ms = UNREADABLE, now_ms
            return
        register = snapshot.records[REGISTER_KEY].record
        if not isinstance(register, rules.CredentialRegister):
            register = rules.CredentialRegister()
        self._ahead_ms = snapshot.now_ms - now_ms
        behind = register.changes - self._changes
        if self._changes < 0 or not 0 <= behind <= len(register.recent):
            self._known, self._keys = self._load()
            self._loaded_ms = now_ms
        elif behind:
            digests = register.recent[-behind:]
            records = self._store.read([rules.credential_key(digest) for digest in digests]).records
            for digest in digests:
                record = records[rules.credential_key(digest)].record
                if isinstance(record, rules.Credential):
                    self._note(self._known, self._keys, record)
        self._changes = register.changes
        self._looked_ms = now_ms

    def _load(self, *, looks: bool = False) -> tuple[dict[bytes, tuple[Caller, int]], dict[str, bytes]]:
        known: dict[bytes, tuple[Caller, int]] = {}
        keys: dict[str, bytes] = {}
        for credential in every_credential(self._store):
            self._note(known, keys, credential)
            if looks and self._steady() - self._looked_ms >= limits.CREDENTIAL_LOOK_MS:
                self._look()
        return known, keys

    @staticmethod
    def _note(known: dict[bytes, tuple[Caller, int]], keys: dict[str, bytes], credential: rules.Credential) -> None:
        key = bytes.fromhex(credential.digest)
        over_ms = 0 if credential.ended_ms else credential.expires_ms or _NEVER_MS
        known[key] = (caller_of(credential).replace(limits=credential.limits), over_ms)
        if credential.ended_ms:
            keys.pop(proof_key_id(key), None)
        else:
            keys[proof_key_id(key)] = key


class RightsFilter(EventFilter):
    """The events about tokens, webhooks and access lists, in one namespace or, if it is empty, in all."""

    def takes(self, event: Event) -> bool:
        return event.kind in RIGHTS_CHANGES and self.ns in ("", event.ns)


def rights_page(store: Store, bound: str | None, after: int, limit: int) -> dict[str, Any]:
    """Changes of who may do what, for an admin: the first such events after a position; with `bound` those of
    one namespace. `next` says where the page stopped; null: at the end."""
    begun(store)
    page = collect(store, RightsFilter(ns=bound or ""), after, limit)
    return {
        "events": [{**named_event(event), "user_id": event.principal or event.by} for event in page.events],
        "next": None if page.is_last else page.upto,
        "gap": None if page.oldest is None else gap_document(after, page.oldest),
    }
