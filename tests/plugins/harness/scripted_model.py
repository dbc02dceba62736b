"""A model on loopback for real coding agents: it answers with the tool calls of a script, in the form of each API.

It speaks Anthropic's Messages, OpenAI's Responses and Chat Completions, and Gemini's generateContent. A script is a
generator: it yields a `Call` or a text, and is sent what the client told the model since. A text ends the turn.
"""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    Document = dict[str, Any]


class Call(NamedTuple):
    """A call of a tool. `namespace` and `kind` are for Codex, which has tools in namespaces, and with a plain text."""

    tool: str
    given: Any
    namespace: str = ""
    kind: str = "function_call"


class Told(NamedTuple):
    """What the client told the model: the tools it offers, the last tool's result, and all of the request."""

    tools: set[str]
    result: str
    request: str


if TYPE_CHECKING:
    Script = Generator[Call | str, Told, None]


class ScriptedModel:
    """A server for one agent. `url` is its address. `after`: a model with which the conversation began."""

    def __init__(self, script: Script, after: ScriptedModel | None = None) -> None:
        self._script = script
        self._gate = threading.Lock()
        self._said: list[Call | str] = [] if after is None else [each for each in after._said if isinstance(each, Call)]
        self._has_begun = False
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def next(self, tools: set[str], results: list[Any], request: Document) -> Call | str:
        """The script's answer to a request with that many results of tools. A client that asks again gets the same."""
        with self._gate:
            while len(self._said) <= len(results):
                self._said.append(self._step(tools, results, request))
            return self._said[len(results)]

    def _step(self, tools: set[str], results: list[Any], request: Document) -> Call | str:
        try:
            if not self._has_begun:
                self._has_begun = True
                return next(self._script)
            last = json.dumps(results[-1], ensure_ascii=False) if results else ""
            return self._script.send(Told(tools, last, json.dumps(request, ensure_ascii=False)))
        except StopIteration:
            return "done"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(_Handler):
            scripted = model

        return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scripted: ScriptedModel

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [], "models": []})

    def do_HEAD(self) -> None:
        self._json({})

    def do_POST(self) -> None:
        asked, path = self._body(), self.path.partition("?")[0]
        if path.endswith("count_tokens") or "countTokens" in path:
            self._json({"input_tokens": 10, "totalTokens": 10})
        elif path.endswith("/messages"):
            self._messages(asked)
        elif path.endswith("/responses"):
            self._responses(asked)
        elif path.endswith("/chat/completions"):
            self._chat(asked)
        elif "enerateContent" in path:
            self._gemini(asked, streams="stream" in path)
        else:
            self.send_error(404)

    def _body(self) -> Document:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            data = b"".join(parts)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        found: Document = json.loads(data) if data else {}
        return found

    def _json(self, document: Document) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterable[Document], *, named: bool = False, end: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if named else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(end.encode())
        self.close_connection = True

    def _messages(self, asked: Document) -> None:
        tools = {each.get("name") for each in asked.get("tools") or ()}
        parts = [part for each in asked.get("messages", ()) for part in _list(each.get("content"))]
        results = [part for part in parts if part.get("type") == "tool_result"]
        said = self.scripted.next(tools, results, asked) if tools else '{"title": "x"}'
        if isinstance(said, str):
            block: Document = {"type": "text", "text": ""}
            delta, why = {"type": "text_delta", "text": said}, "end_turn"
            whole: Document = {"type": "text", "text": said}
        else:
            block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": said.tool, "input": {}}
            delta, why = {"type": "input_json_delta", "partial_json": json.dumps(said.given)}, "tool_use"
            whole = {**block, "input": said.given}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": f"msg_{len(results)}", "type": "message", "role": "assistant", "model": asked.get("model")}
        message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        if not asked.get("stream"):
            return self._json({**message, "content": [whole], "stop_reason": why})
        events: list[Document] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": why, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        return self._stream(events, named=True)

    def _responses(self, asked: Document) -> None:
        tools = {each.get("name") or each.get("type") for each in asked.get("tools") or ()}
        results = [each for each in _list(asked.get("input")) if str(each.get("type")).endswith("_output")]
        said = self.scripted.next(tools, results, asked) if tools else "ok"
        number = len(results)
        if isinstance(said, str):
            text = {"type": "output_text", "text": said, "annotations": []}
            item: Document = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [text]}
        else:
            item = {"type": said.kind, "id": f"item_{number}", "call_id": f"call_{number}"}
            item |= {"name": said.tool, "input": said.given} if said.kind == "custom_tool_call" else {}
            item |= {"execution": "client", "arguments": said.given} if said.kind == "tool_search_call" else {}
            if said.kind == "function_call":
                item |= {"name": said.tool, "arguments": json.dumps(said.given)}
            item |= {"namespace": said.namespace} if said.namespace else {}
        item["status"] = "completed"
        begun: Document = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        ended = {**begun, "status": "completed", "output": [item], "usage": usage}
        events: list[Document] = [
            {"type": "response.created", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": ended},
        ]
        self._stream(events, named=True)

    def _chat(self, asked: Document) -> None:
        tools = {each["function"]["name"] for each in asked.get("tools") or ()}
        results = [each for each in asked.get("messages", ()) if each.get("role") == "tool"]
        said = self.scripted.next(tools, results, asked) if tools else "ok"
        if isinstance(said, str):
            message: Document = {"role": "assistant", "content": said}
        else:
            function = {"name": said.tool, "arguments": json.dumps(said.given)}
            call = {"index": 0, "id": f"call_{len(results)}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        why = "stop" if isinstance(said, str) else "tool_calls"
        made = {"id": f"chat_{len(results)}", "created": 1, "model": asked.get("model")}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": why}
            return self._json({**made, "object": "chat.completion", "choices": [choice], "usage": usage})
        made["object"] = "chat.completion.chunk"
        events = [
            {**made, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**made, "choices": [{"index": 0, "delta": {}, "finish_reason": why}]},
            {**made, "choices": [], "usage": usage},
        ]
        return self._stream(events, end="data: [DONE]\n\n")

    def _gemini(self, asked: Document, *, streams: bool) -> None:
        declared = [each.get("functionDeclarations") for each in asked.get("tools") or ()]
        tools = {function["name"] for each in declared for function in each or ()}
        parts = [part for each in asked.get("contents", ()) for part in each.get("parts", ())]
        results = [part for part in parts if "functionResponse" in part]
        # Without tools it asks about its own conversation, for JSON.
        said = self.scripted.next(tools, results, asked) if tools else '{"next_speaker": "user", "reasoning": "x"}'
        part: Document = {"text": said}
        if not isinstance(said, str):
            part = {"functionCall": {"name": said.tool, "args": said.given, "id": f"call{len(results)}"}}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
        self._stream([answer]) if streams else self._json(answer)


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []
