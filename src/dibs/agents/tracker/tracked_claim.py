"""A claim of issues that a tracker knows, as flows: the tracker is asked before the caller gets the answer that a job
is its own.

The job is claimed first, then the tracker is asked, and what it calls taken or done is given back. In this order nobody
else can have done the work between the answer and the claim. A claim that waited in line is asked about when its turn
has come. A job that the caller's session had before is not asked about: the open pull request may be its own.

Nothing is written to the store about what the tracker says, because an issue can be reopened. Nothing is asked about
names that are no GitHub issue, outside of a work tree, or without `check` in the settings of the repository.
"""

from __future__ import annotations

from dibs.agents.repository.settings import OFF, REFUSE, TrackerSettings, tracker_settings
from dibs.agents.tracker.port import DONE, TAKEN, UNKNOWN, IssueState, NoAnswer, refusal, refused_several
from dibs.base.cheap import Callable, Mapping, Sequence
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import StoreUnavailable
from dibs.base.jsontext import Document
from dibs.client.flow import Flow, Work, status_of
from dibs.client.transport import Ask
from dibs.core.limits import TRACKER_MS_MAX
from dibs.wire.codes import NOT_NOW, kind_of
from dibs.wire.documents import Reply, reply_for_error
from dibs.wire.issue_names import GITHUB_HOST, TRACKED, is_tracked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.tracker.github import GitHub

Findings = tuple[dict[str, IssueState], str | None]

_NOT_READ = object()
ANY = "acquire-any"
_SKIPPED_FIELDS = ("name", "status", "owner", "retry_after_ms", "done_ms_ago", "tracker")
_TIMES = ("remaining_ms", "renew_after_ms")


class TrackerGuard:
    """For a work tree. `top` finds the top of it; None: there is none."""

    def __init__(self, env: Mapping[str, str], top: Callable[[], str | None]) -> None:
        self._env = env
        self._top = top
        self._settings: object = _NOT_READ

    def settings(self) -> TrackerSettings | None:
        """The settings, if the tracker is to be asked. Runs git. Raises InvalidInput."""
        if self._settings is _NOT_READ:
            top = self._top()
            found = None if top is None else tracker_settings(self._env, top)
            self._settings = None if found is None or found.check == OFF else found
        return self._settings  # type: ignore[return-value]  # settings or None, once they were read

    def tracker(self, names: Sequence[str], timeout_ms: int) -> GitHub:
        from dibs.agents.tracker import github

        hosts = [GITHUB_HOST]
        if any(place is not None and place[0] != GITHUB_HOST for place in map(github.place_of, names)):
            # Hosts that the user chose: the one in GH_HOST, and the one that this was cloned from. A host that only a
            # tracked file or a job's name mentions is not asked, because gh would send its token there.
            hosts += [host for host in (self._env.get("GH_HOST", "").lower(), self._origin().partition("/")[0]) if host]
        return github.GitHub(github.GhProgram(self._env, timeout_ms), hosts)

    def _origin(self) -> str:
        """Return where this was cloned from, as `host/owner/name`; empty if from nowhere."""
        from dibs.agents.repository.work_tree import Repository, normalised

        top = self._top()
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

    def shows(self, name: str) -> TrackerSettings | None:
        """The settings, if a claim of this job is shown on its issue."""
        settings = self.settings()
        return settings if settings is not None and settings.announces and self.may_write(name) else None

    @property
    def refuses(self) -> bool:
        """Tell whether nothing is granted without an answer."""
        settings = self.settings()
        return settings is not None and settings.on_no_answer == REFUSE

    def look(self, names: Sequence[str], timeout_ms: int = TRACKER_MS_MAX, *, always: bool = False) -> Findings:
        """Ask about those of the names that the tracker knows, if the settings want it, or `always`. Takes a bounded
        time. Gives the issues that are taken or done, by name, and why there was no answer about others."""
        asked = [name for name in names if name.startswith(TRACKED)]
        if (self.settings() is None and not always) or not asked:
            return {}, None
        try:
            found = self.tracker(asked, timeout_ms).states(asked)
        except NoAnswer as error:
            return {}, str(error)
        settled = {name: each for name, each in found.items() if each.state in (TAKEN, DONE)}
        unknown = [name for name, each in found.items() if each.state == UNKNOWN]
        return settled, f"GitHub has no {unknown[0]}, or this account may not see it" if unknown else None


