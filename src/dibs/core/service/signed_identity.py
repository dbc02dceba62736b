"""Rules that turn what an issuer signed into a caller: who a machine is without a token of dibs.

A CI job or a pod has a token that somebody else signed (OpenID Connect). The operator writes rules: tokens of which
issuer, for which audience, with which claims, become which caller. The first rule that a token meets decides; a token
that meets none is refused. `oidc/` has checked the signature and the times before any rule is asked.

A pattern is compared character by character: `*` is any text without `/` and `:`, `**` is any text. So `acme/*` is
not `acme/app/fork`, and `repo:acme/app:*` is one part of a subject. A claim that is a list meets a pattern if one of
its entries does.

A template such as `ci-{repository}` takes values from claims. In a principal `/` becomes `+` and `:` becomes `@`, and a
value that has one of these already is refused: two identities never become one name.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, Mapping
from dibs.base.errors import InvalidInput
from dibs.base.record import Record
from dibs.core import events
from dibs.core.caller_rights import ADMIN, AGENT, NO_LIMITS, OPERATOR, ROLES, Caller, Limits
from dibs.core.commands import PlainCommand
from dibs.core.draft import Draft
from dibs.core.limits import IDENTITY_VALUE_CHARS_MAX, PRINCIPAL_LIMIT_MAX
from dibs.core.names import check_namespace, check_principal
from dibs.core.outcomes import Outcome

_ANY_PART, _ANY = "*", "**"
_SEPARATORS = "/:"
_IN_A_PRINCIPAL = {"/": "+", ":": "@"}


class IdentityRule(Record):
    """One rule. `match`: each claim with its patterns, of which one must fit. The rest are templates."""

    issuer: str
    audiences: tuple[str, ...]
    principal: str
    match: tuple[tuple[str, tuple[str, ...]], ...] = ()
    role: str = AGENT
    namespace: str = ""  # empty: any
    limits: tuple[tuple[str, str], ...] = ()  # fields of `Limits`


class Verdict(Record):
    """The answer of the rules about a token's claims. `caller` None: it is refused, and `reason` says why."""

    caller: Caller | None
    reason: str = ""
    rule: int = 0  # which rule decided, from 1; 0: none


def judge(rules: tuple[IdentityRule, ...], claims: Mapping[str, Any]) -> Verdict:
    """Find the first rule that these claims meet."""
    reasons: list[str] = []
    for number, rule in enumerate(rules, 1):
        unmet = misses(rule, claims)
        if unmet:
            reasons.append(f"rule {number}: {unmet}")
            continue
        try:
            return Verdict(caller=caller_by(rule, claims), rule=number)
        except InvalidInput as error:
            return Verdict(caller=None, reason=f"rule {number} is met, but {error.details}", rule=number)
    return Verdict(caller=None, reason="; ".join(reasons) or "there is no rule")


def misses(rule: IdentityRule, claims: Mapping[str, Any]) -> str:
    """Return what of a rule these claims do not meet, in words. Empty: they meet it."""
    if claims.get("iss") != rule.issuer:
        return "it is for another issuer"
    if not set(rule.audiences).intersection(texts_of(claims.get("aud"))):
        return f"the audience is not {' or '.join(rule.audiences)}"
    for claim, patterns in rule.match:
        values = texts_of(claim_at(claims, claim))
        if not values:
            return f"the token has no claim {claim}"
        if not any(fits(pattern, value) for pattern in patterns for value in values):
            return f"{claim} is {values[0][:80]!a}, not {' or '.join(patterns)}"
    return ""


def caller_by(rule: IdentityRule, claims: Mapping[str, Any]) -> Caller:
    """The caller that a rule makes of claims that meet it. Raises InvalidInput if its templates cannot be filled."""
    name = _filled(rule.principal, claims, _in_principal)
    principal = _checked("principal", lambda: check_principal(name))
    role = _filled(rule.role, claims)
    if role not in ROLES:
        raise InvalidInput(f"role becomes {role[:80]!a}, and is one of {', '.join(ROLES)}")
    namespace = None
    if rule.namespace:
        named = _filled(rule.namespace, claims)
        namespace = _checked("namespace", lambda: check_namespace(named))
    limits = NO_LIMITS
    if rule.limits:
        limits = Limits(**{name: _number(name, _filled(text, claims)) for name, text in rule.limits})
    return Caller(principal=principal, role=role, namespace=namespace, badges=(f"user:{principal}",), limits=limits)


