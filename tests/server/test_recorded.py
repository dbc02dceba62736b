"""What the server answers, byte for byte, held to answers that were recorded (recorded.json).

The file has conversations, by the kind of server that they are with. A conversation is one connection: texts that are
sent, each with the text that comes back, or "<closed>" behind it if the server hangs up. Ids, dates and measured
numbers are masked. Words with a $ stand for what is always the same, or known only when it is sent:

    $host, $agent, $json, …         headers of requests
    $lease                          the last lease id that was answered on this connection
    $x1000$                         so many times the letter x
    $usual, $json, $kept, …         headers and words of most answers

`DIBS_REWRITE=1` records the answers anew.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.compat.octostore.contract import OctoStoreContract
from dibs.server.settings import PublicElections, ServerSettings
from tests.server.harness import running

if TYPE_CHECKING:
    from tests.server.harness import Server

RECORDED = Path(__file__).with_name("recorded.json")
REWRITE = bool(os.environ.get("DIBS_REWRITE"))
QUIET_S = 0.2
FIRST_S = 3.0  # for who answers at all
WAIT_S = 30.0
BODY_SHOWN = 300
CLOSED = b"<closed>"
OCTOSTORE = OctoStoreContract(users=(("alice", "tok-agent"), ("bob", "tok-other")), admin_key="adm")
KINDS = {
    "plain": ServerSettings(public_elections=PublicElections(), local_registration=True),
    "cors": ServerSettings(cors_origins=("https://board.example",)),
    "octostore": ServerSettings(contract=OCTOSTORE),
    "gateway": ServerSettings(),
}
_SENT = {
    "$host": "Host: x\r\n",
    "$agent": "Authorization: Bearer tok-agent\r\n",
    "$admin": "Authorization: Bearer tok-admin\r\n",
    "$json": "Content-Type: application/json\r\n",
}
_ANSWERED = {
    "$usual": "date: DATE\r\nx-dibs-store: STORE\r\nx-content-type-options: nosniff\r\n",
    "$json": "content-type: application/json\r\n",
    "$kept": "x-request-id: REQUEST\r\ncache-control: no-store\r\n",
    "$refused": '{"error":"Invalid input","code":"invalid_input","details":"',
    "$denied": '{"error":"Authorization header required","code":"authentication_required","details":"',
    "$unknown": '{"error":"Authentication failed","code":"authentication_failed","details":"',
    "$id": '","request_id":"REQUEST"}',
}
_MASKS = [
    (r"[0-9a-f]+\r\n: keepalive\nid: \d+\n\n\r\n", ""),  # how many is a matter of time
    (r"req_[0-9a-f]{32}", "REQUEST"),
    (r"x-dibs-store: [^\r]+", "x-dibs-store: STORE"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "LEASE"),
    (r"date: [^\r]*", "date: DATE"),
    (r"dibs_[A-Za-z0-9_-]{20,}|whsec_[A-Za-z0-9+/=_-]{20,}", "TOKEN"),
    (r"(?<=[\"/])[A-Za-z0-9_-]{32,43}(?=[\"/])", "RANDOM"),
    (r'(?<="id":")[0-9a-f]{12}|(?<=token )[0-9a-f]{12}', "ID"),
    (r'("[a-z_]*(?:time|timestamp|at|bytes|seconds|_ms)":)[0-9.]+', r"\1N"),
    (r'("[a-z_]*":"?)\d{4}-\d\d-\d\dT[0-9:.]+Z?', r"\1TIME"),
]
_LEASE = re.compile(rb'"lease_id":"([0-9a-f-]{36})"')
_CONVERSATIONS: dict[str, list[list[list[str]]]] = json.loads(RECORDED.read_text())


def _bytes_of(text: str, lease: str) -> bytes:
    for word, meant in {**_SENT, "$lease": lease}.items():
        text = text.replace(word, meant)
    text = re.sub(r"\$(.)(\d+)\$", lambda found: found[1] * int(found[2]), text)
    head, length, body = text.partition("$length\r\n")
    return (f"{head}Content-Length: {len(body)}\r\n\r\n{body}" if length else text).encode("latin-1")


def _text_of(answer: bytes) -> str:
    text = _short(answer.removesuffix(CLOSED).decode("latin-1")) + "<closed>" * answer.endswith(CLOSED)
    for found, mask in _MASKS:
        text = re.sub(found, mask, text)
    for word, meant in _ANSWERED.items():
        text = text.replace(meant, word)
    return text


def _short(text: str) -> str:
    """Long bodies are pages and tables whose content other tests hold."""
    answers = re.split(r"(?=HTTP/1\.1 \d{3} [A-Z])", text)
    for at, answer in enumerate(answers):
        head, end, body = answer.partition("\r\n\r\n")
        length = re.search(r"content-length: (\d+)", head)
        if len(body) > BODY_SHOWN and length is not None and len(body) >= int(length[1]):
            answers[at] = re.sub(r"(content-length|etag): [^\r]*", r"\1: N", head) + end + body[:24] + "..."
    return "".join(answers)


def _talk(server: Server, conversation: list[list[str]]) -> list[list[str]]:
    """The conversation as it goes now."""
    told, lease = [], ""
    with server.raw() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sent, expected in conversation:
            try:
                connection.sendall(_bytes_of(sent, lease))
            except ConnectionError:
                pass
            answer = _answer(connection, None if REWRITE else expected)
            found = _LEASE.findall(answer)
            lease = found[-1].decode() if found else lease
            told.append([sent, _text_of(answer)])
    return told


def _answer(connection: socket.socket, expected: str | None) -> bytes:
    """All that comes until it is what is expected; without that, until nothing comes any more."""
    data = b""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        connection.settimeout(0.05 if expected is not None else QUIET_S if data else FIRST_S)
        if expected is not None and _text_of(data) == expected:
            return data
        try:
            part = connection.recv(65536)
        except TimeoutError:
            if expected is None:
                return data
            continue
        except ConnectionError:
            part = b""
        if not part:
            return data + CLOSED
        data += part
    return data


@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_answered_as_they_were(tmp_path: Path, kind: str) -> None:
    settings = KINDS[kind]
    gateway_ttl_ms = 60_000 if kind == "gateway" else None
    with running(tmp_path, settings=settings, gateway_ttl_ms=gateway_ttl_ms) as server:
        if settings.contract is OCTOSTORE:
            server.guard.fixed = OCTOSTORE.callers
        told = [_talk(server, conversation) for conversation in _CONVERSATIONS[kind]]
    if REWRITE:
        _CONVERSATIONS[kind] = told
        lines = {kind: ",\n".join(json.dumps(each) for each in found) for kind, found in _CONVERSATIONS.items()}
        RECORDED.write_text("{" + ",\n".join(f'"{kind}": [\n{text}\n]' for kind, text in lines.items()) + "}\n")
    for was, now in zip(_CONVERSATIONS[kind], told, strict=True):
        assert now == was
