"""Callers that are accepted: by the store's tokens (`engine/credentials.py`), by those of a private file, or by tokens
that an issuer signed (`oidc/`).

`wire/credentials.py` has the form of a line. Blank lines and lines that begin with `#` are skipped. The role is agent
unless the line says otherwise. A token without a namespace may use any. The file holds SHA-256 hashes; a line with the
token itself is accepted too, with a warning that says how to change it.

A token is found by a dictionary lookup of its hash. Timing that reveals only something about the hash of a guess, which
says nothing about a 256-bit token: it is as safe as comparing in constant time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from typing import Protocol

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, DibsError, InvalidInput
from dibs.base.files import to_disk
from dibs.base.ids import new_id, new_secret, proof_key_id, proof_of
from dibs.base.logger import log
from dibs.core.caller_rights import ADMIN, AGENT, Caller
from dibs.core.limits import PRINCIPAL_CHARS_MAX, TOKENS_FILE_BYTES_MAX
from dibs.core.names import PRINCIPAL_CHARACTERS
from dibs.core.service.signed_identity import IdentityRule, NoteIdentity
from dibs.engine.credentials import CredentialDirectory, caller_of
from dibs.engine.metrics import Metrics
from dibs.wire.credentials import TokenLine, parse_lines


class SignedGuard(Protocol):
    """Tokens that an issuer signed, in a plugin (`oidc/tokens.py`). One that was accepted is known by its hash."""

    counts: dict[str, int]
    on_accepted: Callable[[NoteIdentity], object]

    @property
    def rules(self) -> tuple[IdentityRule, ...]: ...
    def is_new(self, key: bytes) -> bool: ...
    def learn(self, key: bytes, authorization: bytes, then: Callable[[], None]) -> None: ...
    def known(self, key: bytes) -> Caller | None: ...
    def ends_ms(self, key: bytes) -> int | None: ...
    def principals(self) -> set[str]: ...
    def lets_in(self, owner: tuple[str, str | None]) -> bool: ...
    def reload(self) -> bool: ...


_BEARER = b"Bearer "
_SIGNED = b"Bearer eyJ"  # a JSON object in base64 begins so
_OWN = "@this-machine"


class TokenGuard:
    """The callers that are let in: by the store's tokens (`directory`), and by those of the file at `path`, if any.
    `own`: it is the user's own token, and must hold the token itself, because the user's client reads it."""

    def __init__(
        self,
        path: str | None,
        *,
        own: bool = False,
        wall: Callable[[], int] = wall_ms,
        directory: CredentialDirectory | None = None,
        fixed: dict[bytes, Caller] | None = None,
    ) -> None:
        self.path = path
        self.has_own_token = own
        self._wall = wall
        self.directory = directory
        self.fixed = fixed or {}  # callers that are let in as well, by the hash of their token
        self.signed: SignedGuard | None = None  # tokens that others signed
        self._callers: dict[bytes, Caller] = {}
        self._ends_ms: dict[bytes, int] = {}
        self._keys: dict[str, bytes] = {}  # hashes by their name in proofs
        self._read()

    def _read(self) -> None:
        if self.path is None:
            return
        lines = read_tokens(self.path)
        taken = {caller.principal.lower() for caller in self.fixed.values()} if self.has_own_token else set()
        self._callers = {
            bytes.fromhex(line.digest): caller_of(_apart(line) if line.name.lower() in taken else line)
            for line in lines
        }
        self._ends_ms = {bytes.fromhex(line.digest): line.expires_ms for line in lines if line.expires_ms is not None}
        self._keys = {proof_key_id(key): key for key in self._callers}
        clear = [line.name for line in lines if line.is_clear]
        if clear and not self.has_own_token:
            log.warning(
                "%s holds %d token(s) that can be read (%s). Make new ones: dibs token create NAME --tokens %s",
                self.path,
                len(clear),
                ", ".join(clear[:3]) + (", ..." if len(clear) > 3 else ""),
                self.path,
            )

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, authorization: bytes | None, peer: bytes | None = None) -> Caller:
        """The caller with this Authorization header; `peer` is for guards that know the users of the machine."""
        return self.known(digest_of(authorization), peer)

    def known(self, key: bytes | None, peer: bytes | None = None) -> Caller:
        """The same by the hash of the token. It is asked with each request: a token may end at any time."""
        if key is None:
            raise AuthenticationRequired("Bearer token required")
        # The store first: a token that was revoked there is refused, even if a file still has it.
        stored = self.directory.caller(key) if self.directory is not None else None
        if stored is not None:
            return stored
        caller = self._callers.get(key) or self.fixed.get(key)
        if caller is None and self.signed is not None:
            caller = self.signed.known(key)
        if caller is None:
            raise AuthenticationFailed("The token is unknown or was revoked.")
        if key in self._ends_ms and self._wall() >= self._ends_ms[key]:
            raise AuthenticationFailed("The token has expired. Ask the operator of the server for a new one.")
        return caller

    def learn(self, key: bytes | None, headers: Mapping[bytes, bytes], then: Callable[[], None]) -> bool:
        """Check a signed token that is not known yet, and go on with `then`, now or when its issuer has answered. False
        if there is none to check, also because it is a token of ours that looks like one."""
        if self.signed is None or key is None or not self.signed.is_new(key) or self._lists(key):
            return False
        authorization = headers[b"authorization"].strip()
        if not authorization.startswith(_SIGNED):
            return False
        self.signed.learn(key, authorization, then)
        return True

    def _lists(self, key: bytes) -> bool:
        stored = self.directory is not None and self.directory.has(key)
        return stored or key in self._callers or key in self.fixed

    def knows(self, key: bytes | None, peer: bytes | None = None) -> bool:
        try:
            self.known(key, peer)
        except DibsError:
            return False
        return True

    def ends_ms(self, authorization: bytes | None) -> int | None:
        key = digest_of(authorization)
        if key is None:
            return None
        stored = self.directory.ends_ms(key) if self.directory is not None else None
        if stored is None and self.signed is not None:
            stored = self.signed.ends_ms(key)
        return self._ends_ms.get(key) if stored is None else stored

    def next_end_ms(self) -> int | None:
        """Return when the next of the valid tokens ends, on the wall clock. None if none does. For any thread."""
        now_ms = self._wall()
        ends = [over_ms for over_ms in list(self._ends_ms.values()) if now_ms < over_ms]
        left_ms = self.directory.next_end_in_ms() if self.directory is not None else None
        if left_ms is not None:
            ends.append(now_ms + left_ms)
        return min(ends, default=None)

    def principals(self) -> set[str]:
        stored = self.directory.principals() if self.directory is not None else set()
        signed = self.signed.principals() if self.signed is not None else set()
        return {caller.principal for caller in self.callers()} | stored | signed

    def callers(self) -> list[Caller]:
        """Everybody that is let in without being in the store."""
        return [*self._callers.values(), *self.fixed.values()]

    def is_of_another(self, digest: str, namespace: str | None) -> bool:
        """Return whether a token is let in by other means than the store, and not for `namespace`."""
        key = bytes.fromhex(digest)
        caller = self._callers.get(key) or self.fixed.get(key)
        return caller is not None and caller.namespace != namespace

    def lets_in(self, owner: tuple[str, str | None]) -> bool | None:
        """Return whether a principal with its namespace is let in without being in the store. None: not here, as far as
        is known; other servers on the store may let it in, or an issuer may sign for it at any time."""
        now_ms = self._wall()
        valid = [caller for key, caller in self._callers.items() if now_ms < self._ends_ms.get(key, now_ms + 1)]
        if any((caller.principal, caller.namespace) == owner for caller in (*valid, *self.fixed.values())):
            return True
        if self.signed is not None:
            return self.signed.lets_in(owner) or None
        return None if (self.path is None and not self.fixed) or self.has_own_token else False

    def is_own_token(self, authorization: bytes) -> bool:
        return self.has_own_token and self.is_in_file(authorization)

    def is_in_file(self, authorization: bytes) -> bool:
        return digest_of(authorization) in self._callers

    def is_signed(self, authorization: bytes) -> bool:
        key = digest_of(authorization)
        return self.signed is not None and key is not None and not self._lists(key) and not self.signed.is_new(key)

    def proof(self, key_id: str, challenge: str) -> str | None:
        """The proof, for a client that has a token, that this server knows its hash. None if it does not."""
        key = self.directory.key_named(key_id) if self.directory is not None else None
        key = key or self._keys.get(key_id)
        return None if key is None else proof_of(key, challenge)

    def reload(self) -> bool:
        """Read the files again; a removed line is a revoked token. A broken file changes nothing."""
        is_signed_well = self.signed is None or self.signed.reload()
        if self.path is None:
            return is_signed_well
        try:
            self._read()
        except DibsError as error:
            log.error("tokens NOT reloaded, the old ones stay valid: %s", error.details)
            return False
        log.info("tokens reloaded from %s: %d", self.path, len(self))
        return is_signed_well


def _apart(line: TokenLine) -> TokenLine:
    """The server's own user beside another of its name: what is one's is not the other's."""
    return line.replace(name=f"{line.name[: PRINCIPAL_CHARS_MAX - len(_OWN)]}{_OWN}")


