"""Who may ask: bearer tokens from a file that only its owner can read.

A line is `name:token[:role[:namespace]]`; blank lines and lines that begin with `#` are skipped. Roles are agent (the
default), operator and admin. A token without a namespace may name any.

Tokens are kept as SHA-256 hashes and found by a dictionary lookup of the hash. The lookup may take longer or shorter
depending on the hash, but whoever times it learns about the hash of a guess, which says nothing about a 256-bit token:
that is as good as comparing in constant time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from typing import TYPE_CHECKING

from dibs.core.limits import PRINCIPAL_CHARS_MAX, TOKENS_FILE_BYTES_MAX
from dibs.core.names import PRINCIPAL_CHARACTERS, check_namespace, check_principal
from dibs.errors import AuthenticationFailed, AuthenticationRequired, DibsError, InvalidInput, InvalidName
from dibs.ids import new_id, new_secret
from dibs.wire.requests import ADMIN, AGENT, ROLES, Caller, token_badge

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("dibs")

_BEARER = b"Bearer "


class Guard:
    """The callers that are let in. `reload` reads the file again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._callers: Mapping[bytes, Caller] = read_tokens(path)

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, authorization: bytes | None) -> Caller:
        """Who sent this Authorization header. Raises the two errors of the contract."""
        authorization = authorization and authorization.strip()  # blanks around a header's value mean nothing
        if not authorization or not authorization.startswith(_BEARER):
            raise AuthenticationRequired("Bearer token required")
        caller = self._callers.get(hashlib.sha256(authorization[len(_BEARER) :]).digest())
        if caller is None:
            raise AuthenticationFailed("The token is not known here, or was revoked.")
        return caller

    def reload(self) -> bool:
        """Read the file again; a removed line is a revoked token. A broken file changes nothing."""
        try:
            callers = read_tokens(self.path)
        except DibsError as error:
            log.error("tokens NOT reloaded, the old ones stay valid: %s", error.details)
            return False
        self._callers = callers
        log.warning("tokens reloaded from %s: %d", self.path, len(callers))
        return True


def read_tokens(path: str) -> dict[bytes, Caller]:
    """`{hash of the token: caller}`. Every fault of the file is InvalidInput; no message ever holds a token."""
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(_read_private(path).splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            token, caller = _parse(line)
        except (InvalidInput, InvalidName) as error:
            raise InvalidInput(f"{path}, line {number}: {error.details}") from None
        key = hashlib.sha256(token.encode()).digest()
        if key in callers:
            raise InvalidInput(f"{path}, line {number}: this token is on an earlier line already.")
        callers[key] = caller
    if not callers:
        log.warning("%s holds no token: nobody is let in", path)
    return callers


def _parse(line: str) -> tuple[str, Caller]:
    name, *rest = line.split(":")
    if not 1 <= len(rest) <= 3:
        raise InvalidInput("a line is name:token[:role[:namespace]].")
    check_principal(name)
    token = rest[0]
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput("a token is printable ASCII without blanks or colons.")
    role = rest[1] if len(rest) > 1 and rest[1] else AGENT
    if role not in ROLES:
        raise InvalidInput(f"the role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    namespace = check_namespace(rest[2]) if len(rest) > 2 else None
    badges = (f"user:{name}", token_badge(token))
    return token, Caller(principal=name, role=role, namespace=namespace, badges=badges)


def _read_private(path: str) -> str:
    """The text of a regular file that nobody but its owner can touch."""
    try:
        # Not blocking: opening a pipe would otherwise wait for its writer.
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
    """Make the file of the user's own token, unless it is there. True if it was made."""
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
                os.fsync(file.fileno())
            return _link(drafted, path)
        finally:
            os.unlink(drafted)
    except OSError as error:
        raise InvalidInput(f"The token file {path} cannot be made: {error.strerror}.") from None


def _link(drafted: str, path: str) -> bool:
    """A link appears whole or not at all, and never replaces what another server made meanwhile."""
    try:
        os.link(drafted, path)
    except FileExistsError:
        return False
    return True


def principal_name(login: str) -> str:
    """A login name as a principal's: what cannot stand in a tokens file is left out."""
    kept = "".join(character for character in login if character in PRINCIPAL_CHARACTERS)
    return kept[:PRINCIPAL_CHARS_MAX] or "local"
