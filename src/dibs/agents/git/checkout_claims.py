"""The claims of a coding agent in one checkout.

Each file that an agent writes is claimed twice, in one step. `path:src/a` is the claim that everybody sees, in the
namespace that all clones of the repository share. `path:@ID/src/a` is for this checkout alone, ID being made of its
folder. Two agents in one checkout would overwrite each other's edits; two agents in two work trees would only have to
merge. So the second claim refuses, while the first may merely warn (`agents/repository/settings.py`).

Where the file system folds case and Unicode form, the second claim is folded too, also for a file that does not exist
yet. A part of a path that no name may hold, such as a line break, is replaced by a digest.
"""

from __future__ import annotations

import os

from dibs.agents.git.present_agents import forget_holder, names_in, note_holder
from dibs.agents.harness.agent_identity import Agent
from dibs.agents.harness.hook_transport import guarded
from dibs.agents.repository.file_paths import (
    CHECKOUT_DIGITS,
    checkout_id,
    folded,
    folds_case,
    nameable,
    path_from_top,
)
from dibs.agents.repository.settings import DENY, OFF, WARN, agent_settings, policy_of
from dibs.agents.repository.work_tree import Repository, is_at_remote
from dibs.base.cheap import Iterator, Sequence
from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable, Unavailable
from dibs.base.ids import digest, new_id
from dibs.base.jsontext import Document
from dibs.cli.framework.actor_session import ActorSession
from dibs.cli.framework.context import Call
from dibs.client.flow import all_pages, drive, status_of
from dibs.client.naming import Naming
from dibs.client.pending import PendingClaim
from dibs.client.transport import Ask
from dibs.core.limits import ALL_NAMES_MAX, NUMBER_MAX, TICKET_MS
from dibs.core.names import is_resource
from dibs.core.overlap import above
from dibs.core.records import HELD
from dibs.wire.codes import NOT_NOW, NOT_YET, kind_of_word, says_no
from dibs.wire.documents import Reply

_SLICE_MS = 5_000
_TURN_MS = TICKET_MS + _SLICE_MS
_FILES_AT_ONCE = ALL_NAMES_MAX // 2
_CLAIMS_AT_ONCE = 20
_RELEASES_AT_ONCE = 500


