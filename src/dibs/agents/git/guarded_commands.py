"""Guarded commands: shell commands that are claimed as a job while they run. The promise `agent:command`.

A repository names them in `[[agent.command]]`: `git push` as `branch:{branch}`, for example, so that one worker at a
time pushes a branch. `repository/settings.py` reads the table, `agent_guard.py` claims the jobs before the command and
lets them go after it.
"""

from __future__ import annotations

from dibs.agents.harness.shell_writes import simple_commands
from dibs.agents.repository.settings import AgentSettings
from dibs.base.cheap import Sequence
from dibs.base.checkout import branch_of


def guarding_jobs(settings: AgentSettings, command: str, root: str) -> dict[str, str]:
    """The jobs that a line for the shell is claimed as in the work tree `root`, each with the words by which it was
    found."""
    return jobs_of(settings, simple_commands(command), branch_of(root) or "HEAD")


def jobs_of(settings: AgentSettings, commands: Sequence[Sequence[str]], branch: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for words in commands:
        for match, claim in settings.commands:
            if _begins(words, match):
                found[claim.replace("{branch}", branch)] = " ".join(match)
    return found


def _begins(words: Sequence[str], match: tuple[str, ...]) -> bool:
    """Tell whether a command begins with these words. Options before and between them do not count, nor the word after
    an option, which may be its value (`git -C . push`), nor a number before them (`timeout 60 git push`)."""
    at, is_value = 0, False
    for word in words:
        if word == match[at] or (at == 0 and word.rpartition("/")[2] == match[0]):
            at, is_value = at + 1, False
            if at == len(match):
                return True
        elif word.startswith("-"):
            is_value = "=" not in word
        elif is_value or (at == 0 and word[:1].isdigit()):
            is_value = False
        else:
            return False
    return False