def claim_at(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by the way to it: `kubernetes.io/serviceaccount/name`. None: there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("/"):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def texts_of(value: Any) -> list[str]:
    """A claim's value as text: of a list, each entry. An object has none, nor has what is too long to compare."""
    if isinstance(value, list):
        return [text for each in value if not isinstance(each, list) for text in texts_of(each)]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, int):
        return [str(value)] if abs(value) < 10**18 else []
    return [value] if isinstance(value, str) and 0 < len(value) <= IDENTITY_VALUE_CHARS_MAX else []


def fits(pattern: str, value: str) -> bool:
    """Compare a text with a pattern. It takes time by the product of their lengths, whatever they are."""
    if _ANY_PART not in pattern:
        return pattern == value
    parts = parts_of(pattern)
    places = _after_stars(parts, {0})
    for character in value:
        reached: set[int] = set()
        for place in places:
            if place == len(parts):
                continue
            part = parts[place]
            if _takes(part, character):
                reached.add(place)
            elif part == character and part != _ANY_PART:
                reached.add(place + 1)
        places = _after_stars(parts, reached)
        if not places:
            return False
    return len(parts) in places


def parts_of(pattern: str) -> list[str]:
    """The single characters of a pattern, and its stars."""
    found: list[str] = []
    for character in pattern:
        if character == _ANY_PART and found and found[-1] in (_ANY_PART, _ANY):
            found[-1] = _ANY
        else:
            found.append(character)
    return found


def _after_stars(parts: list[str], places: set[int]) -> set[int]:
    """The places, and those behind a star, which may stand for nothing."""
    found = set(places)
    for place in places:
        while place < len(parts) and parts[place] in (_ANY_PART, _ANY):
            place += 1
            found.add(place)
    return found


# Templates.


def names_in(template: str) -> list[str]:
    """The claims that a template names. Raises InvalidInput if it is none."""
    return [text for text, is_name in _pieces(template) if is_name]


def check_rule(rule: IdentityRule) -> None:
    """Raise InvalidInput for a rule whose templates no claims can fill."""
    check_principal(_template_with(rule.principal, "x"))
    if not names_in(rule.role) and rule.role not in ROLES:
        raise InvalidInput(f"role is one of {', '.join(ROLES)}")
    if rule.namespace:
        check_namespace(_template_with(rule.namespace, "x"))
    for name, text in rule.limits:
        _number(name, _template_with(text, "1"))


def _template_with(template: str, value: str) -> str:
    """A template with the same value for each claim."""
    return "".join([value if is_name else text for text, is_name in _pieces(template)])


def _pieces(template: str) -> list[tuple[str, bool]]:
    """The literal parts of a template and the names in it, in order."""
    found: list[tuple[str, bool]] = []
    rest = template
    while rest:
        literal, brace, rest = rest.partition("{")
        if literal:
            found.append((literal, False))
        if not brace:
            break
        name, end, rest = rest.partition("}")
        if not end or not name or "{" in name:
            raise InvalidInput(f"{template[:80]!a} is no template: write a claim as in ci-{{repository}}")
        found.append((name, True))
    if any("}" in text for text, is_name in found if not is_name):
        raise InvalidInput(f"{template[:80]!a} is no template: write a claim as in ci-{{repository}}")
    return found


def _filled(template: str, claims: Mapping[str, Any], written: Callable[[str, str], str] | None = None) -> str:
    found = ""
    for text, is_name in _pieces(template):
        if not is_name:
            found += text
            continue
        value = claim_at(claims, text)
        values = [] if isinstance(value, list) else texts_of(value)
        if not values:
            raise InvalidInput(f"the token has no claim {text} that is one text")
        found += values[0] if written is None else written(text, values[0])
    return found


def _in_principal(claim: str, value: str) -> str:
    taken = "".join(_IN_A_PRINCIPAL.values())
    if any(character in taken for character in value):
        raise InvalidInput(f"{claim} has one of {' '.join(taken)}, which stand for / and : in a name")
    for character, sign in _IN_A_PRINCIPAL.items():
        value = value.replace(character, sign)
    return value


