"""Shared by the integrations: the settings of a claim, and the claim of the work that runs now."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from string import Formatter
from typing import Any
from urllib.parse import quote

from dibs.base.errors import InvalidInput
from dibs.base.ids import digest
from dibs.core.durations import Duration
from dibs.core.limits import NAME_BYTES_MAX
from dibs.sdk import operations
from dibs.sdk.claim import Claim
from dibs.sdk.claims import TTL_SECONDS
from dibs.sdk.client import Client
from dibs.sdk.default import default_client

Template = str | Callable[..., str]

# Job names that are made from the arguments of a call, so that different arguments give different names.
#
# A template is a format string: `"import {feed}"`. A character of a value that ends a field in the template, and one
# that a job name may not have, is written as in a URL (`%2F`). So no value can look like a value and a separator.


class _ValueFormatter(Formatter):
    def __init__(self, template: str) -> None:
        parts = list(self.parse(template))
        after_fields = [literal for (_, field, *_), (literal, *_) in pairwise(parts) if field is not None]
        if "" in after_fields:
            raise ValueError("two fields stand side by side; put something between them")
        self._quoted = {"%", " ", *(literal[0] for literal in after_fields)}

    def format_field(self, value: Any, format_spec: str) -> str:
        shown = "".join(self._shown(character) for character in format(value, format_spec))
        return shown or "%"  # an empty value is shown, because a name may not begin or end with a blank

    def _shown(self, character: str) -> str:
        if character.isprintable() and character not in self._quoted:
            return character
        as_in_urls = quote(character, safe="", errors="surrogatepass")
        return as_in_urls if as_in_urls != character else f"%{ord(character):02X}"


def filled(template: str, values: Mapping[str, Any], positional: Sequence[Any] = ()) -> str:
    """The name. A name that would be too long keeps its beginning and ends with a digest of the whole."""
    try:
        name = _ValueFormatter(template).vformat(template, positional, values)
    except (LookupError, AttributeError, ValueError) as error:
        known = ", ".join(values) or "none"
        raise InvalidInput(f"The job name {template!r} cannot be filled in: {error}. Arguments: {known}.") from None
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    end = f"…{digest(name)}"
    return name.encode()[: NAME_BYTES_MAX - len(end.encode())].decode(errors="ignore") + end


def name_of_call(
    template: Template, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """The job name for a call of `function`. `template` may be a function of the same arguments."""
    if callable(template):
        return template(*args, **kwargs)
    return filled(template, arguments_of(function, args, kwargs), args)


def arguments_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, with defaults: the same call gives the same values, however it is written."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    found = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found[name] = dict(sorted(found[name].items()))
    return found


_current: ContextVar[Claim] = ContextVar("dibs_claim")


def current_claim() -> Claim:
    """Its `check()` raises LeaseLost when the job is not surely ours any more; `previous` has the last checkpoint."""
    try:
        return _current.get()
    except LookupError:
        raise InvalidInput("No claim is held here. Call it in the thread that runs the work.") from None


@contextmanager
def entered(claim: Claim) -> Iterator[Claim]:
    """Enter the claim's block, and let `current_claim()` find it meanwhile."""
    with claim:
        token = _current.set(claim)
        try:
            yield claim
        finally:
            _current.reset(token)


class OneOwner:
    """Settings as class attributes, for a task or command with one owner."""

    ttl: Duration = TTL_SECONDS
    done: Duration | bool | None = None  # for how long the job counts as done after success; True is a day
    max_attempts: int | None = None  # park the job after this many failures and losses in a row
    client: Client | None = None  # None: the one that the environment names (DIBS_URL, …)

    @property
    def claim(self) -> Claim:
        return current_claim()

    @property
    def previous_checkpoint(self) -> str | None:
        """Return where the previous owner of the job stopped."""
        previous = self.claim.previous
        return None if previous is None else previous.checkpoint

    def _claim_on(self, name: str, *, wait: Duration | None = None, metadata: str | None = None) -> Claim:
        operations.check_done(name, self.done)
        client = self.client or default_client()
        return client.claim(name, ttl=self.ttl, wait=wait, metadata=metadata, max_attempts=self.max_attempts)

    def _succeeded(self, claim: Claim) -> None:
        if self.done is not None:
            claim.done(done=self.done)
