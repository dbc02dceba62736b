"""A field of a claim, or of the lease that it gets, is everywhere where people look for it, or a reason says why not.

Who adds one is told by name where it is missing: `dibs run`, `hold`, MCP, history, `list --wide`, the SDK's `Claim`.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.agents.mcp import tool_fields
from dibs.agents.mcp.tools import TOOLS
from dibs.cli.commands import hold
from dibs.cli.framework.registry import load
from dibs.cli.text import listing
from dibs.wire.answer_fields import ANSWERS
from dibs.wire.request_fields import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterable

# What the surfaces call a field.
SURFACE = {"mode": "shared", "session_id": "session", "fencing_token": "token"}
SESSION = "the command opens a session of its own, which proves the claim and repeats it"
HTTP = "for clients of HTTP that have no other way to say it"
OF_AN_AGENT = "an agent would have to decide it without knowing the others; an operator's flags and pools do"


def plain(names: Iterable[str]) -> set[str]:
    return {SURFACE.get(name, name.removesuffix("_seconds")) for name in names}


def flags_of(command: str) -> set[str]:
    return {option.key for option in load(command).options}


def arguments_of_mcp() -> set[str]:
    [tool] = [tool for tool in TOOLS if tool.name == "claim_job"]
    return plain(each.name for each in tool.takes)


class Read(dict[str, Any]):
    """A document that knows which of its fields were read."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


def shown_in_a_list() -> set[str]:
    """The fields of a job that `dibs list --wide` reads."""
    times = {"remaining_ms": 1_000, "held_ms": 1_000, "silent_ms": 0, "since": "2026-11-15T02:16:05.123Z"}
    lock = Read(status="held", name="gpu", owner="ann", slots=2, holders=[], holder_count=1, **times)
    listing.cells_of(lock, 0)
    return lock.read


# The fields of a request to claim: what each way to claim takes.
ASKED = {
    "dibs claim": flags_of("claim"),
    "dibs run": flags_of("run"),
    "dibs hold": flags_of("hold"),
    "claim_job of MCP": arguments_of_mcp(),
    "client.claim of Python": set(inspect.signature(dibs.Client.claim).parameters),
}
NOT_ASKED = {
    "dibs claim": {
        "acl": "dibs has no command for lists of who may claim; PUT /locks/{name}/acl",
        "ephemeral": HTTP,
        "lease_id": "a lease id proves what one has: `heartbeat`, `release`",
        "ttl_ms": HTTP,
    },
    "dibs run": dict.fromkeys(("request_key", "session", "ticket", "lease_id", "ephemeral"), SESSION)
    | {"acl": "as with `dibs claim`", "ttl_ms": HTTP},
    "dibs hold": dict.fromkeys(("request_key", "session", "ticket", "lease_id", "ephemeral"), SESSION)
    | {"acl": "as with `dibs claim`", "ttl_ms": HTTP},
    "claim_job of MCP": dict.fromkeys(
        ("acl", "lock_delay", "max_attempts", "max_hold", "replaces", "shared", "slots", "units"), OF_AN_AGENT
    )
    | {"ephemeral": SESSION, "session": SESSION, "ticket": SESSION, "lease_id": SESSION, "ttl_ms": HTTP},
    "client.claim of Python": {
        "acl": "as with `dibs claim`",
        "ephemeral": "`client.session()` claims what ends with it",
        "session": "`client.session()`",
        "lease_id": "the block has it",
        "request_key": "the block makes and repeats it",
        "ticket": "the block keeps its place",
        "ttl_ms": "`ttl` takes fractions of seconds",
    },
}

# The fields of a lease: where it is shown.
GOT = {
    "Lease of Python": {each.name for each in fields(dibs.Lease)},
    "Claim of Python": {name for name in dir(dibs.Claim) if not name.startswith("_")},
    "dibs hold --json": {"name", "fencing_token", *hold._GRANTED},
    "claim_job of MCP": {each.name for each in tool_fields.CLAIM_ANSWER},
    "dibs history": set(ANSWERS["event"]),
    "dibs list --wide": shown_in_a_list(),
}
ONCE = "it is about the reply to the claim, not about the lease"
NO_LIST = "the job says it: `dibs owner`"
NOW = "it is a time from now, or until when: what is shown says it in its own form"
OF_THE_REPLY = dict.fromkeys(("status", "held_before", "skipped", "leases", "renew_after_ms"), ONCE)
NOT_GOT = {
    "Lease of Python": {**OF_THE_REPLY},
    "Claim of Python": {
        **OF_THE_REPLY,
        "metadata": "the block gave it",
        **dict.fromkeys(("expires_at", "remaining_ms"), "`remaining()`"),
        "ends_in_ms": "`ends_at`",
    },
    "dibs hold --json": {
        **OF_THE_REPLY,
        "lease_id": "hold is the one who proves it",
        "metadata": "its own flag",
        **dict.fromkeys(("expires_at", "remaining_ms"), "it is renewed"),
        "ends_in_ms": "`ends_at`",
    },
    "claim_job of MCP": {
        **OF_THE_REPLY,
        "name": "called job",
        "metadata": "the agent gave it",
        "slot_numbers": "it claims one unit",
        **dict.fromkeys(("expires_at", "remaining_ms"), "`expires_in_seconds`"),
        **dict.fromkeys(("ends_at", "ends_in_ms"), "`expires_in_seconds` is never beyond it"),
    },
    "dibs history": {
        **OF_THE_REPLY,
        "lease_id": "a secret",
        "previous": "the event before",
        **dict.fromkeys(("expires_at", "remaining_ms", "ends_at", "ends_in_ms"), NOW),
    },
    "dibs list --wide": {
        **OF_THE_REPLY,
        "lease_id": "a secret",
        "expires_at": NOW,
        **dict.fromkeys(("previous", "ends_at", "slot", "slot_numbers"), NO_LIST),
    },
}


@pytest.mark.parametrize("place", ASKED)
def test_every_field_of_a_claim_can_be_given_or_a_reason_says_why_not(place: str) -> None:
    missing = plain(REQUESTS["acquire"]) - ASKED[place] - {*NOT_ASKED[place]}
    assert not missing, f"{place} does not take {sorted(missing)}: add it, or say in NOT_ASKED why not"
    assert not NOT_ASKED[place].keys() & ASKED[place], "it takes them by now"


@pytest.mark.parametrize("place", GOT)
def test_every_field_of_a_lease_is_shown_or_a_reason_says_why_not(place: str) -> None:
    missing = {*ANSWERS["acquired"]} - GOT[place] - {*NOT_GOT[place]}
    assert not missing, f"{place} does not show {sorted(missing)}: add it, or say in NOT_GOT why not"
    assert not NOT_GOT[place].keys() & GOT[place] - {*OF_THE_REPLY}, "it shows them by now"
