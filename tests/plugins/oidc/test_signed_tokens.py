"""Machines that come with a token that somebody else signed (`dibs serve --identity`)."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from jwt.warnings import InsecureKeyLengthWarning

from dibs.core import limits
from dibs.oidc.issuers import KeysUnavailable, get, keys_of
from dibs.oidc.rules_file import IssuerSource
from dibs.oidc.tokens import SignedTokens
from dibs.server.http.admission import Admission
from tests.plugins.oidc.issuer import Issuer, by_secret, issuing, new_key, public_jwk, raw
from tests.server.harness import Poll, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

RULES = """
[[identity]]
issuer = "{issuer}"
audience = "dibs"
match = {{ repository = "acme/*", ref = "refs/heads/main" }}
principal = "ci-{{repository}}"
namespace = "{{repository_owner}}"
limits = {{ max_held = 3 }}

[[identity]]
issuer = "{issuer}"
audience = ["dibs", "other"]
match = {{ environment = "ops" }}
principal = "ops"
role = "operator"
"""


@pytest.fixture
def served(rules: Path, tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, signed=SignedTokens(str(rules))) as server:
        yield server


def status(server: Server, token: str, path: str = "/locks/a") -> int:
    return server.ask("GET", path, who=token).status


def count(server: Server, reason: str) -> int:
    return server.engine.metrics.identities[reason]


@pytest.mark.promise("auth:signed")
def test_a_signed_token_is_the_caller_that_its_rule_makes(served: Server, issuer: Issuer) -> None:
    reply = served.ask("GET", "/whoami", who=issuer.token())
    assert reply.status == 200, reply.body
    assert (reply.json["principal"], reply.json["role"], reply.json["namespace"]) == ("ci-acme+app", "agent", "acme")
    assert reply.json["expires_at"] is not None
    lease = served.acquire("deploy", who=issuer.token()).json
    assert (lease["status"], lease["owner"]) == ("acquired", "ci-acme+app")


def test_the_first_rule_that_a_token_meets_decides(served: Server, issuer: Issuer) -> None:
    both = issuer.token(environment="ops")
    only = issuer.token(environment="ops", repository="else/where")
    assert served.ask("GET", "/whoami", who=both).json["role"] == "agent"
    assert served.ask("GET", "/whoami", who=only).json["role"] == "operator"


def test_a_token_that_meets_no_rule_learns_nothing_and_the_log_says_why(
    served: Server, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.token(repository="mallory/evil")
    with caplog.at_level(logging.INFO):
        refused = served.ask("GET", "/locks/a", who=token)
    unknown = served.ask("GET", "/locks/a", who="tok-of-nobody")
    assert (refused.status, refused.json["details"]) == (401, unknown.json["details"])
    assert "repository is 'mallory/evil', not acme/*" in caplog.text
    for part in token.split("."):
        assert part not in caplog.text
    assert count(served, "no_rule") == 1


def test_a_lease_goes_on_with_the_next_token_of_the_same_identity(served: Server, issuer: Issuer) -> None:
    lease = served.acquire("deploy", who=issuer.token()).json["lease_id"]
    later = issuer.token(jti="another token", run_id="2")
    assert served.ask("POST", "/locks/deploy/renew", {"lease_id": lease}, who=later).status == 200
    stranger = issuer.token(repository="acme/other")
    refused = served.ask("POST", "/locks/deploy/renew", {"lease_id": lease}, who=stranger)
    assert refused.json["code"] == "lease_not_current"


def test_the_history_says_which_identity_a_principal_was(served: Server, issuer: Issuer) -> None:
    served.ask("GET", "/locks/a", who=issuer.token())
    served.ask("GET", "/locks/a", who=issuer.token(jti="2"))

    def noted() -> list[dict[str, Any]]:
        events = served.ask("GET", "/rights", who="admin").json["events"]
        return [each for each in events if each["event"] == "identity-accepted"]

    wait_until(lambda: bool(noted()), "the identity is in the history")
    [event] = noted()  # once, not with every token
    assert (event["user_id"], event["by"]) == ("ci-acme+app", issuer.url)
    assert event["reason"] == "repo:acme/app:ref:refs/heads/main"


def test_the_rules_are_shown_to_admins(served: Server, issuer: Issuer) -> None:
    shown = served.ask("GET", "/rights", who="admin").json["identity"]
    assert [each["principal"] for each in shown] == ["ci-{repository}", "ops"]
    assert shown[0]["match"] == {"repository": ["acme/*"], "ref": ["refs/heads/main"]}
    assert served.ask("GET", "/rights", who=issuer.token()).status == 403


def test_limits_of_a_rule_count_for_its_principal(served: Server, issuer: Issuer) -> None:
    token = issuer.token()
    assert [served.acquire(f"job-{n}", who=token).status for n in range(4)] == [200, 200, 200, 403]


def test_a_token_that_was_seen_is_found_by_its_hash(served: Server, issuer: Issuer) -> None:
    token = issuer.token()
    assert status(served, token) == 200
    asked = len(issuer.asked)
    issuer.status = 500
    assert status(served, token) == 200
    assert (len(issuer.asked), count(served, "accepted")) == (asked, 1)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_each_algorithm_is_checked(algorithm: str, tmp_path: Path) -> None:
    with issuing(algorithm) as issuer:
        path = tmp_path / "identity.toml"
        path.write_text(RULES.format(issuer=issuer.url))
        with running(tmp_path, signed=SignedTokens(str(path))) as server:
            good = issuer.token()
            assert status(server, good) == 200
            head, claims, signature = good.split(".")
            changed = "A" if signature[10] != "A" else "B"
            assert status(server, f"{head}.{claims}.{signature[:10]}{changed}{signature[11:]}") == 401
            other = good.split(".")[1]
            assert status(server, f"{head}.{other}.") == 401
            stolen = jwt.encode(issuer.claims(int(time.time())), new_key(algorithm), algorithm, {"kid": issuer.kid})
            assert status(server, stolen) == 401


def test_tricks_with_algorithms_and_keys_are_refused(served: Server, issuer: Issuer) -> None:
    claims = issuer.claims(int(time.time()))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = issuer.key.public_key().public_bytes(serialization.Encoding.PEM, form)
    tricks = [
        raw({"alg": "none", "kid": "one"}, claims, b""),
        raw({"alg": "None", "kid": "one"}, claims, b""),
        raw({"kid": "one"}, claims),
        raw({"alg": ["RS256"], "kid": "one"}, claims),
        raw({"alg": "RS256", "kid": {"a": 1}}, claims),
        raw({"alg": "RS256", "kid": "one", "jwk": issuer.keys["keys"][0]}, claims),
        by_secret({"alg": "HS256", "kid": "one"}, claims, public),
        jwt.encode(claims, issuer.key, "RS512", {"kid": "one"}),
        jwt.encode(claims, issuer.key, "PS256", {"kid": "one"}),
        jwt.encode(claims, issuer.key, "RS256", {"kid": "one", "crit": ["b64"], "b64": True}),
        jwt.encode(claims, new_key("ES256"), "ES256", {"kid": "one"}),
    ]
    assert [status(served, token) for token in tricks] == [401] * len(tricks)
    assert status(served, issuer.token(headers={"kid": "one", "jku": "http://127.0.0.1:1/keys"})) == 200  # never asked


@pytest.mark.parametrize(
    ("claims", "is_let_in"),
    [
        ({"exp": None}, False),
        ({"exp": "tomorrow"}, False),
        ({"exp": True}, False),
        ({"exp": float("nan")}, False),
        ({"exp": float("inf")}, False),
        ({"exp": 10**30}, False),
        ({"aud": None}, False),
        ({"aud": "sts.example.com"}, False),
        ({"aud": ["sts.example.com", "dibs"]}, True),
        ({"aud": ["dibs", 7, None, {"a": []}]}, True),
        ({"aud": [["dibs"]]}, False),
        ({"iss": "https://else.example"}, False),
        ({"iss": None}, False),
        ({"repository": None}, False),
        ({"repository": ["acme/app"]}, False),  # the pattern fits, and the principal's template takes one text
        ({"repository": {"name": "acme/app"}}, False),
        ({"repository": "acme/app/evil"}, False),
        ({"repository": "\u0430cme/app"}, False),  # the first letter is Cyrillic
        ({"repository": "acme/app\n"}, False),
        ({"repository": "acme/" + "x" * 2000}, False),
        ({"repository": "acme/" + "x" * 80}, False),  # too long for a principal
        ({"repository": "acme/a+b"}, False),
        ({"nested": json.loads("[" * 500 + "]" * 500)}, True),
    ],
)
def test_claims_are_compared_as_they_are(
    served: Server, issuer: Issuer, claims: dict[str, Any], *, is_let_in: bool
) -> None:
    assert status(served, issuer.token(**claims)) == (200 if is_let_in else 401)


@pytest.mark.parametrize(
    "token",
    [
        "eyJ",
        "eyJ.eyJ.eyJ",
        "eyJhbGciOiJSUzI1NiJ9..",
        "eyJ" + "." * 5000,
        raw({"alg": "RS256"}, b"[1]"),
        raw({"alg": "RS256"}, b"[" * 4000),
        raw({"alg": "RS256"}, b"{" + b'"a":{' * 700),
        raw({"alg": "RS256"}, b"\xff\xfe"),
        raw({"alg": "RS256"}, {"iss": 7}),
        raw({"alg": "RS256"}, {"pad": "x" * 9000}),
    ],
)
def test_what_is_no_token_is_refused_as_such(served: Server, token: str) -> None:
    assert status(served, token) == 401
    assert status(served, "tok-agent") == 200  # the server goes on


def test_times_count_with_a_leeway_of_half_a_minute(served: Server, issuer: Issuer) -> None:
    now = int(time.time())
    near, far = limits.IDENTITY_LEEWAY_S - 10, limits.IDENTITY_LEEWAY_S + 30
    assert status(served, issuer.token(exp=now - near)) == 200
    assert status(served, issuer.token(exp=now - far)) == 401
    assert status(served, issuer.token(nbf=now + near)) == 200
    assert status(served, issuer.token(nbf=now + far)) == 401
    assert status(served, issuer.token(iat=now + far)) == 401


@pytest.mark.fault("F-773")
def test_who_comes_in_by_a_rule_is_known_by_its_name_or_while_its_token_is_valid(
    rules: Path, issuer: Issuer, tmp_path: Path
) -> None:
    now_ms = [int(time.time() * 1000)]
    with running(tmp_path, signed=SignedTokens(str(rules), wall=lambda: now_ms[0])) as server:
        lets_in, machine = server.guard.lets_in, ("ci-acme+app", "acme")
        assert lets_in(("ops", None))
        assert [lets_in(each) for each in (machine, ("ops", "acme"), ("ci-{repository}", "acme"))] == [None] * 3
        assert status(server, issuer.token()) == 200
        assert lets_in(machine)
        now_ms[0] += 600_000
        assert lets_in(machine) is None


def test_a_token_ends_while_it_is_remembered(rules: Path, issuer: Issuer, tmp_path: Path) -> None:
    now_ms = [int(time.time() * 1000)]
    with running(tmp_path, signed=SignedTokens(str(rules), wall=lambda: now_ms[0])) as server:
        token = issuer.token()
        now_ms[0] = int(time.time() * 1000)  # the server may have taken its time
        assert status(server, token) == 200
        now_ms[0] += 300_000 + limits.IDENTITY_LEEWAY_S * 1000
        assert status(server, token) == 401


def test_new_keys_are_found_and_old_ones_end(rules: Path, issuer: Issuer, tmp_path: Path) -> None:
    now_ms = [0]
    with running(tmp_path, signed=SignedTokens(str(rules), steady=lambda: now_ms[0])) as server:
        old = issuer.token()
        assert status(server, old) == 200
        issuer.rotate("two")
        assert status(server, issuer.token()) == 401  # asked a moment ago, and anybody can name a new key
        now_ms[0] += limits.IDENTITY_ASK_AGAIN_MS
        assert status(server, issuer.token()) == 200
        now_ms[0] += limits.IDENTITY_REMEMBERED_MS
        assert status(server, old) == 401  # checked again


def test_a_flood_of_unknown_keys_asks_the_issuer_once(served: Server, issuer: Issuer) -> None:
    assert status(served, issuer.token()) == 200
    asked = len(issuer.asked)
    for number in range(200):
        assert status(served, issuer.token(headers={"kid": f"key {number}"})) == 401
    assert len(issuer.asked) == asked
    assert status(served, issuer.token(jti="x")) == 200


def test_an_issuer_that_is_down_is_no_refusal(rules: Path, issuer: Issuer, tmp_path: Path) -> None:
    now_ms = [0]
    issuer.status = 503
    with running(tmp_path, signed=SignedTokens(str(rules), steady=lambda: now_ms[0])) as server:
        reply = server.ask("GET", "/locks/a", who=issuer.token())
        assert (reply.status, reply.json["code"]) == (503, "upstream_unavailable")
        assert status(server, "tok-agent") == 200
        issuer.status = 200
        now_ms[0] += limits.IDENTITY_ASK_MS_MAX
        assert status(server, issuer.token(jti="1")) == 200
        issuer.status = 503
        now_ms[0] += limits.IDENTITY_KEYS_KEPT_MS - 1
        assert status(server, issuer.token(jti="2")) == 200  # the keys are kept for a while
        now_ms[0] += 1
        assert status(server, issuer.token(jti="3")) == 503


def test_a_slow_issuer_holds_up_only_its_own_tokens(served: Server, issuer: Issuer) -> None:
    issuer.hangs.clear()
    waiting = served.raw()
    waiting.sendall(b"GET /whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % issuer.token().encode())
    gone = served.raw()
    gone.sendall(
        b"GET /whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % issuer.token(jti="g").encode()
    )
    wait_until(lambda: bool(issuer.asked), "the issuer is asked")
    gone.close()
    assert status(served, "tok-agent") == 200
    issuer.hangs.set()
    assert b"ci-acme+app" in waiting.recv(10_000)
    waiting.close()
    assert status(served, "tok-agent") == 200


@pytest.mark.parametrize(
    "lie",
    [
        {"issuer": "https://else.example"},
        {"issuer": None},
        {"jwks_uri": "http://keys.example/jwks"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": 7},
    ],
)
def test_a_discovery_that_lies_is_not_believed(served: Server, issuer: Issuer, lie: dict[str, Any]) -> None:
    issuer.says = lie
    assert status(served, issuer.token()) == 503


def test_redirects_and_large_answers_are_refused(served: Server, issuer: Issuer) -> None:
    issuer.status = 302
    assert status(served, issuer.token()) == 503


@pytest.mark.parametrize(
    "content",
    [b"x" * (limits.IDENTITY_ANSWER_BYTES_MAX + 1), b"[" * 100_000, b"{}", b'{"keys": 7}', b'{"keys": [7, {}]}'],
)
def test_keys_that_cannot_be_read_are_no_keys(served: Server, issuer: Issuer, content: bytes) -> None:
    issuer.content = content
    assert status(served, issuer.token()) == 503


def test_weak_symmetric_and_private_keys_are_passed_over(served: Server, issuer: Issuer) -> None:
    own = issuer.keys["keys"][0]
    weak = new_key("RS256", 1024)
    issuer.keys = {
        "keys": [
            {"kty": "oct", "k": "c2VjcmV0", "kid": "sym", "alg": "HS256"},
            public_jwk(weak, "RS256", "weak"),
            {**own, "kid": "enc", "use": "enc"},
            own,
        ]
    }
    assert status(served, issuer.token()) == 200
    claims = issuer.claims(int(time.time()))
    with pytest.warns(InsecureKeyLengthWarning):
        by_weak = jwt.encode(claims, weak, "RS256", {"kid": "weak"})
    assert status(served, by_weak) == 401
    assert status(served, jwt.encode(claims, issuer.key, "RS256", {"kid": "enc"})) == 401
    assert status(served, jwt.encode(claims, b"secret".rjust(32), "HS256", {"kid": "sym"})) == 401


def test_rules_are_read_again_and_every_token_checked_again(served: Server, issuer: Issuer, rules: Path) -> None:
    token = issuer.token()
    assert status(served, token) == 200
    rules.write_text(RULES.format(issuer=issuer.url).replace("acme/*", "acme/other"))
    assert served.guard.reload()
    assert status(served, token) == 401
    rules.write_text("not TOML")
    assert not served.guard.reload()
    assert status(served, issuer.token(repository="acme/other")) == 200  # the rules before it stay


def test_keys_in_a_file_need_no_issuer(issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps(issuer.keys))
    path = tmp_path / "identity.toml"
    path.write_text(RULES.format(issuer=issuer.url).replace("audience", 'keys = "keys.json"\naudience'))
    with running(tmp_path, signed=SignedTokens(str(path))) as server:
        assert status(server, issuer.token()) == 200
    assert issuer.asked == []


def test_a_waiter_with_a_signed_token_is_given_the_job(served: Server, issuer: Issuer) -> None:
    lease = served.ask("POST", "/locks/deploy/acquire?namespace=acme", {}, who="admin").json["lease_id"]
    poll = Poll(served, "/locks/deploy/acquire", {"wait_seconds": 20}, who=issuer.token())
    wait_until(lambda: served.waiting() == 1, "it waits")
    served.ask("POST", "/locks/deploy/release?namespace=acme", {"lease_id": lease}, who="admin")
    assert poll.answer()["status"] == "acquired"


def test_a_token_of_ours_that_looks_like_a_signed_one_is_ours(served: Server) -> None:
    token = raw({"alg": "RS256"}, {"iss": "https://else.example"})
    digest = hashlib.sha256(token.encode()).hexdigest()
    made = served.ask("POST", "/tokens", {"name": "old", "sha256": digest}, who="admin")
    assert made.status == 201, made.body
    assert served.ask("GET", "/whoami", who=token).json["principal"] == "old"
    assert sum(served.engine.metrics.identities.values()) == 0
    assert served.ask("DELETE", "/tokens/old", who="admin").status == 200
    assert status(served, token) == 401


def test_a_subject_that_cannot_be_written_is_noted_as_escapes(served: Server, issuer: Issuer) -> None:
    claims = json.dumps(issuer.claims(int(time.time())) | {"sub": "a\ud800\n\x1b[2J"}).encode()
    head = jwt.encode({}, issuer.key, "RS256", {"kid": "one"}).partition(".")[0]
    payload = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    signature = issuer.sign(f"{head}.{payload}".encode())
    assert status(served, f"{head}.{payload}.{signature}") == 200

    def noted() -> list[str]:
        events = served.ask("GET", "/rights", who="admin").json["events"]
        return [each["reason"] for each in events if each["event"] == "identity-accepted"]

    wait_until(lambda: bool(noted()), "the identity is in the history")
    assert noted()[0].isprintable()


def test_a_stream_goes_on_while_its_token_lasts(rules: Path, issuer: Issuer, tmp_path: Path) -> None:
    now_ms, wall = [0], [int(time.time() * 1000)]
    signed = SignedTokens(str(rules), steady=lambda: now_ms[0], wall=lambda: wall[0])
    with running(tmp_path, signed=signed) as server:
        token = issuer.token()
        assert status(server, token) == 200
        key = hashlib.sha256(token.encode()).digest()
        now_ms[0] += limits.IDENTITY_REMEMBERED_MS  # due to be checked again, with its next request
        assert server.guard.known(key).principal == "ci-acme+app"
        wall[0] += 400_000
        assert not server.guard.knows(key)


def sent(server: Server, token: str, more: bytes = b"") -> Any:
    """A request whose answer may come later."""
    connection = server.raw()
    connection.sendall(
        b"GET /whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n%b\r\n" % (token.encode(), more)
    )
    return connection


class Spans:
    """An observer that needs to see the beginning of what it sees the end of."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended = 0

    def begin(self, call: Any) -> None:
        self.begun.append(call)

    def end(self, call: Any) -> None:
        self.begun.remove(call)
        self.ended += 1


