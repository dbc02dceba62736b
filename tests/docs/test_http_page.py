"""The page about HTTP and the code agree: routes, request fields, reply fields, error codes, events."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import pytest

from dibs.client.embedded import EmbeddedDoor
from dibs.core import events
from dibs.ids import new_id
from dibs.sdk import answers
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.wire.codes import CODES
from dibs.wire.fields import BYTES, CHARACTERS, NUMBERS, REPLY_KINDS, REQUESTS, TEXT, is_of_kind
from dibs.wire.tickets import ticket_text
from tests.docs.pages import REFERENCE, read, section, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.wire.documents import Reply

PAGE = read(REFERENCE / "http.md")
CLAIMS = ("acquire", "acquire-any", "acquire-all")
TITLES = {
    **{verb: f"POST /locks/{{name}}/{verb}" for verb in REQUESTS},
    "acquire-any": "POST /locks/acquire-any",
    "acquire-all": "POST /locks/acquire-all",
    "acl": "PUT /locks/{name}/acl",
    "inspect": "GET /locks/{name}",
    "session-open": "POST /sessions",
    "session-keep": "POST /sessions/{id}/keepalive",
    "session-end": "DELETE /sessions/{id}",
    "session-show": "GET /sessions/{id}",
}
KINDS = {
    "whole": "whole number",
    "seconds": "number",
    "text": "text",
    "flag": "true or false",
    "object": "object",
    "list": "list",
    "id": "UUID",
}
# What only a server says.
SERVER_ONLY = set(
    "storage db_size_bytes uptime_seconds active_locks version total_acquires total_releases total_failures".split()
)
SERVER_ONLY |= {"dibs", "request_id", "proof"}


def words(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+)`", cell)


def requests_in(text: str) -> dict[str, str]:
    found = [table for table in tables(text) if table.header[:2] == ["field", "type"]]
    return {words(row[0])[0]: row[1] for table in found for row in table.rows}


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_verb_has_the_fields_that_its_section_lists(verb: str) -> None:
    listed = requests_in(section(PAGE, TITLES[verb]))
    if verb in CLAIMS:
        listed |= requests_in(section(PAGE, "Fields of every claim"))
    wanted = {
        field: KINDS[kind.rstrip("!?")] + {"!": ", required", "?": " or null, required"}.get(kind[-1], "")
        for field, kind in REQUESTS[verb].items()
    }
    assert listed == wanted


def bounds_in(text: str) -> Iterator[tuple[str, str]]:
    for table in tables(text):
        if table.header[:3] == ["field", "type", "limits and default"]:
            yield from ((words(row[0])[0], row[2].replace(",", "")) for row in table.rows)


def test_the_bounds_of_a_field_are_on_the_page_as_they_are_judged() -> None:
    listed = set(bounds_in(PAGE))
    for field, (least, most) in NUMBERS.items():
        assert any(cell.startswith(f"{least} to {most}") for name, cell in listed if name == field), field
    for sizes, unit in ((CHARACTERS, "characters"), (BYTES, "bytes")):
        for field, most in sizes.items():
            cells = [cell for name, cell in listed if name == field]
            assert cells, field
            assert all(f"{most} {unit}" in cell for cell in cells), (field, cells)


def test_every_bound_is_of_a_field_that_requests_have() -> None:
    known = {field for fields in REQUESTS.values() for field in fields}
    assert (NUMBERS.keys() | CHARACTERS.keys() | BYTES.keys()) - known == set()


def test_every_route_is_on_the_page_and_no_other() -> None:
    from dibs.server import app

    routes = app._routes(cast("Any", None))
    served = {(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"}
    names = {(method, path.replace("{name:segment}", "{name}")) for method, path in served}
    listed = {words_of_route(row[0]) for row in tables(section(PAGE, "Routes"))[0].rows}
    assert {(method, path.replace("{id}", "{name}")) for method, path in listed} == names


def words_of_route(cell: str) -> tuple[str, str]:
    method, _, path = cell.strip("`").partition(" ")
    return method, path


def test_every_error_code_is_on_the_page_with_its_status_and_title() -> None:
    listed = [row[:3] for row in tables(section(PAGE, "Codes"))[0].rows]
    assert listed == [[f"`{row.word}`", str(row.http), row.title] for row in CODES.values()]


def test_every_kind_of_event_is_on_the_page() -> None:
    kinds = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
    [listed] = [table for table in tables(PAGE) if table.header[0] == "event"]
    assert {row[0].strip("`") for row in listed.rows} == kinds


def reply_words() -> set[str]:
    """Every field that a table of reply fields names, also in passing."""
    found = [table for table in tables(PAGE) if table.header[0] == "reply field"]
    return {word for table in found for row in table.rows for cell in row for word in words(cell)}


def reply_fields() -> set[str]:
    found = [table for table in tables(PAGE) if table.header[0] == "reply field"]
    return {words(row[0])[0] for table in found for row in table.rows}


def keys_of(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for each in value:
            yield from keys_of(each)


def values_of(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from values_of(inner)


class Played:
    """Every kind of answer, got by asking for it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        store = MemoryStore(self.clock)
        self._door = EmbeddedDoor(lambda: store)
        self.keys: set[str] = set()
        self.values: list[tuple[str, object]] = []

    def ask(self, verb: str, name: str, **document: object) -> dict[str, Any]:
        return self.heard(self._door.call(verb, name, document))

    def heard(self, reply: Reply) -> dict[str, Any]:
        self.keys.update(keys_of(reply.body))
        self.values += values_of(reply.body)
        return reply.body or {}

    def play(self) -> None:
        self.one_job()
        self.several()
        self.sessions()
        self.losses()
        for name in ("a", "s", "poison", "delay"):
            self.heard(self._door.history(name, 100))
            self.ask("inspect", name)
        self.heard(self._door.claimed("", "", 2))
        self.heard(self._door.sessions())

    def one_job(self) -> None:
        lease = self.ask("acquire", "a", metadata="m", acl={"acquire": ["user:local"]})["lease_id"]
        assert self.ask("acquire", "a", owner="other")["status"] == "held"
        self.ask("renew", "a", lease_id=lease, checkpoint="c", metadata="n")
        self.ask("acl", "a", acl={"acquire": ["user:local"]})
        self.ask("inspect", "a")
        lease = self.ask("transfer", "a", lease_id=lease, to_owner="heir")["lease_id"]
        self.ask("release", "a", lease_id=lease, done_seconds=60, result="r")
        assert self.ask("acquire", "a")["status"] == "done"
        self.ask("inspect", "a")

    def several(self) -> None:
        self.ask("acquire-all", "", names=["s", "t"], mode="shared")
        self.ask("acquire", "s", mode="shared", owner="second")
        self.ask("acquire-any", "", names=["s", "t"])
        self.ask("acquire-any", "", names=["s", "free"])
        self.ask("acquire", "path:src")
        self.ask("acquire", "path:src/auth.rs")
        self.ask("inspect", "path:src/auth.rs")
        self.ask("break", "s", reason="why")

    def sessions(self) -> None:
        one = self.ask("session-open", "", owner="one")["session_id"]
        two = self.ask("session-open", "", owner="two")["session_id"]
        self.ask("acquire", "A", session_id=one)
        self.ask("acquire", "B", session_id=two)
        self.ask("acquire", "B", session_id=one)  # a poll that is refused counts as waiting
        assert self.ask("acquire", "A", session_id=two)["code"] == "deadlock"
        # A ticket that lost its place gets a new one, without waiting for anything.
        lost = ticket_text("default", "A", 7, new_id())
        queued = self.ask("acquire", "A", ticket=lost)
        assert queued["status"] == "queued"
        self.ask("leave", "A", ticket=queued["ticket"])
        lost = ticket_text("default", "A", 8, new_id())
        both = self.ask("acquire-all", "", names=["A", "kept"], owner="both", ticket=lost)
        kept = self.ask("acquire", "kept")
        assert (kept["status"], kept["owner"], kept["reserved_for"]["owner"]) == ("held", None, "both")
        assert kept["holder_id"]
        assert kept["expires_at"] > kept["reserved_for"]["since"]
        self.ask("leave", "A", ticket=both["ticket"])
        self.ask("session-show", one)
        self.ask("session-keep", one)
        self.ask("session-end", one)
        assert self.ask("renew", "A", session_id=one)["ended"] == "released"

    def losses(self) -> None:
        self.ask("acquire", "poison", ttl_seconds=1, max_attempts=1)
        self.ask("acquire", "delay", ttl_seconds=1, lock_delay_seconds=60)
        self.clock.advance(1_500)
        assert self.ask("acquire", "delay")["status"] == "delayed"
        assert self.ask("acquire", "poison")["status"] == "parked"
        self.ask("inspect", "delay")
        self.ask("free", "poison")
        self.ask("free", "delay")
        lease = self.ask("acquire", "delay")["lease_id"]
        self.ask("release", "delay", lease_id=lease, failed=True, reason="why", retry_after_seconds=60)


def test_every_field_of_every_answer_is_on_the_page_and_no_other() -> None:
    played = Played()
    played.play()
    assert played.keys - reply_words() == set()
    assert reply_fields() - played.keys - SERVER_ONLY == set()


def test_every_field_of_every_answer_has_the_type_that_is_declared() -> None:
    played = Played()
    played.play()
    unlike = (
        "ended",
        "done",
        "acquire",
    )  # the first two are of another type elsewhere, the last is in an access list
    wrong = {
        (field, str(value))
        for field, value in played.values
        if value is not None and field not in unlike and not is_of_kind(REPLY_KINDS.get(field, TEXT), value)
    }
    assert wrong == set()


@pytest.mark.parametrize("answer", [answers.Previous, answers.Lease, answers.JobEvent, answers.SessionStatus])
def test_the_classes_of_the_sdk_have_the_fields_of_the_answers(answer: Any) -> None:
    kinds = {"int": "number", "str": "text", "bool": "flag", "tuple[str, ...]": "list", "Previous": "object"}
    for field in fields(answer):
        if field.name != "document":  # all that was said
            kind = kinds[str(field.type).removesuffix(" | None")]
            assert REPLY_KINDS.get(field.name, TEXT) == kind, field.name
