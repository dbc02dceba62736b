"""Finds the files of others that a shell command names and may write. Pure.

Which programs write cannot be listed; which files others have is known, and they are few. So the question is not what a
command writes, but whether it names one of them: as a word, through a pattern, after `cd` or `-C`, in the code of
`python -c`, in a patch, as a file below the folder that a formatter is given.

A refusal for nothing costs more than one that is missed. So a program that is known to read is never asked about
(`_READERS`, `_PROGRAMS`), text that only mentions a name is no name (a message, a search pattern, a comment), and what
a program does with a whole folder counts only where it is known. Not found: names that come from a pipe or a variable
of the environment, and what a script of the repository writes.
"""

from __future__ import annotations

import posixpath
import re

from dibs.agents.harness.hook_events import patched
from dibs.agents.harness.shell_lines import SHELLS, SimpleCommand, Word, commands_in, word
from dibs.agents.harness.shell_writes import arguments
from dibs.base.cheap import Callable, Sequence

# Programs that write none of the files that are their arguments, or that only run them.
_READERS = frozenset[str]().union(
    # Commands of the shell itself, and what is as simple.
    (":", ".", "[", "[[", "alias", "bg", "break", "cd", "command", "compgen", "complete", "continue", "declare"),
    ("dirs", "disown", "echo", "enable", "eval", "exit", "export", "false", "fc", "fg", "getopts", "hash"),
    ("jobs", "let", "local", "popd", "printf", "print", "pushd", "pwd", "read", "readarray", "mapfile"),
    ("readonly", "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true"),
    ("type", "typeset", "ulimit", "umask", "unalias", "unset", "wait", "yes", "sleep", "seq", "expr", "date"),
    ("env", "printenv"),
    # What shows, compares, searches and sums up files, or changes no more than their rights.
    ("cat", "bat", "batcat", "less", "more", "most", "head", "tail", "tac", "rev", "nl", "pr", "fold", "fmt"),
    ("expand", "unexpand", "column", "col", "colrm", "cut", "paste", "join", "comm", "uniq", "tr", "wc"),
    ("tsort", "look", "strings", "od", "xxd", "hexdump", "hexyl", "base32", "base64", "iconv", "zcat", "zless"),
    ("zmore", "glow", "mdcat", "jq", "jless", "gron", "xq", "csvlook", "csvcut", "csvgrep", "csvstat", "view"),
    ("pdftotext", "pdfinfo", "diff", "diff3", "cmp", "sdiff", "colordiff", "delta", "difft", "diffstat"),
    ("vimdiff", "grep", "egrep", "fgrep", "zgrep", "rg", "rga", "ag", "ack", "ugrep", "git-grep", "find", "fd"),
    ("fdfind", "locate", "ls", "exa", "eza", "lsd", "tree", "du", "df", "stat", "file", "readlink", "realpath"),
    ("basename", "dirname", "pathchk", "md5", "md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum"),
    ("sha512sum", "shasum", "b2sum", "cksum", "sum", "size", "nm", "objdump", "readelf", "otool", "ldd", "lsof"),
    ("fuser", "cloc", "tokei", "scc", "ctags", "getfacl", "lsattr", "chmod", "chown", "chgrp", "chattr"),
    ("mkdir", "rmdir", "mkfifo", "mktemp", "tar", "zip", "unzip", "zipinfo", "gpg", "open", "xdg-open", "code"),
    ("cursor",),
    # Tests, linters, package managers, builds, servers, debuggers.
    ("pytest", "py.test", "tox", "nox", "coverage", "unittest", "jest", "vitest", "mocha", "ava", "tap"),
    ("cypress", "playwright", "karma", "jasmine", "rspec", "phpunit", "ctest", "bats", "newman", "k6"),
    ("hyperfine", "mypy", "pyright", "pyre", "flake8", "pylint", "pyflakes", "pycodestyle", "pydocstyle"),
    ("bandit", "vulture", "radon", "deptry", "tsc", "svelte-check", "vue-tsc", "jshint", "jsonlint", "yamllint"),
    ("shellcheck", "hadolint", "actionlint", "ansible-lint", "tflint", "luacheck", "phpstan", "psalm", "phpcs"),
    ("checkstyle", "clang-tidy", "clang-check", "cppcheck", "protolint", "kubeconform", "kubeval", "gitleaks"),
    ("trivy", "snyk", "vale", "detect-secrets", "pip", "pip3", "pipx", "conda", "mamba", "poetry", "pdm"),
    ("hatch", "rye", "pixi", "brew", "apt", "apt-get", "dnf", "yum", "apk", "pacman", "gem", "composer"),
    ("bundle", "cmake", "ninja", "meson", "bazel", "mvn", "gradle", "gradlew", "dotnet", "swift", "javac"),
    ("java", "scalac", "kotlinc", "ghc", "sphinx-build", "mkdocs", "uvicorn", "gunicorn", "flask", "streamlit"),
    ("nodemon", "serve", "http-server", "live-server", "storybook", "entr", "next", "vite", "webpack", "rollup"),
    ("esbuild", "ty", "pyrefly", "basedpyright", "pytype", "dmypy", "madge", "cspell", "lizard", "pipdeptree"),
    ("lychee", "fastapi", "django-admin", "gdb", "lldb", "valgrind", "perf", "ltrace", "pygmentize"),
    ("highlight", "tree-sitter", "cscope", "universal-ctags", "doxygen", "pdoc", "plantuml"),
    # Processes, networks and services; assistants; editors that are only told to open a file.
    ("ps", "pgrep", "pkill", "kill", "killall", "pidof", "top", "htop", "free", "uptime", "uname", "hostname"),
    ("id", "who", "whoami", "which", "whereis", "what", "man", "info", "systemctl", "journalctl", "service"),
    ("ping", "dig", "host", "nslookup", "nc", "ssh", "scp", "sftp", "mail", "psql", "mysql", "sqlite3"),
    ("mongosh", "redis-cli", "screen", "fzf", "inotifywait", "b3sum", "ffprobe", "mediainfo", "identify"),
    ("gsutil", "rclone", "split", "csplit", "m4", "cpp", "bc", "xgettext", "msgfmt", "idea", "emacsclient"),
    ("subl", "docker", "docker-compose", "podman", "kubectl", "helm", "kustomize", "oc", "aws", "az", "gcloud"),
    ("gh", "glab", "heroku", "vercel", "netlify", "fly", "flyctl", "ansible-playbook", "dibs", "claude"),
    ("codex", "gemini", "copilot", "opencode", "clear", "tput"),
)


