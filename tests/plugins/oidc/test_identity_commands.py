"""`dibs identity check`, the operator's look at the rules before a server has them, and `dibs identity list`."""

from __future__ import annotations

import io
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.main import run
from dibs.oidc.tokens import SignedTokens
from tests.plugins.oidc.issuer import Issuer, raw
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from pathlib import Path

RULES = """
[[identity]]
issuer = "{issuer}"
audience = "dibs"
match = {{ repository = "acme/app", ref = "refs/heads/main" }}
principal = "ci-{{repository}}"
"""


def typed(*words: str, stdin: str = "", **env: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run(["identity", *words], env, out, err, io.BytesIO(stdin.encode()))
    return code, out.getvalue(), err.getvalue()


def test_rules_without_a_token_are_read_and_warned_of(rules: Path) -> None:
    code, said, _ = typed("check", str(rules))
    assert (code, said) == (0, f"{rules}: 1 rule, which can be used.\n")
    rules.write_text(rules.read_text().replace(', ref = "refs/heads/main"', "").replace("http://127", "https://127"))
    rules.write_text(rules.read_text().replace('principal = "ci-', 'principal = "'))
    code, said, _ = typed("check", str(rules))
    assert code == 0
    assert "Rule 1: the principal begins with a claim" in said


def test_a_token_is_explained_without_a_server(rules: Path, issuer: Issuer) -> None:
    token = issuer.token()
    code, said, _ = typed("check", str(rules), "--token", "-", stdin=token + "\n")
    assert code == 0
    assert "Rule 1 lets it in as ci-acme+app (agent)." in said
    assert "its signature is right" in said
    code, said, _ = typed("check", str(rules), "--token", "-", "--json", stdin=token)
    assert json.loads(said)["data"]["caller"]["principal"] == "ci-acme+app"
    (rules.parent / "token").write_text(token)
    issuer.status = 500
    code, said, _ = typed("check", str(rules), "--token", str(rules.parent / "token"), "--offline")
    assert (code, "the signature was not checked" in said) == (0, True)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"repository": "mallory/evil"}, "repository is 'mallory/evil', not acme/app"),
        ({"exp": 5}, "it has ended"),
        ({"iss": "https://else.example"}, "no rule is for its issuer, 'https://else.example'"),
        ({"aud": "else"}, "the audience is not dibs"),
    ],
)
def test_a_refused_token_is_explained_too(rules: Path, issuer: Issuer, claims: dict[str, Any], reason: str) -> None:
    code, said, err = typed("check", str(rules), "--token", "-", stdin=issuer.token(**claims))
    assert (code, reason in said + err) == (1, True)


def test_a_wrong_signature_and_an_issuer_that_is_down_are_told_apart(rules: Path, issuer: Issuer) -> None:
    forged = raw({"alg": "RS256", "kid": "one"}, issuer.claims(int(time.time())))
    assert "its signature is wrong" in "".join(map(str, typed("check", str(rules), "--token", "-", stdin=forged)))
    issuer.status = 500
    said = "".join(map(str, typed("check", str(rules), "--token", "-", stdin=issuer.token())))
    assert "answers with 500" in said
    assert "--offline" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("audience", "audiences"), "there is no field 'audiences'"),
        (("http://127.0.0.1", "http://issuer.example"), "http:// is for this machine alone"),
        (("http://127.0.0.1", "ftp://127.0.0.1"), "is an https:// address"),
        (('"dibs"', '""'), "audience is a text that is not empty"),
        (('"dibs"', "[]"), "audience is a text that is not empty"),
        (("ci-{repository}", "ci-{repository"), "is no template"),
        (("ci-{repository}", "a b"), "letters, digits or"),
        (("principal", 'role = "root"\nprincipal'), "role is one of"),
        (("principal", "limits = { held = 5 }\nprincipal"), "there is no limit 'held'"),
        (("principal", "limits = { max_held = -5 }\nprincipal"), "is a whole number"),
        (("principal", "limits = { max_held = 99999999999 }\nprincipal"), "is a whole number"),
        (("principal", 'limits = { max_held = "a{x}" }\nprincipal'), "is a whole number"),
        (("ci-{repository}", "ci: {repository}"), "letters, digits or"),
        (("ci-{repository}", "x" * 64 + "{repository}"), "letters, digits or"),
        (("principal", 'namespace = "a/{ref}"\nprincipal'), "A namespace is"),
        (('"acme/app"', "{ a = 1 }"), "match.repository is a text"),
        (("[[identity]]", "[identity]"), "has no rule"),
        (("[[identity]]", "[[identities]]"), "there is no setting 'identities'"),
        (("[[identity]]", "[[identity"), "is not TOML"),
    ],
)
@pytest.mark.fault("F-650")
def test_rules_that_cannot_be_used_say_which_and_why(rules: Path, change: tuple[str, str], reason: str) -> None:
    rules.write_text(rules.read_text().replace(*change, 1))
    code, _, err = typed("check", str(rules))
    assert code == 64
    assert reason in err


