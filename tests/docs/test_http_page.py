"""The page about HTTP and the code agree: routes, request fields, reply fields, error codes, events."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.client.embedded import EmbeddedTransport
from dibs.client.event_reader import asked_events
from dibs.client.exchange import CLAIM_REPLIES, is_of_kind
from dibs.client.transport import Ask
from dibs.compat.octostore import elections
from dibs.core import events
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import Inspect
from dibs.core.outcomes import Status
from dibs.engine.activity import Activity
from dibs.engine.coordinator import Coordinator
from dibs.engine.queries import live_tickets
from dibs.sdk import answers
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.wire.answer_fields import ANSWERS, PARTS
from dibs.wire.codes import CODES
from dibs.wire.lease_documents import activity_document, waiters_document
from dibs.wire.operations import answer_schema, request_field_schema, request_schema
from dibs.wire.request_fields import EVERYBODY, REQUESTS
from dibs.wire.values import ticket_text
from scripts.dev.pages.http import TITLES, with_lists
from tests.docs.pages import REFERENCE, read, section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.wire.documents import Reply

PAGE = read(REFERENCE / "http.md")
# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
# What only a server adds, or a race; or more than a hundred owners.
BY_CHANCE = {"error.request_id", "error.help", "error.retry_after_ms", "queued.conflict", "queued.holders"} | {
    f"whoami.{field}" for field in ANSWERS["whoami"]
}
BY_CHANCE |= {"held.holder_count", "queued.holder_count", "job.overlapping_count"}


def kind_of(answer: str, field: str) -> str:
    return ANSWERS[answer][field].kind.replace("texts", "list").replace("numbers", "list")


def test_the_routes_and_fields_are_those_that_are_declared() -> None:
    page = REFERENCE / "http.md"
    if REWRITE:
        page.write_text(with_lists(PAGE), encoding="utf-8")
    assert read(page) == with_lists(PAGE)


def test_a_heading_that_is_a_route_is_one_that_is_served() -> None:
    shown = re.findall(r"^#+ ((?:GET|POST|PUT|DELETE) /.*)$", PAGE, re.MULTILINE)
    assert set(shown) <= {*TITLES.values()}
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("verb", REQUESTS)
def test_every_field_of_a_request_has_a_meaning_and_a_schema(verb: str) -> None:
    assert all(field.meaning for field in REQUESTS[verb].values())
    schema = request_schema(verb)
    assert schema["properties"].keys() == REQUESTS[verb].keys()
    assert all(each["type"] and each["description"] for each in schema["properties"].values())


@pytest.mark.parametrize(
    ("verb", "field", "said"),
    [
        ("acquire", "ttl_seconds", {"type": ["integer", "null"], "minimum": 1, "maximum": 86_400}),
        ("acquire", "owner", {"type": ["string", "null"], "maxLength": 256}),
        ("acquire", "session_id", {"type": ["string", "null"], "format": "uuid"}),
        ("acquire", "mode", {"enum": ["exclusive", "shared", None], "default": "exclusive"}),
        ("acquire-all", "names", {"minItems": 1, "maxItems": 100, "uniqueItems": True}),
        ("acl", "acl", {"type": ["object", "null"]}),
        ("break", "reason", {"minLength": 1}),
        ("session-open", "ttl_ms", {"minimum": 1_000, "maximum": 86_400_000}),
    ],
)
def test_a_schema_has_the_limits_that_are_judged(verb: str, field: str, said: dict[str, Any]) -> None:
    assert {**request_field_schema(verb, field), **said} == request_field_schema(verb, field)


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_schema_of_an_answer_has_its_fields(answer: str) -> None:
    schema = answer_schema(answer)
    assert schema["properties"].keys() == ANSWERS[answer].keys()
    assert set(schema["required"]) == {name for name, field in ANSWERS[answer].items() if not field.optional}
    parts = [each["$ref"].rsplit("/")[-1] for each in schema["properties"].values() if "$ref" in each]
    assert set(parts) <= ANSWERS.keys()


def test_a_client_insists_on_no_field_that_an_answer_may_leave_out() -> None:
    several = {"acquired": {"name", "fencing_token", "expires_at"}, "held": {"name", "owner", "remaining_ms"}}
    for status, wanted in CLAIM_REPLIES.items():
        always = {name for name, field in ANSWERS[status].items() if not field.optional}
        # Of one job, what a claim on several says otherwise; and null, where nobody is in the way.
        nobody = {"owner", "remaining_ms"} if status == "queued" else set()
        assert set(wanted) - always <= several.get(status, set()) | nobody


def test_every_error_code_is_on_the_page_with_its_status() -> None:
    listed = re.findall(r"^- `(\w+)` \((\d+)\): \S", section(PAGE, "Codes"), re.MULTILINE)
    assert listed == [(row.word, str(row.http)) for row in CODES.values()]


def test_every_kind_of_event_is_on_the_page() -> None:
    kinds = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
    listed = re.findall(r"^- (.*?):(?: |$)", section(PAGE, "Kinds of events"), re.MULTILINE)
    assert sorted(kind for line in listed for kind in re.findall(r"`([a-z-]+)`", line)) == sorted(kinds)


def wrong_in(answer: str, body: dict[str, Any]) -> Iterator[str]:
    """What in a document is not as its answer is declared."""
    declared = ANSWERS[answer]
    for name, each in declared.items():
        if name not in body and not each.optional:
            yield f"{answer} lacks {name}"
    for field, value in body.items():
        if field not in declared:
            yield f"{answer}.{field} is not declared"
        elif value is None:
            yield from () if declared[field].null else (f"{answer}.{field} is null",)
        elif not is_of_kind(kind_of(answer, field), value):
            yield f"{answer}.{field} is {value!r}"
        else:
            for part in value if isinstance(value, list) else [value]:
                if field in PARTS:
                    yield from wrong_in(PARTS[field], part)
                elif field == "refused":
                    yield from wrong_in_entry(part)


def wrong_in_entry(entry: dict[str, Any]) -> Iterator[str]:
    """One of several: an answer as it would be alone, or an error with name and status."""
    if "code" in entry:
        yield from wrong_in("error", {key: entry[key] for key in entry.keys() - {"name", "status"}})
    else:
        yield from wrong_in(entry["status"], entry)


def answer_of(verb: str, body: dict[str, Any]) -> str:
    if "code" in body:
        return "error"
    if verb.startswith("acquire"):
        return "refused" if "refused" in body else str(body["status"])
    named = {"inspect": "job", "release": "failed", "transfer": "transferred", "token-create": "token"}
    return "session" if verb.startswith("session-") else named.get(verb, verb)


class Played:
    """Every kind of answer, got by asking for it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        self.store = store = MemoryStore(self.clock)
        self._transport = EmbeddedTransport(lambda: Coordinator(store))
        self.wrong: list[str] = []
        self.said: dict[str, set[str]] = {}
        self.last: dict[str, Any] = {}

    def ask(self, verb: str, name: str, **document: object) -> dict[str, Any]:
        return self.heard(verb, self._transport.ask(Ask(verb, name, document)))

    def heard(self, verb: str, reply: Reply) -> dict[str, Any]:
        if reply.body:
            answer = answer_of(verb, reply.body)
            self.wrong += wrong_in(answer, reply.body)
            self.note(answer, reply.body)
        return reply.body or {}

    def note(self, answer: str, body: dict[str, Any]) -> None:
        """Which fields of which answer were seen."""
        self.said.setdefault(answer, set()).update(body)
        for field, value in body.items():
            for part in (value if isinstance(value, list) else [value]) if field in PARTS else ():
                self.note(PARTS[field], part)

    def play(self) -> None:
        self.one_job()
        self.several()
        self.sessions()
        self.losses()
        self.groups()
        self.steps()
        self.closed()
        self.pools()
        for name in ("a", "s", "poison", "delay", "gpu"):
            self.heard("history", self._transport.ask(Ask("history", name, {"limit": 100})))
            self.ask("inspect", name)
        self.heard("events", self._transport.ask(asked_events("", None, 0, 10_000)))
        self.heard("list", self._transport.ask(Ask("list", "", {"limit": 2})))
        self.heard("sessions", self._transport.ask(Ask("sessions")))
        self.board()
        self.tokens()
        self.elections()

    def elections(self) -> None:
        """Every answer about an election, from outcomes of the rules."""
        coordinator = Coordinator(MemoryStore(self.clock))
        room, ns, proof = "deploys", "default", {"leader_token": ""}
        self.told("election-room", elections.room_document(room))
        for candidate, answer in (("ann", "election-leader"), ("bob", "election-follower")):
            asked = {"candidate_id": candidate, "metadata": "m"}
            command = elections.election_command(elections.CAMPAIGN, ns, room, asked, LOCAL, public=False)
            self.told(answer, elections.election_document(room, coordinator.one(command)))
            if candidate == "ann":
                proof = {"leader_token": self.last["leader_token"]}
        state = coordinator.one(Inspect(ns=ns, name=elections.job_of(room, public=False)))
        assert isinstance(state, Status)
        self.told("election", elections.state_document(room, state))
        self.told("election-state", elections.WatchedElection(room, state).first)
        renew = elections.election_command(elections.RENEW, ns, room, proof, LOCAL, public=False)
        self.told("election-leader", elections.election_document(room, coordinator.one(renew)))
        resign = elections.election_command(elections.RESIGN, ns, room, proof, LOCAL, public=False)
        self.told("election-resigned", elections.election_document(room, coordinator.one(resign)))

    def board(self) -> None:
        lost = ticket_text("default", "long", 1, new_id())
        self.ask("acquire", "long", owner="one")
        self.ask("acquire-all", "", names=["long", "short"], ticket=lost)
        page = live_tickets(self.store, "default", "", "", 100)
        assert any(state.ticket.whole for state in page.tickets)
        self.told("waiters", waiters_document(page))
        hour = Activity(self.store).hour("default")
        self.told("activity", activity_document(hour, 1, {}))

    def told(self, answer: str, body: dict[str, Any] | None) -> None:
        assert body is not None
        self.last = body
        self.wrong += wrong_in(answer, body)
        self.note(answer, body)

    def closed(self) -> None:
        lease = self.ask("acquire", "shut/a", max_hold_seconds=90)["lease_id"]
        self.ask("renew", "shut/a", lease_id=lease)
        assert self.ask("acquire", "shut/a")["status"] == "held"
        self.ask("acquire", "shut/a", owner="waits", wait_seconds=1)
        lease = self.ask("transfer", "shut/a", lease_id=lease, to_owner="heir")["lease_id"]
        self.ask("close", "shut/", for_seconds=60, reason="why")
        assert self.ask("acquire", "shut/b")["status"] == "closed"
        self.ask("acquire", "shut/a", owner="waits too", wait_seconds=1)
        self.ask("inspect", "shut/a")
        self.told("waiters", waiters_document(live_tickets(self.store, "default", "", "", 100)))
        self.heard("list", self._transport.ask(Ask("list", "", {"limit": 2})))
        self.ask("open", "shut/a")
        self.ask("open", "shut/")

    def one_job(self) -> None:
        lease = self.ask("acquire", "a", metadata="m", acl={"acquire": ["user:local"]})["lease_id"]
        assert self.ask("acquire", "a", owner="other")["status"] == "held"
        self.ask("acquire", "a", lease_id=lease)
        self.ask("renew", "a", lease_id=lease, checkpoint="c", metadata="n")
        self.ask("acl", "a", acl={"acquire": ["user:local"]})
        self.ask("inspect", "a")
        lease = self.ask("transfer", "a", lease_id=lease, to_owner="heir")["lease_id"]
        self.ask("release", "a", lease_id=lease, done_seconds=60, result="r")
        assert self.ask("acquire", "a")["status"] == "done"
        self.ask("inspect", "a")

    def several(self) -> None:
        self.ask("acquire-all", "", names=["s", "t"], mode="shared")
        for _ in range(2):
            self.ask("acquire-all", "", names=["u", "v"], request_key="again")
            self.ask("break", "u", reason="why")
        self.ask("acquire", "s", mode="shared", owner="second")
        self.ask("inspect", "s")
        self.ask("acquire", "s", owner="third")
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
        self.ask("withdraw", "", request_key="given up", names=["A"])
        lost = ticket_text("default", "A", 8, new_id())
        both = self.ask("acquire-all", "", names=["A", "kept"], owner="both", ticket=lost)
        kept = self.ask("acquire", "kept")
        assert (kept["status"], kept["owner"], kept["reserved_for"]["owner"]) == ("held", None, "both")
        assert kept["holder_id"]
        assert kept["expires_at"] > kept["reserved_for"]["since"]
        self.ask("leave", "A", ticket=both["ticket"])
        self.ask("session-show", one)
        agent = self.ask("session-open", "", owner="claude-1 in app", metadata='{"agent":"claude"}')["session_id"]
        for ended in (None, "true"):
            self.heard("agents", self._transport.ask(Ask("agents", "", {"limit": 10, "ended": ended})))
            self.ask("session-end", agent)
        lost = ticket_text("default", "A", 9, new_id())
        self.ask("acquire", "A", owner="third", ticket=lost)
        wanted = self.ask("session-keep", one, active=True)["wanted"]
        assert wanted == [{"name": "A", "namespace": "default", "waiting": 1, "new_waiters": 1}]
        for status in ("held", "queued"):
            asked = {"ticket": lost} if status == "queued" else {}
            assert self.ask("acquire", "A", owner="third", **asked)["idle_ms"] == 0
        self.ask("inspect", "A")
        self.ask("session-end", one)
        assert self.ask("renew", "A", session_id=one)["ended"] == "released"

    def pools(self) -> None:
        for _ in range(2):
            self.ask("next", "migrations", at_least=436, owner="a", request_key="k")
        self.ask("next", "migrations", number=436)
        self.ask("inspect", "migrations")
        self.ask("give-back", "migrations", number=436)
        self.ask("pool", "gpu", slots=3)
        one = self.ask("session-open", "", owner="one")["session_id"]
        lease = self.ask("acquire", "gpu", units=2, session_id=one)["lease_id"]
        self.ask("session-show", one)
        self.ask("renew", "gpu", lease_id=lease)
        self.ask("transfer", "gpu", lease_id=lease, to_owner="heir")
        self.ask("acquire", "gpu", units=2)
        self.ask("inspect", "gpu")
        assert self.ask("acquire", "gpu", units=4)["code"] == "conflict"
        assert self.ask("acquire-any", "", names=["gpu", "x", "y"], count=2)["leases"]
        assert self.ask("acquire-any", "", names=["gpu", "x", "z"], count=2)["free"] == 1
        self.ask("pool", "gpu", slots=0)
        assert self.ask("acquire", "gpu")["paused"]
        lost = ticket_text("default", "gpu", 9, new_id())
        assert self.ask("acquire", "gpu", ticket=lost)["paused"]

    def tokens(self) -> None:
        asks: list[tuple[str, str, dict[str, object]]] = [
            ("token-create", "", {"name": "ci", "expires_seconds": 60}),
            ("token-rotate", "ci", {"grace_seconds": 0}),
            ("token-limit", "ci", {"max_held": 1}),
            ("token-revoke", "ci", {}),
            ("tokens", "", {}),
        ]
        for verb, name, document in asks:
            self.heard(verb, self._transport.ask(Ask(verb, name, document)))

    def steps(self) -> None:
        lease = self.ask("acquire", "steps")["lease_id"]
        one: dict[str, object] = {"lease_id": lease, "effect_id": new_id()}
        for status, more in (("begun", {}), ("done", {"effect_result": "r"})):
            self.told(
                "effect", self.ask("renew", "steps", **one, effect_key="k", effect_status=status, **more)["effect"]
            )
        other = {**one, "effect_id": new_id(), "effect_key": "other"}
        self.ask("renew", "steps", **other)
        doubt = self.ask("renew", "steps", **other, effect_status="in_doubt", effect_reason="why")["effect"]
        self.told("effect", doubt)
        self.ask("inspect", "steps")
        self.ask("release", "steps", lease_id=lease, failed=True)
        self.ask("acquire", "steps")
        self.ask("history", "steps", limit=100)

    def groups(self) -> None:
        self.ask("overdue", "deploy", within_seconds=60)
        lease = self.ask("acquire", "deploy")["lease_id"]
        self.ask("overdue", "deploy", within_seconds=60)
        waits: dict[str, object] = {"replaces": "main", "wait_seconds": 1}
        for key in ("older", "newer"):
            self.ask("acquire", "deploy", request_key=key, owner=key, **waits)
        told = self.ask("acquire", "deploy", request_key="older", owner="older", **waits)
        assert told == {"status": "superseded", "name": "deploy", "group": "main", "by": "newer"}
        self.ask("release", "deploy", lease_id=lease, uncounted=True)
        self.ask("history", "deploy", limit=100)

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


