"""Checks signed tokens, and remembers those that were accepted by their hash, until they end.

A token is checked once: form, issuer, key, signature, times, rules. After that it is found by its hash as any other
token is (`engine/auth.py`), for IDENTITY_REMEMBERED_MS or until it ends. A refused caller learns nothing; the
reason is in the log and in the metrics. Of a token whose signature was not checked, no line says anything.

The event loop checks tokens, because that takes less than a millisecond. It never waits for an issuer: a
thread asks for the keys, and requests with tokens of that issuer go on when it has answered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import jwt

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import DibsError, Unavailable
from dibs.base.logger import log
from dibs.base.terminal import plain
from dibs.core import limits
from dibs.core.caller_rights import Caller
from dibs.core.service.signed_identity import IdentityRule, NoteIdentity, judge, texts_of, warnings_about
from dibs.engine.metrics import IDENTITY_CHECKS
from dibs.oidc.issuers import ALGORITHMS, Issuer, IssuerKey, KeysUnavailable
from dibs.oidc.rules_file import IdentityRules, read_rules

ACCEPTED, MALFORMED, ISSUER, KEY, SIGNATURE, TIME, RULES, KEYS = IDENTITY_CHECKS
_SHOWN_CHARS_MAX = 200
_LOG_EVERY_MS = 10_000
WAIT_S_MAX = 3 * limits.IDENTITY_ASK_MS_MAX / 1000  # how long a request waits for its issuer


class SignatureUnchecked(Unavailable):
    """Raised for a signed token while the keys of its issuer cannot be had."""

    retry_after_ms = 1_000


class TokenRefused(Exception):
    """A token is refused: the kind of reason, and words for the operator."""

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(details)
        self.reason, self.details = reason, details


class KeysNeeded(Exception):
    """The keys of this issuer must be asked for."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__()
        self.issuer = issuer


class Accepted(NamedTuple):
    caller: Caller
    ends_ms: int  # on the wall clock
    until_ms: int  # on the steady clock: it is checked again then
    issuer: str
    subject: str