@pytest.mark.fault("F-643")
def test_a_client_that_goes_while_the_issuer_is_asked_holds_up_nobody(
    rules: Path, issuer: Issuer, tmp_path: Path
) -> None:
    spans = Spans()
    issuer.hangs.clear()
    with running(tmp_path, signed=SignedTokens(str(rules)), observers=(spans,)) as server:
        gone = sent(server, issuer.token(jti="g"), b"Content-Length: 5\r\n")  # its body has not come
        wait_until(lambda: bool(issuer.asked), "the issuer is asked")
        waiting = sent(server, issuer.token())
        wait_until(lambda: server.connections() == 2, "both are there")
        gone.close()
        wait_until(lambda: server.connections() == 1, "one is gone")
        issuer.hangs.set()
        assert b"ci-acme+app" in waiting.recv(10_000)
        waiting.close()
        wait_until(lambda: spans.ended == 2, "both have ended")


@pytest.mark.fault("F-644")
def test_an_answer_that_nobody_foresaw_is_no_answer(
    served: Server, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object) -> None:
        raise AttributeError("read")  # as a TLS connection does that is cut in the middle

    with monkeypatch.context() as patched:
        patched.setattr("dibs.oidc.issuers.Issuer.fetch", fails)
        assert status(served, issuer.token()) == 503
    assert status(served, issuer.token()) == 503  # it may be asked again in a while
    assert not next(iter(signed_of(served)._issuers.values())).is_asking


