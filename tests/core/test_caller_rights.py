"""Roles: who may do what, and the words of a refusal."""

from __future__ import annotations

import pytest

from dibs.base.errors import NotAllowed
from dibs.core.caller_rights import AGENT, LEAST_ROLE, OPERATOR, ROLES, VIEWER, Caller, Limits, require

LOOKS = "A viewer may look and change nothing. This needs a token of an agent."


@pytest.mark.parametrize("verb", LEAST_ROLE)
def test_a_verb_is_for_its_least_role_and_all_above_it(verb: str) -> None:
    for role in ROLES:
        caller = Caller(principal="ann", role=role)
        if ROLES.index(role) >= ROLES.index(LEAST_ROLE[verb]):
            require(caller, verb)
        else:
            with pytest.raises(NotAllowed):
                require(caller, verb)


@pytest.mark.parametrize(
    ("role", "verb", "words"),
    [
        (VIEWER, "acquire", LOOKS),
        (AGENT, "break", "Only an operator or admin may break a claim; this token's role is agent."),
        (OPERATOR, "run-end", "Only an admin may begin and end runs; this token's role is operator."),
        (VIEWER, "pool", "Only an operator or admin may change a pool; this token's role is viewer."),
    ],
)
def test_a_refusal_says_which_role_is_needed(role: str, verb: str, words: str) -> None:
    with pytest.raises(NotAllowed) as refused:
        require(Caller(principal="ann", role=role), verb)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("limits", "namespace", "payer"),
    [
        ({}, "team", None),
        ({"rate": 5, "hold_seconds": 5}, "team", None),
        ({"held": 1}, "team", "team/ann"),
        ({"waiting": 1}, None, "/ann"),
        ({"sessions": 1}, None, "/ann"),
    ],
)
def test_who_has_a_limit_on_what_it_has_is_counted(
    limits: dict[str, int], namespace: str | None, payer: str | None
) -> None:
    assert Caller(principal="ann", namespace=namespace, limits=Limits(**limits)).payer == payer
