"""Parses the command line. Pure: takes a command's specification and argv, returns a dict or raises UsageError.

Flags may stand anywhere, with `--flag VALUE` or `--flag=VALUE`; after `--` every word is an argument. Flags are not
abbreviated: a script that relies on `--meta` breaks on the day `--method` comes.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Iterable, Sequence
from dibs.base.errors import InvalidInput
from dibs.base.terminal import did_you_mean
from dibs.cli.framework.registry import ALIASES, ALONE, MEANT, NAMES, load, names_of, shipped_names
from dibs.cli.framework.spec import ANY, ANYWHERE, GLOBAL, MANY, MAYBE, REST, Command, Option
from dibs.core.durations import is_duration

Values = dict[str, Any]
# The key for which of the names stands behind a flag that was given without its optional value: the name may have been
# meant as that value.
DOUBTFUL = "doubtful"


class UsageError(InvalidInput):
    """The command line is wrong. `command` is its name, or the first word of a family; who runs it sets that."""

    def __init__(self, details: str, command: str = "") -> None:
        super().__init__(details)
        self.command = command


# The values of `-o`, as kubectl has it, and the flags that they are.
OUTPUTS = {"json": "--json", "name": "--quiet", "wide": "--wide"}


def spelled_out(argv: Sequence[str]) -> Sequence[str]:
    """The words, with `-o json` put as the flag that it is."""
    words = list(argv)
    at = words.index("-o")
    if "--" in words[:at] or words[at + 1 : at + 2] == []:
        return argv
    flag = OUTPUTS.get(words[at + 1])
    if flag is None:
        raise UsageError(f"-o takes json, name or wide, not {_shown(words[at + 1])}.")
    return [*words[:at], flag, *words[at + 2 :]]


def wants(argv: Sequence[str], *flags: str) -> bool:
    """Tell whether one of `flags` comes before any `--`."""
    return not set(flags).isdisjoint(argv[: argv.index("--")] if "--" in argv else argv)


def split_command(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The command's name and all other words. None if there is no command. Plugins are asked about a word that dibs
    does not have itself. The first word of a family stands alone only where its help is asked for."""
    before, rest = _leading_flags(argv)
    if not rest:
        return None, before
    word, after = rest[0], list(rest[1:])
    if word in NAMES:
        return word, before + after
    if any(name.startswith(word + " ") for name in NAMES):
        return _of_family(word, before, after, NAMES)
    if word in ALIASES:
        return _of_alias(ALIASES[word], before + after), before + after
    if word in MEANT:
        raise UsageError(f"{word} is not a dibs command. You may mean: {MEANT[word]}")
    found = names_of(word)
    if word in found:
        return word, before + after
    if found:
        return _of_family(word, before, after, found)
    firsts = {name.split(" ")[0] for name in shipped_names()}
    raise UsageError(f"{_shown(word)} is not a dibs command.{did_you_mean(word, firsts)} `dibs --help` lists them.")