def test_two_rules_of_one_issuer_agree_where_its_keys_are(rules: Path) -> None:
    one = rules.read_text()
    from_file = one.replace("audience", 'keys = "a.json"\naudience')
    rules.write_text(one + from_file + one)
    assert typed("check", str(rules))[0] == 0  # one of them says it
    rules.write_text(one + from_file + from_file.replace("a.json", "b.json"))
    code, _, err = typed("check", str(rules))
    assert (code, "rule 3: an earlier rule says otherwise" in err) == (64, True)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, _, err = typed("check", str(tmp_path / "none.toml"))
    assert (code, "none.toml cannot be read: No such file" in err) == (64, True)


def test_the_rules_of_a_server_are_listed_for_its_admin(rules: Path, tmp_path: Path) -> None:
    with running(tmp_path, signed=SignedTokens(str(rules))) as server:
        url = f"http://127.0.0.1:{server.port}"
        code, said, _ = typed("list", DIBS_URL=url, DIBS_TOKEN=TOKENS["admin"])
        assert (code, "ci-{repository} (agent)" in said, "repository = acme/app" in said) == (0, True, True)
        assert typed("list", DIBS_URL=url, DIBS_TOKEN=TOKENS["agent"])[0] == 77
    with running(tmp_path) as server:
        code, said, _ = typed("list", DIBS_URL=f"http://127.0.0.1:{server.port}", DIBS_TOKEN=TOKENS["admin"])
        assert (code, "has no rules" in said) == (0, True)


@pytest.mark.parametrize(
    "text", ["a\x1b[2Jb", "a\nRule 1 lets it in as root", "\u202egnol", "a\x00b", "\ud800", "x" * 900]
)
@pytest.mark.parametrize("claim", ["iss", "sub", "repository", "aud"])
def test_claims_of_a_hostile_token_are_shown_as_data(rules: Path, issuer: Issuer, claim: str, text: str) -> None:
    token = raw({"alg": "RS256", "kid": "one"}, issuer.claims(int(time.time())) | {claim: text})
    code, said, err = typed("check", str(rules), "--token", "-", "--offline", stdin=token)
    assert code == (0 if claim == "sub" else 1)
    assert (said + err).replace("\n", "").isprintable()
    assert "as root" not in [line[-7:] for line in (said + err).splitlines()]


@pytest.mark.fault("F-650")
def test_a_pipe_in_the_place_of_the_rules_holds_up_nobody(rules: Path) -> None:
    signed = SignedTokens(str(rules))
    rules.unlink()
    os.mkfifo(rules)
    assert not signed.reload()
    code, _, err = typed("check", str(rules))
    assert (code, "it is not a regular file" in err) == (64, True)


@pytest.mark.fault("F-652")
@pytest.mark.parametrize(
    ("principal", "more", "is_warned"),
    [
        ("ci-{sub}", "", True),
        ("ci-deploy", "", True),
        ("{sub}", "", True),
        ("gl-{sub}", "", False),
        ("ci-{sub}", 'namespace = "lab"', False),
    ],
)
def test_two_issuers_that_can_make_one_name_are_warned_of(
    rules: Path, principal: str, more: str, *, is_warned: bool
) -> None:
    first = rules.read_text().replace("principal", 'namespace = "hub"\nprincipal' if more else "principal")
    second = first.replace("http://127", "https://127").replace("ci-{repository}", principal)
    rules.write_text(first + second.replace('namespace = "hub"', more))
    code, said, err = typed("check", str(rules))
    assert (code, "the name that rule 1 makes for another issuer" in said) == (0, is_warned), err
