"""A reply that is lost after the store has written: what the SDK repeats is known to be the same."""

from __future__ import annotations

import pytest

from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.sdk.client import Client
from dibs.wire.documents import Reply


@pytest.mark.fault("F-111")
@pytest.mark.promise("idem:fresh-id")
def test_a_transfer_whose_reply_was_lost_gives_the_heirs_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = EmbeddedTransport.ask
    lost: list[str] = []

    def lossy(transport: EmbeddedTransport, asked: Ask) -> Reply:
        reply = ask(transport, asked)
        if asked.verb == "transfer" and len(lost) < 1:
            lost.append(asked.verb)
            return Reply(status=503, body={"code": "upstream_unavailable", "details": "The reply was lost."})
        return reply

    monkeypatch.setattr(EmbeddedTransport, "ask", lossy)
    with Client("memory://") as client:
        with client.claim("job") as claim:
            lease = claim.transfer(to_owner="heir")
        assert lost == ["transfer"]
        assert client.owner("job").owner == "heir"
        client.release("job", lease.lease_id)
        assert not client.owner("job").held