class MachineGuard(TokenGuard):
    """Accepts every user of this machine who can reach the socket, identified by the kernel. Root and the server's own
    user are admins. Headers about the user are ignored."""

    def __init__(self) -> None:
        super().__init__(None)
        self._known: dict[bytes, Caller] = {}

    def known(self, key: bytes | None, peer: bytes | None = None) -> Caller:
        if peer is None:
            raise AuthenticationRequired("This address is for users of the machine, over its socket.")
        if peer not in self._known:
            self._known[peer] = self._user(int(peer))
        return self._known[peer]

    def lets_in(self, owner: tuple[str, str | None]) -> bool | None:
        name, namespace = owner
        with contextlib.suppress(KeyError, ValueError):
            number = name.removeprefix("uid-")
            uid = int(number) if number != name and number.isdecimal() else pwd.getpwnam(name).pw_uid
            return True if (name, namespace) == (self._user(uid).principal, None) else None
        return None

    @staticmethod
    def _user(uid: int) -> Caller:
        try:
            login = pwd.getpwuid(uid).pw_name
            name = login if principal_name(login) == login else f"uid-{uid}"
        except KeyError:
            name = f"uid-{uid}"
        return Caller(principal=name, role=ADMIN if uid in (0, os.geteuid()) else AGENT, badges=(f"user:{name}",))

    def reload(self) -> bool:
        self._known = {}
        return True


