"""Installs hooks beside existing ones, and removes them again.

An existing hook is renamed and runs first: it may change the staged files (a formatter), and our hook must see the
result. If it fails, its exit code counts and our hook does not run. Nothing is overwritten; all is checked first.
"""

from __future__ import annotations

import os

from dibs.agents.repository.work_tree import Repository
from dibs.base.errors import InvalidInput
from dibs.base.files import content, replace_file
from dibs.cli.text.words import shell_word

GUARDS = ("pre-commit", "pre-push")
STASH = "reference-transaction"
HOOKS = (*GUARDS, STASH)
_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_SIGNS = dict.fromkeys(map(ord, "/-."))  # besides letters and digits, in the words of a shell
_OWN_NAME = (b"$0", b"BASH_SOURCE", b"argv[0]", b"__file__")  # by which a hook looks at its own file name
BEFORE = ".before-dibs"
_BYTES_MAX = 1024 * 1024
_PROGRAM = "dibs_program="
_SHELL = "before_shell="
# Many hooks, such as husky's, look at $0 to find their name or their folder. When a shell reads such a hook under its
# old name, $0 stays the same. pre-commit runs the hook that was there before it, which must not run a second time. A
# program that is missing or broken is not the same as one that refuses: `--version` tells them apart.
_SCRIPT = os.path.join(os.path.dirname(__file__), "hook.sh")
_COMMIT = 'run_before "$@" || exit'
# Both hooks read the same lines.
_PUSH = """\
lines=$(cat)
[ -z "$lines" ] || lines="$lines
"
printf '%s' "$lines" | run_before "$@" || exit"""
# git runs this one for every change of a reference, several times for each: dibs itself runs only for a push to the
# stash. It notes who pushes and never refuses.
_NOTE = """\
[ "$1" = prepared ] || [ -x "$before" ] || exit 0
lines=$(cat)
[ -z "$lines" ] || lines="$lines
"
[ ! -x "$before" ] || printf '%s' "$lines" | run_before "$@" || exit
case "$1 $lines" in "prepared "*" refs/stash
"*) ;; *) exit 0 ;; esac
for program in "$dibs_program" dibs; do
    command -v "${program%% *}" >/dev/null 2>&1 || continue
    printf '%s' "$lines" | $program hook run reference-transaction "$@" >/dev/null 2>&1 && exit
done
exit 0
"""


def script(hook: str, program: str, shell: str = "") -> str:
    """The text of a hook. `program` runs dibs; `shell` reads the earlier hook, if that depends on its own name."""
    push = hook == "pre-push"
    with open(_SCRIPT, encoding="utf-8") as file:
        text = file.read()
    if hook == STASH:
        text = text.partition("@FIRST@")[0] + _NOTE
    what = (
        "Notes who pushes to the stash"
        if hook == STASH
        else f"Holds what you {hook[4:]} against path: and repo: claims"
    )
    parts = {"HOOK": hook, "BEFORE": BEFORE, "WHAT": what, "FIRST": _PUSH if push else _COMMIT}
    parts |= {"SHELL": _SHELL + shell_word(shell), "PROGRAM": _PROGRAM + shell_word(program)}
    for name, part in (parts | {"GIVEN": "printf '%s' \"$lines\" | " if push else ""}).items():
        text = text.replace(f"@{name}@", part)
    return text


def place_of(repository: Repository) -> str:
    """The folder of hooks. Raises InvalidInput if hooks cannot be installed there, with the steps to do by hand."""
    hooks = repository.hooks()
    folder = os.path.realpath(hooks)
    inside = [os.path.realpath(place) for place in (repository.top, repository.common)]
    if not any(folder == place or folder.startswith(place.rstrip("/") + "/") for place in inside):
        raise InvalidInput(
            f"git looks for hooks in {hooks} (core.hooksPath), which is outside of this repository. A hook "
            f"there would also run for other repositories. {_by_hand()}"
        )
    if os.path.exists(folder) and not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput(f"{hooks} cannot be written. {_by_hand()}")
    return hooks