class Checkout:
    """One work tree, seen by one agent."""

    def __init__(self, call: Call, root: str, agent: Agent) -> None:
        self.root = root
        self.agent = agent
        self.repository = Repository.at(call.env, root)
        self.settings = agent_settings(root, self.repository.settings())
        self.call = guarded(call)
        self.policy = policy_of(self.repository)
        self.call.fall_back_on(self.policy.place)
        if (url := self.call.settings.named_url) and is_at_remote(url):
            self.repository.check_trusted(url)
        self.folds = folds_case(root)
        self.id = checkout_id(root)
        self._clone = digest(self.same(os.path.realpath(self.repository.common)))[:CHECKOUT_DIGITS]
        self._session = ActorSession.of_agent(self.call, agent)
        self._users = guarded(call)  # the place of the user's own commands
        self._users_session = ActorSession.of_agent(self._users, agent)
        self._naming = Naming(call.env, root)
        self.granted: list[Document] = []  # the leases that claims have got
        self._opened: dict[ActorSession, str] = {}  # one hook is too short for a session to end in it

    def close(self) -> None:
        self.call.close()
        self._users.close()

    def is_own(self, job: str) -> bool:
        """Tell whether a name is in the repository's namespace. A resource is, as it is for every command in the work
        tree. A job is where the user's own commands look for it, if the user trusts the repository: its tracked file
        names jobs that everybody has. Otherwise its jobs are its own, too."""
        return is_resource(self._naming.of(job)) or not self.repository.is_trusted

    def _place(self, *, own: bool) -> tuple[Call, ActorSession]:
        return (self.call, self._session) if own else (self._users, self._users_session)

    def files(self, path: str, folder: str) -> list[str]:
        """A path from the top of this checkout, and that of the file behind a link. Empty if it is not guarded."""
        found = [path_from_top(self.root, folder, path, follows_last=last) for last in (False, True)]
        inside = [file for file in dict.fromkeys(found) if file is not None and self.settings.applies_to(file)]
        return [file for file in inside if self.same(file.split("/")[0]) != ".git"]

    def key(self, file: str) -> str:
        """Return what a file is claimed as in this checkout: the same for all spellings of it."""
        return nameable(self.same(file))

    def same(self, path: str) -> str:
        return folded(path) if self.folds else path

    def claim(self, files: Sequence[str], *, each: bool = False) -> list[Document]:
        """Claim files. Returns what stands in the way: `file`, `level`, and the refusal's own fields. `each`: a file
        that is refused does not keep the others from being claimed."""
        by_name = {f"path:{self.key(file)}": file for file in files}
        # What lies in a folder that is claimed with it needs no claim of its own, and could not have one.
        outer = [file for name, file in by_name.items() if by_name.keys().isdisjoint(above(name))]
        left = [outer[first : first + _FILES_AT_ONCE] for first in range(0, len(outer), _FILES_AT_ONCE)]
        found: list[Document] = []
        while left:
            again: list[list[str]] = []
            for group, refused in zip(left, self._claim(left), strict=True):
                found += refused
                taken = {one["file"] for one in refused if one["level"] == DENY or self.is_here(one["name"])}
                again.append([file for file in group if file not in taken] if each and taken else [])
            left = [group for group in again if group]
        return found

    def _claim(self, groups: list[list[str]]) -> list[list[Document]]:
        """Claim groups of files, all at once: each group as a whole or not at all. Returns what stands in the way of
        each group."""
        by_name = {name: file for files in groups for file in files for name in self._names(file)}
        names = [[name for file in files for name in self._names(file)] for files in groups]
        found = [
            [{**each, "file": by_name[each["name"]], "level": self._level(each)} for each in refused]
            for refused in self._ask_each(names)
        ]
        # A file that somebody has in another checkout is claimed in this one alone.
        elsewhere = [
            at for at, refused in enumerate(found) if refused and all(each["level"] != DENY for each in refused)
        ]
        here = self._ask_each([[self._names(file)[0] for file in groups[at]] for at in elsewhere])
        for at, refused in zip(elsewhere, here, strict=True):
            found[at] += [{**each, "file": by_name[each["name"]], "level": self.settings.guard} for each in refused]
        return found

    def _ask_each(self, groups: list[list[str]]) -> list[list[Document]]:
        """Claim groups of names for the agent, all asked at once. Returns what stands in the way of each group."""
        if not groups:
            return []
        opened = self._opened_of(self._session)
        asks = [Ask("acquire-all", "", self._request(self._session, opened, names)) for names in groups]
        found = []
        for names, reply in zip(groups, _in_batches(self.call, asks, _CLAIMS_AT_ONCE), strict=True):
            refused = _in_way(self.call, opened, names, reply)
            if not refused:
                self.granted += (reply.body or {}).get("leases", ())
            found.append(refused)
        if self.granted:
            note_holder(self.repository.own, self.agent)
        return found

    def _request(self, session: ActorSession, opened: str, names: list[str]) -> Document:
        return {
            "session_id": opened,
            "names": names,
            "owner": session.owner(),
            "metadata": self._metadata,
            "request_key": new_id(),
        }

    def _opened_of(self, session: ActorSession) -> str:
        opened = self._opened[session] = self._opened.get(session) or session.opened(session.ttl_ms)
        return opened

    def _ask(self, call: Call, session: ActorSession, names: list[str]) -> tuple[list[Document], Ask]:
        """Claim all of the names or none. Returns what stands in the way of each, and the request that undoes the
        claim."""
        opened = self._opened_of(session)
        pending = PendingClaim("acquire-all", "", self._request(session, opened, names), own_key=True)
        reply = drive(call.transport(), pending.ask_once())
        refused = _in_way(call, opened, names, reply)
        if not refused:
            self.granted += (reply.body or {}).get("leases", ())
        return refused, pending.withdrawal()

    def _ask_in_line(
        self, call: Call, session: ActorSession, names: list[str], refused: list[Document], until_ms: int
    ) -> list[Document]:
        """Stand in line for all of the names, which were just refused. Returns what stands in the way when the time is
        over, with the `position` if there is a place. The ask has no key: the next one of the session finds its place,
        which lasts for TICKET_MS. The hold has a TTL until this hook has seen it: a turn that comes after the hook gave
        up must not last as long as the session."""
        opened = self._opened_of(session)
        asked: Document = {"session_id": opened, "names": names, "owner": session.owner(), "metadata": self._metadata}
        place: Document = {}
        has_failed = False
        while all(_may_come(each) for each in refused) and (left_ms := until_ms - steady_ms()) > 0:
            waits = {**asked, "ttl_ms": _TURN_MS, "wait_seconds": min(left_ms, _SLICE_MS) / 1000}
            try:
                reply = call.transport().ask(Ask("acquire-all", "", waits))
                has_failed = False
            except Unavailable:
                if has_failed:
                    raise
                has_failed = True  # a server ended: another one knows the place
                continue
            if status_of(reply) == "queued":
                place = {"position": (reply.body or {}).get("position")}
            else:
                refused, place = _in_way(call, opened, names, reply), {}
                if not refused:
                    break
        if refused and not place:
            return refused
        # Asked again without a TTL: what was granted lasts as long as the session then, and a refusal is up to date.
        return [{**each, **place} for each in self._ask(call, session, names)[0]]

    def _names(self, file: str) -> tuple[str, str]:
        """The claim for this checkout, and the one that everybody sees."""
        return f"path:@{self.id}/{self.key(file)}", f"path:{nameable(file)}"

    def claim_jobs(self, jobs: Sequence[str], wait_ms: int = 0) -> list[Document]:
        """Claim jobs: all or none of those at one place, the repository's own before others. `wait_ms`: how long to
        stand in line for them. Returns what stands in the way, with the `job` as it was written and the `namespace` in
        which `dibs wait` would not look for it. What was got before is undone: what another command of the agent was
        claimed as stays."""
        until_ms = steady_ms() + wait_ms
        got: list[tuple[Call, ActorSession, list[str], Ask | None]] = []
        for own in (True, False):
            by_name = {self._naming.of(job): job for job in sorted(jobs) if self.is_own(job) == own}
            if not by_name:
                continue
            call, session = self._place(own=own)
            names = list(by_name)
            refused, undo = self._ask(call, session, names)
            has_waited = bool(refused) and wait_ms > 0
            if has_waited:
                refused = self._ask_in_line(call, session, names, refused, until_ms)
            if not refused:
                got.append((call, session, names, None if has_waited else undo))
                continue
            for call_before, session_before, taken, undoing in got:
                if undoing is None:
                    _release(call_before, session_before, taken)
                else:
                    call_before.transport().ask(undoing)
            hidden = own and not is_resource(refused[0]["name"])
            place = {"namespace": call.repository_namespace} if hidden and call.repository_namespace else {}
            return [
                {**each, "job": by_name[each["name"]], **place, "by_actor": _is_of_actor(call, each)}
                for each in refused
            ]
        return []

    def taken_number(self, file: str) -> Document | None:
        """Take the number that a new file has in its name (`[[agent.file]]`), for the agent and its subagents. Returns
        whose it is if somebody has it: `owner` if that is known, or the other `file`; and the `next` that is free. Or
        what is `refused`, if nobody is given a number now."""
        if os.path.lexists(os.path.join(self.root, file)):
            return None  # whoever made it had the number
        for numbered in self.settings.numbered:
            digits = numbered.digits(file)
            if not digits or not 0 < int(digits) <= NUMBER_MAX:
                continue
            folder = os.path.dirname(file)
            beside = [os.path.join(folder, name) for name in names_in(os.path.join(self.root, folder))]
            used = {int(number): each for each in beside if (number := numbered.digits(each))}
            own = self.is_own(numbered.series)
            call, session = self._place(own=own)
            place = {"namespace": call.repository_namespace} if own and call.repository_namespace else {}
            key = digest(self.agent.session, numbered.series, str(int(digits)))
            asked = {"number": int(digits), "owner": session.owner(), "request_key": key}
            body: Document = {"file": used[int(digits)], "next": 0} if int(digits) in used else {}
            if not body:
                reply = call.ask("next", numbered.series, asked)
                body = reply.body or {}
                if reply.status < 300:
                    return None
                if says_no("next", body.get("status")):
                    return {"refused": body, "series": numbered.series, "digits": digits, **place}
                if body.get("code") != "number_taken":
                    raise StoreUnavailable(str(body.get("details") or body.get("error") or reply.status))
            following = str(max([body["next"], *[each + 1 for each in used]])).zfill(len(digits))
            whose = {field: body[field] for field in ("owner", "file") if field in body}
            return {**whose, "series": numbered.series, "digits": digits, "next": following, **place}
        return None

    def release_jobs(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            _release(*self._place(own=self.is_own(job)), [self._naming.of(job)])

    @property
    def _metadata(self) -> str:
        return f"checkout={self.id} clone={self._clone} agent={self.agent.mark}"

    def is_of_actor(self, refused: Document) -> bool:
        return _is_of_actor(self.call, refused)

    def file_of(self, name: str) -> str:
        """The file of a claim, as it is claimed."""
        return name.removeprefix("path:").removeprefix(f"@{self.id}/")

    def is_here(self, name: str) -> bool:
        """Tell whether it is a claim in this checkout alone."""
        return name.startswith(f"path:@{self.id}/")

    def _level(self, refused: Document) -> str:
        """Return how much a refusal counts, by where its owner is. A claim that no hook made is meant for everybody."""
        words = _words(refused)
        if self.is_here(refused["name"]) or words.get("checkout", self.id) == self.id:
            return self.settings.guard
        return self.settings.worktrees if words.get("clone") == self._clone else self.settings.clones

    def begin(self) -> None:
        """The agent is here, though it has nothing yet: `dibs agents` shows it."""
        self._opened_of(self._session)

    def beat(self) -> None:
        """The agent is at work, which is a sign of life."""
        alive = self._session.alive()
        if alive is not None:
            self._opened[self._session] = alive
        note_holder(self.repository.own, self.agent, is_new=False)

    def wanted(self) -> dict[str, int]:
        """Files and jobs of this agent for which somebody began to wait, each with how many wait."""
        found: dict[str, int] = {}
        for job in (*self.call.wanted, *self._users.wanted):
            name = self.file_of(job["name"])
            found[name] = max(found.get(name, 0), job["waiting"])
        return found

    def held(self) -> list[str]:
        names = [str(hold["name"]) for hold in self._holds()]
        # The claim that everybody sees has the file as it was written.
        written = {self.key(name[5:]): name[5:] for name in names if not name.startswith("path:@")}
        here = [self.file_of(name) for name in names if name.startswith(f"path:@{self.id}/")]
        return [written.get(key, key) for key in here]

    def _holds(self) -> list[Document]:
        session = self._session.known()
        body = {} if session is None else self.call.ask("session-show", session, {}).body or {}
        return body.get("holds") or []

    def release(self, files: Sequence[str]) -> None:
        _release(self.call, self._session, [name for file in files for name in self._names(file)])

    def held_against(self) -> list[str]:
        """The files that others may have claimed against this agent's writing, as they are claimed here. Its own are
        among them: only a claim tells for sure whose a file is. One read of the store."""
        reply = drive(self.call.transport(), all_pages("path:", (HELD,)))
        found: dict[str, None] = {}
        for lock in (reply.body or {}).get("locks", ()):
            is_others = lock["name"].startswith("path:@") and not self.is_here(lock["name"])  # another checkout's own
            level = OFF if is_others else self._level(lock)
            if level == DENY or level == self.settings.guard == WARN:
                found[self.same(self.file_of(lock["name"]))] = None
        return list(found)

    def end(self) -> None:
        forget_holder(self.repository.own, self.agent)
        known = {self._session.known(): self.call, self._users_session.known(): self._users}
        for session, call in known.items():
            if session is not None:
                call.ask("session-end", session, {})

    @property
    def owner(self) -> str:
        return self._session.owner()

    def is_anothers(self, hold: Document) -> bool:
        """Tell whether a hold, or one that ended, is of another agent than this one, its parent and its subagents. One
        that does not say whose it is counts for nobody."""
        mine, other = self.agent.mark, agent_of(hold)
        return bool(other) and not (mine == other or mine.startswith(f"{other}/") or other.startswith(f"{mine}/"))

    def listed_here(self, state: str) -> list[Document]:
        """The jobs of this checkout's files in a state, each with its `file` as it is claimed here."""
        reply = drive(self.call.transport(), all_pages(f"path:@{self.id}/", (state,)))
        return [{**lock, "file": self.file_of(lock["name"])} for lock in (reply.body or {}).get("locks", ())]

    def held_by_others(self) -> list[Document]:
        """The files that other agents have in this checkout. A subagent may have one together with its parent."""
        found = []
        for lock in self.listed_here(HELD):
            others = [hold for hold in lock.get("holders") or (lock,) if self.is_anothers(hold)]
            found += [{**lock, **others[0]}] if others else []
        return found

    def others(self) -> list[Document]:
        """The claims of others in this checkout, and those of people and commands on its paths."""
        mine = {(hold["name"], hold["fencing_token"]) for hold in self._holds()}
        page = self.call.ask("list", "path:", {"limit": 200}).body or {}
        found = []
        for lock in page.get("locks", ()):
            for hold in lock.get("holders") or (lock,):
                is_here = lock["name"].startswith(f"path:@{self.id}/") or "checkout=" not in str(
                    hold.get("metadata") or lock.get("metadata")
                )
                if is_here and (lock["name"], hold["fencing_token"]) not in mine:
                    found.append({**lock, **hold, "file": self.file_of(lock["name"])})
        return found


def agent_of(hold: Document) -> str:
    """The mark of the agent that made a claim, if it says so."""
    return _words(hold).get("agent", "")


def _words(hold: Document) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in str(hold.get("metadata") or "").split())


