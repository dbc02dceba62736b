"""identity check, identity list: what the rules for signed tokens are, and what they make of a token."""

from __future__ import annotations

from typing import Any

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput, MissingExtra
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import Argument, Command, Option
from dibs.core.limits import IDENTITY_TOKEN_BYTES_MAX
from dibs.core.service.signed_identity import judge, warnings_about
from dibs.oidc.rules_file import IdentityRules, read_rules
from dibs.wire.codes import NO
from dibs.wire.credentials import whoami_document
from dibs.wire.parts import timestamp

_UNCHECKED = "the signature was not checked"


def check(call: Call) -> Answer:
    found = read_rules(call.values["file"])
    warned = [{"rule": number, "warning": text} for number, text in warnings_about(found.rules)]
    document: Document = {"rules": len(found.rules), "warnings": warned}
    lines = [f"{plain(found.path)}: {len(found.rules)} rule{'s' if len(found.rules) > 1 else ''}, which can be used."]
    lines += [call.paint.wait(f"Rule {each['rule']}: {plain(each['warning'])}.") for each in warned]
    if call.values.get("token") is None:
        return yes(document, "\n".join(lines))
    said = _judged(found, _token(call), is_offline=bool(call.values.get("offline")))
    document |= said
    if said["accepted"]:
        who = said["caller"]
        limits = "" if who["namespace"] is None else f", namespace {plain(who['namespace'])}"
        lines.append(f"Rule {said['rule']} lets it in as {plain(who['principal'])} ({plain(who['role'])}{limits}).")
        lines += [f"It is valid until {said['expires_at']}; {said['signature']}."]
        return yes(document, "\n".join(lines), quiet=plain(who["principal"]))
    text = f"It is refused: {plain(said['reason'])}."
    return no(NO, document, "\n".join([*lines, text]), code="authentication_failed", message=text)


def _token(call: Call) -> bytes:
    named = call.values["token"]
    text = call.read_input("--token -", IDENTITY_TOKEN_BYTES_MAX) if named == "-" else _content(named)
    return text.strip().encode("utf-8", "replace")


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(IDENTITY_TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"The token file {path} cannot be read: {error.strerror}.") from None


def _judged(found: IdentityRules, token: bytes, *, is_offline: bool) -> Document:
    """Judge a token by the rules, in the order in which a server looks."""
    try:
        from dibs.oidc import tokens
        from dibs.oidc.issuers import ALGORITHMS, Issuer, KeysUnavailable
    except ImportError as error:
        raise MissingExtra(f"`dibs identity check` needs {error.name}. Run: pip install 'dibs-lease[oidc]'") from None
    refused: dict[str, Any] = {"accepted": False, "rule": 0}
    try:
        header, claims = tokens.opened(token)
        source = next((each for each in found.sources if each.issuer == claims.get("iss")), None)
        if source is None:
            return {**refused, "reason": f"no rule is for its issuer, {str(claims.get('iss'))[:200]!a}"}
        if header.get("alg") not in ALGORITHMS or "crit" in header:
            return {**refused, "reason": f"its algorithm is not one of {', '.join(ALGORITHMS)}"}
        ends_ms = tokens.check_times(claims, wall_ms())
        signature = _UNCHECKED
        if not is_offline:
            issuer = Issuer(source)
            issuer.end(issuer.fetch())
            key = issuer.key(header.get("kid"), header["alg"])
            if key is None:
                return {**refused, "reason": "its issuer has no such key"}
            tokens.check_signature(token, key)
            signature = "its signature is right"
    except tokens.TokenRefused as refusal:
        return {**refused, "reason": refusal.details}
    except KeysUnavailable as error:
        return {**refused, "reason": f"{error}. With --offline the signature is not checked"}
    finding = judge(found.rules, claims)
    if finding.caller is None:
        return {**refused, "rule": finding.rule, "reason": finding.reason}
    return {
        "accepted": True,
        "rule": finding.rule,
        "caller": whoami_document(finding.caller, None),
        "expires_at": timestamp(ends_ms),
        "signature": signature,
    }


def list_(call: Call) -> Answer:
    rules = call.body("rights", "", {"limit": 1}).get("identity", [])
    lines = [line for number, rule in enumerate(rules, 1) for line in _rule_lines(number, rule)]
    text = "\n".join(lines) if rules else "This server has no rules for signed tokens. dibs serve --identity FILE has."
    return yes({"identity": rules}, text)


def _rule_lines(number: int, rule: Document) -> list[str]:
    becomes = f"{plain(rule['principal'])} ({plain(rule['role'])}"
    becomes += f", namespace {plain(rule['namespace'])})" if rule["namespace"] else ")"
    lines = [f"{number}. {plain(rule['issuer'])}, audience {plain(' or '.join(rule['audience']))}: {becomes}"]
    return lines + [f"   {plain(claim)} = {plain(' or '.join(patterns))}" for claim, patterns in rule["match"].items()]


COMMANDS = {
    "identity check": Command(
        check,
        Argument("FILE", "the rules, as for dibs serve --identity", completes="file"),
        Option("--token PATH", "a file with a signed token, or - to read it from standard input", completes="file"),
        Option("--offline", "do not ask the issuer for its keys: the signature is not checked"),
        summary="check the rules for signed tokens, and what they make of one",
        about=(
            "Reads the rules as a server does, and warns of those that a stranger's repository or a pull request "
            "would meet. With a token it says which rule lets it in, as whom, or why none does. No server is needed."
        ),
        examples=(
            ("dibs identity check identity.toml", "before a server uses them"),
            ("dibs identity check identity.toml --token - < token", "as whom this token comes in"),
        ),
        exits=(
            (0, "the rules can be used, and the token is let in"),
            (NO, "the token is refused"),
            (64, "the rules cannot be used"),
        ),
    ),
    "identity list": Command(
        list_,
        summary="show the rules for signed tokens of a server",
        about="The rules that a server was started with, for admins of all namespaces.",
        examples=(("dibs identity list", "which machines come in without a token of dibs"),),
        exits=((0, "listed, perhaps none"), (77, "over HTTP only: your token is not an admin's")),
    ),
}
