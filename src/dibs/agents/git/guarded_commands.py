"""Guarded commands: shell commands that are claimed as a job while they run. The promise `agent:command`.

A repository names them in `[[agent.command]]`: `git push` as `branch:{branch}`, for example, so that one worker at a
time pushes a branch. `repository/settings.py` reads the table, `harness/shell_lines.py` finds what a line runs, and
`hook_answers.py` claims the jobs before the command and lets them go after it.
"""

from __future__ import annotations

from dibs.agents.harness.shell_lines import simple_commands
from dibs.agents.repository.settings import AgentSettings, GuardedCommand
from dibs.base.cheap import Sequence
from dibs.base.checkout import branch_of

# Options whose value is the next word, by program: `git -C . push` is a push. Of a program that is not here, the word
# after any option may be its value.
_NPM = (
    *("-w", "-C", "-F"),
    *("--workspace", "--prefix", "--dir", "--cwd", "--registry"),
    *("--userconfig", "--tag", "--otp", "--loglevel", "--filter"),
)
_PKILL = (
    *("-u", "-U", "-s", "-g", "-G", "-P", "-t", "-r", "-o", "-y"),
    *("--signal", "--ns", "--euid", "--uid", "--user", "--pgroup", "--parent", "--terminal"),
)
_OPTIONS: dict[str, tuple[str, ...]] = {
    "git": (
        *("-C", "-c"),
        *("--git-dir", "--work-tree", "--namespace", "--exec-path"),
        *("--super-prefix", "--config-env", "--attr-source", "--list-cmds"),
    ),
    **dict.fromkeys(
        ("kubectl", "oc", "helm", "k9s", "kustomize"),
        (
            *("-n", "-s", "-v"),
            *("--namespace", "--context", "--cluster", "--user", "--kubeconfig", "--server"),
            *("--token", "--as", "--as-group", "--v", "--request-timeout", "--cache-dir"),
            *("--certificate-authority", "--client-certificate", "--client-key"),
            *("--tls-server-name", "--kube-context", "--kube-apiserver", "--kube-token"),
            *("--registry-config", "--repository-config", "--repository-cache"),
        ),
    ),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun", "lerna", "nx", "turbo"), _NPM),
    **dict.fromkeys(
        ("docker", "podman", "docker-compose"),
        (
            *("-H", "-c", "-l", "-f", "-p"),
            *("--host", "--context", "--log-level", "--config", "--tlscacert", "--tlscert"),
            *("--tlskey", "--file", "--project-name", "--profile", "--env-file"),
            *("--project-directory", "--connection", "--url", "--root", "--runroot", "--builder"),
        ),
    ),
    **dict.fromkeys(
        ("make", "gmake", "ninja"),
        (
            *("-C", "-f", "-I", "-o", "-W"),
            *("--directory", "--file", "--makefile", "--include-dir", "--old-file", "--new-file"),
        ),
    ),
    "just": ("-f", "--justfile", "-d", "--working-directory", "--dotenv-path", "--set", "--shell"),
    "cargo": ("--manifest-path", "--target-dir", "-Z", "--config", "--color", "-C", "--target", "--profile"),
    "go": ("-C",),
    "gh": ("-R", "--repo", "--hostname"),
    "aws": ("--profile", "--region", "--output", "--endpoint-url", "--query", "--ca-bundle", "--color"),
    "gcloud": (
        *("--project", "--account", "--configuration", "--format"),
        *("--verbosity", "--impersonate-service-account"),
    ),
    "az": ("--subscription", "--output", "-o", "--query"),
    **dict.fromkeys(("terraform", "tofu", "pulumi"), ("-C", "--cwd", "-s", "--stack", "--chdir")),
    **dict.fromkeys(("poetry", "pdm", "hatch", "uv"), ("-C", "--directory", "-P", "--project", "-e", "--env")),
    "mvn": ("-f", "--file", "-pl", "--projects", "-P", "--activate-profiles", "-s", "--settings", "-D"),
    **dict.fromkeys(
        ("gradle", "gradlew"), ("-p", "--project-dir", "-b", "--build-file", "-c", "--settings-file", "-x")
    ),
    "systemctl": ("-H", "--host", "-M", "--machine", "-t", "--type", "-p", "--property", "-n", "--lines"),
    **dict.fromkeys(("pkill", "killall", "pgrep"), _PKILL),
}


def guarding(settings: AgentSettings, command: str, root: str) -> dict[str, GuardedCommand]:
    """The jobs that a line for the shell is claimed as in the work tree `root`, each with what it was found by."""
    return jobs_of(settings, simple_commands(command), branch_of(root) or "HEAD")


def jobs_of(settings: AgentSettings, commands: Sequence[Sequence[str]], branch: str) -> dict[str, GuardedCommand]:
    found: dict[str, GuardedCommand] = {}
    for words in commands:
        for guarded in settings.commands:
            if _is(words, guarded.match):
                found[guarded.claim.replace("{branch}", branch)] = guarded
    return found


def _is(words: Sequence[str], match: Sequence[str]) -> bool:
    """Tell whether a command is the one that these words name: its program, which may have a path, then its first words
    that are no options. An option among the words (`pkill -f`) may stand anywhere in the command."""
    named = [each for each in match if not each.startswith("-")]
    program = words[0].rpartition("/")[2].removesuffix(".exe")
    if not named or named[0] not in (program, words[0]):
        return False
    plain, options = _parted(program, words[1:])
    if list(plain[: len(named) - 1]) != named[1:]:
        return False
    return all(_has(options, each) for each in match if each.startswith("-"))


def _parted(program: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of a command that are no options nor their values, and the options."""
    taking = _OPTIONS.get(program)
    plain: list[str] = []
    options: list[str] = []
    is_value = False
    for at, word in enumerate(words):
        if word == "--":
            plain += words[at + 1 :]
            break
        if word.startswith("-") and len(word) > 1:
            options.append(word)
            is_value = "=" not in word if taking is None else word in taking
        elif is_value or (options and at and words[at - 1] == options[-1] and word.isdecimal()):
            is_value = False  # `make -j 4 test`
        elif not (program in ("cargo", "rustc") and word.startswith("+")):  # a toolchain
            plain.append(word)
    return plain, options


def _has(options: list[str], wanted: str) -> bool:
    """Tell whether an option is given, also among other letters (`-9f`) or with its value (`--signal=9`)."""
    is_letter = len(wanted) == 2
    return any(
        each == wanted
        or each.startswith(f"{wanted}=")
        or (is_letter and each[1:2] != "-" and each[1:].isalnum() and wanted[1] in each[1:])
        for each in options
    )