class Program:
    """The way in which a program treats the files that it is given.

    `writes`: it writes them only with one of these options; None: always. `unless`: not with one of these. `outputs`:
    options whose value is a file that it writes, whatever else it does. `values`: options whose value is no file.
    `skips`: how many words before the files are none (a script of yq). `below`: of a folder, it takes all files below
    with one of these endings; None: it takes no folders; empty: files of any kind. `here`: without a path, it takes the
    current folder. `joined`: its letters may stand in one word."""

    def __init__(
        self,
        *,
        writes: tuple[str, ...] | None = None,
        unless: tuple[str, ...] = (),
        outputs: tuple[str, ...] = (),
        values: tuple[str, ...] = (),
        skips: int = 0,
        below: tuple[str, ...] | None = None,
        here: bool = False,
        joined: bool = False,
    ) -> None:
        self.writes = None if writes is None else frozenset(writes)
        self.unless = frozenset(unless)
        self.outputs = frozenset(outputs)
        self.values = frozenset(values)
        self.skips = skips
        self.below = below
        self.here = here
        self.joined = joined


_WEB = (
    *(".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte"),
    *(".html", ".css", ".scss", ".less", ".json", ".jsonc", ".yaml", ".yml", ".graphql", ".md", ".mdx"),
)
_SCRIPT = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte", ".json")
_PRETTIER = Program(
    writes=("--write", "-w"),
    below=_WEB,
    values=("--config", "--ignore-path", "--plugin", "--parser", "--log-level", "--stdin-filepath"),
)
_ESLINT = Program(
    writes=("--fix",),
    below=_SCRIPT,
    outputs=("-o", "--output-file"),
    values=(
        *("-c", "-f"),
        *("--config", "--ext", "--rulesdir", "--plugin", "--parser"),
        *("--ignore-path", "--ignore-pattern", "--format", "--max-warnings"),
    ),
)
_RUFF = (
    *("-c", "--config", "--select", "--ignore", "--extend-select", "--exclude"),
    *("--line-length", "--target-version", "--output-format"),
)
_OUT = Program(writes=(), outputs=("-o", "--output"))  # reads its files, and writes one
_PACKAGERS = ("npm", "pnpm", "yarn", "bun")
# By program, or by program and subcommand. A program that is neither here nor a reader may write any file it names.
_PROGRAMS: dict[str, Program] = {
    # Python
    "black": Program(
        unless=("--check", "--diff", "--version", "--help", "-h"),
        below=(".py", ".pyi", ".ipynb"),
        values=(
            *("-l", "-t", "-c", "-W"),
            *("--line-length", "--target-version", "--config"),
            *("--include", "--exclude", "--extend-exclude", "--code"),
        ),
    ),
    "isort": Program(
        unless=("--check", "--check-only", "--diff", "-c", "-d", "--version"),
        below=(".py", ".pyi"),
        values=("--profile", "-l", "--sp"),
    ),
    "autopep8": Program(
        writes=("-i", "--in-place"), below=(".py",), values=("--max-line-length", "--select", "--ignore")
    ),
    "yapf": Program(writes=("-i", "--in-place"), below=(".py",), values=("--style",)),
    "autoflake": Program(writes=("-i", "--in-place"), unless=("--check",), below=(".py",)),
    "docformatter": Program(writes=("-i", "--in-place"), below=(".py",)),
    "pyupgrade": Program(),
    "ruff": Program(writes=()),
    "ruff check": Program(
        writes=("--fix", "--fix-only", "--add-noqa"), unless=("--diff",), below=(".py", ".pyi"), values=_RUFF, here=True
    ),
    "ruff format": Program(unless=("--check", "--diff"), below=(".py", ".pyi", ".ipynb"), values=_RUFF, here=True),
    "djlint": Program(writes=("--reformat",), below=(".html",)),
    "codespell": Program(writes=("-w", "--write-changes"), below=(), values=("-S", "--skip", "-L", "-I")),
    "typos": Program(writes=("-w", "--write-changes"), below=(), values=("--config",), here=True),
    "jupyter": Program(writes=("--inplace",), values=("--config",)),
    # JavaScript and the web
    "prettier": _PRETTIER,
    "eslint": _ESLINT,
    "stylelint": Program(writes=("--fix",), below=(".css", ".scss", ".less", ".vue"), values=("--config",)),
    "standard": Program(writes=("--fix",), below=_SCRIPT),
    "xo": Program(writes=("--fix",), below=_SCRIPT),
    "biome": Program(writes=("--write", "--apply", "--apply-unsafe", "--fix", "-w"), below=_WEB, here=True),
    "dprint fmt": Program(below=(), here=True),
    "dprint": Program(writes=()),
    "oxlint": Program(writes=("--fix",), below=_SCRIPT, here=True),
    "jscodeshift": Program(
        unless=("-d", "--dry"), below=_SCRIPT, values=("-t", "--transform", "--parser", "--extensions")
    ),
    "markdownlint": Program(writes=("--fix", "-f"), below=(".md",), values=("-c", "--config")),
    "markdownlint-cli2": Program(writes=("--fix",), below=(".md",)),
    "deno fmt": Program(unless=("--check",), below=_WEB, here=True),
    "deno lint": Program(writes=("--fix",), below=_SCRIPT, here=True),
    "deno": Program(writes=()),
    # Go, Rust, C and others
    "gofmt": Program(writes=("-w",), below=(".go",)),
    "goimports": Program(writes=("-w",), below=(".go",)),
    "gofumpt": Program(writes=("-w",), below=(".go",)),
    "go fmt": Program(below=(".go",), here=True),
    "go": Program(writes=(), outputs=("-o",)),
    "golangci-lint": Program(writes=("--fix",), below=(".go",), here=True),
    "rustfmt": Program(unless=("--check",)),
    "cargo fmt": Program(unless=("--check",), below=(".rs",), here=True),
    "cargo clippy": Program(writes=("--fix",), below=(".rs",), here=True),
    "cargo fix": Program(below=(".rs",), here=True),
    "cargo": Program(writes=()),
    "clang-format": Program(writes=("-i",)),
    "shfmt": Program(writes=("-w", "--write"), below=(".sh", ".bash")),
    "terraform fmt": Program(unless=("-check", "-diff"), below=(".tf", ".tfvars"), here=True),
    **dict.fromkeys(("terraform", "tofu"), Program(writes=())),
    "rubocop": Program(
        writes=("-a", "-A", "--autocorrect", "--auto-correct", "--autocorrect-all", "--fix"), below=(".rb",), here=True
    ),
    "php-cs-fixer": Program(unless=("--dry-run",), below=(".php",)),
    "mix format": Program(unless=("--check-formatted",), below=(".ex", ".exs"), here=True),
    "mix": Program(writes=()),
    "dart format": Program(unless=("--output=none",), below=(".dart",)),
    "dart": Program(writes=(), outputs=("-o",)),
    "swiftformat": Program(unless=("--lint", "--dryrun"), below=(".swift",)),
    "ktlint": Program(writes=("-F", "--format"), below=(".kt", ".kts"), here=True),
    "buildifier": Program(unless=("-mode=check", "--mode=check"), below=(".bzl", ".bazel")),
    "sqlfluff fix": Program(below=(".sql",)),
    "sqlfluff format": Program(below=(".sql",)),
    "sqlfluff": Program(writes=()),
    "taplo": Program(writes=("fmt", "format"), unless=("--check",), below=(".toml",)),
    "comby": Program(writes=("-i", "-in-place"), below=()),
    **dict.fromkeys(("ast-grep", "sg"), Program(writes=("-U", "--update-all"), below=(), here=True)),
    "semgrep": Program(
        writes=("--autofix",), unless=("--dryrun",), below=(), values=("--config", "-f", "-e"), here=True
    ),
    # Text and files
    **dict.fromkeys(
        ("awk", "gawk", "mawk"), Program(writes=("inplace", "--in-place"), values=("-f", "-v", "-F"), skips=1)
    ),
    "yq": Program(writes=("-i", "--inplace", "--in-place"), skips=1),
    "sort": Program(writes=(), outputs=("-o", "--output"), joined=True),
    "shuf": _OUT,
    "tidy": Program(writes=("-m", "-modify")),
    "xmllint": Program(writes=(), outputs=("-o", "--output")),
    **dict.fromkeys(("curl", "http"), Program(writes=(), outputs=("-o", "--output"), joined=True)),
    "wget": Program(writes=(), outputs=("-O", "--output-document"), joined=True),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++", "rustc", "pandoc", "dot"), _OUT),
    "openssl": Program(writes=(), outputs=("-out",)),
    "make": Program(
        unless=("-n", "--dry-run", "--just-print"), values=("-f", "--file", "--makefile", "-j", "-l", "-o", "-W", "-I")
    ),
    "protoc": Program(writes=()),
    **dict.fromkeys(
        ("vim", "nvim", "vi", "ex"), Program(unless=("-R", "--version"), values=("-c", "-S", "-u", "--cmd"))
    ),
    **dict.fromkeys(_PACKAGERS, Program(writes=())),
    "pre-commit": Program(values=("-c", "--config", "--hook-stage", "--from-ref", "--to-ref"), writes=("run",)),
    **{f"{each} run": Program(skips=2, values=("-w", "--workspace", "--filter")) for each in _PACKAGERS},
}
_ANY = Program(
    values=(
        *("-c", "-f", "-m", "-p", "-r"),
        *("--config", "--config-file", "--conf", "--file", "--from", "--input", "--in", "--source"),
        *("--src", "--env-file", "--settings", "--manifest", "--rcfile", "--ignore", "--exclude"),
        *("--include", "--template", "--data", "--body-file", "--message", "--project", "--name"),
        *("--title", "--body", "--text", "--prompt", "--description", "--grep", "--pattern"),
        *("--filter", "--schema", "--spec", "--requirement", "--constraint", "--log-file"),
    )
)
# Scripts of a package that only read, by their name or its first part (`test:unit`).
_READING_SCRIPTS = frozenset[str]().union(
    ("test", "tests", "unit", "e2e", "lint", "check", "typecheck", "type-check"),
    ("types", "tsc", "build", "start", "dev", "serve", "watch", "bench", "coverage"),
)
_FIXES = frozenset[str]().union(
    ("-w", "-i", "-a", "-A", "-u"),
    ("--fix", "--write", "--apply", "--in-place", "--autocorrect", "--update-snapshot"),
)
# The name of a script, or the first word of a program that is not known, that says it only looks.
_LOOKS = re.compile(
    r"(?:run[-_])?(?:tests?|lint|check|typecheck|verify|validate)(?:[.:][\w:]+)?"
    r"|log|diff|show|status|list|view|parse|report|watch"
)
# Modules that `python -m` runs, and that no program is named after.
_READING_MODULES = frozenset[str]().union(
    ("doctest", "py_compile", "compileall", "http.server", "json.tool"),
    ("venv", "timeit", "pdb", "cProfile", "profile", "trace", "dis", "ast"),
    ("tokenize", "tabnanny", "symtable", "memory_profiler", "line_profiler"),
)
# Options by which a program goes to a folder first.
_GOES = frozenset(("-C", "--directory", "--cwd", "--prefix", "--chdir", "--working-directory", "-d"))
_GIT_WRITES = {
    "rm": frozenset(("--cached", "-n", "--dry-run")),
    "mv": frozenset(("-n", "--dry-run")),
    "merge-file": frozenset(("-p", "--stdout")),
    "checkout-index": frozenset[str](),
}
_GIT_PATCHES = frozenset(("--check", "--stat", "--numstat", "--summary", "--cached"))
_INTERPRETERS = frozenset[str]().union(
    ("python", "ipython", "pypy", "node", "tsx", "ts-node", "ruby"),
    ("perl", "php", "Rscript", "lua", "osascript", "pwsh", "jython"),
)
_CODE = frozenset(("-c", "-e", "-E", "-p", "-r", "-pe", "--eval", "--print", "--execute", "--command"))
_VERSIONS = re.compile(r"(python|pypy|ruby|perl|php|node|lua|pip|clang-format|clang|gcc|g\+\+)-?[\d.]+")
_EDITS_IN_PLACE = re.compile(r"-[0-9acFlnpsStTuUwWx]*i")
# The options of interpreters that take a value which is no file.
_TAKES_VALUE = frozenset[str]().union(
    ("-W", "-X"),
    ("--import", "--require", "--loader", "--experimental-loader", "--conditions", "--env-file"),
)
# Code that only reads the file which it names. It is taken out of a text before names are looked for.
_READS = re.compile(
    r"""
      \b(?: open | read\w* | loadtxt | file_get_contents | exists(?:Sync)? | isfile | getsize | statSync )
      \( \s* (['"])[^'"\n]*\1 (?: \s*,\s* (?:encoding\s*=\s*)? ['"](?: r[bt]* | utf-?8 )['"] )* \s* \)
    | \bPath\( \s* (['"])[^'"\n]*\2 \s* \)\. (?: read_ | exists | stat | is_ | open\(\) )
    """,
    re.VERBOSE,
)
# A sign that code writes files. What it prints is none.
_PRINTS = re.compile(r"(?:stdout|stderr|STDOUT|STDERR)(?:\.buffer)?\.write")
_WRITES = re.compile(
    r"""
      \bwrite | write_ | Write | \bopen\s*\( [^)]* ['"] (?: [wax] [bt+]* | r[bt]*\+[bt]* ) ['"] | ['"] \+?>>? ['"]
    | \b(?: unlink | rmtree | rename | truncate | touch | copyfile | copy2? | move | symlink_to ) (?:Sync)? \s*\(
    | \b(?: os\.remove | os\.replace | shutil\. | File\.delete | FileUtils | file_put_contents | inplace )
    | (?: appendFile | copyFile | renameSync | rmSync ) | \.(?: save | dump | to_csv | to_json | to_parquet ) \s*\(
    """,
    re.VERBOSE,
)
_PATCH_LINE = re.compile(r"^(?:\+\+\+|---) ([^\t\n]+)|^rename (?:from|to) (.+)$", re.MULTILINE)
_PATCH_CHARS_MAX = 4_000_000
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_EXPANDED_MAX = 64
_PATTERN_CHARS_MAX = 512
_CANDIDATES_MAX = 1_000


