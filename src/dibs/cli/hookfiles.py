"""Putting hooks beside those that are there, and taking them away again.

A hook that was there keeps its file, under a new name beside ours, and runs first: it may change what is staged (a
formatter), and ours must see the result. If it fails, its exit code is the answer and ours does not run. Nothing is
overwritten; what cannot be done is refused before anything is touched.
"""

from __future__ import annotations

import os

from dibs.cli.words import shell_word
from dibs.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.gitfacts import Repository

HOOKS = ("pre-commit", "pre-push")
BEFORE = ".before-dibs"
_MARK = "# Made by dibs."
_BYTES_MAX = 1024 * 1024
_PROGRAM = "dibs_program="
_SCRIPT = """\
#!/bin/sh
# Made by dibs. Holds what you {what} against path: and repo: claims; `dibs hook uninstall` takes this away.
# A hook that was here before is beside this one, with {before} at the end of its name, and runs first.
before="$0{before}"
{program}
"""
_COMMIT = """\
if [ -x "$before" ]; then
    "$before" "$@" || exit
fi
"""
# Both read the same lines.
_PUSH = """\
lines=$(cat)
[ -z "$lines" ] || lines="$lines
"
if [ -x "$before" ]; then
    printf '%s' "$lines" | "$before" "$@" || exit
fi
"""
# A program that is gone, or cannot even say its version, is told apart from one that says no.
_RUN = """\
for program in "$dibs_program" dibs; do
    command -v "${{program%% *}}" >/dev/null 2>&1 || continue
    {given}$program hook run {hook} "$@" && exit
    code=$?
    $program --version >/dev/null 2>&1 && exit "$code"
done
echo "dibs: the program does not run here, so that the claims were not looked at. Install it, or remove $0." >&2
[ "$(git config --get dibs.unreachable)" != block ]
"""


def script(hook: str, program: str) -> str:
    """The text of a hook. `program` is how to run dibs: one word, or a program and its first words."""
    push = hook == "pre-push"
    head = _SCRIPT.format(
        what="push" if push else "commit", before=BEFORE, program=_PROGRAM + shell_word(program)
    )
    given = "printf '%s' \"$lines\" | " if push else ""
    return head + (_PUSH if push else _COMMIT) + _RUN.format(hook=hook, given=given)


def place_of(repository: Repository) -> str:
    """The folder of hooks. Raises InvalidInput where none can be put, saying what to do by hand."""
    hooks = repository.hooks()
    folder = os.path.realpath(hooks)
    inside = [os.path.realpath(place) for place in (repository.top, repository.common)]
    if not any(folder == place or folder.startswith(place.rstrip("/") + "/") for place in inside):
        raise InvalidInput(
            f"git looks for hooks in {hooks} (core.hooksPath), which is outside this repository: a hook "
            f"there would run for others, too. {_by_hand()}"
        )
    if os.path.exists(folder) and not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput(f"{hooks} cannot be written to. {_by_hand()}")
    return hooks


def _by_hand() -> str:
    lines = " and ".join(f'`dibs hook run {hook} "$@"`' for hook in HOOKS)
    return f"To have it nevertheless, put {lines} into the hooks of those names."


def install(folder: str, program: str) -> dict[str, str]:
    """Put all hooks in place; what speaks against one of them is found before anything is touched. What was done to
    each: made, renewed, or chained (to one that was there)."""
    plans = {hook: _plan(os.path.join(folder, hook), hook) for hook in HOOKS}
    try:
        os.makedirs(folder, exist_ok=True)
        for hook, plan in plans.items():
            path = os.path.join(folder, hook)
            new = f"{path}.dibs-new"
            with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(script(hook, program))
            os.chmod(new, 0o755)
            if plan == "chained" and os.path.lexists(path):
                os.rename(path, path + BEFORE)
            os.replace(new, path)
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be written: {error.strerror}. {_by_hand()}") from None
    return plans


def _plan(path: str, hook: str) -> str:
    """What is to be done about one hook; raises InvalidInput where nothing can be."""
    before = path + BEFORE
    if not os.path.lexists(path):
        return "chained" if os.path.lexists(before) else "made"
    text = _read(path)
    if _is_ours(text):
        _check_unchanged(path, hook, text)
        return "renewed"
    if os.path.lexists(before):
        raise InvalidInput(
            f"{path} is not dibs's, and {before} is there as well: another program has put its hook over dibs's. "
            "Put into one what shall run, remove the other, and install again."
        )
    if os.path.isdir(path) or (not os.path.exists(path) and os.path.islink(path)):
        raise InvalidInput(f"{path} is a folder, or a link to nowhere. Remove it, and install again.")
    if _asks_its_name(text):
        raise InvalidInput(
            f'{path} goes by its own file name ($0), so that it cannot be moved aside. Put `dibs hook run {hook} "$@"` '
            "into the hook that it runs, and leave this one as it is."
        )
    return "chained"


def uninstall(folder: str) -> dict[str, str]:
    """Take our hooks away and put back what was there. What was done to each: removed, restored, or none."""
    plans: dict[str, str] = {}
    for hook in HOOKS:
        path = os.path.join(folder, hook)
        text = _read(path) if os.path.lexists(path) else b""
        plans[hook] = "none"
        if _is_ours(text):
            _check_unchanged(path, hook, text)
            plans[hook] = "restored" if os.path.lexists(path + BEFORE) else "removed"
    try:
        for hook, plan in plans.items():
            path = os.path.join(folder, hook)
            if plan == "restored":
                os.replace(path + BEFORE, path)
            elif plan == "removed":
                os.unlink(path)
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be changed: {error.strerror}.") from None
    return plans


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES_MAX)
    except OSError:
        return b""


def _is_ours(text: bytes) -> bool:
    return _MARK.encode() in text[:200]


def _asks_its_name(text: bytes) -> bool:
    """Managers of hooks (husky, for one) find out by $0 which hook is meant."""
    return (b"$0" in text and b"basename" in text) or b"${0##" in text


def _check_unchanged(path: str, hook: str, text: bytes) -> None:
    """Raise InvalidInput if somebody wrote into our hook: replacing or removing it would lose that."""
    lines = text.decode("utf-8", "surrogateescape").splitlines()
    ours = script(hook, "x").splitlines()
    if [line for line in lines if not line.startswith(_PROGRAM)] != [
        line for line in ours if not line.startswith(_PROGRAM)
    ]:
        raise InvalidInput(
            f"{path} was made by dibs and changed since. Move what was added into {path}{BEFORE}, which runs first, "
            f"remove {path}, and try again."
        )
