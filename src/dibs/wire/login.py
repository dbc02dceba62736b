"""The document that says who a caller is."""

from __future__ import annotations

from dibs.wire.parts import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.identity import Caller


def whoami_document(caller: Caller, ends_ms: int | None) -> dict[str, Any]:
    """`ends_ms`: when the caller's token ends by itself."""
    document: dict[str, Any] = {
        "principal": caller.principal,
        "role": caller.role,
        "namespace": caller.namespace,
    }
    return document if ends_ms is None else {**document, "expires_at": timestamp(ends_ms)}