class Candidate:
    """A way in which a command may name files: a path, or a pattern, from the folder in which the line begins.
    `below`: with the files below it that have one of these endings; None: not. `code`: a text in which names stand."""

    __slots__ = ("below", "code", "folder", "text")

    def __init__(
        self, folder: str | None, text: Word, below: tuple[str, ...] | None = None, *, code: bool = False
    ) -> None:
        self.folder = folder
        self.text = text
        self.below = below
        self.code = code


def candidates(line: str, here: str, exists: Callable[[str], bool], read: Callable[[str], str]) -> list[Candidate]:
    """The ways in which a line may name files that it writes. None if all that it runs only reads. `exists` tells
    whether there is a path, `read` gives the text of a file, both from the folder `here` in which the line begins."""
    found: list[Candidate] = []
    for command in commands_in(line):
        found += [Candidate(command.folder, each) for each in command.targets if not each.sure]
        if command.words:
            found += _of(command, here, read)
    return [each for each in found[:_CANDIDATES_MAX] if each.code or _may_be_path(each, exists)]


def _may_be_path(each: Candidate, exists: Callable[[str], bool]) -> bool:
    text = each.text
    if not text or text.startswith("-") or (each.folder is None and not text.startswith("/")) or "\n" in text:
        return False
    if "/" in text or "." in text or not text.sure:
        return True
    return exists(posixpath.join(each.folder or "", text))