class SignedTokens:
    """For one event loop. `reload` may be called by its signal handler."""

    def __init__(self, path: str, *, wall: Callable[[], int] = wall_ms, steady: Callable[[], int] = steady_ms) -> None:
        self._path = path
        self._wall = wall
        self._steady = steady
        self._known: dict[bytes, Accepted] = {}
        self._unsure: dict[bytes, None] = {}  # tokens that could not be checked, the oldest first
        self._noted_ms: dict[tuple[str, str, str], int] = {}
        self._next_line_ms: dict[str, int] = {}
        self._issuers: dict[str, Issuer] = {}
        self.counts = dict.fromkeys(IDENTITY_CHECKS, 0)
        self.on_accepted: Callable[[NoteIdentity], object] = lambda command: None
        self._use(read_rules(path))

    def _use(self, found: IdentityRules) -> None:
        # Keys of an issuer that comes from the same source are known already.
        kept = {each.source: each for each in self._issuers.values()}
        issuers = {}
        for source in found.sources:
            issuers[source.issuer] = kept.get(source) or Issuer(source, self._steady)
            if source.keys and "://" not in source.keys:
                issuers[source.issuer].end(_read_now(issuers[source.issuer]))
        self._rules, self._issuers = found, issuers
        for key in self._known:
            self._doubt(key)  # a request that is under way asks again, and is not refused
        self._known = {}
        for number, text in warnings_about(found.rules):
            log.warning("%s, rule %d: %s", found.path, number, text)

    @property
    def rules(self) -> tuple[IdentityRule, ...]:
        return self._rules.rules

    def __len__(self) -> int:
        return len(self.rules)

    def reload(self) -> bool:
        """Read the rules again, and check every token again. A broken file changes nothing."""
        try:
            self._use(read_rules(self._path))
        except DibsError as error:
            log.error("identity rules NOT reloaded, the old ones stay: %s", error.details)
            return False
        log.info("identity rules reloaded from %s: %d", self._path, len(self))
        return True

    # Asked with every request.

    def is_new(self, key: bytes) -> bool:
        """Tell whether a token with this hash must be checked first."""
        found = self._known.get(key)
        return found is None or self._steady() >= found.until_ms or self._is_over(found)

    def known(self, key: bytes) -> Caller | None:
        """The caller of a token that was accepted: a stream goes on with it until it ends, or is refused when it comes
        again. Raises SignatureUnchecked if it could not be checked."""
        found = self._known.get(key)
        if found is not None and not self._is_over(found):
            return found.caller
        if key in self._unsure:
            raise SignatureUnchecked("The token cannot be checked now. Ask again.")
        return None

    def ends_ms(self, key: bytes) -> int | None:
        found = self._known.get(key)
        return None if found is None else found.ends_ms

    def principals(self) -> set[str]:
        return {principal for principal, _ in self._owners()}

    def lets_in(self, owner: tuple[str, str | None]) -> bool:
        """Return whether a rule names this principal with this namespace, or a token that became it is valid here. A
        rule with a template says nothing about who will come."""
        named = {(rule.principal, rule.namespace or None) for rule in self.rules}  # no owner is called as a template
        return owner in named or owner in self._owners()

    def _owners(self) -> set[tuple[str, str | None]]:
        valid = [each.caller for each in list(self._known.values()) if not self._is_over(each)]
        return {(caller.principal, caller.namespace) for caller in valid}

    def _is_over(self, found: Accepted) -> bool:
        return self._wall() >= found.ends_ms

    # A token that was not seen before.

    def learn(self, key: bytes, authorization: bytes, then: Callable[[], None]) -> None:
        """Check a token and remember it if it is accepted, then go on: at once, or when its issuer has answered."""
        token = authorization.partition(b" ")[2].strip()
        issuer = self._learn_now(key, token)
        if issuer is not None:
            self._ask(issuer)

        def go_on() -> None:
            self.counts[KEYS] += key in self._unsure
            then()

        def try_again() -> None:
            self._learn_now(key, token)
            go_on()

        if issuer is None or issuer.waiting is None or len(issuer.waiting) >= limits.IDENTITY_WAITING_MAX:
            go_on()
        else:
            issuer.waiting.append(try_again)

    def _learn_now(self, key: bytes, token: bytes) -> Issuer | None:
        """The same with the keys that are known now. Return the issuer whose keys are needed."""
        self._known.pop(key, None)
        self._unsure.pop(key, None)
        try:
            self._remember(key, self.check(token))
        except KeysNeeded as needed:
            self._doubt(key)
            return needed.issuer
        except KeysUnavailable:
            self._doubt(key)
        except TokenRefused as refusal:
            self._refuse(refusal)
        return None

    def _remember(self, key: bytes, found: Accepted) -> None:
        if len(self._known) >= limits.IDENTITY_REMEMBERED_MAX:
            self._known = {each: known for each, known in self._known.items() if not self._is_over(known)}
            while len(self._known) >= limits.IDENTITY_REMEMBERED_MAX:
                del self._known[next(iter(self._known))]  # the oldest; it is checked again when it comes
        self._known[key] = found
        self.counts[ACCEPTED] += 1
        caller, now_ms = found.caller, self._steady()
        who = (caller.principal, found.issuer, found.subject)
        if self._noted_ms.get(who, now_ms) <= now_ms:
            if len(self._noted_ms) >= limits.IDENTITY_REMEMBERED_MAX:
                self._noted_ms.clear()
            self._noted_ms[who] = now_ms + limits.IDENTITY_NOTED_MS
            log.info("%s is %s of %s", caller.principal, _shown(found.subject), found.issuer)
            self.on_accepted(
                NoteIdentity(
                    principal=caller.principal, ns=caller.namespace or "", issuer=found.issuer, subject=found.subject
                )
            )

    def _doubt(self, key: bytes) -> None:
        while len(self._unsure) >= limits.IDENTITY_REMEMBERED_MAX:
            del self._unsure[next(iter(self._unsure))]
        self._unsure[key] = None

    def _refuse(self, refusal: TokenRefused) -> None:
        self.counts[refusal.reason] += 1
        now_ms = self._steady()
        if now_ms >= self._next_line_ms.get(refusal.reason, now_ms):
            self._next_line_ms[refusal.reason] = now_ms + _LOG_EVERY_MS
            log.warning("a signed token was refused: %s", refusal.details)

    # Checking one.

    def check(self, token: bytes) -> Accepted:
        """The caller of a token. Raises TokenRefused, KeysNeeded, or KeysUnavailable: the issuer was asked just now."""
        header, claims = opened(token)
        issuer = self._issuers.get(claims["iss"]) if isinstance(claims.get("iss"), str) else None
        if issuer is None:
            raise TokenRefused(ISSUER, "no rule is for its issuer")
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS or "crit" in header:
            raise TokenRefused(MALFORMED, f"its algorithm is not one of {', '.join(ALGORITHMS)}")
        # Before the signature, because that takes longer. Nothing follows from it but a refusal.
        ends_ms = check_times(claims, self._wall())
        check_signature(token, self._key(issuer, header))
        finding = judge(self.rules, claims)
        if finding.caller is None:
            raise TokenRefused(RULES, f"{_shown(claims.get('sub'))} of {issuer.source.issuer}: {plain(finding.reason)}")
        return Accepted(
            caller=finding.caller,
            ends_ms=ends_ms,
            until_ms=self._steady() + limits.IDENTITY_REMEMBERED_MS,
            issuer=issuer.source.issuer,
            subject=_shown((texts_of(claims.get("sub")) or ["without a subject"])[0]),
        )

    def _key(self, issuer: Issuer, header: dict[str, Any]) -> IssuerKey:
        found = issuer.key(header.get("kid"), header["alg"])
        if found is None:
            if issuer.waiting is not None or issuer.may_be_asked:
                raise KeysNeeded(issuer)
            if not issuer.has_keys:
                raise KeysUnavailable(issuer.source.issuer)
            raise TokenRefused(KEY, f"{issuer.source.issuer} has no such key")
        if issuer.is_old and issuer.may_be_asked:
            self._ask(issuer)
        return found

    def _ask(self, issuer: Issuer) -> None:
        """Ask an issuer for its keys, in a thread. What waits for them goes on after it, or after WAIT_S_MAX: a name
        that cannot be looked up may hold the thread for longer than any answer."""
        if issuer.is_asking:
            return
        issuer.begin()
        loop = asyncio.get_running_loop()

        def work() -> None:
            keys = _read_now(issuer)
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(finish, keys)

        def finish(keys: list[IssuerKey] | None) -> None:
            timer.cancel()
            issuer.end(keys)
            go_on()

        def go_on() -> None:
            waiting, issuer.waiting = issuer.waiting or [], None
            for each in waiting:
                loop.call_soon(each)  # one that fails is alone with it

        timer = loop.call_later(WAIT_S_MAX, go_on)
        try:
            threading.Thread(target=work, name="dibs-issuer", daemon=True).start()
        except RuntimeError:  # no more threads now
            finish(None)


