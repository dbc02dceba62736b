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
from dibs.core.commands import PlainCommand
from dibs.core.draft import Draft
from dibs.core.identity import ADMIN, AGENT, NO_LIMITS, OPERATOR, ROLES, Caller, Limits
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
            if part == _ANY or (part == _ANY_PART and character not in _SEPARATORS):
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


# What an operator should look at twice. A rule is tried with claims as a stranger has them.

_WHOSE = ("repository", "repository_owner", "repository_id", "repository_owner_id", "sub", "job_workflow_ref")
_WHOSE_GITLAB = ("project_path", "project_id", "namespace_path", "namespace_id", "sub")
_WHOSE_KUBERNETES = ("sub", "kubernetes.io/namespace", "kubernetes.io/serviceaccount/name")
_SINGLE = ("ref", "environment", "event_name", "ref_protected", "job_workflow_ref", "workflow_ref")
_GITHUB, _GITLAB = "token.actions.githubusercontent.com", "gitlab"


def warnings_of(rule: IdentityRule) -> list[str]:
    """Say in words what a stranger or a pull request could get by this rule."""
    found = []
    matched = dict(rule.match)
    is_github, is_gitlab = _GITHUB in rule.issuer, _GITLAB in rule.issuer
    whose = _WHOSE if is_github else _WHOSE_GITLAB if is_gitlab else _WHOSE_KUBERNETES
    named = [claim for claim in matched if claim in whose]
    is_public = is_github or "//gitlab.com" in rule.issuer
    if not matched:
        found.append("every token of this issuer for this audience meets it: add what must match")
    elif not named and is_public:
        found.append(f"a stranger's repository meets it: match {whose[0]}")
    for claim in named:
        for pattern in matched[claim]:
            if fits(pattern, "mallory/evil") or fits(pattern, "mallory") or fits(pattern, "repo:mallory/evil:ref:x"):
                found.append(f"a stranger's repository meets it: {claim} = {pattern!a} takes every name")
            elif _is_open_ended(pattern):
                found.append(f"{claim} = {pattern!a} takes longer names too, such as {_longer(pattern)!a}")
    if is_github and named and not any(claim in matched for claim in _SINGLE) and _takes_pull_requests(matched):
        found.append("a pull request, and every branch, of the repository meets it: match ref or environment")
    if is_gitlab and named and not any(claim in matched for claim in _SINGLE):
        found.append("every branch of the project meets it, also unprotected ones: match ref_protected or environment")
    patterns = [pattern for each in matched.values() for pattern in each]
    if rule.role in (ADMIN, OPERATOR) and any(_ANY_PART in pattern for pattern in patterns):
        found.append(f"it makes an {rule.role} of whatever a pattern with * takes: name it in full")
    pieces = _pieces(rule.principal)
    if pieces and pieces[0][1]:
        found.append("the principal begins with a claim, so it can be the name of a token: put a word before it")
    if sum(is_name for _, is_name in pieces) > 1:
        found.append("the principal has several claims: two different pairs of values can be one name")
    return list(dict.fromkeys(found))


def _is_open_ended(pattern: str) -> bool:
    """Tell whether a star follows a letter or digit: `acme*` takes acme-evil."""
    before = pattern.partition(_ANY_PART)[0]
    return _ANY_PART in pattern and bool(before) and before[-1].isalnum()


def _longer(pattern: str) -> str:
    return pattern.replace(_ANY, _ANY_PART).replace(_ANY_PART, "-mallory")


def _takes_pull_requests(matched: Mapping[str, tuple[str, ...]]) -> bool:
    """Of a GitHub subject: whether the one of a pull request fits. Without a pattern for it, it does."""
    subjects = matched.get("sub", ())
    return not subjects or any(pattern.endswith(":pull_request") or pattern.endswith(_ANY_PART) for pattern in subjects)


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