def _checked(what: str, check: Callable[[], str]) -> str:
    try:
        return check()
    except InvalidInput as error:
        raise InvalidInput(f"its {what} cannot be used: {error.details.rstrip('.')}") from None


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= PRINCIPAL_LIMIT_MAX):
        raise InvalidInput(f"limits.{name} becomes {text[:80]!a}, and is a whole number")
    return int(text)


# What an operator should look at twice. A rule is tried with claims as a stranger has them, or a run of code that
# nobody has looked at. Each claim has patterns: mallory may have any name that begins so.

_Claims = dict[str, tuple[str, ...]]
_ID = ("6660666",)
_STRANGER_GITHUB: _Claims = {
    "repository": ("mallory*/*",),
    "repository_owner": ("mallory*",),
    "repository_id": _ID,
    "repository_owner_id": _ID,
    "enterprise": ("mallory*",),
    "enterprise_id": _ID,
    "sub": ("repo:mallory*/**",),
}
_STRANGER_GITLAB: _Claims = {
    "project_path": ("mallory*/**",),
    "project_id": _ID,
    "namespace_path": ("mallory*", "mallory*/**"),
    "namespace_id": _ID,
    "sub": ("project_path:mallory*/**",),
}
_STRANGER_POD: _Claims = {
    "kubernetes.io/namespace": ("mallory*",),
    "sub": ("system:serviceaccount:mallory*:*",),
}
_STRANGER: _Claims = {"sub": ("mallory*", "mallory*/**")}
_PULL_REQUEST: _Claims = {
    "ref": ("refs/pull/*/merge",),
    "event_name": ("pull_request",),
    "ref_protected": ("false",),
    "environment": ("mallory*",),
    "workflow_ref": ("**@refs/pull/*/merge",),
    "job_workflow_ref": ("**@refs/pull/*/merge",),
    "sub": ("repo:**:pull_request", "repo:**:environment:mallory*"),
}
_BRANCH_GITLAB: _Claims = {
    "ref": ("mallory*",),
    "ref_path": ("refs/heads/mallory*",),
    "ref_protected": ("false",),
    "environment": ("mallory*",),
    "environment_protected": ("false",),
    "sub": ("project_path:**:ref_type:branch:ref:mallory*",),
}
_GITHUB, _GITHUB_OWN, _GITLAB = "token.actions.githubusercontent.com", "/_services/token", "gitlab"


def warnings_about(rules: tuple[IdentityRule, ...]) -> list[tuple[int, str]]:
    """Everything that should be looked at twice, with the number of the rule, from 1."""
    found = []
    for number, rule in enumerate(rules, 1):
        found += [(number, text) for text in warnings_of(rule)]
        for before, other in enumerate(rules[: number - 1], 1):
            if other.issuer != rule.issuer and _share_names(rule, other):
                found.append((number, f"it can make the name that rule {before} makes for another issuer: {_APART}"))
    return found


_APART = "begin the principals with different words"


def _share_names(rule: IdentityRule, other: IdentityRule) -> bool:
    """Tell whether templates can become one principal. Two rules that name the same one in full mean it."""
    if not names_in(rule.principal) and not names_in(other.principal):
        return False
    return all(
        overlap(_template_with(one, _ANY), _template_with(two, _ANY))
        for one, two in ((rule.principal, other.principal), (rule.namespace or "{any}", other.namespace or "{any}"))
    )