def _read_now(issuer: Issuer) -> list[IssuerKey] | None:
    try:
        return issuer.fetch()
    except KeysUnavailable as error:
        log.error("the keys of %s cannot be had: %s", issuer.source.issuer, plain(error))
    except Exception as error:  # whatever it is, those who wait for the keys must hear of it
        log.error("the keys of %s cannot be had: %s", issuer.source.issuer, type(error).__name__)
    return None


def opened(token: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims, which nobody has checked. Raises TokenRefused."""
    if len(token) > limits.IDENTITY_TOKEN_BYTES_MAX:
        raise TokenRefused(MALFORMED, f"it is longer than {limits.IDENTITY_TOKEN_BYTES_MAX} bytes")
    parts = token.split(b".")
    if len(parts) != 3:
        raise TokenRefused(MALFORMED, "it is no signed token")
    header, claims = [_object(part) for part in parts[:2]]
    return header, claims


def _object(part: bytes) -> dict[str, Any]:
    try:
        found = json.loads(base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError, binascii.Error):
        found = None
    if not isinstance(found, dict):
        raise TokenRefused(MALFORMED, "it is no signed token")
    return found


def check_times(claims: dict[str, Any], now_ms: int) -> int:
    """Return when the token ends. Raises TokenRefused if it is not valid now, within the leeway."""
    leeway_ms = limits.IDENTITY_LEEWAY_S * 1000
    times: dict[str, int] = {}
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None and name != "exp":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
            raise TokenRefused(TIME, f"it has no {name} that is a time")
        times[name] = math.floor(value * 1000)
    if now_ms >= times["exp"] + leeway_ms:
        raise TokenRefused(TIME, "it has ended")
    if any(now_ms + leeway_ms < times.get(name, 0) for name in ("nbf", "iat")):
        raise TokenRefused(TIME, "it begins later. Are the clocks of this machine and of its issuer apart?")
    return times["exp"] + leeway_ms


def check_signature(token: bytes, key: IssuerKey) -> None:
    try:
        _JWS.decode_complete(token, key.key, algorithms=[key.algorithm])
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise TokenRefused(SIGNATURE, "its signature is wrong") from None


_JWS = jwt.PyJWS(algorithms=list(ALGORITHMS))


def _shown(text: object) -> str:
    return plain(str(text))[:_SHOWN_CHARS_MAX]