def _by_hand() -> str:
    lines = " and ".join(f'`dibs hook run {hook} "$@"`' for hook in GUARDS)
    return f"You can add {lines} to your own hooks instead."


def install(folder: str, program: str) -> dict[str, str]:
    """Install all hooks, if all can be. Returns what was done to each: made, renewed, or chained to an existing one."""
    plans = {hook: _plan(os.path.join(folder, hook), hook) for hook in HOOKS}
    try:
        os.makedirs(folder, exist_ok=True)
        for hook, plan in plans.items():
            path = os.path.join(folder, hook)
            is_renamed = plan == "chained" and os.path.lexists(path)
            if is_renamed:
                os.rename(path, path + BEFORE)
            try:
                replace_file(path, script(hook, program, _shell_of(read_hook(path + BEFORE))), mode=0o777)
            except OSError:
                if is_renamed:
                    os.rename(path + BEFORE, path)
                raise
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be written: {error.strerror}. {_by_hand()}") from None
    return plans


def _plan(path: str, hook: str) -> str:
    """The plan for one hook; raises InvalidInput if it cannot be installed."""
    before = path + BEFORE
    if not os.path.lexists(path):
        return "chained" if os.path.lexists(before) else "made"
    text = read_hook(path)
    if is_ours(text):
        _check_unchanged(path, hook, text)
        return "renewed"
    if os.path.lexists(before) and read_hook(before) != text:  # equal: the other program has installed it again
        raise InvalidInput(
            f"{path} is not a dibs hook, but {before} exists: another program has overwritten it. "
            "Merge the two files, remove one, and install again."
        )
    if os.path.isdir(path) or (not os.path.exists(path) and os.path.islink(path)):
        raise InvalidInput(f"{path} is a folder or a broken link. Remove it, and install again.")
    asks_its_name = b"basename" in text and any(word in text for word in _OWN_NAME)
    if asks_its_name and not _shell_of(text):
        raise InvalidInput(
            f'{path} depends on its own file name, so dibs cannot rename it. Add `dibs hook run {hook} "$@"` '
            "to the hook that it runs instead."
        )
    return "chained"


def uninstall(folder: str) -> dict[str, str]:
    """Remove our hooks and restore the earlier ones. Returns what was done to each: removed, restored, or none."""
    plans: dict[str, str] = {}
    for hook in HOOKS:
        path = os.path.join(folder, hook)
        text = read_hook(path) if os.path.lexists(path) else b""
        plans[hook] = "none"
        if is_ours(text):
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


def read_hook(path: str) -> bytes:
    """The hook's text; empty if there is none."""
    return content(path, _BYTES_MAX) or b""


def is_ours(text: bytes) -> bool:
    return b"# Made by dibs." in text[:200]


def _shell_of(text: bytes) -> str:
    """The shell, with flags, that runs an earlier hook so that its `$0` is its old name. Empty: the hook runs by
    itself."""
    if b"$0" not in text and b"${0" not in text:
        return ""
    line = text.partition(b"\n")[0].decode("utf-8", "replace")
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
    is_plain = all(word.isascii() and word.translate(_SIGNS).isalnum() for word in words)
    return " ".join(words) if words and os.path.basename(words[0]) in _SHELLS and is_plain else ""


def _fixed(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith((_PROGRAM, _SHELL))]


def _check_unchanged(path: str, hook: str, text: bytes) -> None:
    """Raise InvalidInput if our hook was changed: replacing or removing it would lose the change."""
    lines = text.decode("utf-8", "surrogateescape").splitlines()
    ours = script(hook, "x").splitlines()
    if _fixed(lines) != _fixed(ours):
        raise InvalidInput(
            f"{path} was made by dibs and changed since. Move the changes into {path}{BEFORE}, which runs "
            f"first, remove {path}, and try again."
        )