def warnings_of(rule: IdentityRule) -> list[str]:
    """Say in words what a stranger or a pull request could get by this rule."""
    found = []
    matched = dict(rule.match)
    is_github, is_gitlab = _GITHUB in rule.issuer or rule.issuer.endswith(_GITHUB_OWN), _GITLAB in rule.issuer
    is_forge, is_cluster = is_github or is_gitlab, "kubernetes" in " ".join((rule.issuer, *matched))
    whose, who = _STRANGER, "a stranger"
    if is_forge:
        whose, who = _STRANGER_GITHUB if is_github else _STRANGER_GITLAB, "a stranger's repository"
    elif is_cluster:
        whose, who = _STRANGER_POD, "a pod of another namespace"
    named = [claim for claim in matched if claim in whose]
    is_public = is_cluster or rule.issuer.endswith(_GITHUB) or "//gitlab.com" in rule.issuer
    if not matched:
        found.append("every token of this issuer for this audience meets it: add what must match")
    elif not named and is_public:
        found.append(f"{who} meets it: match {next(iter(whose))}")
    elif named and _is_met(matched, whose):
        pattern = next(each for each in matched[named[0]] if _is_met({named[0]: (each,)}, whose))
        found.append(f"{who} meets it: {named[0]} = {pattern!a} takes every name")
    else:
        longer = [
            (claim, pattern) for claim in named for pattern in matched[claim] if _is_open(pattern, is_forge=is_forge)
        ]
        found += [f"{claim} = {each!a} takes longer names too, such as {_longer(each)!a}" for claim, each in longer]
    if is_github and named and _is_met(matched, _PULL_REQUEST):
        found.append("a pull request, and every branch, of the repository meets it: match ref or environment")
    if is_gitlab and named and _is_met(matched, _BRANCH_GITLAB):
        found.append("every branch of the project meets it, also unprotected ones: match ref_protected or environment")
    patterns = [pattern for each in matched.values() for pattern in each]
    if rule.role in (ADMIN, OPERATOR) and any(_ANY_PART in pattern for pattern in patterns):
        found.append(f"it makes an {rule.role} of whatever a pattern with * takes: name it in full")
    if names_in(rule.role):
        found.append("a claim says the role, so whoever can set that claim can be an admin: name the role")
    pieces = _pieces(rule.principal)
    if pieces and pieces[0][1]:
        found.append("the principal begins with a claim, so it can be the name of a token: put a word before it")
    if sum(is_name for _, is_name in pieces) > 1:
        found.append("the principal has several claims: two different pairs of values can be one name")
    return list(dict.fromkeys(found))


def _is_met(matched: _Claims, claims: _Claims) -> bool:
    """Tell whether somebody with these claims, and any others, can meet a rule."""
    return all(
        any(overlap(pattern, each) for pattern in patterns for each in claims[claim])
        for claim, patterns in matched.items()
        if claim in claims
    )


def overlap(pattern: str, other: str) -> bool:
    """Tell whether some text fits both patterns."""
    ones, others = parts_of(pattern), parts_of(other)
    seen: set[tuple[int, int]] = set()
    places = [(0, 0)]
    while places:
        place = places.pop()
        if place in seen:
            continue
        seen.add(place)
        one = ones[place[0]] if place[0] < len(ones) else ""
        two = others[place[1]] if place[1] < len(others) else ""
        if not one and not two:
            return True
        # Either goes on alone if it is a star, which may stand for nothing, or if the star of the other takes it.
        if one and (one in (_ANY, _ANY_PART) or _takes(two, one)):
            places.append((place[0] + 1, place[1]))
        if two and (two in (_ANY, _ANY_PART) or _takes(one, two)):
            places.append((place[0], place[1] + 1))
        if one and one == two:
            places.append((place[0] + 1, place[1] + 1))
    return False


def _takes(star: str, character: str) -> bool:
    return star == _ANY or (star == _ANY_PART and character not in _SEPARATORS)


def _is_open(pattern: str, *, is_forge: bool) -> bool:
    """Tell whether a star follows a letter or digit, `acme*` takes acme-evil; or, in the name of an owner, any other
    sign: `acme-*/app`."""
    before, star, _ = pattern.partition(_ANY_PART)
    is_owner = is_forge and "/" not in before and not before.endswith(":")
    return bool(star and before) and (before[-1].isalnum() or is_owner)


def _longer(pattern: str) -> str:
    return pattern.replace(_ANY, _ANY_PART).replace(_ANY_PART, "-mallory")


# The audit: the history says which signed identity a principal was.


class NoteIdentity(PlainCommand):
    """A signed token was accepted. Written once for a token, not with each request."""

    principal: str
    ns: str
    issuer: str
    subject: str


class IdentityNoted(Outcome):
    pass


def note_identity(draft: Draft, command: NoteIdentity) -> IdentityNoted:
    draft.emit(
        events.IDENTITY_ACCEPTED, command.ns, principal=command.principal, by=command.issuer, reason=command.subject
    )
    return IdentityNoted(now_ms=draft.now_ms)


RULES: dict[type[Any], Callable[[Draft, Any], IdentityNoted]] = {NoteIdentity: note_identity}
