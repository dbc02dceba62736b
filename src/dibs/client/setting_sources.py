"""The one table of settings: where each may come from, and which authors count. `docs/reference/config.md` shows it.

A setting has an author. The user is the author of flags, variables, their own `config.toml`, and of what `git config`
has from outside of the repository (`--global`, `--system`, `-c`). A repository is the author of its git folder
(`.git/config`, `.git/dibs/config.toml`) and of what it tracks (`.dibs.toml`): both may have come in an archive, and
nobody asked the user. So where claims and tokens go, and what `gh` writes to, is said by the user, or by a repository
to which the user said `dibs trust` (`agents/repository/trust.py`). What only concerns work in the repository itself, it
may say without being asked.
"""

from __future__ import annotations

# What counts of a repository's words on a setting.
NEVER, TRUSTED, ALWAYS = "never", "if trusted", "yes"
# Authors. A repository is one of the last two.
USER, CLONE, TRACKED = "the user", "the git folder", "a tracked file"


class Setting:
    """`name` is the key in files; one with a dot is in the table before it. `clone` and `tracked` say when the words of
    a repository count: in its git folder, in its tracked file. `git config` of the user counts where `clone` is not
    NEVER: it is read by the same commands."""

    __slots__ = ("clone", "flag", "is_in_user_file", "name", "tracked", "variable")

    def __init__(
        self,
        name: str,
        *,
        flag: str = "",
        variable: str = "",
        is_in_user_file: bool = False,
        clone: str = NEVER,
        tracked: str = NEVER,
    ) -> None:
        self.name = name
        self.flag = flag
        self.variable = variable
        self.is_in_user_file = is_in_user_file
        self.clone = clone
        self.tracked = tracked

    def may_come_from(self, author: str, *, is_trusted: bool) -> bool:
        """Tell whether this author's word counts, in a repository that the user trusts or does not."""
        rule = {CLONE: self.clone, TRACKED: self.tracked}.get(author, ALWAYS)
        return rule == ALWAYS or (rule == TRUSTED and is_trusted)


_DECLARED = (
    # Where claims go, with which token, and who is said to hold them.
    Setting("url", flag="--url", variable="DIBS_URL", is_in_user_file=True, clone=TRUSTED),
    Setting("context", flag="--context", variable="DIBS_CONTEXT", is_in_user_file=True),
    Setting("token", variable="DIBS_TOKEN"),
    Setting("token_file", variable="DIBS_TOKEN_FILE", is_in_user_file=True),
    Setting(
        "namespace",
        flag="--namespace",
        variable="DIBS_NAMESPACE",
        is_in_user_file=True,
        clone=TRUSTED,
        tracked=TRUSTED,
    ),
    Setting("owner", flag="--owner", variable="DIBS_OWNER", is_in_user_file=True),
    Setting("timeout", flag="--timeout", is_in_user_file=True),
    # Counts only where the user chose a `git:` store, whose remote is the clone's own anyway.
    Setting("prefix", variable="DIBS_GIT_PREFIX", clone=ALWAYS),
    # What commits and pushes in the repository are held to.
    Setting("policy", clone=ALWAYS, tracked=ALWAYS),
    Setting("own", clone=ALWAYS, tracked=ALWAYS),
    Setting("unreachable", clone=ALWAYS, tracked=ALWAYS),
    # What coding agents in the repository are held to. The jobs of a command are the repository's own, unless trusted.
    Setting("agent.guard", clone=ALWAYS, tracked=ALWAYS),
    Setting("agent.worktrees", clone=ALWAYS, tracked=ALWAYS),
    Setting("agent.clones", clone=ALWAYS, tracked=ALWAYS),
    Setting("agent.paths", clone=ALWAYS, tracked=ALWAYS),
    Setting("agent.require", clone=ALWAYS, tracked=ALWAYS),
    Setting("agent.command", tracked=ALWAYS),
    Setting("agent.file", tracked=ALWAYS),
    # Whether the user's gh is asked, and about which issues it writes. Its address and token are gh's own.
    Setting("tracker.check", clone=ALWAYS, tracked=ALWAYS),
    Setting("tracker.on_no_answer", clone=ALWAYS, tracked=ALWAYS),
    Setting("tracker.label", clone=ALWAYS, tracked=ALWAYS),
    Setting("tracker.comment", clone=ALWAYS, tracked=ALWAYS),
    Setting("tracker.writes", clone=TRUSTED),
    # What a reference to an issue means here.
    Setting("names.repository", tracked=ALWAYS),
    Setting("names.github", tracked=ALWAYS),
    Setting("names.gitlab", tracked=ALWAYS),
    Setting("names.jira", tracked=ALWAYS),
    Setting("names.linear", tracked=ALWAYS),
)
SETTINGS = {setting.name: setting for setting in _DECLARED}
USER_KEYS = tuple([setting.name for setting in _DECLARED if setting.is_in_user_file])


def keys_of(table: str) -> tuple[str, ...]:
    """The settings of a table in a repository's file; of the empty one those above all tables."""
    first = f"{table}." if table else ""
    of_repository = [each.name for each in _DECLARED if (each.clone, each.tracked) != (NEVER, NEVER)]
    keys = [name.removeprefix(first) for name in of_repository if name.startswith(first)]
    return tuple([key for key in keys if "." not in key])


def needs_trust(key: str, author: str) -> bool:
    """Tell whether an author's word on a setting counts only in a repository that the user trusts. A key that is no
    setting is for whoever reads it to refuse."""
    setting = SETTINGS.get(key.replace("-", "_"))  # git allows no underscore in a key
    if setting is None or not setting.may_come_from(author, is_trusted=True):
        return False
    return not setting.may_come_from(author, is_trusted=False)
