"""A dibs server in a thread of the test: a real socket, a store in memory, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import select
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvloop

from dibs.base.clock import steady_ms
from dibs.compat.action_llama.routes import Gateway
from dibs.core.limits import KEEP_ALIVE_MS, LOCKS_PER_PRINCIPAL_MAX
from dibs.engine.auth import TokenGuard
from dibs.engine.credentials import CredentialDirectory
from dibs.engine.sweeper import NEVER_MS
from dibs.engine.webhooks import TargetPolicy
from dibs.server.engine import Engine
from dibs.server.handlers import Api
from dibs.server.http.listen import BindAddress, open_socket
from dibs.server.http_server import make_server
from dibs.server.settings import ServerSettings
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dibs.engine.webhooks.sender import Sender
    from dibs.oidc.tokens import SignedTokens
    from dibs.server.connection import RequestObserver
    from dibs.server.http.admission import Admission
    from dibs.server.http_server import HttpServer
    from dibs.stores.port import Store

TOKENS = {
    "viewer": "tok-viewer",
    "agent": "tok-agent",
    "other": "tok-other",
    "operator": "tok-operator",
    "admin": "tok-admin",
    "scoped": "tok-scoped",
    "bob-a": "tok-bob-a",
    "bob-b": "tok-bob-b",
    "operator-a": "tok-operator-a",
}
LINES = """
viewer:tok-viewer:viewer
agent:tok-agent
other:tok-other
operator:tok-operator:operator
admin:tok-admin:admin
scoped:tok-scoped:agent:team-a
bob:tok-bob-a:agent:team-a
bob:tok-bob-b:agent:team-b
operator:tok-operator-a:operator:team-a
"""
JSON = {"Content-Type": "application/json"}
UNKNOWN_LEASE = "00000000-0000-4000-8000-000000000000"
AUTH = b"Authorization: Bearer tok-agent\r\n"
AS_JSON = b"Content-Type: application/json\r\n"


def request(method: str, path: str, body: bytes | None = None, head: bytes = AUTH + AS_JSON) -> bytes:
    """One request as it is sent."""
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n%b" % (
        method.encode(),
        path.encode(),
        head,
        length,
        body or b"",
    )


class WaitedForStore(MemoryStore):
    """A store that no event loop may wait for."""

    def at_once(self) -> None:  # type: ignore[override]
        return None


class Response:
    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        port: int,
        engine: Engine,
        guard: TokenGuard,
        inner: HttpServer,
        loop: asyncio.AbstractEventLoop,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._trust = trust
        self._inner = inner
        self.api: Api = inner.api
        self._loop = loop
        self.store = store
        self.clock = clock
        self.port = port
        self.engine = engine
        self.guard = guard
        self._asked_s = 0.0
        self._connection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S_MAX)
            if trust is None
            else http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT_S_MAX, context=trust)
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        who: str | None = "agent",
        headers: dict[str, str] | None = None,
    ) -> Response:
        """One request. A dict is sent as JSON, bytes as they are; `who` None sends no Authorization."""
        sent = dict(headers or {})
        if who is not None:
            sent.setdefault("Authorization", f"Bearer {TOKENS.get(who, who)}")
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            sent = {**JSON, **sent}
        # Nobody asked, so what can be read is the end: tests in between had short limits, which count for every server
        # of this process. Only what ended unasked is replaced: a server that hangs up on a request must be seen. One
        # that was idle for long may end at this very moment.
        idle_s, self._asked_s = time.monotonic() - self._asked_s, time.monotonic()
        if (kept := self._connection.sock) is not None and (
            idle_s > KEEP_ALIVE_MS / 2_000 or select.select([kept], [], [], 0)[0]
        ):
            self._connection.close()
        try:
            self._connection.request(method, path, body, sent)
            raw = self._connection.getresponse()
            return Response(raw.status, raw.getheaders(), raw.read())
        except (OSError, http.client.HTTPException):
            self._connection.close()  # one that broke must not fail every test after this
            raise

    def acquire(self, name: str, body: dict[str, Any] | None = None, **more: Any) -> Response:
        return self.ask("POST", f"/locks/{name}/acquire", body or {}, **more)

    def lease(self, name: str, **fields: Any) -> str:
        """The lease id of a fresh claim."""
        reply = self.acquire(name, fields)
        assert reply.json["status"] == "acquired", reply.json
        return str(reply.json["lease_id"])

    def pass_time(self, ms: int) -> None:
        """Let time pass while the server runs: in steps so small that it is seen to be up, with a round of upkeep in
        each. A round that several steps fall into looks like a store that was away, and leases get time for it."""
        while ms > 0:
            self.clock.advance(min(ms, 500))
            ms -= 500
            assert self.ask("GET", "/locks/clock").status == 200
            self.do_upkeep()

    def do_upkeep(self) -> None:
        """Wait for a round of upkeep: its thread sleeps by the machine's clock."""
        sweeper = self.engine.sweeper
        sweeper.hurry(0)
        sweeper._wake.set()  # it may be late by the clock that was moved, and asleep
        until_s = time.monotonic() + WAIT_S_MAX
        while not self.clock.steady_ms() < sweeper._step_at_ms < NEVER_MS:
            assert time.monotonic() < until_s
            time.sleep(0.001)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Its event loop does nothing, as that of a paused process."""
        stands, goes_on = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            goes_on.wait(WAIT_S_MAX)

        self._loop.call_soon_threadsafe(stand)
        assert stands.wait(WAIT_S_MAX)
        try:
            yield
        finally:
            goes_on.set()

    def begin_stop(self) -> None:
        """What SIGTERM does."""
        self._inner.should_exit = True

    def connections(self) -> int:
        return len(self._inner.server_state.connections)

    def accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def waiting(self) -> int:
        """How many callers this server keeps waiting."""
        return len(self.engine.waiters)

    def raw(self) -> socket.socket:
        plain = self.raw_from("127.0.0.1")
        return plain if self._trust is None else self._trust.wrap_socket(plain, server_hostname="127.0.0.1")

    def raw_from(self, address: str) -> socket.socket:
        """From another loopback address, and without TLS."""
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S_MAX, (address, 0))


@contextmanager
def running(
    folder: Path,
    *,
    store: Store | None = None,
    clock: ManualClock | None = None,
    locks_per_principal: int = LOCKS_PER_PRINCIPAL_MAX,
    real_time: bool = False,
    gateway_ttl_ms: int | None = None,
    gateway_upstream: str | None = None,
    admission: Admission | None = None,
    at_once: bool = True,
    settings: ServerSettings | None = None,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    proxies: tuple[str, ...] = (),
    access_log: bool = False,
    webhook_sender: Callable[[], Sender] | None = None,
    port: int = 0,
    observers: Sequence[RequestObserver] = (),
    signed: SignedTokens | None = None,
) -> Iterator[Server]:
    """A server on a free port, ended with the block. Its chores follow the test's clock, unless `real_time`. It decides
    on its event loop, unless the store must be waited for, or without `at_once`. `tls`: the server's context, and a
    client's."""
    clock = clock or ManualClock()
    store = store or (MemoryStore(clock) if at_once else WaitedForStore(clock))
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(LINES)
    directory = CredentialDirectory(store)
    guard = TokenGuard(str(tokens), directory=directory)
    guard.signed = signed
    directory.start()
    listening = open_socket(BindAddress(host="127.0.0.1", port=port))
    port = listening.getsockname()[1]
    ready: list[tuple[Engine, HttpServer, asyncio.AbstractEventLoop]] = []
    up = threading.Event()

    async def main() -> None:
        steady = steady_ms if real_time else clock.steady_ms
        named = settings.metric_jobs if settings is not None else ()
        loop = asyncio.get_running_loop()
        engine = Engine(store, loop, metric_jobs=named, steady=steady, webhook_sender=webhook_sender)
        if webhook_sender is not None:
            engine.webhook_policy = TargetPolicy(private=True)
        engine.start()
        chosen = replace(
            settings or ServerSettings(),
            locks_per_principal=locks_per_principal,
            trusted_proxies=proxies,
            access_log=access_log,
        )
        api = Api(engine, guard, chosen)
        server = make_server(
            api,
            on_ready=up.set,
            plugins=[] if gateway_ttl_ms is None else [Gateway(api, gateway_ttl_ms, gateway_upstream)],
            admission=admission,
            tls=None if tls is None else tls[0],
            observers=observers,
        )
        ready.append((engine, server, asyncio.get_running_loop()))
        await server.serve(listening)
        api.close()
        await asyncio.to_thread(engine.stop)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(WAIT_S_MAX)
    server = Server(store, clock, port, ready[0][0], guard, *ready[0][1:], trust=None if tls is None else tls[1])
    try:
        yield server
    finally:
        server._connection.close()
        server.begin_stop()
        thread.join(WAIT_S_MAX)
        directory.stop()
        assert not thread.is_alive()
        listening.close()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Bounded; for what happens on the server's side of a connection."""
    end = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.005)


