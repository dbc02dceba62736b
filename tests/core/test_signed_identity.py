"""What a rule makes of the claims of a signed token."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.caller_rights import Limits
from dibs.core.service.signed_identity import IdentityRule, fits, judge, misses, names_in, overlap, warnings_of

ISSUER = "https://token.actions.githubusercontent.com"
# The shape of GitHub's, GitLab's and Kubernetes' claims, from their documentation.
GITHUB: dict[str, Any] = {
    "iss": ISSUER,
    "aud": "dibs",
    "sub": "repo:acme/app:ref:refs/heads/main",
    "repository": "acme/app",
    "repository_owner": "acme",
    "repository_id": "74",
    "ref": "refs/heads/main",
    "event_name": "push",
    "run_attempt": "1",
}
GITLAB: dict[str, Any] = {
    "iss": "https://gitlab.com",
    "aud": ["https://dibs.example", "dibs"],
    "sub": "project_path:acme/group/app:ref_type:branch:ref:main",
    "project_path": "acme/group/app",
    "project_id": "22",
    "namespace_path": "acme/group",
    "ref": "main",
    "ref_protected": "true",
}
KUBERNETES: dict[str, Any] = {
    "iss": "https://kubernetes.default.svc",
    "aud": ["dibs"],
    "sub": "system:serviceaccount:prod:worker",
    "kubernetes.io": {
        "namespace": "prod",
        "pod": {"name": "worker-7d4b", "uid": "5e0c"},
        "serviceaccount": {"name": "worker", "uid": "3f1a"},
    },
}


def rule(claims: dict[str, Any] = GITHUB, **fields: Any) -> IdentityRule:
    match = tuple(
        (claim, (value,) if isinstance(value, str) else value) for claim, value in fields.pop("match", {}).items()
    )
    usual = {"issuer": claims["iss"], "audiences": ("dibs",), "principal": "ci"}
    return IdentityRule(**usual | {"match": match} | fields)


@pytest.mark.parametrize(
    ("pattern", "value", "is_match"),
    [
        ("acme/app", "acme/app", True),
        ("acme/app", "Acme/app", False),
        ("acme/app", "acme/app ", False),
        ("acme/*", "acme/app", True),
        ("acme/*", "acme/", True),
        ("acme/*", "acme/app/evil", False),
        ("acme/*", "acme-evil/app", False),
        ("acme/**", "acme/group/app", True),
        ("acme/***", "acme/group/app", True),
        ("*", "acme", True),
        ("*", "acme/app", False),
        ("**", "acme/app", True),
        ("refs/heads/release-*", "refs/heads/release-1.2", True),
        ("refs/heads/*", "refs/heads/feature/x", False),
        ("repo:acme/app:*", "repo:acme/app:pull_request", True),
        ("repo:acme/app:*", "repo:acme/app:ref:refs/heads/main", False),
        ("repo:acme/*:ref:refs/heads/main", "repo:acme/x:environment:y:ref:refs/heads/main", False),
        ("a.b", "axb", False),
        ("[ab]", "a", False),
        ("a?", "ab", False),
        ("*a*a*a*", "a" * 40, True),
        ("*a*a*a*b", "a" * 40, False),
        ("", "", True),
        ("*", "", True),
    ],
)
def test_a_star_stays_within_a_part_and_two_go_over_all(pattern: str, value: str, *, is_match: bool) -> None:
    assert fits(pattern, value) == is_match


@given(st.text("ab/:*", max_size=8), st.text("ab/:", max_size=10))
def test_a_pattern_is_what_a_regular_expression_would_be(pattern: str, value: str) -> None:
    parts = re.split(r"(\*+)", pattern)
    expression = "".join(
        ("[^/:]*" if part == "*" else ".*") if part.startswith("*") else re.escape(part) for part in parts
    )
    assert fits(pattern, value) == (re.fullmatch(expression, value) is not None)


def test_a_long_pattern_and_a_long_value_take_no_long_time() -> None:
    assert not fits("*a" * 50 + "b", "a" * 1_000)


@pytest.mark.parametrize(
    ("claims", "match"),
    [
        (GITHUB, {"repository": "acme/*", "ref": ("refs/heads/main", "refs/tags/*")}),
        (GITHUB, {"sub": "repo:acme/app:ref:refs/heads/*", "repository_id": "74"}),
        (GITLAB, {"project_path": "acme/**", "ref_protected": "true"}),
        (KUBERNETES, {"kubernetes.io/namespace": "prod", "kubernetes.io/serviceaccount/name": "work*"}),
        ({**GITHUB, "groups": ["a", "ops"]}, {"groups": "ops"}),
        ({**GITHUB, "level": 3, "admin": True}, {"level": "3", "admin": "true"}),
        ({**GITHUB, "https://acme.example/role": "ci"}, {"https://acme.example/role": "ci"}),
    ],
)
def test_claims_of_the_usual_issuers_meet_their_rules(claims: dict[str, Any], match: dict[str, Any]) -> None:
    assert misses(rule(claims, match=match), claims) == ""


@pytest.mark.parametrize(
    ("match", "reason"),
    [
        ({"environment": "production"}, "the token has no claim environment"),
        ({"repository": "acme/other"}, "repository is 'acme/app', not acme/other"),
        ({"repository/name": "app"}, "the token has no claim repository/name"),
        ({"kubernetes.io/namespace": "prod"}, "the token has no claim kubernetes.io/namespace"),
    ],
)
def test_what_is_missing_is_said(match: dict[str, Any], reason: str) -> None:
    assert misses(rule(match=match), GITHUB) == reason


def test_issuer_and_audience_are_compared_in_full() -> None:
    assert misses(rule(issuer="https://token.actions.githubusercontent.com/"), GITHUB) == "it is for another issuer"
    assert misses(rule(audiences=("dibs-test",)), GITHUB) == "the audience is not dibs-test"
    assert misses(rule(audiences=("x", "dibs")), GITHUB) == ""


def test_the_first_rule_that_is_met_decides_also_if_it_cannot_be_filled() -> None:
    never = rule(match={"repository": "else"})
    broken = rule(principal="{environment}")
    good = rule(principal="good")
    found = judge((never, broken, good), GITHUB)
    assert (found.caller, found.rule) == (None, 2)
    assert found.reason == "rule 2 is met, but the token has no claim environment that is one text"
    found = judge((never, good), GITHUB)
    assert (found.caller and found.caller.principal, found.rule) == ("good", 2)
    assert judge((never,), GITHUB).reason == "rule 1: repository is 'acme/app', not else"


@pytest.mark.parametrize(
    ("template", "claims", "principal"),
    [
        ("ci", {}, "ci"),
        ("ci-{repository}", {}, "ci-acme+app"),
        ("k-{sub}", {"sub": "system:serviceaccount:prod:worker"}, "k-system@serviceaccount@prod@worker"),
        ("ci-{repository_id}", {}, "ci-74"),
        ("ci-{repository}", {"repository": "acme/a+b"}, None),
        ("ci-{repository}", {"repository": "acme/a@b"}, None),
        ("ci-{repository}", {"repository": "acme/ä"}, None),
        ("ci-{repository}", {"repository": "acme/" + "x" * 60}, None),
        ("ci-{repository}", {"repository": ["acme/app"]}, None),
        ("ci-{repository}", {"repository": ""}, None),
        ("ci-{repository}", {"repository": {"a": "b"}}, None),
        ("ci-{repository}", {"repository": "\ud800"}, None),
    ],
)
def test_two_identities_never_become_one_name(template: str, claims: dict[str, Any], principal: str | None) -> None:
    found = judge((rule(principal=template),), GITHUB | claims).caller
    assert (None if found is None else found.principal) == principal


def test_role_namespace_and_limits_are_templates_too() -> None:
    made = rule(role="{dibs_role}", namespace="{repository_owner}", limits=(("held", "{most}"), ("rate", "50")))
    found = judge((made,), GITHUB | {"dibs_role": "operator", "most": 7}).caller
    assert found is not None
    assert (found.role, found.namespace, found.limits) == ("operator", "acme", Limits(held=7, rate=50))
    for wrong in ({"dibs_role": "root"}, {"most": "-1"}, {"most": "9" * 30}, {"repository_owner": "a b"}):
        assert judge((made,), GITHUB | {"dibs_role": "agent", "most": 7} | wrong).caller is None


@pytest.mark.parametrize("template", ["{", "}", "{}", "a{b", "a}b", "{{a}}", "{a}}"])
def test_a_broken_template_is_refused(template: str) -> None:
    with pytest.raises(Exception, match="is no template"):
        names_in(template)


@pytest.mark.fault("F-649")
@pytest.mark.parametrize(
    ("match", "fields", "word"),
    [
        ({}, {}, "every token of this issuer"),
        ({"ref": "refs/heads/main"}, {}, "a stranger's repository"),
        ({"repository": "**", "ref": "x"}, {}, "takes every name"),
        ({"repository": "*/app", "ref": "x"}, {}, "a stranger's repository"),
        ({"sub": "repo:*/app:ref:refs/heads/main"}, {}, "a stranger's repository"),
        ({"repository": "*acme/app", "ref": "x"}, {}, "a stranger's repository"),
        ({"repository": ("acme/app", "*/app"), "ref": "x"}, {}, "'*/app' takes every name"),
        ({"repository": "acme-*/app", "ref": "x"}, {}, "longer names"),
        ({"repository_owner": "acme-*", "ref": "x"}, {}, "longer names"),
        ({"repository": "acme/app-*", "ref": "x"}, {}, ""),
        ({"job_workflow_ref": "acme/ci/.github/workflows/deploy.yml@refs/heads/main"}, {}, "a stranger's repository"),
        ({"repository": "**", "repository_owner": "acme", "ref": "x"}, {}, ""),
        ({"enterprise": "acme", "ref": "x"}, {}, ""),
        ({"repository": "acme/app", "ref": "**"}, {}, "a pull request"),
        ({"repository": "acme/app", "ref": "refs/**"}, {}, "a pull request"),
        ({"repository": "acme/app", "ref": ("refs/heads/main", "refs/pull/*/merge")}, {}, "a pull request"),
        ({"repository": "acme/app", "ref": "refs/heads/**"}, {}, ""),
        ({"repository": "acme/app", "event_name": "pull_request"}, {}, "a pull request"),
        ({"repository": "acme/app", "event_name": "push"}, {}, ""),
        ({"repository": "acme/app", "ref_protected": "false"}, {}, "a pull request"),
        ({"repository": "acme/app", "ref_protected": "true"}, {}, ""),
        ({"repository": "acme/app", "environment": "*"}, {}, "a pull request"),
        ({"repository": "acme/app", "workflow_ref": "acme/app/.github/workflows/**"}, {}, "a pull request"),
        ({"repository": "acme/app", "workflow_ref": "acme/app/**@refs/heads/main"}, {}, ""),
        ({"sub": "repo:acme/app:*request"}, {}, "a pull request"),
        ({"sub": "repo:acme/app:environment:*"}, {}, "a pull request"),
        ({"sub": "repo:acme/app:environment:production"}, {}, ""),
        ({"repository": "acme/app", "ref": "x"}, {"role": "{environment}"}, "a claim says the role"),
        ({"repository": "acme/app"}, {"issuer": "https://ghe.example/_services/token"}, "a pull request"),
        ({"repository_owner": "acme*", "ref": "x"}, {}, "longer names"),
        ({"repository": "acme**", "ref": "x"}, {}, "longer names"),
        ({"repository": "acme/app"}, {}, "a pull request"),
        ({"sub": "repo:acme/app:*"}, {}, "a pull request"),
        ({"sub": "repo:acme/app:pull_request"}, {}, "a pull request"),
        ({"sub": "repo:acme/app:ref:refs/heads/main"}, {}, ""),
        ({"repository": "acme/app", "ref": "refs/heads/main"}, {}, ""),
        ({"repository": "acme/app", "environment": "production"}, {}, ""),
        ({"repository": "acme/*", "ref": "refs/heads/main"}, {"role": "admin"}, "makes an admin"),
        ({"repository": "acme/app", "ref": "x"}, {"principal": "{repository}"}, "put a word before it"),
        ({"repository": "acme/app", "ref": "x"}, {"principal": "ci-{ref}-{sub}"}, "several claims"),
    ],
)
def test_a_rule_that_a_stranger_would_meet_is_warned_of(match: dict[str, Any], fields: Any, word: str) -> None:
    found = warnings_of(rule(match=match, **fields))
    assert word in " ".join(found) if word else found == []


@pytest.mark.fault("F-649")
@pytest.mark.parametrize(
    ("claims", "match", "word"),
    [
        (GITLAB, {"project_path": "acme/**", "ref_protected": "true"}, ""),
        (GITLAB, {"sub": "project_path:acme/group/app:ref_type:branch:ref:main"}, ""),
        (GITLAB, {"sub": "project_path:acme/group/app:**"}, "every branch"),
        (GITLAB, {"project_path": "acme/**", "ref": "**"}, "every branch"),
        (GITLAB, {"project_path": "acme/**", "ref_protected": "false"}, "every branch"),
        (GITLAB, {"sub": "project_path:*/app:ref_type:branch:ref:main"}, "a stranger's repository"),
        (GITLAB, {"sub": "project_path:**:ref:main"}, "a stranger's repository"),
        (GITLAB, {"namespace_path": "**", "ref": "main"}, "a stranger's repository"),
        (KUBERNETES, {"kubernetes.io/namespace": "prod"}, ""),
        (KUBERNETES, {"sub": "system:serviceaccount:prod:worker-*"}, ""),
        (KUBERNETES, {"sub": "system:serviceaccount:*:worker"}, "a pod of another namespace"),
        (KUBERNETES, {"kubernetes.io/namespace": "*"}, "a pod of another namespace"),
        (KUBERNETES, {"kubernetes.io/serviceaccount/name": "deployer"}, "a pod of another namespace"),
        ({"iss": "https://ci.example"}, {"sub": "**"}, "a stranger meets it"),
        ({"iss": "https://ci.example"}, {"sub": "pipeline:7"}, ""),
    ],
)
def test_rules_of_other_issuers_are_warned_of_too(claims: dict[str, Any], match: dict[str, Any], word: str) -> None:
    found = warnings_of(rule(claims, match=match))
    assert word in " ".join(found) if word else found == []


@given(st.text("ab/*", max_size=6), st.text("ab/*", max_size=6), st.text("ab/", max_size=6))
def test_patterns_that_take_one_text_overlap(pattern: str, other: str, value: str) -> None:
    assert overlap(pattern, other) == overlap(other, pattern)
    if fits(pattern, value) and fits(other, value):
        assert overlap(pattern, other)


@given(st.text("ab/*", max_size=4), st.text("ab/*", max_size=4))
def test_patterns_that_overlap_take_one_text(pattern: str, other: str) -> None:
    """Such a text is one of these: none of their stars needs more than the other's letters."""
    letters = len(pattern) + len(other)
    texts = (
        ["".join(each) for size in range(letters + 1) for each in product("ab/", repeat=size)] if letters < 7 else []
    )
    if texts:
        assert overlap(pattern, other) == any(fits(pattern, each) and fits(other, each) for each in texts)
