"""Action Llama's protocol without a server: what a key may be, and in which order a request is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.compat.action_llama.protocol import Rejected, acquired, check_key, heartbeat, read_request, release
from dibs.compat.action_llama.runs import session_of
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock

KEY = "github://acme/app/issues/42"

# As the WHATWG URL parser judges them (observed with Action Llama 0.26.9).
URIS = """
github://acme/app/issues/42
https://example.com/x?y#z
file:///x
custom+scheme://x
a1.b2+c3://x
github:acme
mailto:a@b
urn:x:y
a:b
C:/x
file:relative
issue:42 foo
http://[::1]:8080/
http://user@host:80/x
x://
deploy://\u00fcber/\u65e5\u672c
http:foo
""".strip().splitlines()
NO_URIS = """
not-a-uri
resource with spaces
/abs/path
://x
--help
123://x
https://exa mple.com
http://
http://a:99999/
http://a:b/
http://[::1/
http://[zz]/
x://:80
x://a<b/
github issue acme/app#42
-x:y
sch\u00e9ma:x
""".strip().splitlines()


@pytest.mark.parametrize("key", URIS)
def test_a_uri_is_a_key(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("key", NO_URIS)
def test_what_is_no_uri_is_no_key_and_refused_in_their_words(key: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_key(key)
    assert caught.value.status == 400
    assert caught.value.body["error"] == "Invalid URI format: Invalid URL"
    assert caught.value.body["ok"] is False


@pytest.mark.parametrize("key", [" x://y", "x:\ny", "x:" + "a" * 512, "x:\ud800"])
def test_a_uri_that_is_no_job_name_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_key(key)
    assert caught.value.body["error"] == "invalid resourceKey"
    assert len(caught.value.body["reason"]) > 20


def told(document: object) -> str:
    with pytest.raises(Rejected) as caught:
        read_request(document)
    assert caught.value.status == 400
    assert caught.value.body["ok"] is False
    assert caught.value.body["reason"]
    return str(caught.value.body["error"])


def test_a_request_is_looked_at_in_the_order_of_the_contract() -> None:
    wrong: dict[str, Any] = {"ttl": "abc", "resourceKey": 7, "secret": "", "z": 1}
    assert told(None) == "invalid JSON body"
    assert told([]) == told("x") == told(5) == "missing secret"
    assert told(wrong) == "missing secret"
    assert told({**wrong, "secret": 5}) == "missing secret"
    wrong["secret"] = "s"
    assert told(wrong) == "missing resourceKey"
    wrong["resourceKey"] = "nope"
    assert told(wrong) == "Invalid URI format: Invalid URL"
    wrong["resourceKey"] = KEY
    assert told(wrong) == "invalid JSON body"
    del wrong["z"]
    assert told(wrong) == "invalid ttl"
    assert read_request({**wrong, "ttl": 60}) == ("s", KEY, 60)
    assert read_request({**wrong, "ttl": None}) == ("s", KEY, None)


@pytest.mark.parametrize("ttl", [0, -5, 0.001, 60.0, "10", "abc", True, 1e12, 86_401, [], {}])
def test_a_ttl_that_is_none_is_refused_and_not_guessed_at(ttl: object) -> None:
    assert told({"secret": "s", "resourceKey": KEY, "ttl": ttl}) == "invalid ttl"


def test_the_id_of_a_run_reveals_nothing_about_its_secret() -> None:
    one, other = session_of("a" * 36), session_of("a" * 35 + "b")
    assert one != other
    assert one == session_of("a" * 36)
    assert "aaaa" not in one


class Asked:
    """A transport that is asked by the flows, and remembers what."""

    def __init__(self) -> None:
        store = MemoryStore(ManualClock())
        self.transport = EmbeddedTransport(lambda: Coordinator(store))
        self.verbs: list[str] = []

    def follow(self, asking: Any) -> Any:
        try:
            question = next(asking)
            while True:
                self.verbs.append(question[0])
                question = asking.send(self.transport.ask(Ask(*question)))
        except StopIteration as end:
            return end.value


def test_letting_go_twice_is_not_found_the_second_time() -> None:
    asked = Asked()
    lease = (asked.transport.ask(Ask("acquire", KEY)).body or {})["lease_id"]
    proof = {"lease_id": lease}
    assert asked.follow(release(KEY, proof)) == (200, {"ok": True})
    assert asked.follow(release(KEY, proof)) == (404, {"ok": False, "reason": "lock not found"})
    asked.transport.ask(Ask("acquire", KEY, {"owner": "other"}))
    assert asked.follow(release(KEY, proof)) == (409, {"ok": False, "reason": "held by other"})


def test_who_has_no_proof_is_told_whose_it_is() -> None:
    asked = Asked()
    asked.transport.ask(Ask("acquire", KEY, {"owner": "other"}))
    assert asked.follow(heartbeat(KEY, None, None)) == (409, {"ok": False, "reason": "held by other"})
    assert asked.verbs == ["inspect"]


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (
            lambda transport, lease: transport.ask(Ask("release", KEY, {"lease_id": lease, "done_seconds": 60})),
            "github://acme/app/issues/42 was done by a, just now. It counts as done for another 1m.",
        ),
        (lambda transport, lease: None, "held by a"),
    ],
)
def test_every_refusal_says_why(prepare: Any, reason: str) -> None:
    asked = Asked()
    lease = (asked.transport.ask(Ask("acquire", KEY, {"owner": "a"})).body or {})["lease_id"]
    prepare(asked.transport, lease)
    status, body = acquired(KEY, asked.transport.ask(Ask("acquire", KEY, {"owner": "b"})))
    assert (status, body["ok"], body["reason"]) == (409, False, reason)


def test_a_job_with_slots_or_an_access_list_is_refused_with_a_reason() -> None:
    asked = Asked()
    asked.transport.ask(Ask("acquire", KEY, {"slots": 3}))
    status, body = acquired(KEY, asked.transport.ask(Ask("acquire", KEY)))
    assert (status, body["ok"]) == (409, False)
    assert "slots" in body["reason"]
