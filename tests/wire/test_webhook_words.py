"""Which events a webhook may ask for."""

from __future__ import annotations

import pytest

from dibs.base.errors import InvalidInput
from dibs.core import events as kinds
from dibs.core.caller_rights import LOCAL
from dibs.core.events import KINDS
from dibs.wire.webhooks import webhook_of


def is_taken(kind: str) -> bool:
    try:
        webhook_of({"url": "https://hook.test/", "events": [kind]}, "default", LOCAL, "id", own=False)
    except InvalidInput:
        return False
    return True


@pytest.mark.fault("F-774")
def test_a_webhook_may_ask_for_each_kind_of_event_about_a_job() -> None:
    about_others = {each for each in KINDS if each.startswith(("token-", "webhook-", "session-", "identity-"))}
    assert {each for each in KINDS if not is_taken(each)} == about_others | {kinds.OUTAGE, kinds.IMPORTED}