def signed_of(server: Server) -> SignedTokens:
    assert isinstance(server.guard.signed, SignedTokens)
    return server.guard.signed


@pytest.mark.fault("F-644")
def test_an_issuer_that_never_answers_is_not_waited_for_without_end(
    served: Server, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    asked = []

    def fetch(self: object) -> Any:  # as a name server that is away
        asked.append(self)
        answers.wait(60)
        return keys_of(issuer.keys, "")

    monkeypatch.setattr("dibs.oidc.issuers.Issuer.fetch", fetch)
    monkeypatch.setattr("dibs.oidc.tokens.WAIT_S_MAX", 0.2)
    try:
        assert [status(served, issuer.token(jti=str(n))) for n in range(3)] == [503] * 3
        assert len(asked) == 1
    finally:
        answers.set()
    wait_until(lambda: status(served, issuer.token()) == 200, "the keys that came late are used")


@pytest.mark.fault("F-645")
def test_the_token_for_an_issuer_is_in_no_log(issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "token").write_text("part-one\npart-two\n")
    path = tmp_path / "identity.toml"
    path.write_text(RULES.format(issuer=issuer.url).replace("audience", 'token_file = "token"\naudience'))
    with running(tmp_path, signed=SignedTokens(str(path))) as server:
        assert status(server, issuer.token()) == 503
    assert "cannot be had" in caplog.text
    assert "part-" not in caplog.text


@pytest.mark.fault("F-646")
def test_a_token_that_cannot_be_checked_is_counted_once(rules: Path, issuer: Issuer, tmp_path: Path) -> None:
    issuer.status = 503
    with running(tmp_path, signed=SignedTokens(str(rules)), admission=Admission(10, 10)) as server:
        assert status(server, issuer.token()) == 503
        assert count(server, "no_keys") == 1


@pytest.mark.fault("F-647")
@pytest.mark.parametrize("is_down", [False, True])
def test_rules_that_are_read_again_refuse_no_request_under_way(
    rules: Path, issuer: Issuer, tmp_path: Path, *, is_down: bool
) -> None:
    now_ms = [0]
    issuer.status = 503 if is_down else 200
    with running(tmp_path, signed=SignedTokens(str(rules), steady=lambda: now_ms[0])) as server:
        half = server.raw()
        head = (
            b"Authorization: Bearer %b\r\nContent-Type: application/json\r\nContent-Length: 2" % issuer.token().encode()
        )
        half.sendall(b"POST /locks/a/acquire HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n{" % head)
        wait_until(lambda: count(server, "no_keys" if is_down else "accepted") == 1, "its token was looked at")
        if not is_down:
            assert server.guard.reload()
        now_ms[0] += 5_000
        half.sendall(b"}")
        assert half.recv(10_000).startswith(b"HTTP/1.1 503")
        half.close()
        issuer.status = 200
        assert server.acquire("a", who=issuer.token()).json["status"] == "acquired"


@pytest.mark.fault("F-648")
def test_an_issuer_that_answers_byte_by_byte_is_cut_off_however_late_it_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "IDENTITY_ASK_MS_MAX", 500)  # a byte comes sooner, also on a busy machine
    connect = socket.create_connection

    def slow(*words: Any, **more: Any) -> socket.socket:
        time.sleep(0.6)  # the name is looked up, or another address tried first
        return connect(*words, **more)

    monkeypatch.setattr(socket, "create_connection", slow)
    is_cut = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            end, _ = listening.accept()
            with end:
                end.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                with suppress(OSError):
                    for _ in range(500):
                        end.sendall(b" ")
                        time.sleep(0.02)
                    return
            is_cut.set()

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(KeysUnavailable):
            get(url, IssuerSource(issuer=url))
        thread.join(30)
    assert is_cut.is_set()


@pytest.mark.fault("F-651")
def test_a_signed_token_is_not_exchanged_for_one_that_never_ends(served: Server, issuer: Issuer) -> None:
    refused = served.ask("POST", "/auth/token/rotate", {}, who=issuer.token())
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    assert "ci-acme+app" not in [each["name"] for each in served.ask("GET", "/tokens", who="admin").json["tokens"]]
