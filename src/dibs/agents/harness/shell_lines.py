"""Reads a line for the shell into its simple commands. Pure.

`git push` is found wherever the shell would run it: behind `&&` or `then`, in a subshell, in `$(…)` and backquotes,
also inside double quotes, behind a here-document, behind programs that run another (`sudo -u x`, `timeout 5`), in
`bash -c '…'`. What is only mentioned is none: a comment, a quoted text, the body of a here-document. Two tables say
what is taken off in front of a program's name: `_WRAPPERS`, and the words of the shell. An alias, a script and `ssh`
hide what they run.

A line that no shell could read is parted at its operators. The time is linear in the line's length, which an agent
chooses; what is nested deeper than `_DEPTH_MAX` is not read.
"""

from __future__ import annotations

import posixpath
import re

_DEPTH_MAX = 12
_NESTED_MAX = 200  # texts that are lines of their own
_VALUES_MAX = 64  # that one word with variables may have
_REDIRECTIONS = frozenset((">", ">>", ">|", "&>", "&>>", "<>"))
_INPUTS = frozenset(("<", "<<<", "<&", ">&"))
_OPERATORS = (  # longer ones first
    *("&>>", ";;&", "<<<", "<<-"),
    *("&&", "||", ">>", ">|", "&>", "<<", "<>", ">&", "<&", ";;", ";&", "|&"),
    *(">", "<", ";", "|", "&", "(", ")"),
)
_BEGIN_OPERATORS = frozenset([each[0] for each in _OPERATORS])
_PARTED = dict.fromkeys(map(ord, ";&|()`"), "\n")
_PLAIN = re.compile(r"[^\s'\"\\$`#;&|<>()*?\[~{}!]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_QUOTED = re.compile(r'[^"\\$`]+')
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_HERE = re.compile(r"[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s'\"\\;&|<>()]+))")
# Words of the shell before a command. `for`, `select`, `case` and `function` take words of their own.
_KEYWORDS = frozenset[str]().union(
    ("if", "then", "elif", "else", "fi", "while", "until"),
    ("do", "done", "!", "{", "}", "coproc", "esac"),
)
SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh", "ash"))


class Wrapper:
    """A program that runs another. `values`: its options that take a value. `words`: how many words stand before the
    other's name. `no`: options with which it runs nothing. `after`: the word that must follow for it to be one. `goes`:
    options whose value is the folder in which it runs the other."""

    def __init__(
        self,
        values: tuple[str, ...] = (),
        *,
        words: int = 0,
        no: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        goes: tuple[str, ...] = (),
    ) -> None:
        self.values = frozenset((*values, *goes))
        self.goes = goes
        self.words = words
        self.no = frozenset(no)
        self.after = after


_PLAIN_WRAPPER = Wrapper()
_WRAPPERS: dict[str, Wrapper] = {
    **dict.fromkeys(("nohup", "setsid", "builtin", "chronic", "unbuffer", "catchsegv", "rtk"), _PLAIN_WRAPPER),
    "sudo": Wrapper(
        (
            *("-u", "-g", "-h", "-p", "-C", "-R", "-T", "-U", "-r", "-t"),
            *("--user", "--group", "--host", "--prompt", "--chroot", "--command-timeout"),
        ),
        goes=("-D", "--chdir"),
        no=("-l", "--list", "-v", "--validate", "-k", "-K", "-e", "--edit"),
    ),
    "doas": Wrapper(("-u", "-C")),
    "env": Wrapper(("-u", "--unset"), goes=("-C", "--chdir")),
    "command": Wrapper(no=("-v", "-V")),
    "exec": Wrapper(("-a",)),
    "time": Wrapper(("-f", "-o", "--format", "--output")),
    "timeout": Wrapper(("-k", "-s", "--kill-after", "--signal"), words=1),
    "nice": Wrapper(("-n", "--adjustment")),
    "ionice": Wrapper(("-c", "-n", "--class", "--classdata"), no=("-p", "--pid")),
    "chrt": Wrapper(words=1, no=("-p", "--pid")),
    "taskset": Wrapper(words=1, no=("-p", "--pid")),
    "stdbuf": Wrapper(("-i", "-o", "-e", "--input", "--output", "--error")),
    "xargs": Wrapper(
        (
            *("-I", "-n", "-P", "-L", "-d", "-E", "-s", "-a"),
            *("--max-args", "--max-procs", "--max-lines", "--delimiter", "--replace", "--arg-file"),
        )
    ),
    "strace": Wrapper(("-e", "-o", "-p", "-s", "-E", "-u")),
    "caffeinate": Wrapper(("-t", "-w")),
    "watch": Wrapper(("-n", "--interval")),
    "flock": Wrapper(("-w", "-E", "--timeout", "--conflict-exit-code"), words=1),
    "npx": Wrapper(("-p", "--package")),
    "bunx": _PLAIN_WRAPPER,
    "uvx": Wrapper(("--from", "--with", "-p", "--python")),
    "uv": Wrapper(
        (
            *("--project", "--with", "--with-requirements", "--extra"),
            *("--group", "--python", "-p", "--env-file", "--package"),
        ),
        after=("run",),
        goes=("--directory",),
    ),
    **dict.fromkeys(
        ("poetry", "pipenv", "pdm", "hatch", "rye"),
        Wrapper(("-P", "--project"), after=("run",), goes=("-C", "--directory")),
    ),
    **dict.fromkeys(
        ("pnpm", "yarn", "npm", "bun"),
        Wrapper(("-w", "--workspace"), after=("exec", "dlx", "x"), goes=("-C", "--dir", "--cwd", "--prefix")),
    ),
    "bundle": Wrapper(after=("exec",)),
    "pipx": Wrapper(("--spec", "--python"), after=("run",)),
    "mise": Wrapper(after=("exec", "x")),
}


class Word(str):
    """A word as the shell would pass it. `sure`: it holds nothing that the shell would replace."""

    __slots__ = ("sure",)
    sure: bool


class Operator(str):
    """A sign that ends a command or redirects it."""

    __slots__ = ()


class SimpleCommand:
    """`words`: the program's name and its arguments. `targets`: the files that its output goes to. `folder`: where it
    runs, from the folder in which the line begins; None: that is not known. `body`: its here-documents. `inputs`: the
    files that it reads as its input."""

    __slots__ = ("body", "folder", "inputs", "targets", "words")

    def __init__(
        self,
        words: list[Word],
        targets: list[Word],
        folder: str | None,
        body: list[str],
        inputs: list[Word] | None = None,
    ) -> None:
        self.words = words
        self.targets = targets
        self.folder = folder
        self.body = body
        self.inputs: list[Word] = [] if inputs is None else inputs

    @property
    def program(self) -> str:
        """The name of the program, without its folder."""
        return self.words[0].rpartition("/")[2].removesuffix(".exe") if self.words else ""


def word(text: str, *, sure: bool = True) -> Word:
    made = Word(text)
    made.sure = sure
    return made


def _replaced_by(given: Word, variable: str, value: Word) -> Word:
    text = given.replace(variable, value)
    return word(text, sure=value.sure and not any(each in text for each in "$`"))


def simple_commands(line: str) -> list[list[str]]:
    """The words of each simple command that a line runs, from its program's name on."""
    return [[str(each) for each in command.words] for command in commands_in(line) if command.words]


def commands_in(line: str) -> list[SimpleCommand]:
    """All simple commands of a line, those of substitutions before the one around them."""
    reader = _Reader([_NESTED_MAX])
    try:
        reader.read_line(line, "", 0)
    except _Unreadable:
        parts = line.translate(_PARTED).split("\n")
        return [SimpleCommand(found, [], None, []) for part in parts if (found := _unsure(part))]
    return reader.found


def _unsure(part: str) -> list[Word]:
    return [word(each, sure=False) for each in part.split()]


class _Unreadable(Exception):
    """A quote or a bracket is not closed."""


class _Reader:
    """Reads one text. `left`: how many more texts may be read, of all readers of a line together."""

    def __init__(self, left: list[int]) -> None:
        self.found: list[SimpleCommand] = []
        self.values: dict[str, list[Word]] = {}  # what variables were set to in this line
        self.folder: str | None = ""
        self._left = left
        self._text = ""
        self._at = self._size = self._depth = 0
        # Here-documents that begin with the next line: what ends each, whether tabs may be before it, and its body.
        self._documents: list[tuple[str, bool, list[str]]] = []

    def read_line(self, text: str, folder: str | None, depth: int) -> None:
        self._text, self._size, self._depth = text, len(text), depth
        self.folder = folder
        self._read("")
        for command in list(self.found):
            if command.body and command.program in SHELLS and not any(each[:1] != "-" for each in command.words[1:]):
                self._nested("\n".join(command.body), command.folder)

    def _nested(self, text: str, folder: str | None) -> None:
        """Read a text that is run as a line of its own. One that cannot be read runs nothing."""
        if self._depth >= _DEPTH_MAX or self._left[0] <= 0:
            return
        self._left[0] -= 1
        inner = _Reader(self._left)
        inner.values = dict(self.values)
        try:
            inner.read_line(text, folder, self._depth + 1)
        except _Unreadable:
            return
        self.found += inner.found

    def _read(self, closing: str) -> None:
        """Read commands up to the closing bracket, or to the end."""
        words: list[Word] = []
        targets: list[Word] = []
        body: list[str] = []
        inputs: list[Word] = []
        cases, is_pattern = 0, False
        while True:
            token = self._token(is_test=bool(words) and words[0] == "[[" and words[-1] != "]]")
            if token is None:
                if closing:
                    raise _Unreadable
                self._end(words, targets, body, inputs)
                return
            if isinstance(token, Word):
                if words or targets or not self._is_keyword(token):
                    words.append(token)
                elif token == "case":
                    self._token()
                    cases, is_pattern = cases + 1, True
                elif token == "esac":
                    cases, is_pattern = cases - 1, False
                continue
            if is_pattern:  # `a|b)` before the commands of a case
                if token == ")":
                    words, is_pattern = [], False
                continue
            if token in _REDIRECTIONS or token in _INPUTS:
                _drop_number(words, self._text, self._at - len(token))
                target = self._token()
                if isinstance(target, Word) and (
                    token in _REDIRECTIONS or (token == ">&" and target.strip("0123456789-"))
                ):
                    targets.append(target)
                elif isinstance(target, Word) and token == "<":
                    inputs.append(target)
                continue
            if token in ("<<", "<<-"):
                self._note_document(token, body)
                continue
            if token == "(" and len(words) == 1 and self._text.startswith(")", self._at):
                self._at += 1  # a function: what it holds is taken for run
                words = []
                continue
            self._end(words, targets, body, inputs)
            words, targets, body, inputs = [], [], [], []
            if token == "(":
                self._bracket()
            elif token == ")":
                if closing:
                    return
            elif token == "\n":
                self._skip_documents()
            elif token in (";;", ";&", ";;&") and cases:
                is_pattern = True

    def _is_keyword(self, token: Word) -> bool:
        """Tell whether a word at the beginning of a command is the shell's own. Takes what belongs to it."""
        if token in ("for", "select"):
            name = self._token()
            self._for_words(str(name or ""))
            return True
        if token == "function":
            self._token()
            return True
        return token == "case" or token in _KEYWORDS

    def _for_words(self, name: str) -> None:
        """`for f in a b;`: what the variable will be, one after the other."""
        values: list[Word] = []
        token = self._token()
        while isinstance(token, Word):
            values.append(token)
            token = self._token()
        if values[:1] == ["in"]:
            self.values[name] = values[1:]
        if token == "(" and not values:  # for ((i = 0; …))
            self._arithmetic()

    def _bracket(self) -> None:
        if self._text.startswith("(", self._at):
            self._arithmetic()
            return
        folder = self.folder
        self._inside(")")
        self.folder = folder

    def _arithmetic(self) -> None:
        found = self._text.find("))", self._at)
        if found < 0:
            raise _Unreadable
        self._at = found + 2

    def _inside(self, closing: str) -> None:
        if self._depth >= _DEPTH_MAX:
            raise _Unreadable
        self._depth += 1
        self._read(closing)
        self._depth -= 1

    def _end(self, words: list[Word], targets: list[Word], body: list[str], inputs: list[Word]) -> None:
        """A simple command is complete."""
        if all(_ASSIGNMENT.match(each) for each in words):  # without a command, they last
            for each in words:
                name, _, value = each.partition("=")
                self.values[name.removesuffix("+")] = [word(value, sure=each.sure)]
            words = []
        if words:
            gone: list[Word] = []
            found = unwrapped([each for given in words for each in self._meant(given)], gone)
            folder = self.folder
            for each in gone:
                folder = _below(folder, each)
            if gone and targets:  # the shell opens them, in its own folder
                self.found.append(SimpleCommand([], targets, self.folder, []))
            command = SimpleCommand(found, [] if gone else targets, folder, body, inputs)
            self.found.append(command)
            self._look_inside(command)
            if command.program in ("cd", "pushd", "popd"):
                self.folder = _moved(self.folder, command)
        elif targets:
            self.found.append(SimpleCommand([], targets, self.folder, body))

    def _meant(self, given: Word) -> list[Word]:
        """The words that a word becomes that is a variable of this line."""
        if given.sure or "$" not in given or not self.values:
            return [given]
        if match := _VARIABLE.fullmatch(given):
            return self.values.get(match[1] or match[2], [given])
        found = [given]
        for match in _VARIABLE.finditer(given):
            values = self.values.get(match[1] or match[2], [])
            if 0 < len(found) * len(values) <= _VALUES_MAX:
                found = [_replaced_by(each, match[0], value) for each in found for value in values]
        return found

    def _look_inside(self, command: SimpleCommand) -> None:
        """Read the texts that a program runs as lines: `bash -c`, `eval`, `find -exec`."""
        name, rest = command.program, command.words[1:]
        if name in SHELLS or name in ("su", "script", "flock", "nix-shell"):
            letter = "--run" if name == "nix-shell" else "c"
            for at, each in enumerate(rest[:-1]):
                if each == letter or (letter == "c" and re.fullmatch(r"-[a-z]*c", each)) or each == "--command":
                    self._nested(rest[at + 1], command.folder)
                    break
        elif name == "eval":
            self._nested(" ".join(rest), command.folder)
        elif name == "trap" and rest:
            self._nested(rest[0], command.folder)
        elif name == "find":
            for at, each in enumerate(rest):
                if each in ("-exec", "-execdir", "-ok", "-okdir"):
                    inner = rest[at + 1 :]
                    ends = [place for place, one in enumerate(inner) if one in (";", "+")]
                    made = SimpleCommand(unwrapped(inner[: ends[0]] if ends else inner), [], command.folder, [])
                    self.found.append(made)
                    self._look_inside(made)
        elif len(rest) == 0 and " " in name and command.words[0].sure:
            self._nested(command.words[0], command.folder)  # watch 'git push'

    # Words and operators.

    def _token(self, *, is_test: bool = False) -> Word | Operator | None:
        """The next word or operator; None at the end. In a test (`[[ a < b ]]`) signs are words."""
        text, size = self._text, self._size
        pieces: list[str] = []
        begun, sure = False, True
        while self._at < size:
            at = self._at
            plain = _PLAIN.match(text, at)
            if plain is not None:
                pieces.append(plain[0])
                begun, self._at = True, plain.end()
                continue
            character = text[at]
            if character in " \t\r":
                self._at = at + 1
                if begun:
                    break
            elif character == "\n":
                if begun:
                    break
                self._at = at + 1
                return Operator("\n")
            elif character == "'":
                pieces.append(self._single())
                begun = True
            elif character == '"':
                inside, is_sure = self._double()
                pieces.append(inside)
                begun, sure = True, sure and is_sure
            elif character == "\\":
                if text[at + 1 : at + 2] != "\n":
                    pieces.append(text[at + 1 : at + 2])
                    begun = True
                self._at = min(at + 2, size)
            elif character == "#" and not begun:
                self._at = _end_of_line(text, at)
            elif character in "$`":
                piece, is_sure = self._replaced()
                pieces.append(piece)
                begun, sure = True, sure and is_sure
            elif character in "<>" and text.startswith("(", at + 1):  # <(…) and >(…)
                self._at = at + 2
                self._inside(")")
                begun, sure = True, False
            elif character in _BEGIN_OPERATORS and not (is_test and character in "<>()&|"):
                if begun:
                    break
                operator = next(each for each in _OPERATORS if text.startswith(each, at))
                self._at = at + len(operator)
                return Operator(operator)
            else:
                sure = sure and character not in "*?[~{}"
                pieces.append(character)
                begun, self._at = True, at + 1
        return word("".join(pieces), sure=sure) if begun else None

    def _single(self) -> str:
        close = self._text.find("'", self._at + 1)
        if close < 0:
            raise _Unreadable
        inside = self._text[self._at + 1 : close]
        self._at = close + 1
        return inside

    def _double(self) -> tuple[str, bool]:
        """The text of a word in double quotes, and whether it is sure. What it substitutes is run."""
        text, sure = self._text, True
        pieces: list[str] = []
        self._at += 1
        while self._at < self._size:
            at = self._at
            character = text[at]
            if character == '"':
                self._at = at + 1
                return "".join(pieces), sure
            if character == "\\":
                following = text[at + 1 : at + 2]
                pieces.append(following if following in '$`"\\' else "" if following == "\n" else character + following)
                self._at = at + 2
            elif character in "$`":
                piece, is_sure = self._replaced(in_quotes=True)
                pieces.append(piece)
                sure = sure and is_sure
            else:
                plain = _QUOTED.match(text, at)
                assert plain is not None
                pieces.append(plain[0])
                self._at = plain.end()
        raise _Unreadable

    def _replaced(self, *, in_quotes: bool = False) -> tuple[str, bool]:
        """A part that begins with `$` or a backquote, as it was typed, and whether the shell leaves it so."""
        text, at = self._text, self._at
        if text[at] == "`":
            close = at + 1
            while close < self._size and text[close] != "`":
                close += 2 if text[close] == "\\" else 1
            if close >= self._size:
                raise _Unreadable
            self._at = close + 1
            self._nested(text[at + 1 : close].replace("\\`", "`"), self.folder)
            return "`", False
        if text.startswith("$((", at):
            self._at = at + 3
            self._arithmetic()
            return "$", False
        if text.startswith("$(", at):
            self._at = at + 2
            folder, documents = self.folder, self._documents
            self._documents = []
            self._inside(")")
            self.folder, self._documents = folder, documents
            return "$", False
        if text.startswith("${", at):
            close = text.find("}", at)
            if close < 0:
                raise _Unreadable
            self._at = close + 1
            return text[at : close + 1], False
        if text.startswith("$'", at) and not in_quotes:
            close = at + 2
            while close < self._size and text[close] != "'":
                close += 2 if text[close] == "\\" else 1
            if close >= self._size:
                raise _Unreadable
            self._at = close + 1
            return text[at + 2 : close], "\\" not in text[at:close]
        self._at = at + 1
        is_variable = text[at + 1 : at + 2].isalnum() or text[at + 1 : at + 2] in ("_", "@", "*", "#", "?", "$", "!")
        return "$", not is_variable

    def _note_document(self, operator: str, body: list[str]) -> None:
        found = _HERE.match(self._text, self._at)
        if found is None:
            self._size = _end_of_line(self._text, self._at)  # what follows is text
            return
        self._at = found.end()
        last = found[1] if found[1] is not None else found[2] if found[2] is not None else found[3]
        self._documents.append((last, operator == "<<-", body))

    def _skip_documents(self) -> None:
        """Go behind the here-documents of the line that ended. One that does not end is text to the end."""
        for last, has_tabs, body in self._documents:
            while self._at < self._size:
                close = _end_of_line(self._text, self._at)
                line = self._text[self._at : close]
                self._at = min(close + 1, self._size)
                if (line.lstrip("\t") if has_tabs else line) == last:
                    break
                body.append(line)
        self._documents = []


def unwrapped(words: list[Word], gone: list[Word] | None = None) -> list[Word]:
    """A command without what stands before its program's name: assignments, and programs that run it. `gone` gets the
    folders that these go to."""
    at = 0
    while at < len(words):
        if _ASSIGNMENT.match(words[at]):
            at += 1
            continue
        wrapper = _WRAPPERS.get(words[at].rpartition("/")[2])
        inner = None if wrapper is None else _behind(words, at, wrapper)
        if wrapper is None or inner is None:
            break
        if gone is not None and wrapper.goes:
            gone += [words[place + 1] for place in range(at + 1, inner - 1) if words[place] in wrapper.goes]
        at = inner
    return words[at:]


def _behind(words: list[Word], at: int, wrapper: Wrapper) -> int | None:
    """The place of the program that a wrapper runs; None if it runs none."""
    left, needs_after = wrapper.words, bool(wrapper.after)
    at += 1
    while at < len(words):
        each = words[at]
        if each in wrapper.no:
            return None
        if each == "--" and not needs_after:
            at += 1
            if not left:
                break
        elif each.startswith("-") and len(each) > 1:
            at += 2 if each in wrapper.values else 1
        elif needs_after:
            if each not in wrapper.after:
                return None
            needs_after = False
            at += 1
        elif left:
            left -= 1
            at += 1
        else:
            break
    return at if at < len(words) and not needs_after else None


def _drop_number(words: list[Word], text: str, at: int) -> None:
    """`2> file` redirects a number, which is no argument."""
    if words and words[-1].isdecimal() and text.endswith(words[-1], 0, at):
        words.pop()


def _moved(folder: str | None, command: SimpleCommand) -> str | None:
    """The folder after `cd`; None if that is not known."""
    given = [each for each in command.words[1:] if each not in ("--", "-P", "-L", "-e")]
    if command.program not in ("cd", "pushd") or len(given) != 1 or not given[0].sure or given[0][:1] in ("-", "+"):
        return None
    return _below(folder, given[0])


def _below(folder: str | None, to: Word) -> str | None:
    if not to.sure:
        return None
    return str(to) if to.startswith("/") else None if folder is None else posixpath.join(folder, to)


def _end_of_line(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found