def _of(command: SimpleCommand, here: str, read: Callable[[str], str]) -> list[Candidate]:
    program = _VERSIONS.sub(r"\1", command.program) if command.program[-1:].isdigit() else command.program
    rest = command.words[1:]
    if program in ("python", "pypy") and "-m" in rest[:-1]:
        at = rest.index(word("-m"))
        program, rest = str(rest[at + 1]), rest[at + 2 :]
        if program in _READING_MODULES:
            return []
    if program in _PACKAGERS and rest and rest[0] in _PROGRAMS and rest[0] not in _PACKAGERS:
        program, rest = str(rest[0]), rest[1:]  # yarn prettier
    if program in SHELLS or program in ("fish", "nu"):
        run, *given = _plain(rest, _ANY) or [word("")]
        return [] if _only_looks(run, given, rest) else [Candidate(command.folder, each) for each in given]
    known = _known(program, rest)
    if known is None and program in _READERS:
        return _of_find(command, rest) if program in ("find", "fd", "fdfind") else []
    folder = command.folder
    if program == "git":
        return _of_git(rest, folder, command, read)
    if program in ("patch", "gpatch"):
        return _of_patch(rest, folder, command, read)
    sure = arguments(command, here)
    if sure is not None:
        return [Candidate(folder, each, ()) for each in sure if not each.sure]
    if program in _INTERPRETERS:
        return _of_code(program, rest, folder, command)
    if program == "dd":
        return [Candidate(folder, word(each[3:], sure=each.sure)) for each in rest if each.startswith("of=")]
    if known is None and _only_looks(program, _plain(rest, _ANY), rest):
        return []
    return _by_table(known or _ANY, program, rest, folder)


