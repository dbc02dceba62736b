"""Sessions around this command. A `dibs run` inside another would wait for itself: the outer one keeps its job until
its command ends, and that command would wait for the job. Such a wait is refused."""

from __future__ import annotations

from dibs.core.names import DEFAULT_NAMESPACE, in_tree, overlaps
from dibs.wire.documents import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

VARIABLE = "DIBS_OUTER_SESSIONS"


def sessions_around(env: Mapping[str, str]) -> list[str]:
    """The sessions around this process, innermost last."""
    return [*env.get(VARIABLE, "").split(), *env.get("DIBS_SESSION", "").split()]


def waits_for_itself(call: Call, name: str, document: Document) -> Reply | None:
    """The refusal of a wait that cannot end, because an outer command has the job; None if it can end."""
    if "slots" in document:
        return None  # another slot may come free
    asked = document.get("names", [name])
    for session in sessions_around(call.env):
        if session == document.get("session_id"):
            continue  # the session's own holds do not block it
        reply = call.door().call("session-show", session, {})
        body: Document = reply.body or {}
        for hold in body.get("holds", ()) if reply.status < 300 else ():
            shared = hold["mode"] == document.get("mode") == "shared"
            if shared or not _is_ours(hold, call.settings.namespace):
                continue
            if any(_conflict(each, hold["name"]) for each in asked):
                return _refusal(hold["name"])
    return None


def _is_ours(hold: Document, namespace: str | None) -> bool:
    """Whether a hold is in the namespace of this command: the same name in another namespace is another job. Without a
    named namespace it is `default`, or the one that the token is bound to. An older server does not send the namespace
    of a hold."""
    where = hold.get("namespace")
    if namespace is None:
        return where in (None, DEFAULT_NAMESPACE) or not in_tree(hold["name"])
    return where in (None, namespace)


def _conflict(one: str, other: str) -> bool:
    return one == other or (in_tree(one) and in_tree(other) and overlaps(one, other))


def _refusal(name: str) -> Reply:
    details = (
        f"{name} is held by the `dibs run` around this command, so waiting for it would never end. "
        "The job is already yours: do not claim it again."
    )
    return Reply(status=409, body={"error": "Waiting would deadlock", "code": "deadlock", "details": details})
