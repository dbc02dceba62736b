"""The caller of a command, and the rights of each role. Values; `wire` and `engine/auth.py` fill them.

`LEAST_ROLE` is the one table of rights: the least role for every verb. A role may do all that those before it may.
"""

from __future__ import annotations

from dibs.base.errors import NotAllowed
from dibs.base.record import Record

VIEWER = "viewer"  # reads, and changes nothing
AGENT = "agent"
OPERATOR = "operator"
ADMIN = "admin"
ROLES = (VIEWER, AGENT, OPERATOR, ADMIN)

LEAST_ROLE: dict[str, str] = {
    **dict.fromkeys(("inspect", "list", "history", "events", "watch", "sessions", "session-show", "agents"), VIEWER),
    "overdue": VIEWER,
    "whoami": VIEWER,
    **dict.fromkeys(("metrics", "metrics-prometheus"), VIEWER),
    **dict.fromkeys(("waiters", "activity"), VIEWER),
    **dict.fromkeys(("acquire", "acquire-any", "acquire-all", "leave", "withdraw"), AGENT),
    **dict.fromkeys(("renew", "release", "transfer", "next", "give-back"), AGENT),
    **dict.fromkeys(("acl", "session-open", "session-keep", "session-end"), AGENT),
    **dict.fromkeys(("election-show", "election-watch", "token-rotate-own"), VIEWER),
    **dict.fromkeys(("election-open", "campaign", "election-renew", "resign"), AGENT),
    **dict.fromkeys(("webhooks", "webhook-create", "webhook-show", "webhook-remove"), AGENT),
    **dict.fromkeys(("webhook-deliveries", "webhook-replay", "webhook-test"), AGENT),
    **dict.fromkeys(("break", "free", "session-break", "runs", "locks-of-all"), OPERATOR),
    **dict.fromkeys(("close", "open"), OPERATOR),
    "pool": OPERATOR,
    **dict.fromkeys(("run-open", "run-end"), ADMIN),
    **dict.fromkeys(("tokens", "token-create", "token-rotate", "token-revoke", "token-limit"), ADMIN),
    "rights": ADMIN,
    **dict.fromkeys(("admin-status", "timeseries"), ADMIN),
}


class Limits(Record):
    """The most that one principal may have at a time. 0: no limit."""

    held: int = 0  # jobs, and places in the queue, which become jobs
    waiting: int = 0  # places in the queue
    sessions: int = 0
    rate: int = 0  # requests a second, at each server
    hold_seconds: int = 0  # how long a hold may last, whatever is renewed


NO_LIMITS = Limits()


class Caller(Record):
    """The caller. `namespace` None: it may name any namespace."""

    principal: str
    role: str = AGENT
    namespace: str | None = None
    badges: tuple[str, ...] = ()
    over_quota: bool = False
    limits: Limits = NO_LIMITS
    audited: bool = False  # the history also keeps this caller's refusals and heartbeats
    max_hold_ms: int = 0  # the server's ceiling of all holds; 0: it has none (`holds/max_hold.py`)

    @property
    def payer(self) -> str | None:
        """Return whose usage record counts what this caller has. None: it has no limit on what it has."""
        limits = self.limits
        if not (limits.held or limits.waiting or limits.sessions):
            return None
        return f"{self.namespace or ''}/{self.principal}"


# The embedded store is the user's own file: a user who can write it is its admin.
LOCAL = Caller(principal="local", role=ADMIN, badges=("user:local",))

_RANK = {role: rank for rank, role in enumerate(ROLES)}


def may(role: str, verb: str) -> bool:
    return _RANK[role] >= _RANK[LEAST_ROLE[verb]]


# Words of refusals, for verbs that not every agent may use. All others are changes, which a viewer may not make.
_DEEDS = {
    "break": "break a claim",
    "free": "free a parked job",
    **dict.fromkeys(("close", "open"), "close or open jobs"),
    "pool": "change a pool",
    "session-break": "end somebody's session",
    "runs": "see the runs",
    "locks-of-all": "see the locks of all",
    "run-open": "begin and end runs",
    "run-end": "begin and end runs",
    **dict.fromkeys(("tokens", "token-create", "token-rotate", "token-revoke", "token-limit"), "see or change tokens"),
    **dict.fromkeys(("admin-status", "timeseries", "rights"), "see this"),
}


def require(caller: Caller, verb: str) -> None:
    if may(caller.role, verb):
        return
    if verb not in _DEEDS:
        raise NotAllowed(f"A {caller.role} may look and change nothing. This needs a token of an agent.")
    roles = " or ".join(ROLES[ROLES.index(LEAST_ROLE[verb]) :])
    article = "an" if roles[0] in "ao" else "a"
    raise NotAllowed(f"Only {article} {roles} may {_DEEDS[verb]}; this token's role is {caller.role}.")
