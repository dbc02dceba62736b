"""Texts of the git hooks. Pure."""

from __future__ import annotations

from dibs.cli.text.words import plain, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from dibs.cli.git.path_check import PathClaim

    Document = dict[str, Any]

_SHOWN_MAX = 5
_DOING = {"pre-commit": "commit", "pre-push": "push"}


def findings(
    hook: str, touched: Mapping[PathClaim, Sequence[str]], missing: Sequence[str], *, refuse: bool
) -> str:
    """The claims of others that the change touches, and the paths that were not claimed."""
    what = _DOING[hook]
    lines = [f"this {what} is refused." if refuse else f"this {what} touches claims."]
    for hold, paths in touched.items():
        life = f" ({hold.life})" if hold.life else ""
        lines.append(
            f"  {plain(hold.owner)} has {plain(hold.name)} for another {span(hold.remaining_ms)}{life}; "
            f"the {what} changes {_listed(paths)}"
        )
    if missing:
        lines.append(f"  You have not claimed {_listed(missing)}")
    if refuse:
        lines.append(f"  {_next(hook, touched, missing)}")
    return "\n".join(lines)


def mentioned(touched: Mapping[PathClaim, Sequence[str]]) -> str:
    """Claims that may belong to this repository or to another one."""
    lines = ["these claims are outside of this repository's namespace, and may be meant for it:"]
    for hold, paths in touched.items():
        lines.append(f"  {plain(hold.owner)} has {plain(hold.name)}, which would touch {_listed(paths)}")
    return "\n".join(lines)


def _next(hook: str, touched: Mapping[PathClaim, Sequence[str]], missing: Sequence[str]) -> str:
    claim = "`dibs claim --staged` claims what is staged." if hook == "pre-commit" and missing else ""
    wait = "Wait until it is released, or leave those paths out." if touched else ""
    if not touched and not claim:
        wait = "Claim those paths first."
    skip = f"`git {_DOING[hook]} --no-verify` skips this check."
    return " ".join(part for part in (wait, claim, skip) if part)


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(_shown(path) for path in paths[:_SHOWN_MAX])
    return shown if len(paths) <= _SHOWN_MAX else f"{shown} and {len(paths) - _SHOWN_MAX} more"


def _shown(path: str) -> str:
    """A path on one line, without terminal escapes. Bytes that are not text are shown as escapes."""
    return plain(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def document(
    hook: str, policy: str, touched: Mapping[PathClaim, Sequence[str]], missing: Sequence[str], count: int
) -> Document:
    return {
        "hook": hook,
        "policy": policy,
        "paths": count,
        "touched": [
            {
                "name": hold.name,
                "owner": hold.owner,
                "remaining_ms": hold.remaining_ms,
                "paths": [_shown(path) for path in paths],
            }
            for hold, paths in touched.items()
        ],
        "not_claimed": [_shown(path) for path in missing],
    }


def unreachable(hook: str, why: str, *, refuse: bool) -> str:
    what = _DOING[hook]
    if refuse:
        return (
            f"this {what} is refused, because the claims cannot be read: {why}\n"
            f"  `git {what} --no-verify` skips this check; `git config dibs.unreachable warn` only warns."
        )
    return f"the claims cannot be read, so this {what} was not checked: {why}"