def _may_come(refused: Document) -> bool:
    return kind_of_word(str(refused.get("code") or refused.get("status"))) in (NOT_YET, NOT_NOW)


def _in_way(call: Call, session: str, names: list[str], reply: Reply) -> list[Document]:
    """Return what stands in the way of each name. Raises StoreUnavailable for an answer that is not about them."""
    body = reply.body or {}
    if "refused" in body:
        return list(body["refused"])
    if body.get("code") == "deadlock":
        return _deadlocked(call, session, names) or [{**body, "status": "deadlock", "name": names[0]}]
    if reply.status >= 300:
        raise StoreUnavailable(str(body.get("details") or body.get("error") or reply.status))
    return []


def _is_of_actor(call: Call, refused: Document) -> bool:
    """Tell whether a claim in the way is that of a named actor (`--actor`) of this user on this machine."""
    owner = str(refused.get("owner") or "")
    known = ActorSession(call, owner).known() if owner else None
    body = {} if known is None else call.ask("session-show", known, {}).body or {}
    name, token = refused.get("conflict") or refused["name"], refused.get("fencing_token")
    return any((hold["name"], hold["fencing_token"]) == (name, token) for hold in body.get("holds", ()))


def _deadlocked(call: Call, session: str, names: list[str]) -> list[Document]:
    """Those of the names that somebody has who wants something of ours: the answer itself names only the circle."""
    holds = (call.ask("session-show", session, {}).body or {}).get("holds") or ()
    mine = {(hold["name"], hold["fencing_token"]) for hold in holds}
    found: list[Document] = []
    for name in names:
        body = call.ask("inspect", name).body or {}
        above = body.get("overlapping") or ()
        if body.get("status") == "held" and (name, body.get("fencing_token")) not in mine:
            found.append({**body, "status": "deadlock"})
        elif above:
            found.append({**body, **above[0], "name": name, "conflict": above[0]["name"], "status": "deadlock"})
    return found


def _release(call: Call, session: ActorSession, names: list[str]) -> None:
    known = session.known()
    if known is not None and names:
        asks = [Ask("release", name, {"session_id": known}) for name in names]
        for _ in _in_batches(call, asks, _RELEASES_AT_ONCE):
            pass


def _in_batches(call: Call, asks: list[Ask], most: int) -> Iterator[Reply]:
    """The replies to requests, of which `most` are sent at once. If the hook's time is over, those before are done."""
    for first in range(0, len(asks), most):
        yield from call.transport().ask_all(asks[first : first + most])