def _of_family(first: str, before: list[str], after: list[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """The second word of a command. The family's flags may come before it."""
    seconds = [name.split(" ")[1] for name in names if name.startswith(first + " ")]
    flags, rest = _leading_flags(after) if after[:1] and after[0].startswith("-") else ([], after)
    if rest and rest[0] in seconds:
        return f"{first} {rest[0]}", [*before, *flags, *rest[1:]]
    if wants(after, "--help", "-h"):
        return first, before + after  # the help of the family
    if not rest and first in ALONE:
        return ALONE[first], [*before, *flags]
    hint = did_you_mean(rest[0], seconds) if rest else ""
    if first == "lock" and rest and not hint:
        hint = f" To claim a job: dibs claim {_shown(rest[0])}."
    raise UsageError(f"{first} needs one of: {', '.join(seconds)}.{hint}", first)


def _of_alias(meant: tuple[str, ...], words: Sequence[str]) -> str:
    """The first of the alias's commands that accepts these words, else the last."""
    for name in meant[:-1]:
        try:
            parse(load(name), words)
        except UsageError:
            continue
        return name
    return meant[-1]


def _leading_flags(argv: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    index = 0
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "--":
        option = _find(argv[index].partition("=")[0], (*GLOBAL, *ANYWHERE))
        if option is None:
            hint = did_you_mean(argv[index], [each.flag for each in GLOBAL])
            raise UsageError(
                f"{_shown(argv[index])} cannot come before the command.{hint} Put a command's flags after its name."
            )
        index += 2 if option.value and "=" not in argv[index] else 1
    rest = argv[index + 1 :] if argv[index : index + 1] == ["--"] else argv[index:]
    return list(argv[:index]), rest


def parse(command: Command, words: Sequence[str]) -> Values:
    """Values by key: of the flags that were given (True for a switch), and of all arguments."""
    options = (*command.options, *GLOBAL)
    values: Values = {}
    loose: list[str] = []
    rest: list[str] = []  # the words after --
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            rest += words[index:]
            break
        if _is_word(word):
            loose.append(word)
            continue
        flag, equals, value = word.partition("=")
        option = _find(flag, options)
        if option is None and not word.startswith("--"):  # -w5, as with getopt
            option = _find(word[:2], [each for each in options if each.value])
            equals, value = "=", word[2:]
        if option is None:
            raise _unknown_flag(command, flag, options)
        if option.value is None:
            if equals:
                raise UsageError(f"{option.flag} is a switch and takes no value.")
            values[option.key] = True
            continue
        if not equals and option.bare is not None:
            value = option.bare
            if words[index:] and _is_word(words[index]):
                _refuse_duration(option, words[index])
                values[DOUBTFUL] = len(loose)
        elif not equals:
            value = _value_after(option, words[index:], options)
            index += 1
        values[option.key] = _checked(option, value)
    try:
        arguments = _arguments(command, loose, rest)
    except UsageError as error:
        raise UsageError(error.details + taken_by_equals(command)) if DOUBTFUL in values else error from None
    if "url" in values and arguments.get("url", values["url"]) != values["url"]:
        raise UsageError("--url names one store, and the argument URL another. Give one of them.")
    values |= arguments
    if "context" in values and "url" in values:
        raise UsageError("--context names a saved server, and --url another place. Give one of them.")
    for group in command.required:
        if all(option.key not in values for option in group):
            wanted = " or ".join([option.shown for option in group])
            raise UsageError(f"{command.name} needs {wanted}: {group[0].help}.")
    return values


def _is_word(text: str) -> bool:
    """Tell whether it is a word of the command, and no flag."""
    return text == "-" or not text.startswith("-")


def _refuse_duration(option: Option, word: str) -> None:
    """A word that is a time might be meant as one, or as a name. Both were accepted once, so neither is guessed."""
    if is_duration(word):
        raise UsageError(
            f"{option.flag} takes a time with = only: {option.flag}={word}. If {word} is a name, write it before "
            f"{option.flag}."
        )


def taken_by_equals(command: Command) -> str:
    """The hint for a name that was perhaps meant as the value of a flag."""
    [option] = [each for each in command.options if each.bare is not None]
    return f" {option.flag} takes a {(option.value or '').lower()} with = only, as in {option.flag}={option.bare}."


def _value_after(option: Option, rest: Sequence[str], options: Iterable[Option]) -> str:
    """The value of a flag that needs one, without `=`: the next word."""
    if not rest or rest[0] == "--":
        raise UsageError(f"{option.flag} needs a value: {option.flag} {option.value}.")
    if _find(rest[0].partition("=")[0], options) is not None:
        raise UsageError(
            f"{option.flag} needs a value, but {rest[0]} is a flag. If it is the value, write {option.flag}={rest[0]}."
        )
    return rest[0]


def _checked(option: Option, value: str) -> str:
    if option.filled and not value.strip():
        instead = "" if option.required else ", or leave it out"
        raise UsageError(f"{option.flag} is empty: give it a value{instead}.")
    return _chosen(option.flag, value, option.choices)


def _arguments(command: Command, loose: list[str], rest: list[str]) -> Values:
    wanted = command.arguments
    last = wanted[-1].takes if wanted else ""
    if last == REST:
        return _program(command, loose, rest)
    loose = loose + rest
    least = len(wanted) - (last in (MAYBE, ANY))
    if len(loose) < least:
        missing = wanted[len(loose)]
        one_of = f", one of {', '.join(missing.choices)}" if missing.choices else ""
        raise UsageError(f"{command.name} needs {missing.name}: {missing.help}{one_of}.")
    if len(loose) > len(wanted) and last not in (MANY, ANY):
        raise _too_many(command, loose)
    values: Values = {
        each.key: _chosen(each.name, word, each.choices) for each, word in zip(wanted, loose, strict=False)
    }
    if last in (MANY, ANY):
        values[wanted[-1].key] = loose[len(wanted) - 1 :]
    return values


def _too_many(command: Command, loose: list[str]) -> UsageError:
    extra = _shown(loose[len(command.arguments)])
    takes = " ".join(each.shown for each in command.arguments) or "no arguments"
    hint = "Quote a value that contains spaces."
    if extra.startswith(("sqlite:", "git:", "git+", "postgresql:", "etcd", "http:", "https:", "unix:")):
        hint = f"To name a store or server: --url {extra}"
    if command.several:
        named = " ".join(map(_shown, loose[:3])) + (" ..." if len(loose) > 3 else "")
        ways = [f"dibs {name} {named} ({what})" for name, what in command.several]
        hint = f"For several: {', or '.join(ways)}."
    return UsageError(f"{extra} is one argument too many: dibs {command.name} takes {takes}. {hint}")


def _program(command: Command, loose: list[str], rest: list[str]) -> Values:
    """The words after `--`, which are the program to run. A name that begins with a dash comes between two `--`."""
    *wanted, argument = command.arguments
    if len(loose) < len(wanted) and rest[len(wanted) - len(loose) :][:1] == ["--"]:
        missing = len(wanted) - len(loose)
        loose, rest = loose + rest[:missing], rest[missing + 1 :]
    if len(loose) < len(wanted):
        missing_one = wanted[len(loose)]
        raise UsageError(f"{command.name} needs {missing_one.name} before --: {missing_one.help}.")
    if len(loose) > len(wanted):
        line = " ".join(["dibs", command.name, *map(_shown, loose[: len(wanted)]), "--", _shown(loose[len(wanted)])])
        raise UsageError(f"Write -- before the command, so that dibs does not read its flags: {line}.")
    if not rest:
        raise UsageError(f"{command.name} needs {argument.name} after --: {argument.help}.")
    return {each.key: word for each, word in zip(wanted, loose, strict=True)} | {argument.key: rest}


def _chosen(what: str, value: str, choices: tuple[str, ...]) -> str:
    if choices and value not in choices:
        hint = did_you_mean(value, choices)
        raise UsageError(f"{what} must be one of {', '.join(choices)}, not {_shown(value)}.{hint}")
    return value


def _unknown_flag(command: Command, flag: str, options: Iterable[Option]) -> UsageError:
    hint = did_you_mean(flag, [option.flag for option in options])
    if not hint and not flag.startswith("--") and command.arguments:
        name = command.arguments[0].name
        hint = f" If it is the {name}, write it after --: dibs {command.name} -- {_shown(flag)}."
    return UsageError(f"{_shown(flag)} is not a flag of dibs {command.name}.{hint}")


def _find(word: str, options: Iterable[Option]) -> Option | None:
    for option in options:
        if word in (option.flag, option.short):
            return option
    return None


def _shown(word: str) -> str:
    """A word of the command line, safe to print whatever it holds."""
    return word if word.isprintable() and word and " " not in word else ascii(word)