def _only_looks(run: str, given: Sequence[Word], rest: Sequence[Word]) -> bool:
    """Tell whether a script or an unknown program says that it only looks: `./test.sh`, `manage.py test`, `svn log`."""
    is_said = _LOOKS.fullmatch(posixpath.basename(run)) or (given and given[0].isalpha() and _LOOKS.fullmatch(given[0]))
    return bool(is_said) and _FIXES.isdisjoint(rest)


def _known(program: str, rest: Sequence[Word]) -> Program | None:
    plain = [each for each in rest if not each.startswith("-")]
    found = _PROGRAMS.get(f"{program} {plain[0]}") if plain else None
    return found or _PROGRAMS.get(program)


def _by_table(known: Program, program: str, rest: Sequence[Word], folder: str | None) -> list[Candidate]:
    outputs = _values(rest, known.outputs, joined=known.joined)
    found = [Candidate(each, out) for each in _folders(rest, folder) for out in outputs]
    if known.unless.intersection(rest) or (known.writes is not None and not known.writes.intersection(rest)):
        return found
    plain = _plain(rest, known)
    if program in _PACKAGERS and plain[:1] == ["run"] and _FIXES.isdisjoint(rest):
        script = plain[1].partition(":")[0] if len(plain) > 1 else "test"
        if script in _READING_SCRIPTS:
            return found
    is_sub = f"{program} {plain[0]}" in _PROGRAMS if plain else False
    files = plain[known.skips or (1 if is_sub else 0) :]
    if known.below is not None and known.here and not files:
        files = [word(".")]
    if known.below is not None:  # they also expand patterns themselves, and `./...`
        files = [word(each.removesuffix("/...") or ".", sure=each.sure and not _has_pattern(each)) for each in files]
    return found + [Candidate(each, file, known.below) for each in _folders(rest, folder) for file in files]


