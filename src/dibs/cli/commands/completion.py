"""completion: the shell scripts that call `dibs __complete`, and that hidden command itself.

The command reads names of jobs and sessions from the store. If the store fails or takes longer than LIVE_S, it offers
no names and prints no error. It never creates a store.
"""

from __future__ import annotations

import os

from dibs.base.errors import DibsError
from dibs.base.terminal import plain
from dibs.cli.framework.completion import FILE, FILES, JOB, TypedWords, offers
from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import Argument, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Ask = Callable[[list[str]], str]  # takes the words of a command, returns its output

LIVE_S = 2.0
NAMES_MAX = 200

BASH = r"""# bash completion for dibs:  source <(dibs completion bash)
_dibs() {
    local word line current= last=${COMP_WORDS[COMP_CWORD]}
    local -a words=()
    # bash splits words at a colon or an equals sign: join them again.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( $word == [:=]* || $current == *[:=] ) ]]; then
            current+=$word; words[${#words[@]}-1]=$current
        else
            current=$word; words+=("$word")
        fi
    done
    [[ $last == [:=] ]] && last=
    local typed=${current%"$last"}  # bash keeps this part: do not offer it again
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current")
            continue
        fi
        word=${line%%$'\t'*}
        [[ $word == "$current"* ]] && COMPREPLY+=("$(printf %q "${word#"$typed"}")")
    done < <(command dibs __complete -- "${words[@]}" 2>/dev/null)
}
complete -F _dibs dibs
"""

ZSH = r"""#compdef dibs
# zsh completion for dibs:  dibs completion zsh > a file called _dibs in a folder of $fpath
_dibs() {
    local line
    local -a found
    for line in "${(@f)$(command dibs __complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            _files
        elif [[ -n $line ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#found )) && _describe dibs found
}
if [ "$funcstack[1]" = _dibs ]; then _dibs "$@"; else compdef _dibs dibs; fi
"""

FISH = r"""# fish completion for dibs:  dibs completion fish | source
function __dibs_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in (command dibs __complete -- $words[2..] "$current" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$current"
        else
            printf '%s\n' $line
        end
    end
end
complete -c dibs -f -a '(__dibs_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(call: Call) -> Answer:
    shell = call.values["shell"]
    script = SCRIPTS[shell].rstrip("\n")
    return yes({"shell": shell, "script": script}, script, quiet=script)


def complete(words: list[str], env: Mapping[str, str], ask: Ask) -> Answer:
    """The words that a shell may offer for the last of `words`. `ask` runs a command of dibs."""
    *before, current = (words[1:] if words[:1] == ["--"] else words) or [""]
    typed = TypedWords(before)
    found, kind = offers(typed, current)
    if kind == FILE:
        found = [*found, (FILES, "")]
    elif kind is not None:
        found = [*found, *[(name, "") for name in _live(typed, kind, current, env, ask)]]
    shown = [f"{word}\t{help_}" for word, help_ in found if word.startswith(current) or word == FILES]
    text = "\n".join([FILES if each.startswith(FILES) else each for each in shown])
    return yes({}, text, quiet=text)


def _live(typed: TypedWords, kind: str, current: str, env: Mapping[str, str], ask: Ask) -> list[str]:
    """Names of jobs, or ids of sessions, that begin with `current`."""
    where = [f"{flag}={value}" for flag, value in typed.given.items()]
    common = ["--quiet", "--timeout=1s", *where]
    asked = [["session", "list", *common]]
    if kind == JOB:
        # Path jobs need a request of their own: they are in the repository's namespace.
        prefixes = [current, "path:"] if "path:".startswith(current) else [current]
        asked = [["list", *common, f"--limit={NAMES_MAX}", f"--prefix={prefix}"] for prefix in prefixes]
    try:
        if not _is_store_there(typed, env):
            return []
        said = _in_time(lambda: [ask(words) for words in asked])
    except (DibsError, OSError):
        return []
    names = dict.fromkeys(name for text in said for name in text.splitlines())
    # A name that begins with a dash would be taken for a flag: `--url=…` sends the token where it says.
    return [name for name in names if name == plain(name) and not name.startswith("-")]


def _is_store_there(typed: TypedWords, env: Mapping[str, str]) -> bool:
    """Whether the store exists. Opening a missing SQLite store would create it."""
    from dibs.client.embedded import default_store_url
    from dibs.client.settings import Settings

    url = Settings({"url": typed.given.get("--url")}, env).url or default_store_url()
    return not url.startswith("sqlite:") or os.path.exists(url.removeprefix("sqlite://"))


class _TimeUp(BaseException):
    """No name came in time. A BaseException, so that no handler of errors catches it."""


def _in_time(ask: Callable[[], list[str]]) -> list[str]:
    import signal

    def up(number: int, frame: object) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, up)
    signal.setitimer(signal.ITIMER_REAL, LIVE_S)
    try:
        return ask()
    except _TimeUp:
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


COMMANDS = {
    "completion": Command(
        "completion",
        completion,
        about="Completes commands, flags, the names of claimed jobs, and sessions. The script asks dibs for them at "
        "each key press, so a newer dibs needs no newer script.",
        arguments=(Argument("SHELL", "which shell", choices=tuple(SCRIPTS)),),
        examples=(
            ("for bash, in ~/.bashrc", "source <(dibs completion bash)"),
            ("for zsh, once", 'dibs completion zsh > "${fpath[1]}/_dibs"'),
            ("for fish, once", "dibs completion fish > ~/.config/fish/completions/dibs.fish"),
        ),
        exits=((0, "printed"),),
    ),
}
