"""The git work tree around a folder, as `client/naming.py` asks for it: names, namespace, and the issue tracker."""

from __future__ import annotations

from dibs.agents.repository.job_names import JobNames
from dibs.agents.repository.work_tree import repository_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.agents.tracker.guard import TrackerGuard
    from dibs.agents.tracker.tracked_claim import TrackedClaim


class WorkTreeAround(JobNames):
    def __init__(self, env: Mapping[str, str], folder: str) -> None:
        super().__init__(env, folder)
        self._guard: TrackerGuard | None = None

    def namespace(self) -> str | None:
        """The namespace of `path:` and `repo:` names: the one in the repository's settings, or one made from its
        origin. None if git knows no work tree here. Raises InvalidInput."""
        repository = None if self._folder is None else repository_around(self._env, self._folder)
        if repository is None:
            return None
        from dibs.agents.repository.settings import policy_of

        return policy_of(repository).place["namespace"]

    def tracked_claim(self, verb: str, names: Sequence[str], *, again: bool, own_key: bool) -> TrackedClaim:
        from dibs.agents.tracker.guard import TrackerGuard
        from dibs.agents.tracker.tracked_claim import TrackedClaim

        if self._guard is None:
            self._guard = TrackerGuard(self._env, self)
        return TrackedClaim(self._guard, verb, names, again=again, own_key=own_key)