def test_every_answer_is_as_its_fields_are_declared() -> None:
    played = Played()
    played.play()
    assert played.wrong == []


def test_every_field_that_is_declared_was_seen_in_an_answer() -> None:
    played = Played()
    played.play()
    unseen = {
        f"{answer}.{field}"
        for answer, declared in ANSWERS.items()
        for field in declared.keys() - played.said.get(answer, set())
    }
    assert unseen - BY_CHANCE == set()


def test_what_is_for_everybody_is_shown_and_what_proves_is_not() -> None:
    """Of every text that a request may have: who else sees it is as declared."""
    store = MemoryStore(ManualClock(1_800_000_000_000))
    transport = EmbeddedTransport(lambda: Coordinator(store))
    session = transport.ask(Ask("session-open", "", {"owner": "o-1", "process": "seen-process"})).body or {}
    claim = {"owner": "seen-owner", "metadata": "seen-metadata", "request_key": "seen-request_key"}
    lease = transport.ask(Ask("acquire", "a", {**claim, "session_id": session["session_id"]})).body or {}
    transport.ask(Ask("renew", "a", {"lease_id": lease["lease_id"], "checkpoint": "seen-checkpoint"}))
    shown = [
        transport.ask(Ask("inspect", "a")),
        transport.ask(Ask("acquire", "a", {"owner": "other"})),
        transport.ask(Ask("history", "a", {"limit": 100})),
    ]
    heir = transport.ask(Ask("transfer", "a", {"lease_id": lease["lease_id"], "to_owner": "seen-to_owner"})).body or {}
    shown += [transport.ask(Ask("inspect", "a")), transport.ask(Ask("list", "", {"limit": 10}))]
    transport.ask(Ask("release", "a", {"lease_id": heir["lease_id"], "failed": True, "reason": "seen-reason"}))
    done = transport.ask(Ask("acquire", "b")).body or {}
    transport.ask(Ask("release", "b", {"lease_id": done["lease_id"], "done": True, "result": "seen-result"}))
    shown += [transport.ask(Ask("inspect", name)) for name in "ab"]
    text = json.dumps([reply.body for reply in shown])
    seen_by = {name: field.seen_by for fields in REQUESTS.values() for name, field in fields.items()}
    for field, who in seen_by.items():
        if field in (
            "owner",
            "metadata",
            "request_key",
            "process",
            "checkpoint",
            "to_owner",
            "reason",
            "result",
        ):
            assert (f"seen-{field}" in text) == (who == EVERYBODY), field
    for proof in (session["session_id"], lease["lease_id"], heir["lease_id"], done["lease_id"]):
        assert proof not in text


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("previous", answers.Previous),
        ("acquired", answers.Lease),
        ("job", answers.JobStatus),
        ("event", answers.JobEvent),
    ],
)
def test_a_class_of_the_sdk_has_fields_of_its_answer_with_their_types(answer: str, kind: Any) -> None:
    """They are written out, so that type checkers and editors see them; so they are compared."""
    kinds = {"int": "number", "str": "text", "bool": "flag", "tuple[int, ...]": "list", "Previous": "object"}
    kinds |= {"tuple[Effect, ...]": "list"}
    for field in fields(kind):
        if field.name in ("document", "namespace"):  # all that was said; and what the client itself adds
            continue
        if kind is answers.Lease and field.name not in ANSWERS[answer]:  # what only a renewal says
            assert field.name in ANSWERS["renew"]
            continue
        assert kind_of(answer, field.name) == kinds[str(field.type).removesuffix(" | None")], field.name
        if ANSWERS[answer][field.name].null:
            assert str(field.type).endswith(" | None"), field.name
