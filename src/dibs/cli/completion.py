"""completion: scripts for bash, zsh and fish, made from the same specifications as the parser.

Job names are asked from `dibs list` when they are needed; whatever goes wrong there offers nothing and says nothing.
"""

from __future__ import annotations

from dibs.cli.answer import yes
from dibs.cli.spec import GLOBAL, Argument, Command
from dibs.cli.table import NAMES, SUMMARIES, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.answer import Answer
    from dibs.cli.call import Call
    from dibs.cli.spec import Option

SHELLS = ("bash", "zsh", "fish")


def completion(call: Call) -> Answer:
    shell = call.values["shell"]
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]().rstrip("\n")
    return yes({"shell": shell, "script": script}, script, quiet=script)


def _commands() -> list[Command]:
    return [load(name) for name in NAMES]


def _firsts() -> list[str]:
    return list(dict.fromkeys(name.split(" ")[0] for name in NAMES))


def _seconds(first: str) -> list[str]:
    return [name.split(" ")[1] for name in NAMES if name.startswith(first + " ")]


def _flags(command: Command) -> list[str]:
    return [option.flag for option in (*command.options, *GLOBAL)]


def _offers(command: Command) -> str:
    """What a word without a flag may be, as shell code that prints it."""
    for argument in command.arguments:
        if argument.choices:
            return f"printf '%s\\n' {' '.join(argument.choices)}"
        if argument.completes == "job":
            return "dibs list -q 2>/dev/null"
    return ":"


def _valued(kind: str | None) -> list[str]:
    """Flags that take a value: all of them, or those whose value is a file."""
    options: dict[str, Option] = {}
    for command in _commands():
        options |= {option.flag: option for option in (*command.options, *GLOBAL)}
    return sorted(
        flag for flag, option in options.items() if option.value and kind in (None, option.completes)
    )


def _bash() -> str:
    cases = []
    for command in _commands():
        first = command.name.split(" ")[0]
        cases.append(
            f'    {first}) flags="{" ".join(_flags(command))}"; words=$({_words_of(command, first)}) ;;'
        )
    return f"""# bash completion for dibs:  source <(dibs completion bash)
_dibs() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= flags= words= word
    COMPREPLY=()
    case $previous in
    {"|".join(_valued("file"))}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    --role) COMPREPLY=($(compgen -W "agent operator admin" -- "$current")); return ;;
    {"|".join(flag for flag in _valued(None) if flag not in (*_valued("file"), "--role"))}) return ;;
    esac
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in {"|".join(_firsts())}) command=$word; break ;; esac
    done
    case $command in
{chr(10).join(cases)}
    *) flags="{" ".join(option.flag for option in GLOBAL)}"; words=$(printf '%s\\n' {" ".join(_firsts())}) ;;
    esac
    case $current in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
    *)  # Not compgen -W, which would expand what a stranger wrote into a job's name.
        while IFS= read -r word; do
            [[ -n $word && $word == "$current"* ]] && COMPREPLY+=("$(printf %q "$word")")
        done <<<"$words" ;;
    esac
    # A colon splits words in bash; what it has typed already must not be offered again.
    declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$current"
}}
complete -F _dibs dibs
"""


def _words_of(command: Command, first: str) -> str:
    seconds = _seconds(first)
    return f"printf '%s\\n' {' '.join(seconds)}" if seconds else _offers(command)


def _zsh() -> str:
    cases = []
    for command in _commands():
        first = command.name.split(" ")[0]
        options = " ".join(_zsh_option(option) for option in (*command.options, *GLOBAL))
        words = "_dibs_words" if _words_of(command, first) != ":" else "_nothing"
        cases.append(
            f"    {first}) offer=\"{_words_of(command, first)}\"; _arguments -s {options} '*:: :{words}' ;;"
        )
    described = " ".join(f"'{name}:{_zsh_text(SUMMARIES[name])}'" for name in NAMES if " " not in name)
    described += " 'token:make bearer tokens'"
    return f"""#compdef dibs
# zsh completion for dibs:  dibs completion zsh > a file called _dibs in a folder of $fpath
_dibs_words() {{ local -a found; found=(${{(f)"$(eval $offer)"}}); compadd -a found }}
_nothing() {{ return 1 }}
_dibs() {{
    local offer
    local -a commands
    commands=({described})
    if (( CURRENT == 2 )); then _describe command commands; return; fi
    local command=$words[2]
    shift words; (( CURRENT-- ))
    case $command in
{chr(10).join(cases)}
    esac
}}
if [ "$funcstack[1]" = _dibs ]; then _dibs "$@"; else compdef _dibs dibs; fi
"""


def _zsh_text(text: str) -> str:
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " ")


def _zsh_option(option: Option) -> str:
    value = ""
    if option.choices:
        value = f":{option.value}:({' '.join(option.choices)})"
    elif option.value:
        value = f":{option.value}:{'_files' if option.completes == 'file' else ' '}"
    return f"'{option.flag}[{_zsh_text(option.help)}]{value}'"


def _fish() -> str:
    lines = ["# fish completion for dibs:  dibs completion fish | source", "complete -c dibs -f"]
    for option in GLOBAL:
        lines.append(_fish_option(option, ""))
    for first in _firsts():
        summary = SUMMARIES.get(first, "make bearer tokens")
        lines.append(f"complete -c dibs -n __fish_use_subcommand -a {first} -d '{_fish_text(summary)}'")
    for command in _commands():
        first = command.name.split(" ")[0]
        when = f"-n '__fish_seen_subcommand_from {first}' "
        offers = _words_of(command, first)
        if offers.startswith("printf"):
            lines.append(
                f"complete -c dibs {when}-a '{' '.join(_seconds(first) or command.arguments[0].choices)}'"
            )
        elif offers != ":":
            lines.append(f"complete -c dibs {when}-a '({offers})'")
        lines += [_fish_option(option, when) for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    return text.replace("\\", "").replace("'", "\\'")


def _fish_option(option: Option, when: str) -> str:
    short = f" -s {option.short[1:]}" if option.short else ""
    choices = f" -a '{' '.join(option.choices)}'" if option.choices else ""
    value = f" -r{' -F' if option.completes == 'file' else ''}{choices}" if option.value else ""
    return f"complete -c dibs {when}-l {option.flag[2:]}{short}{value} -d '{_fish_text(option.help)}'"


COMMANDS = {
    "completion": Command(
        "completion",
        "print the completion script of a shell",
        completion,
        about="Completes commands, flags, and the names of claimed jobs.",
        arguments=(Argument("SHELL", "which shell", choices=SHELLS),),
        examples=(
            ("for bash, in ~/.bashrc", "source <(dibs completion bash)"),
            ("for zsh, once", 'dibs completion zsh > "${fpath[1]}/_dibs"'),
            ("for fish, once", "dibs completion fish > ~/.config/fish/completions/dibs.fish"),
        ),
        exits=((0, "printed"),),
    ),
}
