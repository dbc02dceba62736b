"""Names that were claimed before they had one name, or with `exact`: as long as a job is in use under the very
spelling that somebody wrote, that spelling is meant. So claims, done marks and lines of old keep working."""

from __future__ import annotations

from dibs.client.queueing import Ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.queueing import Flow
    from dibs.wire.documents import Reply


def name_in_use(name: str, written: str | None) -> Flow[str]:
    """`written` if the store has a job under it that is not free, else `name`."""
    if written is None or written == name:
        return name
    reply: Reply = yield Ask("inspect", written, {})
    is_used = reply.status < 300 and (reply.body or {}).get("status", "free") != "free"
    return written if is_used else name