class Poll:
    """A request on a connection of its own, whose answer comes later."""

    def __init__(self, server: Server, path: str, body: dict[str, Any], who: str = "agent", head: str = "") -> None:
        text = json.dumps(body)
        self.connection = server.raw()
        self.connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS.get(who, who)}\r\n{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        )

    def answer(self) -> Any:
        """The document, once it is there."""
        status, _, body, _ = read_response(self.connection)
        self.connection.close()
        assert status == 200 or body, status
        return json.loads(body)

    def is_answered(self) -> bool:
        """Whether something can be read now."""
        return bool(select.select([self.connection], [], [], 0)[0])

    def hang_up(self) -> None:
        self.connection.close()


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_response(connection: socket.socket, buffered: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes, bytes]:
    """One response: status, headers, body, and what came after it."""
    data = buffered
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, f"closed in the middle of a head: {data!r}"
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    status_line, *lines = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    length = int(headers.get(b"content-length", b"0"))
    while len(rest) < length:
        part = connection.recv(65536)
        assert part, "closed in the middle of a body"
        rest += part
    return int(status_line.split()[1]), headers, rest[:length], rest[length:]


def masked(response: bytes) -> bytes:
    """Without what differs between any two answers: ids, and the date."""
    response = re.sub(rb"req_[0-9a-f]{32}", b"REQUEST", response)
    response = re.sub(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", b"LEASE", response)
    return re.sub(rb"date: [^\r]*", b"date: DATE", response)
