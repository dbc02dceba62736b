"""completion: scripts for bash, zsh and fish, made from the same specifications as the parser.

Job names are asked from `dibs list`, and sessions from `dibs session list`, when they are needed; whatever goes wrong
there offers nothing and says nothing.
"""

from __future__ import annotations

from dibs.cli.framework.registry import FAMILIES, NAMES, SUMMARIES, load
from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import GLOBAL, Argument, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.cli.framework.spec import Option

SHELLS = ("bash", "zsh", "fish")
_LISTS = {"job": "dibs list -q 2>/dev/null", "session": "dibs session list -q 2>/dev/null"}


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
        if argument.completes is not None:
            return _LISTS[argument.completes]
    return ":"


def _valued(kind: str | None) -> list[str]:
    """Flags that take a value: all of them, or those whose value is a file."""
    options: dict[str, Option] = {}
    for command in _commands():
        options |= {option.flag: option for option in (*command.options, *GLOBAL)}
    return sorted(
        flag
        for flag, option in options.items()
        if option.value and option.bare is None and kind in (None, option.completes)
    )


def _bash_cases() -> str:
    """What may follow each command."""
    cases = []
    for command in _commands():
        flags = " ".join(_flags(command))
        cases.append(f'    "{command.name}") flags="{flags}"; words=$({_offers(command)}) ;;')
    for family in FAMILIES:
        cases.append(f"    {family}) words=$(printf '%s\\n' {' '.join(_seconds(family))}) ;;")
    return "\n".join(cases)


def _bash() -> str:
    special = (*_valued("file"), *_valued("session"), "--role")
    return f"""# bash completion for dibs:  source <(dibs completion bash)
_dibs_offer() {{  # Not compgen -W, which would expand what a stranger wrote into a job's name.
    local word
    while IFS= read -r word; do
        [[ -n $word && $word == "$2"* ]] && COMPREPLY+=("$(printf %q "$word")")
    done <<<"$1"
}}
_dibs() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= flags= words= word
    COMPREPLY=()
    case $previous in
    {"|".join(_valued("file"))}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    {"|".join(_valued("session"))}) _dibs_offer "$({_LISTS["session"]})" "$current"; return ;;
    --role) COMPREPLY=($(compgen -W "agent operator admin" -- "$current")); return ;;
    {"|".join(flag for flag in _valued(None) if flag not in special)}) return ;;
    esac
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $command in
        {"|".join(FAMILIES)}) command="$command $word"; break ;;
        esac
        case $word in
        {"|".join(FAMILIES)}) command=$word ;;
        {"|".join(first for first in _firsts() if first not in FAMILIES)}) command=$word; break ;;
        esac
    done
    case $command in
{_bash_cases()}
    *) flags="{" ".join(option.flag for option in GLOBAL)}"; words=$(printf '%s\\n' {" ".join(_firsts())}) ;;
    esac
    case $current in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
    *) _dibs_offer "$words" "$current" ;;
    esac
    # A colon splits words in bash; what it has typed already must not be offered again.
    declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$current"
}}
complete -F _dibs dibs
"""


def _zsh() -> str:
    described = " ".join(f"'{first}:{_zsh_text(_summary(first))}'" for first in _firsts())
    families = []
    for family in FAMILIES:
        seconds = " ".join(
            f"'{second}:{_zsh_text(SUMMARIES[f'{family} {second}'])}'" for second in _seconds(family)
        )
        families.append(f"    {family}) commands=({seconds}) ;;")
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
    commands=()
    case $command in
{chr(10).join(families)}
    esac
    if (( $#commands )); then
        if (( CURRENT == 2 )); then _describe command commands; return; fi
        command="$command $words[2]"
        shift words; (( CURRENT-- ))
    fi
    case $command in
{chr(10).join(_zsh_case(command) for command in _commands())}
    esac
}}
if [ "$funcstack[1]" = _dibs ]; then _dibs "$@"; else compdef _dibs dibs; fi
"""


def _zsh_case(command: Command) -> str:
    options = " ".join(_zsh_option(option) for option in (*command.options, *GLOBAL))
    words = "_dibs_words" if _offers(command) != ":" else "_nothing"
    return f'    "{command.name}") offer="{_offers(command)}"; _arguments -s {options} \'*:: :{words}\' ;;'


def _summary(first: str) -> str:
    return FAMILIES[first] if first in FAMILIES else SUMMARIES[first]


def _zsh_text(text: str) -> str:
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " ")


def _zsh_option(option: Option) -> str:
    value = ""
    if option.choices:
        value = f":{option.value}:({' '.join(option.choices)})"
    elif option.completes == "session":
        value = f":{option.value}:($({_LISTS['session']}))"
    elif option.bare is not None:
        return f"'{option.flag}=-[{_zsh_text(option.help)}]::{option.value}: '"
    elif option.value:
        value = f":{option.value}:{'_files' if option.completes == 'file' else ' '}"
    return f"'{option.flag}[{_zsh_text(option.help)}]{value}'"


def _fish() -> str:
    lines = ["# fish completion for dibs:  dibs completion fish | source", "complete -c dibs -f"]
    for option in GLOBAL:
        lines.append(_fish_option(option, ""))
    for first in _firsts():
        lines.append(
            f"complete -c dibs -n __fish_use_subcommand -a {first} -d '{_fish_text(_summary(first))}'"
        )
    for family in FAMILIES:
        seconds = " ".join(_seconds(family))
        unless = f"__fish_seen_subcommand_from {family}; and not __fish_seen_subcommand_from {seconds}"
        lines.append(f"complete -c dibs -n '{unless}' -a '{seconds}'")
    for command in _commands():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.name.split(" "))
        offers = _offers(command)
        if offers.startswith("printf"):
            lines.append(f"complete -c dibs -n '{seen}' -a '{' '.join(command.arguments[0].choices)}'")
        elif offers != ":":
            lines.append(f"complete -c dibs -n '{seen}' -a '({offers})'")
        lines += [_fish_option(option, f"-n '{seen}' ") for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    return text.replace("\\", "").replace("'", "\\'")


def _fish_option(option: Option, when: str) -> str:
    short = f" -s {option.short[1:]}" if option.short else ""
    choices = f" -a '{' '.join(option.choices)}'" if option.choices else ""
    if option.completes == "session":
        choices = f" -a '({_LISTS['session']})'"
    value = (
        f" -r{' -F' if option.completes == 'file' else ''}{choices}"
        if option.value and option.bare is None
        else ""
    )
    return f"complete -c dibs {when}-l {option.flag[2:]}{short}{value} -d '{_fish_text(option.help)}'"


COMMANDS = {
    "completion": Command(
        "completion",
        "print the completion script of a shell",
        completion,
        about="Completes commands, flags, the names of claimed jobs, and sessions.",
        arguments=(Argument("SHELL", "which shell", choices=SHELLS),),
        examples=(
            ("for bash, in ~/.bashrc", "source <(dibs completion bash)"),
            ("for zsh, once", 'dibs completion zsh > "${fpath[1]}/_dibs"'),
            ("for fish, once", "dibs completion fish > ~/.config/fish/completions/dibs.fish"),
        ),
        exits=((0, "printed"),),
    ),
}
