"""`dibs mcp`: the MCP server over standard input and output, for the one client that started it.

A line is a message of JSON-RPC 2.0. Each request has a task of its own, so that a claim that waits in line holds up
nothing, and `notifications/cancelled` ends it. Since revision 2026-07-28 each request carries the version; before that
a connection began with `initialize`. Each request is answered in its own way, so a client may try both.

The client is gone when standard input ends, or when nobody reads standard output any more. Then the session is ended,
which releases all claims. The same happens on SIGTERM, SIGINT and SIGHUP. After SIGKILL, the next dibs process on this
machine sees from the session's process mark that it is dead; for other machines its TTL ends it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from dibs._version import __version__
from dibs.agents.mcp.backend import CLOSE_SECONDS_MAX, ConnectionSession, FindsSession, ToolBackend
from dibs.agents.mcp.methods import (
    INSTRUCTIONS,
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    AnswerForm,
    Methods,
    ProtocolError,
    complete,
    invalid_params,
)
from dibs.agents.mcp.tools import TOOLS, Tool
from dibs.base.clock import steady_ms
from dibs.base.jsontext import Document
from dibs.base.logger import log
from dibs.base.plugins import PARTS, plugin
from dibs.base.terminal import log_lines
from dibs.client.settings import Settings
from dibs.sdk.async_transport import open_transport

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LINE_BYTES_MAX = 16 * 1024 * 1024
UNREAD_BYTES_MAX = 64 * 1024 * 1024  # of a client that does not read its answers
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
BATCHES = "2025-03-26"  # the one revision that has batches
MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"
VERSION_KEY, _CLIENT, _ABLE = _META + "protocolVersion", _META + "clientInfo", _META + "clientCapabilities"
PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR, UNSUPPORTED = -32700, -32600, -32603, -32022
_READS_BOTH = "copilot"  # in the name of a client that gives its model both forms of an answer
PROGRESS_S = 5.0
_INFO = {"name": "dibs", "title": "dibs", "version": __version__}
_ABOUT = {
    "capabilities": {"tools": {"listChanged": False}, "resources": {"subscribe": False, "listChanged": False}},
    "instructions": INSTRUCTIONS,
}
NO_ENVELOPE = f"params._meta must be an object carrying the required '{VERSION_KEY}' and '{_ABLE}' envelope keys"


class Dialogue:
    """The protocol with one client, message by message. `version` is that of the handshake."""

    def __init__(self, methods: Methods, backend: ToolBackend, version: str | None = None) -> None:
        self._methods = methods
        self._backend = backend
        self._version = version
        self._reads_both = False
        self._calls: dict[int | str, asyncio.Task[Any]] = {}

    async def answer(self, message: Any) -> Document | None:
        """The answer to a message. None for one that gets none."""
        if not isinstance(message, dict):
            return error_answer(None, _invalid_request())
        key, method, params = message.get("id"), message.get("method"), message.get("params")
        params = {} if params is None else params
        has_key = isinstance(key, int | str) and not isinstance(key, bool)
        if message.get("jsonrpc") == "2.0" and has_key and ("result" in message or "error" in message):
            return None  # an answer, though nothing was asked
        if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict):
            return error_answer(key if has_key else None, _invalid_request())
        if "id" not in message:
            wanted = params.get("requestId") if method == "notifications/cancelled" else None
            call = self._calls.get(wanted) if isinstance(wanted, int | str) else None
            if call is not None:
                call.cancel()
            return None
        if not isinstance(key, int | str) or not has_key:
            return error_answer(None, _invalid_request())
        return await self._request(key, method, params)

    def begin_progress(self, params: Document) -> asyncio.Task[None] | None:
        """Begin to tell the client that its call is waited for, if it wants to be told."""
        return None

    async def _request(self, key: int | str, method: str, params: Document) -> Document:
        progress = self.begin_progress(params) if method == "tools/call" else None
        task = asyncio.current_task()
        assert task is not None  # a coroutine of ours runs in one
        self._calls[key] = task
        try:
            return {"jsonrpc": "2.0", "id": key, "result": await self._result(method, params)}
        except ProtocolError as error:
            return error_answer(key, error)
        except Exception:
            log.exception("%s failed in a way it should not", method[:64])
            return error_answer(key, ProtocolError(INTERNAL_ERROR, "Internal server error"))
        finally:
            if progress is not None:
                progress.cancel()  # nothing may come after the answer
            if self._calls.get(key) is task:
                del self._calls[key]

    async def _result(self, method: str, params: Document) -> Document:
        meta = params.get("_meta", {})
        if not isinstance(meta, dict):
            raise invalid_params() if self._version else ProtocolError(INVALID_PARAMS, NO_ENVELOPE)
        if method == "initialize":
            return self._initialized(params)
        if VERSION_KEY in meta:
            return await self._modern(method, params, meta)
        if method == "ping":
            return {}
        self._methods.check(method)
        if self._version is None:
            raise ProtocolError(INVALID_PARAMS, NO_ENVELOPE)
        form = AnswerForm(once=self._reads_both, missing=RESOURCE_NOT_FOUND)
        return await self._methods.answer(self._backend, method, params, form)

    def _initialized(self, params: Document) -> Document:
        asked, client = params.get("protocolVersion"), params.get("clientInfo")
        if not isinstance(asked, str) or not isinstance(params.get("capabilities"), dict):
            raise invalid_params()
        self._meet(client)
        self._version = asked if asked in HANDSHAKE else HANDSHAKE[-1]
        return {"protocolVersion": self._version, "serverInfo": _INFO, **_ABOUT}

    async def _modern(self, method: str, params: Document, meta: Document) -> Document:
        """The result of a request that names its protocol version."""
        if _ABLE not in meta:
            raise ProtocolError(INVALID_PARAMS, f"params._meta is missing the required envelope key(s): {_ABLE}")
        asked = meta[VERSION_KEY]
        if not isinstance(asked, str):
            raise ProtocolError(INVALID_PARAMS, "the protocol-version envelope value must be a string")
        if asked != MODERN:
            known = {"supported": [MODERN], "requested": asked}
            raise ProtocolError(UNSUPPORTED, "Unsupported protocol version", known)
        if not isinstance(meta[_ABLE], dict):
            raise invalid_params()
        if meta.get(_CLIENT) is not None:
            self._meet(meta[_CLIENT])
        if method == "server/discover":
            result: Document = {"supportedVersions": [MODERN], **_ABOUT}
        else:
            result = await self._methods.answer(self._backend, method, params, AnswerForm(once=self._reads_both))
        return {**complete(method, result), "_meta": {_META + "serverInfo": _INFO}}

    def _meet(self, client: Any) -> None:
        if not isinstance(client, dict) or not all(isinstance(client.get(key), str) for key in ("name", "version")):
            raise invalid_params()
        self._backend.introduce(client["name"])
        self._reads_both = _READS_BOTH in client["name"].lower()


class Connection(Dialogue):
    """The dialogue over lines. `send` takes those for the client."""

    def __init__(self, methods: Methods, backend: ToolBackend, send: Callable[[bytes], object]) -> None:
        super().__init__(methods, backend)
        self._send = send
        self._work: set[asyncio.Task[None]] = set()

    def receive(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = parse_message(line)
        except ProtocolError as error:
            return self._reply(error_answer(None, error))
        if isinstance(message, list) and message and self._version == BATCHES:
            work = asyncio.create_task(self._replied(self._batch(message)))
        else:
            work = asyncio.create_task(self._replied(self.answer(message)))
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    def begin_progress(self, params: Document) -> asyncio.Task[None] | None:
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if not isinstance(token, int | str) or isinstance(token, bool):
            return None
        given = params.get("arguments")
        wanted = given.get("wait_seconds") if isinstance(given, dict) else None
        return asyncio.create_task(self._report_progress(token, wanted))

    async def _report_progress(self, token: int | str, wanted: object) -> None:
        """Say every few seconds how long the call has waited: a client may give up on one that it hears nothing of."""
        began_ms = steady_ms()
        while True:
            await asyncio.sleep(PROGRESS_S)
            waited = (steady_ms() - began_ms) / 1000
            report: Document = {"progressToken": token, "progress": waited, "message": f"Waiting for {waited:.0f} s."}
            if isinstance(wanted, int | float) and not isinstance(wanted, bool) and wanted >= waited:
                report["total"] = wanted
            self._reply({"jsonrpc": "2.0", "method": "notifications/progress", "params": report})

    async def close(self) -> None:
        """End all calls, and release all claims. This takes a bounded time."""
        for work in self._work:
            work.cancel()
        await asyncio.wait([*self._work, asyncio.create_task(self._backend.close())], timeout=CLOSE_SECONDS_MAX)

    async def _replied(self, work: Awaitable[Document | list[Document] | None]) -> None:
        answer = await work
        if answer:
            self._reply(answer)

    def _reply(self, answer: Document | list[Document]) -> None:
        self._send(json.dumps(answer, separators=(",", ":")).encode() + b"\n")

    async def _batch(self, messages: list[Any]) -> list[Document]:
        answers = await asyncio.gather(*[self.answer(each) for each in messages], return_exceptions=True)
        return [each for each in answers if isinstance(each, dict)]


def parse_message(text: bytes) -> Any:
    """Raises ProtocolError for what is not JSON."""
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "Parse error") from None


def error_answer(key: int | str | None, error: ProtocolError) -> Document:
    return {"jsonrpc": "2.0", "id": key, "error": error.document}


def _invalid_request() -> ProtocolError:
    return ProtocolError(INVALID_REQUEST, "Invalid Request")


class _Wire:
    """Standard input and output, in threads, because both may block. While it is open, other parts of this process and
    programs that it starts read nothing there, and what they print goes to standard error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Callable[[int], object]) -> None:
        self._loop = loop
        self._leave = leave
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # standard error is closed
            os.dup2(nothing, 1)
        os.close(nothing)
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unread = 0
        self._writer = threading.Thread(target=self._write, daemon=True)

    def open(self, receive: Callable[[bytes], object]) -> None:
        self._writer.start()
        threading.Thread(target=self._watch_output, daemon=True).start()
        threading.Thread(target=self._read, args=(receive,), daemon=True).start()

    def send(self, line: bytes) -> None:
        self._unread += len(line)
        if self._unread > UNREAD_BYTES_MAX:
            self._leave(128 + signal.SIGPIPE)
        else:
            self._lines.put(line)

    def close(self) -> None:
        """Write what was sent, if it is read within a second."""
        self._lines.put(None)
        self._writer.join(1)
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)

    def _post(self, call: Callable[..., object], *given: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending anyway
            self._loop.call_soon_threadsafe(call, *given)

    def _read(self, receive: Callable[[bytes], object]) -> None:
        with open(self._input, "rb", closefd=False) as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                self._post(receive, line)
                while len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):  # too long: the rest is not read
                    line = lines.readline(LINE_BYTES_MAX)
        self._post(self._leave, 0)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            left = memoryview(line)
            while left:
                try:
                    left = left[os.write(self._output, left) :]
                except OSError:  # nobody reads: whoever watches the output says so
                    return
            self._post(self._written, len(line))

    def _written(self, count: int) -> None:
        self._unread -= count

    def _watch_output(self) -> None:
        """Wait until nobody can read standard output. For a file this never happens."""
        watch = select.poll()
        watch.register(self._output, 0)  # only the end is reported
        watch.poll()
        self._post(self._leave, 128 + signal.SIGPIPE)


def run(settings: Settings, *, finds: FindsSession, action_llama: bool = False) -> None:
    """Serve until the client is gone. `action_llama`: with its two lock tools. `finds`: see `ConnectionSession`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_lines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    tools: tuple[Tool, ...] = TOOLS
    if action_llama:
        tools = (*TOOLS, *(plugin(PARTS, "action-llama-tools", "dibs mcp --action-llama") or ()))
    asyncio.run(_serve(settings, tools, finds))


async def _serve(settings: Settings, tools: tuple[Tool, ...], finds: FindsSession) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def leave(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number in SIGNALS:
        loop.add_signal_handler(number, leave, 128 + number)
    wire = _Wire(loop, leave)
    transport = open_transport(settings)
    backend = ToolBackend(transport, settings.pick("owner", "DIBS_OWNER"), ConnectionSession(transport, finds))
    connection = Connection(Methods(tools, kept=True), backend, wire.send)
    wire.open(connection.receive)
    code = await ended
    try:
        await connection.close()
    finally:
        if code:
            os._exit(code)  # a thread that reads or writes may block for ever
        wire.close()
        transport.close()
