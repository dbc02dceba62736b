"""Translates errors of the git program into errors of dibs. Nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.base.errors import DibsError, NotAllowed, StoreFull, StoreUnavailable
from dibs.base.git_program import GitResult
from dibs.base.redact import without_secrets
from dibs.stores.git.location import HEADS_PREFIX, GitLocation

# Two pushes met in the server's lock files. Trying again helps, unless git also reports one of _LASTING.
_PASSING = ("cannot lock ref", "failed to lock", ".lock': file exists", "reference already exists")
_FULL = ("no space left", "quota exceeded")
_LASTING = ("permission denied", "read-only file system", *_FULL)
# Texts of git before anything was sent.
_NOT_SENT = (
    *("unable to access", "could not resolve host", "connection refused", "not found", "no such file or directory"),
    *("could not read from remote repository", "does not appear to be a git repository", "permission denied"),
    *("authentication failed", "could not read username", "could not read password", "terminal prompts disabled"),
    *("does not support --atomic", "stale info", "hash algorithm", "service not enabled", "repository not exported"),
)
# Texts for a user who may read but not write.
_READ_ONLY = (
    *("service not enabled", "repository not exported", "returned error: 403", "returned error: 401", "read-only"),
    *("write access to repository not granted", "permission to", "permission denied"),
    *("authentication failed", "could not read username", "terminal prompts disabled"),
)
_CREDENTIALS = (
    *("authentication failed", "could not read username", "could not read password", "terminal prompts disabled"),
    *("permission denied", "403", "401", "access denied"),
)


def _says(result: GitResult, phrases: Sequence[str]) -> bool:
    said = result.err.lower() + result.out.decode("utf-8", "replace").lower()
    return any(phrase in said for phrase in phrases)


def is_passing(result: GitResult) -> bool:
    return _says(result, _PASSING) and not _says(result, _LASTING)


def may_have_arrived(result: GitResult) -> bool:
    """Return whether the server may have accepted the push although its answer was lost."""
    if result.timed_out:
        return True
    if not result.code or b"\n!\t" in b"\n" + result.out:  # it answered, ref by ref
        return False
    if "RPC failed" in result.err or "unexpected disconnect" in result.err or "hung up" in result.err:
        return True
    return not _says(result, _NOT_SENT)


def unreachable(location: GitLocation, result: GitResult) -> StoreUnavailable:
    where = without_secrets(location.remote)
    if _says(result, _CREDENTIALS):
        return StoreUnavailable(
            f"{where} refused access: {result.words}. Set up a credential helper, an SSH agent or a token, "
            f"so that `git ls-remote {where}` needs no password."
        )
    return StoreUnavailable(f"{where} cannot be read: {result.words}.")


def lost(location: GitLocation, result: GitResult, *, unknown: bool) -> StoreUnavailable:
    where = without_secrets(location.remote)
    if unknown:
        return StoreUnavailable(
            f"{where} did not say whether it accepted the push: {result.words}. The outcome is unknown.", unknown=True
        )
    return StoreUnavailable(f"{where} cannot be written: {result.words}.")


def torn(location: GitLocation, result: GitResult) -> StoreUnavailable:
    """git moves the refs of one step one after the other, and ended in between."""
    where = without_secrets(location.remote) or location.git.git_dir
    return StoreUnavailable(
        f"git wrote only some of the refs of {where}: {result.words}. The outcome is unknown.", unknown=True
    )


def refused(location: GitLocation, result: GitResult) -> DibsError:
    """The error for a push that was refused although the refs were as expected."""
    where = without_secrets(location.remote) or location.git.git_dir
    reasons = [
        line.rpartition("\t")[2]
        for line in result.out.decode("utf-8", "replace").splitlines()
        if line.startswith("!\t")
    ]
    said = "; ".join(dict.fromkeys([*reasons, result.words]))
    if "does not support --atomic" in result.err:
        return StoreUnavailable(f"{where} cannot change several refs in one step, which dibs needs: {said}")
    if _says(result, _FULL):
        return StoreFull(f"There is no room left at {where}: {said}")
    if not location.is_local and not reasons and _says(result, _READ_ONLY):
        return NotAllowed(
            f"There is no push access to {where}: {said}. Claims are pushes: give git an address and credentials that "
            "may push, or name another remote."
        )
    if location.is_local:
        return StoreUnavailable(f"The refs of {where} cannot be written: {said}")
    other = "" if location.prefix == HEADS_PREFIX else f"; another prefix may work (?prefix={HEADS_PREFIX})"
    return NotAllowed(
        f"{where} refused the push: {said}. `dibs doctor {location.shown}` finds out what it allows{other}."
    )
