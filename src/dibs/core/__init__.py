"""The rules of dibs, pure: no clock, no randomness, no I/O, no logging, no async.

`decide(view, command)` is the only way in. Start reading at `decide.py`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.records import Stored

_CLASSES: dict[str, type[Stored]] = {}


def class_of(key: str) -> type[Stored]:
    """Return the record class of a key (`records.py`), which a store needs to decode its bytes."""
    kind = key.split("/", 1)[0]
    if not _CLASSES:
        from dibs.core import records

        _CLASSES.update(records.CLASSES)
    if kind not in _CLASSES:
        from dibs.core.service import (
            credentials,
            webhooks,  # rare: a claim should not wait for them
        )

        _CLASSES.update(credentials.CLASSES)
        _CLASSES.update(webhooks.CLASSES)
    return _CLASSES[kind]
