"""The contract by which a server answers in the place of another program, as it does for OctoStore's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dibs.base.reply import Reply
from dibs.core.caller_rights import Caller
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import HttpError
from dibs.wire.operations import Operation

Api = Any  # dibs.server.handlers.Api, which knows the settings, which know this
Operations = list[tuple[Operation, Callable[[HttpRequest], Any]]]  # with their handlers


class Contract(Protocol):
    """Answers in the place of another program. A server of dibs' own has none."""

    @property
    def callers(self) -> Mapping[bytes, Caller]:
        """Callers that it knows besides those with tokens, by the hash of what they send as one."""

    @property
    def says(self) -> str:
        """A line of the greeting: who is let in."""

    @property
    def tries(self) -> str:
        """A command of the greeting, before the address of the list of locks."""

    def served(self, api: Api, table: Operations) -> Operations:
        """The operations of a server, with its answers where it has its own."""

    def refusal(self, error: HttpError) -> Reply:
        """The answer to an address or a method that does not exist."""
