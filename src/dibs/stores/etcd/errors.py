"""Translates etcd's errors into errors of dibs. Nowhere else.

etcd answers an error with a gRPC code and a sentence. Three things matter: whether the same call may be made
again at once, at another member; whether a write may have happened; and what a person should do.
"""

from __future__ import annotations

from dibs.base.errors import DibsError, StoreCorrupt, StoreDenied, StoreFull, StoreUnavailable
from dibs.stores.port import CommitTooLarge

# Codes of gRPC.
UNKNOWN = 2
INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 7, 8
FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, DATA_LOSS, UNAUTHENTICATED = 9, 11, 12, 15, 16
# When etcd answers with one of these, nothing was proposed to the cluster.
_BEFORE_WRITE = (
    INVALID_ARGUMENT,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    FAILED_PRECONDITION,
    OUT_OF_RANGE,
    UNIMPLEMENTED,
    UNAUTHENTICATED,
)
_PASSING = ("no leader", "too many requests", "for learner")
TOO_LARGE = "This is too large for etcd: a record may have 1.4 MB. Shorten the texts, or let fewer share one job."
_TOO_LARGE = ("request is too large", "larger than max", "too many operations")


NO_ROOM = "its quota is used up. Compact and defragment it, then disarm the alarm."


class Refusal(Exception):
    """etcd's error for a call that it did not execute, or may not have executed. Never leaves this store."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def is_before_write(self) -> bool:
        """Return whether it is certain that nothing was written. etcd looks at its quota before it proposes a write,
        and once more when it executes it; the second time it writes, and answers that there is no room."""
        return "no leader" in self.message or (self.code in _BEFORE_WRITE and not self.is_full)

    @property
    def is_full(self) -> bool:
        return "space exceeded" in self.message

    @property
    def wants_new_token(self) -> bool:
        return self.code == UNAUTHENTICATED or "revision of auth store is old" in self.message

    @property
    def is_passing(self) -> bool:
        """Return whether another member, or the same one a moment later, may answer differently."""
        if self.is_full:
            return False
        return not self.is_before_write or any(each in self.message for each in _PASSING)

    @property
    def is_compacted(self) -> bool:
        """Return whether etcd does not have that revision: not any more, or not yet."""
        return self.code == OUT_OF_RANGE

    @property
    def is_of_the_future(self) -> bool:
        return self.is_compacted and "future" in self.message


class LostConnection(Exception):
    """No answer came. `sent`: the request may have arrived. `fix`: what to do; empty: try again. `lasts`: a retry does
    not help."""

    def __init__(self, why: str, *, sent: bool, fix: str = "", lasts: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        self.fix = fix
        self.lasts = lasts


def translated(error: Refusal | LostConnection, where: str, *, writes: bool) -> DibsError:
    """The error of dibs. `writes`: the call was a commit, whose outcome may be unknown."""
    if isinstance(error, LostConnection):
        unknown = writes and error.sent
        what = error.fix or "Try again in a moment"
        return StoreUnavailable(f"etcd at {where} does not answer ({error.why}). {what}.", unknown=unknown)
    unknown = writes and not error.is_before_write
    if error.is_full:
        return StoreFull(f"etcd at {where} has no room: {NO_ROOM}", unknown=unknown)
    known = _known(error, where)
    if known is not None:
        return known
    said = error.message.removeprefix("etcdserver: ")
    return StoreUnavailable(f"etcd at {where} says: {said}. Try again in a moment.", unknown=unknown)


def _known(error: Refusal, where: str) -> DibsError | None:
    message = error.message
    if any(each in message for each in _TOO_LARGE):
        return CommitTooLarge(TOO_LARGE)
    if error.code == PERMISSION_DENIED:
        return StoreDenied(f"etcd at {where}: this user may not read and write below the prefix. Grant the role to it.")
    if "authentication failed" in message or "user name is empty" in message:
        return StoreDenied(f"etcd at {where} does not know this user and password.")
    if "authentication is not enabled" in message:
        return StoreDenied(f"etcd at {where} has no users: leave user and password out of the URL.")
    if error.code == UNAUTHENTICATED:
        return StoreDenied(f"etcd at {where} refused the token that it gave. Try again in a moment.")
    if error.code == DATA_LOSS:
        return StoreCorrupt(f"etcd at {where} reports that its members differ. Repair the cluster first.")
    if error.code == UNIMPLEMENTED:
        return StoreUnavailable(f"{where} does not speak etcd's version 3 API. dibs needs etcd 3.4 or newer.")
    return None