class TrackedClaim:
    """One claim. `again`: it is claimed even if it is done. `own_key`: the request key was made for this claim, so no
    earlier request can have got the lease. `always`: the tracker is asked, whatever the settings say."""

    def __init__(
        self, guard: TrackerGuard, verb: str, names: Sequence[str], *, again: bool, own_key: bool, always: bool = False
    ) -> None:
        self._guard = guard
        self._verb = verb
        self._names = list(names)
        self._again = again
        self._own_key = own_key
        self._always = always
        self._refusals: dict[str, Document] = {}
        self.warning: str | None = None

    def is_asked_for(self) -> Flow[bool]:
        """Tell whether the settings want the tracker to be asked. Raises InvalidInput."""
        return (yield Work(self._guard.settings)) is not None

    def names_left(self) -> list[str]:
        return [name for name in self._names if name not in self._refusals]

    def refusals(self) -> list[Document]:
        return list(self._refusals.values())

    def look_first(self) -> Flow[Reply | None]:
        """Of several names, leave out those that are taken or done. The reply, if none is left."""
        if self._verb != ANY or not self._own_key:
            return None
        states, self.warning = yield Work(lambda: self._guard.look(self._names))
        if self.warning is not None and self._guard.refuses:
            return self._not_asked()
        self.note(states)
        return None if self.names_left() else refused_several(self.refusals())

    def confirm(self, reply: Reply, sent_ms: int, undo: Ask) -> Flow[Reply | None]:
        """The reply that the caller gets. None: the claim was withdrawn, by `undo`; claim one of `names_left`."""
        leases = yield from self._fresh(reply, sent_ms)
        names = [lease["name"] for lease in leases if is_tracked(lease["name"])]
        if not names:
            return self._with_notes(reply)
        asked_ms = steady_ms()
        timeout_ms = min([TRACKER_MS_MAX, *[max(1, lease["remaining_ms"] // 3) for lease in leases]])
        states, trouble = yield Work(lambda: self._guard.look(names, timeout_ms, always=self._always))
        self.warning = trouble or self.warning
        settled, refuses = self.note(states), trouble is not None and self._guard.refuses
        if not settled and not refuses:
            return self._with_notes(_later(reply, steady_ms() - asked_ms))
        undone: Reply = yield undo
        if kind_of(undone) == NOT_NOW:  # the lease may still be there: whoever claims gives it up later
            return undone
        if not settled:
            return self._not_asked()
        if self._verb != ANY:
            if self._verb == "acquire":
                return Reply(status=200, body=settled[0])
            return refused_several(settled, all_of=len(self._names))
        return None if self.names_left() else refused_several(self.refusals())

    def _fresh(self, reply: Reply, sent_ms: int) -> Flow[list[Document]]:
        body: Document = reply.body or {}
        if status_of(reply) != "acquired":
            return []
        leases = [lease for lease in body.get("leases") or [body] if not lease.get("held_before")]
        if self._own_key or not leases:
            return leases
        # A request key of the caller's may have got the lease long ago. Then it was asked about at that time.
        found: Reply = yield Ask("inspect", leases[0]["name"], {})
        status: Document = found.body or {}
        for hold in status.get("holders") or [status]:
            if hold.get("fencing_token") == leases[0]["fencing_token"]:
                return leases if hold.get("held_ms", 0) <= steady_ms() - sent_ms else []
        return leases

    def note(self, states: Mapping[str, IssueState]) -> list[Document]:
        """Remember what is taken or done, and return it."""
        found = []
        for name, state in states.items():
            if state.state == TAKEN or (state.state == DONE and not self._again):
                self._refusals[name] = refusal(state, wall_ms(), "GitHub")
                found.append(self._refusals[name])
        return found

    def _with_notes(self, reply: Reply) -> Reply:
        """The reply to a claim-any, with the names that were left out because of the tracker."""
        body = reply.body or {}
        if not self._refusals or self._verb != ANY:
            return reply
        if "refused" in body:
            entries = {entry.get("name"): entry for entry in body["refused"]} | self._refusals
            return refused_several([entries[name] for name in self._names if name in entries])
        if status_of(reply) != "acquired":
            return reply
        passed = {entry.get("name"): entry for entry in body.get("skipped", ())}
        for name, entry in self._refusals.items():
            passed[name] = {key: entry[key] for key in _SKIPPED_FIELDS if key in entry}
        before = self._names[: self._names.index(body["name"])]
        reply.body = {**body, "skipped": [passed[name] for name in before if name in passed]}
        return reply

    def _not_asked(self) -> Reply:
        why, self.warning = self.warning, None
        return reply_for_error(
            StoreUnavailable(
                f"Nothing was claimed, because GitHub gave no answer: {why}.\n"
                "This repository grants nothing without one: on_no_answer under [tracker] in .dibs.toml."
            )
        )


def _later(reply: Reply, elapsed_ms: int) -> Reply:
    """The reply to a grant, `elapsed_ms` after it was made."""
    body = dict(reply.body or {})
    for document in (body, *body.get("leases", ())):
        document |= {key: max(0, document[key] - elapsed_ms) for key in _TIMES if key in document}
    reply.body = body
    return reply