def _folders(rest: Sequence[Word], folder: str | None) -> list[str | None]:
    """The folders that names may count from: `make -C src` names files in `src`."""
    found = [folder]
    for each in _values(rest, _GOES)[:1]:
        if folder is not None and each.sure:
            found.append(posixpath.join(folder, each))
    return found


def _values(rest: Sequence[Word], options: frozenset[str], *, joined: bool = False) -> list[Word]:
    """The values of options: in the next word, behind `=`, or directly behind a letter. `joined`: in the next word also
    behind several letters (`-sSLo FILE`)."""
    found: list[Word] = []
    for at, each in enumerate(rest):
        name, has_value, value = each.partition("=")
        if each in options or (joined and each[:1] == "-" and each[1:].isalpha() and f"-{each[-1]}" in options):
            found += rest[at + 1 : at + 2]
        elif has_value and name in options:
            found.append(word(value, sure=each.sure))
        elif len(each) > 2 and each[0] == "-" != each[1] and each[:2] in options and not each[2:].isalpha():
            found.append(word(each[2:], sure=each.sure))
    return found


def _plain(rest: Sequence[Word], known: Program) -> list[Word]:
    """The words that may be files: no options, and not the values of those that have another one."""
    found: list[Word] = []
    is_value = False
    for at, each in enumerate(rest):
        if is_value:
            is_value = False
        elif each == "--":
            return found + list(rest[at + 1 :])
        elif each in known.values or each in known.outputs:
            is_value = True
        elif each.startswith("-") and len(each) > 1:
            name, has_value, value = each.partition("=")
            if has_value and name.lstrip("-").startswith("out") and known is _ANY:
                found.append(word(value, sure=each.sure))
        else:
            found.append(each)
    return found


def _of_git(
    rest: list[Word], folder: str | None, command: SimpleCommand, read: Callable[[str], str]
) -> list[Candidate]:
    """The files that `git rm`, `mv` and `apply` write. Of the others `git/git_reach.py` knows which changes they
    destroy; most write the index or a ref, and no file."""
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        if rest[at] == "-C" and at + 1 < len(rest):
            folder = posixpath.join(folder, rest[at + 1]) if folder is not None and rest[at + 1].sure else None
        at += 2 if rest[at] in ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path") else 1
    verb, given = ("", []) if at >= len(rest) else (str(rest[at]), rest[at + 1 :])
    if verb in ("apply", "am"):
        return [] if _GIT_PATCHES.intersection(given) else _of_patch(given, folder, command, read)
    never = _GIT_WRITES.get(verb)
    if never is None or never.intersection(given):
        return []
    return [Candidate(folder, each, ()) for each in _plain(given, _ANY)]


