"""Servers that break one promise each: a proxy before a sound one changes what is asked or answered now and then."""

from __future__ import annotations

import json
import re
import threading
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.proxy import Lie

    Ask = Callable[[bytes], bytes]
    Document = dict[str, Any]

_LENGTH = re.compile(rb"(\r\ncontent-length: *)\d+", re.IGNORECASE)


class Told(NamedTuple):
    """A request or a reply, taken apart."""

    head: bytes
    body: Document

    @classmethod
    def read(cls, data: bytes) -> Told:
        head, _, body = data.partition(b"\r\n\r\n")
        return cls(head, (json.loads(body) if body else None) or {})

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()

    def says(self, verb: str) -> bool:
        return self.line.split(" ")[1].split("?")[0].endswith(f"/{verb}")

    def with_body(self, **body: object) -> bytes:
        """With these fields; without those that are None."""
        found = {name: value for name, value in {**self.body, **body}.items() if value is not None}
        text = json.dumps(found).encode()
        return _LENGTH.sub(rb"\g<1>%d" % len(text), self.head) + b"\r\n\r\n" + text

    def to(self, verb: str, **body: object) -> bytes:
        """The same request for another verb of its job."""
        line, _, rest = self.head.partition(b"\r\n")
        method, target, version = line.decode().split(" ")
        there = f"{method} {target.rsplit('/', 1)[0]}/{verb} {version}".encode()
        return Told(there + b"\r\n" + rest, {}).with_body(**body)


def asks(change: Callable[[Told], bytes | None]) -> Lie:
    """Another request reaches the server."""

    def lie(request: bytes, ask: Ask) -> bytes:
        return ask(change(Told.read(request)) or request)

    return lie


def without(field: str) -> Lie:
    """The server is not told this field."""
    return asks(lambda told: told.with_body(**{field: None}) if field in told.body else None)


def drops_waiters(chance: Random) -> Lie:
    def lie(request: bytes, ask: Ask) -> bytes:
        reply = ask(request)
        asked, said = Told.read(request), Told.read(reply)
        if asked.says("acquire") and said.body.get("status") == "queued" and chance.random() < 0.3:
            ask(asked.to("leave", ticket=said.body["ticket"]))
        return reply

    return lie


def repeats_tokens(chance: Random) -> Lie:
    def lie(request: bytes, ask: Ask) -> bytes:
        reply = ask(request)
        said = Told.read(reply)
        if said.body.get("status") == "acquired" and said.body.get("fencing_token", 0) > 3 and chance.random() < 0.3:
            return said.with_body(fencing_token=said.body["fencing_token"] - 1)
        return reply

    return lie


def answers_old_states(_: Random) -> Lie:
    old: dict[str, bytes] = {}

    def lie(request: bytes, ask: Ask) -> bytes:
        reply, line = ask(request), Told.read(request).line
        return old.setdefault(line, reply) if line.startswith("GET /locks/") else reply

    return lie


def grants_twice(chance: Random) -> Lie:
    """It takes the job away from its owner, who is not told."""

    def lie(request: bytes, ask: Ask) -> bytes:
        reply, asked = ask(request), Told.read(request)
        if asked.says("acquire") and Told.read(reply).body.get("status") == "held" and chance.random() < 0.2:
            ask(asked.to("break", reason="a lie"))
            return ask(request)
        return reply

    return lie


def forgets_renewals(chance: Random) -> Lie:
    known: dict[str, bytes] = {}
    lock = threading.Lock()

    def lie(request: bytes, ask: Ask) -> bytes:
        asked = Told.read(request)
        lease = asked.body.get("lease_id")
        if not asked.says("renew") or not lease:
            return ask(request)
        with lock:
            before = known.get(lease)
        if before is not None:
            return before
        reply = ask(request)
        if b" 200 " in reply[:20]:
            known[lease] = reply
        return reply

    return lie


def grants_nothing(chance: Random) -> Lie:
    away = b'{"code":"upstream_unavailable","details":"It is away.","retryable":true}'
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    reply = head % len(away) + away

    def lie(request: bytes, ask: Ask) -> bytes:
        return reply if b"/acquire" in request.split(b"\r\n", 1)[0] else ask(request)

    return lie


def gives_no_lease_id(_: Random) -> Lie:
    def lie(request: bytes, ask: Ask) -> bytes:
        reply = ask(request)
        return Told.read(reply).with_body(lease_id=None) if b'"lease_id"' in reply else reply

    return lie


def counts_one_unit(told: Told) -> bytes | None:
    return told.with_body(units=1) if told.body.get("units", 1) > 1 else None


def closes_another(told: Told) -> bytes | None:
    if not told.says("close"):
        return None
    return Told(told.head.replace(b"/close", b"-elsewhere/close", 1), told.body).with_body()


class Plant(NamedTuple):
    lie: Callable[[Random], Lie]
    promises: tuple[str, ...]  # one of which the judge says
    features: frozenset[str] = frozenset()  # without which nothing is wrong
    is_seen_alone: bool = False  # by a model that knows one owner at a time


PLANTS = {
    "a waiter is dropped": Plant(drops_waiters, ("queue:fifo",)),
    "a token is repeated": Plant(repeats_tokens, ("token:rises",), is_seen_alone=True),
    "an old state is shown": Plant(answers_old_states, ("excl", "proof", "token:rises"), is_seen_alone=True),
    "a job is granted twice": Plant(grants_twice, ("excl", "lease:never-early"), is_seen_alone=True),
    "a renewal is forgotten": Plant(forgets_renewals, ("excl", "lease:never-early"), is_seen_alone=True),
    "units are not counted": Plant(lambda _: asks(counts_one_unit), ("units",), frozenset(["slots"])),
    "ceilings are not kept": Plant(lambda _: without("max_hold_seconds"), ("max-hold",), frozenset(["ceilings"])),
    "groups do not replace": Plant(lambda _: without("replaces"), ("queue:newest",), frozenset(["groups"])),
    "closures do not close": Plant(lambda _: asks(closes_another), ("closed",), frozenset(["closures"])),
}
