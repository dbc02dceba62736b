"""Who asks: the caller of a command, and the three roles. Values only; `wire` and `service/auth.py` fill them in."""

from __future__ import annotations

from dibs.core.record import Record

AGENT = "agent"
OPERATOR = "operator"
ADMIN = "admin"
ROLES = (AGENT, OPERATOR, ADMIN)


class Caller(Record):
    """Who asks. `namespace` None: any namespace may be named."""

    principal: str
    role: str = AGENT
    namespace: str | None = None
    badges: tuple[str, ...] = ()
    over_quota: bool = False
    audited: bool = False  # the history keeps this caller's refusals and heartbeats too


# The embedded store is the user's own file: whoever can write it is its admin.
LOCAL = Caller(principal="local", role=ADMIN, badges=("user:local",))