def _of_patch(
    rest: Sequence[Word], folder: str | None, command: SimpleCommand, read: Callable[[str], str]
) -> list[Candidate]:
    """The files that a patch is about: they stand in it. `patch FILE` names one itself."""
    if {"--dry-run", "-C", "--check"}.intersection(rest):
        return []
    values = Program(
        values=(
            *("-p", "-i", "-d", "-o", "-r", "-F", "-D", "-B", "-z", "-Y"),
            *("--input", "--directory", "--output", "--strip", "--fuzz", "--exclude"),
        )
    )
    plain = _plain(rest, values)
    is_git = command.program == "git"
    sources = [*_values(rest, frozenset(("-i", "--input"))), *command.inputs, *(plain if is_git else plain[1:])]
    texts = ["\n".join(command.body)] if command.body else []
    texts += [read(posixpath.join(folder or "", each)) for each in sources if each.sure and folder is not None]
    found: list[Candidate] = [] if is_git else [Candidate(folder, each) for each in plain[:1]]
    for text in texts:
        for match in _PATCH_LINE.finditer(text[:_PATCH_CHARS_MAX]):
            name = (match[1] or match[2]).strip()
            whole = [name, name.partition("/")[2]]  # with and without the `a/` of git
            goes = [word(""), *_values(rest, frozenset(("-d", "--directory")))]
            found += [Candidate(folder, word(posixpath.join(each, name))) for each in goes for name in whole if name]
    return found + [Candidate(folder, word(name)) for text in texts for name in patched(text)]


def _of_find(command: SimpleCommand, rest: Sequence[Word]) -> list[Candidate]:
    """`find src -name '*.py' -exec sed -i …`: the files below. The program that it runs is looked at by itself."""
    ends = [at for at, each in enumerate(rest) if each in ("-exec", "-execdir", "-ok", "-x", "-X", "--exec")]
    writes = "-delete" in rest
    for at in ends[:3]:
        inner = SimpleCommand([*rest[at + 1 :]], [], "", [])
        made = [str(each.text) for each in _of(inner, "", lambda path: "")] if inner.words else []
        sure = arguments(inner, "") or []
        writes = writes or any("{}" in each for each in (*made, *sure))
    if not writes:
        return []
    names = _values(rest, frozenset(("-name", "-iname", "-path", "-wholename")))
    endings = tuple(
        each[1:] if each.startswith("*.") else f"/{each}" for each in names if not _has_pattern(each.removeprefix("*."))
    )
    if names and len(endings) != len(names):
        return []  # which of them cannot be told
    first = next((at for at, each in enumerate(rest) if each.startswith("-") or each in ("!", "(")), len(rest))
    return [Candidate(command.folder, each, endings) for each in rest[:first] or [word(".")]]


def _of_code(program: str, rest: Sequence[Word], folder: str | None, command: SimpleCommand) -> list[Candidate]:
    """The files that an interpreter may write. It runs code in the command or in a here-document, or a script with the
    names that it is given. `perl -pi` and `ruby -i` write their files."""
    letters = re.compile(r"-\w*[eE]" if program in ("perl", "ruby") else r"(?!)")  # `perl -lane CODE`
    is_code = [at > 0 and (rest[at - 1] in _CODE or bool(letters.fullmatch(rest[at - 1]))) for at in range(len(rest))]
    code = [each for each, is_text in zip(rest, is_code, strict=True) if is_text]
    in_place = program in ("perl", "ruby") and any(_EDITS_IN_PLACE.match(each) for each in rest if each[:2] != "--")
    plain: list[Word] = []
    for at, each in enumerate(rest):
        if not is_code[at] and not each.startswith("-") and not (at > 0 and rest[at - 1] in _TAKES_VALUE):
            plain.append(each)
    if in_place:
        return [Candidate(folder, each) for each in (plain if code else plain[1:])]
    texts = [str(each) for each in code]
    if command.body and not code and plain[:1] in ([], ["-"]):
        texts.append("\n".join(command.body))
    left = [_READS.sub("", text) for text in texts]
    found = [Candidate(folder, word(text), code=True) for text in left if _WRITES.search(_PRINTS.sub("", text))]
    if not code and not command.body and not _only_looks(next(iter(plain), word("")), plain[1:], rest):
        # The first is the script, which is read.
        found += [Candidate(folder, each) for each in plain[1:]]
    return found


# Which held files a candidate names.


