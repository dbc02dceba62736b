"""References: the ways to write one issue, pull request or ticket, and the one name for them. Pure.

    https://github.com/Acme/App/pull/42/files  ->  github://acme/app/issues/42

A name that is not one of the forms below stays as it is, byte for byte. What a form leaves open is an argument: the
repository that the clone came from (`#42`) and the team's settings (`PROJ-42`). Nothing is guessed: `UTF-8` is none.

Different references never become one name. GitHub counts issues and pull requests of a repository together, so both
have one form. GitLab counts them apart, so they have two. Case is folded only where the tracker folds it, and only in
ASCII: "\u212a" (Kelvin) is not k.
"""

from __future__ import annotations

from dibs.base.cheap import Mapping, Sequence
from dibs.base.errors import InvalidName

GITHUB, GITLAB, JIRA, LINEAR = "github", "gitlab", "jira", "linear"
GITHUB_HOST, GITLAB_HOST, LINEAR_HOST, JIRA_CLOUD = ("github.com", "gitlab.com", "linear.app", ".atlassian.net")
# What must be known of the surroundings before a name can be read.
NOTHING, SETTINGS, REPOSITORY = "nothing", "settings", "repository"

_DIGITS = frozenset("0123456789")
_UPPER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz") | _UPPER
_WORD = _LETTERS | _DIGITS | frozenset("._-")
_HOST = _LETTERS | _DIGITS | frozenset(".-")
_NUMBER_CHARS_MAX = 10
_KINDS = {"issues": "issues", "work_items": "issues", "merge_requests": "merge_requests"}
_DEFAULT_PORTS = {"https": "443", "http": "80"}
_API_HOST = "api.github.com"
# The beginnings of names that may be files of a work tree.
FILES = ("path:", "./", "../", "/", "file://")
# Issues that a tracker can be asked about.
TRACKED = "github://"
_UNKNOWN = "It is in no known form, so it stays as it is."
_NO_FILE = "It is no file of a git work tree around, so it stays as it is."


def is_plain(name: object) -> bool:
    """Tell whether a name surely stays as it is. Looks at characters only."""
    if not isinstance(name, str) or not name:
        return True
    return not ("/" in name or "#" in name or name[0] == "!" or name[0].isupper() or name.startswith("path:"))


def is_tracked(names: object) -> bool:
    """Tell whether one of the names may be an issue that a tracker knows. Looks at characters only."""
    several = names if isinstance(names, list | tuple) else (names,)
    return any(isinstance(name, str) and name.startswith(TRACKED) for name in several)


class JobName:
    """A job's name, and why it is that."""

    __slots__ = ("given", "name", "why")

    def __init__(self, given: str, name: str, why: str) -> None:
        self.given = given
        self.name = name
        self.why = why


class Reference:
    """A recognised reference: its one name, and what it was recognised as."""

    __slots__ = ("form", "name")

    def __init__(self, name: str, form: str) -> None:
        self.name = name
        self.form = form


class HostedRepository:
    """A repository on GitHub or GitLab, which has the issues of its clones: kind of host, host, and path there."""

    __slots__ = ("host", "kind", "path")

    def __init__(self, kind: str, host: str, path: str) -> None:
        self.kind = kind
        self.host = host
        self.path = path


