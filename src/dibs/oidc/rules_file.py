"""The operator's rules, as a TOML file. Every error is InvalidInput and says where it is.

    [[identity]]
    issuer = "https://token.actions.githubusercontent.com"
    audience = "dibs"
    match = { repository = "acme/*", ref = ["refs/heads/main", "refs/tags/v*"] }
    principal = "ci-{repository}"
    role = "agent"

`keys` is where the issuer's keys are, if its own address does not say: an https:// URL, or a file with a JWKS.
`ca_file` has the authorities of an issuer with a certificate of its own, `token_file` the token that it wants to be
asked with.
"""

from __future__ import annotations

import os
import tomllib
from typing import Any
from urllib.parse import urlsplit

from dibs.base.errors import InvalidInput
from dibs.base.files import read_ordinary
from dibs.base.record import Record
from dibs.core.caller_rights import AGENT
from dibs.core.limits import IDENTITY_FILE_BYTES_MAX, IDENTITY_RULES_MAX
from dibs.core.service.signed_identity import IdentityRule, check_rule, names_in
from dibs.wire.credentials import LIMIT_FIELDS

_FIELDS = {
    "issuer",
    "audience",
    "match",
    "principal",
    "role",
    "namespace",
    "limits",
    "keys",
    "ca_file",
    "token_file",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class IssuerSource(Record):
    """The source of an issuer's keys. `keys` empty: as its own address says."""

    issuer: str
    keys: str = ""
    ca_file: str = ""
    token_file: str = ""


class IdentityRules(Record):
    path: str
    rules: tuple[IdentityRule, ...]
    sources: tuple[IssuerSource, ...]  # one for each issuer


def read_rules(path: str) -> IdentityRules:
    try:
        content = read_ordinary(path, IDENTITY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"The identity file {path} cannot be read: {error.strerror}.") from None
    if len(content) > IDENTITY_FILE_BYTES_MAX:
        raise InvalidInput(f"The identity file {path} is larger than {IDENTITY_FILE_BYTES_MAX} bytes.")
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"The identity file {path} is not TOML: {error}.") from None
    blocks = document.pop("identity", None)
    if document:
        raise InvalidInput(f"{path}: there is no setting {next(iter(document))!a}. Rules are blocks [[identity]].")
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise InvalidInput(f"{path} has no rule. Write a block [[identity]] for each.")
    if len(blocks) > IDENTITY_RULES_MAX:
        raise InvalidInput(f"{path} has {len(blocks)} rules, and may have {IDENTITY_RULES_MAX}.")
    rules: list[IdentityRule] = []
    sources: dict[str, IssuerSource] = {}
    for number, block in enumerate(blocks, 1):
        try:
            rule, source = _rule(block, os.path.dirname(os.path.abspath(path)))
            plain = IssuerSource(issuer=rule.issuer)  # of a rule that leaves it to another
            known = sources.get(rule.issuer, plain)
            if plain not in (known, source) and known != source:
                raise InvalidInput("an earlier rule says otherwise where this issuer's keys are")
            sources[rule.issuer] = source if known == plain else known
        except InvalidInput as error:
            raise InvalidInput(f"{path}, rule {number}: {error.details.rstrip('.')}.") from None
        rules.append(rule)
    return IdentityRules(path=path, rules=tuple(rules), sources=tuple(sources.values()))


def _rule(block: dict[str, Any], folder: str) -> tuple[IdentityRule, IssuerSource]:
    unknown = sorted(set(block) - _FIELDS)
    if unknown:
        raise InvalidInput(f"there is no field {unknown[0]!a}. Fields are {', '.join(sorted(_FIELDS))}")
    issuer = _text(block, "issuer")
    check_url(issuer, "issuer")
    audiences = _texts(block.get("audience"), "audience")
    principal = _text(block, "principal")
    role, namespace = _text(block, "role", AGENT), _text(block, "namespace", "")
    rule = IdentityRule(
        issuer=issuer,
        audiences=audiences,
        principal=principal,
        match=_match(block.get("match", {})),
        role=role,
        namespace=namespace,
        limits=_limits(block.get("limits", {})),
    )
    check_rule(rule)
    source = IssuerSource(
        issuer=issuer,
        keys=_keys(_text(block, "keys", ""), folder),
        ca_file=_file(_text(block, "ca_file", ""), folder),
        token_file=_file(_text(block, "token_file", ""), folder),
    )
    return rule, source


def check_url(url: str, what: str) -> None:
    """Refuse what keys may not be read from: whoever is on the way of plain HTTP could name keys of their own."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidInput(f"{what} is an https:// address") from None
    if not host or not url.isascii() or not url.isprintable() or " " in url or parts.username is not None:
        raise InvalidInput(f"{what} is an https:// address")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise InvalidInput(f"{what} is an https:// address; http:// is for this machine alone")
    if parts.query or parts.fragment:
        raise InvalidInput(f"{what} may have neither query nor fragment")


def _match(given: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(given, dict):
        raise InvalidInput('match is a table of claims, such as { repository = "acme/*" }')
    return tuple([(claim, _texts(patterns, f"match.{claim}")) for claim, patterns in given.items()])


def _limits(given: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, dict):
        raise InvalidInput("limits is a table, such as { max_held = 5 }")
    found = []
    for name, value in given.items():
        if name not in LIMIT_FIELDS:
            raise InvalidInput(f"there is no limit {name!a}. Limits are {', '.join(LIMIT_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 0):
            raise InvalidInput(f"limits.{name} is a whole number, or a template that becomes one")
        if isinstance(value, str) and not names_in(value):
            raise InvalidInput(f"limits.{name} is a whole number, or a template that becomes one")
        found.append((LIMIT_FIELDS[name], str(value)))
    return tuple(found)


def _keys(text: str, folder: str) -> str:
    if "://" in text:
        check_url(text, "keys")
        return text
    return _file(text, folder)


def _file(text: str, folder: str) -> str:
    return os.path.join(folder, os.path.expanduser(text)) if text else ""


def _text(block: dict[str, Any], field: str, default: str | None = None) -> str:
    value = block.get(field, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise InvalidInput(f"{field} is a text that is not empty")
    return value


def _texts(value: Any, what: str) -> tuple[str, ...]:
    """One text or several. A number or truth value means its text, as in the token's claim."""
    values = value if isinstance(value, list) else [value]
    found = [str(each).lower() if isinstance(each, bool) else str(each) for each in values if each is not None]
    if not found or not all(isinstance(each, str | int) and str(each) for each in values):
        raise InvalidInput(f"{what} is a text that is not empty, or a list of them")
    return tuple(found)