def named(
    found: Sequence[Candidate], held: Sequence[str], top: str, here: str, same: Callable[[str], str]
) -> list[str]:
    """Those of the `held` files, from `top`, that candidates name in a line that begins in `here`, below `top`. `same`
    gives all spellings of a path one form, in which `held` is."""
    names: dict[str, None] = {}
    for each in found:
        if each.code:
            base = posixpath.normpath(posixpath.join(here, each.folder or ""))
            hits = [file for file in held if _is_in_code(str(each.text), file, top, base)]
        else:
            text = each.text
            for variable in ("$PWD/", "${PWD}/"):
                if text.startswith(variable):
                    text = word(posixpath.join(here, each.folder or "", text[len(variable) :]))
            path = posixpath.normpath(posixpath.join(here, each.folder or "", text))
            hits = _matching(path, each.text.sure or text.sure, each.below, held, top, same)
        names.update(dict.fromkeys(hits))
    return list(names)


def _matching(
    path: str,
    sure: bool,
    below: tuple[str, ...] | None,
    held: Sequence[str],
    top: str,
    same: Callable[[str], str],
) -> list[str]:
    if path != top and not path.startswith(f"{top}/"):
        if not top.startswith(f"{path}/"):
            return []
        relative = ""  # a folder above the top
    else:
        relative = same(path[len(top) + 1 :])
    patterns = []
    if not sure and len(relative) <= _PATTERN_CHARS_MAX and "$" not in relative and "`" not in relative:
        patterns = _expanded(relative)
    found = []
    for file in held:
        parts = file.split("/")
        # A folder is held with all that is in it.
        is_named = f"{relative}/".startswith(f"{file}/")
        is_named = is_named or any(_is_like(parts, each) or each[: len(parts)] == parts for each in patterns)
        if not is_named and below is not None and (not below or f"/{file}".endswith(below)):
            is_named = relative == "" or file.startswith(f"{relative}/")
            is_named = is_named or any(_is_like(parts[: len(each)], each) for each in patterns)
        if is_named:
            found.append(file)
    return found


def _has_pattern(text: str) -> bool:
    return any(each in text for each in "*?[{")


def _expanded(pattern: str) -> list[list[str]]:
    """A pattern as the paths that its braces make, `{a,b}` either, each in its parts."""
    done: list[str] = []
    left = [pattern]
    while left and len(done) + len(left) < _EXPANDED_MAX:
        text = left.pop()
        match = _BRACES.search(text)
        if match is None:
            done.append(text)
        else:
            left += [text[: match.start()] + each + text[match.end() :] for each in match[1].split(",")]
    return [each.split("/") for each in (*done, *left)]


def _is_like(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a path matches a pattern of the shell: `*` and `?` match no `/`, a part `**` any number of them."""
    if "**" not in pattern:
        return len(parts) == len(pattern) and all(map(_is_part_like, parts, pattern))
    at = pattern.index("**")
    if not _is_like(parts[:at], pattern[:at]):
        return False
    rest = pattern[at + 1 :]
    return not rest or any(_is_like(parts[first:], rest) for first in range(at, len(parts)))


def _is_part_like(part: str, pattern: str) -> bool:
    """The same for one part. After a difference, the last `*` takes one character more, so the time is bounded."""
    at = place = 0
    star, taken = -1, 0
    while at < len(part):
        size = _size_of(pattern, place, part[at])
        if place < len(pattern) and pattern[place] == "*":
            star, taken, place = place, at, place + 1
        elif size:
            at, place = at + 1, place + size
        elif star >= 0:
            taken += 1
            at, place = taken, star + 1
        else:
            return False
    return not pattern[place:].strip("*")


def _size_of(pattern: str, place: int, character: str) -> int:
    """The number of characters of a pattern that match this one; 0: it does not."""
    sign = pattern[place : place + 1]
    close = pattern.find("]", place + 2) if sign == "[" else -1
    if close < 0:
        return 1 if sign in ("?", character) and sign else 0
    inside = pattern[place + 1 : close]
    is_not = inside[0] in "!^"
    inside = inside[1:] if is_not else inside
    ranges = zip(inside, inside[2:], inside[1:], strict=False)
    is_in = character in inside or any(sign == "-" and low <= character <= high for low, high, sign in ranges)
    return close + 1 - place if is_in != is_not else 0


def _is_in_code(text: str, file: str, top: str, base: str) -> bool:
    """Tell whether a path stands in a text by itself: as it is written from the folder, or absolute."""
    whole = f"{top}/{file}"
    for spelling in (posixpath.relpath(whole, base), whole):
        at = text.find(spelling)
        while at >= 0:
            before, after = text[:at].removesuffix("./")[-1:], text[at + len(spelling) :][:2]
            is_begun = before.isalnum() or before in ("_", "-", "/", ".")
            goes_on = after[:1].isalnum() or after[:1] in ("_", "-") or (after[:1] == "." and after[1:].isalnum())
            goes_on = goes_on or (
                after[:1] == "/" and "/" not in spelling
            )  # `x/2`; else it is in a folder that is held
            if not (before and is_begun) and not (after and goes_on):
                return True
            at = text.find(spelling, at + 1)
    return False
