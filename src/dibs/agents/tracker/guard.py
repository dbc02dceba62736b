"""Asks the tracker about jobs that somebody claims, as the settings of the repository around want it.

Nothing is asked about names that are no GitHub issue, outside of a work tree, or without `check` in the settings.
"""

from __future__ import annotations

from dibs.agents.repository.settings import OFF, REFUSE, tracker_settings
from dibs.agents.tracker.port import DONE, TAKEN, UNKNOWN, NoAnswer
from dibs.core.limits import TRACKER_MS_MAX
from dibs.core.references import GITHUB_HOST, TRACKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.agents.repository.job_names import JobNames
    from dibs.agents.repository.settings import TrackerSettings
    from dibs.agents.tracker.port import IssueState, IssueTracker

_NOT_READ = object()


class TrackerFindings:
    """What the tracker said: the issues that are taken or done, by name, and why there was no answer about others."""

    __slots__ = ("refuses", "settled", "trouble")

    def __init__(self, settled: dict[str, IssueState], trouble: str | None = None, *, refuses: bool = False) -> None:
        self.settled = settled
        self.trouble = trouble
        self.refuses = refuses and trouble is not None


class TrackerGuard:
    """For the work tree around a folder, as `names` sees it."""

    def __init__(self, env: Mapping[str, str], names: JobNames) -> None:
        self._env = env
        self._names = names
        self._settings: object = _NOT_READ

    def settings(self) -> TrackerSettings | None:
        """The settings, if the tracker is to be asked. Runs git. Raises InvalidInput."""
        if self._settings is _NOT_READ:
            top = self._names.top()
            found = None if top is None else tracker_settings(self._env, top)
            self._settings = None if found is None or found.check == OFF else found
        return self._settings  # type: ignore[return-value]  # settings or None, once they were read

    def tracker(self, names: Sequence[str], timeout_ms: int) -> IssueTracker:
        """The tracker, for questions about these names."""
        from dibs.agents.tracker.github import GhProgram, GitHub, place_of

        hosts = [GITHUB_HOST]
        if any(place is not None and place[0] != GITHUB_HOST for place in map(place_of, names)):
            # Hosts that the user chose: the one in GH_HOST, and the one that this was cloned from. A host that only a
            # tracked file or a job's name mentions is not asked, because gh would send its token there.
            chosen = (self._env.get("GH_HOST", "").lower(), self._origin().partition("/")[0])
            hosts += [host for host in chosen if host]
        return GitHub(GhProgram(self._env, timeout_ms), hosts)

    def _origin(self) -> str:
        """Return where this was cloned from, as `host/owner/name`; empty if from nowhere."""
        from dibs.agents.repository.work_tree import Repository, normalised

        top = self._names.top()
        origin = "" if top is None else Repository.at(self._env, top).origin()
        return normalised(origin, top or "/").lower() if origin else ""

    def may_write(self, name: str) -> bool:
        """Tell whether a claim may be shown on an issue: one of the repository that was cloned, or of one that the user
        allowed. What a tracked file or a job's name says is not enough: gh writes with the user's account."""
        from dibs.agents.tracker.github import place_of

        place, settings = place_of(name), self.settings()
        if place is None or settings is None:
            return False
        allowed = [each if each.count("/") > 1 else f"{GITHUB_HOST}/{each}" for each in settings.writes]
        return "/".join(place[:3]) in (*allowed, self._origin())

    def look(self, names: Sequence[str], timeout_ms: int = TRACKER_MS_MAX, *, always: bool = False) -> TrackerFindings:
        """Ask about those of the names that the tracker knows, if the settings want it, or `always`. Takes a bounded
        time."""
        settings = self.settings()
        asked = [name for name in names if name.startswith(TRACKED)]
        if (settings is None and not always) or not asked:
            return TrackerFindings({})
        refuses = settings is not None and settings.on_no_answer == REFUSE
        try:
            found = self.tracker(asked, timeout_ms).states(asked)
        except NoAnswer as error:
            return TrackerFindings({}, str(error), refuses=refuses)
        settled = {name: each for name, each in found.items() if each.state in (TAKEN, DONE)}
        unknown = [name for name, each in found.items() if each.state == UNKNOWN]
        if unknown:
            trouble = f"GitHub has no {unknown[0]}, or this account may not see it"
            return TrackerFindings(settled, trouble, refuses=refuses)
        return TrackerFindings(settled)