def digest_of(authorization: bytes | None) -> bytes | None:
    authorization = authorization and authorization.strip()  # blanks around a header's value are ignored
    if not authorization or not authorization.startswith(_BEARER):
        return None
    return hashlib.sha256(authorization[len(_BEARER) :]).digest()


def read_tokens(path: str) -> list[TokenLine]:
    """Every error in the file is InvalidInput; no message ever holds a token."""
    lines: dict[str, TokenLine] = {}
    for number, _, line in parse_lines(path, _read_private(path)):
        if line is not None:
            if line.digest in lines:
                raise InvalidInput(f"{path}, line {number}: this token is on an earlier line already.")
            lines[line.digest] = line
    if not lines:
        log.warning("%s holds no token: every request is refused", path)
    return list(lines.values())


def _read_private(path: str) -> str:
    """The text of a regular file that only its owner can read or write."""
    try:
        # Not blocking, because opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(f"The tokens file {path} cannot be read: {error.strerror}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"The tokens file {path} is not a regular file.")
        if status.st_mode & 0o077:
            raise InvalidInput(
                f"The tokens file {path} can be read by others (mode {status.st_mode & 0o777:03o}). "
                f"Run: chmod 600 {path}"
            )
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(TOKENS_FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > TOKENS_FILE_BYTES_MAX:
        raise InvalidInput(f"The tokens file {path} is larger than {TOKENS_FILE_BYTES_MAX} bytes.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"The tokens file {path} is not text in UTF-8.") from None


def ensure_token_file(path: str, name: str) -> bool:
    """Make the file of the user's own token, unless it exists. True if it was made."""
    if os.path.lexists(path):
        return False
    drafted = f"{path}.{new_id()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(drafted, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w") as file:
                file.write(f"{principal_name(name)}:{new_secret()}:{ADMIN}\n")
                file.flush()
                to_disk(file.fileno())
            os.link(drafted, path)  # atomic, and never in the place of a file that another server made meanwhile
            return True
        except FileExistsError:
            return False
        finally:
            os.unlink(drafted)
    except OSError as error:
        raise InvalidInput(f"The token file {path} cannot be made: {error.strerror}.") from None


def principal_name(login: str) -> str:
    """A login name as a principal's name, without characters that a tokens file cannot have."""
    kept = "".join(character for character in login if character in PRINCIPAL_CHARACTERS)
    return kept[:PRINCIPAL_CHARS_MAX] or "local"


# How many requests a second a principal may send to this server: a token bucket for each principal with a limit. It
# holds one second's worth. Heartbeats and releases are counted but never refused: a principal that asks too much must
# not lose its leases. Each server counts for itself.

_KEEPING = frozenset(("renew", "release", "leave", "withdraw", "session-keep", "session-end"))
BUCKETS_MAX = 10_000


class RateLimited(DibsError):
    code = "rate_limited"

    def __init__(self, details: str, retry_after_ms: int) -> None:
        super().__init__(details)
        self.retry_after_ms = retry_after_ms


class RequestRates:
    """Counts the requests of each principal with a limit, and refuses those above it. For one event loop."""

    def __init__(self, steady: Callable[[], int] = steady_ms, metrics: Metrics | None = None) -> None:
        self._steady = steady
        self._metrics = metrics or Metrics()
        self._buckets: dict[tuple[str, str | None], tuple[int, int]] = {}  # milli-requests left, and when

    def count(self, caller: Caller, verb: str) -> None:
        rate = caller.limits.rate
        if not rate:
            return
        now_ms = self._steady()
        key = (caller.principal, caller.namespace)
        left, then_ms = self._buckets.get(key, (rate * 1000, now_ms))
        left = min(rate * 1000, left + (now_ms - then_ms) * rate)
        if left < 1000 and verb not in _KEEPING:
            self._buckets[key] = (left, now_ms)
            self._metrics.rate_limited += 1
            raise RateLimited(
                f"This token may send {rate} requests a second to a server. Ask again a little later.",
                max(1, -(-(1000 - left) // rate)),
            )
        if len(self._buckets) >= BUCKETS_MAX and key not in self._buckets:
            self._buckets.clear()  # principals come and go; a new entry has a full bucket
        self._buckets[key] = (max(left - 1000, -rate * 1000), now_ms)
