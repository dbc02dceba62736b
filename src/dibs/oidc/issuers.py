"""The keys of issuers: from their own address (OpenID Connect discovery), from an address that the rules name, or from
a file, for networks from which no issuer can be reached.

Answers are bounded in size and time. Redirects are not followed, and proxies are ignored. A discovery document that
names another issuer is refused. Keys are public ones for RS256, ES256 and EdDSA; all others, symmetric ones first of
all, are passed over.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt

from dibs._version import __version__
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.files import read_ordinary
from dibs.base.logger import log
from dibs.core import limits
from dibs.oidc.rules_file import IssuerSource, check_url

RSA_BITS_MIN = 2048
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
ALGORITHMS = tuple(_ALGORITHMS.values())
DISCOVERY = "/.well-known/openid-configuration"


class KeysUnavailable(Exception):
    """The keys cannot be had now. The text says why, for the operator."""


class IssuerKey(NamedTuple):
    kid: str | None
    algorithm: str
    key: jwt.PyJWK


class Issuer:
    """One issuer. Only `fetch` is for other threads."""

    def __init__(self, source: IssuerSource, steady: Callable[[], int] = steady_ms) -> None:
        self.source = source
        self._steady = steady
        self._keys: list[IssuerKey] = []
        self._read_ms: int | None = None
        self._asked_ms: int | None = None
        self.is_asking = False
        self.waiting: list[Callable[[], None]] | None = None  # what goes on with its answer; None: none is waited for

    @property
    def has_keys(self) -> bool:
        return self._read_ms is not None and self._steady() - self._read_ms < limits.IDENTITY_KEYS_KEPT_MS

    @property
    def is_old(self) -> bool:
        return self._read_ms is None or self._steady() - self._read_ms >= limits.IDENTITY_KEYS_FRESH_MS

    @property
    def may_be_asked(self) -> bool:
        """An unknown key is a reason to ask, and anybody can name one. So it is asked once in a while."""
        rest_ms = limits.IDENTITY_ASK_AGAIN_MS if self.has_keys else limits.IDENTITY_ASK_MS_MAX
        return not self.is_asking and (self._asked_ms is None or self._steady() - self._asked_ms >= rest_ms)

    def key(self, kid: object, algorithm: str) -> IssuerKey | None:
        """The key of a token. One without a key's id is for an issuer that has one key."""
        known = self._keys if self.has_keys else []
        found = [each for each in known if each.algorithm == algorithm and kid in (None, each.kid)]
        return found[0] if len(found) == 1 else None

    def begin(self) -> None:
        self.is_asking, self._asked_ms, self.waiting = True, self._steady(), []

    def end(self, keys: list[IssuerKey] | None) -> None:
        """Take the keys, if there are any."""
        self.is_asking = False
        if keys is not None:
            self._keys, self._read_ms = keys, self._steady()

    def fetch(self) -> list[IssuerKey]:
        """Ask for the keys. Raises KeysUnavailable. It takes IDENTITY_ASK_MS_MAX for each of two requests at most."""
        source = self.source
        if source.keys and "://" not in source.keys:
            return keys_of(_file_content(source.keys), source.keys)
        if source.keys:
            return keys_of(get(source.keys, source), source.keys)
        issuer = source.issuer
        address = issuer.rstrip("/") + DISCOVERY
        document = get(address, source)
        if not isinstance(document, dict) or document.get("issuer") != issuer:
            raise KeysUnavailable(f"{address} names another issuer")
        where = document.get("jwks_uri")
        try:
            check_url(where if isinstance(where, str) else "", "jwks_uri")
        except InvalidInput as error:
            raise KeysUnavailable(f"{address}: {error.details}") from None
        return keys_of(get(str(where), source), str(where))


def _file_content(path: str) -> Any:
    try:
        return _parsed(read_ordinary(path, limits.IDENTITY_ANSWER_BYTES_MAX + 1), path)
    except OSError as error:
        raise KeysUnavailable(f"{path} cannot be read: {error.strerror}") from None


def _parsed(content: bytes, where: str) -> Any:
    if len(content) > limits.IDENTITY_ANSWER_BYTES_MAX:
        raise KeysUnavailable(f"{where} is larger than {limits.IDENTITY_ANSWER_BYTES_MAX} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise KeysUnavailable(f"{where} is not JSON") from None


def keys_of(document: Any, where: str) -> list[IssuerKey]:
    """The usable keys of a JWKS."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeysUnavailable(f"{where} is no JWKS")
    found = [key for each in listed[: limits.IDENTITY_KEYS_MAX] if (key := _key(each)) is not None]
    if not found:
        raise KeysUnavailable(f"{where} has no public key for {', '.join(ALGORITHMS)}")
    return found


def _key(given: Any) -> IssuerKey | None:
    if not isinstance(given, dict) or "d" in given or "k" in given or given.get("use", "sig") != "sig":
        return None
    curve, kid = given.get("crv"), given.get("kid")
    family = (str(given.get("kty")), None if given.get("kty") == "RSA" else str(curve))
    algorithm = _ALGORITHMS.get(family)
    if algorithm is None or given.get("alg", algorithm) != algorithm or not isinstance(kid, str | None):
        return None
    try:
        key = jwt.PyJWK(given, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if algorithm == "RS256" and key.key.key_size < RSA_BITS_MIN:
        return None
    return IssuerKey(kid, algorithm, key)


def get(url: str, source: IssuerSource) -> Any:
    """The JSON at an address. The issuer's own token is sent to its own host only."""
    parts = urlsplit(url)
    headers = {"Accept": "application/json", "User-Agent": f"dibs/{__version__}", "Connection": "close"}
    is_own = parts.netloc == urlsplit(source.keys if "://" in source.keys else source.issuer).netloc
    if source.token_file and is_own:
        headers["Authorization"] = f"Bearer {_own_token(source.token_file)}"
    timeout_s = limits.IDENTITY_ASK_MS_MAX / 1000
    connection: http.client.HTTPConnection
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=source.ca_file or None)
            connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    except (OSError, ValueError) as error:
        raise KeysUnavailable(f"{source.ca_file or url} cannot be used: {error}") from None
    ender: threading.Timer | None = None
    try:
        connection.connect()
        # A server that sends a byte now and then would hold this thread for as long as it likes. The socket is kept,
        # because the connection forgets it when an answer begins that is its last.
        ender = threading.Timer(timeout_s, _cut, (connection.sock,))
        ender.daemon = True
        ender.start()
        connection.request("GET", parts.path or "/", headers=headers)
        answer = connection.getresponse()
        content = answer.read(limits.IDENTITY_ANSWER_BYTES_MAX + 1)
    except OSError as error:
        raise KeysUnavailable(f"{url} does not answer: {error}") from None
    except (ValueError, http.client.HTTPException) as error:  # whose text may be what was sent, our token too
        raise KeysUnavailable(f"{url} does not answer: {type(error).__name__}") from None
    finally:
        if ender is not None:
            ender.cancel()
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise KeysUnavailable(f"{url} answers with {answer.status}")
    return _parsed(content, url)


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _own_token(path: str) -> str:
    try:
        return read_ordinary(path, limits.IDENTITY_TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.error("the token for the issuer cannot be read from %s: %s", path, type(error).__name__)
        raise KeysUnavailable(f"{path} cannot be read") from None
