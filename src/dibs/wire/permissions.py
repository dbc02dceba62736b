"""Whether a role may use a verb, and the message if not."""

from __future__ import annotations

from dibs.base.errors import NotAllowed
from dibs.core.identity import LEAST_ROLE, ROLES, may

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.identity import Caller

# The names in refusals for verbs that not every agent may use. All other verbs are changes, which a viewer may not
# make.
_DEEDS = {
    "break": "break a claim",
    "free": "free a parked job",
    "session-break": "end somebody's session",
    "runs": "see the runs",
    "locks-of-all": "see the locks of all",
    "run-open": "begin and end runs",
    "run-end": "begin and end runs",
    **dict.fromkeys(("tokens", "token-create", "token-rotate", "token-revoke", "token-limit"), "see or change tokens"),
    **dict.fromkeys(("admin-status", "timeseries", "rights"), "see this"),
}


def require(caller: Caller, verb: str) -> None:
    """Raise NotAllowed if the caller's role is not enough for `verb`."""
    if may(caller.role, verb):
        return
    if verb not in _DEEDS:
        raise NotAllowed(f"A {caller.role} may look and change nothing. This needs a token of an agent.")
    roles = " or ".join(ROLES[ROLES.index(LEAST_ROLE[verb]) :])
    article = "an" if roles[0] in "ao" else "a"
    raise NotAllowed(f"Only {article} {roles} may {_DEEDS[verb]}; this token's role is {caller.role}.")