class IssueHosts:
    """Hosts of issues: the team's own, and which projects (`jira` by host, `linear` by workspace) have bare keys."""

    __slots__ = ("github", "gitlab", "jira", "linear")

    def __init__(
        self,
        github: Sequence[str] = (),
        gitlab: Sequence[str] = (),
        jira: Mapping[str, Sequence[str]] | None = None,
        linear: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.github = (GITHUB_HOST, *[host.lower() for host in github])
        self.gitlab = (GITLAB_HOST, *[host.lower() for host in gitlab])
        self.jira = {host.lower(): tuple(keys) for host, keys in (jira or {}).items()}
        self.linear = {space.lower(): tuple(keys) for space, keys in (linear or {}).items()}

    def kind_of(self, host: str) -> str | None:
        return GITHUB if host in self.github else GITLAB if host in self.gitlab else None


def needs(name: str) -> str | None:
    """Return what must be known to read a name: NOTHING, SETTINGS or REPOSITORY. None: it cannot be a reference."""
    if not name.isascii():
        return None
    if "://" in name:
        return SETTINGS if name.partition("://")[0].lower() in ("http", "https") else NOTHING
    if name[:1] in "#!" or name.startswith("GH-"):
        return REPOSITORY if _is_number(name.lstrip("#!") if name[:1] in "#!" else name[3:]) else None
    place, _, number = name.replace("!", "#").partition("#")
    if "/" in place and _is_number(number):
        return REPOSITORY
    return SETTINGS if _is_key(name) else None


def reference_of(
    name: str, hosts: IssueHosts | None = None, repository: HostedRepository | None = None
) -> Reference | None:
    if needs(name) is None:
        return None
    known = hosts or IssueHosts()
    scheme, mark, rest = name.partition("://")
    if not mark:
        is_key = _is_key(name) and not name.startswith("GH-")
        return _of_key(name, known) if is_key else _of_shorthand(name, repository)
    scheme = scheme.lower()
    if scheme in _DEFAULT_PORTS:
        return _of_address(scheme, rest, known)
    return _of_own(scheme, rest)


def job_name(name: str, hosts: IssueHosts | None = None, repository: HostedRepository | None = None) -> JobName:
    """The one name of a job that is no file of a work tree. Raises InvalidName for an address with a password."""
    if is_plain(name):
        return JobName(name, name, _UNKNOWN)
    if name.startswith(FILES):
        return JobName(name, name, _NO_FILE)
    found = reference_of(name, hosts, repository)
    if found is not None:
        return JobName(name, found.name, f"It is a {found.form}.")
    if has_secret(name):
        raise InvalidName("This address has a password or a token in it, and everybody sees names. Leave it out.")
    return JobName(name, name, _UNKNOWN)


def has_secret(name: str) -> bool:
    """Return whether a name is an address with a password or a token before its host. Everybody sees names."""
    scheme, mark, rest = name.partition("://")
    if not mark:
        return False
    for end in "/?#":
        rest = rest.partition(end)[0]
    user, at, _ = rest.rpartition("@")
    return bool(at) and (":" in user or scheme.lower() in _DEFAULT_PORTS)


def repository_at(place: str, hosts: IssueHosts) -> HostedRepository | None:
    """The repository at `host/path`; None if the host is not known as GitHub or GitLab."""
    host, _, path = place.partition("/")
    host = host.lower()
    kind = hosts.kind_of(host) if path.isascii() else None
    parts = path.lower().split("/")
    if kind == GITHUB and len(parts) == 2 and _are_words(parts):
        return HostedRepository(kind, host, path.lower())
    if kind == GITLAB and len(parts) >= 2 and _are_words(parts):
        return HostedRepository(kind, host, path.lower())
    return None


def _of_address(scheme: str, rest: str, known: IssueHosts) -> Reference | None:
    """A web address. User, port, query and fragment do not count, nor slashes at the end."""
    address, _, query = rest.partition("#")[0].partition("?")
    authority, _, path = address.partition("/")
    host, colon, port = authority.rpartition("@")[2].lower().partition(":")
    parts = path.rstrip("/").split("/")
    if (colon and port != _DEFAULT_PORTS[scheme]) or not _is_host(host) or not _are_plain(parts):
        return None
    host = host.removeprefix("www.")
    if host == _API_HOST:
        kinds = ("issues", "pulls") if parts[0] == "repos" else ()
        return _github(GITHUB_HOST, parts[1:], kinds, "address")
    if host in known.github:
        return _github(host, parts, ("issues", "pull"), "address")
    if host in known.gitlab or "-" in parts:
        return _gitlab(host, parts, "address")
    if host == LINEAR_HOST:  # `workspace/issue/ENG-42/title`
        if len(parts) in (3, 4) and parts[1] == "issue" and _are_words(parts[:1]) and _is_key(parts[2].upper()):
            return Reference(_linear_name(parts[0], parts[2].upper()), "Linear address")
    elif host.endswith(JIRA_CLOUD) or host in known.jira:
        return _jira(host, parts, query)
    return None


def _github(host: str, parts: list[str], kinds: tuple[str, ...], form: str) -> Reference | None:
    """`owner/repository/issues/42`; a pull request may be followed by one of its pages."""
    if len(parts) < 4 or parts[2] not in kinds or not _is_number(parts[3]) or not _are_words(parts[:2]):
        return None
    if len(parts) > 4 and parts[2] == "issues":
        return None
    return Reference(_github_name(host, "/".join(parts[:2]).lower(), parts[3]), f"GitHub {form}")


def _gitlab(host: str, parts: list[str], form: str) -> Reference | None:
    """`group/sub/project/-/issues/42`. Older addresses lack the dash."""
    for at in range(2, len(parts) - 1):
        kind = _KINDS.get(parts[at])
        if kind is None or not _is_number(parts[at + 1]) or (len(parts) > at + 2 and kind == "issues"):
            continue
        place = parts[: at - 1] if parts[at - 1] == "-" else parts[:at] if host == GITLAB_HOST else []
        if len(place) >= 2 and _are_words(place):
            return Reference(_gitlab_name(host, "/".join(place).lower(), kind, parts[at + 1]), f"GitLab {form}")
    return None


def _jira(host: str, parts: list[str], query: str) -> Reference | None:
    """`browse/PROJ-42`, a project's `.../issues/PROJ-42`, or a board with `?selectedIssue=PROJ-42`."""
    key = next((each[14:] for each in query.split("&") if each.startswith("selectedIssue=")), "")
    if not key and len(parts) >= 2 and parts[-2] in ("browse", "issues"):
        key = parts[-1]
    return Reference(_jira_name(host, key.upper()), "Jira address") if _is_key(key.upper()) else None


def _of_own(scheme: str, rest: str) -> Reference | None:
    """A name as this module makes it, or nearly. A host stands before the path where it is not the usual one."""
    parts = rest.rstrip("/").split("/")
    if scheme == GITHUB:
        host = parts.pop(0).lower() if len(parts) == 5 and "." in parts[0] else GITHUB_HOST
        is_whole = len(parts) == 4 and _is_host(host)
        return _github(host, parts, ("issues", "pull", "pulls"), "name") if is_whole else None
    if scheme == GITLAB:
        has_host = len(parts) >= 5 and _is_host(parts[0])
        host = parts.pop(0).lower() if has_host else GITLAB_HOST
        kind = _KINDS.get(parts[-2]) if len(parts) >= 4 else None
        if kind is None or not _is_number(parts[-1]) or not _are_words(parts[:-2]):
            return None
        return Reference(_gitlab_name(host, "/".join(parts[:-2]).lower(), kind, parts[-1]), "GitLab name")
    if len(parts) != 2 or not _is_key(parts[1].upper()):
        return None
    if scheme == LINEAR and _are_words(parts[:1]):
        return Reference(_linear_name(parts[0], parts[1].upper()), "Linear name")
    if scheme == JIRA and _is_host(parts[0]):
        return Reference(_jira_name(parts[0].lower(), parts[1].upper()), "Jira name")
    return None


def _of_shorthand(name: str, repository: HostedRepository | None) -> Reference | None:
    """`#42`, `!42` and `GH-42` in a clone; `acme/app#42` and `acme/app!42` anywhere. The repository says whose."""
    if name.startswith("GH-"):
        if repository is None or repository.kind != GITHUB:
            return None
        return Reference(_github_name(repository.host, repository.path, name[3:]), "GitHub number in this clone")
    mark = "!" if "!" in name else "#"
    place, _, number = name.partition(mark)
    if not place and repository is None:
        return None
    kind = repository.kind if repository is not None else GITLAB if mark == "!" else GITHUB
    host = repository.host if repository is not None else GITLAB_HOST if mark == "!" else GITHUB_HOST
    parts = place.split("/") if place else []
    path = place.lower() if place or repository is None else repository.path
    if (parts and (len(parts) < 2 or not _are_words(parts))) or not _is_number(number):
        return None
    where = "short form" if place else "number in this clone"
    if kind == GITLAB:
        thing = "merge_requests" if mark == "!" else "issues"
        return Reference(_gitlab_name(host, path, thing, number), f"GitLab {where}")
    if mark == "!" or len(parts) > 2:
        return None
    return Reference(_github_name(host, path, number), f"GitHub {where}")


def _of_key(name: str, known: IssueHosts) -> Reference | None:
    """`PROJ-42`, where the settings name the project. In two places it is nobody's."""
    project = name.rpartition("-")[0]
    found = [Reference(_jira_name(host, name), "Jira key") for host, keys in known.jira.items() if project in keys]
    found += [
        Reference(_linear_name(space, name), "Linear key") for space, keys in known.linear.items() if project in keys
    ]
    return found[0] if len(found) == 1 else None


def _github_name(host: str, path: str, number: str) -> str:
    return f"github://{'' if host == GITHUB_HOST else host + '/'}{path}/issues/{number}"


def _gitlab_name(host: str, path: str, kind: str, number: str) -> str:
    return f"gitlab://{host}/{path}/{kind}/{number}"


def _linear_name(workspace: str, key: str) -> str:
    return f"linear://{workspace.lower()}/{key}"


def _jira_name(host: str, key: str) -> str:
    return f"jira://{host}/{key}"


def _is_host(text: str) -> bool:
    """With a dot: a first part without one is an owner or a group."""
    return "." in text.strip(".") and text[0] != "." and text[-1] != "." and _HOST.issuperset(text)


def _are_plain(parts: Sequence[str]) -> bool:
    """Return whether no part of an address leads elsewhere, also once a browser has decoded it."""
    return not any(part in (".", "..") or "%2e" in part.lower() for part in parts)


def _are_words(parts: Sequence[str]) -> bool:
    """Names of owners, groups and repositories. `-` alone is a mark of GitLab's addresses."""
    return all(part not in ("", ".", "..", "-") and _WORD.issuperset(part) for part in parts)


def _is_number(text: str) -> bool:
    return 0 < len(text) <= _NUMBER_CHARS_MAX and _DIGITS.issuperset(text) and text[0] != "0"


def _is_key(text: str) -> bool:
    """`PROJ-42`. Two letters at least before the dash; the caller knows whether there is such a project."""
    project, _, number = text.rpartition("-")
    return (
        len(project) >= 2
        and project[0] in _UPPER
        and (_UPPER | _DIGITS | {"_"}).issuperset(project)
        and _is_number(number)
    )
